"""``POST /v1/chat/completions``: the next turn of a conversation."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from attrs import field, frozen

from relevance_gen import checks, fields
from relevance_gen.asking.citations import Attributor
from relevance_gen.errors import BusyError, InvalidRequestError, TooLargeError
from relevance_gen.generation.chat.conversation import (
    MAX_MESSAGES,
    Conversation,
    a_message,
    check_calls,
    choice_of,
    function_call,
    texts_of,
    tools_of,
)
from relevance_gen.generation.queue.request import RequestContext
from relevance_gen.serve.adapters.openai import requests
from relevance_gen.serve.adapters.openai.choices import ChoiceEvents, sample_tokens
from relevance_gen.serve.adapters.openai.requests import (
    EMPTY,
    NEVER,
    SamplingRequest,
    read_as,
)
from relevance_gen.serve.adapters.shared import Operation, Problem, unsupported
from relevance_gen.serve.services.generation import AS_MUCH_AS_FITS, GenerationTask
from relevance_gen.types import MAX_TOP_LOGPROBS, Completion, ContentPart, GenerationResponse
from relevance_gen.wire import JsonObject

_FIELD_NAMES = {
    "text": "messages",
    "num_samples": "n",
    "template_variables": "chat_template_kwargs",
}
"""Fields of `GenerationRequest` to the client's names of them."""
_REFUSED = {
    **requests.REFUSED,
    **dict.fromkeys(("audio", "chat_template", "echo", "functions", "thinking"), EMPTY),
    "add_special_tokens": (False,),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "include_reasoning": (True,),
    "modalities": (["text"],),
    "reasoning": EMPTY,
    "web_search_options": NEVER,
}
_TEMPLATE_VARIABLES = (
    "enable_thinking",
    "thinking_budget",
    "documents",
    "reasoning_effort",
    "add_generation_prompt",
)
"""Fields of the request that are variables of the chat template."""
_MESSAGE_FIELDS = {
    "assistant": ("reasoning_content", "reasoning", "tool_calls"),
    "tool": ("tool_call_id", "name"),
}
"""Role to the fields of its messages in addition to role and content."""
_TEXT_FIELDS = {"text": "text", "refusal": "refusal"}
"""Type of a content part to the field with its text."""
_DOCUMENT_TEXT_FIELDS = ("text", "content", "snippet")
"""Fields of a document that can hold its text; Cohere's documents have them in ``data``."""


@frozen(kw_only=True)
class ChatRequest(SamplingRequest):
    """The fields of a chat request, as ``static/openapi.json`` describes them."""

    messages: Sequence[Any] = field(validator=checks.list_of("message", 1, MAX_MESSAGES))
    max_tokens: int | None = fields.optional(checks.integer(1))
    max_completion_tokens: int | None = fields.optional(checks.integer(1))
    logprobs: bool = fields.flag()
    top_logprobs: int | None = fields.optional(checks.integer(0, MAX_TOP_LOGPROBS))
    chat_template_kwargs: JsonObject | None = fields.optional(checks.an_object)
    enable_thinking: bool | None = fields.optional(checks.flag)
    thinking_budget: int | None = fields.optional(checks.integer(0))
    documents: Sequence[Any] | None = fields.optional(checks.a_list)
    reasoning_effort: str | None = fields.optional(checks.string)
    add_generation_prompt: bool | None = fields.optional(checks.flag)
    continue_final_message: bool = fields.flag()
    tools: Sequence[Any] | None = None
    tool_choice: Any = "auto"
    parallel_tool_calls: bool = fields.flag(default=True)

    def conversation(self) -> Conversation:
        """Return the messages, the tools and the variables of the chat template."""
        messages = [
            _message(message, f"messages[{index}]") for index, message in enumerate(self.messages)
        ]
        is_answered = messages[-1]["role"] == "assistant" and not self.add_generation_prompt
        if self.continue_final_message and not is_answered:
            raise InvalidRequestError(
                "must be False if the last message is not the assistant's,"
                " or if add_generation_prompt is True",
                "continue_final_message",
            )
        fields = {
            name: value
            for name in _TEMPLATE_VARIABLES
            if (value := getattr(self, name)) is not None
        }
        variables = (self.chat_template_kwargs or {}) | fields
        required = {
            name: name if name in fields else f"chat_template_kwargs.{name}"
            for name, value in variables.items()
            if name != "add_generation_prompt" and value not in (None, [])
        }
        tools = tools_of(() if self.tools is None else self.tools)
        return Conversation(
            messages,
            tools,
            choice=choice_of(self.tool_choice, tools, is_parallel=self.parallel_tool_calls),
            variables=variables,
            required=required,
            continues=self.continue_final_message,
        )


