"""What a segment tells of some of its chunks, and how what several segments tell is put together.

What is asked for is an inquiry, a function of an excerpt, which can be pickled, as what it returns can be. So a segment
may be anywhere, and all that is asked of the same chunks is one message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Generic, Protocol, Self, TypeAlias, TypeVar

import numpy as np
from attrs import define, field, frozen

from relevance_gen.arrays import Floats, Offsets
from relevance_gen.index.segment import Segment, Statistics, TokenSequences
from relevance_gen.types import Metadata

_SHORT_CHARS: Final = 1 << 16
"""Where texts are longer, sending what nobody may want takes longer than asking again does."""


@define(eq=False)
class ChunkBatch:
    """Some chunks of one segment, by their numbers in it, shape (n,); their words are read once, when somebody asks."""

    segment: Segment
    numbers: Offsets
    _denominators: Floats
    _statistics: Statistics
    _reading: TokenSequences | None = field(default=None, init=False)

    @property
    def denominators(self) -> Floats:
        """What the sum of each chunk is divided by, shape (n,)."""
        return self._denominators.take(self.numbers)

    @property
    def title_df(self) -> Offsets:
        """Number of chunks of all segments that have each chunk's title; any for one without. Shape (n,)."""
        titles = self._statistics.titles
        at = titles.searchsorted(self.segment.title_hashes.take(self.numbers))
        return self._statistics.title_df.take(at, mode="clip")

    @property
    def is_read(self) -> bool:
        """Whether somebody asked for the words."""
        return self._reading is not None

    @property
    def reading(self) -> TokenSequences:
        """The words of the chunks."""
        if self._reading is None:
            self._reading = self.segment.token_sequences(self.numbers)
        return self._reading


class Features(Protocol):
    """What is told of some chunks, chunk after chunk; it can be pickled."""

    @classmethod
    def merge(cls, parts: Sequence[Self], places: Sequence[Offsets]) -> Self:
        """Return the evidence of several segments' chunks; `places` are those that each segment's chunks take in it."""

    def take(self, kept: Offsets) -> Self:
        """Return the evidence of some of the chunks, in ascending order."""


E = TypeVar("E", bound=Features)
T = TypeVar("T")

FeatureExtractor: TypeAlias = Callable[[ChunkBatch], E]
"""What is asked of a segment about some of its chunks: a function that can be pickled."""


@frozen(eq=False)
class NumericFeatures:
    """Evidence that is a few numbers of each chunk, shape (k, n)."""

    values: Floats

    @classmethod
    def merge(cls, parts: Sequence[NumericFeatures], places: Sequence[Offsets]) -> NumericFeatures:
        """Return those of several segments' chunks."""
        values = np.empty((len(parts[0].values), sum(part.size for part in places)))
        for part, place in zip(parts, places, strict=True):
            values[:, place] = part.values
        return cls(values)

    def take(self, kept: Offsets) -> NumericFeatures:
        """Return those of some of the chunks."""
        return NumericFeatures(self.values[:, kept])


def merged(parts: Sequence[E | None], places: Sequence[Offsets]) -> E | None:
    """Return the evidence of several segments' chunks together; None where any of them could not tell."""
    told = [part for part in parts if part is not None]
    if len(told) < len(parts):
        return None
    return told[0] if len(told) == 1 else type(told[0]).merge(told, places)


@frozen(eq=False)
class StoredFields(Generic[T]):
    """What some chunks hold, such as texts: a row of each, in order."""

    rows: list[T]

    @classmethod
    def merge(cls, parts: Sequence[StoredFields[T]], places: Sequence[Offsets]) -> StoredFields[T]:
        """Return those of several segments' chunks."""
        at = [place for some in places for place in some.tolist()]
        rows = [row for part in parts for row in part.rows]
        return StoredFields(
            [row for _, row in sorted(zip(at, rows, strict=True), key=lambda one: one[0])]
        )

    def take(self, kept: Offsets) -> StoredFields[T]:
        """Return those of some of the chunks."""
        return StoredFields([self.rows[place] for place in kept.tolist()])


def contents(excerpt: ChunkBatch) -> StoredFields[tuple[str, Metadata, str]]:
    """Return texts, metadata and titles of some chunks."""
    chunks, numbers = excerpt.segment.chunks, excerpt.numbers.tolist()
    return StoredFields(
        [(chunks.texts[one], chunks.metadata_of(one), chunks.title_of(one)) for one in numbers]
    )


def if_short(inquiry: FeatureExtractor[E], excerpt: ChunkBatch) -> E | None:
    """Return what is asked of some chunks, or None if their texts are long, and so the answer may be."""
    texts = excerpt.segment.chunks.texts
    n_chars = sum(len(texts[number]) for number in excerpt.numbers.tolist())
    return inquiry(excerpt) if n_chars <= _SHORT_CHARS else None
