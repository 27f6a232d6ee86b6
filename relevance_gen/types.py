"""The vocabulary of the whole project: frozen classes whose attributes are the documented wire's fields.

Every class checks its fields when it is made, whoever makes it. What only the model or the settings can tell, such as
whether a prompt fits, is checked where the request is used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

from attrs import Attribute, field, frozen
from attrs.validators import optional

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError

Metadata: TypeAlias = Mapping[str, Any]
FinishReason: TypeAlias = Literal["eos", "stop", "length"]

MAX_SAMPLES = 256
"""Most completions of one request: the number of sequences one llama.cpp context can hold."""
MAX_TOP_LOGPROBS = 20
MAX_BIASED_TOKENS = 4096


# ── Search ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Chunk:
    """A piece of text to search, with data of the caller's that comes back unchanged.

    Args:
        text: the content; not blank.
        metadata: free-form JSON object, returned with the result.
        original_index: accepted for round trips and ignored: results carry the real position.
    """

    text: str = field(validator=checks.not_blank)
    metadata: Metadata = field(factory=dict, validator=checks.must_be("an object", lambda v: isinstance(v, Mapping)))
    original_index: int | None = field(
        default=None, validator=optional(checks.must_be("an integer", checks.is_integer))
    )


@frozen
class SearchRequest:
    """The body of ``POST /search``.

    Args:
        query: the question; not blank.
        chunk_txts: strings, mappings or `Chunk` objects, mixed as the caller likes; checked when they are searched.
        top_n: most results to return, at least 1.
        true_order: results in input order (true) or best first (false).
        where: rank only chunks whose metadata has, under each of these keys, the value or one of a list of values.
    """

    query: str = field(validator=checks.not_blank)
    chunk_txts: Sequence[str | Metadata | Chunk] = field(
        validator=checks.must_be("a list", lambda v: isinstance(v, Sequence) and not isinstance(v, (str, bytes)))
    )
    top_n: int = field(default=10, validator=checks.integer(1))
    true_order: bool = field(default=True, validator=checks.flag)
    where: Metadata | None = field(
        default=None, validator=optional(checks.must_be("an object", lambda v: isinstance(v, Mapping)))
    )


@frozen
class SearchResult:
    """One chunk that shares something with the query.

    Attributes:
        chunk_id: 0, 1, 2 … in the returned order.
        chunk_txt: the chunk's text as given.
        chunk_score: relevance in (0, 1]; 1.0 = as good as a chunk that says exactly what the query says.
        metadata: the chunk's metadata, the same object; ``{}`` when none was given.
        original_index: position of the chunk in the input.
    """

    chunk_id: int
    chunk_txt: str
    chunk_score: float
    metadata: Metadata
    original_index: int


@frozen
class SearchMetadata:
    """Token counts of a search, by the encoding in force.

    Attributes:
        num_query_tokens: tokens in the query.
        num_context_tokens: tokens in all supplied chunks together, each counted alone.
    """

    num_query_tokens: int
    num_context_tokens: int


@frozen
class SearchResponse:
    """What a search found: at most ``top_n`` results, and the token counts."""

    results: tuple[SearchResult, ...]
    metadata: SearchMetadata


# ── Generation ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _at_most_max_tokens(request: GenerationRequest, attribute: Attribute[int], value: int) -> None:
    if value > request.max_tokens:
        raise InvalidRequestError.must_be(attribute.name, f"at most max_tokens ({request.max_tokens})", value)


@frozen
class GenerationRequest:
    """The body of ``POST /generate``.

    The bias applies first, then penalties, temperature, top_k, top_p and min_p, then the draw.

    Args:
        text: the prompt; may be empty where the model has a BOS token to start from.
        max_tokens: most tokens generated for each sample, at least 1.
        min_tokens: a sample's first tokens, so many, hold no end token and complete no stop string; at most max_tokens.
        eos_token_ids: generation stops when one is produced; the model's own end token alone does not stop it.
        max_input_tokens: keep only this many tokens of the end of the prompt; 0 = no limit.
        num_samples: independent completions, in [1, MAX_SAMPLES].
        stop: non-empty strings; generation stops when one is produced, and it is not in the output.
        temperature: 0 = greedy; higher is more varied.
        top_k: keep the k most likely tokens; 0 = off.
        top_p: keep the smallest set of tokens whose probability reaches this, in [0, 1].
        min_p: keep tokens at least this fraction as likely as the likeliest, in [0, 1].
        presence_penalty: subtracted once from the logit of every token already generated, in [-2, 2].
        frequency_penalty: subtracted for every time the token was already generated, in [-2, 2].
        repetition_penalty: divides the logit of every token already generated if it is positive, and multiplies it
            otherwise; above 0, and 1 = off.
        logit_bias: token id to what is added to its logit, in [-100, 100]; at most MAX_BIASED_TOKENS of them.
        logprobs: return each token's natural log probability under the model's own distribution.
        top_logprobs: return with each token so many of the likeliest in its place, in [0, MAX_TOP_LOGPROBS].
        prompt_logprobs: return the log probability of each of the prompt's tokens.
        return_tokens: return the generated token ids.
        seed: makes the request repeatable; without it every request and every sample differs.
    """

    text: str = field(validator=checks.string)
    max_tokens: int = field(default=512, validator=checks.integer(1))
    min_tokens: int = field(default=0, validator=[checks.integer(0), _at_most_max_tokens])
    eos_token_ids: tuple[int, ...] = field(
        default=(),
        converter=checks.as_tuple,
        validator=checks.items("an integer of at least 0", lambda v: checks.is_integer(v) and v >= 0),
    )
    max_input_tokens: int = field(default=0, validator=checks.integer(0))
    num_samples: int = field(default=1, validator=checks.integer(1, MAX_SAMPLES))
    stop: tuple[str, ...] = field(
        default=(),
        converter=checks.as_tuple,
        validator=checks.items("a non-empty string", lambda v: isinstance(v, str) and v != ""),
    )
    temperature: float = field(default=1.0, converter=checks.as_float, validator=checks.number(0))
    top_k: int = field(default=50, validator=checks.integer(0))
    top_p: float = field(default=1.0, converter=checks.as_float, validator=checks.number(0, 1))
    min_p: float = field(default=0.0, converter=checks.as_float, validator=checks.number(0, 1))
    presence_penalty: float = field(default=0.0, converter=checks.as_float, validator=checks.number(-2, 2))
    frequency_penalty: float = field(default=0.0, converter=checks.as_float, validator=checks.number(-2, 2))
    repetition_penalty: float = field(default=1.0, converter=checks.as_float, validator=checks.above(0))
    logit_bias: Mapping[int, float] = field(
        factory=dict,
        converter=checks.as_token_numbers,
        validator=checks.token_numbers(-100, 100, MAX_BIASED_TOKENS),
    )
    logprobs: bool = field(default=False, validator=checks.flag)
    top_logprobs: int = field(default=0, validator=checks.integer(0, MAX_TOP_LOGPROBS))
    prompt_logprobs: bool = field(default=False, validator=checks.flag)
    return_tokens: bool = field(default=False, validator=checks.flag)
    seed: int | None = field(default=None, validator=optional(checks.integer(0)))


@frozen
class TokenLogprob:
    """A token that might have stood in a place, and how likely the model found that.

    Attributes:
        token: its id.
        logprob: its natural log probability under the model's own distribution.
    """

    token: int
    logprob: float


@frozen
class Completion:
    """One generated sample.

    Attributes:
        text: the generated text, without end token and stop string.
        generated_tokens: tokens generated, the end token included.
        finished: Unix time in seconds when this sample was complete.
        finish_reason: ``"eos"``, ``"stop"`` or ``"length"``.
        tokens: the generated token ids, ``generated_tokens`` of them; ``None`` unless ``return_tokens``.
        logprobs: their natural log probabilities, one each; ``None`` unless ``logprobs``.
        top_logprobs: for each of them the likeliest tokens in its place, the likeliest first; whether it is among them
            depends on the draw; ``None`` unless ``top_logprobs``.
    """

    text: str
    generated_tokens: int
    finished: float
    finish_reason: FinishReason
    tokens: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None


@frozen
class GenerationResponse:
    """What was generated for one request.

    Attributes:
        created: Unix time in seconds when the request was accepted.
        finished: Unix time in seconds when the last sample was complete.
        num_samples: number of completions.
        prompt: the text as sent, also when the model saw less of it.
        prompt_tokens: tokens the model saw.
        responses: the completions, in sample order.
        prompt_logprobs: the natural log probability of each of the ``prompt_tokens`` tokens, given those before it,
            and so ``None`` for the first; at least −9,999. ``None`` unless ``prompt_logprobs``.
    """

    created: float
    finished: float
    num_samples: int
    prompt: str
    prompt_tokens: int
    responses: tuple[Completion, ...]
    prompt_logprobs: tuple[float | None, ...] | None = None


@frozen
class Stats:
    """The body of ``GET /stats``.

    Attributes:
        backlog: samples accepted and not yet being decoded.
        num_total_runners: runners able to take work.
    """

    backlog: int
    num_total_runners: int
