"""An iterator over the text of a request while it is generated."""

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
    """A piece of the text of one sample: complete characters, and no part of a stop string.

    Attributes:
        sample: index of the sample.
        text: text that continues the previous pieces of the sample; for a tool call a piece of its
            arguments. It is empty only in the first piece of a tool call.
        part: for a conversation, the content part that this piece continues; otherwise ``None``.
    """

    sample: int
    text: str
    part: ContentPart | None = None


def text_piece(sample: int, text: str | ContentPart) -> TextPiece:
    """Return a `TextPiece` from the two arguments of a runner's callback `on_text` or `on_part`.

    Args:
        sample: index of the sample.
        text: the text that was generated; for a conversation the content part, whose ``text`` is
            used.
    """
    if isinstance(text, ContentPart):
        return TextPiece(sample, text.text, text)
    return TextPiece(sample, text)


class TextStream(Iterator[TextPiece]):
    """The pieces of all samples of a request in order of arrival; then the response.

    Iteration raises the error that the request failed with, or `RequestCancelledError` after
    `cancel`. A stream that is garbage-collected before its end cancels its request.

    Attributes:
        response: the response; ``None`` until iteration has ended.
    """

    def __init__(self, submit: Callable[[OnText], Future[GenerationResponse]]) -> None:
        self.response: GenerationResponse | None = None
        # The callbacks refer to the queue only, because the runner must not keep a dropped stream
        # alive.
        pieces: queue.SimpleQueue[TextPiece | None] = queue.SimpleQueue()
        self._pieces = pieces

        self._future = submit(lambda sample, text: pieces.put(text_piece(sample, text)))
        self._future.add_done_callback(lambda _: pieces.put(None))

    def __next__(self) -> TextPiece:
        if self.response is not None:
            raise StopIteration
        piece = self._pieces.get()
        if piece is not None:
            return piece
        self._pieces.put(None)  # If the request failed, further calls raise the same error.
        try:
            self.response = self._future.result()
        except CancelledError:
            raise RequestCancelledError("the request was cancelled") from None
        raise StopIteration

    def cancel(self) -> None:
        """Cancel the request unless it has ended; the engine frees its slots at its next step."""
        self._future.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __del__(self) -> None:
        if hasattr(self, "_future"):  # Not if `submit` raised.
            self._future.cancel()
