"""Decide the engine's next action.

The decision is a pure function of a small state of counts and slots, without model and texts. One
step of the engine consists of the actions that `next_action` returns, up to a `Decode` or ``None``:
assign free slots, compute at most `n_batch` tokens of prompts, start samples, and compute one token
for each running sample.

A free slot is assigned by priority first: an anonymous client gets the slot only if no other client
can use it. Among clients of the same priority, the slot goes to the client with the fewest slots;
among the requests of this client, to the request with the fewest slots; and among requests with
equally many slots, to the request whose last slot was assigned the longest time ago. So while a
request waits for its first slot, each other request of its client gets at most one slot. If no slot
is free, an anonymous client has a slot, and a request of another client can use a slot, the
scheduler preempts one sample or prompt of an anonymous client. A preempted sample resumes from its
saved state when a slot becomes free.

The prompt of a request is computed in its first slot, and the request gets no second slot before
the prompt is computed. Prompts are computed sequentially in chunks; a long prompt delays the
running samples by one chunk per step. Short chunks of several prompts are computed as one batch if
this takes less time; the batch always contains the next chunk of the first prompt that has a slot,
in the order of priority and queue. Apart from samples whose prompt is being computed, a slot stays
free while samples wait only in the case that `max_retained_prompts` describes.

Chunks of a prompt always end at multiples of `n_batch` or at the end of the prompt, regardless of
other requests: the computation of a request, and therefore its result, does not depend on which
other requests are batched with it. (A batch has the same bits as its chunks computed alone: see
`LanguageModel.prefill`.)
"""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from relevance_gen.generation.engine.active_request import ActiveRequest
from relevance_gen.generation.queue.request import ANONYMOUS, priority_of

_MAX_PADDING_TOKENS = 16
"""Rows of padding allowed to compute a chunk together with a longer chunk. Computing these rows
takes about as long as the fixed cost of a separate computation, which reads all weights."""


@frozen
class EngineState:
    """Everything that the next action depends on.

    Args:
        n_slots: samples that the context can hold.
        n_ctx: tokens that a slot holds.
        n_batch: maximum prompt tokens of one chunk.
        prefill_multiple: chunks are padded to a multiple of this number of tokens; if it is 1, each
            is computed alone.
        budget: prompt tokens, including padding, that may still be computed in this step.
        can_tokenize: whether another prompt may be tokenized in this step.
        running: clients of the running samples, by slot.
        n_preempted: preempted samples, all of anonymous clients.
        waiting: requests with samples to start; the request that got a slot most recently is last.
    """

    n_slots: int
    n_ctx: int
    n_batch: int
    prefill_multiple: int
    budget: int
    can_tokenize: bool
    running: Mapping[int, str | None]
    n_preempted: int
    waiting: Sequence[ActiveRequest]


@frozen
class AssignSlot:
    """Assign the free slot `slot` to the request at `queue_index` in `EngineState.waiting`."""

    queue_index: int
    slot: int


@frozen
class Preempt:
    """Preempt the anonymous client's sample or prompt in `slot`."""

    slot: int


@frozen
class Resume:
    """Resume, in the free slot `slot`, the sample that was preempted first."""

    slot: int


@frozen
class Tokenize:
    """Tokenize the prompt of a waiting request, which is then computed in `slot`.

    `queue_index` is the index of the request in `EngineState.waiting`.
    """

    queue_index: int
    slot: int


@frozen
class PrefillChunk:
    """The tokens from `start` up to, but excluding, `stop` of one prompt, to be computed in `slot`.

    `queue_index` is the index of the prompt's request in `EngineState.waiting`.
    """

    queue_index: int
    slot: int
    start: int
    stop: int


@frozen
class Prefill:
    """Compute the chunks of several prompts as one batch."""

    chunks: tuple[PrefillChunk, ...]


@frozen
class Start:
    """Start a sample of a waiting request in each of `slots`.

    `queue_index` is the index of the request in `EngineState.waiting`. The request then moves to
    the end of the queue.
    """

    queue_index: int
    slots: tuple[int, ...]


@frozen
class CompactSlot:
    """Move the sample in slot `source` to the free slot `target`."""

    source: int
    target: int


@frozen
class Decode:
    """Compute one token for the samples in `slots`, ascending."""

    slots: tuple[int, ...]


Action: TypeAlias = (
    AssignSlot | Preempt | Resume | Tokenize | Prefill | Start | CompactSlot | Decode
)


