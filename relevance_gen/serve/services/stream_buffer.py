"""A buffer of generated text that waits to be sent, with its memory accounted for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TypeAlias

from attrs import frozen

from relevance_gen.errors import RelevanceGenError
from relevance_gen.types import ContentPart

_PIECE_BYTES = 400
"""Memory of a queued piece in Python, in addition to its text."""

Piece: TypeAlias = tuple[int, str | ContentPart]
"""The number of a sample, and a piece of its generated text or a content part of its turn."""
Pieces: TypeAlias = list[Piece]


@frozen
class PieceBatch:
    """The pieces that arrived since the last batch, and whether the stream has ended after them."""

    pieces: Pieces
    has_ended: bool


class StreamBuffer:
    """Pieces of text that wait to be sent.

    Args:
        acquire: called with the bytes of a piece when it arrives, and with the negative number when
            it has been sent. An exception that it raises ends the stream.
    """

    def __init__(self, acquire: Callable[[int], None]) -> None:
        self._acquire = acquire
        self._items: asyncio.Queue[Piece | RelevanceGenError | None] = asyncio.Queue()
        self._is_closed = False

    def add(self, item: Piece | None) -> None:
        """Add a piece, and acquire its memory; None marks the end of the stream.

        If the memory cannot be acquired, the error becomes the end of the stream. After `close`,
        nothing is added.
        """
        if self._is_closed:
            return
        try:
            if item is not None:
                self._acquire(_bytes_of(item))
            self._items.put_nowait(item)
        except RelevanceGenError as error:
            self._items.put_nowait(error)
            self.close()

    async def next_batch(self, timeout_s: float) -> PieceBatch:
        """Wait at most `timeout_s` for a piece or the end; return all pieces that have arrived.

        The batch is empty if none arrived in time.

        Raises:
            RelevanceGenError: the memory of a piece could not be acquired, which ended the stream.
        """
        try:
            async with asyncio.timeout(timeout_s):
                items = [await self._items.get()]
        except TimeoutError:
            return PieceBatch([], has_ended=False)
        while not self._items.empty():
            items.append(self._items.get_nowait())
        if isinstance(items[-1], RelevanceGenError):
            raise items[-1]
        pieces = [item for item in items if isinstance(item, tuple)]
        return PieceBatch(pieces, has_ended=len(pieces) < len(items))

    def release(self, pieces: Pieces) -> None:
        """Release the memory of pieces that have been sent."""
        self._acquire(-sum(map(_bytes_of, pieces)))

    def close(self) -> None:
        """Ignore further pieces: the request may have released all its memory."""
        self._is_closed = True


def _bytes_of(piece: Piece) -> int:
    _, content = piece
    text = content if isinstance(content, str) else content.text
    return _PIECE_BYTES + sys.getsizeof(text)
