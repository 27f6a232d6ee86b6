"""Search the shards of one version of an index on the searchers of a cluster, as one collection."""

from __future__ import annotations

import itertools
import math
import pickle
from collections.abc import Callable, Iterable, Sequence
from collections.abc import Collection as AnyCollection
from functools import partial
from typing import Any, Concatenate, Final

import numpy as np
from ray import cloudpickle

from relevance_gen.arrays import Offsets
from relevance_gen.cluster.search.pool import SearcherPool
from relevance_gen.cluster.search.searcher import ShardGroup
from relevance_gen.lru import LruCache
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.query.filters import Filter
from relevance_gen.retrieval.query.parsing import QueryTerm
from relevance_gen.retrieval.query.term_matching import TermMatch
from relevance_gen.retrieval.ranking.old_features import FeatureExtractor, contents, if_short
from relevance_gen.retrieval.ranking.stage import N_PROMISING, WeightedQuery
from relevance_gen.retrieval.scorer import SegmentScorer
from relevance_gen.retrieval.scorers import Answer, Rest, Scorers, TopCandidates, united
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.manifest import IndexVersion, ShardRecord

_MAX_PREFETCHED: Final = 100
"""Maximum number of chunks whose features are prefetched; there are more only if many are equally good."""
_TERM_CACHE_BYTES: Final = 8 << 20
"""Size of the cache of term matches, about 10,000 words."""
_DEVIATIONS: Final = 3.0
"""Standard deviations above its share of the best chunks for which a searcher returns features with its candidates."""


class RemoteCollection(Collection):
    """The shards of one version of an index, searched by the searchers of a cluster.

    A search takes one request to each searcher if its words were searched before: term matches are cached, and
    searchers return the features of enough of their best candidates, texts included. Another request is made if these
    are too few or their texts are long.

    Every method raises what `SearcherPool.ask` raises.

    Args:
        pool: the searchers.
        place: the place of the index.
        version: the version of the index.
        excluded: names of shards that are not searched.
        before: the collection of the same version and shards whose caches are used.
    """

    def __init__(
        self,
        pool: SearcherPool,
        place: str,
        version: IndexVersion,
        excluded: AnyCollection[str] = (),
        before: RemoteCollection | None = None,
    ) -> None:
        super().__init__((), weighting_named(version.weighting))
        self.statistics = version.statistics
        self.version = version
        self.n_missing_chunks = 0
        self._pool = pool
        self._place = place
        self._shards = []
        for shard in version.shards:
            if shard.file.name in excluded:
                self.n_missing_chunks += shard.n_chunks
            else:
                self._shards.append(shard)
        self._generation = pool.generation
        self.orders = pool.orders(version.shards)
        first_searchers = {order[0].name for order in self.orders.values()}
        share = 1.0 / len(first_searchers)
        deviation = math.sqrt(N_PROMISING * share * (1.0 - share))
        n_expected = math.ceil(N_PROMISING * share + _DEVIATIONS * deviation)
        self.n_told = min(N_PROMISING, 1 + n_expected)
        self._terms: LruCache[TermMatch] = LruCache(
            _TERM_CACHE_BYTES, lambda found: found.match.nbytes
        )
        if before is not None:
            self.remember_as(before)
            self._terms = before._terms

    @property
    def is_current(self) -> bool:
        """Whether the searchers are those that the shards were assigned to."""
        return self._pool.generation == self._generation

    def without(self, excluded: AnyCollection[str]) -> RemoteCollection:
        """Return a collection of the same version that does not search some shards."""
        if not excluded:
            return self
        return RemoteCollection(self._pool, self._place, self.version, excluded)

    def request_all_shards(self) -> None:
        """Wait until every shard is open on a searcher."""
        self._request(self._shards, Scorers.ask, SegmentScorer.metadata_keys)

    @property
    def group(self) -> ShardGroup:
        """All shards that are searched."""
        return self._group(self._shards)

    def ask(
        self,
        method: Callable[Concatenate[SegmentScorer, Rest], Answer],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> list[Answer]:
        """Return what the scorer of each segment returns."""
        parts = self._request(self._shards, Scorers.ask, method, *args, **kwargs)
        return _chained(parts)

    def look_up(self, terms: Sequence[QueryTerm]) -> tuple[TermMatch, ...]:
        """Return the matches of terms; only those that are not cached are requested."""
        keys = {(term.term_id, term.word, term.inflected): term for term in terms}
        found = self._terms.get_all([*keys])
        missing = {key: term for key, term in keys.items() if key not in found}
        if missing:
            parts = self._request(self._shards, Scorers.look_up, [*missing.values()])
            matches = united(parts, len(missing)) if len(parts) > 1 else parts[0]
            for key, match in zip(missing, matches, strict=True):
                self._terms.put(key, match)
                found[key] = match
        return tuple(found[term.term_id, term.word, term.inflected] for term in terms)

    def leaders(
        self, plan: WeightedQuery, n: int, chosen: Filter | None, *, everyone: bool, **options: Any
    ) -> TopCandidates:
        """Return the best candidates of all shards, with the features that each searcher returned for its own best."""
        parts = self._request(
            self._shards, Scorers.leaders, plan, n, chosen, everyone=everyone, **options
        )
        return TopCandidates.merge(parts, None if everyone else n) if len(parts) > 1 else parts[0]

    def tell_each(
        self, positions: Offsets, inquiries: Sequence[FeatureExtractor[Any]]
    ) -> list[tuple[Offsets, list[Any]]]:
        """Return features of chunks, from the shards that contain their positions."""
        ascending = np.sort(positions)
        shards = []
        for shard in self._shards:
            start, stop = ascending.searchsorted((shard.first, shard.stop))
            if start < stop:
                shards.append(shard)
        parts = self._request(shards, Scorers.ask, SegmentScorer.tell, positions, inquiries)
        return _chained(parts)

    def ahead(
        self, plan: WeightedQuery, n: int
    ) -> dict[FeatureExtractor[Any], FeatureExtractor[Any]]:
        """Return the features to prefetch, because another request takes longer than a larger response.

        If the texts are long, only the features that are needed in any case are returned.
        """
        needed = super().ahead(plan, n)
        if n > _MAX_PREFETCHED:
            return needed
        optional = [contents, *(stage.evidence for stage in plan.stages if stage.n_best)]
        return {feature: partial(if_short, feature) for feature in optional} | needed

    def _group(self, shards: Iterable[ShardRecord]) -> ShardGroup:
        names = tuple(sorted(shard.file.name for shard in shards))
        return ShardGroup(self._place, self.version.name, names)

    def _request(
        self,
        shards: Sequence[ShardRecord],
        function: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> list[Any]:
        """Return what a function of `Scorers` returns on each searcher."""
        # Only cloudpickle sends the code of a caller's filter; everything else is pickled faster by name.
        has_filter = any(isinstance(arg, Filter) for arg in args)
        dumps = cloudpickle.dumps if has_filter else pickle.dumps
        request = dumps((function, args, kwargs))
        return self._pool.ask(self._group(shards), self.orders, request)


def _chained(parts: Iterable[list[Any]]) -> list[Any]:
    return [*itertools.chain.from_iterable(parts)]
