"""Show where a chunk's score comes from."""

from __future__ import annotations

import math

import numpy as np
from attrs import evolve

from relevance_gen.retrieval.question.collection import Collection
from relevance_gen.retrieval.question.fusing import N_CANDIDATES, Lifted, lift, words_count
from relevance_gen.retrieval.question.scoring import BONUSES, SegmentScorer
from relevance_gen.retrieval.segment.passages import TextEncoder
from relevance_gen.types import Explanation, Passage, TermShare


def explain(
    collection: Collection,
    query: str,
    position: int,
    encoder: TextEncoder | None = None,
    n_candidates: int | None = N_CANDIDATES,
) -> Explanation:
    """Explain the score of the chunk at a position, where there must be one; the encoder as in `fusing.rank`."""
    plan = collection.plan(query)
    shares = next(
        (one for _, told in collection.read(np.array([position]), SegmentScorer.shares, plan) for one in told), None
    )
    if shares is None:
        raise LookupError(f"no chunk is at position {position}")
    parts = collection.assess(plan, collection.statistics.n_chunks)
    counted = encoder is None or words_count(plan, n_candidates)
    at = np.flatnonzero((parts.positions == position) & counted)
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
    words = Explanation(score, terms, pairs, coverage, head, run, letters * scale, likeness)
    if encoder is None or n_candidates == 0:
        return words
    return _with_meaning(words, lift(collection, encoder, plan, n_candidates=n_candidates), position)


def _with_meaning(words: Explanation, lifted: Lifted, position: int) -> Explanation:
    """Add to an explanation what the encoder gave."""
    at = np.flatnonzero(lifted.positions[lifted.candidates] == position)
    if not at.size:
        return words
    score, nearest = float(lifted.scores[lifted.candidates[at[0]]]), lifted.nearest
    passage = Passage(int(nearest.starts[at[0]]), int(nearest.ends[at[0]]), float(nearest.cosines[at[0]]))
    return evolve(words, score=score, meaning=score - words.score, passage=passage)
