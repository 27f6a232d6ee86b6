"""Shards that are too large are cut where they are, and moved; whoever asks sees all of it or nothing."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex
from relevance_gen.cluster import ClusterIndex, actors
from relevance_gen.cluster.keeper import Keeper
from relevance_gen.cluster.parts import StoredChunks
from relevance_gen.index.records.validation import read_chunks
from tests import strategies
from tests.cluster.conftest import NODE
from tests.cluster.shared import QUERIES, answers, kill_process, texts, until
from tests.cluster.test_index import told
from tests.profiles import costly


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have shards cut that have more than some hundreds of tokens."""
    monkeypatch.setattr("relevance_gen.cluster.balance._MOST_TOKENS", 300)


def in_each(index: ClusterIndex, work: Any) -> None:
    """Do something in each process that holds shards."""
    for handle in {host.handle for shard in index._fresh().state.shards for host in shard.hosts}:
        actors.get(handle.__ray_call__.remote(work))


def numbers(index: ClusterIndex) -> list[tuple[int, int]]:
    """Return the number of each shard, and of its chunks."""
    return [(shard.number, shard.n_chunks) for shard in index._fresh().state.shards]


@pytest.fixture(scope="module")
def pair(cluster: Any) -> Iterator[tuple[ClusterIndex, ChunkIndex]]:
    """Give the same chunks to a cluster, on two nodes each, and to one machine."""
    with ClusterIndex(texts(40, seed=1), n_shards=1, replicas=2) as index:
        yield index, ChunkIndex(texts(40, seed=1))


