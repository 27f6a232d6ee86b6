"""The scheduler's laws, on states of every kind and on whole simulated runs."""

from collections import Counter

from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.generation.scheduler import Decode, Head, Move, Prefill, Seat, Start, State, next_action


@st.composite
def states(draw):
    n_slots = draw(st.integers(1, 6))
    running = draw(st.sets(st.integers(0, n_slots - 1)))
    free = sorted(set(range(n_slots)) - running)
    n_batch = draw(st.integers(1, 8))
    head = None
    if draw(st.booleans()):
        n_prompt = draw(st.integers(1, 30))
        n_done = draw(st.integers(0, n_prompt))
        seat = draw(st.sampled_from(free)) if free and (n_done or draw(st.booleans())) else None
        if seat is None:
            n_done = draw(st.sampled_from([0, n_prompt]))
        head = Head(n_prompt, n_done, seat, draw(st.integers(1, 9)))
    return State(n_slots, n_batch, draw(st.integers(0, n_batch)), draw(st.booleans()), running, head)


@given(states())
def test_an_action_only_ever_uses_slots_it_may(state):
    """Free slots are free, decoded slots run and ascend, slices fit the budget and end at a multiple of n_batch."""
    free = set(range(state.n_slots)) - set(state.running)
    match next_action(state):
        case Move(source, target):
            assert source in state.running
            assert target in free
            assert target < source
        case Decode(slots):
            assert list(slots) == sorted(state.running)
            assert not state.decoded
        case Seat(slot):
            assert slot == min(free)
        case Prefill(slot, start, stop):
            assert slot == state.head.slot
            assert start == state.head.n_done < stop <= state.head.n_prompt
            assert stop - start <= state.budget
            assert stop == state.head.n_prompt or stop % state.n_batch == 0
        case Start(slots):
            assert set(slots) <= free
            assert len(set(slots)) == len(slots) <= state.head.n_unstarted
            assert state.head.n_done == state.head.n_prompt
            assert state.head.slot is None or state.head.slot == slots[0]
        case None:
            assert state.decoded or not state.running


@given(states())
def test_running_sequences_come_first(state):
    """Nothing is done for a waiting request in a step before every running sequence has its token."""
    if state.running and not state.decoded:
        assert isinstance(next_action(state), Decode | Move)


@given(states())
def test_a_step_never_idles_while_something_can_be_done(state):
    """With the whole budget left, a step ends only if no request waits or no slot is free."""
    state = evolve(state, decoded=True, budget=state.n_batch)
    if next_action(state) is None:
        assert state.head is None or len(state.running) == state.n_slots


@given(
    requests=st.lists(st.tuples(st.integers(1, 20), st.integers(1, 7), st.integers(1, 6)), max_size=12),
    n_slots=st.integers(1, 5),
    n_batch=st.integers(1, 8),
)
def test_every_request_starts_in_order_and_finishes_once(  # noqa: C901 - an engine in one function
    requests, n_slots, n_batch
):
    """Simulated from the actions alone: no slot leaks, samples start in order of arrival, and all end."""
    queue = [Head(n_prompt, 0, None, n_samples) for n_prompt, n_samples, _ in requests]
    running: dict[int, list[int]] = {}  # slot -> [request, tokens left]
    started: list[int] = []
    finished: Counter[int] = Counter()
    steps = 0
    while queue or running:
        steps += 1
        budget, decoded = n_batch, not running
        while True:
            head = queue[0] if queue else None
            action = next_action(State(n_slots, n_batch, budget, decoded, running.keys(), head))
            match action:
                case None:
                    break
                case Move(source, target):
                    running[target] = running.pop(source)
                case Decode(slots):
                    decoded = True
                    for slot in slots:
                        running[slot][1] -= 1
                case Seat(slot):
                    queue[0] = evolve(head, slot=slot)
                case Prefill(_, start, stop):
                    budget -= stop - start
                    queue[0] = evolve(head, n_done=stop)
                case Start(slots):
                    request = len(requests) - len(queue)
                    started += [request] * len(slots)
                    running |= {slot: [request, requests[request][2] - 1] for slot in slots}
                    queue[0] = evolve(head, slot=None, n_unstarted=head.n_unstarted - len(slots))
                    if not queue[0].n_unstarted:
                        queue.pop(0)
            for slot in [slot for slot, (_, left) in running.items() if left == 0]:
                finished[running.pop(slot)[0]] += 1
        assert steps < 10_000
    assert started == sorted(started)
    assert dict(finished) == {i: n_samples for i, (_, n_samples, _) in enumerate(requests)}


def test_a_gap_is_closed_by_the_last_sequence_unless_a_request_is_about_to_fill_it():
    """Slots {0, 2, 3} become {0, 1, 2} when nobody waits, and stay while somebody does."""
    state = State(8, 4, 4, decoded=False, running={0, 2, 3}, head=None)
    assert next_action(state) == Move(3, 1)
    assert next_action(evolve(state, running={0, 1, 2})) == Decode((0, 1, 2))
    assert next_action(evolve(state, head=Head(5, 0, None, 1))) == Decode((0, 2, 3))
