"""The scheduler's laws, on states of every kind and on whole simulated runs."""

from collections import Counter

import pytest
from attrs import define, evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.generation.engine.scheduler import (
    AssignSlot,
    CompactSlot,
    Decode,
    EngineState,
    Preempt,
    Prefill,
    PrefillChunk,
    Resume,
    Start,
    Tokenize,
    max_retained_prompts,
    next_action,
    padded_length,
    retains_prompt,
)
from relevance_gen.generation.queue.request import ANONYMOUS


@define
class Request:
    """What the scheduler reads of a `ActiveRequest`."""

    n_prompt_tokens: int = 1
    n_computed: int = 1
    slot: int | None = None
    n_pending_samples: int = 1
    n_running: int = 0
    can_batch_prefill: bool = True
    client: str | None = None

    @property
    def computed(self):
        """Whether its prompt is."""
        return 0 < self.n_prompt_tokens == self.n_computed


clients = st.sampled_from([None, ANONYMOUS, ANONYMOUS, "a", "b"])


def is_anonymous(request):
    """Tell whether it is a stranger's."""
    return request.client == ANONYMOUS


def n_holding(waiting, like):
    """Count the requests that hold their prompts among those of strangers, or of others, as `like` is."""
    return sum(
        retains_prompt(request)
        for request in waiting
        if is_anonymous(request) == is_anonymous(like)
    )


def may_hold(waiting, request, n_slots):
    """Tell whether a request may hold its prompt beside those that wait."""
    is_first = not any(retains_prompt(one) for one in waiting if one.client == request.client)
    return is_first or n_holding(waiting, request) < max_retained_prompts(n_slots)


@st.composite
def states(draw):
    n_slots = draw(st.integers(1, 6))
    running = draw(st.dictionaries(st.integers(0, n_slots - 1), clients))
    prefill_multiple = draw(st.integers(1, 3))
    n_batch = draw(st.integers(1, 8)) * prefill_multiple
    free = draw(st.permutations(sorted(set(range(n_slots)) - running.keys())))
    waiting = []
    for _ in range(draw(st.integers(0, 6))):
        request = Request(0, 0, None, draw(st.integers(1, 5)), client=draw(clients))
        kind = draw(st.sampled_from(["new", "started", "seated", "read"]))
        if kind == "started" and may_hold(waiting, request, n_slots):
            request = evolve(
                request, n_prompt_tokens=3, n_computed=3, n_running=draw(st.integers(0, 3))
            )
        elif kind in ("seated", "read") and free:
            request.slot = free.pop()
            if retains_prompt(request) and not may_hold(waiting, request, n_slots):
                request.n_pending_samples = 1
            if kind == "read":
                request.n_prompt_tokens = draw(st.integers(1, 30))
                request.n_computed = draw(st.integers(0, request.n_prompt_tokens))
                request.can_batch_prefill = draw(st.booleans())
        waiting.append(request)
    budget, can_tokenize, n_ctx = (
        draw(st.integers(0, n_batch)),
        draw(st.booleans()),
        draw(st.integers(31, 60)),
    )
    n_preempted = draw(st.sampled_from([0, 0, 1, 2]))
    return EngineState(
        n_slots,
        n_ctx,
        n_batch,
        prefill_multiple,
        budget,
        can_tokenize,
        running,
        n_preempted,
        waiting,
    )


def free_slots(state):
    return (
        set(range(state.n_slots)) - set(state.running) - {request.slot for request in state.waiting}
    )


