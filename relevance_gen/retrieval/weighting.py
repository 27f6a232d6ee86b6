r"""The weighting of terms, and the length normalization of chunks.

Terms are weighted in a chunk and in the query. Both weightings, ``pivoted`` and ``cosine``, are
cosines of TF-IDF vectors. N is the number of chunks, df(t) the number of chunks with term t.

``pivoted`` (the default) ranks best:

    w(t, d) = tf / (tf + 1.6)            idf(t) = ln(1 + N / df)
    w(t, q) = (1 + ln qtf) · idf(t)      n(d) = ‖w(·, d)‖₂      m = mean of n over all chunks
    cosine(q, d) = Σ_t w(t, q) w(t, d) / (‖w(·, q)‖₂ · (0.4 m + 0.6 n(d)))

This is a cosine if each chunk is given one extra coordinate, which is zero in every query, so that
the chunk's length equals the pivoted length 0.4 m + 0.6 n(d). Source: Singhal, Buckley, Mitra,
"Pivoted Document Length Normalization", SIGIR 1996; the saturation of tf is BM25's (Robertson and
Walker, SIGIR 1994).

Numbers that are not years add at most a tenth to the square of n(d): otherwise tables rank below
prose.

The idf of stop words depends on the number k of words of the query that are not stop words and
occur in any chunk. If k = 0, all words keep their idf. If k = 1, 2 or 3, the idf of stop words is
multiplied by 2^(1 − k); if k > 3, it is 0. If k > 0, the idf of question words, and of stop words
that occur in no chunk, is 0.

``cosine`` is the textbook's, SMART ltc.ltc with scikit-learn's smoothed idf, to verify the
implementation: for equal terms its scores equal those of ``TfidfVectorizer(sublinear_tf=True)``:

    w(t, d) = (1 + ln tf) · idf(t)       idf(t) = 1 + ln((1 + N) / (1 + df))
    cosine(q, d) = Σ_t w(t, q) w(t, d) / (‖w(·, q)‖₂ ‖w(·, d)‖₂)

As in scikit-learn, query terms that occur in no chunk are left out.
Source: Manning, Raghavan, Schütze, "Introduction to Information Retrieval", section 6.4.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from relevance_gen.arrays import Floats, Ids, find, runs, sum_by
from relevance_gen.checks import one_of
from relevance_gen.index import formulas
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.retrieval.query.parsing import Query
from relevance_gen.retrieval.query.term_matching import Match, QueryTerm
from relevance_gen.retrieval.ranking.stage import (
    ScoreNormalization,
    SelfMatch,
    Stage,
    WeightedQuery,
    WeightedTerms,
)
from relevance_gen.retrieval.stages import STAGE_CLASSES
from relevance_gen.types import WeightingName

_MAX_LISTED_TOKENS: Final = 64
"""Maximum tokens of a query that Python loops process; numpy, which processes longer queries, is
slower for short queries."""
_MAX_CONTENT_WORDS: Final = 3
"""Maximum number of content words with which stop words have an idf above 0."""


@frozen(eq=False)
class Weighting:
    """The formulas of a ranking: term weights, length normalization and scoring stages."""

    name: WeightingName  # public name
    inflects: bool  # whether words match their inflections, and stop words have little weight
    # Whether a chunk's length depends on df of all its terms, so that idf is used on both sides.
    needs_all_terms: bool
    # returns the weight of each count of a term, without idf
    saturate: Callable[[npt.NDArray[Any]], Floats]
    # returns the idf of each word, given df, the words and the number of chunks; 0 for a word
    # without weight
    idf: Callable[[Sequence[int], Sequence[QueryTerm], int], tuple[float, ...]]
    # returns the length normalization of each chunk, which divides its scalar product; above 0,
    # shape (N,)
    denominators: Callable[[Segment, Statistics], Floats]
    # returns the score of words matched against themselves, given for each word its query weight
    # times its saturated count, their norm as a chunk, the query's norm, and the mean norm of
    # chunks
    self_match: Callable[[Sequence[float], float, float, float], SelfMatch]
    # returns the stages for a query, in the order in which they run
    stages: Callable[[WeightedTerms], tuple[Stage, ...]]

    def statistics(self, segment: Segment) -> Statistics:
        """Return the statistics of a segment that are added to those of all other segments.

        If `needs_all_terms`, they contain the number of chunks of the segment with each term.
        """
        if not self.needs_all_terms:
            return segment.statistics
        postings = segment.postings
        return evolve(segment.statistics, ids=postings.lexicon.ids, df=postings.df_of_all())

    def weight_query(
        self, query: Query, matches: Sequence[Match], statistics: Statistics
    ) -> WeightedQuery:
        """Return a query with its terms weighted by all chunks' statistics, and its stages.

        Words of the query that occur in no chunk, except stop words, lower all scores by a factor:
        the score of the other words matched against themselves, divided by the score of the whole
        query matched against itself.

        Args:
            query: the query.
            matches: for each of `query.terms` the terms that it matches in all segments, and
                the number of chunks with any of them.
            statistics: the statistics of all segments together.
        """
        df = tuple([match.df for match in matches])
        idf = self.idf(df, query.terms, statistics.n_chunks)
        # The summands of the query matched against itself, before normalization: of all words, of
        # those that occur in a chunk, and the idf of the others.
        own_weights, own_summands = [], []
        known_weights, known_summands, unknown_idf = [], [], []
        for term, n_chunks, term_idf in zip(query.terms, df, idf, strict=True):
            own_weight = (1.0 + math.log(term.qtf)) * term_idf
            own_summand = own_weight * (term.qtf / (term.qtf + formulas.SATURATION))
            own_weights.append(own_weight)
            own_summands.append(own_summand)
            if n_chunks:
                known_weights.append(own_weight)
                known_summands.append(own_summand)
            elif term_idf > 0.0:
                unknown_idf.append(term_idf)
        norm = math.hypot(*known_weights) or 1.0
        weights = []
        for own_weight, term_idf in zip(own_weights, idf, strict=True):
            weight = own_weight * term_idf if self.needs_all_terms else own_weight
            weights.append(weight / norm)
        token_ids = _ids_of_tokens(query, df)
        terms = WeightedTerms(
            query=query,
            matches=tuple(matches),
            df=df,
            idf=idf,
            weights=tuple(weights),
            norm=norm,
            token_ids=token_ids,
            statistics=statistics.scalars,
        )
        stages = self.stages(terms)
        known_norm = _norm(token_ids, query.terms)
        own = self.self_match(known_summands, known_norm, norm, statistics.mean_norm)
        reference = _self_score(own, stages)
        known_share = 1.0
        if unknown_idf:
            # The whole query matched against itself: with the words that occur in no chunk, except
            # words without weight, whose summands are 0.
            is_weighted = []
            for n_chunks, term_idf in zip(df, idf, strict=True):
                is_weighted.append(n_chunks > 0 or term_idf > 0.0)
            whole_norm = _norm(_ids_of_tokens(query, is_weighted), query.terms)
            whole = self.self_match(own_summands, whole_norm, norm, statistics.mean_norm)
            whole = evolve(whole, unknown_idf=math.fsum(unknown_idf))
            known_share = min(reference / _self_score(whole, stages), 1.0)
        return WeightedQuery(terms, stages, own.cosine, reference, known_share)


def _self_score(own: SelfMatch, stages: Sequence[Stage]) -> float:
    """Return the score, before normalization, of the query matched against itself.

    It is the cosine in `own`, increased by each stage.
    """
    total = own.cosine
    for stage in stages:
        total = stage.self_score(total, own)
    return total


def _ids_of_tokens(query: Query, is_selected: Sequence[float]) -> Ids:
    """Return the term ids of the query tokens whose words are selected, ascending.

    Tokens whose words are beyond the first `MAX_TERMS` words of the query are included.

    Args:
        query: the query.
        is_selected: for each of `query.terms`, whether it is selected: true, or any number except
            0.
    """
    if all(is_selected):
        return np.sort(query.ids)
    # Tokens beyond the words of the query have the index -1, which is the last element.
    is_selected_term = np.array([*is_selected, True], bool)
    return np.sort(query.ids[is_selected_term.take(query.term_of_token)])


def _norm(ids: Ids, terms: Sequence[QueryTerm]) -> float:
    """Return the norm, as in `Segment.norms`, of a chunk that consists of tokens of a query.

    Args:
        ids: ids of the tokens, ascending.
        terms: the terms of the query.
    """
    number_ids = sorted([term.term_id for term in terms if term.is_number])
    if not number_ids:
        return math.sqrt(_square_sum(ids))
    is_word = find(np.array(number_ids, np.uint64), ids) < 0
    word_squares = np.array([_square_sum(ids[is_word])])
    number_squares = np.array([_square_sum(ids[~is_word])])
    return float(formulas.norms(word_squares, number_squares)[0])


def _square_sum(ids: Ids) -> float:
    """Return the sum of the squared saturated counts of the tokens with these ids, ascending."""
    if ids.size <= _MAX_LISTED_TOKENS:
        counts = [*Counter(ids.tolist()).values()]
    else:
        counts = runs(ids)[1].tolist()
    return math.fsum((tf / (tf + formulas.SATURATION)) ** 2 for tf in counts)


def _idf_of_content(
    df: Sequence[int], terms: Sequence[QueryTerm], n_chunks: int
) -> tuple[float, ...]:
    """Return the idf of each term of a query: ``ln(1 + N / df)``, reduced for stop words.

    df is at least 1 in this formula. If a word other than a stop word occurs in a chunk, the idf of
    a stop word is multiplied by a factor that depends on the number of such words (see the module),
    and the idf of a question word, or of a stop word that occurs in no chunk, is 0.
    """
    n_content = 0
    for term, n in zip(terms, df, strict=True):
        if n and not term.is_stop_word:
            n_content += 1
    stop_word_share = 2.0 ** (1 - n_content) if n_content <= _MAX_CONTENT_WORDS else 0.0
    values = []
    for term, n in zip(terms, df, strict=True):
        value = math.log(1.0 + n_chunks / max(n, 1))
        if n_content and term.is_stop_word:
            value *= stop_word_share if n and not term.is_question_word else 0.0
        values.append(value)
    return tuple(values)


def _pivoted_self_match(
    summands: Sequence[float], chunk_norm: float, query_norm: float, mean_norm: float
) -> SelfMatch:
    pivot = (1.0 - formulas.SLOPE) * mean_norm + formulas.SLOPE * chunk_norm
    denominator = (pivot or 1.0) * query_norm
    return SelfMatch(math.fsum(summands) / denominator, denominator)


def _pivoted_stages(terms: WeightedTerms) -> tuple[Stage, ...]:
    before: list[Stage] = []
    after: list[Stage] = []
    for stage_class in STAGE_CLASSES:
        stage = stage_class.of(terms)
        if stage is not None:
            (after if stage.is_after_normalization else before).append(stage)
    return (*before, ScoreNormalization(formulas.soft_clip_to_one), *after)


PIVOTED: Final = Weighting(
    name="pivoted",
    inflects=True,
    needs_all_terms=False,
    saturate=formulas.saturate,
    idf=_idf_of_content,
    denominators=lambda segment, statistics: formulas.pivot(segment.norms, statistics.mean_norm),
    self_match=_pivoted_self_match,
    stages=_pivoted_stages,
)


def _idf_as_scikit_learn(
    df: Sequence[int], terms: Sequence[QueryTerm], n_chunks: int
) -> tuple[float, ...]:
    """Return scikit-learn's smoothed idf of each term; 0 for a term that occurs in no chunk."""
    del terms
    counts = np.array(df, np.int64)
    idf = formulas.smoothed_idf(counts, n_chunks)
    return tuple(np.where(counts > 0, idf, 0.0).tolist())


