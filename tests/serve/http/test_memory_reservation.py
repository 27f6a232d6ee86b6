"""Holdings: memory is taken before it is used, and all of it is given back."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from contextlib import ExitStack

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import wire
from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.quota import Quota
from relevance_gen.serve.http.bodies.body import Body
from relevance_gen.serve.http.bodies.json_stats import measure_json
from relevance_gen.serve.http.resources.resource_pools import MemoryReservation, make_resource_pools
from relevance_gen.serve.metrics import Metrics
from relevance_gen.serve.settings import Settings

N = 20_000
SHAPES = {
    "lists": "[" + ",".join(["[]"] * N) + "]",
    "lists of one": "[" + ",".join(["[0]"] * N) + "]",
    "deep lists": "[" + ",".join(["[" * 60 + "]" * 60] * (N // 60)) + "]",
    "objects": "[" + ",".join(["{}"] * N) + "]",
    "deep objects": "[" + ",".join(['{"":' * 60 + "0" + "}" * 60] * (N // 60)) + "]",
    "one object": "{" + ",".join(f'"{n:x}":1' for n in range(N)) + "}",
    "objects of new names": "[" + ",".join(f'{{"{n:x}":1}}' for n in range(N)) + "]",
    "numbers": "[" + ",".join(["999"] * N) + "]",
    "large numbers": "[" + ",".join(["9" * 30] * N) + "]",
    "floats": "[" + ",".join(["1.5"] * N) + "]",
    "short strings": "[" + ",".join(['"ab"'] * N) + "]",
    "wide strings": "[" + ",".join(['"aあ"'] * N) + "]",
    "a text": json.dumps({"text": "a" * 10 * N}),
    "a text with one wide character": json.dumps({"text": "😀" + "a" * 10 * N}, ensure_ascii=False),
    "a text with one wide character, escaped": json.dumps({"text": "😀" + "a" * 10 * N}),
}


LANE = make_resource_pools(Settings(), Metrics.for_one_process())["search"]


@pytest.mark.parametrize("shape", SHAPES)
def test_parsing_memory_is_within_the_estimate(shape: str) -> None:
    """Parsing any JSON takes at most the memory that was computed before."""
    body = SHAPES[shape].encode()
    was_tracing = tracemalloc.is_tracing()
    tracemalloc.start()
    try:
        tracemalloc.reset_peak()
        before_bytes = tracemalloc.get_traced_memory()[0]
        wire.parse(body)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        if not was_tracing:
            tracemalloc.stop()
    assert peak_bytes - before_bytes <= measure_json(body, 1 << 18).peak_bytes + 4096


def test_decoded_pieces_are_acquired_before_storage() -> None:
    """A body that would become larger than the quota is refused when the first piece too many is there."""
    bomb = gzip.compress(bytes(64 << 20), 9)
    with MemoryReservation(Quota(1 << 20)) as held:
        body = Body([bomb], "gzip", held, LANE, 64)
        with pytest.raises(TooLargeError, match="may take 1048576 bytes of memory") as caught:
            body.parse()
    assert int(str(caught.value).rsplit(" ", 1)[1]) < 16 << 20


def test_more_values_than_allowed_are_not_parsed() -> None:
    """They are counted before, and those in strings are none."""
    allowed = ["[1,2,3,4,5,6]", '["[,,,,,,,,"]', "[[],[],{}]"]
    for text in (*allowed, "[1,2,3,4,5,6,7]"):
        with MemoryReservation(Quota(1 << 20)) as held:
            body = Body([text.encode()], "identity", held, attrs.evolve(LANE, max_values=7), 64)
            if text in allowed:
                assert body.parse() == json.loads(text)
            else:
                with pytest.raises(TooLargeError, match="at most 7 JSON values"):
                    body.parse()


@given(
    limit=st.integers(0, 40),
    steps=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["take", "replace"]), st.integers(0, 30)),
        max_size=30,
    ),
)
def test_memory_reservations_never_exceed_the_quota(
    limit: int, steps: list[tuple[int, str, int]]
) -> None:
    """After any sequence of changes at most the limit is held; at the end zero bytes are held."""
    memory = Quota(limit)
    with ExitStack() as stack:
        holdings = [stack.enter_context(MemoryReservation(memory)) for _ in range(4)]
        for place, verb, n_bytes in steps:
            holding = holdings[place]
            before = holding.held_bytes
            try:
                getattr(holding, "acquire" if verb == "take" else "resize")(n_bytes)
            except TooLargeError:
                assert (before if verb == "take" else 0) + n_bytes > limit
            except BusyError:
                assert (
                    sum(one.held_bytes for one in holdings)
                    - (before if verb == "replace" else 0)
                    + n_bytes
                    > limit
                )
            assert sum(one.held_bytes for one in holdings) <= limit
    assert all(holding.held_bytes == 0 for holding in holdings)
    assert memory.held == 0


def test_memory_is_released_by_the_last_user() -> None:
    """A thread that still works on a request holds its memory after the client has left."""
    memory = Quota(10)
    with MemoryReservation(memory) as holding:
        holding.acquire(8)
        thread = holding.__enter__()
    with MemoryReservation(memory) as other, pytest.raises(BusyError):
        other.acquire(8)
    thread.acquire(1)
    assert holding.held_bytes == 9
    holding.__exit__(None, None, None)
    with MemoryReservation(memory) as other:
        other.acquire(10)


def test_reservations_of_one_key_leave_memory_to_other_keys() -> None:
    """One key can hold seven eighths of a pool with one request or with several; another key has the rest."""
    settings = Settings(max_buffered_bytes=800)
    pools = make_resource_pools(settings, Metrics.for_one_process(), limits_keys=True)
    for name, pool in pools.items():
        limit = 800 if name == "anonymous_generation" else 700
        with ExitStack() as stack:
            first, second = (
                stack.enter_context(MemoryReservation(pool.memory, "greedy")) for _ in range(2)
            )
            with pytest.raises(TooLargeError, match=f"may take {limit} bytes"):
                first.acquire(limit + 1)
            first.acquire(limit - 100)
            second.acquire(100)
            with pytest.raises(BusyError):
                second.acquire(1)
            if name != "anonymous_generation":
                other = stack.enter_context(MemoryReservation(pool.memory, "modest"))
                other.acquire(100)
        assert pool.memory.held == pool.memory.held_by("greedy") == 0
        pool.executor.close()


def test_pools_of_a_server_with_one_key_have_no_limit_for_it() -> None:
    """If there is a single key, it can hold the whole memory of a pool."""
    settings = Settings(max_buffered_bytes=800)
    pool = make_resource_pools(settings, Metrics.for_one_process())["search"]
    with MemoryReservation(pool.memory, "only") as reservation:
        reservation.acquire(800)
