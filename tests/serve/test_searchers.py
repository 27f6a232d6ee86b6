"""Several real servers that search one index in a real object store, which changes, and does not always answer."""

from __future__ import annotations

import signal
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.serve.harness import KEYED, REAL, Server, eventually
from tests.serve.shards import save_shards

pytest.importorskip("moto", reason="the group objects is not installed")
pytest.importorskip("s3fs", reason="the group objects is not installed")
from tests.serve.objects import object_store

PLACE = "s3://corpora/cats"


def state_of(server: Server) -> int:
    """Return the state that a server answers from, all of it."""
    answer = server.search({"query": "sleeping cat", "index": "cats", "top_n": 50})
    assert answer.status == 200, answer.body
    said = {result["chunk_txt"].split(" sleeps")[0] for result in answer.json["results"]}
    assert (len(said), len(answer.json["results"])) == (1, 12)
    return int(said.pop().rpartition(" ")[2])


def save(number: int) -> None:
    save_shards(PLACE, [f"A cat of state {number} sleeps, number {place}." for place in range(12)])


def test_servers_search_one_index(tmp_path: Path) -> None:
    """Three servers, two on one machine, the third with two workers: complete versions, the newest, without interruption."""
    flags = ("--model", "none", "--index", f"cats={PLACE}")
    with object_store() as store, ExitStack() as started, ThreadPoolExecutor(3) as pool:
        save(0)
        servers = [
            started.enter_context(
                Server(
                    *flags,
                    *more,
                    program=REAL,
                    PYTHONWARNINGS="default",
                    RELEVANCE_GEN_CACHE=str(tmp_path / cache),
                )
            )
            for more, cache in ((("--workers", "2"), "one"), ((), "one"), ((), "other"))
        ]
        assert eventually(
            lambda: (
                {server.search({"query": "a", "index": "cats"}).status for server in servers}
                == {200}
            )
        )
        ended = threading.Event()

        def ask(server: Server) -> list[int]:
            seen = []
            while not ended.is_set():
                seen.append(state_of(server))
            return seen

        asking = [pool.submit(ask, server) for server in servers]
        try:
            save(1)
            assert eventually(lambda: {state_of(server) for server in servers * 3} == {1})
        finally:
            ended.set()
        for one in asking:
            assert set(one.result()) <= {0, 1}
        assert len(list((tmp_path / "one" / "shards").glob("*.shard"))) <= 6

        def index_state(server: Server) -> dict[str, Any]:
            (one,) = server.call("GET", "/indexes", headers=KEYED).json["indexes"]
            return dict(one)

        assert index_state(servers[2]) == {
            "name": "cats",
            "kind": "shards",
            "state": "ready",
            "num_chunks": 12,
        }
        store.send_signal(signal.SIGSTOP)
        try:
            assert eventually(lambda: "store_unreachable_since" in index_state(servers[2]))
            assert {state_of(server) for server in servers} == {1}
        finally:
            store.send_signal(signal.SIGCONT)
        save(2)
        assert eventually(lambda: {state_of(server) for server in servers * 3} == {2})
        assert "store_unreachable_since" not in index_state(servers[2])
