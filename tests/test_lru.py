"""LruCache: stores the most recently used values within its limit of bytes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.lru import _ENTRY_BYTES, LruCache

sizes = st.integers(0, 3000)


@given(st.lists(st.tuples(st.integers(0, 8), sizes)), st.integers(0, 5000))
def test_cache_after_puts_holds_most_recent_values(
    puts: list[tuple[int, int]], limit_bytes: int
) -> None:
    """After any puts the cache holds the last values that fit together, each key once, and counts their bytes."""
    cache: LruCache[int] = LruCache(limit_bytes, lambda size: size)
    expected: dict[int, int] = {}
    for key, size in puts:
        cache.put(key, size)
        expected.pop(key, None)  # the old value is dropped even if the new one does not fit
        if size + _ENTRY_BYTES <= limit_bytes:
            expected[key] = size
            while sum(expected.values()) + _ENTRY_BYTES * len(expected) > limit_bytes:
                del expected[next(iter(expected))]
    n_bytes = sum(expected.values()) + _ENTRY_BYTES * len(expected)
    assert cache.nbytes == n_bytes <= limit_bytes
    for key in range(9):
        assert cache.get(key) == expected.get(key)


def test_get_marks_value_as_recently_used() -> None:
    """A value that was read last is evicted last."""
    cache: LruCache[int] = LruCache(2 * (_ENTRY_BYTES + 1), lambda _: 1)
    cache.put("a", 1)
    cache.put("b", 2)
    assert cache.get("a") == 1
    cache.put("c", 3)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == (1, None, 3)


def test_concurrent_puts_and_gets_keep_byte_count_exact() -> None:
    """After eight threads put and get at the same time, the counted bytes are those of the stored values."""
    cache: LruCache[int] = LruCache(20 * _ENTRY_BYTES, lambda size: size)

    def work(seed: int) -> None:
        for step in range(3000):
            cache.put((seed * step) % 50, step % 100)
            cache.get(step % 50)

    with ThreadPoolExecutor(8) as executor:
        list(executor.map(work, range(1, 9)))
    n_bytes = sum(n_bytes for _, n_bytes in cache._entries.values())
    assert cache.nbytes == n_bytes <= 20 * _ENTRY_BYTES
