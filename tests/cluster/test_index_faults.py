"""Shards, nodes and keepers are killed for real: no answer is silently less, and shards come back."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relevance_gen import ChunkIndex
from relevance_gen.cluster import ClusterIndex, actors
from relevance_gen.cluster.host import Host
from relevance_gen.errors import ChunksMissingError, ClusterError
from tests.cluster.shared import QUERIES, answers, kill_process, texts, until


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
        lost, other = index._fresh().state.shards
        assert other.n_chunks + lost.n_chunks == len(index)
        kill_process(lost.hosts[0].handle)
        partial = index.search(QUERIES, allow_partial=True)
        for whole, part in zip(expected, partial, strict=True):
            if part.metadata.num_missing_chunks:
                assert part.metadata.num_missing_chunks == lost.n_chunks
                assert part.to_dict()["metadata"]["num_missing_chunks"] == lost.n_chunks
                found = np.array([result.original_index for result in part.results])
                assert not lost.runs.hold(found).any()
            else:
                assert part == whole
        answers(index, expected)
        assert len(index.search(QUERIES, allow_partial=True)[0].results) == len(expected[0].results)
        index.save(tmp_path / "there")
        (tmp_path / "there").rename(tmp_path / "away")
        for shard in index._fresh().state.shards:
            kill_process(shard.hosts[0].handle)

        def said_why() -> bool:
            with pytest.raises(
                ChunksMissingError, match=f"of {len(index)} chunks cannot be searched now"
            ) as refused:
                index.search("cats")
            return refused.value.n_missing_chunks == len(index) and "No such file" in str(
                refused.value
            )

        until(said_why, "the error says why")
        for change in (
            lambda: index.add(["more"]),
            lambda: index.remove([0]),
            lambda: index.save(tmp_path / "b"),
        ):
            with pytest.raises(ChunksMissingError):
                change()
        assert index.search("cats", allow_partial=True).metadata.num_missing_chunks == len(index)
        (tmp_path / "away").rename(tmp_path / "there")
        answers(index, expected)


def test_a_replica_answers_for_another(cluster: Any) -> None:
    """With two replicas on different nodes, the death of one is not noticed, and it is replaced."""
    chunks = texts(30, seed=6)
    expected = ChunkIndex(chunks).search(QUERIES)
    with ClusterIndex(chunks, n_shards=1, replicas=2) as index:
        (shard,) = index._fresh().state.shards
        assert len(set(shard.node_ids)) == 2
        kill_process(shard.hosts[0].handle)
        assert answers(index, expected) == 0
        until(lambda: len(index.stats().shards[0].nodes) == 2, "the replica is replaced")
        assert index.search(QUERIES) == expected


def test_a_change_that_fails_changes_nothing(cluster: Any) -> None:
    """Metadata that no file can hold fails the saving, and a dead keeper every call; each says so."""
    with ClusterIndex([{"text": "cats", "metadata": {"a": {1, 2}}}], name="mortal") as index:
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


def test_a_host_that_cannot_start_is_told(cluster: Any) -> None:
    """A node that does not live is refused with an error that names it."""
    with pytest.raises((ClusterError, actors.RayActorError)):
        actors.check(actors.start(Host, "0" * 56, 0, "pivoted", None), 60)
