"""The command line, ``relevance-gen``; only the modules of the command in use are imported."""

from __future__ import annotations

import argparse
import importlib
import io
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial

import relevance_gen
from relevance_gen.cli.arguments import CommandParser
from relevance_gen.errors import InvalidRequestError, RelevanceGenError, did_you_mean
from relevance_gen.serve.__main__ import main as serve

PROGRAM = "relevance-gen"

FAILED = 2
"""The exit status of an error, as grep's."""
BROKEN_PIPE = 128 + 13
"""The exit status that shells report for SIGPIPE."""
INTERRUPTED = 128 + 2
"""The exit status that shells report for SIGINT."""

_COMMANDS = {
    "search": ("relevance_gen.cli.search", "find the passages of files that answer a question"),
    "ask": ("relevance_gen.cli.ask", "answer a question from files with a language model"),
    "index": ("relevance_gen.cli.index", "save an index of files or records"),
    "generate": ("relevance_gen.cli.generate", "continue a text with a language model"),
    "mcp": ("relevance_gen.cli.mcp", "serve folders to agents, by the Model Context Protocol"),
    "agents": ("relevance_gen.cli.agents", "configure coding agents to start relevance-gen mcp"),
}


def main(
    argv: Sequence[str] | None = None,
    *,
    when_loaded: Callable[[], object] = lambda: None,
) -> int:
    """Run a command and return its exit status.

    Args:
        argv: the arguments; by default those of the process.
        when_loaded: called once, after the modules of the command are imported and its arguments
            are parsed, and before the command runs.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    if sys.stdout is None and arguments[:1] != ["serve"]:
        sys.stderr.write(f"{PROGRAM}: standard output is closed; redirect it to a file\n")
        return FAILED
    if isinstance(sys.stdout, io.TextIOWrapper):  # the encoding may lack some characters
        sys.stdout.reconfigure(errors="replace")
    try:
        command = _parse_command(arguments)
        when_loaded()
        status = command()
        if sys.stdout is not None:
            sys.stdout.flush()
    except RelevanceGenError as error:
        sys.stderr.write(f"{PROGRAM}: {error}\n")
        return FAILED
    except BrokenPipeError:
        _discard_output()
        return BROKEN_PIPE
    except OSError as error:  # above all, the device of standard output is full
        _discard_output()
        name = f": {error.filename}" if error.filename else ""
        sys.stderr.write(f"{PROGRAM}: {error.strerror or error}{name}\n")
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    return status


def _discard_output() -> None:
    """Send standard output to the null device.

    Python flushes it when it exits, which must not fail again.
    """
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _parse_command(arguments: list[str]) -> Callable[[], int]:
    """Parse the arguments of the process, and return a function that runs the command they name.

    Ends the process if the arguments are invalid, or after ``--help`` or ``--version``.
    """
    name = arguments[0] if arguments else ""
    if name == "serve":
        return partial(serve, arguments[1:])
    parser = CommandParser(
        prog=PROGRAM,
        description="Search files and answer questions from them.",
        epilog=f"{PROGRAM} COMMAND --help shows the options of a command.",
    )
    parser.add_argument(
        "--version", action="version", version=f"{PROGRAM} {relevance_gen.__version__}"
    )
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for command, (_, purpose) in _COMMANDS.items():
        description = f"{purpose[0].upper()}{purpose[1:]}."
        commands.add_parser(command, help=purpose, description=description)
    commands.add_parser("serve", help="start the HTTP server (needs the extra server)")
    if name in _COMMANDS:
        module = importlib.import_module(_COMMANDS[name][0])
        command_parser = commands.choices[name]
        module.add_arguments(command_parser)
        parsed = command_parser.parse(arguments[1:])
        return partial(_run, module.run, parsed, command_parser)
    if name and not name.startswith("-"):
        hint = did_you_mean(name, commands.choices, f"commands are {', '.join(commands.choices)}")
        parser.error(f"there is no command {name!a}; {hint}")
    if not name:
        parser.error(f"a command is missing; commands are {', '.join(commands.choices)}")
    if name not in ("-h", "--help", "--version"):
        parser.refuse([name])
    parser.parse_args(arguments)
    raise AssertionError("--help and --version end the process")


def _run(
    run: Callable[[argparse.Namespace], int], parsed: argparse.Namespace, parser: CommandParser
) -> int:
    try:
        return run(parsed)
    except InvalidRequestError as error:
        raise parser.with_flags(error) from None
