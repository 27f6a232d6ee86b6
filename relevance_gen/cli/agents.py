"""``relevance-gen agents``: write the MCP entry into the settings of coding agents."""

from __future__ import annotations

import argparse
import sys

from relevance_gen.agents.configuration.installation import (
    AGENTS,
    plan_install,
    plan_uninstall,
    select_agents,
)
from relevance_gen.cli.arguments import not_empty
from relevance_gen.errors import InvalidRequestError

_DEFAULT_NAME = "search"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.usage = "%(prog)s install|uninstall [OPTION ...] [FOLDER ...]"
    parser.epilog = f"Agents: {', '.join(AGENTS)}. Everything else in their settings is kept."
    parser.add_argument("action", choices=("install", "uninstall"), help="what to do")
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        type=not_empty,
        help="a folder to search (default: the folder in which the agent works)",
    )
    parser.add_argument(
        "--agent",
        action="append",
        default=[],
        metavar="NAME",
        type=not_empty,
        help="an agent (repeatable; default: all that are installed)",
    )
    parser.add_argument(
        "--name",
        default=_DEFAULT_NAME,
        type=not_empty,
        help=f"name of the entry (default: {_DEFAULT_NAME})",
    )
    parser.add_argument(
        "--dry-run", action="store_true", help="show the changes without writing them"
    )


def run(args: argparse.Namespace) -> int:
    """Show the changes of all settings, then write the files; return status 0.

    No file is written if any of the changes is invalid, or with ``--dry-run``.
    """
    if args.action == "uninstall" and args.folders:
        raise InvalidRequestError("uninstall takes no folders", remedy="leave them out")
    agents = select_agents(args.agent)
    if args.action == "install":
        changes = [plan_install(agent, args.name, args.folders) for agent in agents]
    else:
        changes = [plan_uninstall(agent, args.name) for agent in agents]
    for agent, change in zip(agents, changes, strict=True):
        diff = change.diff()
        sys.stdout.write(diff or f"{agent.title}: {change.path} needs no change\n")
    if args.dry_run:
        return 0
    for agent, change in zip(agents, changes, strict=True):
        try:
            change.write()
        except OSError as error:
            reason = error.strerror or error
            raise InvalidRequestError(f"{change.path} cannot be written: {reason}") from None
        if change.old_text != change.new_text:
            sys.stdout.write(f"{agent.title}: wrote {change.path}; restart the agent\n")
    return 0