def next_action(state: EngineState) -> Action | None:
    """Return the next action of this step; a `Decode` or ``None`` ends the step."""
    action = _assign_slots(state) or _compute_prompts(state)
    if action is not None:
        return action
    if not state.running:
        return None
    if not state.waiting:
        # Decoding is fastest without gaps between slots, and no waiting request will fill the gap.
        last = max(state.running)
        gap = next(slot for slot in range(last + 2) if slot not in state.running)
        if gap < last:
            return CompactSlot(last, gap)
    return Decode(tuple(sorted(state.running)))


def max_retained_prompts(n_slots: int) -> int:
    """Return how many requests of the same priority may keep a computed prompt at the same time.

    A prompt is kept if the request has samples that have not started. When this number is reached,
    a further request for several samples gets no slot. Exception: a client none of whose requests
    keeps a prompt always gets one, so that a client does not block other clients. Except for these
    prompts, one for each client, the kept prompts use at most the memory of all slots. The number
    is at least 2, so that requests take turns even if there is only one slot.
    """
    return max(2, n_slots)


def retains_prompt(request: ActiveRequest) -> bool:
    """Return whether the computed prompt of a request is kept, or will be, for further samples.

    These start from the computed prompt, in other slots than the first sample.
    """
    return _is_computed(request) if request.slot is None else request.n_pending_samples > 1


def _is_computed(request: ActiveRequest) -> bool:
    return 0 < request.n_prompt_tokens == request.n_computed


def _assign_slots(state: EngineState) -> AssignSlot | Start | Preempt | Resume | None:
    """Return the action that gives a free slot to a request or a preempted sample.

    Samples whose prompt is computed start first. If an authenticated request waits and no slot is
    free, the action preempts a slot of an anonymous client. ``None`` if nothing can be assigned.
    """
    clients_by_slot = dict(state.running)
    for request in state.waiting:
        if request.slot is not None:
            clients_by_slot[request.slot] = request.client
    free_slots = [slot for slot in range(state.n_slots) if slot not in clients_by_slot]
    n_usable = _count_usable_slots(state)
    n_held = Counter(clients_by_slot.values())
    assignments = _distribute_slots(state, free_slots, n_usable, n_held)
    for queue_index, request in enumerate(state.waiting):
        if request.slot is not None and _is_computed(request):
            return Start(queue_index, (request.slot, *_first_slots(assignments, queue_index)))
    if assignments:
        slot, queue_index = next(iter(assignments.items()))
        if _is_computed(state.waiting[queue_index]):
            return Start(queue_index, _first_slots(assignments, queue_index))
        return AssignSlot(queue_index, slot)
    if free_slots:
        return Resume(free_slots[0]) if state.n_preempted else None
    return _preempt_if_needed(state, clients_by_slot, n_usable)


def _first_slots(assignments: Mapping[int, int], queue_index: int) -> tuple[int, ...]:
    """Return the slots at the beginning of `assignments` that the request at `queue_index` gets.

    The result ends before the first slot of another request. The slots from there on are
    distributed again by the next action, because a request whose samples have started moves to the
    end of the queue.

    Args:
        assignments: queue index of the request by slot, in order of distribution.
        queue_index: index of the request among the waiting requests.
    """
    return tuple(itertools.takewhile(lambda slot: assignments[slot] == queue_index, assignments))


def _preempt_if_needed(
    state: EngineState, clients_by_slot: Mapping[int, str | None], n_usable: Sequence[int]
) -> Preempt | None:
    """Return the preemption of an anonymous client's slot if an authenticated request can use it.

    Otherwise return None. Called only if no slot is free.
    """
    anonymous_slots = [slot for slot, client in clients_by_slot.items() if client == ANONYMOUS]
    is_needed = any(
        n_slots and request.client != ANONYMOUS
        for n_slots, request in zip(n_usable, state.waiting, strict=True)
    )
    return Preempt(max(anonymous_slots)) if anonymous_slots and is_needed else None


