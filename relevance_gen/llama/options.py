"""The options of a model, each declared once: what it may be, what it means, and where it comes from by default.

The command line and the server read this table for their flags, and `Runner` for its signature.
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
"""Most sequences of one context; llama.cpp itself ends at 256."""
_MAX_THREADS = 512
"""Most that llama.cpp has room for; more end the process."""

T = TypeVar("T")


def _option(help: str, validator: Callable[[Any, Any, Any], None]) -> Any:  # noqa: A002 argparse's word
    return field(default=None, validator=optional(validator), metadata={"help": help})


@frozen(kw_only=True)
class ModelOptions:
    """How a model is loaded; ``None`` leaves a choice to the model and the machine.

    Raises:
        InvalidRequestError: an option is out of range.
    """

    n_ctx: int | None = _option(
        "most tokens of one sequence, prompt and generated; by default what the model was trained on, as far as half "
        "of the free memory (on a GPU four fifths) holds one slot",
        integer(1),
    )
    n_slots: int | None = _option(
        "sequences decoded at once, at most 255; by default 16, or as many as that memory holds of n_ctx tokens",
        integer(1, MAX_SLOTS),
    )
    n_batch: int | None = _option(
        "most prompt tokens computed between two steps of running sequences, rounded up to a multiple of 8; by default "
        "128 on a CPU, 512 on a GPU",
        integer(1),
    )
    n_threads: int | None = _option(
        "CPU threads that decode; by default the physical cores, or fewer while these are faster, and one for a model "
        "of less than 8 MiB",
        integer(1, _MAX_THREADS),
    )
    n_gpu_layers: int | None = _option(
        "layers on the GPU, -1 for all; by default all if there is one", integer(-1)
    )
    main_gpu: int | None = _option(
        "the one GPU to use, from 0; by default a model is spread over all", integer(0)
    )
    flash_attention: bool | None = _option(
        "many sequences faster on a CPU, but not with the same bits as alone; by default off on a CPU, and on a GPU "
        "as llama.cpp chooses",
        flag,
    )
    use_extra_bufts: bool | None = _option(
        "repack weights for this CPU; by default wherever that is safe", flag
    )


class OptionTypes(TypedDict, total=False):
    """The types of the options of `ModelOptions`, for type checkers of code that passes them by keyword."""

    n_ctx: int | None
    n_slots: int | None
    n_batch: int | None
    n_threads: int | None
    n_gpu_layers: int | None
    main_gpu: int | None
    flash_attention: bool | None
    use_extra_bufts: bool | None


def model_options(given: Mapping[str, Any]) -> ModelOptions:
    """Make `ModelOptions` of keyword arguments; of one that is no option, a `TypeError` names the nearest that is."""
    known = [option.name for option in fields(ModelOptions)]
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known, f"there are {', '.join(known)}")
            raise TypeError(f"{name} is no option of a model; {hint}")
    return ModelOptions(**given)


def on_devices(options: ModelOptions, devices: Sequence[int] | None) -> list[ModelOptions]:
    """Return the options of a model on each of `devices`, or those given where there are none.

    Raises:
        InvalidRequestError: they are no list of different GPUs, or one is chosen in the options too.
    """
    if devices is None:
        return [options]
    numbers = list(devices) if isinstance(devices, Sequence) else []
    if (
        not numbers
        or len(set(numbers)) < len(numbers)
        or not all(is_integer(n) and n >= 0 for n in numbers)
    ):
        raise InvalidRequestError.must_be(
            "devices", "a list of different integers of at least 0", devices
        )
    if options.main_gpu is not None:
        raise InvalidRequestError("must not be set where devices are given", "main_gpu")
    return [evolve(options, main_gpu=device) for device in numbers]


def shows_options(cls: type[T]) -> type[T]:
    """Show every option in the signature and the docstring of `cls`, whose last parameter is ``**options``."""
    options = fields(ModelOptions)
    _, *own, _ = inspect.signature(cls.__init__).parameters.values()
    named = [
        inspect.Parameter(
            each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=each.type
        )
        for each in options
    ]
    cls.__signature__ = inspect.Signature([*own, *named])  # type: ignore[attr-defined]
    if cls.__doc__:  # not where Python was told to leave docstrings out
        lines = "\n".join(f"    {each.name}: {each.metadata['help']}." for each in options)
        cls.__doc__ = re.sub(
            r"^ *\*\*options:.*$", lines, inspect.cleandoc(cls.__doc__), flags=re.MULTILINE
        )
    return cls
