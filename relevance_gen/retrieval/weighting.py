r"""The formulas: how much a term weighs in a chunk, in the query, and what a chunk's length takes off.

Both weightings are cosines of TF-IDF vectors, with N chunks, df(t) of which hold term t:

``pivoted`` (the default) answers questions best::

    w(t, d) = tf / (tf + 1.6)            idf(t) = ln(1 + N / df)
    w(t, q) = (1 + ln qtf) · idf(t)      n(d) = ‖w(·, d)‖₂      m = mean of n over all chunks
    cosine(q, d) = Σ_t w(t, q) w(t, d) / (‖w(·, q)‖₂ · (0.4 m + 0.6 n(d)))

Function words weigh 2^(1 − n) of that beside n = 1, 2 or 3 other words of the query that some chunk has, and nothing
beside more; words that only ask weigh nothing beside any. Where chunks have no other word, all weigh in full.

It is a cosine if each chunk is given one extra coordinate, which is zero in every query, so that the chunk's length
equals its denominator: pivoted normalisation. Source: Singhal, Buckley, Mitra, "Pivoted Document Length
Normalization", SIGIR 1996; the saturation of tf is BM25's (Robertson and Walker, SIGIR 1994).

``cosine`` is the textbook's, SMART ltc.ltc with scikit-learn's smoothed idf, to check us by: where the terms are the
same, its scores are those of ``TfidfVectorizer(sublinear_tf=True)``::

    w(t, d) = (1 + ln tf) · idf(t)       idf(t) = 1 + ln((1 + N) / (1 + df))
    cosine(q, d) = Σ_t w(t, q) w(t, d) / (‖w(·, q)‖₂ ‖w(·, d)‖₂)

As in scikit-learn, query terms that no chunk has are left out.
Source: Manning, Raghavan, Schütze, "Introduction to Information Retrieval", section 6.4.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any, Final, get_args

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from relevance_gen.arrays import Floats, Ids, sum_by
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index import formulas
from relevance_gen.index.segment import Segment, Statistics
from relevance_gen.retrieval.query.parsing import Query, QueryTerm
from relevance_gen.retrieval.query.term_matching import Match
from relevance_gen.retrieval.ranking.stage import (
    ScoreNormalization,
    SelfMatch,
    Stage,
    WeightedQuery,
    WeightedTerms,
)
from relevance_gen.retrieval.stages.char_ngrams import CharNgrams
from relevance_gen.retrieval.stages.proximity import Proximity
from relevance_gen.retrieval.stages.score_regularization import ScoreRegularization
from relevance_gen.retrieval.stages.titles import TitleMatch
from relevance_gen.types import WeightingName

_FEW: Final = 64
"""Up to so many words are quicker looked at by Python."""
_MOST_OTHERS: Final = 3
"""Beside more other words function words weigh nothing."""


@frozen(eq=False)
class Weighting:
    """One way to weigh terms, and the stages of a score."""

    name: WeightingName  # what callers call it
    inflects: bool  # whether a word of the query stands for its other forms, too, and function words for nothing
    needs_all_terms: bool  # whether a chunk's length depends on df of all of its terms, and so idf counts on both sides
    saturate: Callable[
        [npt.NDArray[Any]], Floats
    ]  # returns what each count of a term weighs in a chunk, before idf
    # returns the idf of each term, of df, the terms and the number of chunks; 0 for one that is left out
    idf: Callable[[Sequence[int], Sequence[QueryTerm], int], tuple[float, ...]]
    # returns what the sum of each chunk is divided by, the query's norm aside; above 0, shape (N,)
    denominators: Callable[[Segment, Statistics], Floats]
    # returns what terms would score as a chunk by their cosine, and what that is divided by
    own_cosine: Callable[[Sequence[tuple[float, int]], float, float, float], tuple[float, float]]
    # each makes a part of the score for one question, or None where it has none
    stages: tuple[Callable[[WeightedTerms], Stage | None], ...]

    def statistics(self, segment: Segment) -> Statistics:
        """Return what scores need to know of a segment elsewhere."""
        if not self.needs_all_terms:
            return segment.statistics
        postings = segment.postings
        return evolve(segment.statistics, ids=postings.lexicon.ids, df=postings.df_of_all())

    def weigh(
        self, query: Query, matches: tuple[Match, ...], df: tuple[int, ...], statistics: Statistics
    ) -> WeightedQuery:
        """Weigh a query against a collection.

        Words of the query that no chunk has, function words aside, lower all scores by one factor: what the rest of the
        query would score alone, divided by what all of it would.
        """
        idf = self.idf(df, query.terms, statistics.n_chunks)
        weight = [
            (1.0 + math.log(term.qtf)) * rare for term, rare in zip(query.terms, idf, strict=True)
        ]
        norm = math.hypot(*[value for value, n in zip(weight, df, strict=True) if n]) or 1.0
        terms = WeightedTerms(query, matches, df, idf, norm, statistics.scalars)
        stages = tuple([stage for make in self.stages if (stage := make(terms)) is not None])

        def said_of(part: Sequence[bool]) -> Ids:
            """Return the ids of the query's words of some terms, and of those that are no term's, ascending."""
            said = query.ids if all(part) else query.ids[np.array([*part, True]).take(query.order)]
            return np.sort(said)

        def own_scores(part: Sequence[bool], length: float) -> tuple[float, float]:
            """Return what some terms, all the known ones among them, would score as a chunk: by cosine, and in all."""
            said = [
                (value, term.qtf)
                for value, term, kept in zip(weight, query.terms, part, strict=True)
                if kept
            ]
            unknown = math.fsum(
                [rare for rare, kept, n in zip(idf, part, df, strict=True) if kept and not n]
            )
            total, denominator = self.own_cosine(said, length, norm, statistics.mean_norm)
            own = SelfMatch(total, denominator, unknown)
            for stage in stages:
                total = stage.of_query(total, own)
            return own.cosine, total

        is_known = [n > 0 for n in df]
        pluralize = [known or rare > 0.0 for known, rare in zip(is_known, idf, strict=True)]
        said = said_of(is_known)
        said_norm = _norm(said)
        cosine, reference = own_scores(is_known, said_norm)
        share = 1.0
        if pluralize != is_known:
            share = min(reference / own_scores(pluralize, _norm(said_of(pluralize)))[1], 1.0)
        gains = (
            [one * rare for one, rare in zip(weight, idf, strict=True)]
            if self.needs_all_terms
            else weight
        )
        return WeightedQuery(
            terms,
            tuple([gain / norm for gain in gains]),
            said,
            said_norm,
            stages,
            cosine,
            reference,
            share,
        )


def _norm(ids: Ids) -> float:
    """Return the norm of a chunk that has words of these ids, ascending."""
    if ids.size <= _FEW:
        said = ids.tolist()
        return math.sqrt(
            math.fsum([formulas.saturate_scalar(said.count(one)) ** 2 for one in set(said)])
        )
    edges = np.flatnonzero(ids[1:] != ids[:-1])
    n_terms_of = np.bincount(
        np.diff(edges, prepend=-1, append=ids.size - 1)
    )  # by how often they stand there
    counts = np.flatnonzero(n_terms_of).tolist()
    squares = (repeat(formulas.saturate_scalar(n) ** 2, int(n_terms_of[n])) for n in counts if n)
    return math.sqrt(math.fsum(chain.from_iterable(squares)))


def _idf_of_subject(
    df: Sequence[int], terms: Sequence[QueryTerm], n_chunks: int
) -> tuple[float, ...]:
    """Return ``ln(1 + N / df)``, and of function words what is left of it beside n other words that some chunk has."""
    n_others = sum([1 for n, term in zip(df, terms, strict=True) if n and not term.stop])
    if not n_others:
        return tuple([formulas.idf(n, n_chunks) for n in df])
    share = 2.0 ** (1 - n_others) if n_others <= _MOST_OTHERS else 0.0
    shares = [
        1.0 if not term.stop else share if n and not term.asks else 0.0
        for n, term in zip(df, terms, strict=True)
    ]
    return tuple([formulas.idf(n, n_chunks) * part for n, part in zip(df, shares, strict=True)])


def _own_pivoted_cosine(
    terms: Sequence[tuple[float, int]], length: float, norm: float, mean_norm: float
) -> tuple[float, float]:
    denominator = ((1.0 - formulas.SLOPE) * mean_norm + formulas.SLOPE * length or 1.0) * norm
    return math.fsum(
        [weight * formulas.saturate_scalar(qtf) for weight, qtf in terms]
    ) / denominator, denominator


PIVOTED: Final = Weighting(
    name="pivoted",
    inflects=True,
    needs_all_terms=False,
    saturate=formulas.saturate,
    idf=_idf_of_subject,
    denominators=lambda segment, statistics: formulas.pivot(segment.norms, statistics.mean_norm),
    own_cosine=_own_pivoted_cosine,
    stages=(
        Proximity.of,
        TitleMatch.of,
        CharNgrams.of,
        lambda _: ScoreNormalization(formulas.soft_clip_to_one),
        lambda _: ScoreRegularization(),
    ),
)


def _idf_as_scikit_learn(
    df: Sequence[int], terms: Sequence[QueryTerm], n_chunks: int
) -> tuple[float, ...]:
    """Return scikit-learn's smoothed idf; 0 for a term that no chunk has."""
    del terms
    counts = np.array(df, np.int64)
    return tuple(np.where(counts > 0, formulas.smoothed_idf(counts, n_chunks), 0.0).tolist())


