"""Answer for one segment what a question asks, in three rounds.

1. `SegmentScorer.match`: which words of the segment does each word of the query stand for, and in how many chunks?
2. `SegmentScorer.candidates`: which chunks have the highest cosine, and which say exactly what the query says?
3. `SegmentScorer.tell`: what do the stages of a score, and whoever shows the results, want to know of the best of all?

Between the rounds `relevance_gen.retrieval.scorers` puts together what the segments tell. What goes in and
comes out is small and can be pickled, so a segment may be anywhere. The rounds stand in one long file because they
share what they find.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import (
    ChunkOrds,
    Flags,
    Floats,
    Ids,
    Offsets,
    run_starts,
    sum_by,
    unique,
)
from relevance_gen.index.segment import POSITION_GAP, Segment, Statistics
from relevance_gen.lru import LruCache
from relevance_gen.retrieval.query.filters import Filter
from relevance_gen.retrieval.query.operators import QueryOperator, allowed
from relevance_gen.retrieval.query.parsing import QueryTerm
from relevance_gen.retrieval.query.term_matching import (
    Match,
    TermMatch,
    TermPostings,
    match_among,
    match_inflections,
)
from relevance_gen.retrieval.ranking.old_features import ChunkBatch, FeatureExtractor, merged
from relevance_gen.retrieval.ranking.stage import WeightedQuery
from relevance_gen.retrieval.ranking.top_n import at_least_as_good, best_quotients
from relevance_gen.retrieval.weighting import Weighting
from relevance_gen.text.blocks import batch_by_size

_AT_ONCE: Final = 1 << 17
"""Chunks of about so many words are read together: ties may make them many, and each may be long."""
_POSTINGS_STEP: Final = 1 << 15
"""About so many postings are added up together, while they are in the core's cache."""
_DENSE: Final = 8
"""Postings are added up in an array of all chunks where there are more of them than chunks divided by this."""
_LEAST_MEMORY_BYTES: Final = 2 << 20
_EXACT_BYTES: Final = 1 << 17
"""Room for all function words."""
_MEMORY_SHARE: Final = 4
"""The words last asked for may take the bytes of the segment's arrays divided by this."""


@frozen(eq=False)
class Candidates:
    """The chunks of one segment that may be among the best; those of several segments together, too."""

    positions: Offsets  # their positions, ascending, shape (n,)
    cosines: Floats  # shape (n,)
    is_verbatim: Flags  # whether each says exactly what the query says, shape (n,)
    is_chosen: Flags  # whether each may be a result, shape (n,)

    @classmethod
    def merge(cls, parts: Sequence[Candidates], n: int | None) -> Candidates:
        """Return the best `n` of several segments together, and of the chosen ones, with ties; None keeps all."""
        if len(parts) == 1:
            return parts[0]
        every = [
            (part.positions, part.cosines, part.is_verbatim, part.is_chosen)
            for part in (_NO_CANDIDATES, *parts)
        ]
        positions, cosines, is_verbatim, is_chosen = (
            np.concatenate(arrays) for arrays in zip(*every, strict=True)
        )
        kept = is_verbatim | (n is None)
        if n is not None:
            kept[at_least_as_good(cosines, n)] = True
            chosen = is_chosen.nonzero()[0]
            kept[chosen[at_least_as_good(cosines[chosen], n)]] = True
        some = kept.nonzero()[0]
        some = some[positions[some].argsort()]
        return cls(positions[some], cosines[some], is_verbatim[some], is_chosen[some])

    def leading(self, n: int) -> Offsets:
        """Return the places of the best n with their ties, and of the best n of those that are chosen, ascending."""
        best = at_least_as_good(self.cosines, n)
        if self.is_chosen.all():
            return best
        chosen = self.is_chosen.nonzero()[0]
        return unique(np.concatenate((best, chosen[at_least_as_good(self.cosines[chosen], n)])))


