"""Ollama's interface: chats, completions, vectors and lists of models, as lines of JSON."""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from attrs import field, frozen

from relevance_gen import checks, fields, wire
from relevance_gen.embedding.encoder import Embeddings
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.chat.conversation import (
    MAX_MESSAGES,
    Conversation,
    a_message,
    check_calls,
    tools_of,
)
from relevance_gen.generation.output_parsing.output_parser import parse_arguments
from relevance_gen.generation.queue.request import RequestContext
from relevance_gen.serve.adapters.shared import (
    Operation,
    Problem,
    model_field,
    new_generation,
    read_lenient,
    unsupported,
)
from relevance_gen.serve.services.embedding import EmbeddingTask, LongTexts
from relevance_gen.serve.services.generation import AS_MUCH_AS_FITS, GenerationTask, Responses
from relevance_gen.serve.services.model_details import ModelDetails
from relevance_gen.types import Completion, ContentPart, GenerationRequest
from relevance_gen.wire import JsonObject

VERSION: Final = "0.13.0"
"""The version of Ollama whose interface this is. Clients refuse versions that are too old."""

_MESSAGE_FIELDS: Mapping[str, Mapping[str, str]] = {
    "system": {},
    "user": {},
    "assistant": {"thinking": "reasoning_content", "tool_calls": "tool_calls"},
    "tool": {"name": "name", "tool_name": "name", "tool_call_id": "tool_call_id"},
}
"""Role to the further fields of its messages, with their names in chat templates."""
_DEFAULT_OPTIONS: JsonObject = {"temperature": 0.8, "top_k": 40, "top_p": 0.9}
"""Ollama's default options, without its repetition penalty."""
_OPTIONS = (
    "frequency_penalty",
    "min_p",
    "presence_penalty",
    "stop",
    "temperature",
    "top_k",
    "top_p",
)
"""Options that `GenerationRequest` has under the same name."""
_FIELD_NAMES = {name: f"options.{name}" for name in _OPTIONS} | {
    "json_schema": "format",
    "max_tokens": "options.num_predict",
    "repetition_penalty": "options.repeat_penalty",
    "seed": "options.seed",
}
"""Fields of `GenerationRequest` to the client's names of them."""
_REFUSED_FIELDS = ("context", "images", "logprobs", "suffix", "template", "top_logprobs")
"""Unsupported fields that would change the response."""
_REFUSED_OPTIONS: Mapping[str, tuple[object, ...]] = {
    "mirostat": (0,),
    "repeat_last_n": (-1, 64),
    "tfs_z": (1,),
    "typical_p": (1,),
}
"""Unsupported options that would change the response, with the values that are accepted."""
_LOAD = GenerationRequest("load", max_tokens=1)
"""A request whose tokens are counted, so that the model is loaded."""
_QUANTIZATIONS = {
    0: "F32",
    1: "F16",
    2: "Q4_0",
    3: "Q4_1",
    7: "Q8_0",
    8: "Q5_0",
    9: "Q5_1",
    10: "Q2_K",
    12: "Q3_K_M",
    14: "Q4_K_S",
    15: "Q4_K_M",
    16: "Q5_K_S",
    17: "Q5_K_M",
    18: "Q6_K",
    32: "BF16",
}
"""``general.file_type`` in GGUF files to the name of the quantization."""

_effort = checks.Rule(
    "True, False, low, medium or high",
    lambda value: isinstance(value, bool) or value in ("low", "medium", "high"),
)
_duration = checks.Rule(
    'a number of seconds or a string such as "5m"',
    lambda value: isinstance(value, int | float | str) and not isinstance(value, bool),
)


@frozen(kw_only=True)
class OllamaShowRequest:
    """The fields of ``POST /api/show``, as ``static/openapi.json`` describes them."""

    model: str = model_field()


