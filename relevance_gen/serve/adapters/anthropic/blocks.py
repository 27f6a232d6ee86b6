"""Messages of ``/v1/messages``: each part of a turn is a content block.

If documents are cited, each sentence of a text is a block of its own, with its citations.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress

from attrs import evolve, frozen

from relevance_gen import wire
from relevance_gen.asking.citations import Attributor, StreamingAttributor
from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.generation.chat.conversation import texts_of
from relevance_gen.generation.output_parsing.output_parser import parse_arguments
from relevance_gen.request_scope import reserve
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.serve.services.generation import Responses
from relevance_gen.types import (
    CitedSentence,
    CitedSpan,
    Completion,
    ContentPart,
    GenerationResponse,
)
from relevance_gen.wire import JsonObject

THREAD = "thread"
"""The field of a conversation that the server would store."""
_THREAD_ERROR = {"error_code": "thread_unsupported_request", "unsupported": [THREAD]}
"""Details of the error on which Anthropic's clients send the whole conversation instead."""
_ERROR_TYPES = {
    "invalid_request": "invalid_request_error",
    "context_length_exceeded": "invalid_request_error",
    "method_not_allowed": "invalid_request_error",
    "unsupported_media_type": "invalid_request_error",
    "too_large": "request_too_large",
    "unauthorized": "authentication_error",
    "forbidden": "permission_error",
    "not_found": "not_found_error",
    "model_not_found": "not_found_error",
    "rate_limited": "rate_limit_error",
    "overloaded": "overloaded_error",
    "timeout": "timeout_error",
}
"""Anthropic's error types; all other errors are an ``api_error``."""
_DELTA_TYPES = {
    "text": "text_delta",
    "reasoning": "thinking_delta",
    "tool_call": "input_json_delta",
}
_DELTA_FIELDS = {"text": "text", "reasoning": "thinking", "tool_call": "partial_json"}
_STOP_REASONS = {
    "eos": "end_turn",
    "stop": "stop_sequence",
    "tool_calls": "tool_use",
    "length": "max_tokens",
}
_CONTEXT_FULL = "model_context_window_exceeded"
_EMPTY_TEXT = ContentPart("text", "")


def error(problem: Problem) -> JsonObject:
    """Return the body of an error.

    If the invalid field is ``thread``, the field for a conversation that the server would have to
    store, the body has details that make Anthropic's clients send the whole conversation instead.
    """
    details: JsonObject = {
        "type": _ERROR_TYPES.get(problem.kind, "api_error"),
        "message": problem.message,
    }
    if problem.field == THREAD:
        details["details"] = _THREAD_ERROR
    return {"type": "error", "error": details}


@frozen
class _DocumentText:
    """A citable text of a document.

    Attributes:
        text: the text.
        document: index of the document, from 0.
        title: the document's title, if any.
        block: index of the block that is the text, which is cited as a whole; None if the text is
            that of the whole document.
    """

    text: str
    document: int
    title: str | None
    block: int | None = None

    def citation(self, span: CitedSpan) -> JsonObject:
        """Return the citation of a span of this text, as an object of the API.

        If the text is a block, the citation contains the whole block instead of the span.
        """
        document = {
            "document_index": self.document,
            "document_title": self.title,
            "file_id": None,
        }
        if self.block is None:
            return {
                "type": "char_location",
                "cited_text": self.text[span.start : span.end],
                **document,
                "start_char_index": span.start,
                "end_char_index": span.end,
            }
        return {
            "type": "content_block_location",
            "cited_text": self.text,
            **document,
            "start_block_index": self.block,
            "end_block_index": self.block + 1,
        }

    def n_chars(self, span: CitedSpan) -> int:
        """Return the number of characters of the title and the cited text in `citation`."""
        n_cited = span.end - span.start if self.block is None else len(self.text)
        return len(self.title or "") + n_cited


class MessageDocumentCiter(Attributor):
    """Cites the documents of messages.

    A sentence is not cited if that would exceed the memory or the work that the request may use.
    """

    def __init__(self, documents: Sequence[_DocumentText]) -> None:
        super().__init__([document.text for document in documents])
        self.documents = documents

    def cite(
        self, text: str, offset: int = 0, ends: Sequence[int] | None = None
    ) -> tuple[CitedSentence, ...]:
        """Return the sentences of a text with their citations; see `Attributor.cite`.

        The result is () if the citations would exceed the memory or the work that the request may
        use.
        """
        with suppress(TooLargeError, BusyError):
            sentences = super().cite(text, offset, ends)
            n_chars = 0
            for sentence in sentences:
                for span in sentence.spans:
                    n_chars += self.documents[span.source].n_chars(span)
            reserve("result_char", n_chars)
            return sentences
        return ()


