"""A shard: some segments of an index, in the last few states of the whole."""

from __future__ import annotations

import itertools
import pickle
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import evolve, frozen

from relevance_gen.arrays import Ids, Offsets
from relevance_gen.cluster import saved_folder as folder
from relevance_gen.cluster.parts import Part, Recipe, make_again, merged
from relevance_gen.cluster.runs import PositionRuns
from relevance_gen.index import storage
from relevance_gen.index.array_file import Array, padded
from relevance_gen.index.builder import merge_tiered, remove_chunks
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.retrieval.scorer import SegmentScorer
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.text.token_counting import TokenCounter
from relevance_gen.types import WeightingName

_KEPT_EPOCHS: Final = 3
"""A question that began before so many changes is asked again."""
_USED_S: Final = 60.0
"""No question takes longer, nor is there so long between two pieces of a copy."""
_DIGESTS: Final = 1 << 64


class OutdatedError(Exception):
    """Tell a caller that what it knows of an index is out of date."""


@frozen(eq=False)
class Contribution:
    """What a shard adds to the whole index."""

    statistics: Statistics
    runs: PositionRuns  # their positions
    n_positions: int  # number of positions that its chunks took when it was made, those of blank ones included
    n_tokens: int
    digest: int  # a sum of hashes of its chunks, each of its words and its position