@frozen(kw_only=True)
class OllamaRequest(OllamaShowRequest):
    """The fields that chats and completions share, as ``static/openapi.json`` describes them."""

    stream: bool = fields.flag(default=True)
    format: Any = None
    options: JsonObject | None = fields.optional(checks.an_object)
    think: bool | str | None = fields.optional(_effort)
    keep_alive: str | float | None = fields.optional(_duration)

    def generation(self, text: str = "") -> GenerationRequest:
        """Return the generation request with the options of this request.

        Args:
            text: the prompt; "" if the prompt is rendered later from a conversation.

        Raises:
            InvalidRequestError: an option is wrong or not supported.
        """
        given = self.options or {}
        options = _DEFAULT_OPTIONS | {
            name: value for name, value in given.items() if value is not None
        }
        for name, accepted in _REFUSED_OPTIONS.items():
            if options.get(name, accepted[0]) not in accepted:
                raise unsupported(f"options.{name}")
        n_predict = options.get("num_predict", -1)
        max_tokens = checks.check_integer("options.num_predict", n_predict, -2)
        seed = checks.check_integer("options.seed", options.get("seed", -1), -(1 << 63))
        fields = {name: options.get(name) for name in _OPTIONS}
        return new_generation(
            _FIELD_NAMES,
            text,
            max_tokens=max_tokens if max_tokens > 0 else AS_MUCH_AS_FITS,
            seed=seed if seed >= 0 else None,
            repetition_penalty=options.get("repeat_penalty"),
            json_schema=self._schema(),
            **fields,
        )

    def conversation(
        self, messages: Sequence[JsonObject], tools: Sequence[Any] = ()
    ) -> Conversation:
        """Return the messages, with the tools and the variables of the chat template."""
        variables: JsonObject = {}
        if self.think is not None:
            variables["enable_thinking"] = self.think is not False
        if isinstance(self.think, str):
            variables["reasoning_effort"] = self.think
        # Clients may omit the type of a tool.
        typed_tools = [
            {"type": "function", **tool} if isinstance(tool, dict) else tool for tool in tools
        ]
        return Conversation(
            messages,
            tools_of(typed_tools),
            variables=variables,
            required=dict.fromkeys(variables, "think") if self.think else {},
        )

    def _schema(self) -> Any:
        match self.format:
            case None | "":
                return None
            case "json":
                return {"type": "object"}
            case dict(schema):
                return schema
        raise InvalidRequestError.must_be("format", '"json" or a JSON schema', self.format)

    def operation(
        self,
        generation: GenerationRequest,
        text_field: str,
        conversation: Conversation | None,
        *,
        has_prompt: bool,
    ) -> Operation:
        """Return the task that executes a generation request, and the writer of the response.

        Without a prompt, the task loads the model.

        Args:
            generation: the generation request.
            text_field: the client's field that holds the prompt, for errors.
            conversation: the conversation to render as the prompt; None if the generation request
                has the prompt.
            has_prompt: whether there is a prompt.
        """
        ended_by = None
        if has_prompt:
            task = GenerationTask(
                (generation,),
                conversation=conversation,
                context=RequestContext(use_model_eos=True),
                names={**_FIELD_NAMES, "text": text_field},
                model=self.model,
            )
        else:
            ended_by = "unload" if self.keep_alive in (0, "0", "0s", "0m") else "load"
            context = RequestContext(count_only=True)
            task = GenerationTask((_LOAD,), context=context, model=self.model)
        lines = OllamaLines(self.model, is_chat=text_field == "messages", ended_by=ended_by)
        return task, lines if self.stream else lines.full_response


@frozen(kw_only=True)
class OllamaChatRequest(OllamaRequest):
    """The fields of ``POST /api/chat``, as ``static/openapi.json`` describes them."""

    messages: Sequence[Any] = field(
        default=(), validator=checks.list_of("message", 0, MAX_MESSAGES)
    )
    tools: Sequence[Any] = field(default=(), validator=checks.a_list)


@frozen(kw_only=True)
class OllamaGenerateRequest(OllamaRequest):
    """The fields of ``POST /api/generate``, as ``static/openapi.json`` describes them."""

    prompt: str = field(default="", validator=checks.string)
    system: str = field(default="", validator=checks.string)
    raw: bool = fields.flag()


@frozen(kw_only=True)
class OllamaEmbedRequest:
    """The fields of ``POST /api/embed``, as ``static/openapi.json`` describes them."""

    input: Any
    model: str = model_field()
    truncate: bool = fields.flag()


@frozen(kw_only=True)
class OllamaPromptEmbedRequest:
    """The fields of ``POST /api/embeddings``, as ``static/openapi.json`` describes them."""

    prompt: str = field(validator=checks.string)
    model: str = model_field()


