"""The text of Office files: Word, PowerPoint and Excel since 2007, and OpenDocument.

All are archives of XML, which the standard library reads piece by piece.
Sources: ECMA-376 (Office Open XML), ISO/IEC 26300 (OpenDocument).
"""

from __future__ import annotations

import contextlib
import posixpath
import re
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from io import BytesIO
from typing import Final, TypeAlias
from xml.parsers import expat

from attrs import define, field

Attributes: TypeAlias = Mapping[str, str]
Place: TypeAlias = Mapping[str, str | int]
"""Which part of a document: ``{"page": 3}``, ``{"slide": 3}``, ``{"sheet": "Prices"}``, or ``{}`` for the whole."""

MAX_UNPACKED_BYTES: Final = 1 << 28
"""Most bytes of XML in one file: more than a million pages have. An archive made to fill the memory has more."""
_MAX_HEAD_CHARS: Final = 50
"""So much of a column's head stands in each of its cells."""
_EMPTY_HEADING: Final = re.compile(r"^#+ \n", re.MULTILINE)
_TEXTS: Final = ("s", "str", "inlineStr")
"""Types of cells that hold a text."""
_HEADING: Final = re.compile("(?:heading ?)?([1-6])", re.IGNORECASE)
_PIECE_BYTES: Final = 1 << 16
_DAMAGED: Final = (
    zipfile.BadZipFile, zlib.error, expat.ExpatError, KeyError, IndexError, EOFError, NotImplementedError, RuntimeError
)  # fmt: skip
"""What zipfile and expat raise for bytes that are damaged, encrypted or packed in a way that is not known."""


class DocumentError(ValueError):
    """What is wrong with a document: a message to stand behind its name."""


@contextlib.contextmanager
def unpacked(content: bytes) -> Iterator[Archive]:
    """Open an archive for a while.

    A `DocumentError` says that what was read of it is damaged, encrypted, too large when unpacked, or not there.
    """
    try:
        with zipfile.ZipFile(BytesIO(content)) as packed:
            yield Archive(packed)
    except _DAMAGED as error:
        raise DocumentError(
            f"is damaged or encrypted ({str(error)[:100] or type(error).__name__})"
        ) from None


def members_of(content: bytes) -> frozenset[str]:
    """Return the names of what an archive holds; nothing of what is none."""
    try:
        with zipfile.ZipFile(BytesIO(content)) as packed:
            return frozenset(packed.namelist())
    except _DAMAGED:
        return frozenset()


@define
class Archive:
    """Feed the XML in an archive to functions, and end where it gets too much."""

    packed: zipfile.ZipFile
    _n_bytes: int = field(default=0, init=False)

    def __contains__(self, name: str) -> bool:
        return name in self.packed.NameToInfo

    def read(self, name: str) -> bytes:
        """Return what a member holds."""
        return b"".join(self._pieces(name))

    def spend(self, n_bytes: int) -> None:
        """Count what was unpacked, or made of it, and end where it gets too much."""
        self._n_bytes += n_bytes
        if self._n_bytes > MAX_UNPACKED_BYTES:
            raise DocumentError(f"has more than {MAX_UNPACKED_BYTES >> 20} MiB unpacked")

    def _pieces(self, name: str) -> Iterator[bytes]:
        with self.packed.open(name) as member:
            while piece := member.read(_PIECE_BYTES):
                self.spend(len(piece))
                yield piece

    def parse(
        self,
        name: str,
        start: Callable[[str, Attributes], object],
        end: Callable[[str], object] = lambda _tag: None,
        data: Callable[[str], object] = lambda _text: None,
    ) -> None:
        """Call functions for each element of a member, by its name without the namespace, and for its text."""
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True
        parser.StartElementHandler = lambda tag, attributes: start(_local(tag), _locals(attributes))
        parser.EndElementHandler = lambda tag: end(_local(tag))
        parser.CharacterDataHandler = data
        parser.StartDoctypeDeclHandler = _refuse_doctype
        for piece in self._pieces(name):
            parser.Parse(piece)
        parser.Parse(b"", True)

    def flow(self, name: str, with_text: Collection[str]) -> str:
        """Return the running text of a member, which stands in elements of some names."""
        pieces: list[str] = []
        texts = skipped = 0

        def start(tag: str, attributes: Attributes) -> None:
            nonlocal texts, skipped
            texts += tag in with_text
            skipped += tag in _SKIPPED
            if level := _heading_level(tag, attributes):
                pieces.append("#" * level + " ")
            if not skipped and tag in _BREAKS:
                pieces.append(_BREAKS[tag])

        def end(tag: str) -> None:
            nonlocal texts, skipped
            texts -= tag in with_text
            skipped -= tag in _SKIPPED
            if not skipped and tag in _LINES:
                pieces.append("\n")

        def data(text: str) -> None:
            if texts and not skipped:
                pieces.append(text)

        self.parse(name, start, end, data)
        return _EMPTY_HEADING.sub("", "".join(pieces))

    def listed(self, name: str, tag: str) -> list[tuple[str, str]]:
        """Return the name and the member of each slide or sheet, in the order in which a main document lists them."""
        folder, base = posixpath.split(name)
        members: dict[str, str] = {}
        found: list[tuple[str, str]] = []

        def relation(element: str, attributes: Attributes) -> None:
            if element == "Relationship":
                members[attributes["Id"]] = posixpath.normpath(
                    posixpath.join("/", folder, attributes["Target"])
                )[1:]

        def entry(element: str, attributes: Attributes) -> None:
            if element == tag:
                found.append((attributes.get("name", ""), members[attributes["r:id"]]))

        self.parse(f"{folder}/_rels/{base}.rels", relation)
        self.parse(name, entry)
        return found


