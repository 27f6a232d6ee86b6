"""Take the text out of strangers' documents: a program for `relevance_gen.sandbox`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from relevance_gen.documents.extraction import read

MAX_CHARS = 1 << 23
"""Most characters of text that one document may have."""


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``parts`` of a document, each its place and its text, and the ``warning`` there was with it.

    The question has the ``name`` of the file, and its ``content`` as base64.
    """
    found = read(question["name"], base64.b64decode(question["content"]), MAX_CHARS)
    warning = found.warning
    if warning is not None and warning.startswith("needs "):
        warning += " on the server"
    return {"parts": [(dict(place), text) for place, text in found.parts], "warning": warning}
