"""Implements the protocol `Segments` for the shards of one version of an index in a cluster.

The requests of a search (see `relevance_gen.retrieval.ports`) are sent to the searchers of the
cluster.
"""

from __future__ import annotations

import functools
import math
import pickle
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any, Final

import numpy as np
from attrs import evolve, frozen
from ray import cloudpickle

from relevance_gen.arrays import Offsets, find
from relevance_gen.cluster.search.pool import SearcherPool
from relevance_gen.cluster.search.searcher import ShardGroup
from relevance_gen.lru import LruCache
from relevance_gen.retrieval.local_segments import LocalSegments, ranking_cache
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
from relevance_gen.retrieval.query.parsing import QueryTerm
from relevance_gen.retrieval.query.term_matching import TermMatch
from relevance_gen.retrieval.ranking.sparse_vectors import Sample
from relevance_gen.retrieval.ranking.stage import STORED_FIELDS, merge_features
from relevance_gen.retrieval.ranking.top_n import best_rows
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.versions import IndexVersion, ShardRecord

_MAX_PREFETCHED: Final = 100
"""A searcher sends later features only with at most this number of candidates; there are more
candidates only if many have equal scores."""
_MAX_PREFETCHED_CHARS: Final = 1 << 16
"""A searcher sends later features only if its candidates' texts have at most this number of
characters."""
_DEVIATIONS: Final = 3.0
"""Standard deviations above its share of the best chunks for which a searcher sends features with
its candidates."""
_TERM_CACHE_BYTES: Final = 8 << 20
"""Size of the cache of term matches, about 10,000 words."""


