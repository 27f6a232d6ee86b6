"""Request bodies with an index name, and errors without a cluster."""

from __future__ import annotations

from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex
from relevance_gen.errors import IndexUnavailableError, InvalidRequestError
from relevance_gen.serve.adapters import own
from relevance_gen.serve.flags import read
from relevance_gen.serve.services.indexes.index_registry import IndexRef, IndexRegistry
from relevance_gen.serve.services.indexes.served_index import ServedIndex
from relevance_gen.serve.settings import Settings
from tests.serve.harness import KEYED, Server
from tests.serve.shards import save_shards

ASKED = {"query": "cats", "index": "pets"}


def test_body_with_index_name_searches_that_index() -> None:
    """A body that names an index asks that index, with all other fields as ever."""
    task, _ = own.read_search({**ASKED, "allow_partial": True, "top_n": 3, "where": {"page": 1}})
    assert (task.index, list(task.chunks)) == (IndexRef("pets", True), [])
    assert (task.params.top_n, task.params.where) == (3, {"page": 1})
    explained, _ = own.read_explanation({**ASKED, "original_index": 4})
    assert (explained.index, explained.original_index) == (IndexRef("pets"), 4)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"chunk_txts": ["a"]}, "chunk_txts"),
        ({"chunk_txts": None}, "chunk_txts"),
        ({"index": None}, "index"),
        ({"index": 3}, "index"),
        ({"index": ""}, "index"),
        ({"index": "x" * 257}, "index"),
        ({"index": "a\x00"}, "index"),
        ({"allow_partial": 1}, "allow_partial"),
        ({"query": " "}, "query"),
        ({"top_n": 0}, "top_n"),
        ({"indices": ["a"]}, "indices"),
    ],
)
def test_bad_input_is_named(change: dict[str, Any], field: str) -> None:
    """Fields that cannot be combined with an index name, and invalid names, are named in the error."""
    with pytest.raises(InvalidRequestError) as caught:
        own.read_search({**ASKED, **change})
    assert caught.value.field == field


def test_unknown_field_error_lists_index() -> None:
    """A misspelled field in a body with an index name is reported, too."""
    for body, remedy in (
        ({**ASKED, "zebra": 1}, ", index"),
        ({"query": "a", "indx": "b"}, "did you mean index?"),
    ):
        with pytest.raises(InvalidRequestError) as caught:
            own.read_search(body)
        assert remedy in str(caught.value)


@pytest.mark.parametrize(
    "body", [{"query": "a", "chunk_txts": ["a"], "allow_partial": True}, {"query": "a"}]
)
def test_body_without_index_name_requires_chunks(body: dict[str, Any]) -> None:
    """Without an index name chunks are required, and fields of named indexes are unknown."""
    with pytest.raises(
        InvalidRequestError, match=r"chunk_txts is required|allow_partial is not a known field"
    ):
        own.read_search(body)


def test_index_name_without_cluster_is_an_error(real: Server) -> None:
    """A server without a cluster reports that it has no such index, and how to start it with one."""
    for path, body in (("/search", ASKED), ("/explain", {**ASKED, "original_index": 0})):
        answer = real.call("POST", path, body, KEYED)
        assert (answer.status, answer.error["field"]) == (400, "index")
        assert "start it with --index or --cluster" in answer.error["message"]


def test_cached_index_is_searched_by_name(real: Server) -> None:
    """`cache_index` returns a name, which replaces the chunks in all requests with chunks; an evicted name is a 404."""
    answer = real.search(
        {"query": "cats", "chunk_txts": ["Cats purr.", "Dogs bark."], "cache_index": True}
    )
    name = answer.headers["X-Index"]
    assert [
        result["chunk_txt"]
        for result in real.search({"query": "cats", "index": name}).json["results"]
    ] == ["Cats purr."]
    explained = real.call(
        "POST", "/explain", {"query": "cats", "index": name, "original_index": 0}, KEYED
    )
    assert explained.json["score"] == answer.json["results"][0]["chunk_score"]
    prompt = real.call(
        "POST", "/prompt", {"question": "cats", "index": name, "min_confidence": 0}, KEYED
    )
    assert [source["original_index"] for source in prompt.json["sources"]] == [0]
    gone = real.search({"query": "cats", "index": f"{name[:-1]}x"})
    assert (gone.status, gone.error["field"]) == (404, "index")


# ── What is offered ───────────────────────────────────────────────────────────────────────────────


