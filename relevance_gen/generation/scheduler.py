"""Decide what the engine does next: a pure function of a small state. It knows counts and slots, no model and no text.

One step of the engine is the actions that `next_action` returns, up to a `Decode` or `None`: free slots are given away,
at most `n_batch` tokens of prompts are computed, samples start, and every running sequence gets one token.

A free slot goes to the request that has the fewest, and among equals to the one whose last turn is longest ago. So
while a request waits for its first slot, each of the others gets one at most. In its first slot its prompt is computed,
and it gets no second before that is done. Prompts are computed one after another, slice by slice; a long one delays
the running sequences by one slice a step. Short slices of several prompts are computed together, where that takes
less time: the first in turn is always among them. No slot stays free while samples wait, but for one bound: see
`most_held`.

Slices of a prompt always end at multiples of `n_batch`, whatever else is going on: what is computed for a request, and
so its result, does not depend on its neighbours. (What is computed together has the same bits as alone: see
`LanguageModel.prefill`.)
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from typing import Protocol, TypeAlias

from attrs import frozen

_MOST_PADDING = 16
"""Rows by which a slice may be padded to be computed along with a longer one: about what a computation costs beyond its
rows, for which the weights have to be read."""


class Waiting(Protocol):
    """A request that still has samples to start."""

    @property
    def n_prompt(self) -> int:
        """Tokens of its prompt; 0 until that is read."""

    @property
    def n_done(self) -> int:
        """How many of them are computed."""

    @property
    def joins(self) -> bool:
        """Whether it may be computed along with others."""

    @property
    def slot(self) -> int | None:
        """Where its prompt is computed, or about to be; ``None`` before that, and after a sample took it over."""

    @property
    def n_unstarted(self) -> int:
        """Samples that have not started, at least 1."""

    @property
    def n_running(self) -> int:
        """Samples that have started and not finished."""


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
        running: slots of the running sequences.
        waiting: the requests with samples to start, in turn: the one that got a slot last is at the end.
    """

    n_slots: int
    n_ctx: int
    n_batch: int
    slice_multiple: int
    budget: int
    may_read: bool
    running: Collection[int]
    waiting: Sequence[Waiting]


@frozen
class Seat:
    """Give the request at `place` among those that wait the free slot `slot`, for its prompt."""

    place: int
    slot: int


@frozen
class Tokenize:
    """Tokenize the prompt of the request at `place`, which shall be computed in `slot`."""

    place: int
    slot: int


@frozen
class Slice:
    """A part, in `slot`, of the prompt of the request at `place`: from token `start` up to, not including, `stop`."""

    place: int
    slot: int
    start: int
    stop: int


@frozen
class Prefill:
    """Compute these slices together."""

    slices: tuple[Slice, ...]


@frozen
class Start:
    """Start the next samples of the request at `place`, one in each of `slots`; then it is the last in turn."""

    place: int
    slots: tuple[int, ...]


@frozen
class Move:
    """Carry the sequence in slot `source` over to the free slot `target`."""

    source: int
    target: int


@frozen
class Decode:
    """Compute one token for the sequences in `slots`, ascending."""

    slots: tuple[int, ...]


Action: TypeAlias = Seat | Tokenize | Prefill | Start | Move | Decode


def next_action(state: EngineState) -> Action | None:
    """Return what to do next in this step, which a `Decode` or ``None`` ends."""
    if state.waiting and (action := _give_slots(state) or _compute_prompts(state)):
        return action
    if not state.running:
        return None
    return _closing_move(state) or Decode(tuple(sorted(state.running)))


def most_held(n_slots: int) -> int:
    """Return how many requests may hold their computed prompts at once for samples that have not started.

    One more of several samples waits. So what they hold takes at most as much memory as the slots themselves, or two
    slots, so that requests take turns on one slot too.
    """
    return max(2, n_slots)


def holds(request: Waiting) -> bool:
    """Tell whether a request's computed prompt is kept, or will be: for more samples than the one in its slot."""
    return _is_computed(request) if request.slot is None else request.n_unstarted > 1


