"""Tests of the order of searchers: bounded load, and few changes when a searcher joins or leaves."""

from __future__ import annotations

import time
from collections import Counter, deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.cluster.search import searchers as searchers_module
from relevance_gen.cluster.search.remote_segments import ShardError, _Attempt, _Round
from relevance_gen.cluster.search.searchers import (
    SearcherHandle,
    SearcherPool,
    by_preference,
    group_by_searcher,
)
from relevance_gen.errors import BusyError, ClusterError
from relevance_gen.shards.versions import ShardRecord, StoredFile


def pool_of(n_searchers: int) -> SearcherPool:
    """Return a pool without a cluster."""
    pool = object.__new__(SearcherPool)
    names = [f"searcher {ordinal}" for ordinal in range(n_searchers)]
    pool._searchers = {name: SearcherHandle(name, name, None) for name in names}
    pool._lock = _NoLock()  # type: ignore[assignment]
    return pool


class _NoLock:
    def __enter__(self) -> None: ...
    def __exit__(self, *_: Any) -> None: ...


def first_of(orders: dict[str, list[SearcherHandle]]) -> dict[str, SearcherHandle]:
    """Return the first searcher of each shard."""
    return {name: order[0] for name, order in orders.items()}


def shards_of(sizes: list[int]) -> list[ShardRecord]:
    shards = []
    for shard_ord, n_tokens in enumerate(sizes):
        file = StoredFile(f"{shard_ord:016x}.shard", 1, "0" * 64)
        shards.append(ShardRecord(file, 0, 0, n_tokens, 0, "0", 0, 0))
    return shards


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=40), st.integers(1, 12))
def test_orders_are_complete_and_bounded(sizes: list[int], n_searchers: int) -> None:
    """Each order has every searcher once, and no first searcher has much more than its share."""
    pool, shards = pool_of(n_searchers), shards_of(sizes)
    orders = pool.orders(shards, "pets")
    for order in orders.values():
        assert sorted(one.name for one in order) == sorted(pool._searchers)
    weights = {shard.file.name: shard.n_tokens + 1 for shard in shards}
    mean = sum(weights.values()) / n_searchers
    for names in group_by_searcher(first_of(orders)).values():
        assert sum(weights[name] for name in names) <= mean + max(weights.values())


def test_equal_shards_are_distributed_evenly() -> None:
    """With shards of one size, each searcher is first for the same number of shards."""
    for n_searchers in (1, 3, 16):
        orders = pool_of(n_searchers).orders(shards_of([100] * n_searchers), "pets")
        groups = group_by_searcher(first_of(orders))
        assert [len(names) for names in groups.values()] == [1] * n_searchers


def test_leaving_searcher_moves_few_shards() -> None:
    """After the loss of a searcher, most shards keep their first searcher."""
    shards = shards_of([100] * 100)
    before, after = pool_of(10).orders(shards, "pets"), pool_of(9).orders(shards, "pets")
    n_moved = sum(before[name][0].name != after[name][0].name for name in before)
    assert n_moved <= 30


def test_small_index_is_searched_by_one_searcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shards of few tokens have one first and one second searcher, other ones for other indexes; larger shards more."""
    monkeypatch.setattr(searchers_module, "MIN_SEARCHER_TOKENS", 1000)
    pool = pool_of(8)
    small = shards_of([100] * 15)
    firsts = set()
    for index_ord in range(100):
        orders = pool.orders(small, f"index {index_ord}")
        assert len({order[0].name for order in orders.values()}) == 1
        assert len({order[1].name for order in orders.values()}) == 1
        assert all(len(set(order)) == 8 for order in orders.values())
        firsts |= {order[0].name for order in orders.values()}
    assert len(firsts) == 8
    orders = pool.orders(shards_of([100] * 45), "pets")
    assert len({order[0].name for order in orders.values()}) == 4


def test_orders_without_searchers_raises() -> None:
    """Without a searcher, shards cannot be searched."""
    with pytest.raises(ClusterError, match="no node of the cluster"):
        pool_of(0).orders(shards_of([1]), "pets")


def test_avoided_searchers_come_last() -> None:
    """A searcher that failed is asked last for a while."""
    pool = pool_of(3)
    order = pool.searchers
    order[0].avoided_until_s = time.monotonic() + 60.0
    assert by_preference(order) == [*order[1:], order[0]]
    order[0].avoided_until_s = time.monotonic() - 1.0
    assert by_preference(order) == order


def test_hedge_delay_follows_the_median() -> None:
    """A few slow requests do not change the delay after which other searchers are asked."""
    pool = pool_of(1)
    pool.durations_s = deque([1.0] * 20 + [50.0])
    assert pool.hedge_delay_s == 3.0
    pool.durations_s = deque([50.0] + [0.001] * 64)
    assert pool.hedge_delay_s == 0.05


def test_error_of_a_group_of_shards_is_attributed_to_the_named_shard() -> None:
    """If one of two shards of a message cannot be read, the error names this shard and not the other."""
    names = frozenset({"a.shard", "b.shard"})
    request_round = _Round.__new__(_Round)
    request_round._unanswered = set(names)
    request_round._n_errors = Counter()
    request_round._orders = {name: [SearcherHandle("searcher", "node", None)] for name in names}
    attempt = _Attempt(request_round._orders["a.shard"][0], names, ())
    with pytest.raises(ShardError) as failed:
        request_round._note_error(
            attempt, FileNotFoundError(2, "No such file", "/location/b.shard")
        )
    assert failed.value.shard_name == "b.shard"
    assert "a.shard" not in request_round._n_errors


def test_busy_searcher_fails_a_request_only_if_all_are_busy() -> None:
    """If one searcher refuses a request, the response of another one is awaited."""
    searchers = [SearcherHandle(name, "node", None) for name in ("first", "second")]
    request_round = _Round.__new__(_Round)
    request_round._unanswered = {"a.shard"}
    request_round._n_errors = Counter()
    request_round._orders = {"a.shard": searchers}
    attempts = [_Attempt(searcher, frozenset({"a.shard"}), ()) for searcher in searchers]
    error = BusyError("a searcher of the cluster has too many requests")
    request_round._note_error(attempts[0], error)
    with pytest.raises(BusyError, match="too many requests"):
        request_round._note_error(attempts[1], error)
