"""Events of requests, which an engine returns and a worker delivers to the queue."""

from __future__ import annotations

from typing import TypeAlias

from attrs import frozen

from relevance_gen.types import GenerationResponse


@frozen
class Started:
    """`n_samples` more samples of a request have their first token."""

    request_id: int
    n_samples: int


@frozen
class TextDelta:
    """Text that one sample of a request adds to its previous text; not empty.

    `sample` is the index of the sample in its request.
    """

    request_id: int
    sample: int
    text: str


@frozen
class Finished:
    """The complete response to a request; no further event follows."""

    request_id: int
    response: GenerationResponse


@frozen
class Failed:
    """The error that ended a request; no further event follows."""

    request_id: int
    error: BaseException


EngineEvent: TypeAlias = Started | TextDelta | Finished | Failed
