"""``POST /v1/completions``: the continuation of one text, or of several."""

from __future__ import annotations

import copy
import uuid
from collections.abc import Callable
from typing import Any

import attrs
from attrs import field, frozen
from attrs.validators import optional

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.queue.request import (
    MAX_RESPONSE_TOP_LOGPROBS,
    MAX_STOP_CHARACTERS,
    RequestContext,
)
from relevance_gen.serve.adapters.openai import requests
from relevance_gen.serve.adapters.openai.events import CompletionEvents
from relevance_gen.serve.adapters.openai.requests import (
    SamplingRequest,
    is_empty,
    names_in,
    read_as,
    unless,
)
from relevance_gen.serve.adapters.openai.tokens import FINISH_REASONS, completion_logprobs, usage
from relevance_gen.serve.services.generation import GenerationTask, Responses
from relevance_gen.types import MAX_SAMPLES, Completion, GenerationRequest, GenerationResponse

_MAX_ECHOED_CHARACTERS = 1 << 20
"""Of all prompts that stand before samples: an answer repeats a prompt for each of its samples."""
_REFUSED = {
    **requests.REFUSED,
    **unless(is_empty, "suffix tools"),
    "add_special_tokens": lambda v: v is True,
}
_NAMES = {"text": "prompt", "num_samples": "n", "top_logprobs": "logprobs"}


@frozen(kw_only=True)
class CompletionRequest(SamplingRequest):
    """The fields that are read, as ``static/openapi.json`` describes them."""

    prompt: Any
    max_tokens: int = field(default=16, validator=checks.integer(0))
    max_completion_tokens: int | None = field(default=None, validator=optional(checks.integer(0)))
    logprobs: int | None = field(default=None, validator=optional(requests.top_logprobs))
    echo: bool = field(default=False, validator=checks.flag)
    best_of: int | None = field(default=None, validator=optional(checks.integer(1)))


def read(body: object) -> tuple[GenerationTask, Callable[[Responses], object] | CompletionEvents]:
    """Read the body of ``POST /v1/completions``."""
    request = read_as(CompletionRequest, body, _REFUSED)
    prompts = _prompts(request)
    max_tokens = (
        request.max_tokens
        if request.max_completion_tokens is None
        else request.max_completion_tokens
    )
    if request.best_of is not None and request.best_of > request.n:
        raise InvalidRequestError.must_be(
            "best_of", f"at most n ({request.n}), as no choice is made", request.best_of
        )
    if request.echo and request.n * sum(map(len, prompts)) > _MAX_ECHOED_CHARACTERS:
        allowed = (
            f"false where n times the characters of all prompts is above {_MAX_ECHOED_CHARACTERS:,}"
        )
        raise InvalidRequestError.must_be("echo", allowed, request.echo)
    are_tokens, names = not isinstance(prompts[0], str), _NAMES | names_in(body)
    if are_tokens and request.echo and request.stream:
        raise InvalidRequestError.must_be("echo", "false in a stream behind tokens", request.echo)
    wants_prompt = request.echo and request.logprobs is not None
    text = "" if are_tokens else prompts[0]
    first = request.generation(text, max(1, max_tokens), request.logprobs, names)
    first = attrs.evolve(first, prompt_logprobs=wants_prompt)
    if (
        len(prompts) * sum(map(len, first.stop)) > MAX_STOP_CHARACTERS
    ):  # they are compiled for each prompt
        most = MAX_STOP_CHARACTERS // len(prompts)
        raise InvalidRequestError(
            f"must hold at most {most:,} characters for so many prompts", "stop"
        )
    n_tokens = request.n * (len(prompts) * max_tokens + wants_prompt * sum(map(len, prompts)))
    if (
        len(prompts) > 1 and n_tokens * first.top_logprobs > MAX_RESPONSE_TOP_LOGPROBS
    ):  # of one, the engine knows its room
        allowed = f"at most {MAX_RESPONSE_TOP_LOGPROBS // n_tokens} for {n_tokens:,} tokens in all samples"
        raise InvalidRequestError.must_be("logprobs", allowed, request.logprobs)
    context = RequestContext(
        use_model_eos=not request.ignore_eos,
        return_token_texts=request.logprobs is not None or (request.echo and are_tokens),
        prefill_only=not max_tokens,
    )
    generations = (
        (first,) * len(prompts)
        if are_tokens
        else tuple(_for_another(first, prompt) for prompt in prompts)
    )
    tokens = tuple(map(tuple, prompts)) * are_tokens
    task = GenerationTask(
        generations, tokens, context=context, names=names, echoes=request.echo, model=request.model
    )
    return task, _presenter(request, prompts)


