"""Properties of the scheduler, on arbitrary states and in complete simulated runs."""

from collections import Counter

import pytest
from attrs import define, evolve
from hypothesis import example, given
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
from relevance_gen.generation.queue.request import ANONYMOUS, priority_of


@define
class Request:
    """The attributes of an `ActiveRequest` that the scheduler uses."""

    n_prompt_tokens: int = 1
    n_computed: int = 1
    slot: int | None = None
    n_pending_samples: int = 1
    n_running: int = 0
    can_batch_prefill: bool = True
    client: str | None = None

    @property
    def priority(self):
        """The priority of the client."""
        return priority_of(self.client)

    @property
    def computed(self):
        """Whether the prompt is fully computed."""
        return 0 < self.n_prompt_tokens == self.n_computed


clients = st.sampled_from([None, ANONYMOUS, ANONYMOUS, "a", "b"])


def is_anonymous(request):
    """Return whether the request is from the anonymous client."""
    return request.client == ANONYMOUS


def n_retaining(waiting, like):
    """Count the requests of the same priority as `like` that retain their prompts."""
    return sum(
        retains_prompt(request)
        for request in waiting
        if is_anonymous(request) == is_anonymous(like)
    )


def may_retain(waiting, request, n_slots):
    """Return whether a request may retain its prompt in addition to the waiting requests."""
    is_first = not any(retains_prompt(other) for other in waiting if other.client == request.client)
    return is_first or n_retaining(waiting, request) < max_retained_prompts(n_slots)


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
        kind = draw(st.sampled_from(["new", "started", "has slot", "tokenized"]))
        if kind == "started" and may_retain(waiting, request, n_slots):
            request = evolve(
                request, n_prompt_tokens=3, n_computed=3, n_running=draw(st.integers(0, 3))
            )
        elif kind in ("has slot", "tokenized") and free:
            request.slot = free.pop()
            if retains_prompt(request) and not may_retain(waiting, request, n_slots):
                request.n_pending_samples = 1
            if kind == "tokenized":
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
def test_next_action_uses_only_allowed_slots(state):  # noqa: C901 - a case for each action
    """Free slots are free, decoded slots run and ascend, chunks fit the budget and end at a multiple of n_batch.

    Chunks of several prompts belong to requests that can be batched, and fit into the context with
    their padding.
    """
    free = free_slots(state)
    match next_action(state):
        case AssignSlot(queue_index, slot):
            assert slot in free
            assert state.waiting[queue_index].slot is None
            assert not state.waiting[queue_index].computed
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
        case Tokenize(queue_index, slot):
            assert state.can_tokenize
            assert slot == state.waiting[queue_index].slot is not None
            assert not state.waiting[queue_index].n_prompt_tokens
        case Prefill(chunks):
            length = padded_length(chunks, state.prefill_multiple)
            assert length * len(chunks) <= state.budget
            in_turn = sorted(
                (is_anonymous(state.waiting[chunk.queue_index]), chunk.queue_index)
                for chunk in chunks
            )
            assert [chunk.queue_index for chunk in chunks] == [
                queue_index for _, queue_index in in_turn
            ]
            for chunk in chunks:
                request = state.waiting[chunk.queue_index]
                assert chunk.slot == request.slot is not None
                assert chunk.start == request.n_computed < chunk.stop <= request.n_prompt_tokens
                assert chunk.stop == request.n_prompt_tokens or chunk.stop % state.n_batch == 0
                assert len(chunks) == 1 or (
                    request.can_batch_prefill and chunk.start + length <= state.n_ctx
                )
            assert len(chunks) == 1 or state.prefill_multiple > 1
        case Start(queue_index, slots):
            request = state.waiting[queue_index]
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
def test_step_gives_every_running_sample_a_token(state):
    """If there is nothing to do for waiting requests, the running samples are decoded before the step ends."""
    action = next_action(state)
    while isinstance(action, CompactSlot):
        state = evolve(
            state, running=dict.fromkeys({*state.running} - {action.source} | {action.target})
        )
        action = next_action(state)
    assert action is not None or not state.running


