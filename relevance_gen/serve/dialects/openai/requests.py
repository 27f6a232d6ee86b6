"""What requests for completions and for chats have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import attrs
from attrs import field, frozen
from attrs.validators import optional

from relevance_gen import checks, wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import MAX_SAMPLES, MAX_TOP_LOGPROBS, GenerationRequest

MODEL = "relevance_gen"
"""What answers call the model where the request does not."""
_MAX_NAME_CHARACTERS = 1024
"""Of a model's name, which every chunk of a stream repeats."""

T = TypeVar("T")


def _an_object(value: object) -> bool:
    return isinstance(value, dict)


def _a_seed(value: object) -> bool:
    return checks.is_integer(value) and -(1 << 63) <= value < 1 << 63  # type: ignore[operator]


a_name = checks.must_be(
    f"a string of at most {_MAX_NAME_CHARACTERS:,} characters",
    lambda value: isinstance(value, str) and len(value) <= _MAX_NAME_CHARACTERS,
)


def _passed_on() -> Any:
    """Return a field that `GenerationRequest` has under the same name, and checks."""
    return field(default=None, metadata={"passed_on": True})


@frozen(kw_only=True)
class StreamOptions:
    """How a stream is to be told.

    Args:
        include_usage: whether a last chunk tells the tokens used.
    """

    include_usage: bool = field(default=False, validator=checks.flag)


@frozen(kw_only=True)
class SamplingRequest:
    """The fields that both kinds of request have; `top_k` and those after it are of this server, as vLLM has them.

    Args:
        model: any name of at most 1,024 characters; answers repeat it.
        n: samples of each prompt, in [1, MAX_SAMPLES].
        stop: a string or a list of strings.
        stream: whether to send the text as it comes.
        stream_options: see `StreamOptions`.
        seed: makes the request repeatable.
        temperature, top_p, presence_penalty, frequency_penalty, logit_bias: as `GenerationRequest` has them.
        top_k: 0 or −1 = off, which is OpenAI's rule and the default.
        min_p, repetition_penalty, min_tokens, max_input_tokens: as `GenerationRequest` has them.
    """

    model: str = field(default=MODEL, validator=a_name)
    n: int = field(default=1, validator=checks.integer(1, MAX_SAMPLES))
    stop: Any = None
    stream: bool = field(default=False, validator=checks.flag)
    stream_options: Mapping[str, Any] | None = field(
        default=None, validator=optional(checks.must_be("an object", _an_object))
    )
    seed: int | None = field(default=None, validator=optional(checks.must_be("an integer of 64 bits", _a_seed)))
    temperature: float | None = _passed_on()
    top_p: float | None = _passed_on()
    presence_penalty: float | None = _passed_on()
    frequency_penalty: float | None = _passed_on()
    logit_bias: Mapping[str, float] | None = _passed_on()
    top_k: int = field(default=0, validator=checks.integer(-1))
    min_p: float | None = _passed_on()
    repetition_penalty: float | None = _passed_on()
    min_tokens: int | None = _passed_on()
    max_input_tokens: int | None = _passed_on()

    @property
    def includes_usage(self) -> bool:
        """Whether a stream's last chunk tells the tokens used."""
        options = wire.structure(StreamOptions, self.stream_options or {}, path="stream_options", is_lenient=True)
        return options.include_usage

    def generation(self, text: str, max_tokens: int, top_logprobs: int | None) -> GenerationRequest:
        """Return the request to generate from `text`; with `top_logprobs` also log probabilities.

        Raises:
            InvalidRequestError: a field is wrong.
        """
        passed_on = {
            one.name: getattr(self, one.name)
            for one in attrs.fields(type(self))
            if one.metadata.get("passed_on") and getattr(self, one.name) is not None
        }
        stop = [self.stop] if isinstance(self.stop, str) else self.stop
        seed = None if self.seed is None else self.seed % (1 << 64)
        if top_logprobs is not None:
            passed_on |= {"logprobs": True, "return_tokens": True, "top_logprobs": top_logprobs}
        return GenerationRequest(
            text,
            max_tokens=max_tokens,
            num_samples=self.n,
            stop=() if stop is None else stop,
            seed=seed,
            top_k=max(0, self.top_k),
            **passed_on,
        )


top_logprobs = checks.integer(0, MAX_TOP_LOGPROBS)


def read_as(cls: type[T], body: object, refused: Mapping[str, Callable[[Any], bool]]) -> T:
    """Make a `cls` of `body`, whose fields may be unknown or null, but for those that are `refused` by name.

    Args:
        cls: the fields that are read.
        body: what must be an object.
        refused: what would change the answer and is not done; each with what tells whether a value asks for nothing.

    Raises:
        InvalidRequestError: a field is wrong, or asks for what is not done.
    """
    request = wire.structure(cls, body, is_lenient=True)
    for name, asks_for_nothing in refused.items():
        value = body.get(name) if isinstance(body, dict) else None
        if value is not None and not asks_for_nothing(value):
            raise InvalidRequestError("is not supported by this server", name, remedy="leave it out")
    return request


def is_empty(value: object) -> bool:
    """Tell whether a list, an object or a string has nothing in it, or a flag is not set."""
    return value in ([], {}, "", False)
