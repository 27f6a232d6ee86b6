"""Show where a chunk's score comes from."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from relevance_gen.retrieval.collection import Collection


@frozen
class TermShare:
    """What one term of the query gave to a chunk's score.

    Attributes:
        term: the query's word, folded.
        matches: the chunks' words that it stands for, folded; those of any chunk.
        tf: how often the chunk has it, inexact matches counting less than 1.
        df: number of chunks that have it.
        idf: its inverse document frequency; 0 for a function word that is left out.
        share: what it gave to the score.
    """

    term: str
    matches: tuple[str, ...]
    tf: float
    df: int
    idf: float
    share: float


@frozen
class Explanation:
    """Where a chunk's score comes from: the shares, pairs and coverage add up to it.

    They add up to more where a chunk says the query's words more often than the query does: scores stay below 1.

    Attributes:
        score: the chunk's score, as search returns it.
        terms: the share of each term of the query, in the query's order.
        pairs: what words side by side as in the query gave.
        coverage: what a passage with many of the query's words gave.
    """

    score: float
    terms: tuple[TermShare, ...]
    pairs: float
    coverage: float


def explain(collection: Collection, query: str, position: int) -> Explanation:
    """Explain the score of the chunk at a position, where there must be one."""
    scorer = collection.scorer_of(position)
    if scorer is None:
        raise LookupError(f"no chunk is at position {position}")
    plan = collection.plan(query)
    number = int(scorer.segment.find(np.array([position]))[0])
    scale = plan.reference / plan.known_share
    terms = tuple(
        TermShare(term.word, match.spellings, tf, df, idf, share / scale)
        for term, match, df, idf, (tf, share) in zip(
            plan.query.terms, plan.matches, plan.df, plan.idf, scorer.shares(plan, number), strict=True
        )
    )
    pairs = coverage = 0.0
    if plan.proximity and collection.is_promising(plan, position):
        pairs, coverage = (float(bonus[0]) / scale for bonus in scorer.bonus(plan, np.array([number])))
    score = collection.rank(query, collection.statistics.n_chunks).score_of(position)
    return Explanation(score, terms, pairs, coverage)
