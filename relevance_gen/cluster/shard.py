"""A shard: some segments of an index, in an actor that answers what a collection asks of them."""

from __future__ import annotations

import itertools
import pickle
import threading
from collections import OrderedDict
from typing import Any, Final

import numpy as np
from attrs import evolve, frozen

from relevance_gen.cluster import folder
from relevance_gen.cluster.connection import Actor
from relevance_gen.cluster.parts import Made, Part, Recipe
from relevance_gen.retrieval import storage
from relevance_gen.retrieval.bags import Bag
from relevance_gen.retrieval.chunks import Chunks
from relevance_gen.retrieval.merging import in_tiers, merge, without
from relevance_gen.retrieval.scoring import SegmentScorer
from relevance_gen.retrieval.segment import Segment, Statistics
from relevance_gen.retrieval.terms import Offsets
from relevance_gen.retrieval.weighting import WeightingName, weighting_named
from relevance_gen.tokens import TokenCounter
from relevance_gen.types import Metadata

_KEPT_EPOCHS: Final = 3
"""A question that began before so many changes is asked again."""
_AHEAD_CHARS: Final = 1 << 15
"""With more text than Ray puts into a message, reading ahead would take longer than it saves."""
_DIGESTS: Final = 1 << 64


class OutdatedError(Exception):
    """Tell a caller that what it knows of an index is out of date."""


@frozen(eq=False)
class Contribution:
    """What a shard adds to the whole index.

    Attributes:
        statistics: of its chunks.
        n_positions: number of positions that it was made with.
        n_tokens: tokens in the chunks that were made, added or removed.
        digest: a sum of hashes of all chunks, each of its words and its position.
    """

    statistics: Statistics
    n_positions: int
    n_tokens: int
    digest: int


@frozen(eq=False)
class Ahead:
    """What a segment tells of some chunks before it is asked.

    Attributes:
        positions: of the chunks, ascending.
        letters: all four letters in a row in their words; None if these will not be compared.
        contents: text and metadata of each; None if that would be much to send for nothing.
    """

    positions: Offsets
    letters: Bag | None
    contents: list[tuple[str, Metadata]] | None

    @classmethod
    def read(cls, scorer: SegmentScorer, positions: Offsets, reads_letters: bool) -> Ahead:
        """Read those of some chunks, at ascending positions, that are in a segment."""
        here, contents = scorer.at(positions, SegmentScorer.contents)
        is_short = sum(len(text) for text, _ in contents) <= _AHEAD_CHARS
        letters = scorer.at(positions, SegmentScorer.letters)[1] if reads_letters and is_short else None
        return cls(positions[here], letters, contents if is_short else None)


