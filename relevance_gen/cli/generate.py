"""``relevance-gen generate``: continue a text with a language model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final, TextIO, get_type_hints

import attrs

from relevance_gen.cli.arguments import STDIN, integer, not_empty, number
from relevance_gen.cli.terminal import StatusLine, WordWrap, write_json
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.runner import Runner
from relevance_gen.generation.stream import TextStream
from relevance_gen.llama.context_size import MOST_SLOTS
from relevance_gen.llama.model_files.resolve import is_embedded
from relevance_gen.llama.options import ModelOptions
from relevance_gen.types import GenerationRequest

_EMBEDDED: Final = (
    "the small embedded model writes, which can only copy a sentence of a context, and makes no sense without one; "
    "name a real model with --model"
)


def _bias(text: str) -> tuple[str, float]:
    token, equals, bias = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be ID=BIAS, got {text[:80]!a}")
    return token, number(bias)


class _Biases(argparse.Action):
    """Make an object of the pairs that `_bias` reads."""

    def __call__(
        self, _: object, namespace: argparse.Namespace, values: Any, __: object = None
    ) -> None:
        setattr(namespace, self.dest, dict(values))


def _content(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise argparse.ArgumentTypeError(f"{path} is not UTF-8") from None


def _json_content(path: str) -> object:
    try:
        return json.loads(_content(path))
    except (ValueError, RecursionError) as error:
        raise argparse.ArgumentTypeError(f"{path} is not JSON: {error}") from None


_SWITCH: dict[str, Any] = {"action": "store_true", "default": None}

_GROUPS: dict[str, dict[str, tuple[dict[str, Any], str]]] = {
    "how much is generated": {
        "max_tokens": ({"type": integer}, "most tokens of each sample"),
        "num_samples": ({"type": integer}, "independent completions"),
        "stop": ({"action": "append"}, "text that ends a sample; may be given more than once"),
        "seed": ({"type": integer}, "repeat the same samples"),
        "min_tokens": ({"type": integer}, "tokens of each sample that cannot end it"),
        "eos_token_ids": ({"type": integer, "nargs": "+"}, "tokens that end a sample"),
        "max_input_tokens": (
            {"type": integer},
            "keep so many tokens of the prompt's end, 0 for all",
        ),
    },
    "which form it has": {
        "json_schema": (
            {"type": _json_content, "metavar": "FILE"},
            "a JSON schema that every sample fits",
        ),
        "regex": (
            {"metavar": "REGEX"},
            "a regular expression that matches every sample as a whole",
        ),
        "grammar": (
            {"type": _content, "metavar": "FILE"},
            "a grammar of every sample, in llguidance's dialect of Lark or in GBNF",
        ),
        "choice": (
            {"action": "append"},
            "a text that a sample may be, and nothing else; may be given more than once",
        ),
    },
    "how it is drawn": {
        "temperature": ({"type": number}, "0 for the likeliest text; higher is more varied"),
        "top_k": ({"type": integer}, "draw from so many of the likeliest tokens, 0 for all"),
        "top_p": (
            {"type": number},
            "draw from the likeliest tokens that have this probability together",
        ),
        "min_p": (
            {"type": number},
            "draw from tokens at least this share as likely as the likeliest",
        ),
        "presence_penalty": ({"type": number}, "against tokens that were generated already"),
        "frequency_penalty": (
            {"type": number},
            "against tokens for each time they were generated already",
        ),
        "repetition_penalty": (
            {"type": number},
            "divides the logits of tokens that were generated already, 1 for off",
        ),
        "logit_bias": (
            {"type": _bias, "nargs": "+", "metavar": "ID=BIAS", "action": _Biases},
            "add to the logits of tokens, from -100 to 100",
        ),
        "allowed_token_ids": ({"type": integer, "nargs": "+"}, "draw no other tokens"),
    },
    "what else --json prints": {
        "logprobs": (_SWITCH, "the tokens' log probabilities"),
        "top_logprobs": ({"type": integer}, "so many of the likeliest tokens in the place of each"),
        "prompt_logprobs": (_SWITCH, "the prompt's log probabilities"),
        "return_tokens": (_SWITCH, "the tokens' ids"),
    },
}
"""Every field of `GenerationRequest` but the text, as ``--help`` groups them: how it is parsed, and what it means."""

_PARAMETERS = {name: described for group in _GROUPS.values() for name, described in group.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.usage = "%(prog)s [OPTION ...] [PROMPT]"
    parser.add_argument(
        "text",
        metavar="PROMPT",
        nargs="?",
        default=STDIN,
        help="the text to continue, behind -- if it begins with -; - or none reads the standard input",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the response of the REST interface"
    )
    for heading, parameters in _GROUPS.items():
        add_parameters(parser.add_argument_group(heading), *parameters)
    add_model(parser)


def add_parameters(parser: argparse._ActionsContainer, *names: str, **defaults: object) -> None:
    """Add options for parameters of a request; `defaults` are those that differ from the request's own."""
    defaults = {field.name: field.default for field in attrs.fields(GenerationRequest)} | defaults
    for name in names:
        options, purpose = _PARAMETERS[name]
        if "action" not in options:
            options = {"metavar": "N", **options}
        if isinstance(default := defaults[name], int | float) and not isinstance(default, bool):
            purpose += f" (default: {default})"
        flag = (
            "--schema" if name == "json_schema" else _flag(name)
        )  # beside --json, which is for the output
        parser.add_argument(flag, dest=name, help=purpose, **options)


