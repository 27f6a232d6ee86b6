"""Decide what the engine does next: a pure function of a small state. It knows counts and slots, no model and no text.

One step of the engine is the actions that `next_action` returns, up to a `Decode` or `None`: free slots are given away,
at most `n_batch` tokens of prompts are computed, samples start, and every running sequence gets one token.

A free slot goes by client first: to strangers only if nobody else can use it; then to the client that has the fewest;
then to that client's request that has the fewest, and among equals to the one whose last turn is longest ago. So while
a request waits for its first slot, each other one of its client gets one at most. Where strangers have all slots, one
of their samples gives way to whoever is no stranger, and goes on from where it was when a slot is free again.

In its first slot a prompt is computed, and its request gets no second before that is done. Prompts are computed one
after another, slice by slice; a long one delays the running sequences by one slice a step. Short slices of several
prompts are computed together, where that takes less time: the first in turn is always among them. No slot stays free
while samples wait, but for one bound: see `max_retained_prompts`.

Slices of a prompt always end at multiples of `n_batch`, whatever else is going on: what is computed for a request, and
so its result, does not depend on its neighbours. (What is computed together has the same bits as alone: see
`LanguageModel.prefill`.)
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from attrs import frozen

from relevance_gen.generation.engine.active_request import ActiveRequest
from relevance_gen.generation.queue.request import ANONYMOUS

_MOST_PADDING = 16
"""Rows by which a slice may be padded to be computed along with a longer one: about what a computation costs beyond its
rows, for which the weights have to be read."""


@frozen
class EngineState:
    """All that the next action depends on.

    Args:
        n_slots: sequences that the context can hold.
        n_ctx: tokens that a slot holds.
        n_batch: most prompt tokens of one slice.
        slice_multiple: slices are padded to a multiple of so many tokens; where it is 1 each is computed alone.
        budget: prompt tokens, padding included, that may still be computed in this step.
        may_read: whether a further prompt may be read in this step.
        running: slots of the running sequences, and whose these are.
        n_paused: strangers' samples that gave way.
        waiting: the requests with samples to start, in turn: the one that got a slot last is at the end.
    """

    n_slots: int
    n_ctx: int
    n_batch: int
    prefill_multiple: int
    budget: int
    can_tokenize: bool
    running: Mapping[int, str | None]
    n_paused: int
    waiting: Sequence[ActiveRequest]


@frozen
class AssignSlot:
    """Give the request at `place` among those that wait the free slot `slot`, for its prompt."""

    place: int
    slot: int


@frozen
class Preempt:
    """Take what a stranger has in `slot` out of it, for somebody else."""

    slot: int


@frozen
class Resume:
    """Let the sample that gave way first go on in the free slot `slot`."""

    slot: int


@frozen
class Tokenize:
    """Tokenize the prompt of the request at `place`, which shall be computed in `slot`."""

    place: int
    slot: int


@frozen
class PrefillChunk:
    """A part, in `slot`, of the prompt of the request at `place`: from token `start` up to, not including, `stop`."""

    place: int
    slot: int
    start: int
    stop: int


@frozen
class Prefill:
    """Compute these slices together."""

    slices: tuple[PrefillChunk, ...]


@frozen
class Start:
    """Start the next samples of the request at `place`, one in each of `slots`; then it is the last in turn."""

    place: int
    slots: tuple[int, ...]


@frozen
class CompactSlot:
    """Carry the sequence in slot `source` over to the free slot `target`."""

    source: int
    target: int


@frozen
class Decode:
    """Compute one token for the sequences in `slots`, ascending."""

    slots: tuple[int, ...]


Action: TypeAlias = (
    AssignSlot | Preempt | Resume | Tokenize | Prefill | Start | CompactSlot | Decode
)


def next_action(state: EngineState) -> Action | None:
    """Return what to do next in this step, which a `Decode` or ``None`` ends."""
    if action := _give_slots(state) or _compute_prompts(state):
        return action
    if not state.running:
        return None
    if (
        not state.waiting
    ):  # move the last into the lowest gap: decoding is fastest without, and nobody else fills it
        last = max(state.running)
        gap = next(slot for slot in range(last + 2) if slot not in state.running)
        if gap < last:
            return CompactSlot(last, gap)
    return Decode(tuple(sorted(state.running)))


def max_retained_prompts(n_slots: int) -> int:
    """Return how many requests of strangers, or of others, may hold their prompts for samples that have not started.

    One more of several samples waits, unless it is the only one of its client: so nobody's requests keep another client
    waiting. But for one of each client, what they hold takes at most as much memory as the slots themselves, or two
    slots, so that requests take turns on one slot too.
    """
    return max(2, n_slots)


def retains_prompt(request: ActiveRequest) -> bool:
    """Tell whether a request's computed prompt is kept, or will be: for more samples than the one in its slot."""
    return _is_computed(request) if request.slot is None else request.n_pending_samples > 1


def _is_computed(request: ActiveRequest) -> bool:
    return 0 < request.n_prompt == request.n_done


