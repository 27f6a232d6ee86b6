"""Take the text out of strangers' documents: a program for `relevance_gen.sandbox`."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from relevance_gen.documents.charset import decode
from relevance_gen.documents.extraction import extract, format_of, why_not

MAX_CHARS = 1 << 23
"""Most characters of text that one document may have."""


def answer(question: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``parts`` of a document, each its place and its text, and the ``trouble`` there was with it.

    Args:
        question: the ``name`` of the file, and its ``content`` as base64.
    """
    name, content = question["name"], base64.b64decode(question["content"])
    kind = format_of(name, content)
    if kind is None:
        text = decode(content)
        if text is None or len(text) > MAX_CHARS:
            trouble = (
                "is no text, PDF, HTML or Office file" if text is None else f"has more than {MAX_CHARS:,} characters"
            )
            return {"parts": [], "trouble": trouble}
        return {"parts": [({}, text)], "trouble": None}
    if (why := why_not(kind)) is not None:
        return {"parts": [], "trouble": f"{why} on the server" if kind == "PDF" else why}
    found = extract(content, kind, MAX_CHARS)
    return {"parts": [(dict(place), text) for place, text in found.parts], "trouble": found.trouble}
