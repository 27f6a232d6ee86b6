"""Show where a chunk's score comes from."""

from __future__ import annotations

import math

import numpy as np
from attrs import frozen

from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.scoring import SegmentScorer


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
    """Where a chunk's score comes from: all shares add up to it.

    Attributes:
        score: the chunk's score, as search returns it.
        terms: the share of each term of the query, in the query's order.
        pairs: what words side by side as in the query gave.
        coverage: what a passage with many of the query's words gave.
        head: what the query's words at the chunk's beginning gave.
        run: what words in a row as in the query gave.
        letters: what letters in a row as in the query's words gave, where chunks or query are not in English.
        likeness: what being like the best chunks gave; a chunk is like itself, too.
    """

    score: float
    terms: tuple[TermShare, ...]
    pairs: float
    coverage: float
    head: float
    run: float
    letters: float
    likeness: float


def explain(collection: Collection, query: str, position: int) -> Explanation:
    """Explain the score of the chunk at a position, where there must be one."""
    plan = collection.plan(query)
    shares = next(
        (one for _, told in collection.read(np.array([position]), SegmentScorer.shares, plan) for one in told), None
    )
    if shares is None:
        raise LookupError(f"no chunk is at position {position}")
    parts = collection.assess(plan, collection.statistics.n_chunks)
    at = np.flatnonzero(parts.positions == position)
    if at.size:
        score, own, alike, letters = (
            float(part[at[0]]) for part in (parts.scores, parts.own, parts.likeness, parts.letters)
        )
        bonuses = parts.bonuses[:, at[0]].tolist()
        likeness = collection.weighting.likeness_share(own, alike, score)
    else:
        score = likeness = letters = 0.0
        bonuses = [0.0] * parts.bonuses.shape[0]
    own_parts = math.fsum([*(share for _, share in shares), *bonuses, letters])
    # A chunk that scores more than the query would is squeezed below 1, and so are its parts.
    scale = (score - likeness) / own_parts if own_parts else 0.0
    terms = tuple(
        TermShare(term.word, collection.spell(match.ids), tf, df, idf, share * scale)
        for term, match, df, idf, (tf, share) in zip(
            plan.query.terms, plan.matches, plan.df, plan.idf, shares, strict=True
        )
    )
    pairs, coverage, head, run = (bonus * scale for bonus in bonuses)
    return Explanation(score, terms, pairs, coverage, head, run, letters * scale, likeness)
