"""Extract the text of untrusted documents: a program for `relevance_gen.sandbox`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict

from relevance_gen.documents.extraction import read

MAX_CHARS = 1 << 23
"""Maximum characters of text of a document; the rest is dropped with a warning."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Return the ``documents``, the fields of `Extracted` for each file of a request.

    The request has the ``files``, pairs of a name and a size, and their joined ``content``.
    """
    documents = []
    start = 0
    for name, n_bytes in request["files"]:
        content = request["content"][start : start + n_bytes]
        documents.append(asdict(read(name, content, MAX_CHARS)))
        start += n_bytes
    return {"documents": documents}
