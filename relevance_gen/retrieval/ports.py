"""The search port: the interface that a machine, a folder or a cluster implements for search.

Requests and responses are values: they hold no functions except the callable of a `Filter`, and can
be pickled if this callable can. A search usually makes two or three requests:

1. `Segments.match_terms`: which terms does each word of the query match, and in how many chunks
   does each occur?
2. `Segments.top_candidates`: which chunks have the highest lexical scores, and which features do
   they have?
3. `Segments.extract_features`: features of the chunks that are returned, such as their texts.

`relevance_gen.retrieval.local_segments` answers for segments in this process. Results do not depend
on the division of chunks into segments, nor of segments among machines: the responses of segments
are merged, in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np
from attrs import field, frozen

from relevance_gen.arrays import Flags, Floats, Ids, Offsets, concat
from relevance_gen.index.segment import Statistics
from relevance_gen.lru import LruCache
from relevance_gen.retrieval.query.filters import Filter
from relevance_gen.retrieval.query.term_matching import Match, QueryTerm
from relevance_gen.retrieval.ranking.sparse_vectors import SAMPLE_SIZE, Sample
from relevance_gen.retrieval.ranking.stage import (
    FeatureRequest as FeatureRequest,
)
from relevance_gen.retrieval.ranking.stage import (
    FeatureSource,
    FeatureSpec,
    Ranking,
    TermPrefixes,
    WeightedTerms,
    merge_features,
)
from relevance_gen.retrieval.ranking.top_n import best_rows
from relevance_gen.retrieval.weighting import Weighting

_NO_POSITIONS: Final[Offsets] = np.zeros(0, np.int64)
_NO_FLAGS: Final[Flags] = np.zeros(0, bool)


class Segments(FeatureSource, Protocol):
    """The chunks that a search ranks, in this process or elsewhere.

    An instance never changes, and is thread-safe.
    """

    @property
    def statistics(self) -> Statistics:
        """Facts of all chunks that scores depend on, such as their number; see `Statistics`."""

    @property
    def weighting(self) -> Weighting:
        """The weighting of terms, and the stages of a score."""

    @property
    def rankings(self) -> LruCache[Ranking]:
        """Cache of rankings by query; its entries are valid as long as the chunks are the same."""

    def match_terms(self, request: MatchRequest) -> MatchResponse:
        """Return the terms that words of the query match, in all segments together.

        The response also has the near terms and the spellings that the request lists.
        """

    def top_candidates(self, request: CandidateRequest) -> Candidates:
        """Return the chunks with the highest lexical scores, and features of the best of them."""

    def inventory(self, request: InventoryRequest) -> Inventory:
        """Return facts about the stored chunks, such as their positions and metadata keys."""


# ── Terms ─────────────────────────────────────────────────────────────────────────────────────────


@frozen
class MatchRequest:
    """What to look up in the dictionaries of the segments.

    The request lists words of the query, misspelled words for which similar terms are returned, and
    ids of terms whose spellings are returned.
    """

    terms: tuple[QueryTerm, ...] = ()
    """Words of the query; inflected words match several terms."""
    misspelled: tuple[str, ...] = ()
    """Words for which the terms at edit distance 1 are returned."""
    term_ids: tuple[int, ...] = ()
    """Ids of terms whose spellings are returned."""
    with_all_terms: bool = False
    """Whether terms that begin differently from the words of the query are requested."""


@frozen(eq=False)
class MatchResponse:
    """The response to a `MatchRequest`, from one segment or several.

    It has the terms that each word of the query matches, the terms at edit distance 1 of each
    misspelled word, and the spellings of the requested term ids.
    """

    matches: tuple[Match, ...] = ()
    """For each of `MatchRequest.terms`: the terms that it matches, and the number of chunks with
    any of them."""
    near_terms: tuple[Mapping[str, int], ...] = ()
    """For each of `MatchRequest.misspelled`: terms at edit distance 1, with the number of chunks
    that have each."""
    spellings: Mapping[int, str] = field(factory=dict)
    """Spellings of the `MatchRequest.term_ids` that any segment has."""

    @classmethod
    def merge(cls, parts: Sequence[MatchResponse], request: MatchRequest) -> MatchResponse:
        """Return the response of several segments together; `parts` may be empty."""
        if len(parts) == 1:
            return parts[0]
        matches = []
        for i in range(len(request.terms)):
            matches.append(Match.union([part.matches[i] for part in parts]))
        near_terms = []
        for i in range(len(request.misspelled)):
            counts = Counter[str]()
            for part in parts:
                counts.update(part.near_terms[i])
            near_terms.append(counts)
        spellings: dict[int, str] = {}
        for part in parts:
            spellings |= part.spellings
        return cls(tuple(matches), tuple(near_terms), spellings)


# ── Candidates ────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class CandidateRequest:
    """A request for the chunks with the highest lexical scores.

    The `features` are extracted from the best `n_features` chunks overall and the best `n_features`
    that pass the filter (see `best_rows`), so that most queries need no further request. If the
    number of chunks that this selects exceeds the `FeatureSpec.max_chunks` of a spec, the response
    has None instead of the features of that spec.
    """

    terms: WeightedTerms
    n: int
    """Number of chunks, n: the best n of all chunks, and the best n that pass the filter; ties add
    more."""
    filter: Filter | None = None
    includes_unmatched: bool = False
    """Whether all chunks that pass the filter are candidates, including those without a term of the
    query."""
    n_features: int = 0
    features: tuple[FeatureSpec, ...] = ()
    later_features: tuple[FeatureSpec, ...] = ()
    """Features that may be requested later for some of these chunks; a remote implementation may
    extract them now."""


@frozen(eq=False)
class Candidates:
    """Chunks that may be results, with lexical scores, and the features of the best chunks."""

    positions: Offsets  # positions of the chunks, ascending, shape (n,)
    scores: Floats  # lexical score of each, shape (n,)
    is_verbatim: Flags  # whether a chunk has exactly the terms of the query, shape (n,)
    is_allowed: Flags  # whether a chunk passes the filter, shape (n,)
    # positions of the chunks with features, ascending, shape (k,)
    feature_positions: Offsets = _NO_POSITIONS
    # for each spec of the request the features of these chunks, or None
    features: tuple[Any, ...] = ()

    @classmethod
    def merge(cls, parts: Sequence[Candidates], request: CandidateRequest) -> Candidates:
        """Return the candidates of several segments together.

        Parts without chunks that have features are ignored when features are merged. The merged
        features of a spec are None if they are None in any other part.
        """
        if len(parts) == 1:
            return parts[0]
        positions = concat((part.positions for part in parts), np.int64)
        scores = concat((part.scores for part in parts), np.float64)
        is_verbatim = np.concatenate([_NO_FLAGS, *(part.is_verbatim for part in parts)])
        is_allowed = np.concatenate([_NO_FLAGS, *(part.is_allowed for part in parts)])
        is_selected = is_verbatim | request.includes_unmatched
        if not request.includes_unmatched:
            is_selected[best_rows(scores, is_allowed, request.n)] = True
        rows = is_selected.nonzero()[0]
        rows = rows[positions[rows].argsort()]
        # Features of chunks that are not among the merged candidates do no harm.
        parts = [part for part in parts if part.feature_positions.size]
        feature_positions = np.sort(concat((part.feature_positions for part in parts), np.int64))
        feature_rows = [feature_positions.searchsorted(part.feature_positions) for part in parts]
        features = []
        for of_spec in zip(*(part.features for part in parts), strict=True):
            features.append(merge_features(of_spec, feature_rows))
        return cls(
            positions=positions[rows],
            scores=scores[rows],
            is_verbatim=is_verbatim[rows],
            is_allowed=is_allowed[rows],
            feature_positions=feature_positions,
            features=tuple(features),
        )


# ── Inventory ─────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class InventoryRequest:
    """The facts of the stored chunks to compute, such as positions, metadata keys or a sample.

    The number of chunks is always computed, other facts only if requested.
    """

    with_positions: bool = False
    """Whether to return the positions of all chunks, or of all that pass `filter`."""
    filter: Filter | None = None
    occupied: Offsets | None = None
    """Positions for which to return whether a chunk is stored there."""
    with_metadata_keys: bool = False
    sample_size: int = 0
    """Number of chunks with the smallest hashes whose positions are returned."""


@frozen(eq=False)
class Inventory:
    """Facts about the stored chunks: number, positions, metadata keys and a sample of hashes.

    Facts that an `InventoryRequest` does not request are not computed. No fact depends on a query.
    """

    n_chunks: int
    """Number of chunks in the segments that responded."""
    positions: Offsets = _NO_POSITIONS  # ascending
    is_occupied: Flags = _NO_FLAGS  # in the order of `InventoryRequest.occupied`
    metadata_keys: frozenset[str] | None = None
    """Keys of the metadata of any chunk; None if not requested, or if segments are missing."""
    sample_hashes: Ids = field(factory=lambda: np.zeros(0, np.uint64))  # shape (s,)
    # positions of the chunks with these hashes, shape (s,)
    sample_positions: Offsets = _NO_POSITIONS

    @classmethod
    def merge(cls, parts: Sequence[Inventory], request: InventoryRequest) -> Inventory:
        """Return the facts of several segments together."""
        metadata_keys = None
        if request.with_metadata_keys and all(part.metadata_keys is not None for part in parts):
            metadata_keys = frozenset().union(*(part.metadata_keys or () for part in parts))
        is_occupied = _NO_FLAGS
        if request.occupied is not None:
            is_occupied = np.zeros(request.occupied.size, bool)
            for part in parts:
                is_occupied |= part.is_occupied
        hashes = concat((part.sample_hashes for part in parts), np.uint64)
        smallest = np.argsort(hashes, kind="stable")[: request.sample_size]
        sample_positions = concat((part.sample_positions for part in parts), np.int64)
        return cls(
            n_chunks=sum(part.n_chunks for part in parts),
            positions=np.sort(concat((part.positions for part in parts), np.int64)),
            is_occupied=is_occupied,
            metadata_keys=metadata_keys,
            sample_hashes=hashes[smallest],
            sample_positions=sample_positions[smallest],
        )


@frozen(eq=False)
class ExtractedFeatures:
    """The features of those chunks of a `FeatureRequest` that some segments have."""

    rows: Offsets  # indices of these chunks in `FeatureRequest.positions`, ascending, shape (n,)
    features: tuple[Any, ...] = ()  # their features for each spec; empty if there are no chunks

    @classmethod
    def merge(cls, parts: Sequence[ExtractedFeatures]) -> ExtractedFeatures:
        """Return the features that several segments extracted for one request.

        Args:
            parts: the features of the segments, which have different chunks.
        """
        parts = [part for part in parts if part.rows.size]
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return cls(_NO_POSITIONS)
        rows = np.sort(np.concatenate([part.rows for part in parts]))
        rows_of_parts = [rows.searchsorted(part.rows) for part in parts]
        features = []
        for of_spec in zip(*[part.features for part in parts], strict=True):
            features.append(merge_features(of_spec, rows_of_parts))
        return cls(rows, tuple(features))


def compute_sample(segments: Segments) -> Sample:
    """Return the number of sample chunks that have each word prefix.

    The sample consists of the `SAMPLE_SIZE` chunks with the smallest hashes of their words; see
    `Sample`.
    """
    inventory = segments.inventory(InventoryRequest(sample_size=SAMPLE_SIZE))
    request = FeatureRequest(np.sort(inventory.sample_positions), (TermPrefixes(),))
    return Sample.of(segments.extract_features(request)[0])
