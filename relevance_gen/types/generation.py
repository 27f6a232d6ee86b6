"""Requests to generate text, their responses, and the statistics of the generation backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, TypeAlias

from attrs import Attribute, field, fields_dict, frozen
from attrs.validators import optional

from relevance_gen import checks, fields
from relevance_gen.display.responses import GenerationResponseDisplay
from relevance_gen.errors import InvalidRequestError
from relevance_gen.interop import PydanticSerializable
from relevance_gen.types.signatures import with_signature

FinishReason: TypeAlias = Literal["eos", "stop", "length", "tool_calls"]
"""Why a sample ended.

An end-of-sequence token was drawn, a stop string was completed, the limit of tokens was reached, or
a turn of a conversation ended with tool calls.
"""
PartKind: TypeAlias = Literal["text", "reasoning", "tool_call"]

MAX_SAMPLES = 256
"""Maximum number of samples of a request: the number of sequences in one llama.cpp context."""
MAX_TOP_LOGPROBS = 20
MAX_BIASED_TOKENS = 4096

_CONSTRAINTS = ("json_schema", "regex", "grammar", "choice")
"""Fields that constrain the output, and exclude each other."""


def _mutually_exclusive(
    request: GenerationRequest, attribute: Attribute[Any], value: object
) -> None:
    """Validate a field of `_CONSTRAINTS`: with a value, it excludes values of the earlier fields.

    Later fields are not set yet, because attrs sets and validates fields in their order.

    Args:
        request: the request, whose earlier fields are set.
        attribute: the field.
        value: its value; None if it is not given.

    Raises:
        InvalidRequestError: an earlier field of `_CONSTRAINTS` is not None.
    """
    if value is None:
        return
    for name in _CONSTRAINTS[: _CONSTRAINTS.index(attribute.name)]:
        if getattr(request, name) is not None:
            raise InvalidRequestError(f"cannot be combined with {name}", attribute.name)


_token_ids = checks.items(
    # Larger integers could be chosen so that all of them collide as hashes.
    f"an integer in [0, {checks.MAX_TOKEN_IDS - 1}]",
    lambda item: checks.is_integer(item) and 0 <= item < checks.MAX_TOKEN_IDS,
)
_stop_strings = checks.items(
    "a non-empty string", lambda item: isinstance(item, str) and item != ""
)
_non_empty_strings = checks.Rule(
    "a list of at least one string, none of them empty",
    lambda value: (
        isinstance(value, tuple)
        and value != ()
        and all(isinstance(text, str) and text for text in value)
    ),
)


def _at_most_max_tokens(request: GenerationRequest, attribute: Attribute[int], value: int) -> None:
    if value > request.max_tokens:
        raise InvalidRequestError.must_be(
            attribute.name, f"at most max_tokens ({request.max_tokens})", value
        )


@with_signature
@frozen
class GenerationRequest:
    """A request to generate text: the body of ``POST /generate``.

    Sampling applies, in this order: the bias, penalties, temperature, top_k, top_p and min_p. Then
    it draws a token.

    Args:
        text: the prompt; may be empty if the model has a BOS token to start from.
        max_tokens: maximum number of tokens to generate for each sample, at least 1.
        min_tokens: number of tokens at the start of a sample that contain no end-of-sequence token
            and complete no stop string; at most max_tokens.
        eos_token_ids: tokens at which generation stops; the model's own end-of-sequence token does
            not stop it unless it is listed.
        max_input_tokens: truncate the prompt to this many tokens, keeping its end; 0 = no limit.
        num_samples: number of independent samples, in [1, MAX_SAMPLES].
        stop: a non-empty string, or several; generation stops at the first occurrence of a stop
            string, and the output omits this stop string.
        temperature: 0 = greedy; higher is more varied.
        top_k: keep the k most likely tokens; 0 = off.
        top_p: keep the smallest set of tokens whose total probability reaches this value, in [0,
            1].
        min_p: keep tokens at least this fraction as likely as the most likely token, in [0, 1].
        presence_penalty: subtracted once from the logit of each token already generated, in [-2,
            2].
        frequency_penalty: subtracted for each time the token was already generated, in [-2, 2].
        repetition_penalty: divides the logit of each token already generated if it is positive, and
            multiplies it otherwise; above 0, and 1 = off.
        logit_bias: token id to the number added to its logit, in [-100, 100]; at most
            MAX_BIASED_TOKENS tokens.
        allowed_token_ids: draw only these tokens, which also excludes end-of-sequence tokens that
            are not listed; empty = all tokens are allowed.
        json_schema: each sample is JSON that conforms to this schema, which may be written as a
            string, or be a pydantic class. This and the next three fields exclude each other; all
            but ``choice`` need the extra ``constrained``.
        regex: each sample is text that fully matches this regular expression.
        grammar: each sample is text of this context-free grammar, in llguidance's dialect of Lark
            or in GBNF.
        choice: each sample equals a string of this list, regardless of how the string is tokenized;
            at least one string, each non-empty.
        logprobs: return each token's natural log probability under the model's own distribution.
        top_logprobs: return for each token this many most likely tokens at its position, in [0,
            MAX_TOP_LOGPROBS].
        prompt_logprobs: return the log probability of each prompt token.
        return_tokens: return the generated token ids.
        seed: makes the request repeatable; without it every request and every sample differs.
    """

    text: str = field(converter=checks.to_python_scalar, validator=checks.string)
    max_tokens: int = fields.integer(1, default=512)
    min_tokens: int = field(
        default=0,
        converter=checks.to_python_scalar,
        validator=[checks.integer(0), _at_most_max_tokens],
    )
    eos_token_ids: tuple[int, ...] = field(
        default=(), converter=checks.as_tuple, validator=_token_ids
    )
    max_input_tokens: int = fields.integer(0, default=0)
    num_samples: int = fields.integer(1, MAX_SAMPLES, default=1)
    stop: tuple[str, ...] = field(
        default=(),
        converter=checks.as_texts,
        validator=_stop_strings,
    )
    temperature: float = fields.number(0, default=1.0)
    top_k: int = fields.integer(0, default=50)
    top_p: float = fields.number(0, 1, default=1.0)
    min_p: float = fields.number(0, 1, default=0.0)
    presence_penalty: float = fields.number(-2, 2, default=0.0)
    frequency_penalty: float = fields.number(-2, 2, default=0.0)
    repetition_penalty: float = field(
        default=1.0, converter=checks.as_float, validator=checks.above(0)
    )
    logit_bias: Mapping[int, float] = field(
        factory=dict,
        converter=checks.as_token_numbers,
        validator=checks.token_numbers(-100, 100, MAX_BIASED_TOKENS),
    )
    allowed_token_ids: tuple[int, ...] = field(
        default=(), converter=checks.as_tuple, validator=_token_ids
    )
    json_schema: Mapping[str, Any] | None = field(
        default=None, converter=checks.as_schema, validator=optional(checks.mapping)
    )
    regex: str | None = field(
        default=None,
        converter=checks.to_python_scalar,
        validator=[optional(checks.string), _mutually_exclusive],
    )
    grammar: str | None = field(
        default=None,
        converter=checks.to_python_scalar,
        validator=[optional(checks.string), _mutually_exclusive],
    )
    choice: tuple[str, ...] | None = field(
        default=None,
        converter=checks.as_tuple,
        validator=[optional(_non_empty_strings), _mutually_exclusive],
    )
    logprobs: bool = fields.flag()
    top_logprobs: int = fields.integer(0, MAX_TOP_LOGPROBS, default=0)
    prompt_logprobs: bool = fields.flag()
    return_tokens: bool = fields.flag()
    seed: int | None = fields.optional(checks.integer(0))


@frozen
class TokenLogprob:
    """A possible token at a position, and its log probability.

    Attributes:
        token: its id.
        logprob: its natural log probability under the model's own distribution.
    """

    token: int
    logprob: float


@frozen
class ContentPart:
    """A content part of a model's turn, or a piece of streamed text to append to such a part.

    Attributes:
        kind: the type of the part: "text", "reasoning" or "tool_call".
        text: the text or reasoning; for a tool call its arguments as JSON, which is incomplete if
            the turn was cut off.
        index: index of the part in the turn, from 0.
        name: the name of the called tool; empty for other kinds.
        id: identifier of a tool call, to which the tool's result refers; empty for other kinds.
    """

    kind: PartKind
    text: str
    index: int = 0
    name: str = ""
    id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the part as a dict of strings.

        The keys are ``kind`` and ``text``; for a tool call ``kind``, ``id``, ``name``, and
        ``arguments``, which has the value of `text`.
        """
        if self.kind != "tool_call":
            return {"kind": self.kind, "text": self.text}
        return {
            "kind": self.kind,
            "id": self.id,
            "name": self.name,
            "arguments": self.text,
        }


