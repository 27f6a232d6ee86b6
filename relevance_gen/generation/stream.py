"""Text as it is generated, as an iterator."""

from __future__ import annotations

import queue
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future
from typing import Self

from attrs import frozen

from relevance_gen.errors import RequestCancelledError
from relevance_gen.types import GenerationResponse


@frozen
class TextPiece:
    """A piece of one sample's text: whole characters, never part of a stop string.

    Attributes:
        sample: which sample, from 0.
        text: what follows the pieces of that sample so far; not empty.
    """

    sample: int
    text: str


class TextStream(Iterator[TextPiece]):
    """The pieces of a request's samples in the order they come, then `response`.

    Iterating raises what the request failed with; `RequestCancelledError` after `cancel`. A stream that is dropped before its end
    cancels its request.

    Attributes:
        response: the whole response, once iteration has ended.
    """

    def __init__(self) -> None:
        self.response: GenerationResponse | None = None
        self._pieces: queue.SimpleQueue[TextPiece | None] = queue.SimpleQueue()
        self._future: Future[GenerationResponse] | None = None
        # Bound to the queue alone: the runner's references must not keep a dropped stream alive.
        pieces = self._pieces
        self.on_text = lambda sample, text: pieces.put(TextPiece(sample, text))

    def follow(self, future: Future[GenerationResponse]) -> Self:
        """End with `future`."""
        pieces = self._pieces
        self._future = future
        future.add_done_callback(lambda _: pieces.put(None))
        return self

    def __next__(self) -> TextPiece:
        if self.response is not None:
            raise StopIteration
        piece = self._pieces.get()
        if piece is not None:
            return piece
        self._pieces.put(None)  # whoever asks again gets the same answer
        assert self._future is not None
        try:
            self.response = self._future.result()
        except CancelledError:
            raise RequestCancelledError("the request was cancelled") from None
        raise StopIteration

    def cancel(self) -> None:
        """Give up the request; its slots are free at the next step."""
        if self._future is not None:
            self._future.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        self.cancel()
