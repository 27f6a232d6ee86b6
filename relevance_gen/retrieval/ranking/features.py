"""Features: values of chunks that scoring stages need.

They are declared as data and extracted where the chunks are stored. A stage declares a
`FeatureSpec`, a small value that can be pickled. The machine that stores the chunks calls
`FeatureSpec.extract`. The features of chunks in several segments, or on several machines, are then
merged.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, Final, Protocol, Self

import numpy as np
from attrs import define, field, frozen

from relevance_gen.arrays import Floats, Offsets
from relevance_gen.index.segment import Segment, Statistics, TokenSequences
from relevance_gen.retrieval.query.parsing import QueryTerm
from relevance_gen.retrieval.query.term_matching import Match, TermPostings
from relevance_gen.retrieval.ranking.sparse_vectors import MAX_CHUNKS, Sample, SparseVector
from relevance_gen.types import Metadata


class Features(Protocol):
    """Feature values of n chunks, in the order of the chunks; they can be pickled."""

    @classmethod
    def merge(cls, parts: Sequence[Self], rows: Sequence[Offsets]) -> Self:
        """Return the features of several segments' chunks together.

        Args:
            parts: the features of each segment's chunks.
            rows: the rows that each segment's chunks have in the result; together all of [0, n).
        """

    def take(self, rows: Offsets) -> Self:
        """Return the features of the chunks at the given rows, which must ascend."""


class SegmentReader(Protocol):
    """The parts of a segment scorer that feature extraction uses."""

    segment: Segment
    statistics: Statistics

    @property
    def denominators(self) -> Floats:
        """For each of the N chunks the divisor of its scalar product with the query, shape (N,).

        Division by it normalizes the score by the length of the chunk.
        """

    def postings_of(
        self, terms: Sequence[QueryTerm], matches: Sequence[Match | None]
    ) -> Iterator[TermPostings]:
        """Yield for each of `terms` the postings of its matched terms in the segment.

        `matches` has, for each of `terms`, the terms that it matches; for an element None they are
        looked up in the dictionary of the segment.
        """


@define(eq=False)
class ChunkBatch:
    """Chunks of one segment whose features are extracted together.

    Their tokens are read once, on first use.
    """

    reader: SegmentReader
    chunk_ords: Offsets  # ordinals of the chunks in the segment, shape (n,)
    _tokens: TokenSequences | None = field(default=None, init=False)

    @property
    def segment(self) -> Segment:
        """The segment of the chunks."""
        return self.reader.segment

    @property
    def denominators(self) -> Floats:
        """For each chunk the divisor as in `SegmentReader.denominators`, shape (n,)."""
        return self.reader.denominators.take(self.chunk_ords)

    @property
    def title_df(self) -> Offsets:
        """Number of chunks of all segments that have the chunk's title, shape (n,).

        The number for a chunk without a title is arbitrary.
        """
        statistics = self.reader.statistics
        title_ords = statistics.titles.searchsorted(self.segment.title_hashes.take(self.chunk_ords))
        return statistics.title_df.take(title_ords, mode="clip")

    @property
    def has_tokens(self) -> bool:
        """Whether `tokens` was used, so that another use does not read the tokens again."""
        return self._tokens is not None

    @property
    def tokens(self) -> TokenSequences:
        """The token sequences of the chunks."""
        if self._tokens is None:
            self._tokens = self.reader.segment.token_sequences(self.chunk_ords)
        return self._tokens


class FeatureSpec(ABC):
    """A declaration of features: a value that can be pickled and compared."""

    max_chunks: ClassVar[int | None] = None
    """Maximum number of chunks for which the features are extracted together with the candidates;
    None: no limit."""

    @abstractmethod
    def extract(self, batch: ChunkBatch) -> Any:
        """Return the `Features` of the chunks of one segment."""


@frozen(eq=False)
class FeatureRequest:
    """Features to extract from the chunks at the given positions, at least one position."""

    positions: Offsets  # distinct, in any order, shape (n,)
    specs: tuple[FeatureSpec, ...]


class FeatureSource(Protocol):
    """The part of the search port that stages use: it extracts features of candidates.

    `relevance_gen.retrieval.ports.Segments` implements it.
    """

    @property
    def sample(self) -> Sample:
        """Term statistics of a fixed sample of the chunks, computed on first use."""

    def extract_features(self, request: FeatureRequest) -> tuple[Any, ...]:
        """Return the features of chunks, one `Features` for each spec of the request."""


@frozen(eq=False)
class NumericFeatures:
    """k numbers for each chunk, shape (k, n)."""

    values: Floats

    @classmethod
    def merge(cls, parts: Sequence[NumericFeatures], rows: Sequence[Offsets]) -> NumericFeatures:
        """Return the features of several segments' chunks together."""
        n_chunks = sum(map(len, rows))
        values = np.empty((len(parts[0].values), n_chunks))
        for part, part_rows in zip(parts, rows, strict=True):
            values[:, part_rows] = part.values
        return cls(values)

    def take(self, rows: Offsets) -> NumericFeatures:
        """Return the features of the chunks at the given rows."""
        return NumericFeatures(self.values[:, rows])


