"""Answer a question from a collection."""

from __future__ import annotations

from relevance_gen.retrieval import filtering
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.filtering import Where
from relevance_gen.retrieval.query import Question
from relevance_gen.types import SearchMetadata, SearchResponse, SearchResult


def answer(
    question: Question,
    where: Where | None,
    collection: Collection,
    n_positions: int,
    token_counts: SearchMetadata,
) -> SearchResponse:
    """Return the best chunks of a collection.

    Args:
        question: what was asked.
        where: which chunks may be results; None allows all.
        collection: the chunks.
        n_positions: number of positions that were ever given.
        token_counts: returned as they are.

    Raises:
        InvalidRequestError: `where` is not allowed.
    """
    allowed = None
    if where is not None:
        parts = [(segment.positions, segment.chunks) for segment in collection.segments]
        allowed = [filtering.flags(where, n_positions, positions, chunks) for positions, chunks in parts]
    ranking = collection.rank(question.query, question.top_n, allowed)
    if question.true_order:
        ranking = ranking.by_position()
    scores, positions = ranking.scores.tolist(), ranking.positions.tolist()
    results: dict[int, SearchResult] = {}
    for segment in collection.segments:
        for place, number in enumerate(segment.find(ranking.positions).tolist()):
            if number >= 0:
                text, metadata = segment.chunks.texts[number], segment.chunks.metadata_of(number)
                results[place] = SearchResult(place, text, scores[place], metadata, positions[place])
    return SearchResponse(tuple(results[place] for place in range(len(positions))), token_counts)
