"""Split files into chunks with their locations and the headings above them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike, fspath
from pathlib import Path
from typing import Final, NamedTuple

from attrs import frozen

from relevance_gen.checks import check_path
from relevance_gen.documents.extraction import MAX_TITLE_CHARS, Extracted, read
from relevance_gen.documents.office import PartLocation
from relevance_gen.errors import InvalidRequestError
from relevance_gen.text.chunking import spans
from relevance_gen.text.token_counting import Encoding
from relevance_gen.types import Chunk, Metadata

INCOMPLETE: Final = "incomplete"
"""The metadata key with the reason why the document of a chunk was not read completely."""

_HEADING: Final = re.compile(
    r"^(?:```.*?(?:^```|\Z)|(#{1,6})[ \t]+(\S[^\n]*))", re.MULTILINE | re.DOTALL
)
"""Matches a Markdown heading, or a block of fenced code, in which ``#`` is not a heading."""
_FIRST_LINE: Final = re.compile(r"\s*+([^\W_](?:[^\n]*[^\W_])?)[^\S\n]*+\n[^\S\n]*+\n\s*+\S")
"""Matches a first line without final punctuation, followed by an empty line and further text.

The pattern is applied to the first `MAX_TITLE_CHARS` × 4 characters of a text.
"""
_MAX_TITLE_WORDS: Final = 12


class ChunkLocation(NamedTuple):
    """The location of a chunk in its document.

    Attributes:
        part: the index of the part of the document, from 0.
        first_line: the number of the chunk's first line in the part, from 1.
        last_line: the number of its last line in the part.
        start: the position of its first character in the text of the part, from 0.
        end: the position after its last character.
    """

    part: int
    first_line: int
    last_line: int
    start: int
    end: int


@frozen
class DocumentChunk:
    """A chunk of a document.

    Attributes:
        text: the text of the chunk.
        headings: the title of the part and the headings above the chunk, joined by `` > ``.
        location: the location of the chunk in the document.
    """

    text: str
    headings: str
    location: ChunkLocation


def read_documents(
    paths: Sequence[str | PathLike[str]],
    max_chars: int = 1000,
) -> list[Chunk]:
    """Read text files and documents of many formats, and split them into chunks.

    Text is decoded by its byte-order mark (UTF-8, UTF-16 or UTF-32), by the encoding that a web
    page or an e-mail declares, as UTF-8, or else as Windows-1252.

    Args:
        paths: the files.
        max_chars: maximum characters of a chunk, at least 1.

    Returns:
        The chunks of each file in order. The title of a chunk consists of the folder and name of
        the file, the title of the document and the headings above the chunk. Its metadata has
        ``path``, then ``first_line`` and ``last_line`` or the ``page``, ``slide``, ``sheet`` or
        ``chapter``, then ``start`` and ``end``, the range of its characters in the text of the file
        or of that page, slide, sheet or chapter. If the file was not read completely,
        ``incomplete`` has the reason.

    Raises:
        InvalidRequestError: an argument is invalid, or no text of a file can be read.
        OSError: a file cannot be opened.
    """
    if not isinstance(paths, Sequence) or isinstance(paths, str | bytes):
        remedy = "put a file in a list, or search a folder with FolderIndex"
        raise InvalidRequestError.must_be("paths", "a list of files", paths, remedy=remedy)
    for index, path in enumerate(paths):
        check_path(f"paths[{index}]", path)
    chunks: list[Chunk] = []
    for index, path in enumerate(paths):
        name = fspath(path)
        if Path(name).is_dir():
            remedy = "search a folder with FolderIndex"
            raise InvalidRequestError.must_be(f"paths[{index}]", "a file", name, remedy=remedy)
        extracted = read(name, Path(name).read_bytes())
        if not extracted.parts and extracted.warning:
            raise InvalidRequestError(f"{name} {extracted.warning}", f"paths[{index}]")
        chunks += document_chunks(name, extracted, max_chars)
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
    r"""Split a text as `split` does, into chunks whose titles are the headings above them.

    Headings are Markdown's (``# Title``, outside fenced code); the title of the text precedes them.
    By default, the title is the first line, if an empty line and further text follow it, it begins
    with a capital or a digit, ends without punctuation, and has at most 12 words and 200
    characters.

    Args:
        text: as for `split`.
        max_chars: as for `split`.
        title: the title of the text; "" to use its first line.
        overlap: as for `split`.
        tokens: as for `split`.
        encoding: as for `split`.

    Returns:
        The chunks in order. Their metadata has ``first_line`` and ``last_line``, from 1, and
        ``start`` and ``end``, the range of the chunk's characters in `text`.

    Raises:
        InvalidRequestError: an argument is invalid; the error names it.

    >>> text = "Tea\n\n# Green\nIt is so.\n\n# Black\nIt is not."
    >>> [chunk.title for chunk in split_document(text, max_chars=20)]
    ['Tea', 'Tea > Green', 'Tea > Black']
    """
    if not isinstance(title, str):
        raise InvalidRequestError.must_be("title", "a string", title)
    if not isinstance(text, str):
        raise InvalidRequestError.must_be("text", "a string", text)
    own_title = title or _first_line_title(text)
    chunk_spans = spans(text, max_chars, overlap=overlap, tokens=tokens, encoding=encoding)
    chunks = []
    for chunk in _locate(text, chunk_spans, own_title, has_headings=True):
        metadata = chunk.location._asdict()
        del metadata["part"]
        chunks.append(Chunk(chunk.text, metadata, title=chunk.headings))
    return chunks


