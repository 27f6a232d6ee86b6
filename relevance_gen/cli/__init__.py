"""The command line, ``relevance-gen``: search, ask, index, generate, mcp, serve. Only the command in use is loaded."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence

import relevance_gen
from relevance_gen.cli.arguments import Parser
from relevance_gen.errors import InvalidRequestError, RelevanceGenError, did_you_mean
from relevance_gen.serve.__main__ import main as serve

PROGRAM = "relevance-gen"

FAILED, BROKEN_PIPE, INTERRUPTED = 2, 128 + 13, 128 + 2
"""Exit statuses: as grep's for an error, and as shells report death by SIGPIPE and SIGINT."""

_COMMANDS = {
    "search": ("relevance_gen.cli.search", "find what answers a question in files"),
    "ask": ("relevance_gen.cli.ask", "answer a question from files with a language model"),
    "index": ("relevance_gen.cli.index", "keep an index of files, or of records, in a file"),
    "generate": ("relevance_gen.cli.generate", "continue a text with a language model"),
    "mcp": ("relevance_gen.cli.mcp", "let agents search folders, by the Model Context Protocol"),
}


def main(
    argv: Sequence[str] | None = None, *, when_loaded: Callable[[], object] = lambda: None
) -> int:
    """Run the command that `argv` names, by default the process's own arguments, and return its exit status.

    `when_loaded` is called when the command's modules are loaded and its arguments understood.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # a text may hold what the terminal has no character for
        sys.stdout.reconfigure(errors="replace")
    try:
        command = _command(arguments)
        when_loaded()
        status = command()
        sys.stdout.flush()
    except RelevanceGenError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return FAILED
    except BrokenPipeError:
        # Python flushes stdout once more when it exits, and would complain then.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _command(arguments: list[str]) -> Callable[[], int]:
    """Parse `arguments` and return what runs the command; options of other commands are not even loaded."""
    name = arguments[0] if arguments else ""
    if name == "serve":
        return lambda: serve(arguments[1:])
    parser = Parser(
        prog=PROGRAM,
        description="Search the text you have in hand, and generate from what you found.",
        epilog=f"{PROGRAM} COMMAND --help tells of its options.",
    )
    parser.add_argument(
        "--version", action="version", version=f"{PROGRAM} {relevance_gen.__version__}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    parsers: dict[str, Parser] = {
        command: commands.add_parser(command, help=purpose, description=purpose.capitalize() + ".")
        for command, (_, purpose) in _COMMANDS.items()
    }
    commands.add_parser("serve", help="serve all of it over HTTP (needs the extra: server)")
    if name in _COMMANDS:
        loaded = importlib.import_module(_COMMANDS[name][0])
        loaded.add_arguments(parsers[name])
        parsed = parsers[name].parse(arguments[1:])
        return lambda: _run(loaded.run, parsed, parsers[name])
    if name and not name.startswith("-"):
        hint = did_you_mean(name, commands.choices, f"commands are {', '.join(commands.choices)}")
        parser.error(f"there is no command {name!a}; {hint}")
    if not name:
        parser.error(f"a command is missing; commands are {', '.join(commands.choices)}")
    if name not in ("-h", "--help", "--version"):
        parser.refuse([name])
    parser.parse_args(arguments)
    raise AssertionError("a parser without its command ends the process")


def _run(
    run: Callable[[argparse.Namespace], int], parsed: argparse.Namespace, parser: Parser
) -> int:
    try:
        return run(parsed)
    except InvalidRequestError as error:
        raise parser.in_its_words(error) from None
