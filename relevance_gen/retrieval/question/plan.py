"""Weigh a query against a collection: what must be known of all chunks before any of them is scored.

Under ``pivoted`` the score of a chunk is ``cosine + pairs + coverage``, divided by the same of the query itself as if
it were a chunk. 1.0 then means "as good as a chunk that says exactly this", for every query and collection. Query
words that no chunk has, function words aside, lower all scores by one factor: what the rest of the query would score
alone, divided by what all of it would. Under ``cosine`` the score is the cosine.

Formulas: `relevance_gen.retrieval.question.weighting` and `relevance_gen.retrieval.question.proximity`.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.arrays import Ids
from relevance_gen.retrieval.question.matching import Match
from relevance_gen.retrieval.question.proximity import ProximityScorer
from relevance_gen.retrieval.question.query import Query
from relevance_gen.retrieval.question.weighting import AsChunk, OwnScore, Weighting
from relevance_gen.retrieval.segment.saturation import saturated_one
from relevance_gen.retrieval.segment.segment import Statistics

_FEW: Final = 64
"""Up to so many tokens are quicker looked at by Python."""


@frozen(eq=False)
class Plan:
    """A query weighed against a collection. It holds facts of the whole collection only, and no postings.

    Attributes:
        query: the query.
        matches: what each of its terms stands for, in any chunk.
        df: number of chunks that hold each term.
        idf: inverse document frequency of each term; 0 for one that is left out.
        gains: what the weight of each term in a chunk is multiplied by, divided by the query's norm.
        norm: Euclidean length of the query, of the terms that some chunk has.
        said: ids of the query's tokens of terms that some chunk has, ascending, shape (T,).
        said_norm: norm of a chunk that says these and nothing else.
        proximity: looks for the terms side by side.
        cosine: what these would score as a chunk by their cosine alone.
        reads_letters: whether the letters of words are looked at, too.
        reference: what they would score as a chunk altogether; all scores are divided by it.
        known_share: the reference as a share of what the whole query would score, in (0, 1].
    """

    query: Query
    matches: tuple[Match, ...]
    df: tuple[int, ...]
    idf: tuple[float, ...]
    gains: tuple[float, ...]
    norm: float
    said: Ids
    said_norm: float
    proximity: ProximityScorer
    cosine: float
    reads_letters: bool
    reference: float
    known_share: float

    @property
    def by_function_words(self) -> bool:
        """Whether chunks hold function words of the query at most, though the query has other words."""
        terms = self.query.terms
        is_found = any(n and not term.stop for term, n in zip(terms, self.df, strict=True))
        return not is_found and any(not term.stop for term in terms)


def weigh(
    query: Query, matches: tuple[Match, ...], df: tuple[int, ...], statistics: Statistics, weighting: Weighting
) -> Plan:
    """Weigh a query.

    Args:
        query: the query.
        matches: what each of its terms stands for, in any chunk.
        df: number of chunks that hold each term.
        statistics: facts of all chunks.
        weighting: how to weigh.
    """
    terms, order = query.terms, query.order
    idf = weighting.idf(df, [term.stop for term in terms], statistics.n_chunks)
    weight = [(1.0 + math.log(term.qtf)) * rare for term, rare in zip(terms, idf, strict=True)]
    norm = math.hypot(*[value for value, n in zip(weight, df, strict=True) if n]) or 1.0
    near = _near(df, idf, weighting.n_near)
    is_known = [n > 0 for n in df]
    proximity = ProximityScorer(
        [matches[number] for number in near], [idf[number] for number in near], _said(order, near, is_known)
    )
    reads_letters = weighting.reads_letters and not (statistics.is_english and query.text.isascii())

    def said_of(part: Sequence[bool]) -> Ids:
        """Return the ids of the query's tokens of some terms, and of those that are no term's, ascending."""
        said = query.ids if all(part) else query.ids[np.array([*part, True]).take(order)]
        return np.sort(said)

    def own_score(part: Sequence[bool], length: float) -> OwnScore:
        """Return what some terms of the query, all the known ones among them, would score as a chunk."""
        unknown = math.fsum([rare for rare, kept, n in zip(idf, part, df, strict=True) if kept and not n])
        said = [(value, term.qtf) for value, term, kept in zip(weight, terms, part, strict=True) if kept]
        return weighting.own_score(
            AsChunk(
                said,
                length=length,
                norm=norm,
                mean_norm=statistics.mean_norm,
                pairs=proximity.pairs_of_query(),
                has_run=proximity.n_pairs > 0,
                coverage=1.0 + unknown / proximity.total_idf,
                reads_letters=reads_letters,
            )
        )

    counted = [known or rare > 0.0 for known, rare in zip(is_known, idf, strict=True)]
    said = said_of(is_known)
    said_norm = _norm(said)
    own = own_score(is_known, said_norm)
    known_share = 1.0
    if counted != is_known:
        known_share = min(own.total / own_score(counted, _norm(said_of(counted))).total, 1.0)
    return Plan(
        query=query,
        matches=matches,
        df=df,
        idf=idf,
        gains=tuple([gain / norm for gain in weighting.gains(weight, idf)]),
        norm=norm,
        said=said,
        said_norm=said_norm,
        proximity=proximity,
        cosine=own.cosine,
        reads_letters=reads_letters,
        reference=own.total,
        known_share=known_share,
    )


def _said(order: npt.NDArray[np.int16], near: Sequence[int], is_known: Sequence[bool]) -> Sequence[int]:
    """Return the query's known tokens as numbers of the words to look for side by side; -1 for any other word."""
    if order.size <= _FEW:
        places = {number: at for at, number in enumerate(near)}
        return [places.get(number, -1) for number in order.tolist() if number >= 0 and is_known[number]]
    # The tokens of a query as long as a book are held as bytes: no list of them is ever made.
    place = np.full(len(is_known), -1, np.int8)
    place[list(near)] = range(len(near))
    return array("b", place.take(order[np.array([*is_known, False]).take(order)]).tobytes())


def _norm(ids: Ids) -> float:
    """Return the norm of a chunk that has tokens of these ids, ascending."""
    if ids.size <= _FEW:
        said = ids.tolist()
        return math.sqrt(math.fsum([saturated_one(said.count(one)) ** 2 for one in set(said)]))
    edges = np.flatnonzero(ids[1:] != ids[:-1])
    n_terms_of = np.bincount(np.diff(edges, prepend=-1, append=ids.size - 1))  # by how often they stand there
    counts = np.flatnonzero(n_terms_of).tolist()
    squares = (repeat(saturated_one(n) ** 2, int(n_terms_of[n])) for n in counts if n)
    return math.sqrt(math.fsum(chain.from_iterable(squares)))


def _near(df: Sequence[int], idf: Sequence[float], n_near: int) -> tuple[int, ...]:
    """Choose the terms to look for side by side: the rarest that count, and as many that only stand between."""
    known = [number for number, n in enumerate(df) if n]
    counted = sorted([number for number in known if idf[number]], key=lambda number: -idf[number])
    between = [number for number in known if not idf[number]]
    return (*counted[:n_near], *between[:n_near])
