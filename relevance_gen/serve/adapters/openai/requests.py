"""What requests for completions and for chats have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
from attrs import field, frozen
from attrs.validators import optional

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.serve.settings import DEFAULT_NAME
from relevance_gen.types import MAX_SAMPLES, MAX_TOP_LOGPROBS, GenerationRequest

_MAX_NAME_CHARACTERS = 1024
"""Of a model's name, which every chunk of a stream repeats."""

OURS: Mapping[str, str] = {
    "repeat_penalty": "repetition_penalty",
    "stop_token_ids": "eos_token_ids",
    "truncate_prompt_tokens": "max_input_tokens",
    "n_predict": "max_tokens",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "guided_grammar": "grammar",
    "guided_choice": "choice",
}
"""What other servers' fields are called here: vLLM's, SGLang's and llama.cpp's."""

Asks = Callable[[Any], bool]
"""Tells whether the value of a field asks for nothing."""


def is_empty(value: object) -> bool:
    """Tell whether a list, an object or a string has nothing in it, or a flag is not set."""
    return value in ([], {}, "", False)


def _is(*values: object) -> Asks:
    return lambda value: value in values


def unless(asks_for_nothing: Asks, names: str) -> dict[str, Asks]:
    """Return that fields, whose names stand between spaces, are refused unless their values ask for nothing."""
    return dict.fromkeys(names.split(), asks_for_nothing)


REFUSED: Mapping[str, Asks] = {
    **unless(
        _is(0),
        "dry_multiplier dynatemp_range mirostat mirostat_mode n_probs penalty_alpha smoothing_factor",
    ),
    **unless(_is(0), "top_a xtc_probability"),
    **unless(_is(1), "length_penalty num_beams tfs_z typical_p"),
    **unless(_is(True), "detokenize skip_special_tokens"),
    **unless(
        is_empty,
        "bad_words ebnf guided_whitespace_pattern include_stop_str_in_output logits_processors lora",
    ),
    **unless(
        is_empty,
        "no_stop_trim return_tokens_as_token_ids samplers stop_regex structural_tag use_beam_search",
    ),
    "prompt_logprobs": lambda value: value is False,
    "repeat_last_n": _is(-1),
    "top_n_sigma": _is(0, -1),
    "verbosity": _is("medium"),
}
"""What would change the answer and is not done, for completions and chats alike."""
_FORMS = ("json", "regex", "grammar", "choice", "json_object")
"""What a text can be told to be in ``structured_outputs``."""


T = TypeVar("T")


a_name = checks.short(_MAX_NAME_CHARACTERS)
top_logprobs = checks.integer(0, MAX_TOP_LOGPROBS)


def _passed_on() -> Any:
    """Return a field that `GenerationRequest` has under the same name, and checks."""
    return field(default=None, metadata={"passed_on": True})


@frozen(kw_only=True)
class StreamOptions:
    """How a stream is to be told."""

    include_usage: bool = field(default=False, validator=checks.flag)


