"""``relevance-gen mcp``: serve folders and indexes to agents, by MCP over stdio."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec
from typing import TYPE_CHECKING

from relevance_gen.cli.arguments import not_empty
from relevance_gen.cli.models import add_model, load_runner
from relevance_gen.errors import InvalidRequestError, to_install
from relevance_gen.folders.root import name_folders
from relevance_gen.types import SearchResponse

if TYPE_CHECKING:
    from relevance_gen.agents.tools import NamedSearches, RefreshIndex


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.usage = "%(prog)s [OPTION ...] [FOLDER ...]"
    parser.epilog = (
        "Agents start this command; docs/agents.md has their configurations. Needs the extra mcp."
    )
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        type=not_empty,
        help="a folder to search (default: the working folder, unless there is an --index)",
    )
    parser.add_argument(
        "--index",
        action="append",
        default=[],
        type=not_empty,
        metavar="NAME=LOCATION",
        help="an index to search by name, as for relevance-gen serve (repeatable)",
    )
    add_model(parser)


def run(args: argparse.Namespace) -> int:
    """Serve agents until standard input ends; return status 0.

    The tool ``ask`` is offered only if the arguments choose a model.
    """
    if find_spec("mcp") is None:
        raise InvalidRequestError(f"this command needs a package: {to_install('mcp')}")
    indexes, refresh = _open_indexes(args.index) if args.index else ({}, _no_refresh)
    roots = name_folders(args.folders or ([] if indexes else ["."]))
    from relevance_gen.agents.protocol import serve_stdio

    with nullcontext() if args.model is None else load_runner(args, num_samples=1) as runner:
        serve_stdio(roots, runner, indexes, refresh)
    return 0


def _no_refresh(_name: str) -> None:
    return None


def _open_indexes(texts: Sequence[str]) -> tuple[NamedSearches, RefreshIndex]:
    """Begin to open the indexes of the option ``--index`` in background threads.

    Returns:
        The functions that search the indexes, by name, and the function that refreshes an index.

    Raises:
        InvalidRequestError: a text is not ``NAME=LOCATION``.
    """
    from relevance_gen.retrieval.params import SearchParams
    from relevance_gen.serve.flags import SETTINGS
    from relevance_gen.serve.services.indexes.index_registry import IndexRegistry
    from relevance_gen.serve.settings import Settings

    (setting,) = (setting for setting in SETTINGS if setting.flag == "--index")
    try:
        pairs = tuple(pair for text in texts for pair in setting.parse(text, setting.flag))
    except ValueError as error:
        raise InvalidRequestError(str(error)) from None
    registry = IndexRegistry(Settings(index=pairs))
    registry.start()

    def search(name: str, query: str, top_n: int) -> SearchResponse:
        params = [SearchParams(query, top_n, true_order=False, spans=True)]
        (response,) = registry.query(name, "", lambda index, _: index.answer_all(params))
        return response

    searches = {name: partial(search, name) for name in registry.names("")}
    return searches, partial(registry.start_refresh, client="")
