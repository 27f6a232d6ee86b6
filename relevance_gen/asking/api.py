"""The functions `ask` and `ask_stream`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, ParamSpec, Self, TypeAlias, TypeVar, Unpack

import numpy as np

from relevance_gen import checks, wire
from relevance_gen.asking.answer import Answer, Source, attributor_of
from relevance_gen.asking.citations import StreamingAttributor
from relevance_gen.asking.prompts import INSTRUCTIONS, fit, passage_of, prepare
from relevance_gen.asking.repetition import LOOP_CHARS, is_loop, until_repetition
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.api import default_runner, refuse_fields_of_runner
from relevance_gen.generation.queue.request import GRAMMAR_FIELDS, RequestFields
from relevance_gen.generation.runner import Runner
from relevance_gen.generation.stream import TextStream
from relevance_gen.llama.model_files.resolve import is_embedded
from relevance_gen.retrieval.api import search
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.params import SearchOptions, unknown_option, with_options
from relevance_gen.retrieval.stages.neighbors import MAX_NEIGHBORS, Neighborhood
from relevance_gen.types import (
    MIN_CONFIDENCE,
    Chunk,
    CitedSentence,
    GenerationRequest,
    Metadata,
    SearchResponse,
)


class AskOptions(SearchOptions, RequestFields, total=False):
    """Types of the options of `ask`, for type checkers.

    They are the options of a search and the fields of a generation request.
    """


SearchableChunks: TypeAlias = BaseIndex | Iterable[str | Metadata | Chunk]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


class AnswerStream(Iterator[str]):
    """The text of an answer piece by piece; a piece can end inside a sentence.

    Leaving the context of the stream before its end cancels the generation. The text ends before
    the first sentence that repeats an earlier sentence, or when its last characters are copies of
    one string, as `is_loop` detects them.

    Attributes:
        sources: the sources in the prompt of the model, available from the start.
        confidence: the confidence that the chunks contain an answer, in [0, 1].
        citations: as `Answer.citations`, for the complete sentences. A sentence is complete when
            later text cannot change its end, usually before the next piece.
        answer: the complete answer; None before the end of the iteration.
    """

    def __init__(
        self,
        sources: tuple[Source, ...],
        confidence: float,
        stream: TextStream | None,
        *,
        only_first_sentence: bool = False,
        may_repeat: bool = False,
        copied_text: str = "",
    ) -> None:
        self.sources = sources
        self.confidence = confidence
        self.citations: tuple[CitedSentence, ...] = ()
        self.answer: Answer | None = None
        self._stream = stream
        self._text = ""
        self._may_repeat = may_repeat or bool(copied_text)
        self._has_response = stream is not None
        pieces: Iterator[str] = (
            piece.text for piece in stream or () if piece.part is None or piece.part.kind == "text"
        )
        if copied_text:
            pieces = iter([copied_text])
        self._is_message = stream is None and not copied_text
        self._pieces = self._cite_first(pieces) if only_first_sentence else self._cite(pieces)

    def __next__(self) -> str:
        if self.answer is not None:
            raise StopIteration
        if self._is_message:
            self.answer = Answer.none_found(self.sources, self.confidence)
            return self.answer.text
        for piece in self._pieces:
            self._text += piece
            return piece
        response = None
        if self._stream is not None and self._has_response:
            response = self._stream.response
            if response is None:  # a failed generation raises its error again
                return next(self._stream).text
        self.cancel()
        text = self._text.strip()
        prompt = "" if response is None else response.prompt
        self.answer = Answer(text, self.sources, prompt, self.confidence, response)
        raise StopIteration

    def _cite(self, pieces: Iterator[str]) -> Iterator[str]:
        """Yield the text of `pieces`, and append each complete sentence to `citations`."""
        for part in self._cite_until_repetition(pieces):
            if isinstance(part, str):
                yield part
            else:
                self.citations += (part,)

    def _cite_first(self, pieces: Iterator[str]) -> Iterator[str]:
        """Yield the text up to the end of the first sentence; store this sentence in `citations`.

        A text without words is yielded unchanged. The further pieces are read and discarded.
        """
        text = ""
        for part in self._cite_until_repetition(pieces):
            if isinstance(part, str):
                text += part
                continue
            yield text[: part.end]
            self.citations = (part,)
            for _ in pieces:  # the response is available after the last piece
                pass
            return
        if text:
            yield text

    def _cite_until_repetition(self, pieces: Iterator[str]) -> Iterator[str | CitedSentence]:
        """Yield the parts of the text, and each complete sentence with its citations.

        White space before the first word is left out. The generator ends before a sentence that
        repeats an earlier one, unless the text may repeat itself.
        """
        parts = self._cite_all(pieces)
        if self._may_repeat:
            yield from parts
        elif (yield from until_repetition(parts)):
            self._has_response = False

    def _cite_all(self, pieces: Iterator[str]) -> Iterator[str | CitedSentence]:
        """Yield the text and its cited sentences, but do not stop before a repeated sentence.

        The generator ends after the piece at which the text ends with copies of one string, as
        `is_loop` detects them, unless the text may repeat itself.
        """
        attributor = StreamingAttributor(attributor_of(self.sources))
        tail = ""
        for piece in pieces:
            text = piece if tail else piece.lstrip()
            tail = (tail + text)[-LOOP_CHARS:]
            yield from attributor.add(text)
            if not self._may_repeat and is_loop(tail):
                self._has_response = False
                break
        yield from attributor.add("", is_last=True)

    def result(self) -> Answer:
        """Read all pieces that remain, and return the complete answer.

        If the generation failed, its error is raised.
        """
        while self.answer is None:
            next(self, None)
        return self.answer

    def cancel(self) -> None:
        """Cancel the generation, if there is one.

        It ends before the model computes its next batch of tokens; then other generations can use
        its place among the concurrent generations.
        """
        if self._stream is not None:
            self._stream.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()


@with_options(SearchOptions, without=("spans",))
def ask_stream(
    question: str,
    chunks: SearchableChunks,
    *,
    runner: Runner | None = None,
    top_n: int = 5,
    only_from_sources: bool = True,
    min_confidence: float = MIN_CONFIDENCE,
    copy: bool | None = None,
    instructions: str = INSTRUCTIONS,
    chat_template: str | None = None,
    template_variables: Mapping[str, Any] | None = None,
    **options: Unpack[AskOptions],
) -> AnswerStream:
    """Answer a question as `ask` does, with the same arguments; return the answer as a stream.

    Errors of the generation are raised by the iteration, all other errors by this function.
    """
    fields: dict[str, Any] = dict(options)
    search_options = {}
    for name in (SearchOptions.__annotations__.keys() - {"spans"}) & fields.keys():
        search_options[name] = fields.pop(name)
    refuse_fields_of_runner(fields)
    _check_names(fields)
    checks.not_blank.check("question", question)
    if copy is not None:
        checks.flag.check("copy", copy)
    checks.number(0, 1).check("min_confidence", checks.as_float(min_confidence))
    _check(runner, only_from_sources, instructions, template_variables)
    wire.structure(GenerationRequest, {"text": "", **fields})  # raises errors before the search
    find: Callable[..., SearchResponse] = (
        chunks.search if isinstance(chunks, BaseIndex) else partial(search, chunks=chunks)
    )
    search_options.setdefault("neighbors", _default_neighbors(chunks))
    is_default = runner is None and chat_template is None and instructions == INSTRUCTIONS
    needs_model = not (is_default and copies_without_model(None, copy, fields))
    fill = search_options.pop("fill", None)
    response = find(
        question,
        top_n=top_n,
        true_order=False,
        spans=True,
        fill=needs_model if fill is None else fill,
        **search_options,
    )
    passages = []
    for result in response.results:
        if fill or not result.is_filled:
            passages.append(passage_of(Source.whole(result)))
    if only_from_sources and (not passages or response.confidence < min_confidence):
        return AnswerStream(tuple(passages), response.confidence, None)
    if passages and not needs_model:
        sources = fit(passages, lambda _: True)
        copied = sources[0].reference
        return AnswerStream(sources, response.confidence, None, copied_text=copied)
    runner = default_runner() if runner is None else runner
    sources, request_fields = prepare(
        question,
        response,
        runner,
        copy=copy,
        fill=fill,
        instructions=instructions,
        chat_template=chat_template,
        template_variables=template_variables,
        **fields,
    )
    is_chat = "messages" in request_fields
    stream = runner.stream_chat(**request_fields) if is_chat else runner.stream(request_fields)
    is_free = request_fields.keys().isdisjoint(GRAMMAR_FIELDS)
    return AnswerStream(
        sources,
        response.confidence,
        stream,
        only_first_sentence=not is_chat and "choice" not in request_fields,
        may_repeat=not is_free,
    )


def copies_without_model(
    model: str | None,
    copy: bool | None,
    fields: Mapping[str, Any],
) -> bool:
    """Return whether `ask` copies the best passage and needs no model for that.

    Args:
        model: the name of the model; None for the default model.
        copy: as in `ask`.
        fields: the given fields of a `GenerationRequest`.
    """
    return is_embedded(model) and copy is not False and not fields


def _default_neighbors(chunks: SearchableChunks) -> int | Neighborhood:
    """Return the default of the search option `neighbors` for chunks or an index.

    For an index, this is the index's own default. For a list in which all chunks have the metadata
    key ``path``, it is a `Neighborhood` in which adjacent chunks with the same path are neighbors.
    For all other chunks, it is 0.
    """
    if isinstance(chunks, BaseIndex):
        return chunks.default_neighbors
    paths = []
    for chunk in chunks if isinstance(chunks, list) else ():
        path = chunk.metadata.get("path") if isinstance(chunk, Chunk) else None
        if path is None:
            return 0
        paths.append(path)
    starts = []
    for i, path in enumerate(paths):
        if path not in paths[max(i - 1, 0) : i]:
            starts.append(i)
    return Neighborhood(MAX_NEIGHBORS, np.array(starts)) if paths else 0


def _with_parameters_of(
    function: Callable[Parameters, object],
) -> Callable[[Callable[..., Result]], Callable[Parameters, Result]]:
    """Return a decorator that gives the decorated function the parameters of `function`."""

    def decorate(decorated: Callable[..., Result]) -> Callable[Parameters, Result]:
        annotation = inspect.signature(decorated).return_annotation
        signature = inspect.signature(function).replace(return_annotation=annotation)
        decorated.__signature__ = signature  # type: ignore[attr-defined]
        return decorated

    return decorate


@_with_parameters_of(ask_stream)
def ask(*args: Any, **options: Any) -> Answer:  # noqa: D417 - those of ask_stream
    """Answer a question from chunks: search them, and generate an answer from the best.

    Without a model of your own the answer is the best passage, and no model is loaded. A model with
    a chat template gets a single message with instructions, numbered sources and the question.
    Other models get the sentences of the best passages, in the format that the embedded model was
    trained on.

    Args:
        question: not blank.
        chunks: a `ChunkIndex`, a `FolderIndex`, or chunks as in `search`.
        runner: the runner of the model; by default the runner of `generate`. The embedded model is
            loaded only for fields of a `GenerationRequest`, or with ``copy=False``.
        top_n: maximum number of sources. Sources are complete chunks, best first, while the context
            of the model has space for them and the answer; a chunk that does not fit is shortened
            to the sentences around its best passage, or dropped.
        only_from_sources: whether to generate nothing if the search finds no answer; False lets the
            model answer from its own knowledge.
        min_confidence: minimum confidence of the search for an answer, in [0, 1].
        copy: whether the answer is the sentences of the best passage, word for word, with single
            spaces. None uses the setting in the model file; the embedded model copies.
        instructions: the instructions for a chat model; other models refuse any but the default.
        chat_template: a Jinja template instead of the template in the model's file.
        template_variables: further variables of the template; ``enable_thinking`` is false by
            default.
        options: all options of `search` except ``spans``, ``true_order``, ``blank``, ``progress``,
            ``weighting``, ``encoding`` and ``text``. The default of ``neighbors`` is 2 for a
            `FolderIndex` and for chunks from `read_documents`, which form running texts. ``fill``
            is by default true for a chat model if all `top_n` results then fit completely into its
            context, otherwise false. With ``encoder=None`` the encoder of the index is used. Also
            all fields of a `GenerationRequest` except ``text`` and ``num_samples``. The default of
            ``temperature`` is 0, that of ``max_tokens`` 512 for a chat model and 128 for other
            models. At most half of the context is reserved for the answer.

    Returns:
        The answer, with the sources in the prompt. If the search finds no answer, ``found`` is
        False, and the sources are the closest passages.

    Raises:
        InvalidRequestError: an argument is invalid, or no source fits into the context.
        RelevanceGenError: as `Runner.chat` raises.

    >>> answer = ask("Do cats bark?", ["Cows moo."])
    >>> answer.text, answer.sources
    ('Nothing was found that the question asks for.', ())
    """
    with ask_stream(*args, **options) as stream:
        return stream.result()


def _check_names(fields: Iterable[str]) -> None:
    """Raise an `InvalidRequestError` for a name that is not an option of `ask`.

    The fields ``text`` and ``num_samples`` of a `GenerationRequest` are no options of `ask`.
    """
    names = [*inspect.signature(ask_stream).parameters, *RequestFields.__annotations__]
    known = [name for name in names if name not in ("options", "text", "num_samples")]
    for name in fields:
        if name == "text":
            remedy = (
                "for a table whose texts are in another column, pass ChunkIndex(chunks, text=…)"
            )
            raise InvalidRequestError("must not be given", name, remedy=remedy)
        if name == "num_samples":
            raise InvalidRequestError("must not be given: a question has one answer", name)
        if name not in known:
            raise unknown_option(name, known)


def _check(
    runner: object, only_from_sources: object, instructions: object, template_variables: object
) -> None:
    """Raise an error for an argument of a wrong type, before a search is run or a model loaded."""
    if runner is not None and not hasattr(runner, "stream_chat"):
        raise InvalidRequestError.must_be("runner", "a Runner", runner)
    checks.flag.check("only_from_sources", only_from_sources)
    checks.string.check("instructions", instructions)
    if template_variables is not None:
        checks.mapping.check("template_variables", template_variables)
