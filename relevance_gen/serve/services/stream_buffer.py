"""Text that has come and waits to be sent, accounted for."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from typing import TypeAlias

from relevance_gen.errors import RelevanceGenError
from relevance_gen.types import ContentPart

_WAITING_BYTES = 400
"""What Python needs for a piece of text that waits, or of a turn, beside the text."""

Piece: TypeAlias = tuple[int, str | ContentPart]
"""A text, or a piece of a turn, with the number of its sample."""
Pieces: TypeAlias = list[Piece]


class StreamBuffer:
    """Pieces of text that wait to be yielded, and then the end, as where `hold` refuses their bytes."""

    def __init__(self, hold: Callable[[int], None]) -> None:
        self._hold = hold
        self._items: asyncio.Queue[Piece | RelevanceGenError | None] = asyncio.Queue()
        self._is_closed = False

    def add(self, item: Piece | None) -> None:
        """Take a piece; None is the end."""
        if self._is_closed:
            return
        try:
            if item is not None:
                self._hold(_piece_bytes(item))
            self._items.put_nowait(item)
        except RelevanceGenError as error:
            self._items.put_nowait(error)
            self.close()

    async def next(self, timeout_s: float) -> tuple[Pieces, bool]:
        """Wait for the next piece or the end; return all pieces that have arrived, and whether the end has."""
        try:
            async with asyncio.timeout(timeout_s):
                items = [await self._items.get()]
        except TimeoutError:
            return [], False
        while not self._items.empty():
            items.append(self._items.get_nowait())
        if isinstance(items[-1], RelevanceGenError):
            raise items[-1]
        pieces = [item for item in items if isinstance(item, tuple)]
        return pieces, len(pieces) < len(items)

    def dealt_with(self, pieces: Pieces) -> None:
        """Hold some pieces no more."""
        self._hold(-sum(map(_piece_bytes, pieces)))

    def close(self) -> None:
        """Take nothing any more: whoever held the memory may have given all of it back."""
        self._is_closed = True


def _piece_bytes(piece: Piece) -> int:
    _, text = piece
    return _WAITING_BYTES + sys.getsizeof(text if isinstance(text, str) else text.text)
