"""Answer a question from a collection, and show where a chunk's score comes from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

import numpy as np
from attrs import evolve

from relevance_gen.arrays import Ids, Offsets
from relevance_gen.request_scope import reserve
from relevance_gen.retrieval.collapse import GroupKeys, first_of_each, hashes_of
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.highlighting import highlight
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.query.filters import Filter, check_keys
from relevance_gen.retrieval.ranking.old_features import contents
from relevance_gen.retrieval.ranking.stage import Reranking, Table
from relevance_gen.retrieval.scorer import SegmentScorer
from relevance_gen.types import (
    Explanation,
    SearchMetadata,
    SearchResponse,
    SearchResult,
    Span,
    TermContribution,
)


def _hashes(distinct: str | GroupKeys, collection: Collection, positions: Offsets) -> Ids:
    """Return hashes of the values of the chunks at some positions, in that order, under the key that was named.

    Raises:
        InvalidRequestError: no chunk of the collection has the key.
    """
    if isinstance(distinct, GroupKeys):
        return distinct.hashes.take(positions)
    order = positions.argsort()
    hashes = np.empty(positions.size, np.uint64)
    hashes[order] = collection.tell(partial(hashes_of, key=distinct), positions[order]).rows
    if not hashes.any():
        check_keys([distinct], collection.metadata_keys, "distinct")
    return hashes


def answer(
    question: SearchParams,
    collection: Collection,
    n_positions: int,
    token_counts: SearchMetadata,
    rerankings: Sequence[Reranking] = (),
) -> SearchResponse:
    """Return the best chunks of a collection in which `n_positions` were ever given, with the counts as they are.

    The rerankings look at the best again when the words have spoken, in this order.

    Raises:
        InvalidRequestError: `where` is not allowed.
    """
    query, signs = collection.read(question)
    chosen = (
        Filter.read(question.where, n_positions, signs)
        if signs or question.where is not None
        else None
    )
    n_chunks = collection.statistics.n_chunks
    if question.distinct is not None:
        reserve("ranked_chunk", n_chunks)
    n_ranked = question.top_n if question.distinct is None else max(n_chunks, 1)
    ranking, table = collection.rank(query, n_ranked, chosen, rerankings)
    if isinstance(question.where, Mapping) and not ranking.positions.size and n_chunks:
        check_keys(question.where, collection.metadata_keys)
    if question.min_relative_score:
        ranking = ranking.take(
            np.flatnonzero(ranking.scores >= question.min_relative_score * ranking.scores[:1].sum())
        )
    n_similar: dict[int, int] = {}
    if question.distinct is not None and ranking.positions.size:
        places, n_others = first_of_each(_hashes(question.distinct, collection, ranking.positions))
        ranking = ranking.take(places[: question.top_n])
        n_similar = dict(zip(ranking.positions.tolist(), n_others.tolist(), strict=False))
    if question.true_order:
        ranking = ranking.take(ranking.positions.argsort())
    tell = collection.tell if table is None else table.source
    found = tell(contents, ranking.positions).rows if ranking.positions.size else []
    spans: list[tuple[Span, ...] | None] = [None] * len(found)
    if question.spans and found:
        plan = collection.plan(query) if table is None else table.plan
        spans = [*highlight([text for text, *_ in found], plan.terms)]
    rows = zip(found, ranking.scores.tolist(), ranking.positions.tolist(), spans, strict=True)
    results = [
        SearchResult(
            place, text, score, metadata, position, marked, title, n_similar.get(position, 0)
        )
        for place, ((text, metadata, title), score, position, marked) in enumerate(rows)
    ]
    if ranking.corrections:
        token_counts = evolve(token_counts, corrections=ranking.corrections)
    return SearchResponse(tuple(results), token_counts, ranking.confidence)


def explain(
    collection: Collection,
    question: SearchParams,
    position: int,
    rerankings: Sequence[Reranking] = (),
) -> Explanation:
    """Explain the score of the chunk at a position, where there must be one: read its row of the table."""
    query, signs = collection.read(question)
    plan = collection.plan(query)
    of_terms = next(
        (one for one in collection.ask(SegmentScorer.shares, position, plan) if one is not None),
        None,
    )
    if of_terms is None:
        raise LookupError(f"no chunk is at position {position}")
    table = collection.assess(plan, collection.statistics.n_chunks, rerankings=rerankings)
    place = int(table.positions.searchsorted(position))
    is_found = place < table.positions.size and int(table.positions[place]) == position
    row = (
        {part: float(column[place]) for part, column in table.columns.items()}
        if is_found
        else {"words": 0.0}
    )
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
        TermContribution(term.word, collection.spell(match.ids), tf, df, idf, share * scale)
        for term, match, df, idf, (tf, share) in zip(
            weighted.query.terms, weighted.matches, weighted.df, weighted.idf, of_terms, strict=True
        )
    )
    parts |= {part: share * scale for part, share in added.items()}
    parts |= {part: share * kept for part, share in lifted.items()}
    if signs:
        parts["violated_operators"] = tuple(
            chain.from_iterable(collection.ask(SegmentScorer.broken_signs, position, signs))
        )
    score = float(table.scores[place]) if is_found else 0.0
    return Explanation(score, terms, corrections=plan.terms.query.corrections, **parts)


def _given(
    table: Table, rerankings: Sequence[Reranking], place: int
) -> tuple[dict[str, Any], float]:
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
