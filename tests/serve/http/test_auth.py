"""API keys: their sources, and that they are not revealed."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pytest

from relevance_gen.serve.http.access import auth
from relevance_gen.serve.http.access.auth import Keys, digest, read_digests
from tests.serve.harness import JSON, KEY, KEYED, Server, eventually, refused_start

BODY = {"query": "x", "chunk_txts": ["x"]}


def holds(keys: Keys, key: str | None) -> bool:
    """Return whether `key` is valid; both headers must agree."""
    shown = (
        ({"X-API-Key": key}, {"Authorization": f"Bearer {key}"}) if key is not None else ({}, {})
    )
    one, other = (keys.identify(headers) for headers in shown)
    assert one == other or key != (key or "").strip()  # white space around a bearer key is ignored
    assert one in (None, digest(key or "").hex()[:12])
    return one is not None


def test_each_configured_key_is_valid() -> None:
    """Every configured key opens the door, and nothing else does, not even with no keys at all."""
    keys = Keys([digest("one"), digest("two")])
    assert [holds(keys, key) for key in ("one", "two", "three", "", None, "one ", "ONE")] == [
        True
    ] * 2 + [False] * 5
    assert not holds(Keys([]), "one")
    assert not holds(Keys([digest("")]), "")


def test_changed_key_file_is_reloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys follow the lines of the file: plain, hashed, comments. A byte order mark is ignored."""
    monkeypatch.setattr(auth, "_CHECK_INTERVAL_S", 0.0)
    file = tmp_path / "keys"
    file.write_text(f"# ours\n\n plain \nsha256:{hashlib.sha256(b'hashed').hexdigest()}\n")
    keys = Keys([digest("fixed")], str(file))
    assert [holds(keys, key) for key in ("plain", "hashed", "fixed", "# ours", "new")] == [
        True,
        True,
        True,
        False,
        False,
    ]
    file.write_text("new\n", "utf-8-sig")
    assert [holds(keys, key) for key in ("plain", "hashed", "fixed", "new")] == [
        False,
        False,
        True,
        True,
    ]


def test_lost_key_file_keeps_last_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing or binary key file leaves the last keys valid."""
    monkeypatch.setattr(auth, "_CHECK_INTERVAL_S", 0.0)
    file = tmp_path / "keys"
    file.write_text("plain\n")
    keys = Keys([], str(file))
    file.unlink()
    assert holds(keys, "plain")
    file.write_bytes(b"\xff\xfe\xfd")
    assert holds(keys, "plain")
    file.write_text("")
    assert not holds(keys, "plain")


@pytest.mark.parametrize(
    "line",
    ["sha256:", "sha256:abc", "SHA256:" + "0" * 64, "sha256: " + "0" * 64, "sha256:" + "0" * 65],
)
def test_malformed_digest_is_rejected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    """A line that begins like a digest and is none refuses the file, at the start and when it is read again."""
    monkeypatch.setattr(auth, "_CHECK_INTERVAL_S", 0.0)
    file = tmp_path / "keys"
    file.write_text("plain\n")
    keys = Keys([], str(file))
    file.write_text(f"# new\nother\n{line}\n")
    assert [holds(keys, key) for key in ("plain", "other", line)] == [True, False, False]
    with pytest.raises(ValueError, match="line 3 of the key file"):
        read_digests(file)


def test_malformed_key_file_prevents_start(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """The error is a single line with the location, and the status is 2."""
    file = tmp_path / "keys"
    file.write_text("# new\nother\nsha256:abc\n")
    assert refused_start("--api-keys-file", str(file)) == 2
    (line,) = capfd.readouterr().err.splitlines()
    assert "line 3 of the key file" in line


def test_server_without_keys_generates_one() -> None:
    """A server without keys generates a key and prints it once, on standard output and not in the log."""
    with Server(RELEVANCE_GEN_API_KEYS="") as server:
        (line,) = [line for line in server.said if "X-API-Key" in line]
        key = line.split()[1]
        assert len(key) > 40
        assert server.search(BODY, {**JSON, "X-API-Key": key}).status == 200
        assert server.search(BODY, JSON).status == 401
        assert server.end()
        assert key not in server.log


def test_running_server_reloads_key_file(tmp_path: Path) -> None:
    """A running server reloads a changed key file, and does not generate a key."""
    file = tmp_path / "keys"
    file.write_text("first\n")
    with Server("--api-keys-file", str(file), RELEVANCE_GEN_API_KEYS="") as server:
        assert not any("X-API-Key" in line for line in server.said)
        assert server.search(BODY, {**JSON, "X-API-Key": "first"}).status == 200
        replacement = tmp_path / "replacement"
        replacement.write_text("second\n")
        os.replace(replacement, file)
        assert eventually(
            lambda: server.search(BODY, {**JSON, "X-API-Key": "second"}).status == 200
        )
        assert server.search(BODY, {**JSON, "X-API-Key": "first"}).status == 401


def test_log_contains_no_keys_and_no_bodies(server: Server) -> None:
    """The log contains the beginning of a key's digest, and no bodies or queries; standard output contains neither."""
    headers = {**KEYED, "X-Request-ID": "log-test"}
    server.call(
        "POST",
        "/search?token=query-secret",
        {"query": "body-secret", "chunk_txts": ["body-secret"]},
        headers,
    )
    server.search(BODY, {**JSON, "X-API-Key": "wrong-secret"})
    line = server.logged("log-test")
    assert not re.search(f"secret(?! internals)|{KEY}", server.log)
    assert KEY not in "".join(server.said)
    assert line["key"] == hashlib.sha256(KEY.encode()).hexdigest()[:12]
    assert (line["method"], line["path"], line["status"]) == ("POST", "/search", 200)


def test_bearer_key_equals_header_key(server: Server) -> None:
    """``Authorization: Bearer`` opens what ``X-API-Key`` opens; other schemes do not; of two keys X-API-Key counts."""
    for shown, status in (
        ({"Authorization": f"Bearer {KEY}"}, 200),
        ({"authorization": f"bearer  {KEY} "}, 200),
        ({"Authorization": f"Bearer {KEY}x"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": f"Basic {KEY}"}, 401),
        ({"Authorization": KEY}, 401),
        ({"Authorization": "Bearer wrong", "X-API-Key": KEY}, 200),
        ({"Authorization": f"Bearer {KEY}", "X-API-Key": "wrong"}, 401),
    ):
        answer = server.search(BODY, {**JSON, **shown})
        assert answer.status == status
        assert status == 200 or "Bearer" in answer.headers["WWW-Authenticate"]
    bearer = {**JSON, "Authorization": f"Bearer {KEY}", "X-Request-ID": "bearer"}
    server.search(BODY, bearer)
    assert server.logged("bearer")["key"] == hashlib.sha256(KEY.encode()).hexdigest()[:12]


def test_generation_can_be_closed() -> None:
    """With the setting, generation asks for a key; /health stays open for those who watch."""
    with Server("--generation-requires-key", "on") as server:
        assert eventually(server.is_healthy)
        for path in ("/generate", "/generate_stream"):
            assert server.call("POST", path, {"text": "x", "max_tokens": 1}, JSON).status == 401
            for headers in (KEYED, {**JSON, "Authorization": f"Bearer {KEY}"}):
                assert (
                    server.call("POST", path, {"text": "x", "max_tokens": 1}, headers).status == 200
                )
        assert server.call("GET", "/stats").status == 401
        assert server.call("GET", "/stats", headers=KEYED).status == 200
