"""The documented interface.

Responses, and the body of ``POST /generate``, have the fields of classes in `relevance_gen.types`.
The classes of other bodies leave the checks of most search options to `SearchParams`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import attrs
from attrs import Attribute, field, frozen

from relevance_gen import checks, fields, types, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.params import DEFAULT_NUM_CANDIDATES, SearchParams
from relevance_gen.serve.adapters.shared import Operation, Problem
from relevance_gen.serve.services.extraction import ExtractionTask
from relevance_gen.serve.services.generation import GenerationTask, Responses
from relevance_gen.serve.services.indexes.index_registry import IndexRef
from relevance_gen.serve.services.prompts import PromptOptions
from relevance_gen.serve.services.search import (
    CitationTask,
    CompressionTask,
    ExplanationTask,
    PromptTask,
    SearchTask,
)
from relevance_gen.types import MIN_CONFIDENCE, Chunk, Metadata, Syntax
from relevance_gen.wire import JsonObject

Chunks: TypeAlias = Sequence[str | Metadata | Chunk]

_model_name = checks.Rule("a string or None", lambda value: isinstance(value, str | None))


def _with_search_options(_cls: type, declared: list[Attribute[Any]]) -> list[Attribute[Any]]:
    """Return the fields of a class, followed by the options of `SearchParams` that it lacks.

    The option `num_candidates`, which only Python callers have, is left out.
    """
    names = {attribute.name for attribute in declared} | {"num_candidates"}
    options = [option for option in attrs.fields(SearchParams) if option.name not in names]
    return [*declared, *options]


@frozen(field_transformer=_with_search_options)
class SearchRequest:
    """The body of ``POST /search``.

    All other options of `SearchParams`, except `num_candidates`, are fields, too.

    Args:
        query: the query; not blank.
        chunk_txts: strings, mappings or `Chunk` objects, in any mixture; checked when they are
            searched.
        top_n: maximum number of results, at least 1.
        true_order: results in input order (true) or best first (false).
        where: return only chunks whose metadata has, under each of these keys, the value, one of a
            list of values, or a value in a range, as in `SearchParams`; scores use the statistics
            of all chunks.
        spans: return in each result the character ranges that match the query.
        confidence: return the estimated probability that the chunks hold an answer.
        min_relative_score: return only results with at least this share of the best score, in [0,
            1].
        distinct: return at most one result, the best, for each value of this metadata key.
        syntax: ``"plain"`` treats quotes and signs of the query as text; with ``"operators"``,
            ``"exact phrase"`` and ``+word`` must occur in a result, and ``-word`` must not.
        correct_spelling: whether to correct spelling: replace a query word that occurs in no chunk
            by another spelling that chunks have, or, if it has 7 or more letters, by the most
            frequent word of the chunks with the same first letter at edit distance 1.
        rerank_top_n: number of top results to rerank with the server's reranker, such as 20; 0, the
            default, for no reranking; null uses the server's limit.
        cache_index: cache an index of these chunks and return its name in the ``X-Index`` response
            header. Later requests can send that name as ``index`` instead of the chunks.
    """

    query: str = field(validator=checks.not_blank)
    chunk_txts: Chunks = field(validator=checks.sequence)
    where: Metadata | None = fields.optional(checks.mapping)
    confidence: bool = fields.flag()
    distinct: str | None = fields.optional(checks.string)
    rerank_top_n: int | None = 0
    cache_index: bool = fields.flag()


@frozen
class ExplanationRequest:
    """The body of ``POST /explain``.

    Args:
        query: the query; not blank.
        original_index: position of the chunk to explain, at least 0.
        chunk_txts, syntax, correct_spelling, rerank_top_n, cache_index: as in `SearchRequest`.
        neighbors: as in `SearchParams`.
    """

    query: str = field(validator=checks.not_blank)
    chunk_txts: Chunks = field(validator=checks.sequence)
    original_index: int = field(validator=checks.integer(0))
    neighbors: int = 0
    syntax: Syntax = "plain"
    correct_spelling: bool = True
    rerank_top_n: int | None = 0
    cache_index: bool = fields.flag()


@frozen
class CompressionRequest:
    """The body of ``POST /compress``.

    Args:
        question: sentences are selected for this question; not blank.
        chunk_txts: as in `SearchRequest`.
        max_tokens: maximum number of tokens of the compressed text, at least 1.
    """

    question: str = field(validator=checks.not_blank)
    chunk_txts: Chunks = field(validator=checks.sequence)
    max_tokens: int = field(validator=checks.integer(1))


@frozen
class CitationRequest:
    """The body of ``POST /cite``.

    Args:
        text: the text whose sentences need support, such as an answer.
        chunk_txts: the sources, as in `SearchRequest`.
    """

    text: str = field(validator=checks.string)
    chunk_txts: Chunks = field(validator=checks.sequence)


@frozen
class ExtractionRequest:
    """The body of ``POST /extract``.

    Args:
        content: the bytes of a file, as base64.
        name: the file's name; its suffix identifies HTML that cannot be identified by its first
            bytes.
    """

    content: str = field(validator=checks.string)
    name: str = field(default="", validator=checks.string)


@frozen
class PromptRequest:
    """The body of ``POST /prompt``.

    Args:
        question: the question to answer; not blank.
        top_n: maximum number of sources, at least 1.
        copy: whether answers must be sentences of the sources, verbatim; null uses the setting in
            the model file.
        min_confidence: the response has ``found`` true only if the confidence of the search is at
            least this number, in [0, 1].
        fill: whether chunks that share nothing with the question are added after the others, until
            there are `top_n` sources. Null adds them only if there are others, for a chat model
            whose answer is not copied, and if all sources then fit completely into its context.
        chunk_txts, syntax, correct_spelling, rerank_top_n, cache_index: as in `SearchRequest`.
        neighbors: as in `SearchParams`.
        model: the name of the model; null for the first.
    """

    question: str = field(validator=checks.not_blank)
    chunk_txts: Chunks = field(validator=checks.sequence)
    top_n: int = 5
    copy: bool | None = fields.optional(checks.flag)
    min_confidence: float = fields.number(0, 1, default=MIN_CONFIDENCE)
    fill: bool | None = fields.optional(checks.flag)
    neighbors: int = 0
    syntax: Syntax = "plain"
    correct_spelling: bool = True
    rerank_top_n: int | None = 0
    cache_index: bool = fields.flag()
    model: str | None = field(default=None, validator=_model_name)


def _read(
    cls: type[Any],
    body: object,
    index_fields: Sequence[str] = ("index",),
) -> JsonObject:
    """Check a body, and return its fields by name, with "query", "chunks" and "index".

    A body has the chunks either in ``chunk_txts`` or in a stored index. In the second case the
    result's "index" is an `IndexRef`, and its "chunks" are empty.

    Args:
        cls: the class of the body without a stored index, such as `SearchRequest`.
        body: the parsed JSON.
        index_fields: fields of the body that belong to the `IndexRef`.
    """
    index = None
    if isinstance(body, dict) and "index" in body:
        if "chunk_txts" in body:
            raise InvalidRequestError("cannot be combined with index", "chunk_txts")
        index = wire.structure(
            IndexRef, {name: body[name] for name in index_fields if name in body}
        )
        body = {name: value for name, value in body.items() if name not in index_fields}
        body["chunk_txts"] = ()
    request = wire.structure(cls, body, removed=("index",))
    values = attrs.asdict(request, recurse=False)
    values.setdefault("query", values.get("question"))
    return {**values, "index": index, "chunks": values["chunk_txts"]}


def _task(cls: type[Any], values: JsonObject, **options: Any) -> Any:
    """Return a task, an instance of `cls`, with the fields of a body.

    The first argument of `cls` is the `SearchParams` of the search options.

    Args:
        cls: the class of the task.
        values: values of the fields of `cls` and of `SearchParams` by name; others are ignored.
        options: further such values, which replace equally named `values`.
    """
    values = values | options
    return cls(SearchParams(**_select(SearchParams, values)), **_select(cls, values))


def _select(cls: type[Any], values: JsonObject) -> JsonObject:
    return {name: values[name] for name in attrs.fields_dict(cls) if name in values}


def read_search(body: object) -> Operation:
    """Check a ``POST /search`` body; return its task and the writer of the response."""
    values = _read(SearchRequest, body, index_fields=("index", "allow_partial"))
    write_body = _write_with_confidence if values["confidence"] else wire.unstructure
    return _task(SearchTask, values), write_body


def _write_with_confidence(response: types.SearchResponse) -> object:
    metadata = attrs.evolve(response.metadata, confidence=response.confidence)
    return wire.unstructure(attrs.evolve(response, metadata=metadata))


def read_explanation(body: object) -> Operation:
    """Check a ``POST /explain`` body; return its task and the writer of the response."""
    return _task(ExplanationTask, _read(ExplanationRequest, body)), wire.unstructure


def read_compression(body: object) -> Operation:
    """Check a ``POST /compress`` body; return its task and the writer of the response."""
    values = _read(CompressionRequest, body)
    task = _task(CompressionTask, values, top_n=DEFAULT_NUM_CANDIDATES, rerank_top_n=0)
    return task, types.CompressionResponse.to_dict


def read_citation(body: object) -> Operation:
    """Check a ``POST /cite`` body; return its task and the writer of the response."""
    request = wire.structure(CitationRequest, body)
    task = CitationTask(request.text, request.chunk_txts)
    return task, lambda sentences: {"citations": wire.unstructure(sentences)}


def read_extraction(body: object) -> Operation:
    """Check a ``POST /extract`` body; return its task and the writer of the response."""
    request = wire.structure(ExtractionRequest, body)
    return ExtractionTask(request.content, request.name), wire.unstructure


def read_prompt(body: object) -> Operation:
    """Check a ``POST /prompt`` body; return its task and the writer of the response."""
    values = _read(PromptRequest, body)
    options = PromptOptions(**_select(PromptOptions, values))
    fills = options.fill is not False
    task = _task(PromptTask, values, options=options, fill=fills, true_order=False, spans=True)
    return task, wire.unstructure


def read_generation(body: object) -> Operation:
    """Check a ``POST /generate`` body; return its task and the writer of the response."""
    return _generation(body), lambda responses: wire.unstructure(responses[0])


def _generation(body: object) -> GenerationTask:
    request_fields = body
    model = None
    if isinstance(body, dict):
        request_fields = {name: value for name, value in body.items() if name != "model"}
        model = body.get("model")
    _model_name.check("model", model)
    request = wire.structure(types.GenerationRequest, request_fields)
    return GenerationTask((request,), model=model)


def read_stream(body: object) -> Operation:
    """Check a ``POST /generate_stream`` body; return its task and the writer of the response."""
    return _generation(body), GenerationEvents()


def error(problem: Problem) -> JsonObject:
    """Return the body of an error; it contains ``field`` only if the error has one."""
    details = {"type": problem.general_kind, "message": problem.message}
    if problem.field is not None:
        details["field"] = problem.field
    return {"error": details}


class GenerationEvents:
    """The server-sent events of one stream: ``text``, then a ``response`` or an ``error``."""

    stream_format = wire.EVENT_STREAM

    def text(self, sample: int, piece: str) -> bytes:
        """Return the event of a piece of text."""
        return wire.event({"sample": sample, "text": piece}, "text")

    def end(self, responses: Responses) -> bytes:
        """Return the event ``response``, which ends a stream and contains the first response."""
        return wire.event(responses[0], "response")

    def error(self, problem: Problem) -> bytes:
        """Return the event that ends a stream that failed."""
        return wire.event(error(problem), "error")
