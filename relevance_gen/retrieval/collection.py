"""Search some segments as one: ask each, put together what they tell, and score by stages.

A question takes three rounds: match in every segment and weigh, take the best cosines of all, and ask about these
whatever the stages want to know. Nothing here depends on how the chunks are cut into segments.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from attrs import evolve

from relevance_gen.arrays import Flags, Ids, Offsets, concat, find, unique
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.lru import LruCache
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.query.filters import Filter
from relevance_gen.retrieval.query.operators import QueryOperator
from relevance_gen.retrieval.query.parsing import REMEMBERED_CHARS, Query
from relevance_gen.retrieval.query.spelling_correction import corrected, misspelt
from relevance_gen.retrieval.query.term_matching import Match
from relevance_gen.retrieval.ranking.confidence import confidence
from relevance_gen.retrieval.ranking.old_features import E, FeatureExtractor, contents, merged
from relevance_gen.retrieval.ranking.sparse_vectors import SAMPLE_SIZE, Sample
from relevance_gen.retrieval.ranking.stage import N_PROMISING, Reranking, Table, WeightedQuery
from relevance_gen.retrieval.ranking.top_n import Ranking, at_least_as_good
from relevance_gen.retrieval.scorer import SegmentScorer
from relevance_gen.retrieval.scorers import Scorers
from relevance_gen.retrieval.stages.proximity import COVERAGE, COVERAGE_WEIGHT
from relevance_gen.retrieval.stages.score_regularization import words
from relevance_gen.retrieval.weighting import Weighting
from relevance_gen.types import Metadata

_RANKINGS_BYTES: Final = 1 << 20


class Collection(Scorers):
    """Segments searched as one, no two of which hold one position; it never changes. Safe to share between threads.

    What `before`, the collection before a change, remembers of segments that are still there is kept. A collection
    whose segments are elsewhere also overrides `ahead` and `n_told`, which say what to ask, and of how many, before it
    is known to be needed.
    """

    n_told: int = 0
    """Of how many of the best of some segments something is told at once in the second round."""

    def __init__(
        self, segments: Sequence[Segment], weighting: Weighting, before: Collection | None = None
    ) -> None:
        self.weighting = weighting
        self.statistics = sum(map(weighting.statistics, segments), Statistics())
        words = {
            id(one.segment.postings): one.words_found
            for one in (before._scorers if before is not None else ())
        }
        super().__init__(
            [
                SegmentScorer(one, weighting, self.statistics, words.get(id(one.postings)))
                for one in segments
            ]
        )
        self._rankings: LruCache[Ranking] = LruCache(
            _RANKINGS_BYTES, lambda ranking: ranking.nbytes + 4 * REMEMBERED_CHARS
        )

    @property
    def n_terms(self) -> int:
        """Number of different terms of all chunks."""
        postings = [segment.postings for segment in self.segments]
        return unique(
            concat((one.lexicon.ids[one.df_of_all() > 0] for one in postings), np.uint64)
        ).size

    @property
    def metadata_keys(self) -> set[str] | None:
        """The keys under which any chunk has metadata; None where some chunks cannot be asked."""
        told = self.ask(SegmentScorer.metadata_keys)
        is_whole = sum(n_chunks for n_chunks, _ in told) == self.statistics.n_chunks
        return set().union(*(keys for _, keys in told)) if is_whole else None

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The segments."""
        return tuple(scorer.segment for scorer in self._scorers)

    @property
    def nbytes(self) -> int:
        """Memory of the segments and of all that is remembered, in bytes."""
        words = sum(scorer.segment.nbytes + scorer.remembered_bytes for scorer in self._scorers)
        return words + self._rankings.nbytes

    # ── Asking the segments ──────────────────────────────────────────────────────────────────────────────────────────

    def ahead(
        self, plan: WeightedQuery, n: int
    ) -> dict[FeatureExtractor[Any], FeatureExtractor[Any]]:
        """Return what to ask about all `n` picked chunks at once, by what may be asked of them later.

        Where asking costs little, that is what stages want to know of all of these. What they want to know of fewer is
        asked when it is known of which.
        """
        stages = [
            stage for stage in plan.stages if stage.n_best >= N_PROMISING and n <= (stage.most or n)
        ]
        return {stage.evidence: stage.evidence for stage in stages}

    def contents(self, positions: Offsets) -> list[tuple[str, Metadata, str]]:
        """Return text, metadata and title of the chunks at some positions."""
        return self.tell(contents, positions).rows if positions.size else []

    def spell(self, ids: Ids) -> tuple[str, ...]:
        """Return the spellings of some terms that any segment has."""
        spellings: dict[int, str] = {}
        for some in self.ask(SegmentScorer.spell, ids):
            spellings |= some
        return tuple(spellings[one] for one in ids.tolist())

    def holds(self, positions: Offsets) -> Flags:
        """Tell of some positions whether a chunk is at each."""
        held: Flags = np.logical_or.reduce(self.ask(SegmentScorer.holds, positions))
        return held

    def remember_as(self, before: Collection) -> None:
        """Remember what another collection of the same chunks does."""
        self._rankings = before._rankings
        if "_sample" in vars(before):
            self._sample = before._sample

    @functools.cached_property
    def _sample(self) -> Sample:
        """The chunks with the smallest hashes, of all segments together."""
        hashes, positions = map(
            np.concatenate, zip(*self.ask(SegmentScorer.smallest_hashes, SAMPLE_SIZE), strict=True)
        )
        smallest = np.argsort(hashes, kind="stable")[:SAMPLE_SIZE]
        return Sample.of(self.tell(words, positions[smallest]))

    # ── A question ───────────────────────────────────────────────────────────────────────────────────────────────────

    def read(self, question: SearchParams) -> tuple[Query, tuple[QueryOperator, ...]]:
        """Return the query and its signs, read as the weighting and the language of the chunks want it."""
        return question.read(
            inflects=self.weighting.inflects, is_english=self.statistics.is_english
        )

    def rank(
        self,
        query: Query,
        top_n: int,
        chosen: Filter | None = None,
        rerankings: Sequence[Reranking] = (),
    ) -> tuple[Ranking, Table | None]:
        """Return the `top_n` best chunks, best first, with scores in (0, 1]; chunks of score 0 are left out.

        With them comes the table that they were taken from, unless the ranking was remembered. `chosen` and
        `rerankings` are as for `assess`.
        """
        is_usual = chosen is None and not rerankings and top_n <= N_PROMISING
        key = (
            (query.text, query.corrects, top_n)
            if is_usual and len(query.text) <= REMEMBERED_CHARS
            else None
        )
        ranking = self._rankings.get(key)
        if ranking is not None:
            return ranking, None
        table = self.assess(self.plan(query), top_n, chosen, rerankings)
        some = table.results[table.scores[table.results] > 0.0]
        sure = 0.0
        if table.results.size:
            best = float(table.columns["words"].take(table.results).max())
            covered = table.columns.get(COVERAGE)
            most = (
                best
                if covered is None
                else float(covered.take(table.results).max()) / COVERAGE_WEIGHT
            )
            sure = confidence(best, most, table.plan)
        corrections = table.plan.terms.query.corrections
        ranking = Ranking(table.positions[some], table.scores[some], sure, corrections).best(top_n)
        if key is not None:
            self._rankings.put(key, ranking)
        return ranking, table

    def plan(self, query: Query) -> WeightedQuery:
        """Return a query, weighed against all chunks: the first round, and where a word is corrected a second."""
        query, matches, df = self.match(query)
        if unknown := misspelt(query, df):
            near = self.near(unknown)
            better = corrected(query, near, unknown, is_english=self.statistics.is_english)
            if better is not query:
                query, matches, df = self.match(better)
        return self.weighting.weigh(query, matches, df, self.statistics)

    def near(self, unknown: Sequence[str]) -> Sequence[Sequence[Counter[str]]]:
        """Return for each segment the words near each of some that no chunk has, by the number of chunks."""
        return self.ask(SegmentScorer.near, unknown)

    def match(self, query: Query) -> tuple[Query, tuple[Match, ...], tuple[int, ...]]:
        """Return a query with what each of its terms stands for in any chunk, and in how many."""
        found = self.look_up(query.terms)
        if any(one.match.is_crowded for one in found):
            terms = [
                evolve(term, inflected=term.inflected and not one.match.is_crowded)
                for term, one in zip(query.terms, found, strict=True)
            ]
            query = evolve(query, terms=tuple(terms))
            found = self.look_up(query.terms)
        return query, tuple([one.match for one in found]), tuple([one.df for one in found])

    def assess(
        self,
        plan: WeightedQuery,
        n: int,
        chosen: Filter | None = None,
        rerankings: Sequence[Reranking] = (),
    ) -> Table:
        """Return the chunks whose cosines reach the n-th best, and all parts of their scores.

        There are more than `n` with ties, and where stages look at more. Only the chosen may be results, or all; a
        chunk's score does not depend on that, so the best of all chunks are looked at, too. `rerankings` look at the
        best again when the words have spoken, in this order.
        """
        table = self._candidates(plan, n, chosen, rerankings)
        for stage in plan.stages:
            raise_if_cancelled()
            if table.picked.size or not stage.n_best:
                stage.score(table)
        table.columns["words"] = table.scores
        for reranking in rerankings:
            raise_if_cancelled()
            table.before.append(table.scores)
            reranking.score(table)
        return table

    def _candidates(
        self, plan: WeightedQuery, n: int, chosen: Filter | None, rerankings: Sequence[Reranking]
    ) -> Table:
        """Return the table that the stages fill: the second round, and of the third what is asked at once."""
        everyone = any(one.n_candidates is None for one in rerankings)
        n = max(
            [n, N_PROMISING, *(one.n_candidates or self.statistics.n_chunks for one in rerankings)]
        )
        at_once = self.ahead(plan, N_PROMISING) if self.n_told else {}
        options: dict[str, Any] = {
            "everyone": everyone,
            "n_told": self.n_told,
            "inquiries": [*at_once.values()],
        }
        leaders = self.leaders(plan, n, chosen, **options)
        found = leaders.candidates
        n_best = max((stage.n_best for stage in plan.stages), default=0)
        promising = at_least_as_good(found.cosines, n_best) if n_best else _NOWHERE
        picked = found.leading(n_best) if chosen is not None and n_best else promising
        return Table(
            plan=plan,
            positions=found.positions,
            scores=found.cosines.copy(),  # from elsewhere they may come read-only
            is_verbatim=found.is_verbatim,
            results=found.is_chosen.nonzero()[0],
            promising=promising,
            picked=picked,
            source=self._told_ahead(
                plan,
                found.positions[picked],
                leaders.positions,
                dict(zip(at_once, leaders.told, strict=False)),
            ),
            sample=lambda: self._sample,
        )

    def _told_ahead(
        self,
        plan: WeightedQuery,
        positions: Offsets,
        told_of: Offsets,
        told: Mapping[FeatureExtractor[Any], Any],
    ) -> Callable[[FeatureExtractor[E], Offsets], E]:
        """Ask about the chunks at some positions now; return what tells of them later as `tell` does, or asks again.

        Of those at `told_of`, ascending as `positions` are, something was told already, by what may be asked later.
        """
        missing = positions[find(told_of, positions) < 0]
        ahead = self.ahead(plan, positions.size) if missing.size else {}
        if ahead:
            more = dict(zip(ahead, self.tell_all([*ahead.values()], missing), strict=True))
            known_of = np.sort(np.concatenate((told_of, missing)))
            places = [known_of.searchsorted(told_of), known_of.searchsorted(missing)]
            told = (
                {key: merged([told.get(key), one], places) for key, one in more.items()}
                if told_of.size
                else more
            )
            told_of = known_of

        def tell(inquiry: FeatureExtractor[E], wanted: Offsets) -> E:
            known: E | None = told.get(inquiry)
            if known is None:
                return self.tell(inquiry, wanted)
            if wanted.size == told_of.size and (wanted == told_of).all():
                return known
            places = find(told_of, wanted)
            return known.take(places) if (places >= 0).all() else self.tell(inquiry, wanted)

        return tell


_NOWHERE: Final[Offsets] = np.zeros(0, np.int64)
