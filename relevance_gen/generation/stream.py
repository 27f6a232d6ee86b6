"""Text as it is generated, as an iterator."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future
from typing import Self

from attrs import frozen

from relevance_gen.errors import RequestCancelledError
from relevance_gen.generation.queue.pending_request import OnText
from relevance_gen.types import ContentPart, GenerationResponse


@frozen
class TextPiece:
    """A piece of one sample's text: whole characters, never part of a stop string; of a conversation a piece of a turn.

    Attributes:
        sample: which sample, from 0.
        text: what follows the pieces of that sample so far; not empty, but where a turn begins
            to call a tool: of such a part these are the arguments.
        part: of a turn which part it belongs to, and of which kind that is; ``None`` outside conversations.
    """

    sample: int
    text: str
    part: ContentPart | None = None


class TextStream(Iterator[TextPiece]):
    """The pieces of a request's samples in the order they come, then `response`.

    Iterating raises what the request failed with; `RequestCancelledError` after `cancel`. A stream that is dropped
    before its end cancels its request.

    Attributes:
        response: the whole response, once iteration has ended.
    """

    def __init__(self, submit: Callable[[OnText], Future[GenerationResponse]]) -> None:
        self.response: GenerationResponse | None = None
        # The callbacks know the queue alone: what the runner holds must not keep a dropped stream alive.
        pieces: queue.SimpleQueue[TextPiece | None] = queue.SimpleQueue()
        self._pieces = pieces

        def put(sample: int, text: str | ContentPart) -> None:
            pieces.put(
                TextPiece(sample, text.text, text)
                if isinstance(text, ContentPart)
                else TextPiece(sample, text)
            )

        self._future = submit(put)
        self._future.add_done_callback(lambda _: pieces.put(None))

    def __next__(self) -> TextPiece:
        if self.response is not None:
            raise StopIteration
        piece = self._pieces.get()
        if piece is not None:
            return piece
        self._pieces.put(None)  # whoever asks again gets the same answer
        try:
            self.response = self._future.result()
        except CancelledError:
            raise RequestCancelledError("the request was cancelled") from None
        raise StopIteration

    def cancel(self) -> None:
        """Give up the request; its slots are free at the next step."""
        self._future.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_future"):  # not where submitting it raised
            self._future.cancel()
