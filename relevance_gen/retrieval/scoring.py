"""Score every chunk of a collection against one query.

For the ``pivoted`` weighting the score is ``(cosine + pairs + coverage)`` of the chunk, divided by the same of the
query itself as if it were a chunk; pairs and coverage are looked at for the 50 chunks of the highest cosine. 1.0 then
means "as good as a chunk that says exactly this", for every query and collection. Query words that no chunk has,
function words aside, lower all scores by one factor: what the rest of the query would score alone, divided by what all
of it would. For the ``cosine`` weighting the score is the cosine.

Formulas: `relevance_gen.retrieval.weighting` and `relevance_gen.retrieval.proximity`.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter
from collections.abc import Hashable, Iterator

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.matching import MAX_INFLECTED, Match, is_fragment, match_exactly, match_inflections, stem
from relevance_gen.retrieval.postings import Chunks
from relevance_gen.retrieval.proximity import (
    COVERAGE_WEIGHT,
    MAX_WORDS,
    PAIR_WEIGHT,
    ProximityScorer,
)
from relevance_gen.retrieval.ranking import at_least_as_good, below_one
from relevance_gen.retrieval.stopwords import ENGLISH as STOP_WORDS
from relevance_gen.retrieval.terms import SPELLED_BYTES, Ids, Offsets, ragged_ranges, tokenize
from relevance_gen.retrieval.weighting import (
    Floats,
    Weighting,
    mean_norm,
    pivot,
    rarity,
    saturated,
    smoothed_idf,
    sublinear,
    sum_by,
)

_CANDIDATES = 50
"""Chunks whose proximity is looked at; 100 ranked no better in the collections measured."""
_CANDIDATE_BATCH = 256
"""Candidates looked at together: ties may make them many."""
_REMEMBERED_QUERIES = 256
"""Queries that an index remembers with their answers; the least recently used go first."""
_REMEMBERED_CHARS = 1024
_REMEMBERED_TOKENS = 256
"""Longer queries are not remembered, nor answers of more than `_CANDIDATES` chunks: it bounds the memory."""
_REMEMBERED_POSTINGS = 1 << 23
"""At most so many postings, of 20 bytes, of the words last asked for are kept ready, even if every chunk has them."""


@frozen
class QueryTerm:
    """A word of the query with the other words of the query that have its stem.

    Attributes:
        word: the folded spelling of the first.
        term_id: its id.
        qtf: how often the query says them, at least 1.
        stop: whether it says nothing about the subject.
    """

    word: str
    term_id: int
    qtf: int
    stop: bool


@frozen(eq=False)
class Query:
    """A query cut into terms.

    Attributes:
        ids: term ids of its tokens, in reading order, shape (T,).
        terms: its different terms, in order of first appearance.
        order: number of the term at each token, shape (T,).
    """

    ids: Ids
    terms: tuple[QueryTerm, ...]
    order: Offsets

    @property
    def beginnings(self) -> Ids | None:
        """Ids that have the beginnings of all that the query can match; None where that may begin with anything."""
        return None if any(is_fragment(term.word) for term in self.terms) else self.ids


def parse_query(text: str, weighting: Weighting) -> Query:
    """Cut a query into terms; under ``pivoted`` words with one stem are one term, but not "can" and "cans"."""
    return _parse_once(text, weighting) if len(text) <= _REMEMBERED_CHARS else _parse(text, weighting)


def _parse(text: str, weighting: Weighting) -> Query:
    tokens = tokenize([text])
    ids, first, word_at = np.unique(tokens.ids, return_index=True, return_inverse=True)
    term_of_word = np.zeros(ids.size, np.int64)
    numbers: dict[Hashable, int] = {}
    heads: list[tuple[str, int]] = []
    for word in np.argsort(first).tolist():  # in order of first appearance
        token, key = int(first[word]), int(ids[word])
        spelling = tokens.spell(token)
        by_stem = weighting == "pivoted" and tokens.length[token] < SPELLED_BYTES
        number = numbers.setdefault((stem(spelling), spelling in STOP_WORDS) if by_stem else key, len(numbers))
        if number == len(heads):
            heads.append((spelling, key))
        term_of_word[word] = number
    order = term_of_word[word_at]
    terms = tuple(
        QueryTerm(spelling, term_id, qtf, weighting == "pivoted" and spelling in STOP_WORDS)
        for (spelling, term_id), qtf in zip(heads, np.bincount(order, minlength=len(heads)).tolist(), strict=True)
    )
    return Query(tokens.ids, terms, order)


_parse_once = functools.lru_cache(maxsize=_REMEMBERED_QUERIES)(_parse)


@frozen(eq=False)
class TermPostings:
    """One query term's matches in the collection.

    Attributes:
        match: the vocabulary's terms that it stands for.
        chunk: chunks that hold any of them, shape (df,).
        tf: how often each does, every match times its weight, shape (df,).
        weight: what that weighs in the chunk, before idf, shape (df,).
    """

    match: Match
    chunk: Chunks
    tf: Floats
    weight: Floats

    @property
    def df(self) -> int:
        """Number of chunks that hold the term."""
        return self.chunk.size


@frozen(eq=False)
class Plan:
    """A query weighed against a collection.

    Attributes:
        query: the query.
        found: the postings of each of its terms.
        idf: inverse document frequency of each term; 0 for one that is left out.
        weight: weight of each term in the query, ``(1 + ln qtf) · idf``.
        norm: Euclidean length of the query, of the terms that some chunk has.
        said: ids of the query's tokens of terms that some chunk has, ascending.
        reference: what these would score as a chunk; all scores are divided by it.
        known_share: the reference as a share of what the whole query would score, in (0, 1].
        proximity: looks for the terms side by side; None under ``cosine``.
    """

    query: Query
    found: tuple[TermPostings, ...]
    idf: tuple[float, ...]
    weight: tuple[float, ...]
    norm: float
    said: Ids
    reference: float = 1.0
    known_share: float = 1.0
    proximity: ProximityScorer | None = None


class Scorer:
    """Scores the chunks of one collection, query after query; safe to share between threads.

    Args:
        collection: the chunks, read with the same weighting.
        weighting: how to score.
    """

    def __init__(self, collection: Collection, weighting: Weighting) -> None:
        self.collection = collection
        self.weighting = weighting
        self._mean_norm = mean_norm(collection.norms)
        norms = collection.norms
        self._lengths = pivot(norms, self._mean_norm) if weighting == "pivoted" else np.where(norms > 0.0, norms, 1.0)
        n_words = _REMEMBERED_POSTINGS // max(norms.size, 1 << 11)
        self._find = functools.lru_cache(maxsize=n_words)(self._find_postings)
        self._plan_once = functools.lru_cache(maxsize=_REMEMBERED_QUERIES)(self._plan)
        self._best_once = functools.lru_cache(maxsize=_REMEMBERED_QUERIES)(self._best)

    def best(self, query: Query, top_n: int) -> tuple[Offsets, Floats]:
        """Return the `top_n` best chunks, best first, and their scores, in (0, 1]; of equal ones the earlier first.

        Chunks of score 0 are left out.
        """
        remembered = query.ids.size <= _REMEMBERED_TOKENS and top_n <= _CANDIDATES
        return self._best_once(query, top_n) if remembered else self._best(query, top_n)

    def plan(self, query: Query) -> Plan:
        """Return the query, weighed against the collection."""
        return self._plan_once(query) if query.ids.size <= _REMEMBERED_TOKENS else self._plan(query)

    def _best(self, query: Query, top_n: int) -> tuple[Offsets, Floats]:
        plan = self.plan(query)
        ratios = self._cosines(plan)
        chunks = at_least_as_good(ratios, max(top_n, _CANDIDATES))
        verbatim = self._says_the_same(plan.said, ratios)
        if verbatim.size:
            chunks = np.union1d(chunks, verbatim)
        scores = self._finish(plan, ratios, chunks)
        scores[np.searchsorted(chunks, verbatim)] = 1.0
        scores *= plan.known_share
        ranked = np.argsort(-scores, kind="stable")[:top_n]
        return chunks[ranked], scores[ranked]

    def score(self, query: Query, chunk: int) -> float:
        """Return the score of one chunk, in [0, 1]."""
        chunks, scores = self.best(query, self.collection.n_chunks)
        return float(scores[chunks == chunk].sum())

    def _cosines(self, plan: Plan) -> Floats:
        """Return every chunk's cosine with the query, shape (N,)."""
        cosines = np.zeros(self.collection.n_chunks)
        for weight, found in zip(self._chunk_weights(plan), plan.found, strict=True):
            if weight:
                cosines[found.chunk] += weight / plan.norm * found.weight
        cosines /= self._lengths
        return cosines

    def _finish(self, plan: Plan, cosines: Floats, chunks: Offsets) -> Floats:
        """Return the scores of some chunks, ascending, of which the most promising ones get their bonus."""
        ratios = cosines[chunks]
        if plan.proximity is None:
            return np.minimum(ratios, 1.0)
        for some in _batches(at_least_as_good(ratios, _CANDIDATES)):
            pairs, coverage = self._bonus(plan, plan.proximity, chunks[some])
            ratios[some] += pairs + coverage
        return below_one(ratios / plan.reference)

    def shares(self, plan: Plan, chunk: int) -> tuple[list[float], float, float]:
        """Return what each term, the pairs and the coverage gave to a chunk's score, before `below_one`."""
        reference = plan.reference / plan.known_share
        scale = float(self._lengths[chunk]) * plan.norm * reference
        terms = [
            weight * float(found.weight[found.chunk == chunk].sum()) / scale
            for weight, found in zip(self._chunk_weights(plan), plan.found, strict=True)
        ]
        if plan.proximity is None or chunk not in at_least_as_good(self._cosines(plan), _CANDIDATES):
            return terms, 0.0, 0.0
        pairs, coverage = self._bonus(plan, plan.proximity, np.array([chunk]))
        return terms, float(pairs[0]) / reference, float(coverage[0]) / reference

    def _chunk_weights(self, plan: Plan) -> Iterator[float]:
        """Yield what each term's weight in a chunk is multiplied by: under ``cosine`` chunks have the idf, too."""
        if self.weighting == "pivoted":
            return iter(plan.weight)
        return (weight * idf for weight, idf in zip(plan.weight, plan.idf, strict=True))

    def _bonus(self, plan: Plan, proximity: ProximityScorer, chunks: Offsets) -> tuple[Floats, Floats]:
        near = proximity.score(*self.collection.tokens_of(chunks))
        return PAIR_WEIGHT * near.pairs / (self._lengths[chunks] * plan.norm), COVERAGE_WEIGHT * near.coverage

    def _says_the_same(self, said: Ids, cosines: Floats) -> Offsets:
        """Find the chunks that have exactly these terms, each as often."""
        same_length = np.flatnonzero(self.collection.n_tokens == said.size)
        same_length = same_length[cosines[same_length] > 0.0]
        if not same_length.size:
            return same_length
        same = [
            (np.sort(self.collection.tokens_of(chunks)[0].reshape(chunks.size, -1)) == said).all(axis=1)
            for chunks in _batches(same_length)
        ]
        found: Offsets = same_length[np.concatenate(same)]
        return found

    # ── Weighing a query ─────────────────────────────────────────────────────────────────────────────────────────────

    def _plan(self, query: Query) -> Plan:
        found = tuple(
            self._find(term.term_id, term.word, term.stop or number >= MAX_INFLECTED)
            for number, term in enumerate(query.terms)
        )
        if self.weighting == "cosine":
            df = np.array([part.df for part in found], np.int64)
            idf = np.where(df > 0, smoothed_idf(df, self.collection.n_chunks), 0.0).tolist()
            weight = tuple((1.0 + math.log(term.qtf)) * rare for term, rare in zip(query.terms, idf, strict=True))
            return Plan(query, found, tuple(idf), weight, math.hypot(*weight) or 1.0, _tokens_of(query, df > 0))
        return self._plan_pivoted(query, found)

    def _plan_pivoted(self, query: Query, found: tuple[TermPostings, ...]) -> Plan:
        """Weigh the query; stop words count only where no chunk has any other word of it."""
        known = [part.df > 0 for part in found]
        only_stops = not any(has and not term.stop for has, term in zip(known, query.terms, strict=True))
        idf = tuple(
            rarity(part.df, self.collection.n_chunks) if only_stops or not term.stop else 0.0
            for part, term in zip(found, query.terms, strict=True)
        )
        weight = tuple((1.0 + math.log(term.qtf)) * rare for term, rare in zip(query.terms, idf, strict=True))
        norm = math.hypot(*(value for value, has in zip(weight, known, strict=True) if has)) or 1.0

        words = self._rarest(idf, known)
        place = {term: number for number, term in enumerate(words)}
        said = query.order[np.array(known, bool)[query.order]].tolist()
        pairs = Counter((place[a], place[b]) for a, b in itertools.pairwise(said) if a in place and b in place)
        proximity = ProximityScorer([found[term].match for term in words], [idf[term] for term in words], pairs)
        own_weight = np.array(weight) * saturated(np.array([term.qtf for term in query.terms], np.int64))
        is_known, rare = np.array(known, bool), np.array(idf)

        def own_score(part: npt.NDArray[np.bool_]) -> float:
            """Return what some terms of the query, all the known ones among them, would score as a chunk."""
            length = float(pivot(np.array([_norm(_tokens_of(query, part))]), self._mean_norm)[0]) * norm
            cosine_and_pairs = math.fsum(own_weight[part]) + PAIR_WEIGHT * proximity.pairs_of_query()
            covered = 1.0 + math.fsum(rare[part & ~is_known]) / proximity.total_idf
            return cosine_and_pairs / length + COVERAGE_WEIGHT * covered

        reference = own_score(is_known)
        counted = is_known | (rare > 0.0)
        known_share = min(reference / own_score(counted), 1.0) if counted.sum() > is_known.sum() else 1.0
        return Plan(query, found, idf, weight, norm, _tokens_of(query, is_known), reference, known_share, proximity)

    def _rarest(self, idf: tuple[float, ...], known: list[bool]) -> list[int]:
        """Return the terms to look for side by side: the rarest that count, and as many that only stand between."""
        counted = sorted((term for term, has in enumerate(known) if has and idf[term]), key=lambda term: -idf[term])
        between = [term for term, has in enumerate(known) if has and not idf[term]]
        return counted[:MAX_WORDS] + between[:MAX_WORDS]

    def _find_postings(self, term_id: int, word: str, exactly: bool) -> TermPostings:
        """Find the chunks that hold a word of the query, in any of its forms unless `exactly` in this one."""
        postings = self.collection.postings
        if exactly or self.weighting == "cosine":
            match = match_exactly(postings, term_id, word)
        else:
            match = match_inflections(postings, term_id, word, by_prefix=not self.collection.is_english)
        first = postings.first[match.numbers]
        counts = postings.first[match.numbers + 1] - first
        at = ragged_ranges(first, counts)
        chunk: Chunks = postings.chunk[at]
        tf = np.asarray(postings.tf[at] * np.repeat(match.weight, counts), np.float64)
        if counts.size > 1:
            chunk, place = np.unique(chunk, return_inverse=True)
            tf = sum_by(place, tf, chunk.size)
        return TermPostings(match, chunk, tf, saturated(tf) if self.weighting == "pivoted" else sublinear(tf))


def _tokens_of(query: Query, terms: npt.NDArray[np.bool_]) -> Ids:
    """Return the ids of the query's tokens of some of its terms, ascending."""
    return np.sort(query.ids[terms[query.order]])


def _norm(ids: Ids) -> float:
    """Return the norm of a chunk of these tokens."""
    times = np.array(list(Counter(ids.tolist()).values()), np.int64)
    return math.sqrt(math.fsum(np.square(saturated(times))))


def _batches(chunks: Offsets) -> Iterator[Offsets]:
    for start in range(0, chunks.size, _CANDIDATE_BATCH):
        yield chunks[start : start + _CANDIDATE_BATCH]