class RemoteSegments:
    """The shards of one version of an index; implements `relevance_gen.retrieval.ports.Segments`.

    If all words of a query were searched before, a search sends a single request to each searcher:
    `match_terms` uses cached matches, and the response to `top_candidates` also contains the
    features of the best candidates that `extract_features` returns later, including their texts.
    If these texts are long, they are not in that response, and `extract_features` sends a second
    request.

    Every method raises what `SearcherPool.ask` raises.

    Args:
        pool: the searchers.
        location: the location of the index.
        version: the version of the index.
        excluded: names of shards that are not searched.
        previous: segments of the same version and the same shards, whose caches are used; None for
            new caches.
    """

    def __init__(
        self,
        pool: SearcherPool,
        location: str,
        version: IndexVersion,
        excluded: Collection[str] = (),
        previous: RemoteSegments | None = None,
    ) -> None:
        self.weighting = weighting_named(version.weighting)
        self.statistics = version.statistics
        self.version = version
        self.n_missing_chunks = 0
        self._pool = pool
        self._location = location
        self._thread = threading.local()
        self._shards = []
        for shard in version.shards:
            if shard.file.name in excluded:
                self.n_missing_chunks += shard.n_chunks
            else:
                self._shards.append(shard)
        self._generation = pool.generation
        self.orders = pool.orders(version.shards, version.index_id)
        self.rankings = ranking_cache()
        self._terms: LruCache[TermMatch] = LruCache(
            _TERM_CACHE_BYTES, lambda term_match: term_match.match.nbytes
        )
        if previous is not None:
            self.rankings, self._terms = previous.rankings, previous._terms
            if "sample" in vars(previous):
                self.sample = previous.sample

    @functools.cached_property
    def sample(self) -> Sample:
        """Term statistics of a fixed sample of the chunks, computed on first use."""
        return compute_sample(self)

    @property
    def is_current(self) -> bool:
        """Whether no searcher was added or removed since the shards were assigned to searchers."""
        return self._pool.generation == self._generation

    def without(self, excluded: Collection[str]) -> RemoteSegments:
        """Return the segments of the same version without the shards whose names are `excluded`."""
        if not excluded:
            return self
        return RemoteSegments(self._pool, self._location, self.version, excluded)

    def request_all_shards(self) -> None:
        """Send a request to the first searcher of each shard, which opens the shard if necessary.

        The method returns when all shards are open.
        """
        self.inventory(InventoryRequest())

    @property
    def group(self) -> ShardGroup:
        """The group of all shards that are searched, without the excluded shards."""
        return self._group(self._shards)

    # ── The search port ───────────────────────────────────────────────────────────────────────────

    def match_terms(self, request: MatchRequest) -> MatchResponse:
        """Return the terms of the index that the words of the query match.

        Cached matches are used; the others are requested from the searchers and cached.
        """
        terms = {_key(term): term for term in request.terms}
        matches = self._terms.get_all([*terms])
        missing = [key for key in terms if key not in matches]
        response = MatchResponse()
        if missing or request.misspelled or request.term_ids:
            sent = evolve(request, terms=tuple([terms[key] for key in missing]))
            parts = self._request(self._shards, LocalSegments.match_terms, sent)
            response = MatchResponse.merge(parts, sent)
            for key, match in zip(missing, response.matches, strict=True):
                self._terms.put(key, match)
                matches[key] = match
        in_order = [matches[_key(term)] for term in request.terms]
        return evolve(response, matches=tuple(in_order))

    def top_candidates(self, request: CandidateRequest) -> Candidates:
        """Return the chunks with the highest lexical scores, and features of the best of them.

        Each searcher returns the features of its own best chunks, from which the features of the
        best chunks overall are selected.
        """
        n_sent = min(request.n_features, self._n_expected_best(request.n_features))
        sent = evolve(request, n_features=n_sent)
        parts = self._request(self._shards, _prefetch, sent)
        prefetched = _merge_prefetched(parts, request)
        self._thread.prefetched = prefetched
        candidates = prefetched.candidates
        if not request.n_features:
            return candidates
        best = best_rows(candidates.scores, candidates.is_allowed, request.n_features)
        positions = candidates.positions[best]
        rows = find(candidates.feature_positions, positions)
        is_missing = bool(
            (rows < 0).any()
        )  # if one searcher has more of the best chunks than expected
        features: list[Any] = []
        for spec, spec_features in zip(request.features, candidates.features, strict=False):
            is_few = spec.max_chunks is None or positions.size <= spec.max_chunks
            if not is_few or spec_features is None:
                features.append(None)
            elif is_missing:
                features.append(self._extract(FeatureRequest(positions, (spec,)))[0])
            else:
                features.append(spec_features.take(rows))
        return evolve(candidates, feature_positions=positions, features=tuple(features))

    def _n_expected_best(self, n: int) -> int:
        """Return an upper estimate of how many of the n best chunks overall one searcher has.

        A searcher's share is n divided by the number of searchers that are first for a shard. The
        result is `_DEVIATIONS` standard deviations above this share, so few searchers have more
        if the chunks are distributed at random.
        """
        share = 1.0 / len({order[0].name for order in self.orders.values()})
        deviation = math.sqrt(n * share * (1.0 - share))
        return 1 + math.ceil(n * share + _DEVIATIONS * deviation)

    def extract_features(self, request: FeatureRequest) -> tuple[Any, ...]:
        """Return, for each spec of the request, the features of the requested chunks.

        The last call of `top_candidates` in this thread stored features of the best candidates. If
        these include all requested features, they are returned; otherwise the features are
        requested from the searchers.

        Raises:
            LookupError: a position is in no segment.
        """
        prefetched: _Prefetched | None = getattr(self._thread, "prefetched", None)
        known = None if prefetched is None else prefetched.find(request)
        if known is not None:
            return known
        return self._extract(request)

    def _extract(self, request: FeatureRequest) -> tuple[Any, ...]:
        """Request features of chunks from the searchers of the shards that have the chunks.

        Returns:
            For each spec of the request, the features of the chunks at ``request.positions``.

        Raises:
            LookupError: a position is in no segment.
        """
        shards = self._shards_with(request.positions)
        parts = []
        if shards:
            parts = self._request(shards, LocalSegments.extract_present_features, request)
        rows, features = merge_extracted([part for part in parts if part[0].size])
        if rows.size < request.positions.size:
            raise LookupError("no segment has a chunk at one of the positions")
        return features

    def inventory(self, request: InventoryRequest) -> Inventory:
        """Return the requested facts of the stored chunks, which do not depend on a query."""
        parts = self._request(self._shards, LocalSegments.inventory, request)
        return Inventory.merge(parts, request)

    def _shards_with(self, positions: Offsets) -> list[ShardRecord]:
        """Return all shards of every searcher that has a chunk at one of the positions.

        All shards of a searcher are returned because a searcher caches the segments of complete
        groups.
        """
        ascending = np.sort(positions)
        searchers = set()
        for shard in self._shards:
            start, stop = ascending.searchsorted((shard.first, shard.stop))
            if start < stop:
                searchers.add(self._searcher_of(shard))
        return [shard for shard in self._shards if self._searcher_of(shard) in searchers]

    def _searcher_of(self, shard: ShardRecord) -> str:
        return self.orders[shard.file.name][0].name

    def _group(self, shards: Iterable[ShardRecord]) -> ShardGroup:
        names = tuple(sorted(shard.file.name for shard in shards))
        return ShardGroup(self._location, self.version.name, names)

    def _request(
        self, shards: Sequence[ShardRecord], function: Callable[..., Any], request: Any
    ) -> list[Any]:
        """Call a function of `LocalSegments` on the searchers of shards, and return the responses.

        Args:
            shards: the shards.
            function: called with a searcher's segments of these shards and the request.
            request: the argument of the function.
        """
        # Only cloudpickle sends the code of a caller's filter; everything else is pickled faster by
        # name.
        has_filter = getattr(request, "filter", None) is not None
        dumps = cloudpickle.dumps if has_filter else pickle.dumps
        message = dumps((function, (request,), {}))
        return self._pool.ask(self._group(shards), self.orders, message)


