"""Which worker a prompt goes to: rather to one that has computed its beginning before.

Every worker has a prefix cache of its own. So the backlog remembers what it gave to whom, as hashes of blocks of text;
a worker leaves a ticket to another one that knows more of its prompt, has room, and is not much busier.
Source: the routers of SGLang (cache-aware) and of vLLM's production stack (prefix-aware) weigh the same two things.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, TypeAlias

from attrs import frozen

from relevance_gen.lru import LruCache

Blocks: TypeAlias = tuple[int, ...]

BLOCK_CHARS: Final = 256
"""Some 64 tokens: a beginning that is shorter is computed quickly anyway."""
_MAX_BLOCKS: Final = 512
"""Blocks of one prompt that are looked at."""
_MAX_REMEMBERED_BYTES: Final = 3 << 20
"""For the blocks of each worker: enough for those of two million characters."""
MUCH_BUSIER: Final = 4
"""A worker with so many tickets more than another is left in peace: waiting would cost more than computing again."""
MAX_DEFER_S: Final = 0.1
"""How long a ticket is left to another worker, which may be in the middle of a long step."""


def blocks_of(text: str, client: str | None = None) -> Blocks:
    """Return a hash for each whole block of a client's text; it stands for all of the text up to the block's end.

    >>> one, other = blocks_of("a" * 600), blocks_of("a" * 256 + "b" * 256)
    >>> len(one), one[0] == other[0], one[1] == other[1]
    (2, True, False)
    """
    found: list[int] = []
    so_far = hash(client)
    for start in range(0, min(len(text) // BLOCK_CHARS, _MAX_BLOCKS) * BLOCK_CHARS, BLOCK_CHARS):
        so_far = hash((so_far, text[start : start + BLOCK_CHARS]))
        found.append(so_far)
    return tuple(found)


class PrefixTable:
    """The blocks of the prompts that one worker was given last."""

    def __init__(self, max_bytes: int = _MAX_REMEMBERED_BYTES) -> None:
        self._blocks: LruCache[bool] = LruCache(
            max_bytes, lambda _: 0
        )  # a key is all that there is

    def add(self, blocks: Blocks) -> None:
        """Remember a prompt, and forget what is oldest; of one prompt the end goes before the beginning."""
        for block in reversed(blocks):
            self._blocks.put(block, True)

    def n_known_blocks(self, blocks: Blocks) -> int:
        """Return the number of blocks with which a prompt begins that are remembered."""
        # A block is never forgotten before those that follow it, so the known ones are a beginning.
        return bisect_left(blocks, True, key=lambda block: block not in self._blocks)


@frozen
class WorkerLoad:
    """How a worker stands to a ticket.

    It knows `n_known_blocks` blocks of its prompt, has `n_tickets` to do, and can begin with it now where it `has_room`.
    """

    n_known_blocks: int
    n_tickets: int
    has_room: bool


def should_defer(own: WorkerLoad, others: Iterable[WorkerLoad]) -> bool:
    """Tell whether a worker leaves a ticket to one of the others.

    Of the workers with room, one that knows most never does, so there is always one that takes the ticket.

    >>> idle, near, busy = WorkerLoad(0, 0, True), WorkerLoad(3, 4, True), WorkerLoad(3, 5, True)
    >>> should_defer(idle, [near]), should_defer(idle, [busy])
    (True, False)
    """
    return any(
        other.has_room
        and other.n_known_blocks > own.n_known_blocks
        and other.n_tickets <= own.n_tickets + MUCH_BUSIER
        for other in others
    )