@frozen(kw_only=True)
class SamplingRequest:
    """The fields that both kinds of request have, as ``static/openapi.json`` describes them.

    `top_k` and those after it are of this server, as vLLM has them; a schema may be written as a text, too.
    """

    model: str = field(default=DEFAULT_NAME, validator=a_name)
    n: int = field(default=1, validator=checks.integer(1, MAX_SAMPLES))
    stop: Any = None
    stream: bool = field(default=False, validator=checks.flag)
    stream_options: Mapping[str, Any] | None = field(
        default=None, validator=optional(checks.an_object)
    )
    seed: int | None = field(
        default=None, validator=optional(checks.integer(-(1 << 63), (1 << 63) - 1))
    )
    temperature: float | None = _passed_on()
    top_p: float | None = _passed_on()
    presence_penalty: float | None = _passed_on()
    frequency_penalty: float | None = _passed_on()
    logit_bias: Mapping[str, float] | None = _passed_on()
    top_k: int = field(default=0, validator=checks.integer(-1))
    min_p: float | None = _passed_on()
    allowed_token_ids: Sequence[int] | None = _passed_on()
    repetition_penalty: float | None = _passed_on()
    min_tokens: int | None = _passed_on()
    max_input_tokens: int | None = _passed_on()
    eos_token_ids: Sequence[int] | None = None
    json_schema: Any = None
    regex: str | None = None
    grammar: str | None = None
    choice: Any = None
    response_format: Mapping[str, Any] | None = field(
        default=None, validator=optional(checks.an_object)
    )
    structured_outputs: Mapping[str, Any] | None = field(
        default=None, validator=optional(checks.an_object)
    )
    ignore_eos: bool = field(default=False, validator=checks.flag)

    @property
    def includes_usage(self) -> bool:
        """Whether a stream's last chunk tells the tokens used."""
        options = wire.structure(
            StreamOptions, self.stream_options or {}, path="stream_options", is_lenient=True
        )
        return options.include_usage

    def generation(
        self, text: str, max_tokens: int, top_logprobs: int | None, names: Mapping[str, str]
    ) -> GenerationRequest:
        """Return the request to generate from `text`; with `top_logprobs` also log probabilities.

        Fields have other `names` for the client.

        Raises:
            InvalidRequestError: a field is wrong.
        """
        fields = [one.name for one in attrs.fields(type(self)) if one.metadata.get("passed_on")]
        given = {name: getattr(self, name) for name in (*fields, "stop", "eos_token_ids")}
        passed_on = {name: value for name, value in given.items() if value is not None}
        if self.seed is not None:
            passed_on["seed"] = self.seed % (1 << 64)
        if top_logprobs is not None:
            passed_on |= {"logprobs": True, "return_tokens": True, "top_logprobs": top_logprobs}
        passed_on |= {"max_tokens": max_tokens, "num_samples": self.n, "top_k": max(0, self.top_k)}
        passed_on |= self._form({ours: name for ours, name in names.items() if name in OURS})
        try:
            return GenerationRequest(text, **passed_on)
        except InvalidRequestError as error:
            raise error.with_field_names(names) from None

    def _form(self, names: Mapping[str, str]) -> dict[str, Any]:
        """Return which form the text must have, as fields of a `GenerationRequest`, for which clients have `names`."""
        wanted = {
            "json_schema": self.json_schema,
            "regex": self.regex,
            "grammar": self.grammar,
            "choice": self.choice,
            "response_format": _of_response_format(self.response_format),
            **{
                f"structured_outputs.{name}": value
                for name, value in (self.structured_outputs or {}).items()
            },
        }
        wanted = {
            name: value
            for name, value in wanted.items()
            if value is not None and value is not False
        }
        for name in wanted:
            inner = name.partition(".")[2]
            if inner and inner not in _FORMS:
                remedy = f"the others are {', '.join(_FORMS)}"
                raise InvalidRequestError("is not supported by this server", name, remedy=remedy)
        if len(wanted) > 1:
            first, second, *_ = wanted
            raise InvalidRequestError(f"cannot be combined with {first}", second).with_field_names(
                names
            )
        return dict(_ours(name, value) for name, value in wanted.items())


def _ours(name: str, value: Any) -> tuple[str, Any]:
    """Return the field of a `GenerationRequest` that says what `value` says under `name`, and its value."""
    inner = name.rpartition(".")[2]
    if inner == "json_object":
        return "json_schema", {"type": "object"}
    return "json_schema" if inner in ("json", "response_format") else inner, value


def _of_response_format(wanted: Mapping[str, Any] | None) -> object:
    """Return the schema that the text must fit, if it must fit one; a schema is kept to the letter, strict or not."""
    if wanted is None or wanted.get("type") == "text":
        return None
    kind, schema = wanted.get("type"), wanted.get("schema")
    if kind == "json_object":
        return {"type": "object"} if schema is None else schema
    if kind != "json_schema":
        raise InvalidRequestError.must_be(
            "response_format.type", '"text", "json_object" or "json_schema"', kind
        )
    given = wanted.get("json_schema")
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        raise InvalidRequestError.must_be("response_format.json_schema.schema", "an object", schema)
    return schema


def error(kind: str, message: str, field: str | None) -> dict[str, object]:
    """Return the body of an error: OpenAI's clients read ``error``, Cohere's ``message``, and Jina's ``detail``."""
    told = {"message": message, "type": kind, "param": field, "code": kind}
    return {"error": told, "message": message, "detail": message}


def read_as(cls: type[T], body: object, refused: Mapping[str, Asks]) -> T:
    """Make a `cls` of `body`, whose fields may be unknown or null, but for those that are `refused` by name.

    Raises:
        InvalidRequestError: a field is wrong, or is refused and asks for something.
    """
    given = dict(body) if isinstance(body, dict) else {}
    for name, asks_for_nothing in refused.items():
        if given.get(name) is not None and not asks_for_nothing(given[name]):
            raise InvalidRequestError(
                "is not supported by this server", name, remedy="leave it out"
            )
    theirs: dict[str, str] = {}
    for name, ours in OURS.items():
        if given.get(name) is not None:
            if given.get(ours) is not None:
                raise InvalidRequestError(f"cannot be combined with {theirs.get(ours, ours)}", name)
            given[ours], theirs[ours] = given.pop(name), name
    try:
        return wire.structure(cls, given if isinstance(body, dict) else body, is_lenient=True)
    except InvalidRequestError as error:
        raise error.with_field_names(theirs) from None


def names_in(body: object) -> dict[str, str]:
    """Return what fields of ours are called in a body where that is not our name."""
    given = body if isinstance(body, dict) else {}
    names: dict[str, str] = {}
    for name in ("structured_outputs", "response_format"):
        if given.get(name) is not None:
            names |= dict.fromkeys(("json_schema", "regex", "grammar", "choice"), name)
    return names | {ours: name for name, ours in OURS.items() if given.get(name) is not None}
