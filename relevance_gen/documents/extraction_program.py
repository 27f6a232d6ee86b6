"""Extract the text of untrusted documents: a program for `relevance_gen.sandbox`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict

from relevance_gen.documents.extraction import read

MAX_CHARS = 1 << 23
"""Maximum characters of text of a document.

The part that exceeds it and the following parts are dropped with a warning.
"""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Extract the texts of the files of a request.

    Args:
        request: has ``files``, pairs of a file name and a size in bytes, and ``content``, the
            concatenated bytes of the files.

    Returns:
        A dictionary with the key ``documents``: a list with the fields of the `Extracted` of each
        file, as a dictionary.
    """
    documents = []
    start = 0
    for name, n_bytes in request["files"]:
        content = request["content"][start : start + n_bytes]
        documents.append(asdict(read(name, content, MAX_CHARS)))
        start += n_bytes
    return {"documents": documents}