@costly
@given(data=st.data())
def test_the_law_of_segments_holds_when_shards_are_cut(
    pair: tuple[ClusterIndex, ChunkIndex], data: st.DataObject
) -> None:
    """However chunks come and go, and shards are cut and moved, all that is told is what one machine tells."""
    ours, one = pair
    query = data.draw(strategies.queries)
    chunks = data.draw(strategies.chunk_lists)
    assert ours.add(chunks) == one.add(chunks)
    sizes = [shard.size for shard in ours._keeper._shards]
    most = max(max(sizes) * data.draw(st.sampled_from([2, 4, 6])) // 5, sum(sizes) // 6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("relevance_gen.cluster.balance._MOST_TOKENS", most)
        ours.rebalance()
    assert not [
        one for one in ours._keeper._shards if one.size > most and one.statistics.n_chunks > 1
    ]
    left = [
        place
        for place in range(one._state.n_positions)
        if one._state.collection.holds(np.array([place]))[0]
    ]
    gone = sorted(
        {
            left[number % len(left)]
            for number in data.draw(st.lists(st.integers(0, 10**6), max_size=5))
        }
    )
    assert ours.remove(gone[1:]) == one.remove(gone[1:])
    options: dict[str, Any] = {
        "spans": True,
        "where": data.draw(st.sampled_from([None, left[1::2]])),
    }
    assert told(ours, query, **options) == told(one, query, **options)
    assert list(ours) == list(one)
    assert not ours.stats().errors


def test_cutting_is_seen_by_nobody(cluster: Any, small: None, tmp_path: Path) -> None:
    """While shards are cut, answers stay the same; parts come back from what was handed over, and from files."""
    chunks = texts(80, seed=3)
    one = ChunkIndex(chunks)
    expected = one.search(QUERIES)
    with ClusterIndex(chunks, n_shards=1) as index:
        over = threading.Event()
        wrong: list[Any] = []

        def ask() -> None:
            while not over.is_set():
                index._fresh()._rankings.clear()
                wrong.extend(found for found in [index.search(QUERIES)] if found != expected)

        asking = [threading.Thread(target=ask) for _ in range(2)]
        for thread in asking:
            thread.start()
        n_done = index.rebalance()
        over.set()
        for thread in asking:
            thread.join()
        assert not wrong
        stats = index.stats()
        assert n_done >= stats.num_shards - 1 >= 4
        assert len({node for shard in stats.shards for node in shard.nodes}) == 3
        assert sum(shard.num_chunks for shard in stats.shards) == 80
        assert index.rebalance() == 0
        for each in (one, index):
            each.add(["cats purr", "dogs bark"])
            each.remove([0, 5, 81])
        for kept in (None, tmp_path / "kept"):
            if kept is not None:
                index.save(kept)
            expected = one.search(QUERIES)
            for handle in {
                host.handle for shard in index._fresh().state.shards for host in shard.hosts
            }:
                kill_process(handle)
            answers(index, expected)
            until(lambda: not index.stats().errors, "all is back")
            assert index.search(QUERIES) == expected
    with ClusterIndex.load(tmp_path / "kept") as loaded:
        assert told(loaded, QUERIES[0]) == told(one, QUERIES[0])
        assert loaded.stats().num_shards == stats.num_shards


def test_parts_of_one_file_come_back(
    cluster: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """What was loaded and then cut comes back from the file of both parts, and is saved beside other shards' files."""
    one = ChunkIndex(texts(60, seed=4))
    with ClusterIndex(texts(60, seed=4), n_shards=2) as index:
        index.save(tmp_path)
    n_files = len(list(tmp_path.glob("*.shard")))
    with ClusterIndex.load(tmp_path) as index:
        largest = max(shard.size for shard in index._keeper._shards)
        monkeypatch.setattr("relevance_gen.cluster.balance._MOST_TOKENS", largest - 1)
        assert index.rebalance() >= 1
        assert index.stats().num_shards == 3
        for handle in {
            host.handle for shard in index._fresh().state.shards for host in shard.hosts
        }:
            kill_process(handle)
        answers(index, one.search(QUERIES))
        index.save(tmp_path)
        assert len(list(tmp_path.glob("*.shard"))) == n_files + 2
    with ClusterIndex.load(tmp_path) as index:
        assert index.search(QUERIES) == one.search(QUERIES)


def test_one_chunk_is_not_cut(cluster: Any, small: None) -> None:
    """A chunk is never cut, however large it is, and an index without chunks has nothing to cut."""
    with (
        ClusterIndex(["cats purr " * 500, "dogs bark"], n_shards=1) as index,
        ClusterIndex([]) as empty,
    ):
        assert index.rebalance() >= 1
        assert sorted(shard.num_chunks for shard in index.stats().shards) == [1, 1]
        assert index.rebalance() == empty.rebalance() == 0


def test_a_cut_that_fails_changes_nothing(cluster: Any, small: None) -> None:
    """Where one process cannot cut, as for want of room, none has cut: the error is told, and it can be tried again."""

    def fail(host: Any) -> None:
        from relevance_gen.cluster.shard import Shard

        class Full(Shard):
            def cut(self, *_: Any) -> Any:
                raise OSError("no room is left")

        for shard in host._shards.values():
            shard.__class__ = Full

    def mend(host: Any) -> None:
        from relevance_gen.cluster.shard import Shard

        assert len(host._shards) == 1
        for shard in host._shards.values():
            assert shard._next is None
            shard.__class__ = Shard

    one = ChunkIndex(texts(30, seed=5))
    with ClusterIndex(texts(30, seed=5), n_shards=1, replicas=2) as index:
        before = numbers(index)
        handle = index._fresh().state.shards[0].hosts[0].handle
        actors.get(handle.__ray_call__.remote(fail))
        with pytest.raises(OSError, match="no room is left"):
            index.rebalance()
        assert numbers(index) == before
        assert index.search(QUERIES) == one.search(QUERIES)
        until(lambda: _holds_one(handle), "what was made of it is dropped")
        in_each(index, mend)
        assert index.rebalance() > 0
        index._fresh()._rankings.clear()
        assert index.search(QUERIES) == one.search(QUERIES)


def _holds_one(handle: Any) -> bool:
    return actors.get(handle.__ray_call__.remote(lambda host: len(host._shards))) == 1


@pytest.mark.parametrize("replicas", [1, 2])
def test_a_process_that_dies_while_it_cuts(cluster: Any, small: None, replicas: int) -> None:
    """Where it was the only one the shard is not cut, and comes back; a second replica cuts alone."""

    def die(host: Any) -> None:
        import os

        from relevance_gen.cluster.shard import Shard

        class Dying(Shard):
            def cut(self, *_: Any) -> Any:
                os._exit(1)

        for shard in host._shards.values():
            shard.__class__ = Dying

    expected = ChunkIndex(texts(30, seed=6)).search(QUERIES)
    with ClusterIndex(texts(30, seed=6), n_shards=1, replicas=replicas) as index:
        before = numbers(index)
        actors.get(index._fresh().state.shards[0].hosts[0].handle.__ray_call__.remote(die))
        assert (index.rebalance() == 0) == (replicas == 1)
        assert (numbers(index) == before) == (replicas == 1)
        answers(index, expected)
        until(lambda: not index.stats().errors, "all replicas are back")
        index.rebalance()
        assert index.stats().num_shards > 1
        assert all(len(shard.nodes) == replicas for shard in index.stats().shards)
        answers(index, expected)


def test_more_processors_get_parts(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of two processors that joins gets parts of a shard that was one, a process for each."""
    for name, value in (
        ("balance._LEAST_TOKENS", 20),
        ("placing.LEAST_CHARS", 80),
        ("balance._ENOUGH_TOKENS", 1),
    ):
        monkeypatch.setattr(f"relevance_gen.cluster.{name}", value)
    chunks = texts(60, seed=7)
    expected = ChunkIndex(chunks).search(QUERIES)
    with ClusterIndex(chunks, n_shards=1) as index:
        node = cluster.add_node(**NODE | {"num_cpus": 2})
        until(
            lambda: node.node_id in [one["NodeID"] for one in actors.ray.nodes()],
            "the node has joined",
        )
        index.rebalance()
        shards = index._fresh().state.shards
        assert len(shards) == 5
        hosts = [host for shard in shards for host in shard.hosts]
        assert len({host.node_id for host in hosts}) == 4
        assert len({host for host in hosts if host.node_id == node.node_id}) == 2
        assert index.search(QUERIES) == expected
        assert index.rebalance() == 0
        assert {*index._keeper._hosts.all} == {
            one for shard in index._keeper._shards for one in shard.replicas
        }
        cluster.remove_node(node)
        answers(index, expected)


def slow(host: Any) -> None:
    """Have a host take its time for changes."""
    from relevance_gen.cluster.shard import Shard

    class Slow(Shard):
        def cut(self, *args: Any) -> Any:
            time.sleep(0.6)
            return super().cut(*args)

        def add(self, *args: Any) -> Any:
            time.sleep(1.0)
            return super().add(*args)

    for shard in host._shards.values():
        shard.__class__ = Slow


@pytest.mark.parametrize(
    "change", [lambda index: index.rebalance(), lambda index: index.add(["one more"])]
)
def test_an_interrupted_change_is_whole(cluster: Any, small: None, change: Any) -> None:
    """^C ends the waiting for a change and not the change: nothing is lost, and nothing is there twice."""
    one = ChunkIndex(texts(30, seed=8))
    with ClusterIndex(texts(30, seed=8), n_shards=1) as index:
        in_each(index, slow)
        interrupt = threading.Timer(0.4, lambda: os.kill(os.getpid(), signal.SIGINT))
        interrupt.start()
        with pytest.raises(KeyboardInterrupt):
            change(index)
        if len(index) == 30:  # it is not over yet
            assert index.search(QUERIES) == one.search(QUERIES)
        index.add(["and another"])
        for text in [["one more"]] * (len(index) - 31) + [["and another"]]:
            one.add(text)
        index.rebalance()
        assert [chunk.text for chunk in index] == [chunk.text for chunk in one]
        assert index.search(QUERIES) == one.search(QUERIES)
        assert index.stats().num_shards > 1


def test_questions_do_not_wait_for_changes(cluster: Any) -> None:
    """However many changes of an index with a name wait, other processes learn of its state at once."""
    with ClusterIndex(texts(9), name="busy") as index:
        in_each(index, slow)
        keeper = index._keeper
        waiting = [
            keeper.add.remote(StoredChunks.put(read_chunks(["a cat"])), 1) for _ in range(70)
        ]
        assert actors.get(keeper.state.remote()) is not None
        assert ClusterIndex.named("busy").search("zebra") is not None
        done, _ = actors.ray.wait(waiting, num_returns=len(waiting), timeout=0.0)
        assert len(done) < 6, "they waited until a thread was free"


def test_what_is_lost_comes_back_between_two_steps(
    cluster: Any, small: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that is lost while others are cut and moved is made again before the next step, and not at the end."""
    steps: list[int] = []
    cut_some = Keeper._cut_some

    def kill_and_cut(keeper: Keeper, whole: Any) -> int:
        if len(steps) == 1:
            host = keeper._shards[0].replicas[0]
            kill_process(host.handle)
            until(lambda: host not in keeper._hosts.all, "the watch has seen it")
        done = cut_some(keeper, whole)
        steps.append(sum(not shard.replicas for shard in keeper._shards))
        return done

    monkeypatch.setattr(Keeper, "_cut_some", kill_and_cut)
    with ClusterIndex(texts(40, seed=9), n_shards=1) as index:
        index.rebalance()
        assert len(steps) > 2
        assert not any(steps)
        assert index.search(QUERIES) == ChunkIndex(texts(40, seed=9)).search(QUERIES)
