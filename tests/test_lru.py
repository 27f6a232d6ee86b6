"""LruCache: the values used last, within the bytes that are allowed."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.lru import _ENTRY_BYTES, LruCache

sizes = st.integers(0, 3000)


@given(st.lists(st.tuples(st.integers(0, 8), sizes)), st.integers(0, 5000))
def test_it_holds_the_values_used_last(puts: list[tuple[int, int]], limit_bytes: int) -> None:
    """After any puts it holds the last ones that fit together, each key once, and its bytes are theirs."""
    memory: LruCache[int] = LruCache(limit_bytes, lambda size: size)
    expected: dict[int, int] = {}
    for key, size in puts:
        memory.put(key, size)
        expected.pop(
            key, None
        )  # what was there is not the value any more, whether the new one fits or not
        if size + _ENTRY_BYTES <= limit_bytes:
            expected[key] = size
            while sum(expected.values()) + _ENTRY_BYTES * len(expected) > limit_bytes:
                del expected[next(iter(expected))]
    assert memory.nbytes == sum(expected.values()) + _ENTRY_BYTES * len(expected) <= limit_bytes
    assert {key: memory.get(key) for key in range(9)} == {
        key: expected.get(key) for key in range(9)
    }


def test_using_a_value_keeps_it() -> None:
    """What was looked at last goes last."""
    memory: LruCache[int] = LruCache(2 * (_ENTRY_BYTES + 1), lambda _: 1)
    memory.put("a", 1)
    memory.put("b", 2)
    assert memory.get("a") == 1
    memory.put("c", 3)
    assert (memory.get("a"), memory.get("b"), memory.get("c")) == (1, None, 3)


def test_threads_do_not_miscount() -> None:
    """Eight threads that put and get at once leave as many bytes counted as there are."""
    memory: LruCache[int] = LruCache(20 * _ENTRY_BYTES, lambda size: size)

    def work(seed: int) -> None:
        for number in range(3000):
            memory.put((seed * number) % 50, number % 100)
            memory.get(number % 50)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(work, range(1, 9)))
    assert (
        memory.nbytes == sum(n_bytes for _, n_bytes in memory._values.values()) <= 20 * _ENTRY_BYTES
    )
