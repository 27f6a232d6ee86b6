"""The caller's half of a request: all that a worker needs to serve it, wherever that worker runs."""

from __future__ import annotations

from attrs import field, frozen

from relevance_gen.types import GenerationRequest


@frozen
class Ticket:
    """A request that was accepted. It can be pickled, and knows neither its caller nor an engine.

    Two tickets are the same if their ids are.

    Args:
        id: its number in order of arrival, unique in its backlog.
        request: what was asked for.
        seed: the request's, or a fresh one: whoever serves the ticket draws the same samples.
        created: Unix time in seconds when it was accepted.
    """

    id: int
    request: GenerationRequest = field(eq=False)
    seed: int = field(eq=False)
    created: float = field(eq=False)