@given(states())
def test_an_action_only_ever_uses_slots_it_may(state):  # noqa: C901 - a case for each action
    """Free slots are free, decoded slots run and ascend, slices fit the budget and end at a multiple of n_batch.

    Several slices are of requests that join, and have room for their padding.
    """
    free = free_slots(state)
    match next_action(state):
        case AssignSlot(place, slot):
            assert slot in free
            assert state.waiting[place].slot is None
            assert not state.waiting[place].computed
        case Preempt(slot):
            owners = {request.slot: request.client for request in state.waiting} | dict(
                state.running
            )
            assert owners[slot] == ANONYMOUS
            assert not free
            assert not all(map(is_anonymous, state.waiting))
        case Resume(slot):
            assert slot in free
            assert state.n_preempted
        case Tokenize(place, slot):
            assert state.can_tokenize
            assert slot == state.waiting[place].slot is not None
            assert not state.waiting[place].n_prompt_tokens
        case Prefill(slices):
            length = padded_length(slices, state.prefill_multiple)
            assert length * len(slices) <= state.budget
            in_turn = sorted(
                (is_anonymous(state.waiting[each.queue_index]), each.queue_index) for each in slices
            )
            assert [each.queue_index for each in slices] == [place for _, place in in_turn]
            for each in slices:
                request = state.waiting[each.queue_index]
                assert each.slot == request.slot is not None
                assert each.start == request.n_computed < each.stop <= request.n_prompt_tokens
                assert each.stop == request.n_prompt_tokens or each.stop % state.n_batch == 0
                assert len(slices) == 1 or (
                    request.can_batch_prefill and each.start + length <= state.n_ctx
                )
            assert len(slices) == 1 or state.prefill_multiple > 1
        case Start(place, slots):
            request = state.waiting[place]
            assert request.computed
            assert 1 <= len(set(slots)) == len(slots) <= request.n_pending_samples
            assert set(slots) <= free | {request.slot}
            assert request.slot in (None, slots[0])
        case CompactSlot(source, target):
            assert source in state.running
            assert target in free
            assert target < source
        case Decode(slots):
            assert list(slots) == sorted(state.running)
        case None:
            assert not state.running


@given(states())
def test_every_step_gives_every_running_sequence_a_token(state):
    """When nothing is left to do for those who wait, what runs is decoded; no step ends without."""
    action = next_action(state)
    while isinstance(action, CompactSlot):
        state = evolve(
            state, running=dict.fromkeys({*state.running} - {action.source} | {action.target})
        )
        action = next_action(state)
    assert action is not None or not state.running


@given(states())
def test_no_slot_stays_free_while_samples_wait(state):
    """A step that may still read and compute ends with a free slot only if whoever waits has all slots it can use.

    Those are requests of one sample, or of a prompt not yet computed, that have a slot; and those for whose prompts no
    memory is left.
    """
    action = next_action(evolve(state, budget=state.n_batch, can_tokenize=True))
    if isinstance(action, Decode | CompactSlot | None):
        assert not any(request.slot is not None for request in state.waiting)
        if free_slots(state):
            assert not state.n_preempted
            assert all(
                request.n_pending_samples > 1 and not request.computed for request in state.waiting
            )
            assert not any(
                may_hold(state.waiting, request, state.n_slots) for request in state.waiting
            )


@given(states())
def test_prompts_are_held_for_so_many_requests_only(state):
    """One that will hold its prompt gets a slot only where fewer than the bound do, or none of its client's does."""
    action = next_action(state)
    if isinstance(action, AssignSlot) and state.waiting[action.queue_index].n_pending_samples > 1:
        assert may_hold(state.waiting, state.waiting[action.queue_index], state.n_slots)


def test_whoever_is_no_stranger_gets_a_strangers_slot():
    """Where strangers have all slots, one gives way, as many as are wanted; they go on before further strangers do."""
    waiting = [Request(client=ANONYMOUS), Request(n_prompt_tokens=0, n_computed=0, client="a")]
    state = EngineState(
        2,
        99,
        4,
        2,
        4,
        can_tokenize=True,
        running=dict.fromkeys((0, 1), ANONYMOUS),
        n_preempted=0,
        waiting=waiting,
    )
    assert next_action(state) == Preempt(1)
    state = evolve(state, running={0: ANONYMOUS}, n_preempted=1)
    assert next_action(state) == AssignSlot(1, 1)
    assert next_action(evolve(state, waiting=waiting[:1])) == Resume(1)
    assert next_action(evolve(state, waiting=waiting[:1], n_preempted=0)) == Start(0, (1,))
    running = dict.fromkeys((0, 1), "b")
    assert next_action(evolve(state, running=running)) == Decode((0, 1))


