"""Processes are stopped for real, as one hangs or a network is cut: they are asked around, given up and replaced."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from relevance_gen import ChunkIndex
from relevance_gen.cluster import ClusterIndex
from relevance_gen.errors import ChunksMissingError, ClusterError
from tests.cluster.shared import QUERIES, RESTORED_S, process_of, texts, until


def ended(call: Callable[[], Any]) -> Any:
    """Return what a call returns, or fail where it hangs."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(call).result(RESTORED_S)


def stop(handle: Any) -> None:
    os.kill(process_of(handle), signal.SIGSTOP)


def test_a_host_that_hangs_is_asked_around_and_replaced(cluster: Any, tmp_path: Path) -> None:
    """With two replicas, one that is stopped changes no answer, holds up no change, and is made anew."""
    chunks = texts(40, seed=11)
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=2, replicas=2) as index:
        stop(index._fresh().state.shards[0].hosts[0].handle)
        assert ended(lambda: index.search(QUERIES)) == one.search(QUERIES)
        assert ended(lambda: index.explain("cats", 3)) == one.explain("cats", 3)
        for each in (index, one):
            ended(lambda each=each: each.add(["cats purr"]))
            ended(lambda each=each: each.remove([1]))
        ended(lambda: index.save(tmp_path / "kept"))
        assert ended(index.stats).num_missing_chunks == 0
        assert index.search(QUERIES) == one.search(QUERIES)
        until(lambda: not index.stats().errors, "all replicas are back")
        assert all(len(set(shard.nodes)) == 2 for shard in index.stats().shards)
        assert index.search(QUERIES) == one.search(QUERIES)


def test_a_shard_that_hangs_is_given_up_and_made_again(cluster: Any) -> None:
    """Where the only replica is stopped, questions are refused and changes fail in time, and the shard comes back."""
    chunks = texts(20, seed=12)
    expected = ChunkIndex(chunks).search(QUERIES)
    with ClusterIndex(chunks, n_shards=1) as index:
        stop(index._fresh().state.shards[0].hosts[0].handle)
        for call in (lambda: index.search("cats"), lambda: index.remove([0])):
            with pytest.raises(ChunksMissingError):
                ended(call)
        until(lambda: not index.stats().errors, "the shard is back")
        assert index.search(QUERIES) == expected


def test_a_shard_that_was_frozen_for_a_while_is_kept(cluster: Any) -> None:
    """A process that goes on after a few seconds, as on a machine that was moved, is asked again, and not replaced."""
    with ClusterIndex(["cats purr"]) as index:
        (shard,) = index._fresh().state.shards
        pid = process_of(shard.hosts[0].handle)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(ChunksMissingError):
            ended(lambda: index.search("cats"))
        os.kill(pid, signal.SIGCONT)
        until(lambda: not index.stats().errors, "the shard is heard of again")
        assert len(index.search("cats").results) == 1
        assert process_of(index._fresh().state.shards[0].hosts[0].handle) == pid


def test_a_keeper_that_hangs_is_told(cluster: Any) -> None:
    """Where the keeper of a name is stopped, whoever needs it gets an error."""
    with ClusterIndex(["cats purr"], name="frozen") as index:
        pid = process_of(index._keeper)
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(ClusterError, match="has not answered for"):
                ended(lambda: index.add(["more"]))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert len(index.search("cats").results) == 1


def test_redundancy_comes_back_without_the_writer(cluster: Any, tmp_path: Path) -> None:
    """A replica is made from the one that lives, whatever became of the source; then that one may die, too."""
    source = tmp_path / "a.txt"
    source.write_text("\n\n".join(texts(20, seed=13)))
    with ClusterIndex(source=source, replicas=2) as index:
        index.add(["cats purr"])
        index.remove([1])
        expected = index.search(QUERIES)
        source.unlink()
        for number in range(2):
            (shard,) = index._fresh().state.shards
            os.kill(process_of(shard.hosts[number].handle), signal.SIGKILL)
            until(
                lambda: any("has 1 of 2 replicas" in one for one in index.stats().errors),
                "one is missing",
            )
            until(lambda: not index.stats().errors, "both replicas are there")
            assert index.search(QUERIES) == expected
        (shard,) = index._fresh().state.shards
        for host in shard.hosts:
            os.kill(process_of(host.handle), signal.SIGKILL)
        until(lambda: "has 0 of 2 replicas" in "".join(index.stats().errors), "it is lost")
