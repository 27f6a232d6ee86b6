"""What is cut and what moves, for clusters of any size, without one."""

from __future__ import annotations

import itertools

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.cluster import balance
from relevance_gen.cluster.balance import Balance, has_room, too_large
from relevance_gen.cluster.kept import NOT_MADE, KeptHost, KeptShard
from relevance_gen.cluster.parts import Recipe
from relevance_gen.cluster.placing import Node
from relevance_gen.cluster.state import HostState

MI = 1 << 20


def shard(n_tokens: int) -> KeptShard:
    return KeptShard(0, Recipe(()), evolve(NOT_MADE, n_tokens=n_tokens))


def host(number: int, node: str) -> KeptHost:
    return KeptHost(HostState(number, None, node), None)


@given(
    st.lists(st.integers(0, 4), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 60 * MI), st.integers(0, 99)), max_size=12),
    st.integers(1, 3),
)
def test_moves_come_to_an_end_where_loads_are_even(
    cpus: list[int], sizes: list[tuple[int, int]], n: int
) -> None:
    """One move after the other, each makes loads more even; then no node, nor process with enough, has far too much."""
    nodes = [Node(str(number), float(n_cpus), 0.0) for number, n_cpus in enumerate(cpus)]
    hosts = [host(number, node.id) for number, node in enumerate(nodes)]
    shards = []
    for size, place in sizes:
        shards.append(shard(size))
        shards[-1].replicas = [
            hosts[(place + more) % len(hosts)] for more in range(min(n, len(hosts)))
        ]
    numbers = itertools.count(len(hosts))
    for _ in range(10 * len(shards) + 1):
        now = Balance(shards, hosts)
        move = now.next_move(nodes)
        if move is None:
            break
        target, _ = now.fitting(move.shard, move.node)
        if target is None:
            target = host(next(numbers), move.node.id)
            hosts.append(target)
        assert move.host in move.shard.replicas
        assert target not in move.shard.replicas
        move.shard.replicas = [target if one is move.host else one for one in move.shard.replicas]
    else:
        raise AssertionError("shards are moved for ever")
    assert all(len({one.node_id for one in some.replicas}) == len(some.replicas) for some in shards)
    loads = {node.id: now.of_nodes[node.id] / max(node.n_cpus, 1.0) for node in nodes}
    for node in nodes:
        held = [one for one in shards if node.id in [each.node_id for each in one.replicas]]
        here = [one for one in hosts if one.node_id == node.id]
        assert len(here) <= max(1, node.n_cpus)
        least = min(nodes, key=lambda one: (loads[one.id], one.id))
        for some in held:
            if least.id not in [one.node_id for one in some.replicas]:
                assert (
                    loads[node.id]
                    <= 1.25 * (loads[least.id] + some.size / max(least.n_cpus, 1.0)) + 1
                )
        for some, one in [(each, one) for each in held for one in here if one not in each.replicas]:
            (mine,) = [each for each in some.replicas if each.node_id == node.id]
            assert now.of_hosts[mine] <= max(16 * MI, 1.25 * (now.of_hosts[one] + some.size))


def test_nodes_where_nothing_can_be_made() -> None:
    """An unfit node gets nothing, and keeps what it has: it still counts with all of its processors."""
    nodes = [Node("a", 16.0, 0.0), Node("b", 16.0, 0.0), Node("c", 16.0, 0.0)]
    hosts = [host(number, node.id) for number, node in enumerate(nodes)]
    shards = [shard(20 * MI) for _ in range(32)]
    for number, one in enumerate(shards):
        one.replicas = [hosts[number % 2]]
    move = Balance(shards, hosts).next_move(nodes)
    assert move is not None
    assert move.node.id == "c"
    assert Balance(shards, hosts).next_move(nodes[:2], {"a", "b"}) is None
    within = Balance(shards, hosts).next_move(nodes[:2], {"a"})
    assert within is not None
    assert within.node.id == within.host.node_id == "b"
    assert Balance(shards, hosts).next_move([]) is None


def test_what_is_cut() -> None:
    """Shards with more than 1 Gi characters are cut, and large ones where there are fewer than processors."""
    small, large, huge = shard(100 * MI), shard(129 * MI), shard(257 * MI)
    assert too_large([small, large], 2, set()) == []
    assert too_large([small, large], 3, set()) == [large]
    assert too_large([small, large], 3, {large}) == []
    assert too_large([small, large, huge], 1, set()) == [huge]
    assert too_large([large, small, huge], 9, set()) == [huge, large]
    assert too_large([], 9, set()) == []


def test_what_has_room() -> None:
    """A shard takes chunks as long as it has 1 Gi characters with them, and all of them where it has none."""
    assert has_room(shard(200 * MI), 56 * MI * 4 - 4)
    assert not has_room(shard(200 * MI), 56 * MI * 4)
    assert has_room(shard(0), 5000 * MI)
    assert balance.LEAST_CHARS * 4 == balance.MOST_CHARS == 1024 * MI
