"""The command line: ``relevance-gen search``, ``generate`` and ``serve``. Only the command in use is loaded."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Callable, Sequence

import relevance_gen
from relevance_gen.errors import RelevanceGenError

PROGRAM = "relevance-gen"

FAILED, BROKEN_PIPE, INTERRUPTED = 2, 128 + 13, 128 + 2
"""Exit statuses: as grep's for an error, and as shells report death by SIGPIPE and SIGINT."""

_COMMANDS = {
    "search": ("relevance_gen.cli.search", "find what answers a question in files"),
    "generate": ("relevance_gen.cli.generate", "continue a text with a language model"),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command that `argv` names, and return its exit status.

    Args:
        argv: the arguments behind the program's name; those of the process if not given.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        status = _command(arguments)()
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
    if arguments[:1] == ["serve"]:
        return lambda: _serve(arguments[1:])
    parser = argparse.ArgumentParser(prog=PROGRAM, description=relevance_gen.__doc__)
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {relevance_gen.__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for name, (module, purpose) in _COMMANDS.items():
        command = commands.add_parser(name, help=purpose, description=purpose.capitalize() + ".")
        if arguments[:1] == [name]:
            loaded = importlib.import_module(module)
            loaded.add_arguments(command)
            command.set_defaults(run=loaded.run)
    commands.add_parser("serve", help="serve both over HTTP (needs the extra: server)")
    parsed = parser.parse_args(arguments)
    return lambda: int(parsed.run(parsed))


def _serve(arguments: list[str]) -> int:
    try:
        server = importlib.import_module("relevance_gen.serve.processes.command")
    except ModuleNotFoundError as error:
        sys.stderr.write(f"{PROGRAM}: {error}; install it with: pip install 'relevance_gen[server]'\n")
        return FAILED
    return int(server.main(arguments, os.environ))
