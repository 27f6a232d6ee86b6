"""Answer a question from a collection."""

from __future__ import annotations

from attrs import field, frozen

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.question import fusing
from relevance_gen.retrieval.question.collection import Collection
from relevance_gen.retrieval.question.filtering import Filter, Where, check_keys
from relevance_gen.retrieval.question.highlighting import highlight
from relevance_gen.retrieval.question.query import Question
from relevance_gen.retrieval.segment.passages import TextEncoder
from relevance_gen.types import SearchMetadata, SearchResponse, SearchResult, Span


@frozen
class Wanted:
    """Which chunks may be results, and what to say of them.

    Args:
        where: which chunks; None allows all.
        min_share: least share of the best score, in [0, 1].
        spans: whether to say where the answer stands.
        candidates: how many of the best by their words an encoder looks at; None lets it look at all, and 0 at none.

    Raises:
        InvalidRequestError: one of the last three is not allowed; `where` is checked against the chunks.
    """

    where: Where | None = None
    min_share: float = field(default=0.0, converter=checks.as_float, validator=checks.number(0, 1))
    spans: bool = field(default=False, converter=checks.plain, validator=checks.flag)
    candidates: int | None = field(
        default=fusing.N_CANDIDATES,
        converter=checks.plain,
        validator=checks.must_be(
            "an integer of at least 0 or None", lambda v: v is None or (checks.is_integer(v) and v >= 0)
        ),
    )

    def check_encoder(self, encoder: TextEncoder | None) -> None:
        """Check that all that is wanted can be had with an encoder, or without.

        Raises:
            InvalidRequestError: `candidates` asks for an encoder, and there is none.
        """
        if encoder is None and self.candidates is None:
            raise InvalidRequestError.must_be(
                "candidates", "an integer where there is no encoder", None, remedy="pass encoder, or leave it out"
            )


def answer(
    question: Question,
    wanted: Wanted,
    collection: Collection,
    n_positions: int,
    token_counts: SearchMetadata,
    encoder: TextEncoder | None = None,
) -> SearchResponse:
    """Return the best chunks of a collection.

    Args:
        question: what was asked.
        wanted: which results, and what of them.
        collection: the chunks.
        n_positions: number of positions that were ever given.
        token_counts: returned as they are.
        encoder: tells what texts mean; None goes by their words alone.

    Raises:
        InvalidRequestError: `wanted.where` is not allowed.
    """
    chosen = None if wanted.where is None else Filter.read(wanted.where, n_positions)
    if encoder is None or wanted.candidates == 0:
        ranking = collection.rank(question.query, question.top_n, chosen)
    else:
        ranking = fusing.rank(collection, encoder, question.query, question.top_n, chosen, wanted.candidates)
    if not ranking.positions.size:
        check_keys(wanted.where, [segment.chunks for segment in collection.segments])
    if wanted.min_share:
        ranking = ranking.close_to_best(wanted.min_share)
    if question.true_order:
        ranking = ranking.by_position()
    scores, positions = ranking.scores.tolist(), ranking.positions.tolist()
    found = collection.contents(ranking.positions)
    spans: list[tuple[Span, ...] | None] = [None] * len(found)
    if wanted.spans and found:
        spans = [*highlight([text for text, _ in found], collection.plan(question.query))]
    results = []
    for place, position in enumerate(positions):
        text, metadata = found[place]
        results.append(SearchResult(place, text, scores[place], metadata, position, spans[place]))
    return SearchResponse(tuple(results), token_counts, ranking.confidence)
