"""Ask the shards of an index in a cluster as one collection."""

from __future__ import annotations

import itertools
import math
import pickle
import threading
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Concatenate, Final

from ray import cloudpickle

from relevance_gen.arrays import Offsets
from relevance_gen.cluster.calls import Calls, Pace
from relevance_gen.cluster.state import IndexState, ShardState
from relevance_gen.lru import LruCache
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.query.filters import Filter
from relevance_gen.retrieval.query.parsing import Query, QueryTerm
from relevance_gen.retrieval.query.term_matching import TermMatch
from relevance_gen.retrieval.ranking.old_features import FeatureExtractor, contents, if_short
from relevance_gen.retrieval.ranking.stage import N_PROMISING, WeightedQuery
from relevance_gen.retrieval.scorer import SegmentScorer
from relevance_gen.retrieval.scorers import Answer, Rest, Scorers, TopCandidates, united
from relevance_gen.retrieval.weighting import weighting_named

_MAX_AHEAD: Final = 100
"""Chunks of which everything is asked at once; there are more only where many are equally good."""
_TERMS_BYTES: Final = 8 << 20
"""Room for what some 10,000 words stand for, and their df."""
_DEVIATIONS: Final = 3.0
"""How far above its share of the best a host may be, in standard deviations, and still tell of all of them at once."""


class ClusterCollection(Collection):
    """The shards of an index that live, searched as one.

    A question is one round where its words were asked for before: what they stand for and their df are remembered, and
    hosts tell of as many of their best chunks as will hardly ever be too few, texts included. Where they are too few,
    or the texts are long, one more round asks for the rest.

    It is made of the `state` that is known of the index. What was known `before` remembers holds as long as no chunk
    changes, or is missing. Whatever asks raises what `Calls.ask` does.
    """

    def __init__(
        self, state: IndexState, pace: Pace, before: ClusterCollection | None = None
    ) -> None:
        super().__init__((), weighting_named(state.weighting))
        self.statistics = state.statistics
        self.state = state
        self._pace = pace
        self._asking = threading.local()
        self._shards = [shard for shard in state.shards if shard.hosts]
        share = 1.0 / max(1, len({host for shard in self._shards for host in shard.hosts}))
        deviation = math.sqrt(N_PROMISING * share * (1.0 - share))
        self.n_told = min(N_PROMISING, 1 + math.ceil(N_PROMISING * share + _DEVIATIONS * deviation))
        self._terms: LruCache[TermMatch] = LruCache(_TERMS_BYTES, lambda found: found.match.nbytes)
        has_missing = state.n_missing_chunks or (
            before is not None and before.state.n_missing_chunks
        )
        if before is not None and before.state.epoch == state.epoch and not has_missing:
            self.remember_as(before)
            self._terms = before._terms

    def plan(self, query: Query) -> WeightedQuery:
        """Return a query, weighed; all further rounds of this thread's question go to the hosts asked for it."""
        self._asking.calls = Calls(self.state, self._pace)
        return super().plan(query)

    def ask(
        self,
        method: Callable[Concatenate[SegmentScorer, Rest], Answer],
        *args: Rest.args,
        **kwargs: Rest.kwargs,
    ) -> list[Answer]:
        """Return what the scorer of each segment answers, wherever it is."""
        told: list[Answer] = self._call(
            self._shards, _chained, Scorers.ask, method, *args, **kwargs
        )
        return told

    def look_up(self, terms: Sequence[QueryTerm]) -> tuple[TermMatch, ...]:
        """Return what each of some terms stands for in any chunk, and in how many; ask for those not remembered."""
        keys = {(term.term_id, term.word, term.inflected): term for term in terms}
        found = self._terms.get_all([*keys])
        if new := {key: term for key, term in keys.items() if key not in found}:
            told = self._call(
                self._shards, partial(united, n=len(new)), Scorers.look_up, [*new.values()]
            )
            for key, one in zip(new, told, strict=True):
                self._terms.put(key, one)
                found[key] = one
        return tuple([found[term.term_id, term.word, term.inflected] for term in terms])

    def leaders(
        self, plan: WeightedQuery, n: int, chosen: Filter | None, *, everyone: bool, **options: Any
    ) -> TopCandidates:
        """Return the chunks that may be among the best, and what each host tells at once of the best of its own."""
        merge = partial(_leading, n=None if everyone else n)
        options["everyone"] = everyone
        leaders: TopCandidates = self._call(
            self._shards, merge, Scorers.leaders, plan, n, chosen, **options
        )
        return leaders

    def tell_each(
        self, positions: Offsets, inquiries: Sequence[FeatureExtractor[Any]]
    ) -> list[tuple[Offsets, list[Any]]]:
        """Ask the shards that may hold some positions about the chunks there."""
        shards = [shard for shard in self._shards if shard.runs.hold(positions).any()]
        told: list[Any] = self._call(
            shards, _chained, Scorers.ask, SegmentScorer.tell, positions, inquiries
        )
        return told

    def ahead(
        self, plan: WeightedQuery, n: int
    ) -> dict[FeatureExtractor[Any], FeatureExtractor[Any]]:
        """Ask at once whatever may be wanted of the picked chunks: another round takes longer than a longer answer.

        Of long texts only what is wanted in any case is sent.
        """
        wanted = super().ahead(plan, n)
        if n <= _MAX_AHEAD:
            others = [contents, *(stage.evidence for stage in plan.stages if stage.n_best)]
            wanted = {inquiry: partial(if_short, inquiry) for inquiry in others} | wanted
        return wanted

    def _call(
        self,
        shards: Sequence[ShardState],
        merge: Callable[[Sequence[Any]], Any],
        function: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        """Ask for shards, all at once, and return what is told of them, put together."""
        if not hasattr(self._asking, "calls"):
            self._asking.calls = Calls(self.state, self._pace)
        # Hosts may not know the modules of what a caller filters by. All else is known by its name, and soon pickled.
        dumps = cloudpickle.dumps if any(isinstance(one, Filter) for one in args) else pickle.dumps
        told = self._asking.calls.ask(shards, dumps((function, args, kwargs, merge)))
        return told[0] if len(told) == 1 else merge(told)


def _leading(told: Sequence[TopCandidates], n: int | None) -> TopCandidates:
    """Merge by a function that is pickled by its name: a method of a class would be sent with its code."""
    return TopCandidates.merge(told, n)


def _chained(told: Iterable[list[Any]]) -> list[Any]:
    return [*itertools.chain.from_iterable(told)]
