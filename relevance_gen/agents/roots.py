"""The names of the folders that agents search, without the modules that search."""

from __future__ import annotations

import os
from collections.abc import Sequence

from relevance_gen.errors import InvalidRequestError
from relevance_gen.folders.root import check_root


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
