"""Rerank as Cohere has it, in both versions, and as Jina and those who copied them do: one request, one answer."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from attrs import field, frozen
from attrs.validators import optional

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.services.search import SearchTask, every_chunk
from relevance_gen.serve.settings import DEFAULT_NAME
from relevance_gen.types import Chunk, SearchResponse, SearchResult

_FIELDS: Final = ("title", "text")
_YAML_TITLE: Final = re.compile(r"(?i)title:[ \t]+(\S.*(?:\n[ \t]+\S.*)*)\n(?=[\s\S]*\S)")
"""How a document that somebody wrote as YAML begins, if its title comes first and something follows."""


_strings = checks.must_be(
    "a list of strings",
    lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value),
)


@frozen
class RelevantSpans:
    """What to tell of where in a document the answer stands: spans of at least a score in [0, 1]."""

    mode: str = field(validator=checks.one_of("enabled", "disabled"))
    threshold: float = field(default=0.1, converter=checks.as_float, validator=checks.number(0, 1))
    max_spans: int | None = field(default=None, validator=optional(checks.integer(1)))


@frozen
class RerankRequest:
    """The fields that are read, as ``static/openapi.json`` describes them.

    Whatever else peers have changes nothing here, such as limits of what is read. Blank documents have score 0.
    """

    query: str = field(validator=checks.not_blank)
    documents: Sequence[Any] = field(validator=checks.a_list)
    top_n: int | None = field(default=None, validator=optional(checks.integer(1)))
    model: str = field(default=DEFAULT_NAME, validator=checks.string)
    return_documents: bool = field(default=False, validator=checks.flag)
    relevant_spans: Mapping[str, Any] | None = field(
        default=None, validator=optional(checks.an_object)
    )
    rank_fields: Sequence[str] | None = field(default=None, validator=optional(_strings))


@frozen
class _Document:
    """A document: its text from `start` on is searched, behind the title where it is YAML."""

    text: str
    start: int = 0
    title: str = ""

    @property
    def chunk(self) -> str | Chunk:
        """What is searched."""
        return (
            Chunk(self.text[self.start :], title=self.title)
            if self.title and self.text.strip()
            else self.text
        )


def read_rerank(body: object) -> tuple[SearchTask, Callable[[SearchResponse], object]]:
    """Read the body of ``POST /v2/rerank``, ``/v1/rerank`` or ``/rerank``."""
    request = wire.structure(RerankRequest, body, is_lenient=True)
    fields = request.rank_fields or _FIELDS
    documents = [
        _document(one, f"documents[{place}]", fields) for place, one in enumerate(request.documents)
    ]
    spans = None
    if request.relevant_spans is not None:
        spans = wire.structure(
            RelevantSpans, request.relevant_spans, path="relevant_spans", is_lenient=True
        )
        spans = spans if spans.mode == "enabled" else None
    n_wanted = len(documents) if request.top_n is None else min(request.top_n, len(documents))
    question = SearchParams(
        request.query, max(1, n_wanted), true_order=False, reranked=None, spans=spans is not None
    )
    chunks = [one.chunk for one in documents]
    task = SearchTask(question, chunks, path="documents", blank="skip", reranker=request.model)

    def present(response: SearchResponse) -> object:
        ranked = every_chunk(response, len(documents))[:n_wanted]
        n_tokens = response.metadata.num_query_tokens + response.metadata.num_context_tokens
        return {
            "id": str(uuid.uuid4()),
            "model": request.model,
            "results": [result(place, found) for place, found in ranked],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }

    def result(place: int, found: SearchResult | None) -> dict[str, object]:
        told: dict[str, object] = {
            "index": place,
            "relevance_score": 0.0 if found is None else found.chunk_score,
        }
        if request.return_documents:
            told["document"] = {"text": documents[place].text}
        if (
            spans is not None
            and found is not None
            and (chosen := _chosen(found, spans, documents[place].start))
        ):
            told["relevant_spans"] = chosen
        return told

    return task, present


def _document(document: object, path: str, fields: Sequence[str]) -> _Document:
    if isinstance(document, str):
        if (begins := _YAML_TITLE.match(document)) is None:
            return _Document(document)
        return _Document(document, begins.end(), " ".join(begins[1].split()).strip("\"'"))
    said: dict[str, Any] = (
        {name: document.get(name) for name in fields} if isinstance(document, dict) else {}
    )
    said = {name: value for name, value in said.items() if value is not None}
    title = said.pop("title", "") if {*fields} > {"title"} else ""
    if (
        not said
        or not isinstance(title, str)
        or not all(isinstance(value, str) for value in said.values())
    ):
        named = 'a string "text"' if fields is _FIELDS else "strings under rank_fields"
        raise InvalidRequestError.must_be(path, f"a string, or an object with {named}", document)
    return _Document("\n".join(said.values()), 0, title)


def _chosen(found: SearchResult, wanted: RelevantSpans, first: int) -> list[dict[str, object]]:
    """Return the best passage and the words outside it, so that none covers another, best first.

    The chunk begins in the document at `first`.
    """
    passage = found.passage
    if passage is None:
        return []
    words = [word for word in found.words if word.end <= passage.start or word.start >= passage.end]
    good = [span for span in (passage, *words) if span.score >= wanted.threshold]
    best = sorted(good, key=lambda span: -span.score)[: wanted.max_spans]
    return [
        {"start": first + span.start, "end": first + span.end, "score": span.score} for span in best
    ]