def _give_slots(state: EngineState) -> AssignSlot | Start | Preempt | Resume | None:
    """Give the free slots away; return what that means for the first to get one, or to give one up."""
    held = {
        **state.running,
        **{one.slot: one.client for one in state.waiting if one.slot is not None},
    }
    free = [slot for slot in range(state.n_slots) if slot not in held]
    n_wanted = _wanted(state)
    gifts = _deal(state, free, n_wanted, Counter(held.values()))
    for place, request in enumerate(state.waiting):
        if request.slot is not None and _is_computed(request):
            return Start(place, (request.slot, *gifts.get(place, ())))
    for place, slots in gifts.items():
        return (
            Start(place, tuple(slots))
            if _is_computed(state.waiting[place])
            else AssignSlot(place, slots[0])
        )
    if free:
        return Resume(free[0]) if state.n_paused else None
    of_strangers = [slot for slot, client in held.items() if client == ANONYMOUS]
    is_wanted = any(
        n and one.client != ANONYMOUS for n, one in zip(n_wanted, state.waiting, strict=True)
    )
    return Preempt(max(of_strangers)) if of_strangers and is_wanted else None


def _deal(
    state: EngineState, free: Sequence[int], n_wanted: list[int], n_held: Mapping[str | None, int]
) -> dict[int, list[int]]:
    """Deal the free slots out one by one; return those of each place, places in the order of their first ones.

    Strangers get none before those of them who gave way have theirs again.
    """
    turns: dict[str | None, list[tuple[int, int, int]]] = {}
    for place, request in enumerate(state.waiting):
        if n_wanted[place] and not (state.n_paused and request.client == ANONYMOUS):
            n_has = request.n_running + (request.slot is not None)
            turns.setdefault(request.client, []).append((n_has, place, place))
    clients = [
        (client == ANONYMOUS, n_held.get(client, 0), order, own)
        for order, (client, own) in enumerate(turns.items())
    ]
    heapq.heapify(clients)
    for own in turns.values():
        heapq.heapify(own)
    gifts: dict[int, list[int]] = {}
    left = list(n_wanted)
    for slot in free:
        if not clients:
            break
        is_anonymous, n_of_client, order, own = heapq.heappop(clients)
        n_has, turn, place = heapq.heappop(own)
        gifts.setdefault(place, []).append(slot)
        left[place] -= 1
        if left[place]:
            heapq.heappush(own, (n_has + 1, turn + len(state.waiting), place))
        if own:
            heapq.heappush(clients, (is_anonymous, n_of_client + 1, order, own))
    return gifts


def _wanted(state: EngineState) -> list[int]:
    """Return how many slots each request can use now."""
    n_holding = Counter(
        request.client == ANONYMOUS for request in state.waiting if retains_prompt(request)
    )
    holders = {request.client for request in state.waiting if retains_prompt(request)}
    n_wanted = []
    for request in state.waiting:
        if _is_computed(request):
            n_wanted.append(request.n_pending_samples - (request.slot is not None))
        elif request.slot is not None:
            n_wanted.append(0)
        elif request.n_pending_samples == 1:
            n_wanted.append(1)
        else:
            is_first = request.client not in holders
            n_wanted.append(
                int(
                    is_first
                    or n_holding[request.client == ANONYMOUS] < max_retained_prompts(state.n_slots)
                )
            )
            n_holding[request.client == ANONYMOUS] += 1
            holders.add(request.client)
    return n_wanted


def _compute_prompts(state: EngineState) -> Tokenize | Prefill | None:
    """Tokenize the prompts with slots; then compute slices: of the first, and of others that are about as long."""
    slices: list[PrefillChunk] = []
    for place, request in sorted(
        enumerate(state.waiting), key=lambda one: one[1].client == ANONYMOUS
    ):
        if request.slot is None or _is_computed(request):
            continue
        if not request.n_prompt:
            if state.can_tokenize:
                return Tokenize(place, request.slot)
            break
        stop = min(request.n_prompt, (request.n_done // state.n_batch + 1) * state.n_batch)
        joined = [*slices, PrefillChunk(place, request.slot, request.n_done, stop)]
        if _may_compute(joined, state):
            slices = joined
        if not slices:
            break
    return Prefill(tuple(slices)) if slices else None


def padded(slices: Sequence[PrefillChunk], multiple: int) -> int:
    """Return how long each of some slices is while they are computed together."""
    longest = max(each.stop - each.start for each in slices)
    return longest + -longest % multiple


def _may_compute(slices: Sequence[PrefillChunk], state: EngineState) -> bool:
    """Tell whether slices may be computed together, or one alone, within the budget and with little padding."""
    length = padded(slices, state.prefill_multiple)
    if length * len(slices) > state.budget:
        return False
    return len(slices) == 1 or all(
        state.prefill_multiple > 1
        and state.waiting[each.place].can_batch_prefill
        and each.start + length <= state.n_ctx
        and padded([each], state.prefill_multiple) + _MOST_PADDING >= length
        for each in slices
    )