@frozen(eq=False)
class _Prefetched:
    """Candidates, and features of the best candidates that `extract_features` may return later.

    Attributes:
        request: the request for the candidates.
        candidates: the merged candidates of all searchers.
        later_features: one item for each spec of `request.later_features`: the features of the
            candidates at `candidates.feature_positions`. An item is None if a searcher did not send
            these features, because it has too many candidates or their texts are too long.
    """

    request: CandidateRequest
    candidates: Candidates
    later_features: tuple[Any, ...]

    def find(self, request: FeatureRequest) -> tuple[Any, ...] | None:
        """Return the features for each spec of the request; None if any was not prefetched."""
        specs = self.request.later_features
        rows = find(self.candidates.feature_positions, request.positions)
        if (rows < 0).any():
            return None
        prefetched = []
        for spec in request.specs:
            features = self.later_features[specs.index(spec)] if spec in specs else None
            if features is None:
                return None
            prefetched.append(features.take(rows))
        return tuple(prefetched)


def _key(term: QueryTerm) -> tuple[int, str, bool, bool]:
    return term.term_id, term.word, term.is_inflected, term.is_prefix


def _prefetch(
    segments: LocalSegments, request: CandidateRequest
) -> tuple[Candidates, tuple[Any, ...]]:
    """Return the candidates in a searcher's segments, and features that may be requested later.

    Runs on the searcher. The second item of the result has, for each spec of
    `request.later_features`, the features of the candidates at `feature_positions`. Each is None if
    there are more than `_MAX_PREFETCHED` of these candidates or their texts have together more than
    `_MAX_PREFETCHED_CHARS` characters.
    """
    candidates = segments.top_candidates(request)
    positions = candidates.feature_positions
    later: tuple[Any, ...] = (None,) * len(request.later_features)
    if 0 < positions.size <= _MAX_PREFETCHED:
        fields = segments.extract_features(FeatureRequest(positions, (STORED_FIELDS,)))[0]
        if sum(len(chunk.text) for chunk in fields.rows) <= _MAX_PREFETCHED_CHARS:
            later = segments.extract_features(FeatureRequest(positions, request.later_features))
    return candidates, later


def _merge_prefetched(
    parts: Sequence[tuple[Candidates, tuple[Any, ...]]], request: CandidateRequest
) -> _Prefetched:
    candidates = Candidates.merge([part for part, _ in parts], request)
    rows, later = [], []
    for part, part_features in parts:
        if part.feature_positions.size:
            rows.append(candidates.feature_positions.searchsorted(part.feature_positions))
            later.append(part_features)
    merged = [merge_features(of_spec, rows) for of_spec in zip(*later, strict=True)]
    return _Prefetched(request, candidates, tuple(merged))
