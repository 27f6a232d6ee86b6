"""Tests that kill, stop and disconnect the processes of a cluster: answers remain complete and correct."""

from __future__ import annotations

import gc
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from logging.handlers import QueueHandler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from relevance_gen import ChunkIndex
from relevance_gen.cluster import ClusterIndex, ClusterRunner
from relevance_gen.cluster.connection import living_nodes
from relevance_gen.cluster.search import locations
from relevance_gen.errors import ChunksMissingError, ClusterError
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.shards.sharded_index import ShardedIndex
from small_models import BIGRAM
from tests.cluster.conftest import NODE
from tests.cluster.shared import (
    OPTIONS,
    QUERIES,
    RESTORED_S,
    forget_rankings,
    kill_process,
    process_of,
    responds,
    searchers_of,
    texts,
    until,
)
from tests.serve.shards import save_shards


def ended(call: Callable[[], Any]) -> Any:
    """Return the result of a call, or fail if it hangs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(RESTORED_S)


def test_killed_searcher_is_replaced_without_a_failed_search(cluster: Any) -> None:
    """If a searcher is killed, others answer for its shards; changes and explanations go on."""
    chunks = texts(40, seed=5)
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=4) as index:
        for searcher in searchers_of(index):
            kill_process(searcher)
            forget_rankings(index)
            assert ended(lambda: index.search(QUERIES)) == one.search(QUERIES)
            for each in (one, index):
                each.remove(each.add(["cats purr", "cats sleep"])[:1])
            assert ended(lambda: index.explain("cats", 3)) == one.explain("cats", 3)
        until(lambda: len(searchers_of(index)) == len(living_nodes()), "all searchers are back")


def test_all_searchers_are_killed_at_once(cluster: Any) -> None:
    """If all searchers die, searches wait until some of them have restarted."""
    chunks = texts(30, seed=6)
    expected = ChunkIndex(chunks).search(QUERIES)
    with ClusterIndex(chunks, n_shards=3) as index:
        for pid in [process_of(searcher) for searcher in searchers_of(index)]:
            os.kill(pid, signal.SIGKILL)
        assert ended(lambda: index.search(QUERIES)) == expected


def test_stopped_searcher_is_bypassed(cluster: Any) -> None:
    """A searcher that does not respond changes no answer and delays no change for long."""
    chunks = texts(40, seed=11)
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=4) as index:
        pid = process_of(searchers_of(index)[0])
        os.kill(pid, signal.SIGSTOP)
        try:
            assert ended(lambda: index.search(QUERIES)) == one.search(QUERIES)
            assert ended(lambda: index.explain("cats", 3)) == one.explain("cats", 3)
            for each in (index, one):
                ended(lambda each=each: each.add(["cats purr"]))
            assert ended(lambda: index.search(QUERIES)) == one.search(QUERIES)
            assert ended(index.stats).num_missing_chunks == 0
        finally:
            os.kill(pid, signal.SIGCONT)
        assert process_of(searchers_of(index)[0]) == pid


def test_failed_requests_are_not_logged_by_ray(cluster: Any, tmp_path: Path) -> None:
    """Ray logs no errors of requests whose index was closed meanwhile, or that `ClusterIndex` has raised."""
    logged = QueueHandler(SimpleQueue())
    ray_logger = logging.getLogger("ray._private.worker")
    ray_logger.addHandler(logged)
    save_shards(str(tmp_path), texts(20), 2)
    next(tmp_path.glob("*.shard")).unlink()
    with ClusterIndex.load(tmp_path) as index, pytest.raises(ChunksMissingError):
        index.search("cats")
    with ClusterIndex(texts(40), n_shards=3) as index:
        stopped = index._current().orders[index._current().version.shards[0].file.name][0].actor
        pid = process_of(stopped)
        os.kill(pid, signal.SIGSTOP)
        try:
            index.add(["cats purr"])
            assert ended(lambda: index.search("cats")).results
            index.close()
        finally:
            os.kill(pid, signal.SIGCONT)
    assert process_of(stopped) == pid
    time.sleep(1.0)  # until the requests have failed, because the folder was removed
    gc.collect()
    ray_logger.removeHandler(logged)
    assert logged.queue.empty()


def test_joining_and_dying_nodes_get_their_share(cluster: Any) -> None:
    """A node that joins gets a runner and a searcher; when it dies, no search fails and requests are done elsewhere."""
    chunks = texts(40, seed=7)
    expected = ChunkIndex(chunks).search(QUERIES)
    n_nodes = len(living_nodes())
    with ClusterRunner(BIGRAM, **OPTIONS) as runner, ClusterIndex(chunks, n_shards=8) as index:
        until(lambda: runner.stats().num_total_runners == n_nodes, "all nodes have runners")
        node = cluster.add_node(**NODE)
        until(lambda: runner.stats().num_total_runners == n_nodes + 1, "the new node has a runner")

        def is_used() -> bool:
            return any(node.node_id == shard.nodes[0] for shard in index.stats().shards)

        until(is_used, "the new node has shards")
        forget_rankings(index)
        assert index.search(QUERIES) == expected
        futures = [runner.submit({"text": "a", "max_tokens": 100}) for _ in range(60)]
        cluster.remove_node(node, allow_graceful=False)
        for _ in range(5):
            forget_rankings(index)
            assert ended(lambda: index.search(QUERIES)) == expected
        assert len([future.result(120) for future in futures]) == 60
        until(lambda: not is_used(), "its shards have other searchers")
        until(lambda: runner.stats().num_total_runners == n_nodes, "the dead node has no runner")
        assert index.search(QUERIES) == expected
        assert runner.generate("a").responses


def test_stopped_node_is_bypassed(cluster: Any) -> None:
    """A node whose processes are all stopped, as if its network were cut, changes no answer."""
    chunks = texts(30, seed=8)
    expected = ChunkIndex(chunks).search(QUERIES)
    with ClusterIndex(chunks, n_shards=3) as index:
        node_id = index.stats().shards[0].nodes[0]
        stopped = []
        for searcher in index._pool.searchers:
            if searcher.node_id == node_id:
                stopped.append(process_of(searcher.actor))
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            for _ in range(3):
                forget_rankings(index)
                assert ended(lambda: index.search(QUERIES)) == expected
        finally:
            for pid in stopped:
                os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("n_kills", [3])
def test_searches_are_answered_during_kills(cluster: Any, n_kills: int) -> None:
    """During kills of searchers, every answer is complete and correct."""
    chunks = texts(100, seed=20)
    expected = ChunkIndex(chunks).search(QUERIES)
    outcomes: Counter[str] = Counter()
    is_over = threading.Event()
    with ClusterIndex(chunks, n_shards=4) as index:

        def search(query_ord: int) -> None:
            while not is_over.is_set():
                forget_rankings(index)
                is_right = index.search(QUERIES[query_ord]) == expected[query_ord]
                outcomes["right" if is_right else "wrong"] += 1

        with ThreadPoolExecutor(2) as pool:
            searching = [pool.submit(search, query_ord) for query_ord in range(2)]
            for kill_ord in range(n_kills):
                searchers = searchers_of(index)
                kill_process(searchers[kill_ord % len(searchers)])
                n_before = outcomes["right"]
                until(lambda n_before=n_before: outcomes["right"] > n_before + 10, "answers")
            is_over.set()
            for future in searching:
                future.result(RESTORED_S)
    assert outcomes["wrong"] == 0


@pytest.mark.soak
def test_searches_are_answered_while_processes_die_and_hang(cluster: Any) -> None:
    """During a kill each second for 50 s, at least 99.9 % of the searches are right, and none takes over 6 s.

    A searcher is killed only while another one is alive: on a slow machine a restart takes longer
    than a second.
    """
    chunks = texts(200, seed=20)
    expected = ChunkIndex(chunks).search(QUERIES)
    outcomes: Counter[str] = Counter()
    durations_s: list[float] = []
    n_kills = 0
    is_over = threading.Event()
    with ClusterIndex(chunks, n_shards=4) as index:

        def search(query_ord: int) -> None:
            while not is_over.wait(0.02):
                forget_rankings(index)
                begun_s = time.monotonic()
                try:
                    is_right = index.search(QUERIES[query_ord]) == expected[query_ord]
                    outcomes["right" if is_right else "wrong"] += 1
                except ClusterError:
                    outcomes["refused"] += 1
                durations_s.append(time.monotonic() - begun_s)

        with ThreadPoolExecutor(4) as pool:
            searching = [pool.submit(search, query_ord) for query_ord in range(4)]
            for kill_ord in range(50):
                searchers = searchers_of(index)
                alive = [searcher for searcher in searchers if responds(searcher)]
                if len(alive) > 1:
                    kill_process(alive[kill_ord % len(alive)])
                    n_kills += 1
                time.sleep(1.0)
            is_over.set()
            for future in searching:
                future.result(RESTORED_S)
    assert outcomes["wrong"] == 0
    assert outcomes["refused"] <= 0.001 * outcomes["right"]
    assert n_kills > 0
    assert max(durations_s) < 6.0


def test_missing_shard_is_refused_or_counted(cluster: Any, tmp_path: Path) -> None:
    """A shard whose file is missing fails searches; with `allow_partial` its chunks are counted as missing."""
    chunks = texts(20, seed=12)
    expected = ChunkIndex(chunks).search(QUERIES)
    save_shards(str(tmp_path), chunks, 2)
    shard = next(tmp_path.glob("*.shard"))
    shard.rename(tmp_path / "elsewhere")
    with ClusterIndex.load(tmp_path) as index:
        with pytest.raises(ChunksMissingError, match="No such file") as refused:
            index.search("cats")
        n_missing = refused.value.n_missing_chunks
        assert n_missing == 10
        for change in (lambda: index.remove([0]), lambda: index.remove(where={"a": 1})):
            with pytest.raises((ChunksMissingError, ValueError)):
                change()
        partial = index.search(QUERIES, allow_partial=True)
        assert {response.metadata.num_missing_chunks for response in partial} == {n_missing}
        assert index.stats().num_missing_chunks == n_missing
        (tmp_path / "elsewhere").rename(shard)
        until(lambda: index.search(QUERIES) == expected, "the shard is back")
        assert index.stats().errors == ()


def test_unavailable_store_leaves_the_known_version(
    cluster: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the store does not answer, the open version is searched, and `stats` has the reason."""
    with ClusterIndex(texts(20), location=tmp_path) as index:
        expected = index.search(QUERIES)

        def fail(*_: Any, **__: Any) -> Any:
            raise ConnectionRefusedError(111, "Connection refused")

        monkeypatch.setattr(ObjectStore, "_call", fail)
        index._checked_s = 0.0
        assert index.search(QUERIES) == expected
        assert "Connection refused" in index.stats().errors[0]


