"""Requests as a queue holds them: all values that a worker needs, in this process or elsewhere."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import IntEnum
from typing import Any, TypeAlias, TypedDict

import attrs
from attrs import frozen

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.output_parsing.output_parser import OutputFormat
from relevance_gen.types import GenerationRequest

Request: TypeAlias = str | GenerationRequest | Mapping[str, Any]
"""A text to continue, a request, or a mapping of its fields."""

MAX_STOP_CHARACTERS = 1 << 16
"""Maximum number of characters in all stop strings of a request, because compiling them takes
memory."""
MAX_EOS_TOKENS = 1 << 12
MAX_ALLOWED_TOKENS = 1 << 16
MAX_RESPONSE_TOP_LOGPROBS = 1 << 20
"""Maximum number of top log probabilities in a response, which is in memory until it is
complete."""
GRAMMAR_FIELDS = ("json_schema", "regex", "grammar", "choice")
"""Request fields that constrain the text of samples; at most one field per request is set."""
MAX_GRAMMAR_CHARACTERS = 1 << 18
"""Maximum number of characters in a JSON schema, a regular expression, a grammar, or all choices
together."""
MAX_CHOICES = 1 << 12
"""Maximum number of choices, because the first token is sampled only after all of them are
compiled."""

ANONYMOUS = ""
"""Client of all requests without an API key. All anonymous clients count as one client."""


class RequestPriority(IntEnum):
    """Priority of a request for everything that requests share: the lowest value goes first."""

    AUTHENTICATED = 0
    """Requests of clients with an API key, and of the process that owns the queue."""
    ANONYMOUS = 1


def priority_of(client: str | None) -> RequestPriority:
    """Return the priority of a client's requests; `client` is as `RequestContext.client`."""
    return RequestPriority.ANONYMOUS if client == ANONYMOUS else RequestPriority.AUTHENTICATED


@frozen
class RequestContext:
    """Request options set by the calling code rather than by the client that sent the request.

    Args:
        is_chat: whether the text is a conversation that `Runner.render_chat` has rendered.
        use_model_eos: whether the EOS tokens of the model end a sample, in addition to
            ``eos_token_ids``.
        return_token_texts: whether the response has ``token_texts``.
        prompt: token ids to continue in place of the request's text; empty to use the text.
        prefill_only: whether samples end before their first token, because only the prompt's log
            probabilities are used.
        count_only: whether only the prompt's tokens are counted, without any sample.
        output_format: format of the model's turns, which are parsed into `ContentPart` values;
            ``None`` returns them as plain text.
        client: id of the client, or `ANONYMOUS`; ``None`` for requests of this process itself.
    """

    is_chat: bool = False
    use_model_eos: bool = False
    return_token_texts: bool = False
    prompt: tuple[int, ...] = ()
    prefill_only: bool = False
    count_only: bool = False
    output_format: OutputFormat | None = None
    client: str | None = None

    @property
    def priority(self) -> RequestPriority:
        """Priority of the request; anonymous requests come last."""
        return priority_of(self.client)


DEFAULT_CONTEXT = RequestContext()
"""Default options."""


@frozen
class QueuedRequest:
    """A request that a queue has accepted.

    It can be pickled, and refers to no future and no engine.

    Args:
        id: number in order of arrival, unique in its queue.
        request: sampling parameters and text.
        seed: the seed that the request contains, otherwise a random seed. The seed is chosen before
            a worker takes the request, so that every worker would generate the same samples.
        created: Unix time in seconds at which the request was accepted.
        context: options set by the calling code.
    """

    id: int
    request: GenerationRequest
    seed: int
    created: float
    context: RequestContext = DEFAULT_CONTEXT


@frozen
class Capacity:
    """How many more requests a worker accepts, by priority.

    Args:
        n_requests: for each priority, the number of requests that can start now. Requests of
            authenticated clients can preempt anonymous requests, so their number includes the slots
            of anonymous requests.
        n_retained_prompts: for each priority, how many of these requests may ask for several
            samples. At the limit, such a request is still accepted if its
            client has no other one.
    """

    n_requests: Mapping[RequestPriority, int]
    n_retained_prompts: Mapping[RequestPriority, int]

    @property
    def is_empty(self) -> bool:
        """Whether no request of any priority can start."""
        return max(self.n_requests.values()) < 1

    def accepts(self, priority: RequestPriority) -> bool:
        """Return whether a request of this priority can start now."""
        return self.n_requests[priority] > 0

    def after(self, requests: Iterable[QueuedRequest]) -> Capacity:
        """Return the capacity that is left after a worker takes `requests`.

        Anonymous requests do not reduce the capacity for authenticated requests.
        """
        n_taken = Counter(request.context.priority for request in requests)
        n_requests = {}
        n_ahead = 0
        for priority in RequestPriority:
            n_ahead += n_taken[priority]
            n_requests[priority] = max(0, self.n_requests[priority] - n_ahead)
        return attrs.evolve(self, n_requests=n_requests)


