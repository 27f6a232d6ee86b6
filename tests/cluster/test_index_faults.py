"""Shards, nodes and keepers are killed for real: no answer is silently less, and shards come back."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from relevance_gen import ChunkIndex
from relevance_gen.cluster import ClusterIndex, connection
from relevance_gen.cluster.shard import Shard
from relevance_gen.errors import ChunksMissingError, ClusterError
from tests.cluster.conftest import NODE
from tests.cluster.shared import QUERIES, RESTORED_S, kill_process, texts, until


def answers(index: ClusterIndex, expected: list[Any]) -> int:
    """Ask until there is a whole answer, and return how often it was refused; no answer may be less."""
    refused = 0
    end_s = time.monotonic() + RESTORED_S
    while True:
        try:
            assert index.search(QUERIES) == expected
        except ChunksMissingError as error:
            assert error.n_missing_chunks > 0
            assert time.monotonic() < end_s
            refused += 1
            time.sleep(0.05)
        else:
            return refused


def test_a_lost_shard_comes_back(cluster: Any, tmp_path: Path) -> None:
    """A shard whose process is killed comes back from what was handed over, with all changes; then from its file."""
    chunks = texts(40, seed=5)
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=2) as index:
        for each in (one, index):
            each.add(["cats purr"])
            each.remove([1, 40])
            each.add(["cats will purr"])
        expected = one.search(QUERIES)
        for _ in range(2):
            lost, other = index._fresh().state.shards
            kill_process(lost.replicas[0])
            partial = index.search(QUERIES, allow_partial=True)
            for whole, part in zip(expected, partial, strict=True):
                if part.metadata.num_missing_chunks:
                    assert part.metadata.num_missing_chunks == lost.n_chunks
                    assert part.to_dict()["metadata"]["num_missing_chunks"] == lost.n_chunks
                    assert not {result.original_index for result in part.results} & set(range(*lost.spans[0]))
                else:
                    assert part == whole
            answers(index, expected)
            assert len(index.search(QUERIES, allow_partial=True)[0].results) == len(expected[0].results)
            index.save(tmp_path)
        assert other.n_chunks + lost.n_chunks == len(index)


def test_a_replica_answers_for_another(cluster: Any) -> None:
    """With two replicas on different nodes, the death of one is not noticed, and it is replaced."""
    chunks = texts(30, seed=6)
    expected = ChunkIndex(chunks).search(QUERIES)
    with ClusterIndex(chunks, n_shards=1, replicas=2) as index:
        (shard,) = index._fresh().state.shards
        assert len(set(shard.node_ids)) == 2
        kill_process(shard.replicas[0])
        assert answers(index, expected) == 0
        until(lambda: len(index.stats().shards[0].nodes) == 2, "the replica is replaced")
        assert index.search(QUERIES) == expected


def test_a_lost_node_and_a_new_one(cluster: Any) -> None:
    """The shards of a node that dies come back on others; a node that joins gets its share by `rebalance`."""
    chunks = texts(40, seed=7)
    expected = ChunkIndex(chunks).search(QUERIES)
    node = cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    with ClusterIndex(chunks, n_shards=4) as index:
        assert any(node.node_id in shard.nodes for shard in index.stats().shards)
        cluster.remove_node(node, allow_graceful=False)
        answers(index, expected)
        dead_id = node.node_id
        until(lambda: all(set(shard.nodes) - {dead_id} for shard in index.stats().shards), "the shard has moved")
        assert index.rebalance() == 0
        node = cluster.add_node(**NODE)
        cluster.wait_for_nodes()
        assert index.rebalance() == 1
        assert any(node.node_id in shard.nodes for shard in index.stats().shards)
        assert answers(index, expected) == 0
    cluster.remove_node(node, allow_graceful=False)


def test_a_shard_without_a_source_is_told(cluster: Any, tmp_path: Path) -> None:
    """Where the file of a lost shard is gone, questions are refused and say why; it comes back when the file does."""
    chunks = texts(20, seed=8)
    expected = ChunkIndex(chunks).search(QUERIES)
    with ClusterIndex(chunks, n_shards=1) as index:
        index.save(tmp_path / "there")
        (tmp_path / "there").rename(tmp_path / "away")
        kill_process(index._fresh().state.shards[0].replicas[0])

        def said_why() -> bool:
            with pytest.raises(ChunksMissingError, match="20 of 20 chunks cannot be searched now") as refused:
                index.search("cats")
            return "No such file" in str(refused.value)

        until(said_why, "the error says why")
        for change in (lambda: index.add(["more"]), lambda: index.remove([0]), lambda: index.save(tmp_path / "b")):
            with pytest.raises(ChunksMissingError):
                change()
        assert index.search("cats", allow_partial=True).metadata.num_missing_chunks == 20
        (tmp_path / "away").rename(tmp_path / "there")
        answers(index, expected)


def test_a_change_that_fails_changes_nothing(cluster: Any) -> None:
    """Metadata that no file can hold fails the saving, and a dead keeper every call; each says so."""
    with ClusterIndex([{"text": "cats", "metadata": {"a": {1, 2}}}]) as index:
        with pytest.raises(ValueError, match="metadata must be JSON to be saved"):
            index.save("/tmp/relevance_gen-never-there")  # noqa: S108
        assert len(index.search("cats").results) == 1
        kill_process(index._keeper)
        until(lambda: _is_refused(lambda: index.stats()), "the keeper's death is told")


def _is_refused(call: Callable[[], Any]) -> bool:
    try:
        call()
    except ClusterError as error:
        assert "load it again" in str(error)
        return True
    return False


def test_a_shard_that_cannot_start_is_told(cluster: Any) -> None:
    """A node that does not live is refused with an error that names it."""
    with pytest.raises((ClusterError, connection.RayActorError)):
        connection.start_checked(Shard, "0" * 56, "pivoted", None)
