"""Files as chunks: their texts, cut at sentences, with the place and the headings that each stands under."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from relevance_gen.chunking import spans
from relevance_gen.documents.extraction import MAX_TITLE_CHARS, read
from relevance_gen.documents.office import Place
from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import Chunk

INCOMPLETE: Final = "incomplete"
"""The key of metadata that says why the document of a chunk was not read whole."""
_WITH_HEADINGS: Final = (".md", ".markdown", ".mdx", ".htm", ".html", ".xhtml", ".docx", ".odt")
_HEADING: Final = re.compile(r"^(?:```.*?^```|(#{1,6})[ \t]+(\S[^\n]*))", re.MULTILINE | re.DOTALL)


def read_documents(paths: Sequence[str | PathLike[str]], max_chars: int = 1000) -> list[Chunk]:
    """Read files, texts in any encoding, PDF, HTML and Office, and cut what they say into chunks.

    Args:
        paths: the files.
        max_chars: most characters of a chunk, at least 1.

    Returns:
        The chunks of each file in order. Their title is that of the document and the headings above. Their metadata
        has the ``path``, the ``first_line`` and ``last_line`` or the ``page``, ``slide`` or ``sheet``, the characters
        ``start`` to ``end`` of its text and, where the file was not read whole, why, as ``incomplete``.

    Raises:
        InvalidRequestError: an argument is not allowed, or there is nothing that can be read in a file; it is named.
        OSError: a file cannot be opened; it is named.
    """
    if (
        isinstance(paths, str)
        or not isinstance(paths, Sequence)
        or not all(isinstance(p, str | PathLike) for p in paths)
    ):
        raise InvalidRequestError.must_be("paths", "a list of files", paths)
    chunks: list[Chunk] = []
    for number, path in enumerate(paths):
        name = fspath(path)
        found = read(name, Path(name).read_bytes())
        if not found.parts and found.trouble:
            raise InvalidRequestError(f"{name} {found.trouble}", f"paths[{number}]")
        for place, text in found.parts:
            chunks += cut(name, place, text, found.trouble, max_chars)
    return chunks


def cut(path: str, place: Place, text: str, trouble: str | None, max_chars: int) -> Iterator[Chunk]:
    """Yield the chunks of a text, or of a part of a document, as `read_documents` returns them."""
    own = str(place.get("title", ""))
    where = {key: value for key, value in place.items() if key != "title"}
    headings = _HEADING.finditer(text) if path.lower().endswith(_WITH_HEADINGS) else iter(())
    heading = next(headings, None)
    above: list[str] = []
    line, counted = 1, 0
    for start, end in spans(text, max_chars):
        line += text.count("\n", counted, start)
        counted = start
        while heading is not None and heading.start() <= start:
            if heading[1] is not None:  # and no fenced code
                above = [*above[: len(heading[1]) - 1], heading[2][:MAX_TITLE_CHARS].rstrip("# \t\r")]
            heading = next(headings, None)
        title = " > ".join(dict.fromkeys(filter(None, [own, *above])))
        lines = {"first_line": line, "last_line": line + text.count("\n", start, end)}
        metadata = {"path": path, **(where or lines), "start": start, "end": end}
        yield Chunk(text[start:end], metadata | ({INCOMPLETE: trouble} if trouble else {}), title=title)