class Shard(Actor):
    """Some segments, searchable in each of the last few states of the whole index, which are called epochs.

    A change comes in two steps: `build`, `add` or `remove` makes the new segments and tells what they contribute;
    `adopt` makes them searchable, when what all shards contribute is known. A change that is not adopted is forgotten.

    Args:
        weighting: the name of the weighting.
        counter: counts the tokens of chunks.
    """

    def __init__(self, weighting: WeightingName, counter: TokenCounter) -> None:
        self._weighting = weighting_named(weighting)
        self._counter = counter
        self._epochs: OrderedDict[int, list[SegmentScorer]] = OrderedDict()
        self._changed: list[Segment] | None = None
        self._progress = 0, 0

    def end(self) -> None:
        """Never return: whoever waits for this learns when the actor dies."""
        threading.Event().wait()

    # ── Changes ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def build(self, recipe: Recipe) -> Contribution:
        """Make the segments of a recipe."""
        made = self._make(recipe.parts)
        self._changed, texts = without(made.segments, recipe.removed)
        return self._contribution(made.n_positions, made.n_tokens - self._count(texts))

    def add(self, part: Part) -> Contribution:
        """Add chunks behind those that are there."""
        made = self._make((part,))
        self._changed = in_tiers([*self._segments(), *made.segments])
        return self._contribution(made.n_positions, made.n_tokens)

    def remove(self, positions: Offsets) -> Contribution:
        """Remove the chunks at some positions."""
        self._changed, texts = without(self._segments(), positions)
        return self._contribution(0, self._count(texts))

    def move(self, first: int) -> Contribution:
        """Move what was made, and not adopted yet, to other positions: those that follow `first`."""
        changed = self._changed or []
        self._changed = [evolve(segment, positions=segment.positions + first) for segment in changed]
        return self._contribution(0, 0)

    def adopt(self, epoch: int, statistics: Statistics) -> None:
        """Make the last change searchable, if there was one, as a part of an index with these statistics."""
        segments = self._segments() if self._changed is None else self._changed
        words = {id(scorer.segment): scorer.words_found for scorer in self._last()}
        self._epochs[epoch] = [
            SegmentScorer(segment, self._weighting, statistics, words.get(id(segment))) for segment in segments
        ]
        self._changed = None
        while len(self._epochs) > _KEPT_EPOCHS:
            self._epochs.popitem(last=False)

    def forget(self) -> None:
        """Forget a change that is not to be."""
        self._changed = None

    # ── Questions ────────────────────────────────────────────────────────────────────────────────────────────────────

    def ask(self, epoch: int, question: bytes) -> list[Any]:
        """Return what the scorer of each segment answers.

        Args:
            epoch: which state of the index is asked.
            question: the name of a method of `SegmentScorer` and its arguments, pickled.

        Raises:
            OutdatedError: that state is forgotten.
        """
        name, args, kwargs = pickle.loads(question)  # noqa: S301 from a process of the cluster
        return [getattr(scorer, name)(*args, **kwargs) for scorer in self._scorers(epoch)]

    def read(self, epoch: int, question: bytes) -> list[Any]:
        """Return what the scorer of each segment tells of the chunks at some positions, which are in the question.

        Raises:
            OutdatedError: that state is forgotten.
        """
        name, positions, args, kwargs = pickle.loads(question)  # noqa: S301 from a process of the cluster
        method = getattr(SegmentScorer, name)
        return [scorer.at(positions, method, *args, **kwargs) for scorer in self._scorers(epoch)]

    def read_ahead(self, epoch: int, question: bytes) -> list[Ahead]:
        """Return what will be asked of chunks at some positions, once proximity has been looked at.

        Args:
            epoch: which state of the index is asked.
            question: the positions, and whether letters will be compared; pickled.

        Raises:
            OutdatedError: that state is forgotten.
        """
        positions, reads_letters = pickle.loads(question)  # noqa: S301 from a process of the cluster
        return [Ahead.read(scorer, positions, reads_letters) for scorer in self._scorers(epoch)]

    # ── Keeping ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, address: str, n_positions: int, n_tokens: int) -> None:
        """Write all chunks to a file of their own, which `relevance_gen.ChunkIndex.load` can read, too."""
        segments = self._segments()
        whole = len(segments) == 1 and segments[0].postings.live is None
        saved = storage.SavedIndex(
            segments[0] if whole else merge(segments),
            self._weighting.name,
            self._counter.name,
            self._counter.fingerprint,
            None,
            n_positions,
            n_tokens,
        )
        folder.write_index(address, saved)

    def progress(self) -> tuple[int, int]:
        """Return how many chunks are made searchable, and how many will be as far as is known."""
        return self._progress

    def nbytes(self) -> int:
        """Return the memory of all texts and arrays, in bytes."""
        return sum(scorer.segment.nbytes + scorer.remembered_bytes for scorer in self._last())

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _scorers(self, epoch: int) -> list[SegmentScorer]:
        try:
            return self._epochs[epoch]
        except KeyError:
            raise OutdatedError from None

    def _last(self) -> list[SegmentScorer]:
        """Return what scores the last state; nothing before there is one."""
        return self._epochs[next(reversed(self._epochs))] if self._epochs else []

    def _segments(self) -> list[Segment]:
        return [scorer.segment for scorer in self._last()]

    def _make(self, parts: tuple[Part, ...]) -> Made:
        made = [part.make(self._count_chunks, self._note) for part in parts]
        return Made(
            list(itertools.chain.from_iterable(one.segments for one in made)),
            sum(one.n_positions for one in made),
            sum(one.n_tokens for one in made),
        )

    def _note(self, done: int, total: int) -> None:
        self._progress = done, total

    def _count_chunks(self, chunks: Chunks) -> int:
        return self._count(chunks.texts)

    def _count(self, texts: Any) -> int:
        return self._counter.count_all(texts)

    def _contribution(self, n_positions: int, n_tokens: int) -> Contribution:
        segments = self._changed or []
        statistics = sum(map(self._weighting.statistics, segments), Statistics())
        return Contribution(statistics, n_positions, n_tokens, sum(map(_digest, segments)) % _DIGESTS)


def _digest(segment: Segment) -> int:
    live = segment.live
    return int((segment.hashes[live] * (2 * segment.positions[live].astype(np.uint64) + np.uint64(1))).sum())
