"""The options of commands that choose and load a model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, get_type_hints

import attrs

from relevance_gen.cli.arguments import integer, not_empty
from relevance_gen.llama.context_size import MAX_DEFAULT_SLOTS
from relevance_gen.llama.options import ModelOptions

if TYPE_CHECKING:
    from relevance_gen.generation.runner import Runner


def option_flag(name: str) -> str:
    """Return the flag of an option.

    >>> option_flag("max_tokens")
    '--max-tokens'
    """
    return "--" + name.replace("_", "-")


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that choose and load a model."""
    parser.add_argument(
        "-m",
        "--model",
        type=not_empty,
        metavar="MODEL",
        help="a GGUF file, or owner/name[:quantization] on the Hugging Face Hub (default: "
        "$RELEVANCE_GEN_MODEL, else the embedded model)",
    )
    group = parser.add_argument_group("model")
    types = get_type_hints(ModelOptions)
    for option in attrs.fields(ModelOptions):
        is_switch = types[option.name] == bool | None
        parsed = (
            {"action": argparse.BooleanOptionalAction}
            if is_switch
            else {"type": integer, "metavar": "N"}
        )
        group.add_argument(option_flag(option.name), help=option.metadata["help"], **parsed)


def load_runner(args: argparse.Namespace, num_samples: int) -> Runner:
    """Load the model that the arguments choose, and return its runner.

    The number of slots of a model is the number of samples that it generates at the same time. By
    default it is `num_samples`, the number of samples of one request, but at most
    `MAX_DEFAULT_SLOTS`; an argument can set another number.
    """
    from relevance_gen.generation.runner import Runner  # imports numpy and asyncio

    options = {option.name: getattr(args, option.name) for option in attrs.fields(ModelOptions)}
    if options["n_slots"] is None:
        options["n_slots"] = min(num_samples, MAX_DEFAULT_SLOTS)
    return Runner(args.model, **options)
