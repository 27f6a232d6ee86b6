"""Tests of servers that use a cluster for the model and for named indexes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from relevance_gen import ChunkIndex, Runner, wire
from relevance_gen.cluster import ClusterIndex
from relevance_gen.serve.processes import command
from small_models import TINY
from tests.cluster.shared import QUERIES, texts, until
from tests.serve.harness import KEY, KEYED, REAL, SMALL_MODEL, Server
from tests.serve.shards import save_shards

BODY = {"text": "once", "max_tokens": 20, "seed": 7, "temperature": 1.0}


@pytest.mark.parametrize(
    ("model", "said"), [("none", "there is no model"), ("m.gguf", "it runs the model")]
)
def test_first_lines_name_the_work_of_the_cluster(
    capsys: pytest.CaptureFixture[str], model: str, said: str
) -> None:
    """The first lines of output name the work that the cluster does, with a model and without."""
    flags = ["--port", "0", "--model", model, "--cluster", "auto"]
    assert (
        command.main(flags, {"RELEVANCE_GEN_API_KEYS": KEY}, lambda plan: plan.listener.close())
        == 0
    )
    reported = capsys.readouterr().out
    assert (
        f"cluster auto: {said}; searches of named indexes run in the cluster, searches of sent chunks in this server"
        in reported
    )


@pytest.fixture(scope="module")
def servers(cluster: Any) -> Iterator[tuple[Server, Server]]:
    """Start two servers in the cluster."""
    flags = (*SMALL_MODEL, "--cluster", cluster.address, "--cluster-runners", "2")
    quiet = {"PYTHONWARNINGS": "default"}
    with (
        Server(*flags, program=REAL, **quiet) as one,
        Server(*flags, program=REAL, **quiet) as other,
    ):
        yield one, other


def test_two_servers_share_runners(servers: tuple[Server, Server]) -> None:
    """Two servers share two runners, and their samples equal those in a local runner."""
    for server in servers:
        until(
            lambda server=server: server.call("GET", "/health").status == 200, "the model is loaded"
        )
        until(
            lambda server=server: server.call("GET", "/stats").json["num_total_runners"] == 2,
            "both runners",
        )
        assert server.metric("runners") == 2
        assert any(
            "it runs the model; searches of named indexes run in the cluster" in line
            for line in server.said
        )
        until(lambda server=server: "connected to the cluster" in server.log, "the log says so")
    with Runner(TINY, n_ctx=256, n_slots=4, n_threads=1) as alone:
        expected = alone.generate(BODY).responses[0].text
    for server in servers:
        answer = server.call("POST", "/generate", BODY, KEYED)
        assert answer.json["responses"][0]["text"] == expected


def test_missing_cluster_is_logged(cluster: Any) -> None:
    """A server without its cluster serves searches, and logs the reason for the rest."""
    with Server(
        *SMALL_MODEL, "--cluster", "127.0.0.1:1", program=REAL, PYTHONWARNINGS="default"
    ) as server:
        until(
            lambda: server.log.count("no cluster answers at 127.0.0.1:1") == 2,
            "the log says so twice",
        )
        assert "searches that name an index will fail" in server.log
        assert server.call("GET", "/health").status == 503
        assert (
            server.call("POST", "/search", {"query": "a", "chunk_txts": ["a"]}, KEYED).status == 200
        )
        named = server.call("POST", "/search", {"query": "a", "index": "library"}, KEYED)
        assert (named.status, named.error["type"]) == (503, "no_cluster")


def test_two_servers_share_an_index(servers: tuple[Server, Server]) -> None:
    """Servers search a named index with the bits of `ChunkIndex`, and refuse invalid names and positions."""
    chunks = [
        {"text": text, "metadata": {"page": location % 2}}
        for location, text in enumerate(texts(30))
    ]
    alone = ChunkIndex(chunks)
    one, other = servers
    with ClusterIndex(chunks, n_shards=2, name="shared") as index:
        for server in (one, other):
            for query in QUERIES:
                body = {
                    "query": query,
                    "index": "shared",
                    "top_n": 7,
                    "where": {"page": 1},
                    "spans": True,
                }
                answer = server.call("POST", "/search", body, KEYED)
                expected = alone.search(query, 7, where={"page": 1}, spans=True)
                assert answer.json == json.loads(wire.serialize(expected)), answer.body
            asked = {"query": "cats", "index": "shared", "original_index": 3}
            explained = server.call("POST", "/explain", asked, KEYED).json
            assert explained == json.loads(wire.serialize(alone.explain("cats", 3)))
            wrong = server.call("POST", "/explain", {**asked, "original_index": 30}, KEYED)
            assert (wrong.status, wrong.error["field"]) == (400, "original_index")
            wrong = server.call("POST", "/search", {"query": "cats", "index": "another"}, KEYED)
            assert (wrong.status, wrong.error["type"], wrong.error["field"]) == (
                404,
                "not_found",
                "index",
            )
            wrong = server.call(
                "POST", "/search", {"query": "cats", "index": "shared", "top_n": 1001}, KEYED
            )
            assert (wrong.status, wrong.error["field"]) == (400, "top_n")
        index.add(["an okapi"])
        body = {"query": "okapi", "index": "shared"}
        for server in (one, other):
            until(
                lambda server=server: server.call("POST", "/search", body, KEYED).json["results"],
                "it is seen",
            )
        index.close()
        with ClusterIndex(["okapi two"], name="shared"):

            def is_new_index(server: Server) -> bool:
                found = server.call("POST", "/search", body, KEYED).json.get("results", [])
                return [result["chunk_txt"] for result in found] == ["okapi two"]

            for server in (one, other):
                until(
                    lambda server=server: is_new_index(server),
                    "the new index of the name is asked",
                )
        until(lambda: one.call("POST", "/search", body, KEYED).status == 404, "the name is gone")


def test_missing_shard_is_reported(servers: tuple[Server, Server], tmp_path: Path) -> None:
    """While a shard cannot be read, a server answers 503, or counts the chunks that it did not search."""
    body = {"query": "cats", "index": "damaged"}
    server, _ = servers
    save_shards(str(tmp_path), ["cats purr", "cats meow"], 2)
    shard = next(tmp_path.glob("*.shard"))
    shard.rename(tmp_path / "elsewhere")
    with ClusterIndex.load(tmp_path, name="damaged"):
        until(lambda: server.call("POST", "/search", body, KEYED).status == 503, "it is missing")
        refused = server.call("POST", "/search", body, KEYED)
        assert refused.error["type"] == "chunks_missing"
        assert refused.headers["Retry-After"] == "1"
        answer = server.call("POST", "/search", {**body, "allow_partial": True}, KEYED)
        assert answer.json["metadata"]["num_missing_chunks"] == 1
        assert len(answer.json["results"]) == 1
        (tmp_path / "elsewhere").rename(shard)
        until(lambda: server.call("POST", "/search", body, KEYED).status == 200, "it is back")