def _distribute_slots(
    state: EngineState,
    free_slots: Sequence[int],
    n_usable: Sequence[int],
    n_held: Mapping[str | None, int],
) -> dict[int, int]:
    """Return the queue index of the request that gets each free slot, in order of distribution.

    Anonymous requests get no slot before all preempted samples have one again.

    Args:
        state: the state of the engine.
        free_slots: slots to distribute, ascending.
        n_usable: for each waiting request, the slots that it can use.
        n_held: for each client, the slots that it holds.
    """
    # A heap of each client's requests: slots of the request, its turn, its queue index.
    requests_by_client: dict[str | None, list[tuple[int, int, int]]] = {}
    for queue_index, request in enumerate(state.waiting):
        is_blocked = state.n_preempted > 0 and request.client == ANONYMOUS
        if n_usable[queue_index] and not is_blocked:
            n_slots = request.n_running + (request.slot is not None)
            entry = n_slots, queue_index, queue_index
            requests_by_client.setdefault(request.client, []).append(entry)
    # A heap of clients: priority, slots of the client, order of its first request, its heap of
    # requests.
    clients = []
    for order, (client, requests) in enumerate(requests_by_client.items()):
        heapq.heapify(requests)
        clients.append((priority_of(client), n_held.get(client, 0), order, requests))
    heapq.heapify(clients)
    assignments: dict[int, int] = {}
    n_left = list(n_usable)
    for slot in free_slots:
        if not clients:
            break
        priority, n_of_client, order, requests = heapq.heappop(clients)
        n_of_request, turn, queue_index = heapq.heappop(requests)
        assignments[slot] = queue_index
        n_left[queue_index] -= 1
        if n_left[queue_index]:
            next_turn = turn + len(state.waiting)
            heapq.heappush(requests, (n_of_request + 1, next_turn, queue_index))
        if requests:
            heapq.heappush(clients, (priority, n_of_client + 1, order, requests))
    return assignments


def _count_usable_slots(state: EngineState) -> list[int]:
    """Return for each waiting request how many further slots it can use now."""
    retaining = [request for request in state.waiting if retains_prompt(request)]
    n_retained = Counter(request.priority for request in retaining)
    retaining_clients = {request.client for request in retaining}
    max_retained = max_retained_prompts(state.n_slots)
    n_usable = []
    for request in state.waiting:
        if _is_computed(request):
            n_usable.append(request.n_pending_samples - (request.slot is not None))
        elif request.slot is not None:
            n_usable.append(0)
        elif request.n_pending_samples == 1:
            n_usable.append(1)
        else:
            is_first_of_client = request.client not in retaining_clients
            may_retain = is_first_of_client or n_retained[request.priority] < max_retained
            n_usable.append(int(may_retain))
            n_retained[request.priority] += 1
            retaining_clients.add(request.client)
    return n_usable


def _compute_prompts(state: EngineState) -> Tokenize | Prefill | None:
    """Return the next action for the prompts that have a slot and are not yet computed.

    The action tokenizes a prompt, or computes the next chunk of the first such prompt as a batch
    with chunks of other prompts of about the same length. Prompts of authenticated clients come
    first. The result is None if there is no such prompt, or if this step may not tokenize another
    prompt or has too small a budget for the first chunk.
    """
    by_priority = sorted(enumerate(state.waiting), key=lambda indexed: indexed[1].priority)
    chunks: list[PrefillChunk] = []
    for queue_index, request in by_priority:
        if request.slot is None or _is_computed(request):
            continue
        if not request.n_prompt_tokens:
            if state.can_tokenize:
                return Tokenize(queue_index, request.slot)
            break
        start = request.n_computed
        stop = (start // state.n_batch + 1) * state.n_batch
        stop = min(stop, request.n_prompt_tokens)
        extended = [*chunks, PrefillChunk(queue_index, request.slot, start, stop)]
        if _can_compute(extended, state):
            chunks = extended
        if not chunks:
            break
    return Prefill(tuple(chunks)) if chunks else None


def padded_length(chunks: Sequence[PrefillChunk], multiple: int) -> int:
    """Return the length to which each of `chunks` is padded in a batch."""
    longest = max(chunk.stop - chunk.start for chunk in chunks)
    return longest + -longest % multiple


def _can_compute(chunks: Sequence[PrefillChunk], state: EngineState) -> bool:
    """Return whether chunks can be computed as a batch: within budget, with little padding."""
    length = padded_length(chunks, state.prefill_multiple)
    if length * len(chunks) > state.budget:
        return False
    if len(chunks) == 1:
        return True
    if state.prefill_multiple == 1:
        return False
    return all(
        state.waiting[chunk.queue_index].can_batch_prefill
        and chunk.start + length <= state.n_ctx
        and padded_length([chunk], state.prefill_multiple) + _MAX_PADDING_TOKENS >= length
        for chunk in chunks
    )
