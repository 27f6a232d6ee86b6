"""Check and name the folders that are searched, without the modules that search."""

from __future__ import annotations

import os
from collections.abc import Sequence

from relevance_gen.errors import InvalidRequestError


def check_root(root: str) -> None:
    """Check that a path is a folder that this process can read.

    Raises:
        InvalidRequestError: there is no such folder, or it cannot be read.
    """
    if not os.path.isdir(root):
        remedy = None
        if os.path.exists(root):
            remedy = "pass the folder that contains the file, and select the file with glob"
        raise InvalidRequestError.must_be("root", "an existing folder", root, remedy=remedy)
    if not os.access(root, os.R_OK | os.X_OK):
        raise InvalidRequestError.must_be("root", "a folder that may be read", root)


def name_folders(paths: Sequence[str]) -> dict[str, str]:
    """Return the absolute paths of folders by name.

    A single folder has the name "". Otherwise a folder is named after the last part of its path;
    if several folders have the same name, all but the first get a number, as in ``docs-2``.

    Raises:
        InvalidRequestError: a folder does not exist or is not readable.
    """
    roots: dict[str, str] = {}
    for root in dict.fromkeys(map(os.path.realpath, paths)):
        try:
            check_root(root)
        except InvalidRequestError as error:
            raise error.with_field("folders") from None
        base = root.rpartition("/")[2] or "root"
        name = base
        number = 2
        while name in roots:
            name = f"{base}-{number}"
            number += 1
        roots[name] = root
    if len(roots) == 1:
        return {"": next(iter(roots.values()))}
    return roots
