"""Take what a file says: its text, or the texts of its pages, slides or sheets, cut into chunks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final, TypeAlias

from attrs import field, frozen

from relevance_gen.documents.charset import decode
from relevance_gen.documents.extraction import extract, format_of, why_not
from relevance_gen.documents.office import Place
from relevance_gen.documents.reading import INCOMPLETE, cut
from relevance_gen.errors import counted
from relevance_gen.types import Metadata

_BINARY: Final = "binary"


Cut: TypeAlias = tuple[int, int, int, int, int]
"""Where a chunk stands: its part's number, its first and its last line, counted from 1, the first character of the part
that it has, counted from 0, and the one behind its last."""


@frozen
class Reading:
    """What a file says.

    Attributes:
        parts: its texts in order, each with the page, slide or sheet that it is; {} for a whole file.
        trouble: why that is not all, to stand behind the file's name; None if it is all.
        kind: what kind of file it is, where that kind is not read at all, as ``binary`` is not; else None.
    """

    parts: list[tuple[Place, str]] = field(factory=list)
    trouble: str | None = None
    kind: str | None = None

    @classmethod
    def of(cls, name: str, content: bytes) -> Reading:
        """Take the texts out of a file's content; `name` tells of HTML."""
        kind = format_of(name, content)
        if kind is not None and (why := why_not(kind)):
            return cls(trouble=why, kind=kind)
        if kind is not None:
            extracted = extract(content, kind)
            return cls(extracted.parts, extracted.trouble)
        text = decode(content)
        return cls(trouble="is binary, not text", kind=_BINARY) if text is None else cls([({}, text)])

    def cut(self, name: str, max_chars: int) -> Iterator[tuple[str, str, Cut]]:
        """Yield its chunks of at most so many characters, the headings above each, and where it stands."""
        for number, (place, text) in enumerate(self.parts):
            for chunk in cut(name, {"title": place.get("title", "")}, text, None, max_chars):
                first, last, start, end = (chunk.metadata[key] for key in ("first_line", "last_line", "start", "end"))
                yield chunk.text, chunk.title, (number, first, last, start, end)


def metadata_of(path: str, place: Place, cut: Cut, trouble: str | None) -> Metadata:
    """Return what is said of a chunk to those who find it.

    That is the path, the first and the last line, or the page, slide or sheet, the characters of its text or of that,
    and why the file was not read whole, if it was not.
    """
    _, first_line, last_line, start, end = cut
    where = {key: value for key, value in place.items() if key != "title"}
    where = where or {"first_line": first_line, "last_line": last_line}
    return {"path": path, **where, "start": start, "end": end, **({INCOMPLETE: trouble} if trouble else {})}


def title_of(path: str, heading: str) -> str:
    """Return the title of a chunk: its file's folder and name, which often say what it is about, and its headings.

    >>> title_of("src/http/parser.c", ""), title_of("README.md", "Use > Options")
    ('http/parser.c', 'README.md > Use > Options')
    """
    name = "/".join(path.split("/")[-2:])
    return f"{name} > {heading}" if heading else name


def in_words(left_out: Mapping[tuple[str, str], int], n_links: int) -> Iterator[str]:
    """Say what of a folder is not searched.

    Args:
        left_out: number of files by their kind and why that is not read.
        n_links: number of symbolic links.

    >>> list(in_words({("binary", "is binary, not text"): 2}, 1))
    ['skipped 2 binary files', 'skipped 1 symbolic link; --follow follows them']
    """
    for (kind, why), number in left_out.items():
        yield f"skipped {counted(number, f'{kind} file')}" + ("" if kind == _BINARY else f": each {why}")
    if n_links:
        yield f"skipped {counted(n_links, 'symbolic link')}; --follow follows them"