@frozen
class Completion:
    """One generated sample.

    Attributes:
        text: the generated text, without end-of-sequence token and stop string; for a turn of a
            conversation only its text parts.
        generated_tokens: number of generated tokens, including the end-of-sequence token.
        finished: Unix time in seconds when this sample was complete.
        finish_reason: ``"eos"``, ``"stop"`` or ``"length"``, and for a turn also ``"tool_calls"``.
            If the request has a schema, a regular expression, a grammar or a choice, the text is
            complete only if this is ``"eos"``.
        tokens: the generated token ids, ``generated_tokens`` of them; ``None`` unless
            ``return_tokens``.
        logprobs: their natural log probabilities; ``None`` unless ``logprobs``.
        top_logprobs: for each generated token the most likely tokens at its position, the most
            likely first. They include the generated token only if it is among the most likely.
            ``None`` unless ``top_logprobs``.
        parts: for a turn of a conversation its text, reasoning and tool calls, in order; ``None``
            for any other sample.
        stop_string: the stop string that ended the sample; empty if none did. Not part of the
            documented JSON.
        reasoning_tokens: for a turn, the number of generated tokens in its reasoning, including the
            closing marker; ``None`` for any other sample.
    """

    text: str
    generated_tokens: int
    finished: float
    finish_reason: FinishReason
    tokens: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    parts: tuple[ContentPart, ...] | None = None
    stop_string: str = ""
    reasoning_tokens: int | None = None

    @property
    def reasoning(self) -> str:
        """The reasoning of the turn, concatenated; empty if there is none."""
        return "".join(part.text for part in self.parts or () if part.kind == "reasoning")

    @property
    def tool_calls(self) -> tuple[ContentPart, ...]:
        """The tool calls of the turn."""
        return tuple(part for part in self.parts or () if part.kind == "tool_call")

    def to_dict(self) -> dict[str, Any]:
        """Return a dict of the fields, with the content of the server's JSON.

        Fields that were not requested are absent.
        """
        plain = _set_fields(self)
        plain.pop("stop_string")
        if self.top_logprobs is not None:
            plain["top_logprobs"] = [
                [{"token": item.token, "logprob": item.logprob} for item in position]
                for position in self.top_logprobs
            ]
        if self.parts is not None:
            plain["parts"] = [part.to_dict() for part in self.parts]
        return plain


