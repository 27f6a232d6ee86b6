"""``relevance-gen generate``: continue a text with a language model."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final, TextIO

import attrs

from relevance_gen.cli.arguments import STDIN, integer, number, quote
from relevance_gen.cli.models import add_model, load_runner, option_flag
from relevance_gen.cli.terminal import StatusLine, WordWrap, write_json
from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.stream import TextStream
from relevance_gen.llama.model_files.resolve import is_embedded
from relevance_gen.types import GenerationRequest

_EMBEDDED: Final = (
    "the small embedded model is used: it can only copy a sentence of a context; "
    "choose another model with --model"
)


def _bias(text: str) -> tuple[str, float]:
    token, equals, bias = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"must be ID=BIAS, got {quote(text)}")
    return token, number(bias)


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


_INTEGER: dict[str, Any] = {"type": integer, "metavar": "N"}
_INTEGERS = _INTEGER | {"nargs": "+"}
_NUMBER: dict[str, Any] = {"type": number, "metavar": "N"}
_REPEATABLE: dict[str, Any] = {"action": "append"}
_SWITCH: dict[str, Any] = {"action": "store_true", "default": None}

_GROUPS: dict[str, dict[str, tuple[dict[str, Any], str]]] = {
    "length": {
        "max_tokens": (_INTEGER, "maximum tokens of each sample"),
        "num_samples": (_INTEGER, "number of independent completions"),
        "stop": (_REPEATABLE, "end a sample at this text (repeatable)"),
        "seed": (_INTEGER, "random seed, for repeatable samples"),
        "min_tokens": (_INTEGER, "minimum tokens of each sample"),
        "eos_token_ids": (_INTEGERS, "ids of tokens that end a sample"),
        "max_input_tokens": (_INTEGER, "use only the last N tokens of the prompt, 0 for all"),
    },
    "structured output": {
        "json_schema": ({"type": _json_content, "metavar": "FILE"}, "JSON schema of each sample"),
        "regex": ({"metavar": "REGEX"}, "regular expression that matches each whole sample"),
        "grammar": (
            {"type": _content, "metavar": "FILE"},
            "grammar of each sample, in Lark as of llguidance, or in GBNF",
        ),
        "choice": (_REPEATABLE, "a text that each sample must be one of (repeatable)"),
    },
    "sampling": {
        "temperature": (_NUMBER, "0 for the most likely text; higher values vary more"),
        "top_k": (_INTEGER, "sample from the N most likely tokens, 0 for all"),
        "top_p": (_NUMBER, "sample from the most likely tokens with this total probability"),
        "min_p": (_NUMBER, "minimum probability of a token relative to the most likely token"),
        "presence_penalty": (_NUMBER, "penalty for tokens that were generated before"),
        "frequency_penalty": (_NUMBER, "penalty for each time that a token was generated before"),
        "repetition_penalty": (
            _NUMBER,
            "divisor of the logits of tokens that were generated before, 1 for off",
        ),
        "logit_bias": (
            {"type": _bias, "nargs": "+", "metavar": "ID=BIAS"},
            "add BIAS, from -100 to 100, to the logit of a token",
        ),
        "allowed_token_ids": (_INTEGERS, "sample only tokens with these ids"),
    },
    "additional output of --json": {
        "logprobs": (_SWITCH, "log probabilities of the tokens"),
        "top_logprobs": (_INTEGER, "the N most likely tokens at each position"),
        "prompt_logprobs": (_SWITCH, "log probabilities of the prompt"),
        "return_tokens": (_SWITCH, "ids of the tokens"),
    },
}
"""The options of argparse and the help for each field of `GenerationRequest` except the text."""

_PARAMETERS = {name: described for group in _GROUPS.values() for name, described in group.items()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.usage = "%(prog)s [OPTION ...] [PROMPT]"
    parser.add_argument(
        "text",
        metavar="PROMPT",
        nargs="?",
        default=STDIN,
        help="the text to continue, after -- if it begins with -; - or no text reads standard input",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the response as JSON, as the server does"
    )
    for heading, parameters in _GROUPS.items():
        add_parameters(parser.add_argument_group(heading), *parameters)
    add_model(parser)


def add_parameters(parser: argparse._ActionsContainer, *names: str, **defaults: object) -> None:
    """Add an option for each named field of a request.

    `defaults` are shown in the help for fields whose default differs from the request's own.
    """
    defaults = {field.name: field.default for field in attrs.fields(GenerationRequest)} | defaults
    for name in names:
        options, purpose = _PARAMETERS[name]
        if type(defaults[name]) in (int, float):
            purpose += f" (default: {defaults[name]})"
        # Not --json-schema, because --json is the format of the output.
        flag = "--schema" if name == "json_schema" else option_flag(name)
        parser.add_argument(flag, dest=name, help=purpose, **options)


def request_fields(args: argparse.Namespace) -> dict[str, Any]:
    """Return the fields of a request whose options the command line sets."""
    fields = {name: getattr(args, name, None) for name in _PARAMETERS}
    if fields["logit_bias"] is not None:
        fields["logit_bias"] = dict(fields["logit_bias"])
    return {name: value for name, value in fields.items() if value is not None}


def run(args: argparse.Namespace) -> int:
    """Generate, print the text as it arrives, and return the exit status."""
    text = args.text
    if text == STDIN:
        if sys.stdin is None or sys.stdin.isatty():
            raise InvalidRequestError(
                "must be a text to continue",
                "PROMPT",
                remedy="pass it as an argument or pipe it in",
            )
        text = sys.stdin.read()
    request = GenerationRequest(text=text, **request_fields(args))
    if is_embedded(args.model):
        StatusLine(sys.stderr).print(_EMBEDDED)
    with load_runner(args, request.num_samples) as runner:
        if args.json:
            write_json(runner.generate(request))
        else:
            with runner.stream(request) as stream:
                _show(stream, request.num_samples, sys.stdout)
    return 0


def _show(stream: TextStream, num_samples: int, output: TextIO) -> None:
    """Write the text of the first sample as it arrives, and further samples after its end.

    With several samples, each has a heading.
    """
    written = WordWrap(output)
    heading = _heading(0, num_samples)
    for piece in stream:
        if piece.sample == 0:
            written.write(heading + piece.text)
            heading = ""  # only with the first text, as a refused request prints nothing
    written.write(heading + "\n")
    others = stream.response.responses[1:] if stream.response is not None else ()
    for sample, completion in enumerate(others, 1):
        written.write(f"{_heading(sample, num_samples)}{completion.text}\n")


def _heading(sample: int, num_samples: int) -> str:
    return f"── {sample + 1} of {num_samples} ──\n" if num_samples > 1 else ""
