"""The options of a model, each declared once: what it may be, what it means, and where it comes from by default.

The command line and the server read this table for their flags.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import field, frozen
from attrs.validators import optional

from relevance_gen.checks import flag, integer

MAX_SLOTS = 255
"""Most sequences of one context; llama.cpp itself ends at 256."""
_MAX_THREADS = 512
"""Most that llama.cpp has room for; more end the process."""


def _option(help: str, validator: Callable[[Any, Any, Any], None], default: Any = None) -> Any:  # noqa: A002 argparse's word
    checked = optional(validator) if default is None else validator
    return field(default=default, validator=checked, metadata={"help": help})


@frozen(kw_only=True)
class ModelOptions:
    """How a model is loaded; ``None`` leaves a choice to the model and the machine.

    Raises:
        InvalidRequestError: an option is out of range.
    """

    n_ctx: int | None = _option("most tokens of one sequence, prompt and generated", integer(1))
    n_slots: int = _option("sequences decoded at once", integer(1, MAX_SLOTS), default=16)
    n_batch: int | None = _option(
        "most prompt tokens computed between two steps of running sequences; by default 128 on a CPU, 512 on a GPU",
        integer(1),
    )
    n_threads: int | None = _option("CPU threads that decode; by default the physical cores", integer(1, _MAX_THREADS))
    n_gpu_layers: int | None = _option("layers on the GPU, -1 for all; by default all if there is one", integer(-1))
    main_gpu: int | None = _option("the one GPU to use, from 0; by default a model is spread over all", integer(0))
    flash_attention: bool | None = _option("many sequences faster on a CPU, but not with the same bits as alone", flag)
    use_extra_bufts: bool | None = _option("repack weights for this CPU; by default wherever that is safe", flag)