def _set_fields(response: Completion | GenerationResponse) -> dict[str, Any]:
    """Return the fields that are not None by name; tuples are converted to lists."""
    plain = {}
    for name in fields_dict(type(response)):
        value = getattr(response, name)
        if value is not None:
            plain[name] = [*value] if isinstance(value, tuple) else value
    return plain


@frozen
class TokenTexts:
    """The bytes of a response's tokens; for callers in Python, not part of the documented JSON.

    Attributes:
        prompt: the token ids of the prompt as the model saw it.
        pieces: token id to the bytes that the token prints, for each token of the prompt and the
            samples, and for each alternative token.
        eos_token_ids: the tokens that end a sample and are not part of its text.
        prompt_top_logprobs: for each prompt token after the first the most likely tokens at its
            position, if ``prompt_logprobs`` and ``top_logprobs`` are requested.
    """

    prompt: tuple[int, ...]
    pieces: Mapping[int, bytes]
    eos_token_ids: frozenset[int] = frozenset()
    prompt_top_logprobs: tuple[tuple[TokenLogprob, ...], ...] = ()


@frozen(repr=False)
class GenerationResponse(GenerationResponseDisplay, PydanticSerializable):
    """The samples generated for one request.

    It prints as one line or more for each sample, and in a notebook displays as a table.

    Attributes:
        created: Unix time in seconds when the request was accepted.
        finished: Unix time in seconds when the last sample was complete.
        num_samples: number of samples.
        prompt: the text as sent, even if it was truncated for the model.
        prompt_tokens: number of prompt tokens that the model saw.
        responses: the samples, in order.
        prompt_logprobs: the natural log probability of each of the ``prompt_tokens`` tokens, given
            the tokens before it, and so ``None`` for the first; at least −9,999. ``None`` unless
            ``prompt_logprobs``.
        token_texts: the bytes of the tokens of prompt and samples; ``None`` unless requested from
            the runner.
        reused_tokens: how many of the ``prompt_tokens`` came from the prefix cache; only the JSON
            of some adapters contains this number.
    """

    created: float
    finished: float
    num_samples: int
    prompt: str
    prompt_tokens: int
    responses: tuple[Completion, ...]
    prompt_logprobs: tuple[float | None, ...] | None = None
    token_texts: TokenTexts | None = None
    reused_tokens: int = field(default=0, eq=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the response as plain dicts and lists, with the requested fields only."""
        plain = _set_fields(self)
        plain.pop("token_texts", None)
        plain.pop("reused_tokens")
        return plain | {"responses": [completion.to_dict() for completion in self.responses]}


@frozen
class Stats:
    """The body of ``GET /stats``.

    Attributes:
        backlog: number of samples that are accepted and not yet being decoded.
        num_total_runners: number of runners that can accept requests.
    """

    backlog: int
    num_total_runners: int
