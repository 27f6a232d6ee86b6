"""``POST /v1/completions``: the continuation of a prompt, or of several."""

from __future__ import annotations

import codecs
import copy
import uuid
from collections.abc import Iterable, Sequence
from typing import Any

import attrs
from attrs import frozen

from relevance_gen import checks, fields
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.queue.request import (
    MAX_RESPONSE_TOP_LOGPROBS,
    MAX_STOP_CHARACTERS,
    RequestContext,
)
from relevance_gen.serve.adapters.openai import requests
from relevance_gen.serve.adapters.openai.choices import ChoiceEvents, ScoredToken, sample_tokens
from relevance_gen.serve.adapters.openai.requests import EMPTY, SamplingRequest, read_as
from relevance_gen.serve.adapters.shared import Operation
from relevance_gen.serve.services.generation import GenerationTask
from relevance_gen.types import (
    MAX_SAMPLES,
    Completion,
    GenerationRequest,
    GenerationResponse,
    TokenLogprob,
    TokenTexts,
)
from relevance_gen.wire import JsonObject

_MAX_ECHO_CHARS = 1 << 20
"""Maximum characters of echoed prompts: the response repeats a prompt for each of its samples."""
_REFUSED = {
    **requests.REFUSED,
    "add_special_tokens": (True,),
    "suffix": EMPTY,
    "tools": EMPTY,
}
_FIELD_NAMES = {"text": "prompt", "num_samples": "n", "top_logprobs": "logprobs"}
"""Fields of `GenerationRequest` to the client's names of them."""


@frozen(kw_only=True)
class CompletionRequest(SamplingRequest):
    """The fields of a completion request, as ``static/openapi.json`` describes them."""

    prompt: Any
    max_tokens: int = fields.integer(0, default=16)
    max_completion_tokens: int | None = fields.optional(checks.integer(0))
    logprobs: int | None = None
    echo: bool = fields.flag()
    best_of: int | None = fields.optional(checks.integer(1))

    @property
    def max_new_tokens(self) -> int:
        """The maximum number of tokens to generate for each sample."""
        if self.max_completion_tokens is None:
            return self.max_tokens
        return self.max_completion_tokens


def read(body: object) -> Operation:
    """Check a ``POST /v1/completions`` body; return its task and the writer of the response."""
    request = read_as(CompletionRequest, body, _REFUSED)
    names = _FIELD_NAMES | request.schema_names
    prompts = _prompts(request)
    are_tokens = isinstance(prompts[0], list)
    _check_options(request, prompts)
    max_tokens = request.max_new_tokens
    generation = attrs.evolve(
        request.generation(max(1, max_tokens), request.logprobs, names),
        prompt_logprobs=request.echo and request.logprobs is not None,
    )
    _check_size(request, prompts, generation)
    task = GenerationTask(
        tuple(generation if are_tokens else _with_prompt(generation, text) for text in prompts),
        tuple(map(tuple, prompts)) if are_tokens else (),
        context=RequestContext(
            use_model_eos=not request.ignore_eos,
            return_token_texts=request.logprobs is not None or (request.echo and are_tokens),
            prefill_only=max_tokens == 0,
        ),
        names=names,
        echoes=request.echo,
        model=request.model,
    )
    events = _CompletionEvents(request, prompts)
    return task, events if request.stream else events.full_response


def _prompts(request: CompletionRequest) -> list[Any]:
    """Return the prompts of a request, checked: all are texts, or all are lists of tokens."""
    prompt = request.prompt
    is_tokens = isinstance(prompt, list) and prompt != [] and checks.is_integer(prompt[0])
    is_single = isinstance(prompt, str) or is_tokens
    prompts = [prompt] if is_single else prompt
    if not isinstance(prompts, list) or not prompts:
        allowed = "a string, a list of tokens, or a list of at least one of these"
        raise InvalidRequestError.must_be("prompt", allowed, prompts)
    for index, item in enumerate(prompts):
        path = "prompt" if is_single else f"prompt[{index}]"
        if not isinstance(prompts[0], str):
            _check_tokens(path, item)
        elif not isinstance(item, str):
            raise InvalidRequestError.must_be(path, "a string, like the first prompt", item)
    if len(prompts) * request.n > MAX_SAMPLES:
        allowed = f"a list of at most {MAX_SAMPLES // request.n} prompts with n = {request.n}"
        raise InvalidRequestError.must_be("prompt", allowed, prompts)
    return prompts


def _check_tokens(path: str, prompt: object) -> None:
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequestError.must_be(path, "a list of at least one token", prompt)
    for index, token in enumerate(prompt):
        if not checks.is_integer(token) or not 0 <= token < checks.MAX_TOKEN_IDS:
            raise InvalidRequestError.must_be(f"{path}[{index}]", "the id of a token", token)


def _check_options(request: CompletionRequest, prompts: Sequence[Any]) -> None:
    if request.best_of is not None and request.best_of > request.n:
        allowed = f"at most n ({request.n}): this server does not select among samples"
        raise InvalidRequestError.must_be("best_of", allowed, request.best_of)
    if not request.echo:
        return
    allowed = ""
    if request.n * sum(map(len, prompts)) > _MAX_ECHO_CHARS:
        allowed = f"False if n × the characters of all prompts exceeds {_MAX_ECHO_CHARS:,}"
    elif request.stream and not isinstance(prompts[0], str):
        allowed = "False in a stream if the prompt is a list of tokens"
    if allowed:
        raise InvalidRequestError.must_be("echo", allowed, request.echo)


