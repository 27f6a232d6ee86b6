"""The search port for segments in this process: loops over segments and merges responses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np

from relevance_gen.arrays import Offsets, concat, unique
from relevance_gen.forks import LazyAttribute
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.lru import LruCache
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.retrieval.ports import (
    CandidateRequest,
    Candidates,
    FeatureRequest,
    Inventory,
    InventoryRequest,
    MatchRequest,
    MatchResponse,
    compute_sample,
    merge_extracted,
)
from relevance_gen.retrieval.query.parsing import MAX_CACHED_CHARS
from relevance_gen.retrieval.ranking.sparse_vectors import Sample
from relevance_gen.retrieval.ranking.stage import Ranking
from relevance_gen.retrieval.ranking.top_n import best_rows
from relevance_gen.retrieval.segment_scorer import SegmentScorer
from relevance_gen.retrieval.weighting import Weighting

_RANKINGS_BYTES: Final = 1 << 20


class LocalSegments:
    """Segments in this process, with disjoint positions.

    Implements `relevance_gen.retrieval.ports.Segments`.

    Args:
        segments: the segments.
        weighting: the weighting of terms.
        previous: the segments before a change, from which the cached postings of unchanged
            segments are reused.
    """

    def __init__(
        self,
        segments: Iterable[Segment],
        weighting: Weighting,
        previous: LocalSegments | None = None,
    ) -> None:
        self.segments = tuple(segments)
        self.weighting = weighting
        self.statistics = sum(map(weighting.statistics, self.segments), Statistics())
        caches = {}
        if previous is not None:
            for scorer in previous.scorers:
                caches[id(scorer.segment.postings)] = scorer.postings_cache
        scorers = []
        for segment in self.segments:
            cache = caches.get(id(segment.postings))
            scorers.append(SegmentScorer(segment, weighting, self.statistics, cache))
        self.scorers: Sequence[SegmentScorer] = scorers
        self.rankings = ranking_cache()

    @classmethod
    def of_scorers(
        cls, scorers: Sequence[SegmentScorer], weighting: Weighting, statistics: Statistics
    ) -> LocalSegments:
        """Return an object that searches only a subset of the segments of an index.

        Args:
            scorers: the scorers of the segments in the subset.
            weighting: the weighting of terms.
            statistics: the statistics of all segments of the index, including those that are not in
                the subset.
        """
        part = cls((), weighting)
        part.segments = tuple(scorer.segment for scorer in scorers)
        part.scorers, part.statistics = scorers, statistics
        return part

    @LazyAttribute
    def sample(self) -> Sample:
        """Term statistics of a fixed sample of the chunks, computed on first use."""
        return compute_sample(self)

    @property
    def n_terms(self) -> int:
        """Number of distinct terms of all chunks."""
        ids = []
        for segment in self.segments:
            postings = segment.postings
            ids.append(postings.lexicon.ids[postings.df_of_all() > 0])
        return unique(concat(ids, np.uint64)).size

    @property
    def nbytes(self) -> int:
        """Size of the segments and of all caches in bytes."""
        segment_bytes = sum(scorer.segment.nbytes + scorer.cache_bytes for scorer in self.scorers)
        return segment_bytes + self.rankings.nbytes

    # ── The search port ───────────────────────────────────────────────────────────────────────────

    def match_terms(self, request: MatchRequest) -> MatchResponse:
        """Return the terms that words of the query match, in all segments together."""
        raise_if_cancelled()
        if len(self.scorers) == 1:
            return self.scorers[0].match_terms(request)
        parts = [scorer.match_terms(request) for scorer in self.scorers]
        return MatchResponse.merge(parts, request)

    def top_candidates(self, request: CandidateRequest) -> Candidates:
        """Return the chunks with the highest lexical scores.

        `Candidates.features` has the features of the best `request.n_features` of these chunks.
        """
        raise_if_cancelled()
        if len(self.scorers) == 1:
            candidates = self.scorers[0].top_candidates(request)
        else:
            parts = [scorer.top_candidates(request) for scorer in self.scorers]
            candidates = Candidates.merge(parts, request)
        if not request.n_features:
            return candidates
        rows = best_rows(candidates.scores, candidates.is_allowed, request.n_features)
        positions = candidates.positions[rows]
        features: list[Any] = [None] * len(request.features)
        specs = []
        for spec in request.features:
            if spec.max_chunks is None or positions.size <= spec.max_chunks:
                specs.append(spec)
        if specs and positions.size:
            extracted = self.extract_features(FeatureRequest(positions, tuple(specs)))
            for spec, spec_features in zip(specs, extracted, strict=True):
                features[request.features.index(spec)] = spec_features
        return Candidates(
            positions=candidates.positions,
            scores=candidates.scores,
            is_verbatim=candidates.is_verbatim,
            is_allowed=candidates.is_allowed,
            feature_positions=positions,
            features=tuple(features),
        )

    def extract_features(self, request: FeatureRequest) -> tuple[Any, ...]:
        """Return the features of chunks, one `Features` for each spec of the request.

        Raises:
            LookupError: a position has no chunk in any segment.
        """
        rows, features = self.extract_present_features(request)
        if rows.size < request.positions.size:
            raise LookupError("no segment has a chunk at one of the positions")
        return features

    def extract_present_features(self, request: FeatureRequest) -> tuple[Offsets, tuple[Any, ...]]:
        """Extract the features of those chunks of a request that are in these segments.

        Returns:
            The indices in `request.positions` of the chunks that are in these segments, ascending,
            and the features of these chunks in that order, one `Features` for each spec.
        """
        raise_if_cancelled()
        if len(self.scorers) == 1:
            return self.scorers[0].extract_features(request)
        parts = []
        for scorer in self.scorers:
            part = scorer.extract_features(request)
            if part[0].size:
                parts.append(part)
        return merge_extracted(parts)

    def inventory(self, request: InventoryRequest) -> Inventory:
        """Return facts about the stored chunks, such as their positions and metadata keys."""
        raise_if_cancelled()
        return Inventory.merge([scorer.inventory(request) for scorer in self.scorers], request)


def ranking_cache() -> LruCache[Ranking]:
    """Return a cache of rankings by query, valid as long as the chunks are the same."""
    return LruCache(_RANKINGS_BYTES, lambda ranking: ranking.nbytes + 4 * MAX_CACHED_CHARS)