class Shard:
    """Some segments, searchable in each of the last few states of the whole index, which are called epochs.

    A change comes in two steps: `build`, `add` or `remove` makes the new segments and tells what they contribute;
    `adopt` makes them searchable, when what all shards contribute is known. A change that is not adopted is forgotten.
    """

    def __init__(self, weighting: WeightingName, counter: TokenCounter) -> None:
        self._weighting = weighting_named(weighting)
        self._counter = counter
        self._epochs: OrderedDict[int, list[SegmentScorer]] = OrderedDict()
        self._n_tokens = 0
        self._next: tuple[list[Segment], int] | None = None
        """What the last change made, and the tokens in it, until it is adopted."""
        self._progress = 0, 0
        self._copying = threading.Lock()
        self._copied: list[memoryview] = []
        """The parts of a copy, and behind each the bytes between it and the next."""
        self._used_s = 0.0
        """When there was a new state, or a piece of a copy was fetched, in seconds of the monotonic clock."""

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def build(self, recipe: Recipe) -> Contribution:
        """Make the segments of a recipe."""
        made = [
            part.make(self._counter, self._note, recipe.removed.moved(-first))
            for part, first in recipe.parts
        ]
        segments = _moved([one.segment for one in made], [first for _, first in recipe.parts])
        segments = [one for one in segments if one.size] or segments[:1]
        return self._propose(
            merge_tiered(segments, merged),
            sum(one.n_tokens for one in made),
            sum(one.n_positions for one in made),
        )

    def copy(self) -> list[int]:
        """Keep the arrays of the last state at hand for `piece`, and return how many bytes each part has.

        The first part is a pickle that refers to the others. All who copy a state get the same bytes.
        """
        with self._copying:
            if not self._copied:
                arrays: list[pickle.PickleBuffer] = []
                pickled = pickle.dumps(
                    (self._segments(), self._n_tokens), 5, buffer_callback=arrays.append
                )
                for part in (memoryview(pickled), *(one.raw() for one in arrays)):
                    self._copied += [part, memoryview(bytes(padded(part.nbytes) - part.nbytes))]
            return [part.nbytes for part in self._copied[::2]]

    def piece(self, start: int, stop: int) -> bytes:
        """Return some of the bytes of all parts, of which each begins at a multiple of 64; none in the next state."""
        self._used_s = time.monotonic()
        firsts = itertools.accumulate((part.nbytes for part in self._copied), initial=0)
        spans = [(max(start - first, 0), max(stop - first, 0)) for first in firsts]
        return b"".join(
            [part[begin:end] for part, (begin, end) in zip(self._copied, spans, strict=False)]
        )

    def take(self, content: Array, sizes: Sequence[int]) -> Contribution:
        """Make what another replica has, of the bytes that it holds; their arrays stay where they are."""
        firsts = itertools.accumulate(map(padded, sizes), initial=0)
        pickled, *arrays = [
            content[first : first + size] for first, size in zip(firsts, sizes, strict=False)
        ]
        segments, n_tokens = pickle.loads(pickled.data, buffers=arrays)  # noqa: S301 from a process of the cluster
        return self._propose(segments, n_tokens)

    def add(self, part: Part, first: int) -> Contribution:
        """Add chunks behind those that are there, at positions from `first` on."""
        made = part.make(self._counter, self._note)
        segments = merge_tiered([*self._segments(), *_moved([made.segment], [first])], merged)
        return self._propose(segments, self._n_tokens + made.n_tokens)

    def remove(self, positions: Offsets) -> Contribution:
        """Remove the chunks at some positions."""
        removal = remove_chunks(self._segments(), positions, merged)
        n_removed_tokens = self._counter.count_all(removal.texts)
        return self._propose(removal.segments, self._n_tokens - n_removed_tokens)

    def middle(self) -> int | None:
        """Return the position that about half of all words stand before; None where one chunk is all there is."""
        alive = [(one, np.flatnonzero(one.live)) for one in self._segments()]
        positions = np.concatenate([one.positions[numbers] for one, numbers in alive])
        if positions.size < 2:
            return None
        order = positions.argsort()
        sizes = (
            np.concatenate([one.n_occurrences[numbers] for one, numbers in alive])[order] + 1
        )  # some have no word
        before = sizes.cumsum()
        number = int(before.searchsorted(before[-1] // 2, "right"))
        return int(positions[order[min(max(number, 1), positions.size - 1)]])

    def cut(self, at: int, rest: Shard) -> tuple[Contribution, Contribution]:
        """Keep the chunks before a position, and give those from there on to `rest`, which is empty.

        Segments that have chunks of both are made again of each, block by block as when they were built.
        """
        kept = self._between(0, at)
        given = self._between(at, sys.maxsize)
        texts = (
            one.chunks.texts[number]
            for one in given
            for number in np.flatnonzero(one.live).tolist()
        )
        n_tokens = self._counter.count_all(texts)
        return self._propose(kept, self._n_tokens - n_tokens), rest._propose(given, n_tokens)

    def move(self, first: int) -> Contribution:
        """Move what was made, and is not adopted yet, to positions that begin with `first`."""
        segments, n_tokens = self._next or ([], 0)
        return self._propose(_moved(segments, [first] * len(segments)), n_tokens)

    def adopt(self, epoch: int, statistics: Statistics) -> None:
        """Make the last change searchable, if there was one, as a part of an index with these statistics."""
        segments, self._n_tokens = self._next or (self._segments(), self._n_tokens)
        words = {id(scorer.segment): scorer.words_found for scorer in self._last()}
        self._epochs[epoch] = [
            SegmentScorer(segment, self._weighting, statistics, words.get(id(segment)))
            for segment in segments
        ]
        self._next = None
        self._copied, self._used_s = [], time.monotonic()
        while len(self._epochs) > _KEPT_EPOCHS:
            self._epochs.popitem(last=False)

    def let_go(self) -> None:
        """Let go of earlier states, and of what is copied, where they have been of no use for a while."""
        if time.monotonic() - self._used_s > _USED_S:
            self._copied = []
            while len(self._epochs) > 1:
                self._epochs.popitem(last=False)

    def forget(self) -> None:
        """Forget a change that is not to be."""
        self._next = None

    # ── Questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def scorers(self, epoch: int) -> list[SegmentScorer]:
        """Return what scores the segments of one state of the index; a KeyError says that it is forgotten."""
        return self._epochs[epoch]

    # ── Keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, address: str, name: str, n_positions: int) -> folder.SavedShard:
        """Write all chunks to a file of their own, which `relevance_gen.ChunkIndex.load` can read, too.

        In the whole index, `n_positions` were ever given.
        """
        counter = self._counter
        saved = storage.SavedIndex(
            merged(self._segments()),
            self._weighting.name,
            counter.name,
            counter.fingerprint,
            None,
            n_positions,
            self._n_tokens,
        )
        return folder.write_index(address, name, saved)

    def finds(self, address: str, name: str) -> bool:
        """Tell whether a folder has a file."""
        return ObjectStore(address).exists(name)

    def progress(self) -> tuple[int, int]:
        """Return how many chunks are made searchable, and how many will be as far as is known."""
        return self._progress

    def nbytes(self) -> int:
        """Return the memory of all texts and arrays, in bytes."""
        return sum(scorer.segment.nbytes + scorer.remembered_bytes for scorer in self._last())

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _last(self) -> list[SegmentScorer]:
        """Return what scores the last state; nothing before there is one."""
        return self._epochs[next(reversed(self._epochs))] if self._epochs else []

    def _segments(self) -> list[Segment]:
        return [scorer.segment for scorer in self._last()]

    def _between(self, first: int, stop: int) -> list[Segment]:
        """Return segments of the chunks at some positions: where those are all of a segment, it stays as it is."""
        found = []
        for segment in self._segments():
            wanted = segment.live & (segment.positions >= first) & (segment.positions < stop)
            if np.array_equal(wanted, segment.live):
                found.append(segment)
            elif wanted.any():
                found.append(make_again(segment, np.flatnonzero(wanted)))
        return found

    def _note(self, done: int, total: int) -> None:
        self._progress = done, total

    def _propose(
        self, segments: list[Segment], n_tokens: int, n_positions: int = 0
    ) -> Contribution:
        """Keep what a change made until it is adopted, and tell what it contributes."""
        self._next = segments, n_tokens
        live = [
            (segment.positions[segment.live], segment.hashes[segment.live]) for segment in segments
        ]
        return Contribution(
            statistics=sum(map(self._weighting.statistics, segments), Statistics()),
            runs=PositionRuns.of(np.sort(np.concatenate([positions for positions, _ in live]))),
            n_positions=n_positions,
            n_tokens=n_tokens,
            digest=sum(_digest(positions, hashes) for positions, hashes in live) % _DIGESTS,
        )


def _moved(segments: Sequence[Segment], firsts: Sequence[int]) -> list[Segment]:
    return [
        evolve(one, positions=one.positions + first)
        for one, first in zip(segments, firsts, strict=True)
    ]


def _digest(positions: Offsets, hashes: Ids) -> int:
    return int((hashes * (2 * positions.astype(np.uint64) + np.uint64(1))).sum())
