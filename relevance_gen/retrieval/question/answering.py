"""Answer a question from a collection."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from attrs import evolve

from relevance_gen.caller import announce
from relevance_gen.retrieval.arrays import Ids, Offsets
from relevance_gen.retrieval.question.collection import Collection
from relevance_gen.retrieval.question.distinct import Labels, first_of_each, hashes_of
from relevance_gen.retrieval.question.evidence import contents
from relevance_gen.retrieval.question.filtering import Filter, check_keys
from relevance_gen.retrieval.question.highlighting import highlight
from relevance_gen.retrieval.question.query import Question
from relevance_gen.retrieval.question.stage import Reranking
from relevance_gen.types import SearchMetadata, SearchResponse, SearchResult, Span


def _hashes(distinct: str | Labels, collection: Collection, positions: Offsets) -> Ids:
    """Return hashes of the values of the chunks at some positions, in that order, under the key that was named.

    Raises:
        InvalidRequestError: no chunk of the collection has the key.
    """
    if isinstance(distinct, Labels):
        return distinct.hashes.take(positions)
    order = positions.argsort()
    hashes = np.empty(positions.size, np.uint64)
    hashes[order] = collection.tell(partial(hashes_of, key=distinct), positions[order]).rows
    if not hashes.any():
        check_keys([distinct], collection.metadata_keys, "distinct")
    return hashes


def answer(
    question: Question,
    collection: Collection,
    n_positions: int,
    token_counts: SearchMetadata,
    rerankings: Sequence[Reranking] = (),
) -> SearchResponse:
    """Return the best chunks of a collection.

    Args:
        question: what was asked.
        collection: the chunks.
        n_positions: number of positions that were ever given.
        token_counts: returned as they are.
        rerankings: what looks at the best again when the words have spoken, in this order.

    Raises:
        InvalidRequestError: `where` is not allowed.
    """
    query, signs = collection.read(question)
    chosen = Filter.read(question.where, n_positions, signs) if signs or question.where is not None else None
    n_chunks = collection.statistics.n_chunks
    if question.distinct is not None:
        announce("ranked", n_chunks)
    n_ranked = question.top_n if question.distinct is None else max(n_chunks, 1)
    ranking, table = collection.rank(query, n_ranked, chosen, rerankings)
    if isinstance(question.where, Mapping) and not ranking.positions.size and n_chunks:
        check_keys(question.where, collection.metadata_keys)
    if question.min_share:
        ranking = ranking.close_to_best(question.min_share)
    n_similar: dict[int, int] = {}
    if question.distinct is not None and ranking.positions.size:
        places, n_others = first_of_each(_hashes(question.distinct, collection, ranking.positions))
        ranking = ranking.take(places[: question.top_n])
        n_similar = dict(zip(ranking.positions.tolist(), n_others.tolist(), strict=False))
    if question.true_order:
        ranking = ranking.by_position()
    tell = collection.tell if table is None else table.source
    found = tell(contents, ranking.positions).rows if ranking.positions.size else []
    spans: list[tuple[Span, ...] | None] = [None] * len(found)
    if question.spans and found:
        plan = collection.plan(query) if table is None else table.plan
        spans = [*highlight([text for text, *_ in found], plan.terms)]
    rows = zip(found, ranking.scores.tolist(), ranking.positions.tolist(), spans, strict=True)
    results = [
        SearchResult(place, text, score, metadata, position, marked, title, n_similar.get(position, 0))
        for place, ((text, metadata, title), score, position, marked) in enumerate(rows)
    ]
    if ranking.corrections:
        token_counts = evolve(token_counts, corrections=ranking.corrections)
    return SearchResponse(tuple(results), token_counts, ranking.confidence)