def _lengths(segment: Segment, statistics: Statistics) -> Floats:
    """Return the Euclidean length of each chunk's TF-IDF vector, shape (N,); 1 for length 0.

    idf is computed from the statistics of all chunks.
    """
    postings = segment.postings
    df = statistics.df[np.searchsorted(statistics.ids, postings.lexicon.ids)]
    idf = formulas.smoothed_idf(df, statistics.n_chunks)
    # Weight of each posting, shape (P,).
    weight = formulas.sublinear(postings.tf) * idf.repeat(np.diff(postings.first))
    norms = np.sqrt(sum_by(postings.chunk, np.square(weight), segment.size))
    return np.where(norms > 0.0, norms, 1.0)


COSINE: Final = Weighting(
    name="cosine",
    inflects=False,
    needs_all_terms=True,
    saturate=formulas.sublinear,
    idf=_idf_as_scikit_learn,
    denominators=_lengths,
    self_match=lambda *_: SelfMatch(1.0, 1.0),
    stages=lambda _: (ScoreNormalization(formulas.clip_to_one),),
)

_WEIGHTINGS: Final[dict[object, Weighting]] = {
    weighting.name: weighting for weighting in (PIVOTED, COSINE)
}


def weighting_named(name: object) -> Weighting:
    """Return the weighting with a name.

    Raises:
        InvalidRequestError: no weighting has the name.
    """
    one_of(*get_args(WeightingName)).check("weighting", name)
    return _WEIGHTINGS[name]
