"""Nodes die and join while an index is asked and a runner generates."""

from __future__ import annotations

from typing import Any

import pytest

from relevance_gen import ChunkIndex
from relevance_gen.cluster import ClusterIndex, ClusterRunner
from relevance_gen.cluster.placing import living_nodes
from small_models import BIGRAM
from tests.cluster.conftest import NODE
from tests.cluster.shared import OPTIONS, QUERIES, answers, kill_process, texts, until


def test_a_node_that_joins_gets_work(cluster: Any) -> None:
    """A node that joins gets a runner, and shards by `rebalance`; when it dies nothing is lost, and all comes back."""
    chunks = texts(40, seed=7)
    expected = ChunkIndex(chunks).search(QUERIES)
    n_nodes = len(living_nodes())
    with ClusterRunner(BIGRAM, **OPTIONS) as runner, ClusterIndex(chunks, n_shards=4) as index:
        assert runner.stats().num_total_runners == n_nodes
        assert index.rebalance() == 0
        node = cluster.add_node(**NODE)
        until(lambda: runner.stats().num_total_runners == n_nodes + 1, "the new node has a runner")
        assert index.rebalance() == 1
        assert any(node.node_id in shard.nodes for shard in index.stats().shards)
        assert answers(index, expected) == 0
        futures = [runner.submit({"text": "a", "max_tokens": 100}) for _ in range(60)]
        cluster.remove_node(node, allow_graceful=False)
        assert len([future.result(120) for future in futures]) == 60
        answers(index, expected)
        until(
            lambda: all(set(shard.nodes) - {node.node_id} for shard in index.stats().shards),
            "the shard has moved",
        )
        until(lambda: runner.stats().num_total_runners == n_nodes, "the dead node has no runner")
        until(
            lambda: node.node_id not in [one.id for one in living_nodes()],
            "the node is known to be dead",
        )
        assert index.rebalance() == 0
        assert runner.generate("a").responses


def test_the_hosts_of_a_node_are_asked_through_one(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A node of two processors has two hosts, of which one asks the other; the shards of one that dies come back."""
    monkeypatch.setattr("relevance_gen.cluster.balance._ENOUGH_TOKENS", 1)
    chunks = texts(60, seed=8)
    expected = ChunkIndex(chunks).search(QUERIES)
    node = cluster.add_node(**NODE | {"num_cpus": 2})
    until(lambda: node.node_id in [one.id for one in living_nodes()], "the node has joined")
    with ClusterIndex(chunks, n_shards=12) as index:
        shards = [(host, shard) for shard in index._fresh().state.shards for host in shard.hosts]
        hosts = {host for host, _ in shards if host.node_id == node.node_id}
        assert len(hosts) == 2
        assert all(sum(one is host for one, _ in shards) > 1 for host in hosts)
        for _ in range(3):  # either may be asked
            index._fresh()._rankings.clear()
            assert index.search(QUERIES) == expected
        kill_process(hosts.pop().handle)
        answers(index, expected)
        until(lambda: not index.stats().errors, "all shards are back")
        index._fresh()._rankings.clear()
        assert index.search(QUERIES) == expected
    cluster.remove_node(node)
    until(
        lambda: node.node_id not in [one.id for one in living_nodes()],
        "the node is known to be gone",
    )
