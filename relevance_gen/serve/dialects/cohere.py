"""Rerank as Cohere has it, in both versions, and as Jina and those who copied them do: one request, one answer."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import field, frozen
from attrs.validators import optional

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.question.query import Question
from relevance_gen.serve.work.searching import SearchTask, every_chunk
from relevance_gen.types import SearchResponse, SearchResult

MODEL = "relevance_gen"
"""The model that answers say, whichever was asked for: there is one way to rank."""


@frozen
class RelevantSpans:
    """What to tell of where in a document the answer stands.

    Args:
        mode: ``"enabled"`` or ``"disabled"``.
        threshold: least score of a span, in [0, 1].
        max_spans: most spans of a document.
    """

    mode: str = field(validator=checks.must_be('"enabled" or "disabled"', lambda v: v in ("enabled", "disabled")))
    threshold: float = field(default=0.1, converter=checks.as_float, validator=checks.number(0, 1))
    max_spans: int | None = field(default=None, validator=optional(checks.integer(1)))


@frozen
class RerankRequest:
    """The fields that are read; whatever else peers have changes nothing here, such as limits of what is read.

    Args:
        query: the question; not blank.
        documents: strings, or objects with a ``text``; blank ones have score 0.
        top_n: most results, at least 1; all documents without it.
        model: any.
        return_documents: whether each result holds its document's text.
        relevant_spans: see `RelevantSpans`.
    """

    query: str = field(validator=checks.not_blank)
    documents: Sequence[Any] = field(validator=checks.must_be("a list", lambda v: isinstance(v, list)))
    top_n: int | None = field(default=None, validator=optional(checks.integer(1)))
    model: str = field(default=MODEL, validator=checks.string)
    return_documents: bool = field(default=False, validator=checks.flag)
    relevant_spans: Mapping[str, Any] | None = field(
        default=None, validator=optional(checks.must_be("an object", lambda v: isinstance(v, dict)))
    )


def read_rerank(body: object) -> tuple[SearchTask, Callable[[SearchResponse], object]]:
    """Read the body of ``POST /v2/rerank``, ``/v1/rerank`` or ``/rerank``.

    Raises:
        InvalidRequestError: a field is wrong.
    """
    request = wire.structure(RerankRequest, body, is_lenient=True)
    texts = [_text_of(document, place) for place, document in enumerate(request.documents)]
    spans = None
    if request.relevant_spans is not None:
        spans = wire.structure(RelevantSpans, request.relevant_spans, path="relevant_spans", is_lenient=True)
        spans = spans if spans.mode == "enabled" else None
    n_wanted = len(texts) if request.top_n is None else min(request.top_n, len(texts))
    question = Question(request.query, max(1, n_wanted), true_order=False, spans=spans is not None)
    task = SearchTask(question, texts, path="documents", blank="skip")

    def present(response: SearchResponse) -> object:
        ranked = every_chunk(response, len(texts))[:n_wanted]
        shown = texts if request.return_documents else None
        n_tokens = response.metadata.num_query_tokens + response.metadata.num_context_tokens
        return {
            "id": str(uuid.uuid4()),
            "model": MODEL,
            "results": [_result(place, found, shown, spans) for place, found in ranked],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }

    return task, present


def _text_of(document: object, place: int) -> str:
    text = document.get("text") if isinstance(document, dict) else document
    if not isinstance(text, str):
        raise InvalidRequestError.must_be(
            f"documents[{place}]", 'a string, or an object with a string "text"', document
        )
    return text


def _result(
    place: int, found: SearchResult | None, texts: Sequence[str] | None, spans: RelevantSpans | None
) -> dict[str, object]:
    result: dict[str, object] = {"index": place, "relevance_score": 0.0 if found is None else found.chunk_score}
    if texts is not None:
        result["document"] = {"text": texts[place]}
    if spans is not None and found is not None and (chosen := _chosen(found, spans)):
        result["relevant_spans"] = chosen
    return result


def _chosen(found: SearchResult, wanted: RelevantSpans) -> list[dict[str, object]]:
    """Return the best passage and the words outside it, so that none covers another, best first."""
    passage = found.passage
    if passage is None:
        return []
    words = [word for word in found.words if word.end <= passage.start or word.start >= passage.end]
    good = [span for span in (passage, *words) if span.score >= wanted.threshold]
    best = sorted(good, key=lambda span: -span.score)[: wanted.max_spans]
    return [{"start": span.start, "end": span.end, "score": span.score} for span in best]