def test_refresh_requests_during_a_refresh_share_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any number of requests causes two refreshes: the running one and a second that begins after all requests."""
    (tmp_path / "a.txt").write_text("Cats purr.")
    one, begun, released, n_looks = (
        ServedIndex("docs", str(tmp_path), Settings()),
        Event(),
        Event(),
        [],
    )
    look = ServedIndex._load

    def slow(self: ServedIndex) -> Any:
        n_looks.append(1)
        begun.set()
        assert released.wait(60)
        return look(self)

    monkeypatch.setattr(ServedIndex, "_load", slow)
    monkeypatch.setenv("RELEVANCE_GEN_CACHE", "off")
    first = one.refresh()
    assert begun.wait(60)
    (tmp_path / "b.txt").write_text("Cats meow.")
    later = [one.refresh() for _ in range(20)]
    assert first not in later
    assert len(set(map(id, later))) == 1
    released.set()
    later[0].result(60)
    assert len(n_looks) == 2
    assert len(one.searchable().search("cats")) == 2


def test_refresh_without_thread_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Callers do not wait for a refresh whose thread could not start."""

    def fail(_: Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setenv("RELEVANCE_GEN_CACHE", "off")
    one = ServedIndex("docs", str(tmp_path), Settings())
    with monkeypatch.context() as patched:
        patched.setattr(Thread, "start", fail)
        with pytest.raises(RuntimeError):
            one.refresh()
    one.refresh().result(60)


def test_shards_are_opened_from_any_store(tmp_path: Path) -> None:
    """With every store of `fsspec`, the results equal those in memory."""
    chunks = [f"A cat number {n} purrs." for n in range(20)]
    for address in ("memory://named/shards", f"file://{tmp_path}/a", str(tmp_path / "b")):
        save_shards(address, chunks)
        one = ServedIndex("cats", address, Settings())
        one.refresh().result(60)
        index = one.searchable()
        assert list(index.search("purring cat 7", 5)) == list(
            ChunkIndex(chunks).search("purring cat 7", 5)
        )
        assert one.is_fresh
        save_shards(address, ["An okapi sleeps.", "A wombat."], n_shards=2)
        one.refresh().result(60)
        assert one.searchable() is not index
        assert [found.original_index for found in one.searchable().search("okapi")] == [0]
    for shard in (tmp_path / "b").glob("*.shard"):
        shard.rename(tmp_path / shard.name)
    left = ServedIndex("cats", str(tmp_path / "b"), Settings())
    left.refresh().result(60)
    assert left.describe()["state"] == "unavailable"
    for shard in tmp_path.glob("*.shard"):
        shard.rename(tmp_path / "b" / shard.name)
    (tmp_path / "b" / "index.json").unlink()
    for again in (one, ServedIndex("cats", str(tmp_path / "b"), Settings())):
        again.refresh().result(60)
        with pytest.raises(IndexUnavailableError, match="holds no saved index"):
            again.searchable()


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--index", "pets"], "--index must be NAME=FILE"),
        (["--index", "=pets.index"], "--index must be NAME=FILE"),
        (["--index", "cache:a=pets.index"], "with letters, digits, dots"),
        (["--index", "pets=a", "--index-key", "pets=secret"], "--index-key must be NAME=KEY-ID"),
    ],
)
def test_invalid_index_settings_are_rejected(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A pair without a name, with a reserved name, or with an invalid id is rejected."""
    with pytest.raises(SystemExit):
        read(flags, {})
    assert message in capsys.readouterr().err


def test_key_restricted_to_unknown_index_is_an_error() -> None:
    """With a misspelled name, every key could use the index that was meant."""
    settings = read(["--index", "pets=a,b.index", "--index-key", "pats=0123456789ab"], {})
    assert settings.index == (("pets", "a,b.index"),)
    with pytest.raises(InvalidRequestError, match="--index-key must be the name of an --index"):
        IndexRegistry(settings)
    environ = {"RELEVANCE_GEN_INDEX": "pets=a,b.index,docs=/srv/docs"}
    assert read([], environ).index == (("pets", "a,b.index"), ("docs", "/srv/docs"))


def test_duplicate_index_name_is_rejected() -> None:
    """Two indexes with the same name are rejected: the second could never be searched."""
    with pytest.raises(
        InvalidRequestError, match="--index must be given once for each name, got 'pets'"
    ):
        IndexRegistry(read(["--index", "pets=a", "--index", "laws=a", "--index", "pets=b"], {}))


@given(st.lists(st.sampled_from("abc"), max_size=3), st.sampled_from("abcd"))
def test_index_keys_restrict_access(allowed: list[str], asking: str) -> None:
    """An index without configured keys is for all clients; an index with keys is for these keys only."""
    pairs = tuple(("pets", key * 12) for key in allowed)
    named = IndexRegistry(Settings(index=(("pets", "a"),), index_key=pairs))
    assert named._may_search(asking * 12, "pets") == (not allowed or asking in allowed)
