"""The size of a context, from a few numbers: laws over all of them."""

from hypothesis import assume, given
from hypothesis import strategies as st

from relevance_gen.llama.context_size import MIN_N_CTX, MOST_SLOTS, MemoryEstimate, choose_size

demands = st.builds(MemoryEstimate, st.integers(0, 1 << 20), st.integers(0, 1 << 20))
sizes = st.integers(0, 1 << 42)
lengths = st.integers(MIN_N_CTX, 1 << 20)


@given(demand=demands, free_bytes=sizes, longest=lengths)
def test_slots_are_given_up_before_tokens(demand, free_bytes, longest):
    """A shorter context has one slot; one slot more, or a longer context, would not fit; and what there is does."""
    n_ctx, n_slots = choose_size(demand, free_bytes, longest, False, None)
    assert MIN_N_CTX <= n_ctx <= max(longest, MIN_N_CTX)
    assert 1 <= n_slots <= MOST_SLOTS
    assert demand.of(n_ctx, n_slots) <= free_bytes or (n_ctx, n_slots) == (MIN_N_CTX, 1)
    if n_ctx < longest:
        assert n_slots == 1
        assert demand.of(n_ctx + MIN_N_CTX, 1) > free_bytes
    elif n_slots < MOST_SLOTS:
        assert demand.of(n_ctx, n_slots + 1) > free_bytes


@given(demand=demands, free_bytes=sizes, longest=lengths, n_slots=st.integers(1, 255))
def test_what_was_asked_for_stays(demand, free_bytes, longest, n_slots):
    """A length that was asked for is kept, and so is a number of slots."""
    assert choose_size(demand, free_bytes, longest, True, n_slots) == (longest, n_slots)
    assert choose_size(demand, free_bytes, longest, True, None)[0] == longest
    assert choose_size(demand, free_bytes, longest, False, n_slots)[1] == n_slots


@given(demand=demands, free_bytes=sizes, longest=lengths, more=sizes)
def test_more_memory_never_gives_less(demand, free_bytes, longest, more):
    """With more memory neither the length nor the slots shrink."""
    assume(demand.token_bytes)
    before, after = (
        choose_size(demand, n_bytes, longest, False, None)
        for n_bytes in (free_bytes, free_bytes + more)
    )
    assert after >= before
