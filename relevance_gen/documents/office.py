"""Extract the text of Office files and EPUB books, which are archives of XML.

Office files are those of Word, PowerPoint and Excel since 2007, and of OpenDocument. The standard
library parses their XML piece by piece. The chapters of a book are web pages, in the order that a
package of the book lists.
Sources: ECMA-376 (Office Open XML), ISO/IEC 26300 (OpenDocument), EPUB 3.3 (W3C).
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
from urllib.parse import unquote
from xml.parsers import expat

from attrs import define, field, frozen

from relevance_gen.documents.charset import decode
from relevance_gen.documents.tables import header_lines, is_header, names_of, one_line, row_line
from relevance_gen.documents.webpages import page_text

Attributes: TypeAlias = Mapping[str, str]
PartLocation: TypeAlias = Mapping[str, str | int]
"""The location of a part of a document.

``{"page": 3}``, ``{"slide": 3}``, ``{"sheet": "Prices"}``, ``{"chapter": 3}``, or ``{}`` for the
whole document; ``title``, if any, is the title of the document or of the page.
"""

MAX_UNPACKED_BYTES: Final = 1 << 28
"""Maximum bytes of members that are unpacked from one archive; see `Archive.charge`."""
BOOK_CONTAINER: Final = "META-INF/container.xml"
"""The archive member by which a book is recognized; it names the package."""

_PIECE_BYTES: Final = 1 << 16
_MAX_ERROR_CHARS: Final = 100
_MAX_BOOK_TITLE_CHARS: Final = 200
_EMPTY_HEADING: Final = re.compile(r"^#+ \n", re.MULTILINE)
_BLANK_LINES: Final = re.compile(r"\n{3,}")
_DIGIT: Final = re.compile(r"\d")
_HEADING: Final = re.compile("(?:heading ?)?([1-6])", re.IGNORECASE)
_TEXT_CELLS: Final = ("s", "str", "inlineStr")
"""Types of cells that contain text: values of the attribute ``t``."""
_PARAGRAPHS: Final = frozenset({"p", "h"})
_TABLES: Final = frozenset({"tbl", "table"})
_ROWS: Final = frozenset({"tr", "table-row"})
_CELLS: Final = frozenset({"tc", "table-cell", "covered-table-cell"})
_HEADER_MARKS: Final = frozenset({"tblHeader", "table-header-rows"})
_MAX_REPEATED_CELLS: Final = 100
"""Maximum number of columns of a cell that is repeated or merged."""
_BREAKS: Final = {"tab": "\t", "br": "\n", "cr": "\n", "line-break": "\n", "s": " "}
_SKIPPED: Final = frozenset({"pPr", "Fallback", "tracked-changes"})
"""Elements whose text is left out: settings, deleted text, or the same text for older programs."""
_ERRORS_OF_DAMAGE: Final = (
    zipfile.BadZipFile,
    zlib.error,
    expat.ExpatError,
    KeyError,
    IndexError,
    EOFError,
    RuntimeError,
)
"""Errors of zipfile and expat for damaged, encrypted and unsupported archives."""


class DocumentError(ValueError):
    """An error in the content of a document; the message is phrased to follow the file name."""


@contextlib.contextmanager
def open_archive(content: bytes) -> Iterator[Archive]:
    """Yield an open archive, which is closed at the end of the context.

    Raises:
        DocumentError: the archive, or a member that is read in the context, is damaged, encrypted,
            too large or missing.
    """
    try:
        with zipfile.ZipFile(BytesIO(content)) as packed:
            yield Archive(packed)
    except _ERRORS_OF_DAMAGE as error:
        message = str(error)[:_MAX_ERROR_CHARS] or type(error).__name__
        raise DocumentError(f"is damaged or encrypted ({message})") from None


def members_of(content: bytes) -> frozenset[str]:
    """Return the names of the members of an archive; an empty set if it is damaged."""
    with contextlib.suppress(DocumentError), open_archive(content) as archive:
        return frozenset(archive.packed.NameToInfo)
    return frozenset()


@frozen
class _ListedMember:
    """A slide or sheet that a main document lists.

    It has the name of the sheet, "" for a slide, and the name of the archive member.
    """

    name: str
    member: str


@define
class Archive:
    """An archive of XML members, from which at most `MAX_UNPACKED_BYTES` are unpacked.

    Use it within `open_archive`, which converts the errors of damaged and missing members.
    """

    packed: zipfile.ZipFile
    _n_unpacked_bytes: int = field(default=0, init=False)

    def __contains__(self, name: str) -> bool:
        return name in self.packed.NameToInfo

    def read(self, name: str) -> bytes:
        """Return the unpacked content of a member."""
        return b"".join(self._read_pieces(name))

    def charge(self, n_bytes: int) -> None:
        """Add `n_bytes` to the archive's total of unpacked bytes.

        The characters of the rows of tables and sheets, in which cells can be repeated, are added,
        too; each counts as a byte.

        Raises:
            DocumentError: the total exceeds `MAX_UNPACKED_BYTES`.
        """
        self._n_unpacked_bytes += n_bytes
        if self._n_unpacked_bytes > MAX_UNPACKED_BYTES:
            raise DocumentError(f"has more than {MAX_UNPACKED_BYTES >> 20} MiB unpacked")

    def _read_pieces(self, name: str) -> Iterator[bytes]:
        with self.packed.open(name) as member:
            while piece := member.read(_PIECE_BYTES):
                self.charge(len(piece))
                yield piece

    def parse(
        self,
        name: str,
        start: Callable[[str, Attributes], object],
        end: Callable[[str], object] = lambda _tag: None,
        data: Callable[[str], object] = lambda _text: None,
    ) -> None:
        """Parse a member, and call functions for its elements and its text, in order.

        Args:
            name: the name of the member.
            start: called with the local name and the attributes of each start tag.
            end: called with the local name of each end tag.
            data: called with each piece of text.

        Raises:
            DocumentError: the member is too large, or declares a document type.
        """
        parser = expat.ParserCreate(namespace_separator=" ")
        parser.buffer_text = True

        def start_element(tag: str, attributes: Attributes) -> None:
            start(_local_name(tag), _local_attributes(attributes))

        parser.StartElementHandler = start_element
        parser.EndElementHandler = lambda tag: end(_local_name(tag))
        parser.CharacterDataHandler = data
        parser.StartDoctypeDeclHandler = _refuse_doctype
        for piece in self._read_pieces(name):
            parser.Parse(piece)
        parser.Parse(b"", True)

    def attributes_of(self, name: str, tag: str) -> list[Attributes]:
        """Return the attributes of each element of a member with the local name `tag`, in order."""
        found: list[Attributes] = []

        def start(element: str, attributes: Attributes) -> None:
            if element == tag:
                found.append(attributes)

        self.parse(name, start)
        return found

    def text(self, name: str, text_tags: Collection[str]) -> str:
        """Return the text of a member within elements whose local names are in `text_tags`.

        A blank line separates paragraphs; headings and tables are written as in Markdown.
        """
        parser = _TextParser(self, text_tags)
        self.parse(name, parser.start, parser.end, parser.data)
        text = _EMPTY_HEADING.sub("", "".join(parser.pieces))
        return _BLANK_LINES.sub("\n\n", text).strip("\n")

    def ordered_members(self, name: str, tag: str) -> list[_ListedMember]:
        """Return the slides or sheets that a main document lists, in order.

        Args:
            name: the archive member of the main document.
            tag: the local name of the elements that list them.
        """
        folder, base = posixpath.split(name)
        members: dict[str, str] = {}
        for relation in self.attributes_of(f"{folder}/_rels/{base}.rels", "Relationship"):
            target = posixpath.join("/", folder, relation["Target"])
            members[relation["Id"]] = posixpath.normpath(target)[1:]
        listed = []
        for entry in self.attributes_of(name, tag):
            member = members[entry["r:id"]]
            listed.append(_ListedMember(entry.get("name", ""), member))
        return listed


@define
class _TextParser:
    """Collects the text of an XML member, within elements whose local names are in `text_tags`.

    The text is stored in `pieces`. If a cell of a table contains another table, the text of the
    inner table is part of the cell.
    """

    archive: Archive
    text_tags: Collection[str]
    pieces: list[str] = field(factory=list)
    _text_depth: int = 0
    _skipped_depth: int = 0
    _table_depth: int = 0
    _rows: list[list[str]] = field(factory=list)
    """The rows of the outermost open table."""
    _has_header: bool = False
    _cell_start: int = 0
    """The number of pieces of text before the cell."""
    _n_repeated: int = 1
    _n_merged: int = 1

    def start(self, tag: str, attributes: Attributes) -> None:
        self._text_depth += tag in self.text_tags
        self._skipped_depth += tag in _SKIPPED
        self._table_depth += tag in _TABLES
        if self._table_depth == 1:
            self._start_in_table(tag, attributes)
        level = _heading_level(tag, attributes)
        if level and not self._table_depth:
            self.pieces.append("#" * level + " ")
        if not self._skipped_depth and tag in _BREAKS:
            self.pieces.append(_BREAKS[tag])

    def _start_in_table(self, tag: str, attributes: Attributes) -> None:
        if tag in _ROWS:
            self._rows.append([])
        elif tag in _CELLS:
            self._cell_start = len(self.pieces)
            self._n_repeated = int(attributes.get("number-columns-repeated", 1))
            self._n_merged = 1
        elif tag == "gridSpan":
            self._n_merged = int(attributes["val"])
        elif tag in _HEADER_MARKS:
            self._has_header = True

    def end(self, tag: str) -> None:
        self._text_depth -= tag in self.text_tags
        self._skipped_depth -= tag in _SKIPPED
        if self._table_depth == 1 and tag in _CELLS:
            self._end_cell()
        elif self._table_depth == 1 and tag in _TABLES:
            self._end_table()
        elif not self._skipped_depth and tag in _PARAGRAPHS:
            self.pieces.append("\n\n")
        self._table_depth -= tag in _TABLES

    def data(self, text: str) -> None:
        if self._text_depth and not self._skipped_depth:
            self.pieces.append(text)

    def _end_cell(self) -> None:
        cell = one_line("".join(self.pieces[self._cell_start :]))
        del self.pieces[self._cell_start :]
        if self._rows:
            self._rows[-1] += [cell] * min(self._n_repeated, _MAX_REPEATED_CELLS)
            self._rows[-1] += [""] * (min(self._n_merged, _MAX_REPEATED_CELLS) - 1)

    def _end_table(self) -> None:
        rows = [row for row in self._rows if any(row)]
        column_names: list[str] = []
        if rows and (self._has_header or _has_header_row(rows)):
            header = rows.pop(0)
            column_names = names_of(header)
            self.pieces.append(f"{header_lines(header)}\n")
        for row in rows:
            line = row_line(row, column_names)
            self.archive.charge(len(line))
            self.pieces.append(f"{line}\n")
        self.pieces.append("\n")
        self._rows = []
        self._has_header = False


def _has_header_row(rows: list[list[str]]) -> bool:
    """Return whether the first row of a table, not marked as a header, consists of column names.

    It must satisfy `is_header`, its cells must have no digits, and the table must have further
    rows. A table of two columns must also have a column in which each cell below the first row has
    a digit; without such a column, the two columns can be names and values.
    """
    header, *others = rows
    if not others or not is_header(header) or any(map(_DIGIT.search, header)):
        return False
    if len(header) > 2:
        return True
    columns = zip(*others, strict=False)
    return any(all(map(_DIGIT.search, column)) for column in columns)


def office_parts(archive: Archive) -> Iterator[tuple[PartLocation, str]]:
    """Yield the location and the text of each part of a file, in order.

    The location has the key ``slide``, a number from 1, or ``sheet``, the name of the sheet; for a
    text document, which has only one part, it is empty. A blank line separates paragraphs.
    Headings, titles of slides, tables and sheets are written as in Markdown. After a header row,
    each cell begins with the name of its column.

    Raises:
        DocumentError: the archive is not an Office file.
    """
    if "word/document.xml" in archive:
        members = ("word/document.xml", "word/footnotes.xml", "word/endnotes.xml")
        texts = [archive.text(name, {"t"}) for name in members if name in archive]
        yield {}, "\n\n".join(filter(None, texts))
    elif "ppt/presentation.xml" in archive:
        slides = archive.ordered_members("ppt/presentation.xml", "sldId")
        for number, slide in enumerate(slides, 1):
            yield {"slide": number}, archive.text(slide.member, {"t"})
    elif "xl/workbook.xml" in archive:
        strings = _shared_strings(archive)
        for sheet in archive.ordered_members("xl/workbook.xml", "sheet"):
            if sheet.member.startswith("xl/worksheets/"):  # other sheets are charts
                parser = _SheetParser(archive, strings)
                archive.parse(sheet.member, parser.start, parser.end, parser.data)
                yield {"sheet": sheet.name}, "\n".join(parser.rows)
    elif "content.xml" in archive:
        yield {}, archive.text("content.xml", _PARAGRAPHS)
    else:
        raise DocumentError("is an archive, but not an Office file")


def _shared_strings(archive: Archive) -> list[str]:
    """Return the shared strings of a workbook, which its cells reference by index.

    The list is empty if the workbook has no shared strings.
    """
    strings: list[str] = []
    if "xl/sharedStrings.xml" not in archive:
        return strings
    open_tags: list[str] = []
    pieces: list[str] = []

    def end(tag: str) -> None:
        open_tags.pop()
        if tag == "si":
            strings.append("".join(pieces))
            pieces.clear()

    def data(text: str) -> None:
        # The pronunciation of Chinese characters (rPh) is not part of the cell.
        if open_tags[-1] == "t" and "rPh" not in open_tags:
            pieces.append(text)

    archive.parse("xl/sharedStrings.xml", lambda tag, _: open_tags.append(tag), end, data)
    return strings


@define
class _SheetParser:
    """Collects the rows of a sheet.

    The first row with several cells is a header row if all its cells contain text. Numbers and
    dates are written as they are stored: a date is a number of days.

    Attributes:
        archive: the archive whose `Archive.charge` counts the characters of the rows.
        strings: the shared strings of the workbook, to which cells refer.
        rows: the line of text of each row; "" for an empty row.
    """

    archive: Archive
    strings: list[str]
    rows: list[str] = field(factory=list)
    _cells: dict[str, str] = field(factory=dict)
    """The cells of the row, by the letters of their columns, or by index if these are missing."""
    _columns: list[str] = field(factory=list)
    """The letters of the columns that have names."""
    _column_names: list[str] = field(factory=list)
    _has_table: bool = False
    _cell_type: str = ""
    _value_pieces: list[str] = field(factory=list)
    _column: str = ""
    _has_only_text: bool = True
    _is_in_value: bool = False

    def start(self, tag: str, attributes: Attributes) -> None:
        if tag == "c":
            self._cell_type = attributes.get("t", "n")
            self._value_pieces = []
            letters = attributes.get("r", "").rstrip("0123456789")
            self._column = letters or str(len(self._cells))
        self._is_in_value = tag in ("v", "t")

    def data(self, text: str) -> None:
        if self._is_in_value:
            self._value_pieces.append(text)

    def end(self, tag: str) -> None:
        self._is_in_value = False
        value = "".join(self._value_pieces) if tag == "c" else ""
        if value:
            self._end_cell(value)
        elif tag == "row":
            self._end_row()

    def _end_cell(self, value: str) -> None:
        cell = self.strings[int(value)] if self._cell_type == "s" else value
        self._cells[self._column] = cell
        self._has_only_text = self._has_only_text and self._cell_type in _TEXT_CELLS

    def _end_row(self) -> None:
        is_first = not self._has_table and len(self._cells) > 1
        if is_first and any(self.rows):
            self.rows.append("")
        self._has_table = self._has_table or is_first
        if is_first and self._has_only_text:
            header = list(self._cells.values())
            self._columns = list(self._cells)
            self._column_names = names_of(header)
            line = header_lines(header)
        else:
            cells = [self._cells.pop(column, "") for column in self._columns]
            line = row_line([*cells, *self._cells.values()], self._column_names)
        self.archive.charge(len(line))
        self.rows.append(line)
        self._cells.clear()
        self._has_only_text = True


def _heading_level(tag: str, attributes: Attributes) -> int:
    """Return the level of the heading that a start tag begins, from 1 to 6; 0 if it begins none."""
    if tag == "ph" and attributes.get("type") in ("title", "ctrTitle"):
        return 1
    style_attribute = {"h": "outline-level", "pStyle": "val"}.get(tag, "")
    level = _HEADING.fullmatch(attributes.get(style_attribute, ""))
    return int(level[1]) if level else 0


def _local_name(name: str) -> str:
    return name.rpartition(" ")[2]


def _local_attributes(attributes: Attributes) -> dict[str, str]:
    """Return attributes with their local names, without namespaces, as keys.

    The id of a relationship gets the key ``r:id``, because a listed slide also has an ``id``.
    """
    local = {}
    for name, value in attributes.items():
        is_relation = name.endswith("/relationships id")
        local["r:id" if is_relation else _local_name(name)] = value
    return local


def _refuse_doctype(*_: object) -> None:
    raise DocumentError("declares a document type, which Office files do not have")


# ── Books ─────────────────────────────────────────────────────────────────────────────────────────


def book_chapters(archive: Archive) -> Iterator[tuple[PartLocation, str]]:
    """Yield the location and the text of each chapter of a book, in reading order.

    The location has the key ``chapter``, the number of the chapter from 1, and the key ``title``,
    the title of the book, unless that is empty. Chapters without text are left out but counted.

    Raises:
        DocumentError: the book names no package, or a chapter is not text.
    """
    packages = archive.attributes_of(BOOK_CONTAINER, "rootfile")
    if not packages:
        raise DocumentError("is damaged or encrypted (names no package)")
    book = _read_package(archive, packages[0]["full-path"])
    for number, member in enumerate(book.members, 1):
        markup = decode(archive.read(member))
        if markup is None:
            raise DocumentError("is damaged or encrypted (a chapter is not text)")
        _, text = page_text(markup)
        if not text:
            continue
        location: dict[str, str | int] = {"chapter": number}
        if book.title:
            location["title"] = book.title
        yield location, text


@frozen
class _Book:
    """The title of a book, "" if it has none, and the archive members of its chapters in order."""

    title: str
    members: list[str]


def _read_package(archive: Archive, name: str) -> _Book:
    title = ""
    open_tags: list[str] = []
    pages: dict[str, str] = {}
    members: list[str] = []

    def start(tag: str, attributes: Attributes) -> None:
        nonlocal title
        title += " " * (tag == "title")
        open_tags.append(tag)
        if tag == "item" and "nav" not in attributes.get("properties", "").split():
            path = posixpath.join(posixpath.dirname(name), unquote(attributes["href"]))
            pages[attributes["id"]] = posixpath.normpath(path)
        elif tag == "itemref" and attributes["idref"] in pages:
            members.append(pages[attributes["idref"]])

    def data(text: str) -> None:
        nonlocal title
        if open_tags[-1:] == ["title"]:
            title = (title + text)[:_MAX_BOOK_TITLE_CHARS]

    archive.parse(name, start, lambda _tag: open_tags.pop(), data)
    return _Book(one_line(title), members)
