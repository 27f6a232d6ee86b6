"""The options of a model, each declared once with its type, its help and its default.

The command line and the server derive flags from this table, and `Runner` its signature.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from attrs import evolve, field, fields, frozen
from attrs.validators import optional

from relevance_gen.checks import flag, integer, is_integer
from relevance_gen.errors import InvalidRequestError, did_you_mean

MAX_SLOTS = 255
"""Sequences of one context; the limit of llama.cpp is 256."""
_MAX_THREADS = 512
"""The limit of llama.cpp, which ends the process above it."""

T = TypeVar("T")


def _option(help: str, validator: Callable[[Any, Any, Any], None]) -> Any:  # noqa: A002 - argparse's name
    return field(default=None, validator=optional(validator), metadata={"help": help})


@frozen(kw_only=True)
class ModelOptions:
    """Options for loading a model.

    For an option that is None, a value is chosen from the model and the machine.

    Raises:
        InvalidRequestError: an option is out of range.
    """

    n_ctx: int | None = _option(
        "maximum tokens of a sequence, prompt and generated; by default the model's training length, or less if one "
        "slot would not fit into half of the free memory (four fifths on a GPU)",
        integer(1),
    )
    n_slots: int | None = _option(
        "sequences decoded at once, at most 255; by default 16, or fewer if sequences of n_ctx tokens would not fit into "
        "that memory",
        integer(1, MAX_SLOTS),
    )
    n_batch: int | None = _option(
        "maximum prompt tokens computed between two steps of running sequences, rounded up to a multiple of 8; by "
        "default 128 on a CPU, 512 on a GPU",
        integer(1),
    )
    n_threads: int | None = _option(
        "CPU threads; by default the number of physical cores, reduced automatically when fewer threads are faster; "
        "one for a model smaller than 8 MiB",
        integer(1, _MAX_THREADS),
    )
    n_gpu_layers: int | None = _option(
        "layers on the GPU, -1 for all; by default all if there is a GPU", integer(-1)
    )
    main_gpu: int | None = _option(
        "number of the only GPU to use, from 0; by default a model is distributed over all "
        "discrete GPUs, or the integrated GPU if there is no other",
        integer(0),
    )
    flash_attention: bool | None = _option(
        "use flash attention; on a CPU it is faster for many sequences, but results depend in their last bits on the "
        "other sequences; by default off on a CPU, and chosen by llama.cpp on a GPU",
        flag,
    )
    use_extra_bufts: bool | None = _option(
        "repack weights for this CPU; by default if that is safe", flag
    )


class OptionTypes(TypedDict, total=False):
    """The types of the options of `ModelOptions`, for code that passes them by keyword."""

    n_ctx: int | None
    n_slots: int | None
    n_batch: int | None
    n_threads: int | None
    n_gpu_layers: int | None
    main_gpu: int | None
    flash_attention: bool | None
    use_extra_bufts: bool | None


def model_options(arguments: Mapping[str, Any]) -> ModelOptions:
    """Create `ModelOptions` from keyword arguments.

    Raises:
        TypeError: an argument is not an option; the error suggests the nearest option.
        InvalidRequestError: an option is out of range.
    """
    option_names = [option.name for option in fields(ModelOptions)]
    for name in arguments:
        if name not in option_names:
            hint = did_you_mean(name, option_names, f"the options are {', '.join(option_names)}")
            raise TypeError(f"{name} is not a model option; {hint}")
    return ModelOptions(**arguments)


def on_devices(options: ModelOptions, devices: Sequence[int] | None) -> list[ModelOptions]:
    """Return one copy of `options` for each GPU in `devices`, with `main_gpu` set to that GPU.

    If `devices` is None, the result is a list that contains only `options`. The function does not
    check that the GPUs exist.

    Raises:
        InvalidRequestError: `devices` is empty or not a sequence of distinct integers of at least
            0, or `options` already has a `main_gpu`.
    """
    if devices is None:
        return [options]
    numbers = list(devices) if isinstance(devices, Sequence) else []
    is_valid = all(is_integer(number) and number >= 0 for number in numbers)
    if not numbers or not is_valid or len(set(numbers)) < len(numbers):
        raise InvalidRequestError.must_be(
            "devices", "a list of different integers of at least 0", devices
        )
    if options.main_gpu is not None:
        raise InvalidRequestError("must not be set together with devices", "main_gpu")
    return [evolve(options, main_gpu=device) for device in numbers]


def shows_options(cls: type[T]) -> type[T]:
    """Replace ``**options`` of a class by all options of `ModelOptions`, and return the class.

    In the signature of `cls`, whose last parameter must be ``**options``, each option becomes a
    keyword parameter. In its docstring, the line that begins with ``**options:`` is replaced by one
    line for each option.
    """
    _, *own_parameters, _ = inspect.signature(cls.__init__).parameters.values()
    option_parameters = [
        inspect.Parameter(
            option.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=option.default,
            annotation=option.type,
        )
        for option in fields(ModelOptions)
    ]
    signature = inspect.Signature([*own_parameters, *option_parameters])
    cls.__signature__ = signature  # type: ignore[attr-defined]
    if cls.__doc__:  # python -OO removes docstrings
        lines = "\n".join(
            f"    {option.name}: {option.metadata['help']}." for option in fields(ModelOptions)
        )
        cls.__doc__ = re.sub(
            r"^ *\*\*options:.*$", lines, inspect.cleandoc(cls.__doc__), flags=re.MULTILINE
        )
    return cls
