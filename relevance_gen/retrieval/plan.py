"""Weigh a query against a collection: what must be known of all chunks before any of them is scored.

Under ``pivoted`` the score of a chunk is ``cosine + pairs + coverage``, divided by the same of the query itself as if
it were a chunk. 1.0 then means "as good as a chunk that says exactly this", for every query and collection. Query
words that no chunk has, function words aside, lower all scores by one factor: what the rest of the query would score
alone, divided by what all of it would. Under ``cosine`` the score is the cosine.

Formulas: `relevance_gen.retrieval.weighting` and `relevance_gen.retrieval.proximity`.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.matching import Match
from relevance_gen.retrieval.proximity import ProximityScorer
from relevance_gen.retrieval.query import Query
from relevance_gen.retrieval.segment import Statistics
from relevance_gen.retrieval.terms import Ids
from relevance_gen.retrieval.weighting import Weighting


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
        proximity: looks for the terms side by side.
        reference: what the terms that some chunk has would score as a chunk; all scores are divided by it.
        known_share: the reference as a share of what the whole query would score, in (0, 1].
    """

    query: Query
    matches: tuple[Match, ...]
    df: tuple[int, ...]
    idf: tuple[float, ...]
    gains: tuple[float, ...]
    norm: float
    said: Ids
    proximity: ProximityScorer
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
    terms, n_chunks = query.terms, statistics.n_chunks
    idf = weighting.idf(df, [term.stop for term in terms], n_chunks)
    weight = tuple((1.0 + math.log(term.qtf)) * rare for term, rare in zip(terms, idf, strict=True))
    norm = math.hypot(*(value for value, n in zip(weight, df, strict=True) if n)) or 1.0
    near = _near(df, idf, weighting.n_near)
    proximity = ProximityScorer(
        [matches[number] for number in near], [idf[number] for number in near], _neighbours(query, df, near)
    )
    pair_score = proximity.pairs_of_query()
    is_known, rare_as = np.array(df, np.int64) > 0, np.array(idf)
    counted = is_known | (rare_as > 0.0)

    def own_score(part: npt.NDArray[np.bool_]) -> float:
        """Return what some terms of the query, all the known ones among them, would score as a chunk."""
        numbers = np.flatnonzero(part).tolist()
        return weighting.own_score(
            [weight[number] for number in numbers],
            [terms[number].qtf for number in numbers],
            list(Counter(_tokens_of(query, part).tolist()).values()),
            norm=norm,
            mean_norm=statistics.mean_norm,
            pairs=pair_score,
            coverage=1.0 + math.fsum(rare_as[part & ~is_known]) / proximity.total_idf,
        )

    reference = own_score(is_known)
    known_share = min(reference / own_score(counted), 1.0) if counted.sum() > is_known.sum() else 1.0
    return Plan(
        query=query,
        matches=matches,
        df=df,
        idf=idf,
        gains=tuple(gain / norm for gain in weighting.gains(weight, idf)),
        norm=norm,
        said=_tokens_of(query, is_known),
        proximity=proximity,
        reference=reference,
        known_share=known_share,
    )


def _near(df: Sequence[int], idf: Sequence[float], n_near: int) -> tuple[int, ...]:
    """Choose the terms to look for side by side: the rarest that count, and as many that only stand between."""
    known = [number for number, n in enumerate(df) if n]
    counted = sorted((number for number in known if idf[number]), key=lambda number: -idf[number])
    between = [number for number in known if not idf[number]]
    return (*counted[:n_near], *between[:n_near])


def _neighbours(query: Query, df: Sequence[int], near: Sequence[int]) -> Mapping[tuple[int, int], int]:
    """Return how often the query says each pair of neighbours, by their places in `near`."""
    place = {number: at for at, number in enumerate(near)}
    said = [number for number in query.order.tolist() if df[number]]
    return Counter((place[a], place[b]) for a, b in itertools.pairwise(said) if a in place and b in place)


def _tokens_of(query: Query, terms: npt.NDArray[np.bool_]) -> Ids:
    """Return the ids of the query's tokens of some of its terms, ascending."""
    return np.sort(query.ids[terms[query.order]])
