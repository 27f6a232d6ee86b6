"""Extract the text of untrusted documents: a program for `relevance_gen.sandbox`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict

from relevance_gen.documents.extraction import read

MAX_CHARS = 1 << 23
"""Maximum characters of text of one document; the text before the limit is returned with a warning."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Extracted` for a file; the request has its ``name`` and its ``content`` as bytes."""
    return asdict(read(request["name"], request["content"], MAX_CHARS))