class SegmentScorer:
    """Scores one segment, query after query; safe to share between threads.

    The statistics are those of all segments together, and `words` what is remembered of this one from before.
    """

    def __init__(
        self,
        segment: Segment,
        weighting: Weighting,
        statistics: Statistics,
        words: LruCache[TermPostings] | None = None,
    ) -> None:
        self.segment = segment
        if words is None:
            limit_bytes = _LEAST_MEMORY_BYTES + segment.array_bytes // _MEMORY_SHARE
            words = LruCache(limit_bytes, lambda postings: postings.nbytes)
        self.words_found = words
        self._exact: LruCache[TermMatch] = LruCache(_EXACT_BYTES, lambda found: found.match.nbytes)
        self._weighting = weighting
        self.statistics = statistics
        self._by_prefix = not statistics.is_english

    @functools.cached_property
    def denominators(self) -> Floats:
        """What the sum of each chunk is divided by, shape (N,)."""
        return self._weighting.denominators(self.segment, self.statistics)

    @functools.cached_property
    def _least_denominator(self) -> float:
        return float(self.denominators.min())

    @property
    def remembered_bytes(self) -> int:
        """Memory of what is remembered of words, in bytes."""
        return self.words_found.nbytes + self._exact.nbytes

    # ── The three rounds ──────────────────────────────────────────────────────────────────────────────────────────────

    def match(self, terms: tuple[QueryTerm, ...]) -> tuple[TermMatch, ...]:
        """Return what each term of a query stands for here."""
        uninflected = [term.term_id for term in terms if not term.inflected]
        exact = self._exact.get_all(uninflected)
        if len(exact) < len(uninflected):
            exact |= self._match_exactly(
                [term_id for term_id in uninflected if term_id not in exact]
            )
        found = self._find([(term, None) for term in terms if term.inflected])
        return tuple(
            [next(found).matched if term.inflected else exact[term.term_id] for term in terms]
        )

    def candidates(
        self, plan: WeightedQuery, n: int, chosen: Filter | None = None, *, everyone: bool = False
    ) -> Candidates:
        """Return the chunks whose cosines reach the n-th best of the segment, and those that say the same.

        So many of all, and of those that are chosen; there are more with ties. With `everyone` all chosen chunks are
        wanted, whatever their cosines.
        """
        sums = self._sums(plan)
        if sums is None and not everyone:
            return _NO_CANDIDATES
        segment = self.segment
        flags = None if chosen is None else chosen.allowed(segment, by_prefix=self._by_prefix)
        numbers = []
        verbatim = _NOTHING
        if sums is not None:
            ranked = [sums] if flags is None else [sums, np.where(flags, sums, 0.0)]
            numbers += [
                best_quotients(some, self.denominators, self._least_denominator, n)
                for some in ranked
            ]
            if (verbatim := self._verbatim(plan, sums)).size:
                numbers.append(verbatim)
        if everyone:
            numbers.append((segment.live if flags is None else segment.live & flags).nonzero()[0])
        some = numbers[0] if len(numbers) == 1 else unique(np.concatenate(numbers))
        is_verbatim = np.zeros(some.size, bool)
        is_verbatim[some.searchsorted(verbatim)] = True
        cosines = (
            np.zeros(some.size) if sums is None else sums.take(some) / self.denominators.take(some)
        )
        is_chosen = np.ones(some.size, bool) if flags is None else flags[some]
        return Candidates(segment.positions.take(some), cosines, is_verbatim, is_chosen)

    def tell(
        self, positions: Offsets, inquiries: Sequence[FeatureExtractor[Any]]
    ) -> tuple[Offsets, list[Any]]:
        """Return the places of this segment's chunks among some positions, and what is asked of these chunks.

        An inquiry that cannot be answered has None.
        """
        numbers = self.segment.find(positions)
        here: Offsets = (numbers >= 0).nonzero()[0]
        numbers = numbers.take(here)
        if not here.size:
            return here, []
        sizes = self.segment.n_occurrences.take(numbers)
        cuts = [(0, here.size)]
        if int(sizes.sum()) + POSITION_GAP * here.size > _AT_ONCE:
            cuts = list(batch_by_size(sizes + POSITION_GAP, _AT_ONCE))
        told = []
        for start, end in cuts:
            excerpt = ChunkBatch(
                self.segment, numbers[start:end], self.denominators, self.statistics
            )
            told.append([inquiry(excerpt) for inquiry in inquiries])
        if len(told) == 1:
            return here, told[0]
        places = [np.arange(start, end) for start, end in cuts]
        return here, [merged(parts, places) for parts in zip(*told, strict=True)]

    # ── Whatever the question ────────────────────────────────────────────────────────────────────────────────────────

    def holds(self, positions: Offsets) -> Flags:
        """Tell of some positions whether the chunk there is in this segment."""
        return self.segment.find(positions) >= 0

    def positions(self, chosen: Filter | None = None) -> Offsets:
        """Return the positions of the chunks that are there, or of those among them that are chosen, ascending."""
        live = self.segment.live
        some = (
            live
            if chosen is None
            else live & chosen.allowed(self.segment, by_prefix=self._by_prefix)
        )
        return self.segment.positions[some]

    def metadata_keys(self) -> tuple[int, set[str]]:
        """Return the number of chunks that are there, and the keys under which any of them has metadata."""
        live, metadata = self.segment.live, self.segment.chunks.metadata
        keys = set[str]().union(*(one for number, one in metadata.items() if live[number]))
        return self.segment.statistics.n_chunks, keys

    def smallest_hashes(self, n: int) -> tuple[Ids, Offsets]:
        """Return the `n` smallest hashes of chunks, and these chunks' positions, in any order."""
        numbers = np.flatnonzero(self.segment.live)
        if numbers.size > n:
            numbers = numbers[np.argpartition(self.segment.hashes[numbers], n - 1)[:n]]
        return self.segment.hashes[numbers], self.segment.positions[numbers]

    def spell(self, ids: Ids) -> dict[int, str]:
        """Return the spellings of those terms that the segment has, by their ids."""
        lexicon = self.segment.postings.lexicon
        numbers = lexicon.find(ids)
        here = numbers >= 0
        return dict(zip(ids[here].tolist(), lexicon.decode_terms(numbers[here]), strict=True))

    def near(self, words: Sequence[str]) -> list[Counter[str]]:
        """Return for each of some words those here that are a letter away, and the number of chunks that hold each."""
        postings = self.segment.postings
        near = [postings.lexicon.fuzzy_matches(word) for word in words]
        found = [
            zip(postings.lexicon.decode_terms(some), postings.df(some).tolist(), strict=True)
            for some in near
        ]
        return [Counter({word: n for word, n in some if n}) for some in found]

    def shares(self, position: int, plan: WeightedQuery) -> list[tuple[float, float]] | None:
        """Return each term's tf in a chunk, and what it adds to the cosine; None if the chunk is not here."""
        (number,) = self.segment.find(np.array([position])).tolist()
        if number < 0:
            return None
        shares = []
        asked = [*zip(plan.terms.query.terms, plan.terms.matches, strict=True)]
        for found, gain in zip(self._find(asked), plan.gains, strict=True):
            here = found.chunk == number
            given = gain * float(found.weight[here].sum()) / float(self.denominators[number])
            shares.append((float(found.tf[here].sum()), given))
        return shares

    def broken_signs(self, position: int, signs: Sequence[QueryOperator]) -> list[str]:
        """Return the signs that a chunk does not keep to; none if the chunk is not here."""
        only = self.segment.positions == position
        if not only.any():
            return []
        is_kept = functools.partial(
            allowed, segment=self.segment, among=only, by_prefix=self._by_prefix
        )
        return [sign.said for sign in signs if not is_kept((sign,)).any()]

    # ── Inside ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sums(self, plan: WeightedQuery) -> Floats | None:
        """Return what each chunk's cosine with the query is before it is divided, shape (N,); None if all are 0.

        Function words count in chunks that hold another word of the query, unless no chunk of any segment does.
        """
        terms = plan.terms
        pluralize = [
            ((term, match), gain)
            for term, match, gain, n in zip(
                terms.query.terms, terms.matches, plan.gains, terms.df, strict=True
            )
            if gain and n
        ]
        others = [one for one in pluralize if not one[0][0].stop] or pluralize
        sums: Floats | None = None
        parts: list[tuple[ChunkOrds, Floats]] = []
        n_postings = 0
        for (_, gain), found in zip(
            others, self._find([asked for asked, _ in others]), strict=True
        ):
            parts.append((found.chunk, gain * found.weight))
            n_postings += found.chunk.size
            if n_postings >= _POSTINGS_STEP:
                sums = self._add(sums, parts)
                parts, n_postings = [], 0
        sums = self._add(sums, parts) if n_postings else sums
        if sums is None or others is pluralize:
            return sums
        stop = [one for one in pluralize if one[0][0].stop]
        for (_, gain), found in zip(stop, self._find([asked for asked, _ in stop]), strict=True):
            chunk = found.chunk.astype(np.intp)  # once for both
            before = sums.take(chunk)
            sums[chunk] = before + gain * found.weight * (before > 0.0)
        return sums

    def _add(self, sums: Floats | None, parts: Sequence[tuple[ChunkOrds, Floats]]) -> Floats:
        """Return the sum of each chunk with what the parts add, in their order."""
        chunk = np.concatenate([chunk for chunk, _ in parts], dtype=np.intp)
        value = np.concatenate([value for _, value in parts])
        if sums is None:
            return sum_by(chunk, value, self.segment.size)
        np.add.at(sums, chunk, value)  # one after the other, as if all had been added up at once
        return sums

    def _verbatim(self, plan: WeightedQuery, sums: Floats) -> Offsets:
        """Find the chunks that have exactly the query's terms, each as often."""
        segment, said = self.segment, plan.said
        if said.size not in segment.lengths:
            return _NOTHING
        same = np.flatnonzero(segment.n_occurrences == said.size)
        same = same[
            (sums[same] > 0.0)
            & np.isclose(segment.norms[same], plan.said_norm, rtol=1e-9, atol=0.0)
        ]
        found = [_NOTHING]
        for start, end in batch_by_size(segment.n_occurrences.take(same) + POSITION_GAP, _AT_ONCE):
            reading = segment.token_sequences(same[start:end])
            ids = reading.lexicon.ids.take(
                reading.terms[reading.terms < reading.lexicon.size]
            ).reshape(-1, said.size)
            ids.sort()
            found.append(same[start:end][(ids == said).all(axis=1)])
        return np.concatenate(found)

    def _match_exactly(self, term_ids: list[int]) -> dict[int, TermMatch]:
        """Match words to themselves alone. They are mostly function words: in every chunk, and of no weight."""
        postings = self.segment.postings
        numbers = postings.lexicon.find(np.array(term_ids, np.uint64))
        here = numbers >= 0
        df = np.zeros(numbers.size, np.int64)
        df[here] = postings.df(numbers[here])
        matches = {}
        for term_id, n in zip(term_ids, df.tolist(), strict=True):
            matches[term_id] = TermMatch(Match.exact(term_id), n) if n else _NO_MATCH
            self._exact.put(term_id, matches[term_id])
        return matches

    def _find(self, asked: Sequence[tuple[QueryTerm, Match | None]]) -> Iterator[TermPostings]:
        """Find the chunks that hold each of some terms of the query, one after the other, or remember them.

        With each comes what it stands for in all segments, so that no other word here has to be looked at; None where
        that is not known, and forms of the term are looked for.
        """
        keys = [(term.term_id, term.word, term.inflected, self._by_prefix) for term, _ in asked]
        known = self.words_found.get_all(keys)
        for key, (term, whole) in zip(keys, asked, strict=True):
            found = known.get(key)
            if found is None:
                found = self._find_now(term, whole)
                self.words_found.put(key, found)
            yield found

    def _find_now(self, term: QueryTerm, whole: Match | None) -> TermPostings:
        postings = self.segment.postings
        if whole is None:
            match = match_inflections(postings, term.term_id, term.word, by_prefix=self._by_prefix)
        else:
            match = match_among(postings, whole)
        numbers = [] if match.is_crowded else postings.lexicon.ids.searchsorted(match.ids).tolist()
        tf: npt.NDArray[Any]
        found = postings.of_terms(numbers)
        chunk, tf, counts = found.chunk, found.tf, found.counts
        if not match.counts_in_full and not match.is_crowded:
            tf = tf * match.weight.repeat(counts)
        if len(counts) > 1:
            chunk, tf = self._added(chunk, tf)
        return TermPostings(TermMatch(match, chunk.size), chunk, tf, self._weighting.saturate(tf))

    def _added(self, chunk: ChunkOrds, tf: npt.NDArray[Any]) -> tuple[ChunkOrds, npt.NDArray[Any]]:
        """Add up the postings of several terms, in the order of the terms."""
        if chunk.size > self.segment.size // _DENSE:
            dense = np.bincount(chunk, tf, self.segment.size)
            some = (dense > 0.0).nonzero()[0]
            return some.astype(np.uint32), dense.take(some)
        order = chunk.argsort(kind="stable")
        chunk, tf = chunk.take(order), tf.take(order)
        new = run_starts(chunk)
        first = new.nonzero()[0]
        if tf.dtype.kind == "f":  # one by one, as above
            return chunk.take(first), np.bincount(new.cumsum() - 1, tf)
        return chunk.take(first), np.add.reduceat(tf, first) if first.size else tf


_NOTHING: Final[Offsets] = np.zeros(0, np.int64)
_NO_MATCH: Final = TermMatch(Match.union([]), 0)
_NO_CANDIDATES: Final = Candidates(_NOTHING, np.zeros(0), np.zeros(0, bool), np.zeros(0, bool))
