"""The search port for segments in this process; see `relevance_gen.retrieval.ports`.

`LocalSegments` merges the responses of segments; a `SegmentScorer` responds for one segment.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import ChunkOrds, Floats, Offsets, concat, run_starts, unique
from relevance_gen.forks import LazyAttribute
from relevance_gen.index.segment import POSITION_GAP, Segment, Statistics, chunk_hashes
from relevance_gen.lru import LruCache
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.retrieval.ports import (
    CandidateRequest,
    Candidates,
    ExtractedFeatures,
    Inventory,
    InventoryRequest,
    MatchRequest,
    MatchResponse,
    compute_sample,
)
from relevance_gen.retrieval.query import term_matching
from relevance_gen.retrieval.query.parsing import MAX_CACHED_CHARS
from relevance_gen.retrieval.query.term_matching import (
    Match,
    QueryTerm,
    TermPostings,
    inflections_among,
    live_inflections,
)
from relevance_gen.retrieval.ranking.sparse_vectors import Sample
from relevance_gen.retrieval.ranking.stage import (
    ChunkBatch,
    FeatureRequest,
    FeatureSpec,
    Ranking,
    WeightedTerms,
    merge_features,
)
from relevance_gen.retrieval.ranking.top_n import best_quotients, best_rows
from relevance_gen.retrieval.weighting import Weighting
from relevance_gen.text.blocks import batch_by_size

_RANKINGS_BYTES: Final = 1 << 20
_BATCH_TOKENS: Final = 1 << 17
"""Approximate number of tokens that are read together; bounds the memory, because ties can add many
chunks, and chunks can be long."""
_BATCH_POSTINGS: Final = 1 << 15
"""Approximate number of postings that are summed together: they fit in the cache of a CPU core."""
_DENSE_DIVISOR: Final = 8
"""Postings are summed in an array of all chunks if they are more than the number of chunks divided
by this number."""
_MIN_CACHE_BYTES: Final = 2 << 20
_EXACT_CACHE_BYTES: Final = 1 << 17
"""Size of the cache of terms without inflections: enough for all stop words."""
_CACHE_DIVISOR: Final = 4
"""The limit of the postings cache is the size of the segment's arrays divided by this number."""
_NO_ORDS: Final[Offsets] = np.zeros(0, np.int64)
_NO_MATCH: Final = Match.union([])


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
        parts = [scorer.match_terms(request) for scorer in self.scorers]
        return MatchResponse.merge(parts, request)

    def top_candidates(self, request: CandidateRequest) -> Candidates:
        """Return the chunks with the highest lexical scores.

        `Candidates.features` has the features of the best `request.n_features` of these chunks.
        """
        raise_if_cancelled()
        parts = [scorer.top_candidates(request) for scorer in self.scorers]
        candidates = Candidates.merge(parts, request)
        if not request.n_features:
            return candidates
        rows = best_rows(candidates.scores, candidates.is_allowed, request.n_features)
        positions = candidates.positions[rows]
        features = dict.fromkeys(request.features)
        specs = []
        for spec in request.features:
            if spec.max_chunks is None or positions.size <= spec.max_chunks:
                specs.append(spec)
        if specs and positions.size:
            extracted = self.extract_features(FeatureRequest(positions, tuple(specs)))
            features.update(zip(specs, extracted, strict=True))
        return Candidates(
            positions=candidates.positions,
            scores=candidates.scores,
            is_verbatim=candidates.is_verbatim,
            is_allowed=candidates.is_allowed,
            feature_positions=positions,
            features=tuple(features.values()),
        )

    def extract_features(self, request: FeatureRequest) -> tuple[Any, ...]:
        """Return the features of chunks, one `Features` for each spec of the request.

        Raises:
            LookupError: a position has no chunk in any segment.
        """
        extracted = self.extract_present_features(request)
        if extracted.rows.size < request.positions.size:
            raise LookupError("no segment has a chunk at one of the positions")
        return extracted.features

    def extract_present_features(self, request: FeatureRequest) -> ExtractedFeatures:
        """Return the features of those chunks of a request that are in these segments."""
        raise_if_cancelled()
        return ExtractedFeatures.merge(
            [scorer.extract_features(request) for scorer in self.scorers]
        )

    def inventory(self, request: InventoryRequest) -> Inventory:
        """Return facts about the stored chunks, such as their positions and metadata keys."""
        raise_if_cancelled()
        return Inventory.merge([scorer.inventory(request) for scorer in self.scorers], request)


