"""Files as chunks: their texts, cut at sentences, with the place and the headings that each stands under."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Final

from relevance_gen.chunking import spans
from relevance_gen.documents.charset import decode
from relevance_gen.documents.extraction import MAX_TITLE_CHARS, Extracted, extract, format_of, why_not
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
        has the ``source``, the ``line`` where they begin or their ``page``, ``slide`` or ``sheet``, the characters
        ``start`` to ``end`` of its text and, where the file was not read whole, why, as ``incomplete``.

    Raises:
        InvalidRequestError: an argument is not allowed, or there is nothing that can be read in a file; it is named.
        OSError: a file cannot be opened; it is named.
    """
    if isinstance(paths, str | PathLike) or not isinstance(paths, Sequence):
        raise InvalidRequestError.must_be("paths", "a list of files", paths)
    chunks: list[Chunk] = []
    for number, path in enumerate(paths):
        source = fspath(path)
        content = Path(source).read_bytes()
        kind = format_of(source, content)
        if kind is None:
            text = decode(content)
            found = Extracted([({}, text)]) if text is not None else Extracted(trouble="is binary, not text")
        else:
            why = why_not(kind)
            found = extract(content, kind) if why is None else Extracted(trouble=why)
        if not found.parts and found.trouble:
            raise InvalidRequestError(f"{source} {found.trouble}", f"paths[{number}]")
        for place, text in found.parts:
            chunks += cut(source, place, text, found.trouble, max_chars)
    return chunks


def cut(source: str, place: Place, text: str, trouble: str | None, max_chars: int) -> Iterator[Chunk]:
    """Yield the chunks of a text, or of a part of a document, as `read_documents` returns them."""
    where = {key: value for key, value in place.items() if key != "title"}
    starts, titles = _headings(text, str(place.get("title", "")), source)
    line, counted = 1, 0
    for start, end in spans(text, max_chars):
        line += text.count("\n", counted, start)
        counted = start
        metadata = {"source": source, **(where or {"line": line}), "start": start, "end": end}
        title = titles[bisect.bisect_right(starts, start) - 1]
        yield Chunk(text[start:end], metadata | ({INCOMPLETE: trouble} if trouble else {}), title=title)


def _headings(text: str, own: str, source: str) -> tuple[list[int], list[str]]:
    """Return where the headings of a text begin, and what is the title from there on; the first is the document's."""
    starts, titles, above = [-1], [own], list[str]()
    for heading in _HEADING.finditer(text) if source.lower().endswith(_WITH_HEADINGS) else ():
        if heading[1] is not None:
            name = heading[2].rstrip("# \t\r")[:MAX_TITLE_CHARS]
            above = [*above[: len(heading[1]) - 1], name]
            starts.append(heading.start())
            titles.append(" > ".join(dict.fromkeys(filter(None, [own, *above]))))
    return starts, titles
