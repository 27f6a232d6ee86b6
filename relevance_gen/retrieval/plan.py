"""Weigh a query against a collection: what must be known of all chunks before any of them is scored.

Under ``pivoted`` the score of a chunk is ``cosine + pairs + coverage``, divided by the same of the query itself as if
it were a chunk. 1.0 then means "as good as a chunk that says exactly this", for every query and collection. Query
words that no chunk has, function words aside, lower all scores by one factor: what the rest of the query would score
alone, divided by what all of it would. Under ``cosine`` the score is the cosine.

Formulas: `relevance_gen.retrieval.weighting` and `relevance_gen.retrieval.proximity`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from attrs import frozen

from relevance_gen.retrieval.matching import Match
from relevance_gen.retrieval.proximity import ProximityScorer
from relevance_gen.retrieval.query import Query
from relevance_gen.retrieval.segment import Statistics
from relevance_gen.retrieval.weighting import OwnScore, Weighting, saturated_one


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
        said: ids of the query's tokens of terms that some chunk has, ascending.
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
    said: tuple[int, ...]
    said_norm: float
    proximity: ProximityScorer
    cosine: float
    reads_letters: bool
    reference: float
    known_share: float


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
    place = {number: at for at, number in enumerate(near)}
    proximity = ProximityScorer(
        [matches[number] for number in near],
        [idf[number] for number in near],
        [place.get(number, -1) for number in order if number >= 0 and df[number]],
    )
    reads_letters = weighting.reads_letters and not (statistics.is_english and query.text.isascii())

    def own_score(part: Sequence[bool], said: Sequence[int]) -> tuple[OwnScore, float]:
        """Return what some terms of the query, all the known ones among them, would score as a chunk, and its norm."""
        unknown = [rare for rare, kept, n in zip(idf, part, df, strict=True) if kept and not n]
        length = math.sqrt(math.fsum([saturated_one(n) ** 2 for n in _counts(said)]))
        own = weighting.own_score(
            [(value, term.qtf) for value, term, kept in zip(weight, terms, part, strict=True) if kept],
            length=length,
            norm=norm,
            mean_norm=statistics.mean_norm,
            pairs=proximity.pairs_of_query(),
            has_run=proximity.has_pairs,
            coverage=1.0 + math.fsum(unknown) / proximity.total_idf,
            reads_letters=reads_letters,
        )
        return own, length

    def said_of(part: Sequence[bool]) -> list[int]:
        """Return the ids of the tokens of some terms, and of those that are no term."""
        return [one for one, number in zip(query.ids, order, strict=True) if number < 0 or part[number]]

    is_known = [n > 0 for n in df]
    counted = [known or rare > 0.0 for known, rare in zip(is_known, idf, strict=True)]
    said = said_of(is_known)
    own, said_norm = own_score(is_known, said)
    known_share = 1.0
    if counted != is_known:
        known_share = min(own.total / own_score(counted, said_of(counted))[0].total, 1.0)
    return Plan(
        query=query,
        matches=matches,
        df=df,
        idf=idf,
        gains=tuple([gain / norm for gain in weighting.gains(weight, idf)]),
        norm=norm,
        said=tuple(sorted(said)),
        said_norm=said_norm,
        proximity=proximity,
        cosine=own.cosine,
        reads_letters=reads_letters,
        reference=own.total,
        known_share=known_share,
    )


def _counts(values: Sequence[int]) -> Iterable[int]:
    """Return how often each value is there, which few values tell quicker than `collections.Counter`."""
    counts: dict[int, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    return counts.values()


def _near(df: Sequence[int], idf: Sequence[float], n_near: int) -> tuple[int, ...]:
    """Choose the terms to look for side by side: the rarest that count, and as many that only stand between."""
    known = [number for number, n in enumerate(df) if n]
    counted = sorted((number for number in known if idf[number]), key=lambda number: -idf[number])
    between = [number for number in known if not idf[number]]
    return (*counted[:n_near], *between[:n_near])