def _prompts(request: CompletionRequest) -> list[Any]:
    """Return the prompts, which are all strings or all lists of tokens."""
    given = request.prompt
    is_one = isinstance(given, str) or (
        isinstance(given, list) and len(given) > 0 and checks.is_integer(given[0])
    )
    prompts = [given] if is_one else given
    if not isinstance(prompts, list) or not prompts:
        allowed = "a string, a list of tokens, or a list of at least one of these"
        raise InvalidRequestError.must_be("prompt", allowed, prompts)
    for place, prompt in enumerate(prompts):
        path = "prompt" if is_one else f"prompt[{place}]"
        if not isinstance(prompts[0], str):
            _check_tokens(path, prompt)
        elif not isinstance(prompt, str):
            raise InvalidRequestError.must_be(path, "a string, as the first is", prompt)
    if len(prompts) * request.n > MAX_SAMPLES:
        allowed = f"a list of at most {MAX_SAMPLES // request.n} prompts with n = {request.n}"
        raise InvalidRequestError.must_be("prompt", allowed, prompts)
    return prompts


def _check_tokens(path: str, prompt: object) -> None:
    if not isinstance(prompt, list) or not prompt:
        raise InvalidRequestError.must_be(path, "a list of at least one token", prompt)
    for place, token in enumerate(prompt):
        if not checks.is_integer(token) or not 0 <= token < checks.MAX_TOKEN_IDS:
            raise InvalidRequestError.must_be(f"{path}[{place}]", "the id of a token", token)


def _written(response: GenerationResponse) -> str:
    if response.prompt or response.token_texts is None:
        return response.prompt
    return b"".join(
        response.token_texts.pieces[token] for token in response.token_texts.prompt
    ).decode(errors="replace")


def _for_another(request: GenerationRequest, prompt: str) -> GenerationRequest:
    """Return the same request for another prompt, without checking its other fields for each prompt again."""
    another = copy.copy(request)
    object.__setattr__(another, "text", prompt)
    return another


def _presenter(
    request: CompletionRequest, prompts: list[str]
) -> Callable[[Responses], object] | CompletionEvents:
    head = {"id": f"cmpl-{uuid.uuid4().hex}", "object": "text_completion", "model": request.model}

    def ending(completion: Completion, response: GenerationResponse) -> dict[str, Any]:
        logprobs = None
        if response.token_texts is not None and request.logprobs is not None:
            logprobs = completion_logprobs(
                completion, response.token_texts, response.prompt_logprobs or ()
            )
        return {"logprobs": logprobs, "finish_reason": FINISH_REASONS[completion.finish_reason]}

    def present(responses: Responses) -> object:
        choices = [
            {
                "text": (_written(response) if request.echo else "") + completion.text,
                **ending(completion, response),
            }
            for response in responses
            for completion in response.responses
        ]
        return {
            **head,
            "created": int(responses[0].created),
            "choices": [{"index": place, **choice} for place, choice in enumerate(choices)],
            "usage": usage(responses),
        }

    if not request.stream:
        return present
    return CompletionEvents(
        head,
        len(prompts) * request.n,
        beginning=lambda sample: {"text": prompts[sample // request.n]} if request.echo else None,
        piece=lambda _, text: {"text": text},
        last=lambda completion, response: {"text": "", **ending(completion, response)},
        includes_usage=request.includes_usage,
        write_error=requests.error,
    )
