"""Properties of the size of a context."""

from attrs import astuple
from hypothesis import assume, given
from hypothesis import strategies as st

from relevance_gen.llama.context_size import (
    MAX_DEFAULT_SLOTS,
    MIN_N_CTX,
    ContextSize,
    MemoryEstimate,
    choose_size,
)

estimates = st.builds(MemoryEstimate, st.integers(0, 1 << 20), st.integers(0, 1 << 20))
sizes = st.integers(0, 1 << 42)
lengths = st.integers(MIN_N_CTX, 1 << 20)


def default_size(estimate, free_bytes, longest):
    """Return the size if neither length nor slots were requested."""
    return choose_size(
        estimate, free_bytes=free_bytes, max_n_ctx=longest, requires_max_n_ctx=False, n_slots=None
    )


@given(estimate=estimates, free_bytes=sizes, longest=lengths)
def test_choose_size_scarce_memory_reduces_slots_before_length(estimate, free_bytes, longest):
    """A shorter context has one slot; one more slot, or a longer context, would not fit."""
    size = default_size(estimate, free_bytes, longest)
    n_ctx, n_slots = size.n_ctx, size.n_slots
    assert MIN_N_CTX <= n_ctx <= max(longest, MIN_N_CTX)
    assert 1 <= n_slots <= MAX_DEFAULT_SLOTS
    fits = estimate.context_bytes(n_ctx, n_slots) <= free_bytes
    assert fits or size == ContextSize(MIN_N_CTX, 1)
    if n_ctx < longest:
        assert n_slots == 1
        assert estimate.context_bytes(n_ctx + MIN_N_CTX, 1) > free_bytes
    elif n_slots < MAX_DEFAULT_SLOTS:
        assert estimate.context_bytes(n_ctx, n_slots + 1) > free_bytes


@given(estimate=estimates, free_bytes=sizes, longest=lengths, n_slots=st.integers(1, 255))
def test_choose_size_requested_values_are_not_reduced(estimate, free_bytes, longest, n_slots):
    """A requested length and a requested number of slots do not depend on the memory."""

    def size(*, requires_max_n_ctx, n_slots):
        return choose_size(
            estimate,
            free_bytes=free_bytes,
            max_n_ctx=longest,
            requires_max_n_ctx=requires_max_n_ctx,
            n_slots=n_slots,
        )

    assert size(requires_max_n_ctx=True, n_slots=n_slots) == ContextSize(longest, n_slots)
    assert size(requires_max_n_ctx=True, n_slots=None).n_ctx == longest
    assert size(requires_max_n_ctx=False, n_slots=n_slots).n_slots == n_slots


@given(estimate=estimates, free_bytes=sizes, longest=lengths, more=sizes)
def test_choose_size_more_memory_never_reduces_the_size(estimate, free_bytes, longest, more):
    """With more memory, length and slots stay equal or grow."""
    assume(estimate.token_bytes)
    smaller = default_size(estimate, free_bytes, longest)
    larger = default_size(estimate, free_bytes + more, longest)
    assert astuple(larger) >= astuple(smaller)
