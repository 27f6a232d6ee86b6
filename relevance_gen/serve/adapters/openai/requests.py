"""Fields and checks that the requests for completions, chats and responses share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias, TypeVar

import attrs
from attrs import frozen

from relevance_gen import checks, fields, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.queue.request import GRAMMAR_FIELDS
from relevance_gen.serve.adapters.shared import Problem, model_field, new_generation, unsupported
from relevance_gen.types import MAX_SAMPLES, GenerationRequest
from relevance_gen.wire import JsonObject

ALIASES: Mapping[str, str] = {
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_json": "json_schema",
    "guided_regex": "regex",
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "n_predict": "max_tokens",
    "repeat_penalty": "repetition_penalty",
    "stop_token_ids": "eos_token_ids",
    "structured_outputs": "json_schema, regex, grammar or choice",
    "truncate_prompt_tokens": "max_input_tokens",
}
"""Fields of vLLM, SGLang and llama.cpp that are refused, with the field to use instead."""

_SEED_RANGE = 1 << 63

EMPTY: tuple[object, ...] = ([], {}, "", False)
"""Values of a list, an object, a string or a flag that request nothing."""
NEVER: tuple[object, ...] = ()

Refused: TypeAlias = Mapping[str, Sequence[object]]
"""Unsupported fields to the values that are accepted because they request nothing."""

_REFUSED_UNLESS_EMPTY = (
    "bad_words",
    "ebnf",
    "guided_whitespace_pattern",
    "include_stop_str_in_output",
    "logits_processors",
    "lora",
    "no_stop_trim",
    "return_tokens_as_token_ids",
    "samplers",
    "stop_regex",
    "structural_tag",
    "use_beam_search",
)
_REFUSED_UNLESS_ZERO = (
    "dry_multiplier",
    "dynatemp_range",
    "mirostat",
    "mirostat_mode",
    "n_probs",
    "penalty_alpha",
    "smoothing_factor",
    "top_a",
    "xtc_probability",
)
REFUSED: Refused = {
    **dict.fromkeys(_REFUSED_UNLESS_EMPTY, EMPTY),
    **dict.fromkeys(_REFUSED_UNLESS_ZERO, (0,)),
    **dict.fromkeys(("length_penalty", "num_beams", "tfs_z", "typical_p"), (1,)),
    **dict.fromkeys(("detokenize", "skip_special_tokens"), (True,)),
    "prompt_logprobs": (False,),
    "repeat_last_n": (-1,),
    "top_n_sigma": (0, -1),
    "verbosity": ("medium",),
}
"""Unsupported fields that would change the response, with the values that request nothing."""

T = TypeVar("T")


@frozen(kw_only=True)
class StreamOptions:
    """Options of a stream."""

    include_usage: bool = fields.flag()


def _check_stream_options(_request: object, _attribute: object, options: object) -> None:
    wire.structure(StreamOptions, options, path="stream_options", is_lenient=True)


@frozen(kw_only=True)
class SamplingRequest:
    """The common fields of requests, as ``static/openapi.json`` describes them.

    `top_k` and the following fields, except `response_format`, are extensions of OpenAI's API, most
    of them with vLLM's names. Fields without a validator are checked by `GenerationRequest`.
    """

    model: str = model_field()
    n: int = fields.integer(1, MAX_SAMPLES, default=1)
    stop: Any = None
    stream: bool = fields.flag()
    stream_options: JsonObject | None = fields.optional(_check_stream_options)
    seed: int | None = fields.optional(checks.integer(-_SEED_RANGE, _SEED_RANGE - 1))
    temperature: float | None = None
    top_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: Mapping[str, float] | None = None
    top_k: int = fields.integer(-1, default=0)
    min_p: float | None = None
    allowed_token_ids: Sequence[int] | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    max_input_tokens: int | None = None
    eos_token_ids: Sequence[int] | None = None
    json_schema: Mapping[str, Any] | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: Sequence[str] | None = None
    response_format: JsonObject | None = fields.optional(checks.an_object)
    ignore_eos: bool = fields.flag()

    @property
    def schema_names(self) -> dict[str, str]:
        """The field of the client that replaces ``json_schema``, for the field names in errors.

        This is ``{"json_schema": "response_format"}`` if the request has a `response_format`, else
        {}.
        """
        return {} if self.response_format is None else {"json_schema": "response_format"}

    @property
    def output_schema(self) -> object:
        """The JSON schema that `response_format` requires; None if it requires none.

        The schema is always enforced strictly, regardless of the field ``strict`` of the format.
        """
        if self.response_format is None:
            return None
        kind = self.response_format.get("type")
        if kind not in ("text", "json_object", "json_schema"):
            allowed = '"text", "json_object" or "json_schema"'
            raise InvalidRequestError.must_be("response_format.type", allowed, kind)
        definition = self.response_format.get("json_schema")
        if definition is not None:
            checks.an_object.check("response_format.json_schema", definition)
        schema = (definition or {}).get("schema")
        if kind == "json_schema" or schema is not None:
            checks.an_object.check("response_format.json_schema.schema", schema)
        if kind == "json_object":
            schema = self.response_format.get("schema")
            return {"type": "object"} if schema is None else schema
        return schema if kind == "json_schema" else None

    def generation(
        self, max_tokens: int, top_logprobs: int | None, names: Mapping[str, str]
    ) -> GenerationRequest:
        """Return the generation request, without a prompt.

        Args:
            max_tokens: maximum number of tokens of each sample.
            top_logprobs: number of alternatives of each token; None: without log probabilities.
            names: fields of `GenerationRequest` to the client's names of them.

        Raises:
            InvalidRequestError: a field is wrong, or the output has more than one constraint.
        """
        fields = {
            name: getattr(self, name)
            for name in attrs.fields_dict(SamplingRequest)
            if name in attrs.fields_dict(GenerationRequest)
        }
        if self.seed is not None:
            fields["seed"] = self.seed % (1 << 64)
        if top_logprobs is not None:
            fields |= {"logprobs": True, "return_tokens": True, "top_logprobs": top_logprobs}
        fields |= {"max_tokens": max_tokens, "num_samples": self.n, "top_k": max(0, self.top_k)}
        constraints = [name for name in GRAMMAR_FIELDS if fields[name] is not None]
        schema = self.output_schema
        if schema is not None:
            constraints.append("response_format")
            fields["json_schema"] = schema
        if len(constraints) > 1:
            first, second, *_ = constraints
            raise InvalidRequestError(f"cannot be combined with {first}", second)
        return new_generation(names, **fields)


def error(problem: Problem) -> JsonObject:
    """Return the body of an error.

    OpenAI's clients read ``error``, Cohere's ``message``, and Jina's ``detail``. OpenAI's clients
    recognize a full context by the ``code``.
    """
    details = {
        "message": problem.message,
        "type": problem.general_kind,
        "param": problem.field,
        "code": problem.kind,
    }
    return {"error": details, "message": problem.message, "detail": problem.message}


def read_as(cls: type[T], body: object, refused: Refused) -> T:
    """Return an instance of `cls` with the fields of `body`.

    Unknown fields are ignored, and null stands for the default.

    Args:
        cls: an attrs class.
        body: the parsed JSON.
        refused: unsupported fields to the values that are accepted because they request nothing.

    Raises:
        InvalidRequestError: a field is wrong or not supported.
    """
    fields: JsonObject = body if isinstance(body, dict) else {}
    for name, neutral_values in refused.items():
        if fields.get(name) is not None and not _is_among(fields[name], neutral_values):
            raise unsupported(name)
    for name, replacement in ALIASES.items():
        if fields.get(name) is not None:
            raise unsupported(name, remedy=f"use {replacement}")
    return wire.structure(cls, body, is_lenient=True)


def _is_among(value: object, neutral_values: Sequence[object]) -> bool:
    """Return whether a value equals one of the neutral values; a boolean equals no number."""
    is_flag = isinstance(value, bool)
    return any(
        value == neutral and is_flag == isinstance(neutral, bool) for neutral in neutral_values
    )