_NONE = dict.fromkeys(RequestPriority, 0)
NO_CAPACITY = Capacity(_NONE, _NONE)


class RequestFields(TypedDict, total=False):
    """Types of the fields of a `GenerationRequest`, for code that passes them by keyword."""

    text: str
    max_tokens: int
    min_tokens: int
    eos_token_ids: Sequence[int]
    max_input_tokens: int
    num_samples: int
    stop: str | Sequence[str]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    presence_penalty: float
    frequency_penalty: float
    repetition_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Sequence[int]
    json_schema: Mapping[str, Any] | str | type | None
    regex: str | None
    grammar: str | None
    choice: Sequence[str] | None
    logprobs: bool
    top_logprobs: int
    prompt_logprobs: bool
    return_tokens: bool
    seed: int | None


def as_request(request: object, fields: Mapping[str, Any]) -> GenerationRequest:
    """Build a request from a text, a request or a mapping, and `fields`, which override its own.

    Raises:
        InvalidRequestError: `request` is of another type, or a field is wrong.
    """
    if isinstance(request, GenerationRequest):
        if not fields:
            return request
        request = attrs.asdict(request, recurse=False)
    if isinstance(request, str):
        request = {"text": request}
    if not isinstance(request, Mapping | None):
        raise InvalidRequestError.must_be(
            "request", "a text, a GenerationRequest or a mapping of its fields", request
        )
    return wire.structure(GenerationRequest, {**(request or {}), **fields})


def check_bounds(request: GenerationRequest) -> None:
    """Refuse a request that would take an unreasonable amount of a worker's time and memory.

    Checked are the sizes of the stop strings, of the lists of EOS tokens and allowed tokens, and of
    the JSON schema, regular expression, grammar or choices.

    Raises:
        InvalidRequestError: a field is too long, or the JSON schema, the regular expression, the
            grammar or a choice cannot be encoded.
    """
    if sum(map(len, request.stop)) > MAX_STOP_CHARACTERS:
        rule = f"must hold at most {MAX_STOP_CHARACTERS:,} characters altogether"
        raise InvalidRequestError(rule, "stop")
    _check_token_ids("eos_token_ids", request.eos_token_ids, MAX_EOS_TOKENS)
    _check_token_ids("allowed_token_ids", request.allowed_token_ids, MAX_ALLOWED_TOKENS)
    for name in GRAMMAR_FIELDS:
        value = getattr(request, name)
        if value is not None:
            _check_grammar(name, value)


def has_grammar(request: GenerationRequest) -> bool:
    """Return whether the request has a JSON schema, a regular expression, a grammar or choices.

    These must be compiled before the request can start.
    """
    return any(getattr(request, name) is not None for name in GRAMMAR_FIELDS)


def _check_token_ids(name: str, token_ids: Sequence[int], max_tokens: int) -> None:
    if len(token_ids) > max_tokens:
        allowed = f"a list of at most {max_tokens:,} tokens"
        raise InvalidRequestError.must_be(name, allowed, token_ids)


def _check_grammar(
    name: str,
    value: str | Mapping[str, Any] | tuple[str, ...],
) -> None:
    if isinstance(value, tuple) and len(value) > MAX_CHOICES:
        rule = f"must hold at most {MAX_CHOICES:,} texts"
        raise InvalidRequestError(rule, name, str(len(value)))
    try:
        text = json.dumps(value) if isinstance(value, Mapping) else "".join(value)
        text.encode(errors="replace" if isinstance(value, tuple) else "strict")
    except (TypeError, ValueError, RecursionError) as error:
        allowed = "text without lone surrogates" if isinstance(value, str) else "JSON"
        raise InvalidRequestError(f"must be {allowed}: {error}", name) from None
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequestError(f"must hold at most {MAX_GRAMMAR_CHARACTERS:,} characters", name)
