"""Scoring stages: what a stage requests from chunks, and the table of candidates that it updates.

A score is computed by a list of stages. Each stage selects candidates from the table, extracts
features of them, and updates their scores.

Features are values of chunks. They are declared as data and extracted where the chunks are stored:
a stage declares a `FeatureSpec`, a small value that can be pickled, and the machine that stores the
chunks calls `FeatureSpec.extract`. The features of chunks in several segments, or on several
machines, are then merged.

To add a stage, write a file in `relevance_gen.retrieval.stages`, and add the fields that explain it
to `relevance_gen.Explanation`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Protocol, Self

import numpy as np
from attrs import define, field, frozen

from relevance_gen.arrays import Flags, Floats, Ids, Offsets, find
from relevance_gen.index.chunks import copy_metadata
from relevance_gen.index.segment import Segment, Statistics, TokenSequences
from relevance_gen.retrieval.query.parsing import Query
from relevance_gen.retrieval.query.term_matching import Match, QueryTerm, TermPostings
from relevance_gen.retrieval.ranking.sparse_vectors import MAX_CHUNKS, Sample, SparseVector
from relevance_gen.retrieval.ranking.top_n import at_least_as_good
from relevance_gen.types import Metadata

N_STAGE_CANDIDATES: Final = 50
"""Number of chunks that a stage scores, without ties; 100 ranked no better in the collections
measured."""
MAX_STAGE_WORDS: Final = 32
"""Maximum number of query words that stages look for in chunks, without stop words: queries can be
very long."""
LEXICAL: Final = "lexical"
"""Column of the scores after the stages of the weighting, before the stages of models."""


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
        """Return the features of chunks, one `Features` for each spec of the request.

        Raises:
            LookupError: a position has no chunk in any segment.
        """


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
    """A feature spec that extracts text, metadata and title as one `ChunkFields` per chunk.

    The metadata is a copy, so that a caller who changes a result does not change the index.
    """

    def extract(self, batch: ChunkBatch) -> FeatureRows:
        """Return the stored fields of the chunks."""
        chunks = batch.reader.segment.chunks
        rows = []
        for chunk_ord in batch.chunk_ords.tolist():
            metadata = chunks.metadata.get(chunk_ord)
            fields = ChunkFields(
                text=chunks.texts[chunk_ord],
                metadata={} if metadata is None else copy_metadata(metadata),
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


@frozen(eq=False)
class WeightedTerms:
    """The terms of a query, weighted by the statistics of all chunks. It holds no postings."""

    query: Query
    matches: tuple[Match, ...]  # the terms that each word matches, in any chunk
    df: tuple[int, ...]  # number of chunks that have each
    idf: tuple[float, ...]  # inverse document frequency of each; 0 for a word without weight
    weights: tuple[float, ...]  # query weight of each, divided by the query's norm
    norm: float  # Euclidean length of the query, of its words that occur in a chunk
    token_ids: Ids  # ids of the query's tokens that occur in a chunk, ascending, shape (T,)
    statistics: Statistics  # facts of all chunks, without arrays

    @property
    def rarest(self) -> list[int]:
        """Indices in `query.terms` of the rarest words, rarest first, at most `MAX_STAGE_WORDS`.

        Only words that occur in a chunk and have an idf above 0 are included.
        """
        known = [i for i, n_chunks in enumerate(self.df) if n_chunks and self.idf[i]]
        return sorted(known, key=self.idf.__getitem__, reverse=True)[:MAX_STAGE_WORDS]

    @property
    def subject(self) -> list[int]:
        """Indices in `query.terms` of the words with an idf above 0.

        Stop words are left out if any of the other words occurs in a chunk.
        """
        weighted = [i for i, idf in enumerate(self.idf) if idf]
        content = [i for i in weighted if not self.query.terms[i].is_stop_word]
        for i in content:
            if self.df[i]:
                return content
        return weighted

    @property
    def matches_no_content_word(self) -> bool:
        """Whether the query has words other than stop words, none of which occurs in a chunk."""
        has_content_words = False
        for n_chunks, term in zip(self.df, self.query.terms, strict=True):
            if not term.is_stop_word:
                has_content_words = True
                if n_chunks:
                    return False
        return has_content_words


@frozen
class SelfMatch:
    """Values of a query that is matched against itself, from which its own score is computed.

    The scores of chunks are divided by this score.
    """

    cosine: float  # cosine of the query with itself as a chunk
    denominator: float  # the length normalization of that chunk, times the query's norm
    unknown_idf: float = 0.0  # sum of the idf of words that occur in no chunk


class Stage:
    """One step in the computation of a score, created for one query.

    A stage updates the scores of candidates: it adds one or more parts to them, rescales them, or
    replaces them.
    """

    order: ClassVar[float | None] = None
    """Position among the stages of the weighting ``pivoted``, distinct and ascending; None for all
    other stages."""
    parts: ClassVar[tuple[str, ...]] = ()
    """Fields of `Explanation`, and columns of the table, with the values that the stage adds; none
    if it only rescales scores."""
    is_after_normalization: ClassVar[bool] = False
    """Whether the stage changes normalized scores; otherwise it adds to the sum that is
    normalized."""
    n_best: ClassVar[int] = 0
    """Number of chunks, the best by lexical score and their ties, that the stage scores; 0 if it
    needs no features."""
    features: FeatureSpec | None = None
    """Features to extract together with the candidates, of the best `N_STAGE_CANDIDATES`."""

    @classmethod
    def of(cls, terms: WeightedTerms) -> Stage | None:
        """Return the stage for a query; None if it does not change the scores of the query."""
        del terms
        return cls()

    def score(self, table: CandidateTable, segments: FeatureSource) -> None:
        """Update the scores in `table`.

        What the stage adds to the score of each chunk is stored in the columns of the table that
        are named in `parts`. By default, these are the `features` of the chunks at `stage_rows`.
        """
        if self.features is not None:
            features = table.extract(self.features, table.stage_rows, segments)
            table.add(self.parts, table.stage_rows, features.values)

    def self_score(self, total: float, own: SelfMatch) -> float:
        """Return the score, after this stage, of a chunk that is identical to the query.

        Args:
            total: the score of this chunk before this stage.
            own: values of the query as a chunk, such as its length normalization, from which the
                stage computes what it adds.
        """
        del own
        return total

    def contributions(
        self,
        row: Mapping[str, float],
        score: float,
    ) -> dict[str, float]:
        """Return the contributions to one chunk's score, by the names in `parts`.

        For a stage before normalization, a contribution is a summand of the sum that is normalized.
        For a stage after it, a contribution is the part of `score` that is due to the stage.

        Args:
            row: the chunk's value in each column of the table.
            score: the chunk's lexical score.
        """
        del score
        return {part: row[part] for part in self.parts}


class RerankStage(Stage, ABC):
    """A stage that updates the scores of the best results after the lexical stages.

    It assigns a new array of scores to the table, and does not change the old array, which
    explanations read.
    """

    is_after_normalization = True
    includes_unmatched: ClassVar[bool] = False
    """Whether the stage scores chunks without a term of the query."""
    n_candidates: int | None
    """Number of results, the best by score and their ties, that the stage scores; None: all
    chunks."""

    def candidate_rows(self, table: CandidateTable) -> Offsets:
        """Return the rows of the best `n_candidates` chunks that pass the filter, with ties.

        Ties for the last place are left out if there are more than `n_candidates` + `MAX_CHUNKS`
        rows with them. If `n_candidates` is None, the rows of all candidates that pass the filter
        are returned.
        """
        n = self.n_candidates
        if n is None:
            return table.allowed_rows
        return table.best_of(table.allowed_rows, n, n + MAX_CHUNKS)

    @abstractmethod
    def explain(
        self, table: CandidateTable, row: int, before: float, after: float
    ) -> dict[str, Any]:
        """Return what this stage contributes to the score of the chunk at a row of the table.

        The score after the stage minus these contributions is the scaled score before the stage:
        all parts of that score are multiplied by the same factor.

        Args:
            table: the candidates.
            row: the row of the chunk.
            before: the score of the chunk before this stage.
            after: the score of the chunk after this stage.

        Returns:
            Values by names of fields of `Explanation`: for each of `parts` that the stage returns,
            its contribution; other fields are copied into the explanation.
        """


@frozen(eq=False)
class ScoreNormalization(Stage):
    """Divides scores by the score of the query matched against itself, and bounds them to [0, 1].

    1.0 then means "as good as a chunk with exactly the query's terms", for every query and
    collection.
    """

    bound: Callable[[Floats], Floats]  # maps scores above 1 into [0, 1]

    def score(self, table: CandidateTable, segments: FeatureSource) -> None:
        """Normalize all scores; a chunk with exactly the terms of the query scores 1."""
        del segments
        table.scores = self.bound(table.scores / table.query.reference)
        table.scores[table.is_verbatim] = 1.0


@frozen(eq=False)
class WeightedQuery:
    """A query with its weighted terms and the stages that score it."""

    terms: WeightedTerms
    stages: tuple[Stage, ...]  # in the order in which they run
    cosine: float  # cosine of the query matched against itself
    # score of the query matched against itself, before normalization; divides all scores
    reference: float
    # the reference, divided by that of the query with its unknown words, in (0, 1]
    known_share: float


@frozen(eq=False)
class Ranking:
    """Chunks with their scores, and facts of the query for the response."""

    positions: Offsets  # positions of the chunks, best first, shape (n,)
    scores: Floats  # shape (n,)
    terms: WeightedTerms  # the terms of the query, after spelling correction
    # Calibrated probability that the chunks that pass the filter have an answer, in [0, 1].
    confidence: float

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        n_bytes = self.positions.nbytes + self.scores.nbytes + self.terms.query.ids.nbytes
        for match in self.terms.matches:
            n_bytes += match.nbytes
        return n_bytes

    def take(self, rows: Offsets) -> Ranking:
        """Return the chunks at the given rows."""
        positions, scores = self.positions.take(rows), self.scores.take(rows)
        return Ranking(positions, scores, self.terms, self.confidence)


@define(eq=False)
class CandidateTable:
    """Candidates with their scores and a column for each part of the score.

    Stages update the table in place. Stages that run before the normalization score the chunks at
    `stage_rows`: the chunks that are best by lexical score, and those that are best among the
    chunks that pass the filter. The score of a chunk must not depend on the filter. Therefore, a
    stage that compares a chunk with other chunks uses those at `top_rows`, which are the best by
    lexical score regardless of the filter.
    """

    query: WeightedQuery
    positions: Offsets  # positions of the chunks, ascending, shape (n,)
    scores: Floats  # current scores, shape (n,)
    is_verbatim: Flags  # whether a chunk has exactly the terms of the query, shape (n,)
    allowed_rows: Offsets  # rows of the chunks that pass the filter, ascending
    top_rows: Offsets  # rows of the best chunks by lexical score, ascending
    # rows of the chunks that stages score, ascending; features were extracted for them
    stage_rows: Offsets
    features: Mapping[FeatureSpec, Any]  # features of the chunks at `stage_rows`
    columns: dict[str, Floats] = field(factory=dict)  # values that stages stored, shape (n,) each
    scores_before: list[Floats] = field(factory=list)  # the scores before each rerank stage
    # rows of the chunks whose passages were compared with the query, and the nearest passage of
    # each, shape (3, m)
    nearest: tuple[Offsets, Floats] | None = None

    def extract(self, spec: FeatureSpec, rows: Offsets, segments: FeatureSource) -> Any:
        """Return the features of the chunks at the given rows.

        The features are read from the table if they came with the candidates; otherwise they are
        requested from `segments`.
        """
        features = self.features.get(spec)
        if features is not None:
            if rows is self.stage_rows or np.array_equal(rows, self.stage_rows):
                return features
            indices = find(self.stage_rows, rows)
            if (indices >= 0).all():
                return features.take(indices)
        request = FeatureRequest(self.positions.take(rows), (spec,))
        return segments.extract_features(request)[0]

    def best_of(self, rows: Offsets, n: int, max_rows: int) -> Offsets:
        """Return the best n of the given rows with ties.

        Ties for the last place are left out if they would exceed `max_rows` rows.
        """
        best: Offsets = rows.take(at_least_as_good(self.scores.take(rows), n))
        if best.size <= max_rows:
            return best
        scores = self.scores[best]
        without_last: Offsets = best[scores > scores.min()]
        return without_last

    def add(self, parts: Sequence[str], rows: Offsets, values: Floats) -> None:
        """Add k parts, shape (k, m), to the scores of the chunks at m rows.

        The parts are stored as columns, with 0 in other rows.
        """
        columns = values
        if rows.size < self.scores.size:
            columns = np.zeros((len(parts), self.scores.size))
            columns[:, rows] = values
        self.columns.update(zip(parts, columns, strict=True))
        self.scores += np.add.reduce(columns)
