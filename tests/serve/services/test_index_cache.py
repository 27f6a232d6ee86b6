"""The cache of indexes: found by content, bounded in bytes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.services.indexes.index_cache import IndexCache, content_key

some = st.text(st.characters(exclude_categories=()), min_size=1, max_size=3)
contents = st.tuples(
    st.lists(some, max_size=4), st.dictionaries(st.integers(0, 3), some, max_size=2)
)


Content = tuple[list[str], dict[int, str]]


@given(one=contents, other=contents, scopes=st.tuples(st.sampled_from("ab"), st.sampled_from("ab")))
def test_keys_are_equal_exactly_for_equal_content(
    one: Content, other: Content, scopes: tuple[str, str]
) -> None:
    """Texts with titles have one key if they are equal and in one scope: how they are cut counts too."""
    one, other = ((texts, dict(sorted(titles.items()))) for texts, titles in (one, other))
    same = one == other and scopes[0] == scopes[1]
    assert (content_key(*one, scopes[0]) == content_key(*other, scopes[1])) == same


@given(
    limit=st.integers(0, 3000),
    calls=st.lists(st.tuples(st.sampled_from("abcdef"), st.integers(1, 1500)), max_size=60),
)
def test_index_cache_holds_recent_indexes_within_limit(
    limit: int, calls: list[tuple[str, int]]
) -> None:
    """The cache never holds more bytes than allowed, and returns the index that was stored for a key."""
    sizes = dict(calls)
    cache: IndexCache[str] = IndexCache(limit, sizes.__getitem__, Metrics.for_one_process())
    for name, _ in calls:
        found = cache.get(("a-key", name))
        assert found in (None, name)
        if found is None and cache.was_seen(("a-key", name)):
            cache.put(("a-key", name), name)
        kept = [name for name in sizes if cache.peek(("a-key", name))]
        assert sum(map(sizes.__getitem__, kept)) <= limit


def test_index_cache_reports_repeated_chunks() -> None:
    """The first call is stored; many other chunks in between evict it."""
    cache: IndexCache[str] = IndexCache(100, len, Metrics.for_one_process())
    assert [cache.was_seen(("", "k")) for _ in range(3)] == [False, True, True]
    for number in range(5000):
        cache.was_seen(("", str(number)))
    assert not cache.was_seen(("", "k"))


def test_index_cache_evicts_least_recently_used() -> None:
    """The least recently used index is evicted first."""
    cache: IndexCache[str] = IndexCache(2000, lambda _: 500, Metrics.for_one_process())
    for name in ("a", "b"):
        cache.put(("one", name), name)
    assert cache.get(("one", "a")) == "a"
    cache.put(("one", "c"), "c")
    assert [cache.get(("one", name)) for name in "abc"] == ["a", None, "c"]


def test_index_cache_client_evicts_only_its_own_indexes() -> None:
    """However much one client has kept, it makes room by its own, and the others' indexes stay."""
    cache: IndexCache[str] = IndexCache(2000, lambda _: 500, Metrics.for_one_process())
    cache.put(("quiet", "a"), "a")
    for number in range(20):
        cache.put(("greedy", str(number)), "b")
    assert cache.get(("quiet", "a")) == "a"