def citer_of(messages: Sequence[JsonObject]) -> MessageDocumentCiter | None:
    """Return a citer of the documents in checked messages for which citations are enabled.

    The result is None if there are no such documents.
    """
    blocks: list[JsonObject] = []
    for message in messages:
        if not isinstance(message["content"], str):
            blocks += [block for block in message["content"] if block["type"] == "document"]
    texts: list[_DocumentText] = []
    for document, block in enumerate(blocks):
        if (block.get("citations") or {}).get("enabled"):
            title = _text(block["title"]) if block.get("title") else None
            source = block["source"]
            if source["type"] == "text":
                texts.append(_DocumentText(_text(source["data"]), document, title))
            else:
                for index, text in enumerate(texts_of(source["content"], "")):
                    texts.append(_DocumentText(text, document, title, index))
    return MessageDocumentCiter(texts) if texts else None


def _text(content: object) -> str:
    return "\n".join(texts_of(content, ""))


@frozen
class BlockDelta:
    """A piece of text or a citation to add to the text blocks of a turn.

    If `starts_block`, it is added to a new block, otherwise to the last block. `delta` is the
    object of the API.
    """

    starts_block: bool
    delta: JsonObject


class CitedText:
    """Splits a streamed text into blocks of one cited sentence each."""

    def __init__(self, citer: MessageDocumentCiter) -> None:
        self._documents = citer.documents
        self._stream = StreamingAttributor(citer)
        self._is_block_complete = False

    def deltas(self, text: str, *, is_last: bool = False) -> Iterator[BlockDelta]:
        """Yield the additions to blocks that follow from the next piece of the text.

        The caller has started the first block before the first call.

        Args:
            text: the piece.
            is_last: whether the text ends after this piece, so that its last sentence is complete.
        """
        for addition in self._stream.add(text, is_last=is_last):
            if isinstance(addition, str):
                delta: JsonObject = {"type": "text_delta", "text": addition}
                yield BlockDelta(self._is_block_complete, delta)
                self._is_block_complete = False
            else:
                for citation in self._citations(addition):
                    yield BlockDelta(False, {"type": "citations_delta", "citation": citation})
                self._is_block_complete = True

    def _citations(self, sentence: CitedSentence) -> list[JsonObject]:
        """Return the distinct citations of a sentence."""
        citations: list[JsonObject] = []
        for span in sentence.spans:
            citation = self._documents[span.source].citation(span)
            if citation not in citations:
                citations.append(citation)
        return citations