@given(
    st.lists(st.tuples(clients, st.integers(0, 3), st.integers(1, 4)), min_size=1, max_size=6),
    st.integers(1, 8),
)
def test_free_slots_go_by_client_first(requests, n_slots):
    """Strangers come last. No client that wants more has two fewer than another, nor has a request beside another."""
    waiting = [
        Request(1, 1, None, n_pending_samples, client=client)
        for client, _, n_pending_samples in requests
    ]
    simulated, n_free = EngineState(n_slots, 99, 4, 2, 4, True, {}, 0, waiting), n_slots
    while n_free:
        action = next_action(simulated)
        if not isinstance(action, Start):
            break
        one = simulated.waiting[action.queue_index]
        for slot in action.slots:
            simulated.running[slot] = one.client
        one.n_pending_samples -= len(action.slots)
        one.n_running += len(action.slots)
        n_free -= len(action.slots)
        simulated = evolve(
            simulated, waiting=[each for each in simulated.waiting if each.n_pending_samples]
        )
    held = Counter(one.client for one in waiting for _ in range(one.n_running))
    for one in waiting:
        for other in waiting:
            if not other.n_pending_samples or not one.n_running:
                continue
            assert not is_anonymous(one) or is_anonymous(other)
            if not is_anonymous(one) and not is_anonymous(other):
                assert held[one.client] <= held[other.client] + 1
            if one.client == other.client:
                assert one.n_running <= other.n_running + 1


@define(eq=False)
class Served:
    """What a simulation notes of a request; times are numbers of steps."""

    request: Request
    n_prompt_tokens: int
    n_tokens: int
    arrived: int
    first_slot: int | None = None
    first_sample: int | None = None


class Simulation:
    """An engine in a few lines: carries actions out on counts alone."""

    def __init__(self, n_slots, n_batch):
        self.n_slots, self.n_batch = n_slots, 2 * n_batch
        self.step_number = 0
        self.queue, self.running = [], {}  # slot -> [who, tokens left]
        self.gifts = []  # (in which step, who got a slot)
        self.finished = Counter()

    def arrive(self, n_prompt, n_samples, n_tokens):
        """Queue a request."""
        request = Request(0, 0, None, n_samples)
        self.queue.append(Served(request, n_prompt, n_tokens, self.step_number))
        return self.queue[-1]

    def state(self, budget, waiting):
        """Return what the scheduler sees."""
        counts = self.n_slots, 100, self.n_batch, 2, budget
        return EngineState(
            *counts,
            can_tokenize=True,
            running=dict.fromkeys(self.running),
            n_preempted=0,
            waiting=waiting,
        )

    def note_slots(self, who, n_slots):
        """Note who gets slots."""
        if who.first_slot is None:
            who.first_slot = self.step_number
        self.gifts += [(self.step_number, who)] * n_slots

    def step(self):
        """Do what one step of the engine does."""
        self.step_number += 1
        budget = self.n_batch
        while True:
            waiting = [who.request for who in self.queue]
            assert sum(map(retains_prompt, waiting)) <= max_retained_prompts(self.n_slots)
            match next_action(self.state(budget, waiting)):
                case AssignSlot(place, slot):
                    self.queue[place].request.slot = slot
                    self.note_slots(self.queue[place], 1)
                case Tokenize(place):
                    self.queue[place].request.n_prompt_tokens = self.queue[place].n_prompt_tokens
                case Prefill(slices):
                    budget -= self.compute(slices)
                case Start(place, slots):
                    self.start(self.queue.pop(place), slots)
                case CompactSlot(source, target):
                    self.running[target] = self.running.pop(source)
                case Decode(slots):
                    for slot in slots:
                        self.count_token(slot)
                    return
                case None:
                    return

    def compute(self, slices):
        """Compute slices; return how many tokens that takes, padding included."""
        for each in slices:
            self.queue[each.queue_index].request.n_computed = each.stop
        return len(slices) * padded_length(slices, 2)

    def start(self, who, slots):
        """Start samples; the first token of each comes from the prompt."""
        request = who.request
        self.note_slots(who, len(slots) - (request.slot is not None))
        if who.first_sample is None:
            who.first_sample = self.step_number
        request.slot = None
        request.n_pending_samples -= len(slots)
        request.n_running += len(slots)
        if request.n_pending_samples:
            self.queue.append(who)
        for slot in slots:
            self.running[slot] = [who, who.n_tokens]
            self.count_token(slot)

    def count_token(self, slot):
        """Take a token off what is left, and free the slot with the last."""
        self.running[slot][1] -= 1
        if not self.running[slot][1]:
            who, _ = self.running.pop(slot)
            who.request.n_running -= 1
            self.finished[id(who)] += 1