@given(states())
def test_slots_are_filled_while_samples_wait(state):
    """A step with budget ends with a free slot only if the waiting requests have all slots that they can use.

    Those are requests for one sample or with an incomplete prompt that have a slot, and requests
    whose prompts exceed the limit of retained prompts.
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
                may_retain(state.waiting, request, state.n_slots) for request in state.waiting
            )


@given(states())
def test_retained_prompts_are_limited(state):
    """A request that will retain its prompt gets a slot only below the limit, or as the only such request of its client."""
    action = next_action(state)
    if isinstance(action, AssignSlot) and state.waiting[action.queue_index].n_pending_samples > 1:
        assert may_retain(state.waiting, state.waiting[action.queue_index], state.n_slots)


def test_authenticated_request_preempts_anonymous_slot():
    """If anonymous clients hold all slots, a sample is preempted for an authenticated request and resumes later."""
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
@example([("a", 0, 2), ("b", 0, 4), ("a", 0, 4)], 5)
def test_free_slots_are_distributed_by_client(requests, n_slots):
    """Anonymous requests come last. Clients that can use more slots differ by at most one slot, as do a client's requests."""
    waiting = [
        Request(1, 1, None, n_pending_samples, client=client)
        for client, _, n_pending_samples in requests
    ]
    simulated, n_free = EngineState(n_slots, 99, 4, 2, 4, True, {}, 0, waiting), n_slots
    while n_free:
        action = next_action(simulated)
        if not isinstance(action, Start):
            break
        request = simulated.waiting[action.queue_index]
        for slot in action.slots:
            simulated.running[slot] = request.client
        request.n_pending_samples -= len(action.slots)
        request.n_running += len(action.slots)
        n_free -= len(action.slots)
        simulated = evolve(
            simulated,
            waiting=[request for request in simulated.waiting if request.n_pending_samples],
        )
    held = Counter(request.client for request in waiting for _ in range(request.n_running))
    for request in waiting:
        for other in waiting:
            if not other.n_pending_samples or not request.n_running:
                continue
            assert not is_anonymous(request) or is_anonymous(other)
            if not is_anonymous(request) and not is_anonymous(other):
                assert held[request.client] <= held[other.client] + 1
            if request.client == other.client:
                assert request.n_running <= other.n_running + 1


@define(eq=False)
class Served:
    """A request in a simulation; times are numbers of steps."""

    request: Request
    n_prompt_tokens: int
    n_tokens: int
    arrived: int
    first_slot: int | None = None
    first_sample: int | None = None