def read(body: object) -> Operation:
    """Check a ``POST /v1/chat/completions`` body; return its task and response writer."""
    request = read_as(ChatRequest, body, _REFUSED)
    names = _FIELD_NAMES | request.schema_names
    if request.top_logprobs and not request.logprobs:
        raise InvalidRequestError("needs logprobs to be True", "top_logprobs")
    max_tokens = request.max_completion_tokens or request.max_tokens or AS_MUCH_AS_FITS
    top_logprobs = (request.top_logprobs or 0) if request.logprobs else None
    generation = request.generation(max_tokens, top_logprobs, names)
    citer = None
    if generation.json_schema is None:
        citer = _DocumentCiter.of(request.documents or ())
    task = GenerationTask(
        (generation,),
        conversation=request.conversation(),
        context=RequestContext(
            use_model_eos=not request.ignore_eos, return_token_texts=request.logprobs
        ),
        names=names,
        model=request.model,
        citer=citer,
    )
    events = _ChatEvents(request, citer)
    return task, events if request.stream else events.full_response


def error(problem: Problem) -> JsonObject:
    """Return the body of an error; if the model has no chat template, suggest another path."""
    if problem.field == "chat_template":
        message = f"{problem.message}; /v1/completions takes a text without a template"
        return requests.error(Problem(problem.kind, message, "messages"))
    return requests.error(problem)


def _message(message: Any, path: str) -> JsonObject:
    """Return a message, which was sent in the field `path`, in the format for chat templates."""
    a_message.check(path, message)
    role = message.get("role")
    content = message.get("content")
    checks.string.check(f"{path}.role", role)
    for name in ("function_call", "audio"):
        if message.get(name) not in (None, *EMPTY):
            raise unsupported(f"{path}.{name}")
    if content is None and role == "assistant":
        content = ""
    texts = texts_of(content, f"{path}.content", _TEXT_FIELDS)
    turn = {
        "role": "system" if role == "developer" else role,
        "content": "\n".join(texts),
    }
    for name in _MESSAGE_FIELDS.get(role, ()):
        if message.get(name) is not None:
            turn[name] = message[name]
    if "reasoning" in turn:
        turn.setdefault("reasoning_content", turn.pop("reasoning"))
    check_calls(turn, path)
    return turn


def _turn(completion: Completion) -> JsonObject:
    """Return a turn as a message.

    The reasoning is written under two names, ``reasoning_content`` and ``reasoning``, because some
    clients read only one of them.
    """
    calls = [function_call(call.id, call.name, call.text) for call in completion.tool_calls]
    empty_content = None if calls else ""
    turn: JsonObject = {
        "role": "assistant",
        "content": completion.text or empty_content,
        "refusal": None,
    }
    if reasoning := completion.reasoning:
        turn |= {"reasoning_content": reasoning, "reasoning": reasoning}
    if calls:
        turn["tool_calls"] = calls
    return turn