def _lengths(segment: Segment, statistics: Statistics) -> Floats:
    """Return the length of each chunk's vector; 1 where that is 0."""
    postings = segment.postings
    df = statistics.df[np.searchsorted(statistics.ids, postings.lexicon.ids)]
    idf = np.repeat(formulas.smoothed_idf(df, statistics.n_chunks), np.diff(postings.first))
    norms = np.sqrt(
        sum_by(postings.chunk, np.square(formulas.sublinear(postings.tf) * idf), segment.size)
    )
    return np.where(norms > 0.0, norms, 1.0)


COSINE: Final = Weighting(
    name="cosine",
    inflects=False,
    needs_all_terms=True,
    saturate=formulas.sublinear,
    idf=_idf_as_scikit_learn,
    denominators=_lengths,
    own_cosine=lambda *_: (1.0, 1.0),
    stages=(lambda _: ScoreNormalization(formulas.clip_to_one),),
)

_WEIGHTINGS: Final[dict[object, Weighting]] = {one.name: one for one in (PIVOTED, COSINE)}


def weighting_named(name: object) -> Weighting:
    """Return the weighting of a name; one that there is not raises `InvalidRequestError`."""
    if not isinstance(name, str) or name not in _WEIGHTINGS:
        allowed = " or ".join(f'"{known}"' for known in get_args(WeightingName))
        raise InvalidRequestError.must_be("weighting", allowed, name)
    return _WEIGHTINGS[name]
