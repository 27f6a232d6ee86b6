"""The options of a model, checked before anything is loaded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

from attrs import Attribute, field, frozen
from attrs.validators import optional

from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import MAX_SAMPLES, is_integer

DEFAULT_N_SLOTS = 16
_MAX_THREADS = 512
"""Most that llama.cpp has room for; more end the process."""

_Validator: TypeAlias = Callable[[Any, "Attribute[Any]", Any], None]


def check_integer(name: str, value: Any, low: int, high: int | None = None) -> None:
    """Raise `InvalidRequestError` unless `value` is an integer from `low` to `high`."""
    if not (is_integer(value) and low <= value and (high is None or value <= high)):
        interval = f"of at least {low}" if high is None else f"in [{low}, {high}]"
        raise InvalidRequestError.must_be(name, f"an integer {interval}", value)


def _integer(low: int, high: int | None = None) -> _Validator:
    return lambda _, attribute, value: check_integer(attribute.name, value, low, high)


def _switch(_: object, attribute: Attribute[Any], value: object) -> None:
    if not isinstance(value, bool):
        raise InvalidRequestError.must_be(attribute.name, "True or False", value)


@frozen(kw_only=True)
class ModelOptions:
    """What `relevance_gen.Runner` describes, option by option; ``None`` leaves a choice to the model.

    Raises:
        InvalidRequestError: an option is out of range.
    """

    n_ctx: int | None = field(default=None, validator=optional(_integer(1)))
    n_slots: int = field(default=DEFAULT_N_SLOTS, validator=_integer(1, MAX_SAMPLES - 1))
    n_batch: int | None = field(default=None, validator=optional(_integer(1)))
    n_threads: int | None = field(default=None, validator=optional(_integer(1, _MAX_THREADS)))
    n_gpu_layers: int | None = field(default=None, validator=optional(_integer(-1)))
    main_gpu: int | None = field(default=None, validator=optional(_integer(0)))
    flash_attention: bool | None = field(default=None, validator=optional(_switch))
    use_extra_bufts: bool | None = field(default=None, validator=optional(_switch))
