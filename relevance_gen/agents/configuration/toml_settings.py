"""Changes one table of a TOML file and keeps everything else, also comments and the order."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from relevance_gen.errors import InvalidRequestError, to_install


def read_table(text: str, path: Sequence[str]) -> Any:
    """Return the value at a path of keys in a TOML document; None if it is missing.

    Raises:
        InvalidRequestError: the text is not TOML.
    """
    value: Any = _parse(text).unwrap()
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def set_table(
    text: str,
    path: Sequence[str],
    value: dict[str, object],
) -> str:
    """Return the text of a TOML document after the table at a path of keys is set to `value`.

    Members of the table that `value` does not have are removed.

    Args:
        text: the text of the document before the change.
        path: the keys from the outermost table to the table.
        value: the members of the table after the change.

    Raises:
        InvalidRequestError: the text is not TOML, or a value on the path is not a table.
    """
    import tomlkit
    from tomlkit.container import OutOfOrderTableProxy

    document = _parse(text)
    parent = document
    for depth, key in enumerate(path[:-1]):
        if key not in parent:
            parent.add(key, tomlkit.table(is_super_table=True))
        parent = parent[key]
        if not isinstance(parent, dict):
            raise InvalidRequestError("must be a table", ".".join(path[: depth + 1]))
    name = path[-1]
    existing = parent.get(name)
    if isinstance(existing, OutOfOrderTableProxy):  # tomlkit cannot delete all of its members
        del parent[name]
        existing = None
    table = existing if isinstance(existing, dict) else tomlkit.table()
    for key in [key for key in table if key not in value]:
        del table[key]
    for key, item in value.items():
        if table.get(key) != item:
            table[key] = item
    if table is not existing:
        parent[name] = table
    return tomlkit.dumps(document)


def remove_table(text: str, path: Sequence[str]) -> str:
    """Return a TOML document without the table at a path of keys; unchanged if it is missing.

    Raises:
        InvalidRequestError: the text is not TOML.
    """
    if read_table(text, path) is None:
        return text
    import tomlkit

    document = _parse(text)
    parent = document
    for key in path[:-1]:
        parent = parent[key]
    del parent[path[-1]]
    return tomlkit.dumps(document).rstrip("\n") + "\n"


def _parse(text: str) -> Any:
    """Return a document of tomlkit, which is imported only if it is needed.

    Raises:
        InvalidRequestError: the text is not TOML, or tomlkit is not installed.
    """
    if find_spec("tomlkit") is None:
        raise InvalidRequestError(f"this agent's settings need a package: {to_install('mcp')}")
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        return tomlkit.parse(text)
    except TOMLKitError as error:
        raise InvalidRequestError(f"must be TOML: {error}") from None