def test_changed_files_are_read_again(cluster: Any, tmp_path: Path) -> None:
    """If another process replaces the index and removes its old files, a search finds the new version."""
    with ClusterIndex(["cats purr"], location=tmp_path) as index:
        old = list(tmp_path.glob("*.shard"))
        ShardedIndex.build(["cats sleep"], tmp_path)
        for path in old:
            path.unlink()
        for searcher in searchers_of(index):
            kill_process(searcher)
        forget_rankings(index)
        assert ended(lambda: index.search("cats").results[0].chunk_txt) in {
            "cats sleep",
            "cats purr",
        }
        index._checked_s = 0.0
        assert index.search("cats").results[0].chunk_txt == "cats sleep"


def test_full_disk_fails_the_change(cluster: Any, tmp_path: Path) -> None:
    """If a shard cannot be written, `add` fails, nothing is added, and the index works afterwards."""
    with (
        ClusterIndex(["cats purr"], location=tmp_path) as index,
        pytest.MonkeyPatch.context() as full,
    ):

        def fail(*_: Any, **__: Any) -> Any:
            raise OSError(28, "No space left on device")

        full.setattr("relevance_gen.index.storage.write", fail)
        with pytest.raises(OSError, match="No space left"):
            index.add(["dogs bark"])
        full.undo()
        assert len(index) == 1
        assert index.add(["dogs bark"]) == range(1, 2)