@frozen
class OllamaLines:
    """The lines of one stream, and the response without a stream.

    Args:
        model: the client's name of the model.
        is_chat: whether texts are messages of a chat.
        ended_by: the reason of the end if nothing was generated: "load" or "unload".
    """

    _model: str
    _is_chat: bool
    _ended_by: str | None
    stream_format = wire.JSON_LINES

    def text(self, _sample: int, piece: ContentPart | str) -> bytes:
        """Return the line of a piece of text; tool calls are written completely at the end."""
        match piece:
            case str(text) | ContentPart("text", text):
                return self._line(self._content(text))
            case ContentPart("reasoning", thinking):
                return self._line(self._content(thinking=thinking))
            case _:
                return b""

    def end(self, responses: Responses) -> bytes:
        """Return the line of the tool calls, if any, and the last line."""
        calls = [] if self._ended_by else _calls(responses[0].responses[0])
        lines = self._line(self._content(calls=calls)) if calls else b""
        return lines + self._line(self._content() | self._ending(responses))

    def full_response(self, responses: Responses) -> object:
        """Return the response without a stream."""
        content = self._content()
        if self._ended_by is None:
            completion = responses[0].responses[0]
            content = self._content(completion.text, completion.reasoning, _calls(completion))
        return self._object(content | self._ending(responses))

    def error(self, problem: Problem) -> bytes:
        """Return the line that ends a stream that failed."""
        return wire.line(error(problem))

    def _line(self, members: JsonObject) -> bytes:
        return wire.line(self._object({"done": False, **members}))

    def _object(self, members: JsonObject) -> JsonObject:
        return {"model": self._model, "created_at": _timestamp(time.time()), **members}

    def _content(
        self, text: str = "", thinking: str = "", calls: Sequence[object] = ()
    ) -> JsonObject:
        more: JsonObject = {"thinking": thinking} if thinking else {}
        if not self._is_chat:
            return {"response": text, **more}
        if calls:
            more["tool_calls"] = calls
        return {"message": {"role": "assistant", "content": text, **more}}

    def _ending(self, responses: Responses) -> JsonObject:
        """Return the last fields: the reason of the end, token counts and durations.

        ``done_reason`` is "length" or "stop". ``prompt_eval_count`` and ``eval_count`` are the
        numbers of prompt tokens and of generated tokens. ``total_duration`` and ``eval_duration``
        are both the duration of the whole request, in nanoseconds.
        """
        if self._ended_by is not None:
            return {"done": True, "done_reason": self._ended_by}
        (response,) = responses
        (completion,) = response.responses
        duration_ns = round((response.finished - response.created) * 1e9)
        return {
            "done": True,
            "done_reason": "length" if completion.finish_reason == "length" else "stop",
            "total_duration": duration_ns,
            "prompt_eval_count": response.prompt_tokens,
            "eval_count": completion.generated_tokens,
            "eval_duration": duration_ns,
        }


def _calls(completion: Completion) -> list[JsonObject]:
    """Return the tool calls of a turn whose arguments are a JSON object.

    Calls with other arguments, such as truncated ones, are left out.
    """
    calls: list[JsonObject] = []
    for call in completion.tool_calls:
        arguments = parse_arguments(call.text)
        if arguments is not None:
            function = {"index": len(calls), "name": call.name, "arguments": arguments}
            calls.append({"id": call.id, "function": function})
    return calls


def read_chat(body: object) -> Operation:
    """Check a ``POST /api/chat`` body; return its task and the writer of the response."""
    request = read_lenient(OllamaChatRequest, body, _REFUSED_FIELDS)
    messages = _messages(request.messages)
    return request.operation(
        request.generation(),
        "messages",
        request.conversation(messages, request.tools),
        has_prompt=bool(messages),
    )


def read_generate(body: object) -> Operation:
    """Check a ``POST /api/generate`` body; return its task and the writer of the response."""
    request = read_lenient(OllamaGenerateRequest, body, _REFUSED_FIELDS)
    generation = request.generation(request.prompt if request.raw else "")
    conversation = None
    if not request.raw:
        turns = {"system": request.system, "user": request.prompt}
        messages = [{"role": role, "content": text} for role, text in turns.items() if text]
        conversation = request.conversation(messages)
    return request.operation(generation, "prompt", conversation, has_prompt=bool(request.prompt))


def read_embed(body: object) -> Operation:
    """Check a ``POST /api/embed`` body; return its task and the writer of the response."""
    request = read_lenient(OllamaEmbedRequest, body, ["dimensions"])
    texts = [request.input] if isinstance(request.input, str) else request.input
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        raise InvalidRequestError.must_be("input", "a string or a list of strings", request.input)

    def write_body(embeddings: Embeddings) -> object:
        return {
            "model": request.model,
            "embeddings": embeddings.vectors.tolist(),
            "prompt_eval_count": int(embeddings.n_tokens.sum()),
        }

    long_texts: LongTexts = "truncate" if request.truncate else "refuse"
    return EmbeddingTask(
        texts, path="input", model=request.model, long_texts=long_texts
    ), write_body


def read_prompt_embed(body: object) -> Operation:
    """Check a ``POST /api/embeddings`` body; return its task and the writer of the response.

    This is Ollama's old API, for one text.
    """
    request = read_lenient(OllamaPromptEmbedRequest, body)
    task = EmbeddingTask([request.prompt], path="prompt", model=request.model)
    return task, lambda embeddings: {"embedding": embeddings.vectors[0].tolist()}


