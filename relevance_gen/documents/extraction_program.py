"""Extract the text of untrusted documents: a program for `relevance_gen.sandbox`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict

from relevance_gen.documents.extraction import read

MAX_CHARS = 1 << 23
"""Maximum characters of text of a document; the rest is dropped with a warning."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of `Extracted` for the ``content`` of a file with a ``name``."""
    return asdict(read(request["name"], request["content"], MAX_CHARS))