class Simulation:
    """An engine that carries out actions on counts alone."""

    def __init__(self, n_slots, n_batch):
        self.n_slots, self.n_batch = n_slots, 2 * n_batch
        self.step_number = 0
        self.queue, self.running = [], {}  # slot -> [served request, remaining tokens]
        self.assignments = []  # (step, request that got a slot)
        self.finished = Counter()

    def arrive(self, n_prompt, n_samples, n_tokens):
        """Queue a request."""
        request = Request(0, 0, None, n_samples)
        self.queue.append(Served(request, n_prompt, n_tokens, self.step_number))
        return self.queue[-1]

    def state(self, budget, waiting):
        """Return the state for the scheduler."""
        counts = self.n_slots, 100, self.n_batch, 2, budget
        return EngineState(
            *counts,
            can_tokenize=True,
            running=dict.fromkeys(self.running),
            n_preempted=0,
            waiting=waiting,
        )

    def note_slots(self, served, n_slots):
        """Record that a request gets slots."""
        if served.first_slot is None:
            served.first_slot = self.step_number
        self.assignments += [(self.step_number, served)] * n_slots

    def step(self):
        """Run one step like the engine."""
        self.step_number += 1
        budget = self.n_batch
        while True:
            waiting = [served.request for served in self.queue]
            assert sum(map(retains_prompt, waiting)) <= max_retained_prompts(self.n_slots)
            match next_action(self.state(budget, waiting)):
                case AssignSlot(queue_index, slot):
                    self.queue[queue_index].request.slot = slot
                    self.note_slots(self.queue[queue_index], 1)
                case Tokenize(queue_index):
                    self.queue[queue_index].request.n_prompt_tokens = self.queue[
                        queue_index
                    ].n_prompt_tokens
                case Prefill(chunks):
                    budget -= self.compute(chunks)
                case Start(queue_index, slots):
                    self.start(self.queue.pop(queue_index), slots)
                case CompactSlot(source, target):
                    self.running[target] = self.running.pop(source)
                case Decode(slots):
                    for slot in slots:
                        self.count_token(slot)
                    return
                case None:
                    return

    def compute(self, chunks):
        """Compute chunks; return the number of tokens including padding."""
        for chunk in chunks:
            self.queue[chunk.queue_index].request.n_computed = chunk.stop
        return len(chunks) * padded_length(chunks, 2)

    def start(self, served, slots):
        """Start samples; the first token of each comes from the prompt."""
        request = served.request
        self.note_slots(served, len(slots) - (request.slot is not None))
        if served.first_sample is None:
            served.first_sample = self.step_number
        request.slot = None
        request.n_pending_samples -= len(slots)
        request.n_running += len(slots)
        if request.n_pending_samples:
            self.queue.append(served)
        for slot in slots:
            self.running[slot] = [served, served.n_tokens]
            self.count_token(slot)

    def count_token(self, slot):
        """Count a token of a sample, and free the slot after its last token."""
        self.running[slot][1] -= 1
        if not self.running[slot][1]:
            served, _ = self.running.pop(slot)
            served.request.n_running -= 1
            self.finished[id(served)] += 1


arrivals = st.lists(
    st.tuples(
        st.integers(0, 8), st.integers(1, 20), st.sampled_from([1, 1, 2, 7]), st.integers(1, 6)
    ),
    max_size=14,
)


def simulate(arrivals, n_slots, n_batch):
    """Let requests arrive after the given numbers of steps, and run until all are finished."""
    simulation, all_served = Simulation(n_slots, n_batch), []
    for gap, *request in arrivals:
        for _ in range(gap):
            simulation.step()
        all_served.append(simulation.arrive(*request))
    while simulation.queue or simulation.running:
        simulation.step()
        assert simulation.step_number < 10_000
    return simulation, all_served