def document_chunks(
    path: str, extracted: Extracted, max_chars: int, name: str | None = None
) -> Iterator[Chunk]:
    """Yield the chunks of a file as `read_documents` returns them.

    Args:
        path: the path of the file, for the metadata.
        extracted: the text of the file.
        max_chars: maximum characters of a chunk.
        name: the name of the file with which titles begin; None to use the last folder and the file
            name in `path`, "" for no name.
    """
    for chunk in split_parts(extracted, max_chars):
        part_location = extracted.parts[chunk.location.part][0]
        metadata = chunk_metadata(path, part_location, chunk.location, extracted.warning)
        title = chunk_title(path if name is None else name, chunk.headings)
        yield Chunk(chunk.text, metadata, title=title)


def split_parts(extracted: Extracted, max_chars: int) -> Iterator[DocumentChunk]:
    """Yield chunks of at most `max_chars` characters of each part of a document, in order."""
    for part, (location, text) in enumerate(extracted.parts):
        title = str(location.get("title", ""))
        if not location:
            title = _first_line_title(text)
        chunk_spans = spans(text, max_chars)
        has_headings = extracted.has_headings
        yield from _locate(text, chunk_spans, title, has_headings=has_headings, part=part)


def chunk_metadata(
    path: str, part_location: PartLocation, location: ChunkLocation, warning: str | None
) -> Metadata:
    """Return the metadata of a chunk, as described in `read_documents`.

    Args:
        path: the path of the file.
        part_location: the location of the part that contains the chunk, such as a page number.
        location: the lines and characters of the chunk in this part.
        warning: why the file was not read completely; None if it was.
    """
    metadata: dict[str, str | int] = {"path": path}
    metadata |= {key: value for key, value in part_location.items() if key != "title"}
    if len(metadata) == 1:
        metadata |= {"first_line": location.first_line, "last_line": location.last_line}
    metadata |= {"start": location.start, "end": location.end}
    if warning:
        metadata[INCOMPLETE] = warning
    return metadata


def chunk_title(path: str, headings: str) -> str:
    """Return the title of a chunk: the last folder and the name of its file, then its headings.

    Args:
        path: the path of the file, with slashes.
        headings: the headings of the chunk, joined by `` > ``; "" for none.

    >>> chunk_title("src/http/parser.c", ""), chunk_title("README.md", "Use > Options")
    ('http/parser.c', 'README.md > Use > Options')
    """
    name = "/".join(path.split("/")[-2:])
    return " > ".join(filter(None, [name, headings]))


def _locate(
    text: str,
    chunk_spans: Iterable[tuple[int, int]],
    title: str,
    *,
    has_headings: bool,
    part: int = 0,
) -> Iterator[DocumentChunk]:
    """Yield the chunk of each span of a text, with the headings above it and its location.

    Args:
        text: the text of a part.
        chunk_spans: start and end of each chunk; the starts must ascend.
        title: the title of the text, which precedes the headings; "" for none.
        has_headings: whether the text can contain Markdown headings.
        part: the index of the part in its document.
    """
    headings = _HEADING.finditer(text) if has_headings else iter(())
    heading = next(headings, None)
    enclosing_headings: list[str] = []
    line = 1
    n_counted = 0  # characters before which lines are counted
    for start, end in chunk_spans:
        line += text.count("\n", n_counted, start)
        n_counted = start
        while heading is not None and heading.start() <= start:
            marks, words = heading.groups()
            if marks is not None:  # otherwise fenced code
                title_words = words[:MAX_TITLE_CHARS].rstrip("# \t\r")
                enclosing_headings = [*enclosing_headings[: len(marks) - 1], title_words]
            heading = next(headings, None)
        names = dict.fromkeys(filter(None, [title, *enclosing_headings]))
        last_line = line + text.count("\n", start, end)
        location = ChunkLocation(part, line, last_line, start, end)
        yield DocumentChunk(text[start:end], " > ".join(names), location)


def _first_line_title(text: str) -> str:
    """Return the first line of a text if it is a title by the rule of `split_document`, else ""."""
    match = _FIRST_LINE.match(text[: 4 * MAX_TITLE_CHARS])
    title = match[1] if match else ""
    begins_like_title = title[:1].isupper() or title[:1].isdigit()
    is_short = len(title) <= MAX_TITLE_CHARS and len(title.split()) <= _MAX_TITLE_WORDS
    return title if begins_like_title and is_short else ""
