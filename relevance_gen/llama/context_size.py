"""Choose the length and the number of a context's slots for the free memory: a pure function."""

from __future__ import annotations

from attrs import frozen

MAX_DEFAULT_SLOTS = 16
"""Slots if no number was requested and the memory suffices."""
MIN_N_CTX = 256
"""llama.cpp rounds context lengths up to multiples of this."""


@frozen
class MemoryEstimate:
    """The bytes of memory that a context takes.

    Attributes:
        token_bytes: bytes of the keys and values of one token of one sequence.
        score_bytes: bytes of the attention scores of one prefill chunk for one token of a
            sequence; they are multiplied by the length of one sequence, not by the number of slots.
        logits_bytes: bytes of the buffer for the logits of one computation.
    """

    token_bytes: int
    score_bytes: int
    logits_bytes: int = 0

    def context_bytes(self, n_ctx: int, n_slots: int) -> int:
        """Return the size of a context of `n_slots` sequences of `n_ctx` tokens."""
        n_ctx = -(-n_ctx // MIN_N_CTX) * MIN_N_CTX
        return n_ctx * (n_slots * self.token_bytes + self.score_bytes) + self.logits_bytes


@frozen
class ContextSize:
    """The length of each sequence in tokens, and the number of slots."""

    n_ctx: int
    n_slots: int


def choose_size(
    estimate: MemoryEstimate,
    *,
    free_bytes: int,
    max_n_ctx: int,
    requires_max_n_ctx: bool,
    n_slots: int | None,
) -> ContextSize:
    """Return the length of each sequence and the number of slots of a context.

    The number of slots is reduced first, then the length: a prompt that does not fit is an error,
    but a request that waits is not. The context can need more than `free_bytes` if neither may be
    reduced further.

    Args:
        estimate: the memory of a context.
        free_bytes: memory that the context may use.
        max_n_ctx: maximum length of a sequence in tokens.
        requires_max_n_ctx: whether the length must be `max_n_ctx`, even if that needs more memory.
        n_slots: number of slots, which is not reduced; None for at most `MAX_DEFAULT_SLOTS`.
    """
    if n_slots is None:
        n_slots = 1
        for candidate in range(MAX_DEFAULT_SLOTS, 1, -1):
            if estimate.context_bytes(max_n_ctx, candidate) <= free_bytes:
                n_slots = candidate
                break
    if requires_max_n_ctx or estimate.context_bytes(max_n_ctx, n_slots) <= free_bytes:
        return ContextSize(max_n_ctx, n_slots)
    block_bytes = estimate.context_bytes(MIN_N_CTX, n_slots) - estimate.logits_bytes
    n_blocks = max(1, (free_bytes - estimate.logits_bytes) // block_bytes)
    return ContextSize(n_blocks * MIN_N_CTX, n_slots)


def next_smaller(
    size: ContextSize, *, can_shorten: bool, can_reduce_slots: bool
) -> ContextSize | None:
    """Return the next size to try if a context of `size` cannot be allocated; None if none is left.

    The number of slots is halved while `can_reduce_slots` is true and it is above 1. After that,
    the length is halved, if `can_shorten` is true and it is above `MIN_N_CTX`.
    """
    if can_reduce_slots and size.n_slots > 1:
        return ContextSize(size.n_ctx, size.n_slots // 2)
    if can_shorten and size.n_ctx > MIN_N_CTX:
        n_blocks = max(1, size.n_ctx // MIN_N_CTX // 2)
        return ContextSize(n_blocks * MIN_N_CTX, size.n_slots)
    return None
