"""Messages of agents in the Model Context Protocol.

The `agents` package is imported when it is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING

from attrs import frozen

from relevance_gen.errors import InvalidRequestError, to_install
from relevance_gen.serve.services.indexes.index_registry import IndexRef
from relevance_gen.serve.settings import Settings

if TYPE_CHECKING:
    from relevance_gen.agents.protocol import McpExchange


@frozen
class Message:
    """A message of an agent.

    Attributes:
        headers: the HTTP headers, which repeat a part of the message.
        body: the message as JSON.
        index: the index that a tool call refers to, if any.
    """

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    index: IndexRef | None = None


@frozen
class Reply:
    """The reply to a message.

    Attributes:
        status: the HTTP status.
        body: the JSON of the reply; empty if the message is a notification.
    """

    status: int
    body: bytes


def check_folders(paths: Sequence[str]) -> None:
    """Check the folders that the server offers to agents; without folders, check nothing.

    Raises:
        InvalidRequestError: a folder does not exist, or the package for agents is not installed.
    """
    if not paths:
        return
    from relevance_gen.agents.folders import Folders

    _check_package("--folder")
    try:
        Folders.open(paths)
    except InvalidRequestError as error:
        raise error.with_field("--folder") from None


def _check_package(flag: str) -> None:
    if find_spec("mcp") is None:
        raise InvalidRequestError(f"needs a package: {to_install('mcp')}", flag)


def check_offers(settings: Settings) -> None:
    """Check that the server can answer agents.

    Raises:
        InvalidRequestError: it offers no folder and no index, or the package for agents is not
            installed.
    """
    if not settings.folder and not settings.index:
        raise InvalidRequestError(
            "this server offers no folders and no indexes",
            remedy="start it with --folder or --index",
        )
    _check_package("--index")


@cache
def open_exchange(paths: tuple[str, ...]) -> McpExchange:
    """Return the object that answers agents about these folders, the same for each call.

    The first call begins to read the folders in the background.
    """
    from relevance_gen.agents.folders import Folders
    from relevance_gen.agents.protocol import McpExchange

    return McpExchange(Folders.open(paths))