def ranking_cache() -> LruCache[Ranking]:
    """Return a cache of rankings by query, valid as long as the chunks are the same."""
    return LruCache(_RANKINGS_BYTES, lambda ranking: ranking.nbytes + 4 * MAX_CACHED_CHARS)


@frozen(eq=False)
class _ChunkCounts:
    """The count of a word of the query in each chunk that has it."""

    chunk: ChunkOrds  # ordinals of the chunks, ascending, shape (df,)
    tf: npt.NDArray[Any]  # the count in each, shape (df,)


class SegmentScorer:
    """Scores the chunks of one segment by their terms, query after query; thread-safe.

    Args:
        segment: the segment.
        weighting: the weighting of terms.
        statistics: the statistics of all segments together.
        postings_cache: the cache of an earlier scorer of the same postings, to be reused.
    """

    def __init__(
        self,
        segment: Segment,
        weighting: Weighting,
        statistics: Statistics,
        postings_cache: LruCache[TermPostings] | None = None,
    ) -> None:
        self.segment = segment
        self.statistics = statistics
        self._weighting = weighting
        self._by_prefix = not statistics.is_english
        if postings_cache is None:
            limit_bytes = _MIN_CACHE_BYTES + segment.array_bytes // _CACHE_DIVISOR
            postings_cache = LruCache(limit_bytes, attrgetter("nbytes"))
        self.postings_cache = postings_cache
        self._exact_cache: LruCache[Match] = LruCache(_EXACT_CACHE_BYTES, attrgetter("nbytes"))

    @LazyAttribute
    def denominators(self) -> Floats:
        """For each of the N chunks the divisor as in `SegmentReader.denominators`, shape (N,)."""
        return self._weighting.denominators(self.segment, self.statistics)

    @LazyAttribute
    def _min_denominator(self) -> float:
        return float(self.denominators.min())

    @property
    def cache_bytes(self) -> int:
        """Size of the caches in bytes."""
        return self.postings_cache.nbytes + self._exact_cache.nbytes

    # ── Terms ─────────────────────────────────────────────────────────────────────────────────────

    def match_terms(self, request: MatchRequest) -> MatchResponse:
        """Return the terms of this segment that the words of a request match.

        The response also has the near terms and the spellings that the request lists, as far as
        this segment has them.
        """
        near_terms = tuple(map(self._near_terms, request.misspelled))
        spellings = self._spellings(request.term_ids) if request.term_ids else {}
        return MatchResponse(self._match(request.terms), near_terms, spellings)

    def _match(self, terms: Sequence[QueryTerm]) -> tuple[Match, ...]:
        exact_ids = []
        inflected = []
        for term in terms:
            if term.is_inflected:
                inflected.append(term)
            else:
                exact_ids.append(term.term_id)
        exact = self._match_exactly(exact_ids)
        postings = self.postings_of(inflected, [None] * len(inflected))
        matches = []
        for term in terms:
            matches.append(next(postings).matched if term.is_inflected else exact[term.term_id])
        return tuple(matches)

    def _match_exactly(self, term_ids: list[int]) -> dict[int, Match]:
        """Return, by term id, the match of each term with itself only, and its df.

        Most of these terms are stop words. If no chunk of the segment was removed, their postings
        are not read.
        """
        matches = self._exact_cache.get_all(term_ids)
        if len(matches) == len(term_ids):
            return matches
        missing = [term_id for term_id in term_ids if term_id not in matches]
        postings = self.segment.postings
        term_ords = postings.lexicon.find(np.array(missing, np.uint64))
        df = np.zeros(term_ords.size, np.int64)
        is_known = term_ords >= 0
        df[is_known] = postings.df(term_ords[is_known])
        for term_id, n_chunks in zip(missing, df.tolist(), strict=True):
            match = _NO_MATCH
            if n_chunks:
                match = Match.in_full(np.array([term_id], np.uint64), n_chunks)
            matches[term_id] = match
            self._exact_cache.put(term_id, match)
        return matches

    def _near_terms(self, word: str) -> Counter[str]:
        """Return for each similar term the number of chunks of this segment that have it.

        The terms are those that `Lexicon.fuzzy_matches` returns for the word; terms that occur only
        in removed chunks are left out.
        """
        postings = self.segment.postings
        term_ords = postings.lexicon.fuzzy_matches(word)
        counts = Counter[str]()
        if term_ords.size:
            terms = postings.lexicon.decode_terms(term_ords)
            for term, n_chunks in zip(terms, postings.df(term_ords).tolist(), strict=True):
                if n_chunks:
                    counts[term] = n_chunks
        return counts

    def _spellings(self, term_ids: Sequence[int]) -> dict[int, str]:
        """Return the spellings by id of the terms that occur in the segment."""
        lexicon = self.segment.postings.lexicon
        ids = np.array(term_ids, np.uint64)
        term_ords = lexicon.find(ids)
        is_known = term_ords >= 0
        terms = lexicon.decode_terms(term_ords[is_known])
        return dict(zip(ids[is_known].tolist(), terms, strict=True))

    def postings_of(
        self, terms: Sequence[QueryTerm], matches: Sequence[Match | None]
    ) -> Iterator[TermPostings]:
        """Yield the postings of each term, from the cache if it has them.

        Args:
            terms: words of the query.
            matches: the terms that each word matches in all segments; None searches the dictionary
                for inflections.
        """
        keys = []
        for term in terms:
            by_prefix = term.is_prefix or self._by_prefix
            keys.append((term.term_id, term.word, term.is_inflected, term.is_prefix, by_prefix))
        cached = self.postings_cache.get_all(keys)
        for key, term, match in zip(keys, terms, matches, strict=True):
            postings = cached.get(key)
            if postings is None:
                postings = self._read_postings(term, match)
                self.postings_cache.put(key, postings)
            yield postings

    def _read_postings(self, term: QueryTerm, match: Match | None) -> TermPostings:
        postings = self.segment.postings
        if match is None:
            inflections = live_inflections(postings, term, by_prefix=self._by_prefix)
        else:
            inflections = inflections_among(postings, match)
        is_crowded = inflections.term_ords.size > term_matching.MAX_INFLECTIONS
        term_ords = [] if is_crowded else inflections.term_ords.tolist()
        postings_of_ids = postings.of_terms(term_ords)
        chunk: ChunkOrds = postings_of_ids.chunk
        tf: npt.NDArray[Any] = postings_of_ids.tf
        if inflections.weight is not None and not is_crowded:
            tf = tf * inflections.weight.repeat(postings_of_ids.counts)
        counts = _ChunkCounts(chunk, tf)
        if len(term_ords) > 1:
            counts = self._sum_by_chunk(chunk, tf)
        matched = inflections.match(postings.lexicon, counts.chunk.size)
        weight = self._weighting.saturate(counts.tf)
        return TermPostings(matched, counts.chunk, counts.tf, weight)

    def _sum_by_chunk(self, chunk: ChunkOrds, tf: npt.NDArray[Any]) -> _ChunkCounts:
        """Return the sum of the counts of several terms in each chunk.

        The counts are added in the order of the terms.

        Args:
            chunk: the chunk ordinals in the postings of the terms, term after term.
            tf: the count of the term in each of these chunks, in the same order.
        """
        n_chunks = self.segment.size
        if chunk.size > n_chunks // _DENSE_DIVISOR:
            sums = np.bincount(chunk, tf, n_chunks)
            has_term = (sums > 0.0).nonzero()[0]
            return _ChunkCounts(has_term.astype(np.uint32), sums.take(has_term))
        order = chunk.argsort(kind="stable")
        chunk, tf = chunk.take(order), tf.take(order)
        is_first = run_starts(chunk)
        first = is_first.nonzero()[0]
        if tf.dtype.kind == "f":  # in sequence, as above: rounding depends on the order
            return _ChunkCounts(chunk.take(first), np.bincount(is_first.cumsum() - 1, tf))
        sums = np.add.reduceat(tf, first) if first.size else tf
        return _ChunkCounts(chunk.take(first), sums)

    # ── Candidates ────────────────────────────────────────────────────────────────────────────────

    def top_candidates(self, request: CandidateRequest) -> Candidates:
        """Return the chunks with the highest lexical scores, without features."""
        segment, denominators = self.segment, self.denominators
        sums = self._lexical_sums(request.terms)
        if sums is None:
            if not (request.includes_unmatched and segment.size):
                return Candidates.merge([], request)
            sums = np.zeros(segment.size)
        is_allowed = None
        if request.filter is not None:
            is_allowed = request.filter.allowed(segment, by_prefix=self._by_prefix)
        selected = [best_quotients(sums, denominators, self._min_denominator, request.n)]
        if is_allowed is not None:
            allowed_sums = np.where(is_allowed, sums, 0.0)
            selected.append(
                best_quotients(allowed_sums, denominators, self._min_denominator, request.n)
            )
        verbatim = self._verbatim(request.terms, sums)
        if verbatim.size:
            selected.append(verbatim)
        if request.includes_unmatched:
            is_result = segment.live if is_allowed is None else segment.live & is_allowed
            selected.append(is_result.nonzero()[0])
        chunk_ords = selected[0] if len(selected) == 1 else unique(np.concatenate(selected))
        is_verbatim = np.zeros(chunk_ords.size, bool)
        is_verbatim[chunk_ords.searchsorted(verbatim)] = True
        all_allowed = np.ones(chunk_ords.size, bool)
        return Candidates(
            positions=segment.positions.take(chunk_ords),
            scores=sums.take(chunk_ords) / denominators.take(chunk_ords),
            is_verbatim=is_verbatim,
            is_allowed=all_allowed if is_allowed is None else is_allowed[chunk_ords],
        )

    def _lexical_sums(self, terms: WeightedTerms) -> Floats | None:
        """Return the scalar product of each chunk with the query, shape (N,); None if all are 0.

        A stop word adds only to the product of a chunk that also has another word of the query. If
        no chunk of any segment has another word of the query, a stop word adds to the product of
        every chunk that has the stop word.
        """
        content: list[int] = []
        stop_words: list[int] = []
        for i, term in enumerate(terms.query.terms):
            if terms.weights[i] and terms.df[i]:
                (stop_words if term.is_stop_word else content).append(i)
        if not content:
            content, stop_words = stop_words, []
        sums: Floats | None = None
        chunks: list[ChunkOrds] = []
        values: list[Floats] = []
        n_postings = 0
        for i, postings in zip(content, self._postings_at(terms, content), strict=True):
            chunks.append(postings.chunk)
            values.append(terms.weights[i] * postings.weight)
            n_postings += postings.chunk.size
            if n_postings >= _BATCH_POSTINGS:
                sums = self._add(sums, chunks, values)
                chunks, values, n_postings = [], [], 0
        if n_postings:
            sums = self._add(sums, chunks, values)
        if sums is None or not stop_words:
            return sums
        for i, postings in zip(stop_words, self._postings_at(terms, stop_words), strict=True):
            chunk = postings.chunk.astype(np.intp)  # converted once for two uses as an index
            before = sums.take(chunk)
            sums[chunk] = before + terms.weights[i] * postings.weight * (before > 0.0)
        return sums

    def _postings_at(self, terms: WeightedTerms, indices: Sequence[int]) -> Iterator[TermPostings]:
        """Return an iterator of the postings of the words at indices of `terms.query.terms`."""
        words = [terms.query.terms[i] for i in indices]
        matches = [terms.matches[i] for i in indices]
        return self.postings_of(words, matches)

    def _add(
        self, sums: Floats | None, chunks: Sequence[ChunkOrds], values: Sequence[Floats]
    ) -> Floats:
        """Add the values of terms to the sums of chunks, in the order of the terms.

        Args:
            sums: sum of each of the N chunks, shape (N,), which is changed; None for all 0.
            chunks: for each term the ordinals of the chunks that have it.
            values: for each term the value to add for each of these chunks.

        Returns:
            The sums, shape (N,).
        """
        chunk = np.concatenate(chunks, dtype=np.intp)
        value = np.concatenate(values)
        if sums is None:
            n_chunks = self.segment.size
            return np.asarray(np.bincount(chunk, value, n_chunks), np.float64)
        np.add.at(
            sums, chunk, value
        )  # in sequence, so that the result equals that of a single batch
        return sums

    def _verbatim(self, terms: WeightedTerms, sums: Floats) -> Offsets:
        """Return the ordinals of the chunks whose tokens are exactly the known tokens of the query.

        The known tokens are those that occur in any chunk. The order of the tokens does not matter,
        but their counts do. Only chunks with a sum above 0 in `sums` are compared.
        """
        segment, token_ids = self.segment, terms.token_ids
        # Chunks with the hash of the query's tokens; almost none of these have other tokens.
        query_hash = chunk_hashes(token_ids.sum(keepdims=True))
        similar = (segment.hashes == query_hash).nonzero()[0]
        if not similar.size:
            return _NO_ORDS
        has_tokens = segment.n_occurrences[similar] == token_ids.size
        similar = similar[has_tokens & (sums[similar] > 0.0)]
        verbatim = [_NO_ORDS]
        sizes = segment.n_occurrences.take(similar) + POSITION_GAP
        for start, end in batch_by_size(sizes, _BATCH_TOKENS):
            chunk_ords = similar[start:end]
            tokens = segment.token_sequences(chunk_ords)
            is_token = tokens.terms < tokens.lexicon.size  # other elements are gaps
            # Ids of the tokens of m chunks in ascending order, shape (m, T).
            ids = tokens.lexicon.ids.take(tokens.terms[is_token])
            ids = ids.reshape(-1, token_ids.size)
            ids.sort()
            verbatim.append(chunk_ords[(ids == token_ids).all(axis=1)])
        return np.concatenate(verbatim)

    # ── Features and inventory ────────────────────────────────────────────────────────────────────

    def extract_features(self, request: FeatureRequest) -> ExtractedFeatures:
        """Return the features of the requested chunks that are in this segment."""
        chunk_ords = self.segment.find(request.positions)
        rows: Offsets = (chunk_ords >= 0).nonzero()[0]
        if not rows.size:
            return ExtractedFeatures(rows)
        if rows.size < chunk_ords.size:
            chunk_ords = chunk_ords.take(rows)
        sizes = self.segment.n_occurrences.take(chunk_ords) + POSITION_GAP
        if int(sizes.sum()) <= _BATCH_TOKENS:
            return ExtractedFeatures(rows, self._extract_together(chunk_ords, request.specs))
        parts, part_rows = [], []
        for start, end in batch_by_size(sizes, _BATCH_TOKENS):
            parts.append(self._extract_together(chunk_ords[start:end], request.specs))
            part_rows.append(np.arange(start, end))
        features = [merge_features(of_spec, part_rows) for of_spec in zip(*parts, strict=True)]
        return ExtractedFeatures(rows, tuple(features))

    def _extract_together(
        self, chunk_ords: Offsets, specs: Sequence[FeatureSpec]
    ) -> tuple[Any, ...]:
        """Return the features of chunks for each spec; their tokens must fit in memory together."""
        batch = ChunkBatch(self, chunk_ords)
        features = []
        for spec in specs:
            features.append(spec.extract(batch))
        return tuple(features)

    def inventory(self, request: InventoryRequest) -> Inventory:
        """Return the requested facts about the chunks of this segment."""
        segment, live = self.segment, self.segment.live
        inventory: dict[str, Any] = {}
        if request.with_positions:
            is_result = live
            if request.filter is not None:
                is_result = live & request.filter.allowed(segment, by_prefix=self._by_prefix)
            inventory["positions"] = segment.positions[is_result]
        if request.occupied is not None:
            inventory["is_occupied"] = segment.find(request.occupied) >= 0
        if request.with_metadata_keys:
            keys: set[str] = set()
            for chunk_ord, metadata in segment.chunks.metadata.items():
                if live[chunk_ord]:
                    keys.update(metadata)
            inventory["metadata_keys"] = frozenset(keys)
        if request.sample_size:
            chunk_ords = np.flatnonzero(live)
            if chunk_ords.size > request.sample_size:
                hashes = segment.hashes[chunk_ords]
                smallest = np.argpartition(hashes, request.sample_size - 1)
                chunk_ords = chunk_ords[smallest[: request.sample_size]]
            inventory["sample_hashes"] = segment.hashes[chunk_ords]
            inventory["sample_positions"] = segment.positions[chunk_ords]
        return Inventory(segment.statistics.n_chunks, **inventory)
