"""Show where a chunk's score comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Any

from relevance_gen.retrieval.question.collection import Collection
from relevance_gen.retrieval.question.query import Question
from relevance_gen.retrieval.question.scorer import SegmentScorer
from relevance_gen.retrieval.question.stage import Reranking, Table
from relevance_gen.types import Explanation, TermShare


def explain(
    collection: Collection, question: Question, position: int, rerankings: Sequence[Reranking] = ()
) -> Explanation:
    """Explain the score of the chunk at a position, where there must be one: read its row of the table."""
    query, signs = collection.read(question)
    plan = collection.plan(query)
    of_terms = next((one for one in collection.ask(SegmentScorer.shares, position, plan) if one is not None), None)
    if of_terms is None:
        raise LookupError(f"no chunk is at position {position}")
    table = collection.assess(plan, collection.statistics.n_chunks, rerankings=rerankings)
    place = int(table.positions.searchsorted(position))
    is_found = place < table.positions.size and int(table.positions[place]) == position
    row = {part: float(column[place]) for part, column in table.columns.items()} if is_found else {"words": 0.0}
    words = row["words"]
    parts, kept = _given(table, rerankings, place) if is_found else ({}, 0.0)
    added: dict[str, float] = {}
    lifted: dict[str, float] = {}
    for stage in plan.stages if kept else ():
        (lifted if stage.is_behind_scale else added).update(stage.shares(row, words))
    total = math.fsum([*(share for _, share in of_terms), *added.values()])
    # A chunk that scores more than the query would is squeezed below 1, and so are its parts.
    scale = kept * (words - math.fsum(lifted.values())) / total if total else 0.0
    weighted = plan.terms
    terms = tuple(
        TermShare(term.word, collection.spell(match.ids), tf, df, idf, share * scale)
        for term, match, df, idf, (tf, share) in zip(
            weighted.query.terms, weighted.matches, weighted.df, weighted.idf, of_terms, strict=True
        )
    )
    parts |= {part: share * scale for part, share in added.items()}
    parts |= {part: share * kept for part, share in lifted.items()}
    if signs:
        parts["left_out"] = tuple(chain.from_iterable(collection.ask(SegmentScorer.broken_signs, position, signs)))
    score = float(table.scores[place]) if is_found else 0.0
    return Explanation(score, terms, corrections=plan.terms.query.corrections, **parts)


def _given(table: Table, rerankings: Sequence[Reranking], place: int) -> tuple[dict[str, Any], float]:
    """Return what rerankings gave the chunk at a place, and the share of the words' score that it still has."""
    scores = [float(one[place]) for one in (*table.before, table.scores)]
    told: dict[str, Any] = {}
    shares: dict[str, float] = {}
    kept = float(scores[0] > 0.0)
    for reranking, before, after in zip(rerankings, scores, scores[1:], strict=False):
        told |= reranking.explain(table, place, before, after)
        given = {part: told.pop(part) for part in reranking.parts if part in told}
        share = (after - math.fsum(given.values())) / (before or 1.0)
        shares = {part: one * share for part, one in shares.items()} | given
        kept *= share
    return told | shares, kept