class _DocumentCiter(Attributor):
    """Cites the documents of a chat, in the format of Cohere's chats."""

    def __init__(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        super().__init__(texts)
        self._ids = ids

    @classmethod
    def of(cls, documents: Sequence[Any]) -> Self | None:
        """Return an instance for the documents that have a text; None if there are none."""
        ids, texts = [], []
        for index, document in enumerate(documents):
            fields = document if isinstance(document, dict) else {"text": document}
            data = fields["data"] if isinstance(fields.get("data"), dict) else fields
            strings = [
                data[name] for name in _DOCUMENT_TEXT_FIELDS if isinstance(data.get(name), str)
            ]
            if strings and strings[0].strip():
                document_id = fields.get("id")
                ids.append(document_id if isinstance(document_id, str) else f"doc:{index}")
                texts.append(strings[0])
        return cls(ids, texts) if texts else None

    def citations(self, text: str) -> list[JsonObject]:
        """Return the citations of an answer, one for each sentence that documents support.

        A citation has the position of the sentence in the answer as ``start`` and ``end``, its
        ``text``, and its ``sources``: for each the ``id`` of a document, and ``start`` and ``end``
        of the cited span in the document's text. The list is empty if the comparison would exceed
        the memory or the work that the request may use.
        """
        citations: list[JsonObject] = []
        with suppress(TooLargeError, BusyError):
            for sentence in self.cite(text):
                if sentence.spans:
                    sources = [
                        {
                            "type": "document",
                            "id": self._ids[span.source],
                            "start": span.start,
                            "end": span.end,
                        }
                        for span in sentence.spans
                    ]
                    citations.append(
                        {
                            "start": sentence.start,
                            "end": sentence.end,
                            "text": text[sentence.start : sentence.end],
                            "sources": sources,
                        }
                    )
        return citations


class _ChatEvents(ChoiceEvents):
    """The events of one stream, or the response as one object."""

    def __init__(self, request: ChatRequest, citer: _DocumentCiter | None) -> None:
        identity = {
            "id": f"chatcmpl-{uuid.uuid4().hex}",
            "model": request.model,
            "object": "chat.completion.chunk" if request.stream else "chat.completion",
        }
        super().__init__(identity, request, request.n)
        self._citer = citer
        self._call_indexes: dict[int, dict[int, int]] = defaultdict(dict)
        """Sample to the number of each tool call from 0, by the index of its part in the turn."""

    def _first(self, _sample: int, piece: ContentPart | None) -> JsonObject:
        """Return the choice of a sample's first chunk, which only has the role and empty content.

        The content is null if the first piece of the turn is a tool call, and "" otherwise.
        """
        content = None if piece is not None and piece.kind == "tool_call" else ""
        return {"delta": {"role": "assistant", "content": content}}

    def _piece(self, sample: int, piece: ContentPart) -> JsonObject:
        if piece.kind == "text":
            return {"delta": {"content": piece.text}}
        if piece.kind == "reasoning":
            return {"delta": {"reasoning_content": piece.text, "reasoning": piece.text}}
        indexes = self._call_indexes[sample]
        call: JsonObject = {"function": {"arguments": piece.text}}
        if piece.index not in indexes:
            indexes[piece.index] = len(indexes)
            call = function_call(piece.id, piece.name, piece.text)
        return {"delta": {"tool_calls": [{"index": indexes[piece.index], **call}]}}

    def _last(self, completion: Completion) -> JsonObject:
        return {"delta": self._citations(completion)}

    def _choice(self, completion: Completion, _response: GenerationResponse) -> JsonObject:
        return {"message": _turn(completion) | self._citations(completion)}

    def _logprobs(self, completion: Completion, response: GenerationResponse) -> JsonObject | None:
        token_texts = response.token_texts
        if token_texts is None:
            return None

        def entry(token: int, logprob: float | None) -> JsonObject:
            piece = token_texts.pieces[token]
            text = piece.decode(errors="replace")
            return {"token": text, "logprob": logprob, "bytes": list(piece)}

        content = []
        for scored in sample_tokens(completion, token_texts):
            alternatives = scored.alternatives or ()
            top_logprobs = [entry(other.token, other.logprob) for other in alternatives]
            content.append({**entry(scored.token, scored.logprob), "top_logprobs": top_logprobs})
        return {"content": content, "refusal": None}

    def _citations(self, completion: Completion) -> JsonObject:
        if self._citer is None:
            return {}
        return {"citations": self._citer.citations(completion.text)}
