"""Indexes that a real server offers by name: responses, and changes of the indexes during searches."""

from __future__ import annotations

import hashlib
import http.server
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relevance_gen import ChunkIndex, compress, wire
from relevance_gen.folders.folder_index import FolderIndex
from tests.serve.harness import JSON, KEY, KEYED, REAL, SMALL_MODEL, Server, eventually
from tests.serve.shards import save_shards

PETS = [
    {"text": f"{name} number {n} {verb} at night. It rains.", "metadata": {"page": n}}
    for n, (name, verb) in enumerate(
        [("A cat", "purrs"), ("A dog", "barks"), ("A cat", "meows"), ("A cow", "moos")] * 5
    )
]
OTHER_KEY = "another-test-key"
OTHER = {**JSON, "X-API-Key": OTHER_KEY}


def id_of(key: str) -> str:
    return hashlib.sha256(key.encode()).hexdigest()[:12]


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A saved index, saved shards, a folder of texts, and a file that is not an index."""
    top = tmp_path_factory.mktemp("offered")
    ChunkIndex(PETS).save(top / "pets.index")
    ChunkIndex(["A secret about cats."]).save(top / "secret.index")
    (top / "shards").mkdir()
    save_shards(f"file://{top}/shards", PETS)
    (top / "docs").mkdir()
    (top / "docs" / "fruit.txt").write_text("Bananas ripen in the dark.\n")
    (top / "docs" / "cats.txt").write_text("Cats purr at night.\n")
    (top / "broken.index").write_bytes((top / "pets.index").read_bytes()[:-100])
    return top


@pytest.fixture(scope="module")
def offering(places: Path) -> Iterator[Server]:
    """A server of two workers that offers all of them, and an index whose file is missing."""
    indexes = [f"pets={places}/pets.index", f"shards=file://{places}/shards", f"docs={places}/docs"]
    indexes += [
        f"secret={places}/secret.index",
        f"broken={places}/broken.index",
        f"gone={places}/gone.index",
    ]
    flags = [part for index in indexes for part in ("--index", index)] + [
        "--index-key",
        f"secret={id_of(OTHER_KEY)}",
    ]
    environ = {"RELEVANCE_GEN_API_KEYS": f"{KEY},{OTHER_KEY}", "RELEVANCE_GEN_CACHE": "off"}
    with Server(*SMALL_MODEL, "--workers", "2", *flags, program=REAL, **environ) as server:
        assert eventually(server.is_healthy)
        yield server


def listed(server: Server, headers: Any = KEYED) -> dict[str, dict[str, Any]]:
    return {
        index.pop("name"): index
        for index in server.call("GET", "/indexes", headers=headers).json["indexes"]
    }


def test_answers_are_those_of_the_library(offering: Server, places: Path) -> None:
    """A saved file and saved shards answer, explain and compress bit for bit as one index; a folder as its index."""
    alone = ChunkIndex.load(places / "pets.index")
    options: dict[str, Any] = {
        "top_n": 4,
        "where": {"page": [0, 2, 5, 8]},
        "spans": True,
        "true_order": False,
    }
    for name in ("pets", "shards"):
        answer = offering.search({"query": "cats purr", "index": name, **options})
        assert answer.json == json.loads(wire.serialize(alone.search("cats purr", **options)))
        body = {"query": "cats purr", "index": name, "original_index": 8}
        explained = offering.call("POST", "/explain", body, KEYED).json
        assert explained == json.loads(wire.serialize(alone.explain("cats purr", 8)))
        wrong = offering.call("POST", "/explain", {**body, "original_index": 99}, KEYED)
        assert (wrong.status, wrong.error["field"]) == (400, "original_index")
        kept = offering.call(
            "POST", "/compress", {"question": "cats purr", "index": name, "max_tokens": 30}, KEYED
        )
        response = alone.search("cats purr", 50)
        expected = compress("cats purr", [result.chunk_txt for result in response], max_tokens=30)
        assert kept.json["text"] == expected.text
        for one in kept.json["sentences"]:
            assert PETS[one["original_index"]]["text"][one["start"] : one["end"]] == one["text"]
    answer = offering.search({"query": "cats", "index": "docs"})
    assert answer.json == json.loads(
        wire.serialize(FolderIndex(places / "docs", cache=False).search("cats"))
    )


def test_prompt_uses_index_passages(offering: Server) -> None:
    """The sources of a prompt are passages of the index with their positions, as with sent chunks."""
    asked = {"question": "Which animal purrs?", "top_n": 2}
    brought = offering.call("POST", "/prompt", {**asked, "chunk_txts": PETS}, KEYED)
    named = offering.call("POST", "/prompt", {**asked, "index": "shards"}, KEYED)
    assert (named.status, named.json) == (200, brought.json), named.body


def test_indexes_are_listed_with_state(offering: Server) -> None:
    """The list has the number of chunks, or the reason for a failure without a path."""
    assert eventually(
        lambda: "reading" not in {value["state"] for value in listed(offering).values()}
    )
    description = listed(offering)
    assert description["pets"] == {"kind": "file", "state": "ready", "num_chunks": 20}
    assert description["shards"] == {"kind": "shards", "state": "ready", "num_chunks": 20}
    assert (description["docs"]["kind"], description["docs"]["state"]) == ("folder", "ready")
    assert (description["broken"]["state"], description["gone"]["reason"]) == (
        "unavailable",
        "No such file or directory",
    )
    assert "offered" not in json.dumps(description)
    assert offering.call("GET", "/indexes").status == 401


def test_unavailable_index_affects_only_its_name(offering: Server) -> None:
    """A damaged or missing file is a 503 with the reason, which is also in the log at the start."""
    for name, why in (("broken", "what is there is damaged"), ("gone", "No such file")):
        answer = offering.search({"query": "cats", "index": name})
        assert (answer.status, answer.error["type"], answer.error["field"]) == (
            503,
            "index_unavailable",
            "index",
        )
        assert why in answer.error["message"]
        assert "offered" not in answer.error["message"]
        assert f"index {name} cannot be searched: " in offering.log
    assert offering.search({"query": "cats", "index": "pets"}).status == 200


def test_index_of_other_keys_looks_like_unknown_index(offering: Server) -> None:
    """Responses, the list and suggestions hide the index from other keys; its own key can use it."""
    for path, field in (("/search", "query"), ("/compress", "question")):
        body = {field: "cats", **({"max_tokens": 9} if path == "/compress" else {})}
        secret, nothing = (
            offering.call("POST", path, {**body, "index": name}, KEYED)
            for name in ("secret", "xyzxyz")
        )
        assert secret.status == nothing.status == 404
        assert secret.body.replace(b"secret", b"xyzxyz") == nothing.body
    assert "secret" not in listed(offering)
    assert (
        "did you mean secret?"
        in offering.search({"query": "a", "index": "sacret"}, OTHER).error["message"]
    )
    assert listed(offering, OTHER)["secret"]["num_chunks"] == 1
    assert offering.search({"query": "cats", "index": "secret"}, OTHER).json["results"]


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"chunk_txts": ["a"]}, ["chunk_txts", "index"]),
        ({"top_n": 1001}, ["top_n", "1000"]),
        ({"where": {"pgae": 1}}, ["where", "did you mean page?"]),
        ({"query": " "}, ["query"]),
    ],
)
def test_invalid_index_request_names_the_field(
    offering: Server, change: dict[str, Any], parts: list[str]
) -> None:
    """Chunks in addition to an index, too many results, and invalid search parameters are rejected."""
    answer = offering.search({"query": "cats", "index": "pets", **change})
    assert answer.status == 400
    assert all(part in answer.error["message"] for part in parts)


def test_folder_index_sees_changes(offering: Server, places: Path) -> None:
    """A file that is added, changed or removed is seen by the next question, in every process."""
    new = places / "docs" / "new.txt"

    def n_found(query: str) -> set[int]:
        answers = [offering.search({"query": query, "index": "docs"}) for _ in range(6)]
        return {len(answer.json["results"]) for answer in answers}

    new.write_text("An okapi sleeps.")
    assert n_found("okapi") == {1}
    new.write_text("A wombat sleeps, and another one.")
    assert (n_found("okapi"), n_found("wombat")) == ({0}, {1})
    new.unlink()
    assert n_found("wombat") == {0}
    away = places / "away"
    (places / "docs").rename(away)
    try:
        assert (
            offering.search({"query": "cats", "index": "docs"}).error["type"] == "index_unavailable"
        )
        assert offering.search({"query": "cats", "index": "pets"}).status == 200
    finally:
        away.rename(places / "docs")
    assert n_found("cats") == {1}


@pytest.mark.parametrize("kind", ["file", "shards"])
def test_index_is_replaced_during_searches(offering: Server, places: Path, kind: str) -> None:
    """Every response is from a single version, none fails, and finally all are from the last version; damage is reported."""
    name = "pets" if kind == "file" else "shards"

    def write(number: int) -> None:
        chunks = [f"A cat of state {number} sleeps, number {place}." for place in range(12)]
        if kind == "file":
            ChunkIndex(chunks).save(places / "pets.index")
        else:
            save_shards(f"file://{places}/shards", chunks)

    def state() -> int | None:
        answer = offering.search({"query": "sleeping cat", "index": name, "top_n": 50})
        assert answer.status == 200, answer.body
        said = {result["chunk_txt"].split(" sleeps")[0] for result in answer.json["results"]}
        if any("state" in one for one in said):
            assert (len(said), len(answer.json["results"])) == (1, 12)
            return int(said.pop().rsplit(" ", 1)[1])
        return None

    ended = threading.Event()

    def ask() -> list[int | None]:
        states = []
        while not ended.is_set():
            states.append(state())
        return states

    with ThreadPoolExecutor(4) as pool:
        asking = [pool.submit(ask) for _ in range(4)]
        try:
            for number in range(4):
                write(number)
                assert eventually(lambda number=number: {state() for _ in range(6)} == {number})
        finally:
            ended.set()
        for one in asking:
            assert {0, 3} & set(one.result())
    place = places / "pets.index" if kind == "file" else places / "shards" / "index.json"
    content = place.read_bytes()
    half = place.with_name("half")
    half.write_bytes(content[: len(content) // 2])
    half.replace(place)
    body = {"query": "cat", "index": name}
    assert eventually(lambda: {offering.search(body).status for _ in range(6)} == {503})
    half.write_bytes(content)
    half.replace(place)
    assert eventually(lambda: {offering.search(body).status for _ in range(6)} == {200})


class _Silent(http.server.BaseHTTPRequestHandler):
    """A store that answers when it is let to."""

    released = threading.Event()
    asked = threading.Event()

    def do_GET(self) -> None:
        self.asked.set()
        self.released.wait(60)
        self.send_error(404)

    do_HEAD = do_GET  # noqa: N815 named by the library

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def test_slow_store_takes_no_threads_from_other_indexes() -> None:
    """While a store does not answer, other indexes are searched, and its searches fail after two seconds."""
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Silent) as store,
        ThreadPoolExecutor(8) as pool,
    ):
        threading.Thread(target=store.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{store.server_port}/shards"
        flags = ("--model", "none", "--search-threads", "1", "--index", f"slow={address}")
        try:
            with Server(*flags, program=REAL, PYTHONWARNINGS="default") as server:
                assert _Silent.asked.wait(60)
                waiting = [
                    pool.submit(server.search, {"query": "cats", "index": "slow"}) for _ in range(5)
                ]
                for _ in range(3):
                    assert (
                        server.search({"query": "cats", "chunk_txts": ["Cats purr."]}).status == 200
                    )
                assert {future.result().error["type"] for future in waiting} == {
                    "index_unavailable"
                }
                (reported,) = listed(server).values()
                reason = "its store has not answered yet"
                assert reported == {"kind": "shards", "state": "unavailable", "reason": reason}
        finally:
            _Silent.released.set()
            store.shutdown()
