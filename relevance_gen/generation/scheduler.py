"""Decide what the engine does next: a pure function of a small state. It knows counts and slots, no model and no text.

One step of the engine is the actions that `next_action` returns until it returns `None`: every running sequence gets
one token, then the requests at the head of the queue get at most `n_batch` tokens of their prompts computed. Requests
are served strictly in order of arrival, so none can starve; a long prompt delays the running ones by a slice a step.

Slices of a prompt always end at multiples of `n_batch`, whatever else is going on: what is computed for a request, and
so its result, does not depend on its neighbours.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from attrs import frozen


@frozen
class Head:
    """The oldest request that still has samples to start.

    Args:
        n_prompt: tokens of its prompt.
        n_done: how many of them are computed.
        slot: where, ``None`` before it has a slot and after its first sample took it over.
        n_unstarted: samples that have not started.
    """

    n_prompt: int
    n_done: int
    slot: int | None
    n_unstarted: int


@frozen
class State:
    """All that the next action depends on.

    Args:
        n_slots: sequences that the context can hold.
        n_batch: most prompt tokens of one slice.
        budget: prompt tokens that may still be computed in this step.
        decoded: whether the running sequences got their token in this step.
        running: slots of the running sequences.
        head: the request to start, if any waits.
    """

    n_slots: int
    n_batch: int
    budget: int
    decoded: bool
    running: Collection[int]
    head: Head | None


@frozen
class Move:
    """Carry the sequence in slot `source` over to the free slot `target`."""

    source: int
    target: int


@frozen
class Decode:
    """Compute one token for the sequences in `slots`, ascending."""

    slots: tuple[int, ...]


@frozen
class Seat:
    """Give the head the free slot `slot`."""

    slot: int


@frozen
class Prefill:
    """Compute, in `slot`, the head's prompt tokens from `start` up to, not including, `stop`."""

    slot: int
    start: int
    stop: int


@frozen
class Start:
    """Start the head's next samples, one in each of `slots`."""

    slots: tuple[int, ...]


Action: TypeAlias = Move | Decode | Seat | Prefill | Start


def next_action(state: State) -> Action | None:
    """Return what to do next in this step; ``None`` ends the step."""
    if state.running and not state.decoded:
        return _closing_move(state) or Decode(tuple(sorted(state.running)))
    if state.head is None:
        return None
    return _serve(state.head, state)


def _closing_move(state: State) -> Move | None:
    """Move the last sequence into the lowest gap, as decoding is fastest without; a waiting request fills it anyway."""
    if state.head is not None:
        return None
    last = max(state.running)
    gap = next(slot for slot in range(last + 2) if slot not in state.running)
    return Move(last, gap) if gap < last else None


def _serve(head: Head, state: State) -> Action | None:
    free = [slot for slot in range(state.n_slots) if slot not in state.running and slot != head.slot]
    if head.n_done < head.n_prompt:
        if head.slot is None:
            return Seat(free[0]) if free else None
        stop = min(head.n_prompt, (head.n_done // state.n_batch + 1) * state.n_batch)
        return Prefill(head.slot, head.n_done, stop) if stop - head.n_done <= state.budget else None
    seats = free if head.slot is None else [head.slot, *free]
    return Start(tuple(seats[: head.n_unstarted])) if seats else None
