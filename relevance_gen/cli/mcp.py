"""``relevance-gen mcp``: let agents search folders, by the Model Context Protocol over stdio."""

from __future__ import annotations

import argparse
from contextlib import nullcontext
from importlib.util import find_spec

from relevance_gen.agents.folders import Folders
from relevance_gen.cli.arguments import not_empty
from relevance_gen.cli.generate import add_model, load_runner
from relevance_gen.errors import InvalidRequestError, to_install

_PACKAGE = "mcp"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.usage = "%(prog)s [OPTION ...] [FOLDER ...]"
    parser.epilog = "An agent starts it by itself; docs/agents.md has the lines for each. Needs the extra mcp."
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        type=not_empty,
        help="what may be searched (default: the working folder)",
    )
    add_model(parser)


def run(args: argparse.Namespace) -> int:
    """Serve until the standard input ends; without a model there is no tool that asks one."""
    if find_spec(_PACKAGE) is None:
        raise InvalidRequestError(f"this command needs a package: {to_install('mcp')}")
    folders = Folders.open(args.folders or ["."])
    from relevance_gen.agents.protocol import serve_stdio

    with nullcontext() if args.model is None else load_runner(args, num_samples=1) as runner:
        serve_stdio(folders, runner)
    return 0
