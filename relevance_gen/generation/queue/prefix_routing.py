"""Prefix-aware routing of prompts to workers.

Each worker has its own prefix cache. The queue stores, as hashes of text blocks, which prompts each
worker took. Two quantities determine which worker takes a prompt: how much of its prefix a worker
has computed, and how many requests the worker has. A worker leaves (defers) a request to another
worker that has computed a longer prefix, can start the request now, and has at most
`MAX_EXTRA_REQUESTS` more requests. The routers of SGLang (cache-aware) and of vLLM's production
stack (prefix-aware) compare the same two quantities.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, TypeAlias

from attrs import frozen

from relevance_gen.lru import LruCache

Blocks: TypeAlias = tuple[int, ...]

BLOCK_CHARS: Final = 256
"""Characters of a block, about 64 tokens: a shorter prefix is computed quickly anyway."""
_MAX_BLOCKS: Final = 512
"""Maximum number of blocks of one prompt; later text does not influence the routing."""
_MAX_TABLE_BYTES: Final = 3 << 20
"""Memory for the blocks of each worker: enough for the prompts of two million characters."""
MAX_EXTRA_REQUESTS: Final = 4
"""Do not defer to a worker with more extra requests than this: waiting would cost more than
recomputing the prefix."""
MAX_DEFER_S: Final = 0.1
"""Seconds for which a request is deferred to another worker, which may be in the middle of a long
step."""


def blocks_of(text: str, client: str | None = None) -> Blocks:
    """Return a hash for each complete block of a client's text, for at most 512 blocks.

    A block has `BLOCK_CHARS` characters. Each hash covers the client and the text from the start up
    to the end of its block.

    >>> first, second = blocks_of("a" * 600), blocks_of("a" * 256 + "b" * 256)
    >>> len(first), first[0] == second[0], first[1] == second[1]
    (2, True, False)
    """
    n_blocks = min(len(text) // BLOCK_CHARS, _MAX_BLOCKS)
    blocks: list[int] = []
    prefix_hash = hash(client)
    for start in range(0, n_blocks * BLOCK_CHARS, BLOCK_CHARS):
        prefix_hash = hash((prefix_hash, text[start : start + BLOCK_CHARS]))
        blocks.append(prefix_hash)
    return tuple(blocks)


class PrefixTable:
    """The blocks of the prompts that one worker took most recently."""

    def __init__(self, max_bytes: int = _MAX_TABLE_BYTES) -> None:
        # The values need no memory: an entry is its key.
        self._blocks: LruCache[bool] = LruCache(max_bytes, lambda _: 0)

    def add(self, blocks: Blocks) -> None:
        """Add a prompt; if the table exceeds its memory limit, evict the oldest blocks.

        The last blocks of a prompt are evicted before its first blocks.
        """
        for block in reversed(blocks):
            self._blocks.put(block, True)

    def n_known_blocks(self, blocks: Blocks) -> int:
        """Return the number of leading blocks of a prompt that are in the table."""
        # No block is evicted before the blocks that follow it, so the known blocks are a prefix.
        return bisect_left(blocks, True, key=lambda block: block not in self._blocks)


@frozen
class WorkerLoad:
    """The load of a worker with regard to one request.

    Attributes:
        n_known_blocks: leading blocks of the prompt that the worker has computed.
        n_requests: requests that the worker has.
        has_capacity: whether the worker can start the request now.
    """

    n_known_blocks: int
    n_requests: int
    has_capacity: bool


def should_defer(own: WorkerLoad, other_workers: Iterable[WorkerLoad]) -> bool:
    """Return whether a worker should leave a request to a worker in `other_workers`.

    A worker with capacity and the longest known prefix never defers, so some worker always takes
    the request.

    >>> own, near, busy = WorkerLoad(0, 0, True), WorkerLoad(3, 4, True), WorkerLoad(3, 5, True)
    >>> should_defer(own, [near]), should_defer(own, [busy])
    (True, False)
    """
    return any(
        other.has_capacity
        and other.n_known_blocks > own.n_known_blocks
        and other.n_requests <= own.n_requests + MAX_EXTRA_REQUESTS
        for other in other_workers
    )