def _check_size(
    request: CompletionRequest, prompts: Sequence[Any], generation: GenerationRequest
) -> None:
    """Check the total size of the stop strings and the total number of top log probabilities.

    The stop strings are compiled for each prompt, so that their limit applies to all prompts
    together. The number of top log probabilities is checked only for several prompts; for a single
    prompt the engine checks it.

    Raises:
        InvalidRequestError: the stop strings are too long, or there are too many top log
            probabilities.
    """
    n_prompts = len(prompts)
    if n_prompts * sum(map(len, generation.stop)) > MAX_STOP_CHARACTERS:
        max_chars = MAX_STOP_CHARACTERS // n_prompts
        rule = f"must hold at most {max_chars:,} characters for {n_prompts} prompts"
        raise InvalidRequestError(rule, "stop")
    n_tokens = n_prompts * request.max_new_tokens
    if generation.prompt_logprobs:
        n_tokens += sum(map(len, prompts))
    n_tokens *= request.n
    if n_prompts > 1 and n_tokens * generation.top_logprobs > MAX_RESPONSE_TOP_LOGPROBS:
        n_allowed = MAX_RESPONSE_TOP_LOGPROBS // n_tokens
        allowed = f"at most {n_allowed} for {n_tokens:,} tokens in all samples"
        raise InvalidRequestError.must_be("logprobs", allowed, request.logprobs)


def _with_prompt(request: GenerationRequest, prompt: str) -> GenerationRequest:
    """Return the same request for another prompt, without checking its other fields again."""
    request = copy.copy(request)
    object.__setattr__(request, "text", prompt)
    return request


def _prompt_text(response: GenerationResponse) -> str:
    """Return the text of the prompt of a response; of a prompt of tokens, the tokens' text."""
    if response.prompt or response.token_texts is None:
        return response.prompt
    pieces = [response.token_texts.pieces[token] for token in response.token_texts.prompt]
    return b"".join(pieces).decode(errors="replace")


class _CompletionEvents(ChoiceEvents):
    """The events of one stream, or the response as one object.

    If the request has ``echo``, its `prompts` are sent before their samples.
    """

    def __init__(self, request: CompletionRequest, prompts: Sequence[Any]) -> None:
        identity = {
            "id": f"cmpl-{uuid.uuid4().hex}",
            "object": "text_completion",
            "model": request.model,
        }
        super().__init__(identity, request, len(prompts) * request.n)
        self._request = request
        self._prompts = prompts

    def _first(self, sample: int, _piece: object) -> JsonObject | None:
        prompt = self._prompts[sample // self._request.n]
        return {"text": prompt} if self._request.echo else None

    def _piece(self, _sample: int, piece: str) -> JsonObject:
        return {"text": piece}

    def _last(self, _completion: Completion) -> JsonObject:
        return {"text": ""}

    def _choice(self, completion: Completion, response: GenerationResponse) -> JsonObject:
        prompt = _prompt_text(response) if self._request.echo else ""
        return {"text": prompt + completion.text}

    def _logprobs(self, completion: Completion, response: GenerationResponse) -> JsonObject | None:
        if response.token_texts is None or self._request.logprobs is None:
            return None
        return completion_logprobs(completion, response.token_texts, response.prompt_logprobs or ())


def completion_logprobs(
    completion: Completion, token_texts: TokenTexts, prompt_logprobs: Sequence[float | None]
) -> JsonObject:
    """Return a sample's log probabilities in the format of completions.

    If `prompt_logprobs` are given, the prompt's tokens come first, and the sample's end-of-sequence
    token is included, so that clients that score prompts can count from the end.

    Returns:
        Lists with an element for each token: ``tokens``, the texts; ``token_logprobs``, the log
        probabilities; ``top_logprobs``, the log probabilities of the most likely tokens by their
        texts; and ``text_offset``, the positions in the text. ``top_logprobs`` is None if they were
        not requested.
    """
    n_prompt = len(token_texts.prompt)
    prompt_alternatives = [None, *(token_texts.prompt_top_logprobs or (None,) * n_prompt)]
    tokens = list(map(ScoredToken, token_texts.prompt, prompt_logprobs, prompt_alternatives))
    tokens += sample_tokens(completion, token_texts, with_end=bool(prompt_logprobs))
    top_logprobs = None
    if completion.top_logprobs is not None:
        top_logprobs = [_logprobs_by_text(scored.alternatives, token_texts) for scored in tokens]
    return {
        "tokens": [_token_text(token_texts.pieces[scored.token]) for scored in tokens],
        "token_logprobs": [scored.logprob for scored in tokens],
        "top_logprobs": top_logprobs,
        "text_offset": _offsets(token_texts.pieces[scored.token] for scored in tokens),
    }


def _token_text(piece: bytes) -> str:
    r"""Return the text of a token; for a part of a character ``bytes:\x…``, as OpenAI does."""
    try:
        return piece.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)


def _logprobs_by_text(
    alternatives: Sequence[TokenLogprob] | None, token_texts: TokenTexts
) -> dict[str, float] | None:
    """Return the log probability of each alternative token by its text.

    Of alternatives with equal texts, the log probability of the most likely is returned. The result
    is None if `alternatives` is None.
    """
    if alternatives is None:
        return None
    logprobs: dict[str, float] = {}
    for alternative in alternatives:  # the most likely first
        logprobs.setdefault(_token_text(token_texts.pieces[alternative.token]), alternative.logprob)
    return logprobs


def _offsets(pieces: Iterable[bytes]) -> list[int]:
    """Return the position of each piece in the text, in characters.

    A piece that begins inside a character has that character's position.
    """
    decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
    offsets = []
    n_chars = 0
    for piece in pieces:
        offsets.append(n_chars)
        n_chars += len(decoder.decode(piece))
    return offsets