KILLED = """
import sys
from relevance_gen.cluster import ClusterIndex
index = ClusterIndex(["cats purr"], address=sys.argv[1])
print(index._location, flush=True)
sys.stdin.read()
"""


def test_temporary_folder_of_a_killed_process_is_swept(cluster: Any) -> None:
    """The folder of a process that was killed is removed when the next index is built."""
    command = [sys.executable, "-c", KILLED, cluster.address]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as killed:
        assert killed.stdout is not None
        folder = Path(killed.stdout.readline().strip())
        used = locations.TemporaryFolder()
        assert folder.exists()
        killed.kill()
        killed.wait()
    locations.TemporaryFolder().remove()
    assert not folder.exists()
    assert used.path.exists()
    used.remove()


CLOSED = """
import sys
import ray
from relevance_gen.cluster import ClusterIndex, ClusterRunner
from relevance_gen.errors import ClusterError, GenerationError, RunnerClosedError
from small_models import BIGRAM
index = ClusterIndex(["cats purr"], address=sys.argv[1], name="closed")
runner = ClusterRunner(BIGRAM, n_runners=1, n_slots=1, n_ctx=1024, n_threads=1)
running = runner.submit({"text": "a", "max_tokens": 900})
ray.shutdown()
error = running.exception(60)
assert error is None or isinstance(error, (ClusterError, GenerationError)), error  # it may be done
calls = {
    "search": lambda: index.search("cats"),
    "batch": lambda: index.search(["cats", "dogs"]),
    "explain": lambda: index.explain("cats", 0),
    "add": lambda: index.add(["a"]),
    "replace": lambda: index.replace([{"text": "a", "metadata": {"id": 1}}]),
    "remove": lambda: index.remove([0]),
    "remove where": lambda: index.remove(where={"a": 1}),
    "compact": index.compact,
    "save": lambda: index.save("elsewhere"),
    "chunk": lambda: index[0],
    "chunks": lambda: list(index),
    "in": lambda: "cats purr" in index,
    "len": lambda: len(index),
    "repr": lambda: repr(index),
    "stats": index.stats,
    "metadata_keys": lambda: index.metadata_keys,
    "nbytes": lambda: index.nbytes,
    "generate": lambda: runner.generate({"text": "a", "max_tokens": 2}),
    "count_tokens": lambda: runner.count_tokens("a"),
}
for name, call in calls.items():
    try:
        print(name, "returned", call())
    except (ClusterError, RunnerClosedError) as error:
        if "the connection to the cluster was closed" not in str(error):
            print(name, "raised", error)
index.close()
runner.close()
print("connected" if ray.is_initialized() else "closed")
"""


def test_calls_after_a_shutdown_of_ray_raise_an_error(cluster: Any) -> None:
    """After `ray.shutdown`, every call raises an error about the closed connection; none starts a cluster."""
    environment = os.environ.copy()
    environment.pop("RAY_ENABLE_AUTO_CONNECT", None)
    done = subprocess.run(
        [sys.executable, "-c", CLOSED, cluster.address],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout == "closed\n", done.stdout + done.stderr
