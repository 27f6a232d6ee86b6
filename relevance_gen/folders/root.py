"""Check the folder that an index reads. This module does not import the modules that search."""

from __future__ import annotations

import os

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
