"""Answer a question from a collection."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import field, frozen

from relevance_gen import checks
from relevance_gen.retrieval import filtering
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.filtering import Where
from relevance_gen.retrieval.highlighting import highlight
from relevance_gen.retrieval.query import Question
from relevance_gen.types import SearchMetadata, SearchResponse, SearchResult, Span


@frozen
class Wanted:
    """Which chunks may be results, and what to say of them.

    Args:
        where: which chunks; None allows all.
        min_share: least share of the best score, in [0, 1].
        spans: whether to say where the answer stands.

    Raises:
        InvalidRequestError: one of the last two is not allowed; `where` is checked against the chunks.
    """

    where: Where | None = None
    min_share: float = field(default=0.0, converter=checks.as_float, validator=checks.number(0, 1))
    spans: bool = field(default=False, converter=checks.plain, validator=checks.flag)


def answer(
    question: Question,
    wanted: Wanted,
    collection: Collection,
    n_positions: int,
    token_counts: SearchMetadata,
) -> SearchResponse:
    """Return the best chunks of a collection.

    Args:
        question: what was asked.
        wanted: which results, and what of them.
        collection: the chunks.
        n_positions: number of positions that were ever given.
        token_counts: returned as they are.

    Raises:
        InvalidRequestError: `wanted.where` is not allowed.
    """
    allowed = None
    if wanted.where is not None:
        parts = [(segment.positions, segment.chunks) for segment in collection.segments]
        allowed = [filtering.flags(wanted.where, n_positions, positions, chunks) for positions, chunks in parts]
    ranking = collection.rank(question.query, question.top_n, allowed)
    if wanted.min_share:
        ranking = ranking.close_to_best(wanted.min_share)
    if question.true_order:
        ranking = ranking.by_position()
    scores, positions = ranking.scores.tolist(), ranking.positions.tolist()
    texts, metadata = collection.chunks_at(ranking.positions)
    spans: Sequence[tuple[Span, ...] | None] = [None] * len(texts)
    if wanted.spans and texts:
        spans = [*highlight(texts, collection.plan(question.query))]
    results = [
        SearchResult(place, *found)
        for place, found in enumerate(zip(texts, scores, metadata, positions, spans, strict=True))
    ]
    return SearchResponse(tuple(results), token_counts, ranking.confidence)
