"""The time for strangers' grammars: a fixed part of a step, and of all time where others run beside them."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.generation.mask_time import STEP_S, MaskTime


@given(
    needed=st.lists(st.tuples(st.floats(0, 0.2), st.integers(0, 9)), min_size=1, max_size=8),
    used_s=st.sampled_from([0.0, 0.01, 10**6]),
    n_others=st.integers(0, 2),
)
def test_what_runs_in_a_step_takes_a_fixed_part_of_it(needed, used_s, n_others):
    """Alone one always runs; beside others nobody does while the time is used up; who has fewest tokens is first."""
    strangers = {
        slot: SimpleNamespace(constraint=SimpleNamespace(token_s=seconds), tokens=[0] * n_tokens)
        for slot, (seconds, n_tokens) in enumerate(needed)
    }
    left = MaskTime()
    left.charge(used_s)
    late = left.late(strangers, len(strangers) + n_others)
    taken_s = sum(min(seconds, STEP_S) for slot, (seconds, _) in enumerate(needed) if slot not in late)
    assert taken_s <= STEP_S + 1e-9
    if not n_others:
        assert min(strangers, key=lambda slot: len(strangers[slot].tokens)) not in late
    elif used_s > 1:
        assert late == set(strangers)
