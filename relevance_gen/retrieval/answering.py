"""Answer one request from scored chunks."""

from __future__ import annotations

import numpy as np

from relevance_gen.retrieval.chunks import Chunks
from relevance_gen.retrieval.scoring import Query, Scorer
from relevance_gen.types import SearchMetadata, SearchRequest, SearchResponse, SearchResult


def answer(
    request: SearchRequest, query: Query, chunks: Chunks, scorer: Scorer, token_counts: SearchMetadata
) -> SearchResponse:
    """Return the best chunks.

    Args:
        request: for ``top_n`` and ``true_order``.
        query: the request's query, parsed.
        chunks: the chunks, in the scorer's order.
        scorer: scores them.
        token_counts: returned as they are.
    """
    places, scores = scorer.best(query, request.top_n)
    if request.true_order:
        order = np.argsort(places, kind="stable")
        places, scores = places[order], scores[order]
    texts, metadata = chunks.texts, chunks.metadata
    results = tuple(
        SearchResult(number, texts[place], score, metadata.get(place, {}), place)
        for number, (place, score) in enumerate(zip(places.tolist(), scores.tolist(), strict=True))
    )
    return SearchResponse(results, token_counts)