_LINES: Final = frozenset({"p", "h"})
_BREAKS: Final = {"tab": "\t", "br": "\n", "cr": "\n", "line-break": "\n", "s": " "}
_SKIPPED: Final = frozenset({"pPr", "Fallback", "tracked-changes"})
"""What stands in these is settings, deleted, or the same text for an older program."""


def parts_of_office_file(archive: Archive) -> Iterator[tuple[Place, str]]:
    """Yield the parts of a file in their order, each with its text.

    A paragraph is a line, and so is a row of a sheet, with tabs between its cells; below a row of heads, each cell has
    its head in front. A heading is one of Markdown's, and so is a slide's title.
    """
    if "word/document.xml" in archive:
        members = ("word/document.xml", "word/footnotes.xml", "word/endnotes.xml")
        yield ({}, "".join(archive.flow(name, {"t"}) for name in members if name in archive))
    elif "ppt/presentation.xml" in archive:
        for number, (_, member) in enumerate(archive.listed("ppt/presentation.xml", "sldId"), 1):
            yield ({"slide": number}, archive.flow(member, {"t"}))
    elif "xl/workbook.xml" in archive:
        strings = _shared_strings(archive)
        for name, member in archive.listed("xl/workbook.xml", "sheet"):
            if member.startswith("xl/worksheets/"):  # and no chart
                yield ({"sheet": name}, _sheet(archive, member, strings))
    elif "content.xml" in archive:
        yield ({}, archive.flow("content.xml", _LINES))
    else:
        raise DocumentError("is an archive, and no Office file")


def _shared_strings(archive: Archive) -> list[str]:
    """Return the strings that the cells of a workbook name by number."""
    strings: list[str] = []
    if "xl/sharedStrings.xml" not in archive:
        return strings
    inside: list[str] = []  # elements that are open

    def start(tag: str, _attributes: Attributes) -> None:
        inside.append(tag)
        if tag == "si":
            strings.append("")

    def data(text: str) -> None:
        if (
            inside[-1] == "t" and "rPh" not in inside
        ):  # how a Chinese character is spoken is not what the cell says
            strings[-1] += text

    archive.parse("xl/sharedStrings.xml", start, lambda _tag: inside.pop(), data)
    return strings


def _sheet(archive: Archive, member: str, strings: list[str]) -> str:
    """Return the rows of a sheet, with tabs between the cells; numbers and dates as they are stored.

    The first row is one of heads, if it has several cells and each is a text.
    """
    rows: list[str] = []
    cells: dict[str, str] = {}  # by their column's letters, or number where none are written
    heads: dict[str, str] = {}
    kind = value = column = ""
    is_text = True
    inside = False

    def start(tag: str, attributes: Attributes) -> None:
        nonlocal kind, value, column, inside
        if tag == "c":
            kind, value = attributes.get("t", "n"), ""
            column = attributes.get("r", "").rstrip("0123456789") or str(len(cells))
        inside = tag in ("v", "t")

    def end(tag: str) -> None:
        nonlocal heads, inside, is_text
        inside = False
        if tag == "c" and value:
            cell = strings[int(value)] if kind == "s" else value
            cells[column] = f"{heads[column]}: {cell}" if column in heads else cell
            is_text = is_text and kind in _TEXTS
            archive.spend(len(cells[column]))
        elif tag == "row":
            if is_text and len(cells) > 1 and not any(rows):
                heads = {at: head[:_MAX_HEAD_CHARS] for at, head in cells.items()}
            rows.append("\t".join(cells.values()))
            cells.clear()
            is_text = True

    def data(text: str) -> None:
        nonlocal value
        if inside:
            value += text

    archive.parse(member, start, end, data)
    return "\n".join(rows)


def _heading_level(tag: str, attributes: Attributes) -> int:
    """Return the level of the heading that begins with an element, from 1 to 6; 0 if none does."""
    if tag == "ph" and attributes.get("type") in ("title", "ctrTitle"):
        return 1
    style = attributes.get({"h": "outline-level", "pStyle": "val"}.get(tag, ""), "")
    level = _HEADING.fullmatch(style)
    return int(level[1]) if level else 0


def _local(name: str) -> str:
    return name.rpartition(" ")[2]


def _locals(attributes: Attributes) -> dict[str, str]:
    """Return attributes without namespaces, but for ``r:id``: slides have an ``id`` of their own beside it."""
    return {
        "r:id" if name.endswith("/relationships id") else _local(name): value
        for name, value in attributes.items()
    }


def _refuse_doctype(*_: object) -> None:
    raise DocumentError("declares a document type, as no program does")