class BlockEvents:
    """The events of one stream, or the whole message as one object.

    Args:
        model: the model's name.
        max_tokens: the request's maximum number of tokens.
        citer: cites the documents for the text blocks; None: without citations.
    """

    stream_format = wire.EVENT_STREAM

    def __init__(
        self, model: str, max_tokens: int, citer: MessageDocumentCiter | None = None
    ) -> None:
        self._identity = {
            "id": f"msg_{uuid.uuid4().hex}",
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._max_tokens = max_tokens
        self._is_started = False
        self._open_part: int | None = None
        self._n_blocks = 0
        self._citer = citer
        self._cited_text: CitedText | None = None

    def full_response(self, responses: Responses) -> JsonObject:
        """Return the whole message."""
        (response,) = responses
        (completion,) = response.responses
        content: list[JsonObject] = []
        for part in completion.parts or ():
            content += self._blocks(part)
        return {
            **self._identity,
            "content": content,
            **self._ending(completion),
            "usage": _usage(response),
        }

    def text(self, _sample: int, piece: ContentPart) -> bytes:
        """Return the events of a piece of the turn; there is one sample."""
        events = self._start()
        if piece.index != self._open_part:
            events += self._close_part()
            self._open_part = piece.index
            events += self._open_block(evolve(piece, text=""))
            self._cited_text = None
            if self._citer is not None and piece.kind == "text":
                self._cited_text = CitedText(self._citer)
        if self._cited_text is not None:
            events += self._cited_events(self._cited_text.deltas(piece.text))
        elif piece.text:
            delta = {"type": _DELTA_TYPES[piece.kind], _DELTA_FIELDS[piece.kind]: piece.text}
            events += self._delta_event(delta)
        return events

    def end(self, responses: Responses) -> bytes:
        """Return the events that end the turn, with the stop reason and the usage."""
        (response,) = responses
        (completion,) = response.responses
        ending = _event("message_delta", delta=self._ending(completion), usage=_usage(response))
        return self._start() + self._close_part() + ending + _event("message_stop")

    def error(self, problem: Problem) -> bytes:
        """Return the event that ends a stream that failed."""
        return wire.event(error(problem), "error")

    def _start(self) -> bytes:
        """Return the event that starts the message; b"" if it was returned before.

        The token counts in this event are 0; the event that ends the message has the counts.
        """
        if self._is_started:
            return b""
        self._is_started = True
        message: JsonObject = {
            **self._identity,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": 0, "output_tokens": 0},
        }
        return _event("message_start", message=message)

    def _open_block(self, part: ContentPart) -> bytes:
        return _event("content_block_start", index=self._n_blocks, content_block=_block(part))

    def _close_block(self) -> bytes:
        self._n_blocks += 1
        return _event("content_block_stop", index=self._n_blocks - 1)

    def _delta_event(self, delta: JsonObject) -> bytes:
        return _event("content_block_delta", index=self._n_blocks, delta=delta)

    def _close_part(self) -> bytes:
        if self._open_part is None:
            return b""
        self._open_part = None
        events = b""
        if self._cited_text is not None:
            events = self._cited_events(self._cited_text.deltas("", is_last=True))
        return events + self._close_block()

    def _cited_events(self, deltas: Iterable[BlockDelta]) -> bytes:
        events = b""
        for block_delta in deltas:
            if block_delta.starts_block:
                events += self._close_block() + self._open_block(_EMPTY_TEXT)
            events += self._delta_event(block_delta.delta)
        return events

    def _blocks(self, part: ContentPart) -> list[JsonObject]:
        """Return the blocks of a part: one for each sentence if the text is cited."""
        if part.kind != "text" or self._citer is None:
            return [_block(part)]
        blocks = [_block(_EMPTY_TEXT)]
        for block_delta in CitedText(self._citer).deltas(part.text, is_last=True):
            if block_delta.starts_block:
                blocks.append(_block(_EMPTY_TEXT))
            blocks[-1]["text"] += block_delta.delta.get("text", "")
            if "citation" in block_delta.delta:
                blocks[-1].setdefault("citations", []).append(block_delta.delta["citation"])
        return blocks

    def _ending(self, completion: Completion) -> JsonObject:
        """Return the fields ``stop_reason`` and ``stop_sequence`` of a turn.

        The stop reason is `_CONTEXT_FULL` if the turn was truncated although it has fewer tokens
        than the request's maximum: then the context was full. The stop sequence is None unless a
        stop string ended the turn.
        """
        reason = completion.finish_reason
        stop_reason = _STOP_REASONS[reason]
        if reason == "length" and completion.generated_tokens < self._max_tokens:
            stop_reason = _CONTEXT_FULL
        stop_sequence = completion.stop_string if reason == "stop" else None
        return {"stop_reason": stop_reason, "stop_sequence": stop_sequence}


def _event(kind: str, **fields: object) -> bytes:
    return wire.event({"type": kind, **fields}, kind)


def _block(part: ContentPart) -> JsonObject:
    match part.kind:
        case "text":
            return {"type": "text", "text": part.text}
        case "reasoning":
            return {"type": "thinking", "thinking": part.text, "signature": ""}
        case "tool_call":
            return {
                "type": "tool_use",
                "id": part.id,
                "name": part.name,
                "input": parse_arguments(part.text) or {},
            }


def _usage(response: GenerationResponse) -> dict[str, int]:
    """Return the token counts of a response.

    ``cache_read_input_tokens`` is the number of cached prompt tokens that were reused, and
    ``input_tokens`` that of the other prompt tokens. ``output_tokens`` is the number of generated
    tokens, and ``cache_creation_input_tokens`` is always 0.
    """
    return {
        "input_tokens": response.prompt_tokens - response.reused_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": response.reused_tokens,
        "output_tokens": sum(sample.generated_tokens for sample in response.responses),
    }
