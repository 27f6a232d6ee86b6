"""Show where a chunk's score comes from."""

from __future__ import annotations

import math

import numpy as np

from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.scoring import BONUSES, SegmentScorer
from relevance_gen.types import Explanation, TermShare


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
    bonuses = [0.0] * len(BONUSES)
    if at.size:
        score, own, alike, letters = (
            float(part[at[0]]) for part in (parts.scores, parts.own, parts.likeness, parts.letters)
        )
        if parts.bonus[at[0]]:
            told = collection.read(np.array([position]), SegmentScorer.bonuses, plan)
            bonuses = next(one for here, one in told if here.size)[:, 0].tolist()
        likeness = collection.weighting.likeness_share(own, alike, score)
    else:
        score = likeness = letters = 0.0
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
