"""How many slots of how many tokens fit into the memory that is free: a pure function of a few numbers."""

from __future__ import annotations

from attrs import frozen

MOST_SLOTS = 16
"""Where nobody asked for a number."""
MIN_N_CTX = 256
"""Context lengths are rounded up to multiples of this by llama.cpp."""


@frozen
class MemoryEstimate:
    """What a context takes: keys and values of each token, and the attention of one slice.

    The width of a slice is for each token that it can look back at.
    """

    token_bytes: int
    width_bytes: int

    def of(self, n_ctx: int, n_slots: int) -> int:
        """Return the bytes of a context of `n_slots` sequences of `n_ctx` tokens."""
        n_ctx = -(-n_ctx // MIN_N_CTX) * MIN_N_CTX
        return n_ctx * (n_slots * self.token_bytes + self.width_bytes)


def choose_size(
    demand: MemoryEstimate,
    free_bytes: int,
    longest: int,
    must_be_longest: bool,
    n_slots: int | None,
) -> tuple[int, int]:
    """Return the length and the number of slots that `free_bytes` hold.

    Slots are given up first, and only then tokens: a document that does not fit is an error, a request that waits is
    none. A number of slots that was asked for stays, whether it fits or not, and so does the `longest` sequence that is
    wanted if it `must_be_longest`.
    """
    if n_slots is None:
        n_slots = next(
            (n for n in range(MOST_SLOTS, 1, -1) if demand.of(longest, n) <= free_bytes), 1
        )
    if must_be_longest or demand.of(longest, n_slots) <= free_bytes:
        return longest, n_slots
    return max(1, free_bytes // demand.of(MIN_N_CTX, n_slots)) * MIN_N_CTX, n_slots