arrivals = st.lists(
    st.tuples(
        st.integers(0, 8), st.integers(1, 20), st.sampled_from([1, 1, 2, 7]), st.integers(1, 6)
    ),
    max_size=14,
)


def simulate(arrivals, n_slots, n_batch):
    """Let requests arrive after so many steps each, and go on to the end."""
    simulation, served = Simulation(n_slots, n_batch), []
    for gap, *request in arrivals:
        for _ in range(gap):
            simulation.step()
        served.append(simulation.arrive(*request))
    while simulation.queue or simulation.running:
        simulation.step()
        assert simulation.step_number < 10_000
    return simulation, served


@given(arrivals, st.integers(1, 5), st.integers(1, 8))
def test_every_request_is_served_whole_and_none_starves(arrivals, n_slots, n_batch):
    """All samples end. While a request waits for a slot no other gets two, and its first sample is there in time."""
    simulation, served = simulate(arrivals, n_slots, n_batch)
    assert simulation.finished == {
        id(who): n_samples for who, (*_, n_samples, _) in zip(served, arrivals, strict=True)
    }
    n_slices = sum(-(-who.n_prompt_tokens // simulation.n_batch) for who in served)
    longest = max((who.n_tokens for who in served), default=0)
    many = sum(n_samples > 1 for *_, n_samples, _ in arrivals) > max_retained_prompts(n_slots)
    for who, (*_, n_samples, _) in zip(served, arrivals, strict=True):
        if many and n_samples > 1:
            continue  # no memory may be left for its prompt
        since = Counter(
            other for step, other in simulation.gifts if who.arrived < step < who.first_slot
        )
        assert all(n == 1 for n in since.values())
        # In so many steps every slot is free once, and there is a slot for each request ahead.
        turnover = longest + n_slices
        assert who.first_sample - who.arrived <= (len(since) // n_slots + 1) * turnover + n_slices


@given(arrivals, st.integers(1, 5), st.integers(1, 8))
def test_the_same_arrivals_are_served_in_the_same_order(arrivals, n_slots, n_batch):
    """Nothing but the state decides: twice the same, twice the same slots."""

    def order():
        simulation, served = simulate(arrivals, n_slots, n_batch)
        return [
            next(n for n, who in enumerate(served) if who is gift) for _, gift in simulation.gifts
        ]

    assert order() == order()


@pytest.mark.parametrize(
    ("n_slots", "names", "n_samples", "expected"),
    [
        (1, "ab", 3, "ababab"),
        (3, "abc", 3, "abcabcabc"),
        (4, "abc", 4, "abcaaabcbbcc"),
        (1, "abc", 3, "ababacbcc"),
    ],
)
def test_requests_take_turns(n_slots, names, n_samples, expected):
    """Slots go round, one that is left over in the next round; on one slot, two requests of several samples do."""
    simulation = Simulation(n_slots, 9)
    who = {id(simulation.arrive(1, n_samples, 2)): name for name in names}
    while simulation.queue or simulation.running:
        simulation.step()
    assert "".join(who[id(gift)] for _, gift in simulation.gifts) == expected


def test_a_free_slot_goes_to_who_has_the_fewest():
    """One request has three samples running, one has one: it gets two, and of equals the one whose turn is older."""
    waiting = [Request(n_pending_samples=9, n_running=3), Request(n_pending_samples=9, n_running=1)]
    state = EngineState(
        8,
        99,
        4,
        2,
        4,
        can_tokenize=True,
        running=dict.fromkeys(range(4)),
        n_preempted=0,
        waiting=waiting,
    )
    assert next_action(evolve(state, n_slots=6)) == Start(1, (4, 5))
    assert next_action(evolve(state, n_slots=7)) == Start(1, (4, 5))
    assert next_action(evolve(state, n_slots=8)) == Start(1, (4, 5, 7))


def test_a_gap_is_closed_by_the_last_sequence_unless_a_request_is_about_to_fill_it():
    """Slots {0, 2, 3} become {0, 1, 2} when nobody waits, and stay while somebody's prompt is computed for the gap."""
    state = EngineState(
        8,
        99,
        4,
        2,
        4,
        can_tokenize=True,
        running=dict.fromkeys((0, 2, 3)),
        n_preempted=0,
        waiting=[],
    )
    assert next_action(state) == CompactSlot(3, 1)
    assert next_action(evolve(state, running=dict.fromkeys(range(3)))) == Decode((0, 1, 2))
    assert next_action(evolve(state, budget=0, waiting=[Request(5, 0, slot=1)])) == Decode(
        (0, 2, 3)
    )


def slices_of(*requests, budget=64):
    """Return what is computed together of requests, by place, start and stop."""
    state = EngineState(
        8, 200, 64, 8, budget, can_tokenize=False, running={}, n_preempted=0, waiting=requests
    )
    action = next_action(state)
    return (
        [(each.queue_index, each.start, each.stop) for each in action.chunks]
        if isinstance(action, Prefill)
        else []
    )


def test_short_slices_are_computed_together():
    """The first in turn goes on, and with it whoever's slice is about as long, as many as a step has room for."""
    short = [Request(n, 0, slot) for slot, n in enumerate((9, 12, 16, 1, 10))]
    assert slices_of(*short) == [(0, 0, 9), (1, 0, 12), (2, 0, 16), (3, 0, 1)]
    assert slices_of(*short, budget=40) == [(0, 0, 9), (1, 0, 12)]
    assert slices_of(*short, budget=15) == []
    much_longer = Request(25, 0, 5)
    assert slices_of(short[3], much_longer, short[0]) == [(0, 0, 1), (2, 0, 9)]
    assert slices_of(much_longer, short[3], short[0]) == [(0, 0, 25), (2, 0, 9)]
    assert slices_of(Request(70, 64, 5), short[0]) == [(0, 64, 70), (1, 0, 9)]


def test_a_prompt_whose_every_logit_is_wanted_is_computed_alone():
    """So is one that does not fit into its slot with the padding of its neighbours."""
    lone = Request(9, 0, 0, can_batch_prefill=False)
    assert slices_of(lone, Request(9, 0, 1)) == [(0, 0, 9)]
    assert slices_of(Request(9, 0, 1), lone, Request(9, 0, 2)) == [(0, 0, 9), (2, 0, 9)]
    assert slices_of(Request(199, 192, 0), Request(9, 0, 1)) == [(0, 192, 199)]


def test_a_model_that_cannot_forget_padding_computes_slices_one_by_one():
    """Where slices are not padded_length, each is computed alone."""
    waiting = [Request(4, 0, slot) for slot in range(3)]
    state = EngineState(
        8, 99, 64, 1, 64, can_tokenize=True, running={}, n_preempted=0, waiting=waiting
    )
    assert next_action(state) == Prefill((PrefillChunk(0, 0, 0, 4),))