def _is_computed(request: Waiting) -> bool:
    return 0 < request.n_prompt == request.n_done


def _give_slots(state: EngineState) -> Seat | Start | None:
    """Give the free slots away; return what that means for the request that is the first to get one."""
    gifts = _deal(state)
    for place, request in enumerate(state.waiting):
        if request.slot is not None and _is_computed(request):
            return Start(place, (request.slot, *gifts.get(place, ())))
    for place, slots in gifts.items():
        return Start(place, tuple(slots)) if _is_computed(state.waiting[place]) else Seat(place, slots[0])
    return None


def _deal(state: EngineState) -> dict[int, list[int]]:
    """Deal the free slots out one by one; return those of each place, places in the order of their first ones."""
    gifts: dict[int, list[int]] = {}
    taken = {*state.running, *(request.slot for request in state.waiting)}
    free = [slot for slot in range(state.n_slots) if slot not in taken]
    if not free:
        return gifts
    turns = [
        (request.n_running + (request.slot is not None), place, place) for place, request in enumerate(state.waiting)
    ]
    heapq.heapify(turns)
    n_wanted = _wanted(state)
    for slot in free:
        while turns and not n_wanted[turns[0][2]]:
            heapq.heappop(turns)
        if not turns:
            break
        n_has, turn, place = turns[0]
        gifts.setdefault(place, []).append(slot)
        n_wanted[place] -= 1
        heapq.heapreplace(turns, (n_has + 1, turn + len(state.waiting), place))
    return gifts


def _wanted(state: EngineState) -> list[int]:
    """Return how many slots each request can use now."""
    n_may_hold = most_held(state.n_slots) - sum(map(holds, state.waiting))
    n_wanted = []
    for request in state.waiting:
        if _is_computed(request):
            n_wanted.append(request.n_unstarted - (request.slot is not None))
        elif request.slot is not None:
            n_wanted.append(0)
        elif request.n_unstarted == 1:
            n_wanted.append(1)
        else:
            n_wanted.append(int(n_may_hold > 0))
            n_may_hold -= 1
    return n_wanted


def _compute_prompts(state: EngineState) -> Tokenize | Prefill | None:
    """Tokenize the prompts with slots; then compute slices: of the first, and of others that are about as long."""
    slices: list[Slice] = []
    for place, request in enumerate(state.waiting):
        if request.slot is None or _is_computed(request):
            continue
        if not request.n_prompt:
            if state.may_read:
                return Tokenize(place, request.slot)
            break
        stop = min(request.n_prompt, (request.n_done // state.n_batch + 1) * state.n_batch)
        joined = [*slices, Slice(place, request.slot, request.n_done, stop)]
        if _may_compute(joined, state):
            slices = joined
        if not slices:
            break
    return Prefill(tuple(slices)) if slices else None


def padded(slices: Sequence[Slice], multiple: int) -> int:
    """Return how long each of some slices is while they are computed together."""
    longest = max(each.stop - each.start for each in slices)
    return longest + -longest % multiple


def _may_compute(slices: Sequence[Slice], state: EngineState) -> bool:
    """Tell whether slices may be computed together, or one alone, within the budget and with little padding."""
    length = padded(slices, state.slice_multiple)
    if length * len(slices) > state.budget:
        return False
    return len(slices) == 1 or all(
        state.slice_multiple > 1
        and state.waiting[each.place].joins
        and each.start + length <= state.n_ctx
        and padded([each], state.slice_multiple) + _MOST_PADDING >= length
        for each in slices
    )


def _closing_move(state: EngineState) -> Move | None:
    """Move the last sequence into the lowest gap, as decoding is fastest without; a waiting request fills it anyway."""
    if state.waiting:
        return None
    last = max(state.running)
    gap = next(slot for slot in range(last + 2) if slot not in state.running)
    return Move(last, gap) if gap < last else None
