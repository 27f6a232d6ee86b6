"""What agents ask of the folders that the server offers; the library for it is imported where there are any."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from attrs import frozen

from relevance_gen.errors import InvalidRequestError, to_install

if TYPE_CHECKING:
    from relevance_gen.agents.protocol import Exchange


@frozen
class Message:
    """A message.

    Attributes:
        headers: those of HTTP, which repeat a part of it.
        body: it, as JSON.
    """

    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@frozen
class Reply:
    """What is answered.

    Attributes:
        status: of HTTP.
        body: as JSON; empty where the message was a notification.
    """

    status: int
    body: bytes


def check_folders(paths: Sequence[str]) -> None:
    """Raise now what would otherwise refuse every message.

    Raises:
        InvalidRequestError: a folder is not there, or a package is not.
    """
    if not paths:
        return
    from relevance_gen.agents.folders import Folders

    if find_spec("mcp") is None:
        raise InvalidRequestError(f"needs a package: {to_install('mcp')}", "--folder")
    try:
        Folders.open(paths)
    except InvalidRequestError as error:
        raise error.at("--folder") from None


def open_exchange(paths: Sequence[str]) -> Exchange | None:
    """Return what answers agents from some folders, which it begins to read; None where there are none."""
    if not paths:
        return None
    from relevance_gen.agents.folders import Folders
    from relevance_gen.agents.protocol import Exchange

    return Exchange(Folders.open(paths))
