"""Quotas: limits are never exceeded, and released amounts are available again."""

from __future__ import annotations

import threading

from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.quota import Quota

CLIENTS = st.sampled_from(["a", "b", None])


@given(
    whole=st.integers(0, 20),
    share=st.integers(0, 20),
    steps=st.lists(st.tuples(st.booleans(), CLIENTS, st.integers(0, 9)), max_size=40),
)
def test_quota_limits_are_never_exceeded(
    whole: int, share: int, steps: list[tuple[bool, str | None, int]]
) -> None:
    """For any changes, all clients hold at most the limit and each at most its client limit."""
    reported: list[float] = []
    quota = Quota(whole, share, on_change=reported.append)
    held: dict[str | None, int] = dict.fromkeys(("a", "b", None), 0)
    for takes, client, amount in steps:
        if takes:
            fits = sum(held.values()) + amount <= whole and held[client] + amount <= share
            assert quota.has_capacity(amount, client) == fits
            assert quota.acquire(amount, client) == fits
            held[client] += amount * fits
        else:
            back = min(amount, held[client])
            quota.release(back, client)
            held[client] -= back
        assert quota.held == sum(held.values())
        assert quota.held_by(client) == held[client]
        assert not reported or reported[-1] == quota.held


def test_quota_acquire_waits_for_release() -> None:
    """A waiting thread acquires a released amount; after its timeout it gets False."""
    quota, has_it = Quota(2), threading.Event()
    assert quota.acquire(2)
    assert not quota.acquire(1, timeout_s=0.01)

    def wait() -> None:
        if quota.acquire(1, "another", timeout_s=60):
            has_it.set()

    thread = threading.Thread(target=wait)
    thread.start()
    assert not has_it.is_set()
    quota.release(1)
    thread.join(60)
    assert has_it.is_set()
    assert (quota.held, quota.held_by("another")) == (2, 1)


def test_quota_refill_releases_with_time() -> None:
    """A client above its limit can acquire again after the refill; other clients do not wait."""
    now = [100.0]
    quota = Quota(client_limit=5, refill_per_s=0.5, clock=lambda: now[0])
    quota.charge(7, "slow")
    assert not quota.has_capacity(0, "slow")
    assert quota.seconds_until_available("slow") == 4
    assert quota.has_capacity(5, "quick")
    now[0] += 4
    assert quota.has_capacity(0, "slow")
    assert not quota.has_capacity(0.5, "slow")
    assert quota.seconds_until_available("slow") == 0
    now[0] += 1000
    assert quota.held == 0


def test_quota_without_refill_never_becomes_available() -> None:
    """Without refills a client above its limit waits forever; every change is reported."""
    reported: list[float] = []
    now = [0.0]
    quota = Quota(client_limit=2, on_change=reported.append)
    quota.charge(3, "a")
    assert (quota.seconds_until_available("a"), quota.seconds_until_available("b")) == (
        float("inf"),
        0.0,
    )
    quota = Quota(client_limit=2, refill_per_s=1.0, on_change=reported.append, clock=lambda: now[0])
    quota.charge(3, "a")
    now[0] = 2.0
    assert (quota.held, reported[-1]) == (1.0, 1.0)