@frozen(eq=False)
class FeatureRows:
    """One Python object for each chunk, such as its stored fields."""

    rows: list[Any]

    @classmethod
    def merge(cls, parts: Sequence[FeatureRows], rows: Sequence[Offsets]) -> FeatureRows:
        """Return the features of several segments' chunks together."""
        merged = [None] * sum(map(len, rows))
        for part, part_rows in zip(parts, rows, strict=True):
            for row, value in zip(part_rows.tolist(), part.rows, strict=True):
                merged[row] = value
        return cls(merged)

    def take(self, rows: Offsets) -> FeatureRows:
        """Return the features of the chunks at the given rows."""
        return FeatureRows([self.rows[row] for row in rows.tolist()])


@frozen
class ChunkFields:
    """The fields of one chunk that a search result contains: text, metadata and title."""

    text: str
    metadata: Metadata
    title: str


@frozen
class StoredFields(FeatureSpec):
    """A feature spec that extracts text, metadata and title as one `ChunkFields` per chunk."""

    def extract(self, batch: ChunkBatch) -> FeatureRows:
        """Return the stored fields of the chunks."""
        chunks = batch.reader.segment.chunks
        rows = []
        for chunk_ord in batch.chunk_ords.tolist():
            fields = ChunkFields(
                text=chunks.texts[chunk_ord],
                metadata=chunks.metadata.get(chunk_ord, {}),
                title=chunks.titles.get(chunk_ord, ""),
            )
            rows.append(fields)
        return FeatureRows(rows)


STORED_FIELDS: Final = StoredFields()


@frozen
class TermPrefixes(FeatureSpec):
    """A feature spec: a hash of the first five letters of each word, except stop words.

    `hash_prefixes` computes the hashes, so that different forms of a word often have equal ones.
    """

    max_chunks = MAX_CHUNKS

    def extract(self, batch: ChunkBatch) -> SparseVector:
        """Return the prefixes of the words of each chunk, one entry for each occurrence.

        If the segment stores no occurrences, and no other feature has read the tokens of the batch,
        the texts are tokenized again.
        """
        segment, chunk_ords = batch.reader.segment, batch.chunk_ords
        if segment.occurrences is None and not batch.has_tokens:
            hashes = segment.prefix_hashes(chunk_ords)
            return SparseVector(hashes, segment.n_occurrences[chunk_ords])
        return SparseVector.of_prefixes(batch.tokens)


def merge_features(parts: Sequence[Any], rows: Sequence[Offsets]) -> Any:
    """Return the merged features of the chunks of several segments; None if any part is None.

    The arguments are as for `Features.merge`.
    """
    for part in parts:
        if part is None:
            return None
    if len(parts) == 1:
        return parts[0]
    return type(parts[0]).merge(parts, rows)
