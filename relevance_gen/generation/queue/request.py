"""The caller's half of a request: all that a worker needs to serve it, wherever that worker runs."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeAlias, TypedDict

import attrs
from attrs import field, frozen

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.output_parsing.output_parser import OutputFormat
from relevance_gen.types import GenerationRequest, GenerationResponse

Request: TypeAlias = str | GenerationRequest | Mapping[str, Any]
"""A text to continue, a request, or a mapping of its fields."""

MAX_STOP_CHARACTERS = 1 << 16
"""All stop strings of a request together: enough for any use, and little to compile."""
MAX_END_TOKENS = 1 << 12
MAX_ALLOWED_TOKENS = 1 << 16
MAX_RESPONSE_TOP_LOGPROBS = 1 << 20
"""Of all tokens of a response, which holds them until it is complete."""
_NO_FIELDS: Mapping[str, Any] = {}
GRAMMAR_FIELDS = ("json_schema", "regex", "grammar", "choice")
"""The fields that say what samples must be; of a request, one at most is set."""
MAX_GRAMMAR_CHARACTERS = 1 << 18
"""Of a schema written as JSON, a regular expression, a grammar, or all texts to choose from."""
MAX_CHOICES = 1 << 12
"""Texts to choose from: all of them are looked at before the first token is drawn."""


ANONYMOUS = ""
"""The client of all requests of which nobody knows who asks."""


@frozen
class RequestContext:
    """What a generation is told beside its request: by whoever makes the request, not by whoever wrote its fields.

    Args:
        is_chat: whether its text is a conversation that `Runner.write_chat` has written.
        stops_itself: whether the model's own end tokens end a sample too, beside ``eos_token_ids``.
        spells: whether the response is to say in ``token_texts`` how its tokens are written.
        prompt: the tokens to continue, in place of the request's text; none where that is meant.
        only_reads: whether samples end before their first token, where what the model says of the prompt is wanted.
        only_counts: whether only the number of its prompt's tokens is wanted, and no sample.
        output_format: how its turns are written, where it is a conversation whose turns are to be read, and told as `ContentPart`.
        client: who asks, where this process serves others: a name, or `ANONYMOUS`; ``None`` for this process itself.
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
    def is_anonymous(self) -> bool:
        """Whether nobody knows who asks. Everybody else comes first, wherever something is shared."""
        return self.client == ANONYMOUS


DEFAULT_CONTEXT = RequestContext()
"""Of a request that is told nothing."""


@frozen
class QueuedRequest:
    """A request that was accepted. It can be pickled, and knows neither its caller nor an engine.

    Args:
        id: its number in order of arrival, unique in its backlog; two tickets are the same if their ids are.
        request: what was asked for.
        seed: the request's, or a fresh one: whoever serves the ticket draws the same samples.
        created: Unix time in seconds when it was accepted.
        context: what it was told beside the request.
    """

    id: int
    request: GenerationRequest = field(eq=False)
    seed: int = field(eq=False)
    created: float = field(eq=False)
    context: RequestContext = field(default=DEFAULT_CONTEXT, eq=False)


@frozen
class Capacity:
    """How many further tickets a worker can begin with.

    Of these, `n_to_hold` may ask for several samples, unless one is its client's only one; ``None`` is no limit.
    """

    n_tickets: int = 0
    n_to_hold: int | None = None


Rooms: TypeAlias = Mapping[bool, Capacity]
"""The room for strangers, under True, and for all others: for these it is larger, as strangers give way to them."""
NO_ROOMS: Rooms = {True: Capacity(), False: Capacity()}


class Reports(Protocol):
    """Who is told what becomes of tickets. It raises nothing, and ignores tickets that were dropped."""

    def started(self, ticket: QueuedRequest, n_samples: int) -> None:
        """Take note that `n_samples` more samples have produced a token."""

    def text(self, ticket: QueuedRequest, sample: int, text: str) -> None:
        """Take a piece of a sample's text; not empty."""

    def done(self, ticket: QueuedRequest, outcome: GenerationResponse | BaseException) -> None:
        """Take the response, or why there is none."""


class RequestFields(TypedDict, total=False):
    """The types of the fields of a `GenerationRequest`, for type checkers of code that passes them by keyword."""

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


def as_request(request: object, fields: Mapping[str, Any] = _NO_FIELDS) -> GenerationRequest:
    """Make a request of a text or a mapping of fields, and of `fields` beside it, which go before its own.

    It raises an `InvalidRequestError` where it is none of these, or a field is wrong.
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
    """Refuse a request that would take more of a worker's time and memory than any use needs."""
    if sum(map(len, request.stop)) > MAX_STOP_CHARACTERS:
        raise InvalidRequestError(
            f"must hold at most {MAX_STOP_CHARACTERS:,} characters altogether", "stop"
        )
    for name, most in (
        ("eos_token_ids", MAX_END_TOKENS),
        ("allowed_token_ids", MAX_ALLOWED_TOKENS),
    ):
        if len(tokens := getattr(request, name)) > most:
            raise InvalidRequestError.must_be(name, f"a list of at most {most:,} tokens", tokens)
    for name in GRAMMAR_FIELDS:
        if (value := getattr(request, name)) is not None:
            _check_grammar(name, value)


def has_grammar(request: GenerationRequest) -> bool:
    """Tell whether something has to be compiled before the request can be served."""
    return any(getattr(request, name) is not None for name in GRAMMAR_FIELDS)


def _check_grammar(name: str, value: str | Mapping[str, Any] | tuple[str, ...]) -> None:
    if isinstance(value, tuple) and len(value) > MAX_CHOICES:
        raise InvalidRequestError(f"must hold at most {MAX_CHOICES:,} texts", name, str(len(value)))
    try:
        text = json.dumps(value) if isinstance(value, Mapping) else "".join(value)
        text.encode(errors="replace" if isinstance(value, tuple) else "strict")
    except (TypeError, ValueError, RecursionError) as error:
        allowed = "text without lone surrogates" if isinstance(value, str) else "JSON"
        raise InvalidRequestError(f"must be {allowed}: {error}", name) from None
    if len(text) > MAX_GRAMMAR_CHARACTERS:
        raise InvalidRequestError(f"must hold at most {MAX_GRAMMAR_CHARACTERS:,} characters", name)