def read_show(body: object) -> Operation:
    """Check a ``POST /api/show`` body; return the model's name and the writer of the response.

    Older clients send the model's name in the field ``name``.
    """
    if isinstance(body, dict) and "model" not in body:
        body = {**body, "model": body.get("name")}
    return read_lenient(OllamaShowRequest, body).model, _show


def _show(model: ModelDetails) -> object:
    metadata = dict(model.metadata)
    template = metadata.pop("tokenizer.chat_template", "")
    capabilities = ["embedding"]
    if model.task == "generate":
        capabilities = ["completion", *(["tools"] if template else [])]
        if "enable_thinking" in template or "reasoning" in template:
            capabilities.append("thinking")
    if model.n_ctx is not None:
        metadata[f"{model.architecture}.context_length"] = model.n_ctx
    return {
        "modelfile": "",
        "parameters": "",
        "template": template,
        "license": metadata.get("general.license", ""),
        "modified_at": _timestamp(model.modified_ns / 1e9),
        "details": _details(model),
        "model_info": metadata,
        "capabilities": capabilities,
    }


def list_models(models: Sequence[ModelDetails]) -> object:
    """Return the response to ``GET /api/tags``."""
    return {"models": [_list_entry(model) for model in models]}


def list_running_models(models: Sequence[ModelDetails]) -> object:
    """Return the response to ``GET /api/ps``."""
    never = datetime.max.replace(microsecond=0).isoformat() + "Z"
    return {
        "models": [
            {
                **_list_entry(model),
                "expires_at": never,
                "size_vram": 0,
                "context_length": model.n_ctx or 0,
            }
            for model in models
        ]
    }


def error(problem: Problem) -> JsonObject:
    """Return the body of an error: the message as the string ``error``, which clients read.

    If the model has no chat template, the message suggests ``/api/generate`` with ``raw``.
    """
    remedy = "; /api/generate with raw takes a text without a template"
    return {"error": problem.message + (remedy if problem.field == "chat_template" else "")}


def _list_entry(model: ModelDetails) -> JsonObject:
    identity = f"{model.name} {model.n_bytes} {model.modified_ns}"
    return {
        "name": model.name,
        "model": model.name,
        "modified_at": _timestamp(model.modified_ns / 1e9),
        "size": model.n_bytes,
        "digest": hashlib.sha256(identity.encode()).hexdigest(),
        "details": _details(model),
    }


def _details(model: ModelDetails) -> JsonObject:
    file_type = model.metadata.get("general.file_type", -1)
    return {
        "parent_model": "",
        "format": "gguf",
        "family": model.architecture,
        "families": [model.architecture],
        "parameter_size": model.metadata.get("general.size_label", ""),
        "quantization_level": _QUANTIZATIONS.get(file_type, "unknown"),
    }


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat().replace("+00:00", "Z")


def _messages(values: Sequence[Any]) -> list[JsonObject]:
    """Return the messages of a request in the format for chat templates.

    Clients of Ollama send no ids of tool calls. Therefore the n-th tool result of the request is
    assigned to its n-th tool call.
    """
    messages = [_message(value, f"messages[{index}]") for index, value in enumerate(values)]
    call_ids = map("call{}".format, itertools.count())
    result_ids = map("call{}".format, itertools.count())
    for message in messages:
        if "tool_calls" in message:
            message["tool_calls"] = [
                {"id": next(call_ids), **call, "type": "function"} for call in message["tool_calls"]
            ]
        if message["role"] == "tool":
            call_id = next(result_ids)
            message.setdefault("tool_call_id", call_id)
    return messages


def _message(message: Any, path: str) -> JsonObject:
    """Return a message, which was sent in the field `path`, in the format for chat templates."""
    a_message.check(path, message)
    role = message.get("role")
    content = message.get("content") or ""
    if not isinstance(role, str) or role not in _MESSAGE_FIELDS:
        allowed = "system, user, assistant or tool"
        raise InvalidRequestError.must_be(f"{path}.role", allowed, role)
    checks.string.check(f"{path}.content", content)
    if message.get("images"):
        rule = "is not supported by this server: the model reads only text"
        raise InvalidRequestError(rule, f"{path}.images", remedy="leave it out")
    turn: JsonObject = {"role": role, "content": content}
    for name, turn_name in _MESSAGE_FIELDS[role].items():
        if message.get(name):
            turn[turn_name] = message[name]
    check_calls(turn, path)
    return turn
