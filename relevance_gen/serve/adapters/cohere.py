"""Rerank requests of Cohere, in both versions, and of Jina and compatible servers."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from typing import Any, Final

from attrs import field, frozen

from relevance_gen import checks, fields, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.serve.adapters.shared import Operation, read_lenient
from relevance_gen.serve.services.search import SearchTask, every_chunk
from relevance_gen.serve.settings import DEFAULT_NAME
from relevance_gen.types import Chunk, SearchResponse, SearchResult
from relevance_gen.wire import JsonObject

_DEFAULT_RANK_FIELDS: Final = ("title", "text")
_YAML_TITLE: Final = re.compile(r"(?i)title:[ \t]+(\S.*(?:\n[ \t]+\S.*)*)\n(?=[\s\S]*\S)")
"""Start of a document in YAML whose title is its first field and that has further text."""

_strings = checks.Rule(
    "a list of strings",
    lambda value: isinstance(value, list) and all(isinstance(item, str) for item in value),
)


@frozen
class RelevantSpans:
    """Options of relevant spans: spans with a score, in [0, 1], of at least `threshold`."""

    mode: str = field(validator=checks.one_of("enabled", "disabled"))
    threshold: float = fields.number(0, 1, default=0.1)
    max_spans: int | None = fields.optional(checks.integer(1))


def _enabled_spans(value: object) -> RelevantSpans | None:
    """Return the options of the requested spans; None if no spans are requested."""
    if value is None:
        return None
    spans = wire.structure(RelevantSpans, value, path="relevant_spans", is_lenient=True)
    return spans if spans.mode == "enabled" else None


@frozen
class RerankRequest:
    """The fields of a request, as ``static/openapi.json`` describes them.

    Other fields of these servers, such as limits of the text that is read, are ignored. Blank
    documents have score 0.
    """

    query: str
    documents: Sequence[Any] = field(validator=checks.a_list)
    top_n: int | None = fields.optional(checks.integer(1))
    model: str = field(default=DEFAULT_NAME, validator=checks.string)
    return_documents: bool = fields.flag()
    relevant_spans: RelevantSpans | None = field(default=None, converter=_enabled_spans)
    rank_fields: Sequence[str] | None = fields.optional(_strings)


@frozen
class _RerankDocument:
    """A document to rank.

    Attributes:
        text: the text; only the part from `start` on is searched.
        start: position after the title of a document in YAML.
        title: the document's title.
    """

    text: str
    start: int = 0
    title: str = ""

    @property
    def chunk(self) -> str | Chunk:
        """The chunk to search: a `Chunk` with the title and the text from `start` on.

        Without a title, or if the text is blank, it is the text as a string.
        """
        if self.title and self.text.strip():
            return Chunk(self.text[self.start :], title=self.title)
        return self.text


@frozen
class _RerankWriter:
    """Writes the response to a request."""

    request: RerankRequest
    documents: Sequence[_RerankDocument]

    def response(self, response: SearchResponse) -> object:
        ranking = every_chunk(response, len(self.documents))[: self.request.top_n]
        n_tokens = response.metadata.num_query_tokens + response.metadata.num_context_tokens
        return {
            "id": str(uuid.uuid4()),
            "model": self.request.model,
            "results": [self._result(index, result) for index, result in ranking],
            "usage": {"prompt_tokens": n_tokens, "total_tokens": n_tokens},
            "meta": {"api_version": {"version": "2"}, "billed_units": {"search_units": 1}},
        }

    def _result(self, index: int, result: SearchResult | None) -> JsonObject:
        score = 0.0 if result is None else result.chunk_score
        fields: JsonObject = {"index": index, "relevance_score": score}
        document = self.documents[index]
        if self.request.return_documents:
            fields["document"] = {"text": document.text}
        requested_spans = self.request.relevant_spans
        if requested_spans is not None and result is not None:
            relevant_spans = _relevant_spans(result, requested_spans, document.start)
            if relevant_spans:
                fields["relevant_spans"] = relevant_spans
        return fields


def read_rerank(body: object) -> Operation:
    """Check a ``POST`` rerank body; return its task and the writer of the response.

    The paths are ``/v2/rerank`` and ``/v1/rerank``, and ``/rerank`` for a body without ``texts``.
    """
    request = read_lenient(RerankRequest, body)
    fields = request.rank_fields or _DEFAULT_RANK_FIELDS
    documents = [
        _document(document, f"documents[{index}]", fields)
        for index, document in enumerate(request.documents)
    ]
    params = SearchParams(
        request.query,
        request.top_n or max(1, len(documents)),
        true_order=False,
        rerank_top_n=None,
        spans=request.relevant_spans is not None,
    )
    task = SearchTask(
        params,
        [document.chunk for document in documents],
        path="documents",
        blank="skip",
        reranker=request.model,
    )
    return task, _RerankWriter(request, documents).response


def _document(document: object, path: str, rank_fields: Sequence[str]) -> _RerankDocument:
    if isinstance(document, str):
        match = _YAML_TITLE.match(document)
        if match is None:
            return _RerankDocument(document)
        title = " ".join(match[1].split()).strip("\"'")
        return _RerankDocument(document, match.end(), title)
    members = document if isinstance(document, dict) else {}
    fields = {name: members[name] for name in rank_fields if members.get(name) is not None}
    has_further_fields = {*rank_fields} > {"title"}
    title = fields.pop("title", "") if has_further_fields else ""
    values = [title, *fields.values()]
    if not fields or not all(isinstance(value, str) for value in values):
        is_default = rank_fields is _DEFAULT_RANK_FIELDS
        required = 'a string "text"' if is_default else "strings under rank_fields"
        raise InvalidRequestError.must_be(path, f"a string, or an object with {required}", document)
    return _RerankDocument("\n".join(fields.values()), 0, title)


def _relevant_spans(
    result: SearchResult, requested: RelevantSpans, offset: int
) -> list[JsonObject]:
    """Return the best passage of a result, and the matching words outside it, best score first.

    Spans with scores below the requested threshold are left out, and at most `max_spans` spans are
    returned. The list is empty if the result has no passage.

    Args:
        result: the result, whose spans are positions in the chunk.
        requested: the options of relevant spans.
        offset: position of the chunk in the document, which is added to all positions.

    Returns:
        Objects with the keys ``start`` and ``end``, positions in the document, and ``score``.
    """
    passage = result.passage
    if passage is None:
        return []
    outer_words = [
        word for word in result.words if word.end <= passage.start or word.start >= passage.end
    ]
    spans = [span for span in (passage, *outer_words) if span.score >= requested.threshold]
    spans.sort(key=lambda span: -span.score)
    return [
        {"start": offset + span.start, "end": offset + span.end, "score": span.score}
        for span in spans[: requested.max_spans]
    ]