def given_parameters(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters of a request that were given."""
    return {name: value for name in _PARAMETERS if (value := getattr(args, name, None)) is not None}


def add_model(parser: argparse.ArgumentParser) -> None:
    """Add the options that say which model, and how it is loaded."""
    parser.add_argument(
        "-m",
        "--model",
        type=not_empty,
        metavar="MODEL",
        help="a GGUF file, or owner/name[:quantization] of the Hugging Face hub (default: $RELEVANCE_GEN_MODEL, else "
        "the embedded model)",
    )
    of_the_model = parser.add_argument_group("how the model is loaded")
    kinds = get_type_hints(ModelOptions)
    for option in attrs.fields(ModelOptions):
        is_switch = kinds[option.name] == bool | None
        parsed = (
            {"action": argparse.BooleanOptionalAction}
            if is_switch
            else {"type": integer, "metavar": "N"}
        )
        of_the_model.add_argument(_flag(option.name), help=option.metadata["help"], **parsed)


def load_runner(args: argparse.Namespace, num_samples: int) -> Runner:
    """Load the model that `args` name, with no more memory than one request for so many samples can use."""
    options = {option.name: getattr(args, option.name) for option in attrs.fields(ModelOptions)}
    if options["n_slots"] is None:
        options["n_slots"] = min(num_samples, MOST_SLOTS)
    return Runner(args.model, **options)


def run(args: argparse.Namespace) -> int:
    """Generate as `args` say, print it as it comes, and return the exit status."""
    text = args.text
    if text == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise InvalidRequestError("give a text to continue, or pipe one in")
        text = sys.stdin.read()
    request = GenerationRequest(text=text, **given_parameters(args))
    if is_embedded(args.model):
        StatusLine(sys.stderr).say(_EMBEDDED)
    with load_runner(args, request.num_samples) as runner:
        if args.json:
            write_json(runner.generate(request))
        else:
            with runner.stream(request) as stream:
                _show(stream, request.num_samples, sys.stdout)
    return 0


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _show(stream: TextStream, num_samples: int, output: TextIO) -> None:
    """Write the first sample as it comes, and the others, if any, under headings when all is there."""
    written, heading = WordWrap(output), _heading(0, num_samples)
    for piece in stream:
        if piece.sample == 0:
            written.write(heading + piece.text)
            heading = ""  # not before there is something: what is refused prints nothing
    written.write(heading + "\n")
    others = stream.response.responses[1:] if stream.response is not None else ()
    for sample, completion in enumerate(others, 1):
        written.write(f"{_heading(sample, num_samples)}{completion.text}\n")


def _heading(number: int, num_samples: int) -> str:
    return f"── {number + 1} of {num_samples} ──\n" if num_samples > 1 else ""
