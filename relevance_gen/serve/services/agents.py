"""What agents ask of the folders and indexes that the server offers; the library for it is imported when needed."""

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
    from relevance_gen.agents.protocol import Exchange


@frozen
class Message:
    """A message as JSON, the headers of HTTP, which repeat a part of it, and the index that it asks, if any."""

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes
    named: IndexRef | None = None


@frozen
class Reply:
    """What is answered: a status of HTTP, and JSON, or nothing where the message was a notification."""

    status: int
    body: bytes


def check_folders(paths: Sequence[str]) -> None:
    """Raise now what would otherwise refuse every message: a folder is not there, or a package is not."""
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
    """Refuse messages where no folder and no index is offered, or a package is not there."""
    if not settings.folder and not settings.index:
        raise InvalidRequestError(
            "this server offers no folders and no indexes",
            remedy="start it with --folder or --index",
        )
    _check_package("--index")


@cache
def open_exchange(paths: tuple[str, ...]) -> Exchange:
    """Return what answers agents from some folders, which it begins to read the first time."""
    from relevance_gen.agents.folders import Folders
    from relevance_gen.agents.protocol import Exchange

    return Exchange(Folders.open(paths))