@given(arrivals, st.integers(1, 5), st.integers(1, 8))
def test_simulation_serves_all_requests_in_time(arrivals, n_slots, n_batch):
    """All samples finish. While a request waits for a slot no other request gets two, and its first sample starts in time."""
    simulation, all_served = simulate(arrivals, n_slots, n_batch)
    assert simulation.finished == {
        id(served): n_samples
        for served, (*_, n_samples, _) in zip(all_served, arrivals, strict=True)
    }
    n_chunks = sum(-(-served.n_prompt_tokens // simulation.n_batch) for served in all_served)
    longest = max((served.n_tokens for served in all_served), default=0)
    many = sum(n_samples > 1 for *_, n_samples, _ in arrivals) > max_retained_prompts(n_slots)
    for served, (*_, n_samples, _) in zip(all_served, arrivals, strict=True):
        if many and n_samples > 1:
            continue  # the limit of retained prompts may delay it
        n_assigned = Counter(
            other
            for step, other in simulation.assignments
            if served.arrived < step < served.first_slot
        )
        assert all(n == 1 for n in n_assigned.values())
        # After this number of steps each slot was free once, and each earlier request has a slot.
        turnover = longest + n_chunks
        assert (
            served.first_sample - served.arrived
            <= (len(n_assigned) // n_slots + 1) * turnover + n_chunks
        )


@given(arrivals, st.integers(1, 5), st.integers(1, 8))
def test_simulation_is_deterministic(arrivals, n_slots, n_batch):
    """Equal arrivals get slots in the same order."""

    def order():
        simulation, all_served = simulate(arrivals, n_slots, n_batch)
        return [
            next(n for n, served in enumerate(all_served) if served is assigned)
            for _, assigned in simulation.assignments
        ]

    assert order() == order()


@pytest.mark.parametrize(
    ("n_slots", "names", "n_samples", "expected"),
    [
        (1, "ab", 3, "ababab"),
        (3, "abc", 3, "abcabcabc"),
        (4, "abc", 4, "abcaabcabcbc"),
        (1, "abc", 3, "ababacbcc"),
    ],
)
def test_requests_take_turns(n_slots, names, n_samples, expected):
    """Requests get slots in rounds, and a remaining slot starts the next round; on one slot two multi-sample requests do so."""
    simulation = Simulation(n_slots, 9)
    names_by_id = {id(simulation.arrive(1, n_samples, 2)): name for name in names}
    while simulation.queue or simulation.running:
        simulation.step()
    assert "".join(names_by_id[id(assigned)] for _, assigned in simulation.assignments) == expected


def test_free_slot_goes_to_request_with_fewest_samples():
    """A request with one running sample gets slots before a request with three; equal requests get them in turn."""
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
    assert next_action(evolve(state, n_slots=8)) == Start(1, (4, 5))


def test_gap_is_closed_unless_a_request_will_fill_it():
    """Slots {0, 2, 3} become {0, 1, 2} if no request waits, and stay while a prompt is computed for the gap."""
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


def batched_chunks(*requests, budget=64):
    """Return the chunks that are computed together, as queue index, start and stop."""
    state = EngineState(
        8, 200, 64, 8, budget, can_tokenize=False, running={}, n_preempted=0, waiting=requests
    )
    action = next_action(state)
    return (
        [(chunk.queue_index, chunk.start, chunk.stop) for chunk in action.chunks]
        if isinstance(action, Prefill)
        else []
    )


def test_short_chunks_are_computed_together():
    """The first request continues, together with requests whose chunks have about the same length, within the budget."""
    short = [Request(n, 0, slot) for slot, n in enumerate((9, 12, 16, 1, 10))]
    assert batched_chunks(*short) == [(0, 0, 9), (1, 0, 12), (2, 0, 16), (3, 0, 1)]
    assert batched_chunks(*short, budget=40) == [(0, 0, 9), (1, 0, 12)]
    assert batched_chunks(*short, budget=15) == []
    much_longer = Request(25, 0, 5)
    assert batched_chunks(short[3], much_longer, short[0]) == [(0, 0, 1), (2, 0, 9)]
    assert batched_chunks(much_longer, short[3], short[0]) == [(0, 0, 25), (2, 0, 9)]
    assert batched_chunks(Request(70, 64, 5), short[0]) == [(0, 64, 70), (1, 0, 9)]


def test_prompt_with_all_logits_is_computed_alone():
    """The same holds for a chunk that does not fit into its slot with the padding of the batch."""
    lone = Request(9, 0, 0, can_batch_prefill=False)
    assert batched_chunks(lone, Request(9, 0, 1)) == [(0, 0, 9)]
    assert batched_chunks(Request(9, 0, 1), lone, Request(9, 0, 2)) == [(0, 0, 9), (2, 0, 9)]
    assert batched_chunks(Request(199, 192, 0), Request(9, 0, 1)) == [(0, 192, 199)]


def test_without_padding_chunks_are_computed_alone():
    """If chunks are not padded, each is computed separately."""
    waiting = [Request(4, 0, slot) for slot in range(3)]
    state = EngineState(
        8, 99, 64, 1, 64, can_tokenize=True, running={}, n_preempted=0, waiting=waiting
    )
    assert next_action(state) == Prefill((PrefillChunk(0, 0, 0, 4),))
