"""Files as chunks: their texts, cut at sentences, with the place and the headings that each stands under."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Final, NamedTuple

from relevance_gen.documents.extraction import MAX_TITLE_CHARS, Extracted, read
from relevance_gen.documents.office import Place
from relevance_gen.errors import InvalidRequestError
from relevance_gen.text.chunking import spans
from relevance_gen.text.token_counting import Encoding
from relevance_gen.types import Chunk, Metadata

INCOMPLETE: Final = "incomplete"
"""The key of metadata that says why the document of a chunk was not read whole."""
_HEADING: Final = re.compile(
    r"^(?:```.*?(?:^```|\Z)|(#{1,6})[ \t]+(\S[^\n]*))", re.MULTILINE | re.DOTALL
)
_FIRST_LINE: Final = re.compile(r"\s*+([^\W_](?:[^\n]*[^\W_])?)[^\S\n]*+\n[^\S\n]*+\n\s*+\S")
_MOST_TITLE_WORDS: Final = 12


class ChunkLocation(NamedTuple):
    """Where a chunk stands: in which part of the document, from 0, and there in which lines, from 1.

    It has the characters of the part from `start`, from 0, up to, not including, `end`.
    """

    part: int
    first_line: int
    last_line: int
    start: int
    end: int


def read_documents(paths: Sequence[str | PathLike[str]], max_chars: int = 1000) -> list[Chunk]:
    """Read files, texts in any encoding and documents of many formats, and cut what they say into chunks.

    Args:
        paths: the files.
        max_chars: most characters of a chunk, at least 1.

    Returns:
        The chunks of each file in order. Their title is the file's folder and name, the document's own title and the
        headings above. Their metadata has the ``path``, the ``first_line`` and ``last_line`` or the ``page``,
        ``slide``, ``sheet`` or ``chapter``, the characters ``start`` to ``end`` of its text and, where the file was not
        read whole, why, as ``incomplete``.

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
        if not found.parts and found.warning:
            raise InvalidRequestError(f"{name} {found.warning}", f"paths[{number}]")
        chunks += chunks_of(name, found, max_chars)
    return chunks


def split_document(
    text: str,
    max_chars: int | None = None,
    *,
    title: str = "",
    overlap: int = 0,
    tokens: int | None = None,
    encoding: Encoding | None = None,
) -> list[Chunk]:
    r"""Cut a text as `split` does, into chunks whose titles are what the text itself says that they are about.

    That are Markdown's headings above (``# Title``, not in fenced code), below the text's own title: its first line, if
    it is apart by an empty line, begins with a capital or a digit, ends in no punctuation, and has at most 12 words.

    Args:
        text: as for `split`.
        max_chars: as for `split`.
        title: the text's own title, where it is known; "" to go by its first line.
        overlap: as for `split`.
        tokens: as for `split`.
        encoding: as for `split`.

    Returns:
        The chunks in order, with their ``first_line`` and ``last_line``, from 1, and characters ``start`` to ``end``.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.

    >>> [chunk.title for chunk in split_document("Tea\n\n# Green\nIt is so.\n\n# Black\nIt is not.", max_chars=20)]
    ['Tea', 'Tea > Green', 'Tea > Black']
    """
    if not isinstance(title, str):
        raise InvalidRequestError.must_be("title", "a string", title)
    places = spans(text, max_chars, overlap=overlap, tokens=tokens, encoding=encoding)
    headed = _headed(text, places, title or _own_title(text), has_headings=True)
    return [
        Chunk(
            text[cut.start : cut.end],
            dict(zip(ChunkLocation._fields[1:], cut[1:], strict=True)),
            title=heading,
        )
        for heading, cut in headed
    ]


def chunks_of(
    path: str, found: Extracted, max_chars: int, name: str | None = None
) -> Iterator[Chunk]:
    """Yield the chunks of a file that was read, as `read_documents` returns them; titles call it `name` or its path."""
    for text, heading, cut in cuts(found, max_chars):
        metadata = metadata_of(path, found.parts[cut.part][0], cut, found.warning)
        yield Chunk(text, metadata, title=title_of(path if name is None else name, heading))


def cuts(found: Extracted, max_chars: int) -> Iterator[tuple[str, str, ChunkLocation]]:
    """Yield the chunks of what was read of a file: the text, the document's title and the headings above, the place."""
    for number, (place, text) in enumerate(found.parts):
        own = str(place.get("title", "")) or ("" if place else _own_title(text))
        for heading, cut in _headed(
            text, spans(text, max_chars), own, has_headings=found.has_headings, part=number
        ):
            yield text[cut.start : cut.end], heading, cut


def metadata_of(path: str, place: Place, cut: ChunkLocation, warning: str | None) -> Metadata:
    """Return what is said of a chunk to those who find it, as `read_documents` tells it."""
    where = {key: value for key, value in place.items() if key != "title"}
    where = where or {"first_line": cut.first_line, "last_line": cut.last_line}
    return {
        "path": path,
        **where,
        "start": cut.start,
        "end": cut.end,
        **({INCOMPLETE: warning} if warning else {}),
    }


def title_of(path: str, heading: str) -> str:
    """Return the title of a chunk: its file's folder and name, which often say what it is about, and its headings.

    >>> title_of("src/http/parser.c", ""), title_of("README.md", "Use > Options")
    ('http/parser.c', 'README.md > Use > Options')
    """
    return " > ".join(filter(None, ["/".join(path.split("/")[-2:]), heading]))


def _headed(
    text: str, places: Iterator[tuple[int, int]], own: str, *, has_headings: bool, part: int = 0
) -> Iterator[tuple[str, ChunkLocation]]:
    """Yield the headings above each chunk of a text, below the text's own title, and where it stands."""
    headings = _HEADING.finditer(text) if has_headings else iter(())
    heading = next(headings, None)
    above: list[str] = []
    line, pluralize = 1, 0
    for start, end in places:
        line += text.count("\n", pluralize, start)
        pluralize = start
        while heading is not None and heading.start() <= start:
            if heading[1] is not None:  # and no fenced code
                above = [
                    *above[: len(heading[1]) - 1],
                    heading[2][:MAX_TITLE_CHARS].rstrip("# \t\r"),
                ]
            heading = next(headings, None)
        title = " > ".join(dict.fromkeys(filter(None, [own, *above])))
        yield title, ChunkLocation(part, line, line + text.count("\n", start, end), start, end)


def _own_title(text: str) -> str:
    """Return the first line of a text, if it is a title by the strict rule of `split_document`."""
    found = _FIRST_LINE.match(text[: 4 * MAX_TITLE_CHARS])
    title = found[1] if found else ""
    is_title = (title[:1].isupper() or title[:1].isdigit()) and len(
        title.split()
    ) <= _MOST_TITLE_WORDS
    return title if is_title and len(title) <= MAX_TITLE_CHARS else ""
