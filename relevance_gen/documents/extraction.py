"""Take the text out of PDFs, HTML pages, Office files, books and e-mails, within limits of time and size."""

from __future__ import annotations

import bisect
import contextlib
import importlib.util
import itertools
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from attrs import define, field

from relevance_gen.documents.charset import decode
from relevance_gen.documents.epub import CONTAINER, chapters
from relevance_gen.documents.office import (
    Archive,
    DocumentError,
    Place,
    members_of,
    parts_of_office_file,
    unpacked,
)
from relevance_gen.documents.reflow import running_text
from relevance_gen.documents.webpages import text_of_page

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

Format: TypeAlias = Literal["PDF", "HTML", "Office", "EPUB", "e-mail", "old Office"]

BINARY: Final = "binary"
"""The kind of a file that is no text, and in no format that is read."""
MAX_BYTES: Final = 1 << 28
MAX_PAGES: Final = 20_000
MAX_CHARS: Final = 1 << 27
MAX_TITLE_CHARS: Final = 200
MAX_S: Final = 120.0
"""Limits of one file; the last is of processor time. What was read of it before a limit was reached is searched."""

_PROBED_BYTES: Final = 1024
_PDFIUM: Final = threading.Lock()
"""PDFium reads one document at a time."""
_HTML_BEGINNINGS: Final = ("<!doctype html", "<html")
_MARKDOWN_SUFFIXES: Final = frozenset({".md", ".markdown", ".mdx"})
_HTML_SUFFIXES: Final = frozenset({".htm", ".html", ".xhtml"})
_OLD_OFFICE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_OFFICE: Final = frozenset(
    {"word/document.xml", "ppt/presentation.xml", "xl/workbook.xml", "content.xml"}
)
_ZIP: Final = b"PK\x03\x04"


@define
class Extracted:
    """What was taken out of a document.

    Attributes:
        parts: its texts in order, each with its place.
        warning: why that is not all, to stand behind the file's name; None if it is all.
        skipped_kind: what kind of file it is, where that kind is not read at all; else None.
        has_headings: whether headings are written as Markdown's.
        n_chars: length of all texts, and of what their places are called.
        max_chars: most that it may be.
    """

    parts: list[tuple[Place, str]] = field(factory=list)
    warning: str | None = None
    skipped_kind: str | None = None
    has_headings: bool = False
    n_chars: int = 0
    max_chars: int = MAX_CHARS

    def add(self, place: Place, text: str) -> None:
        """Keep one more part."""
        self.n_chars += len(text) + sum(
            len(name) for name in place.values() if isinstance(name, str)
        )
        if len(self.parts) == MAX_PAGES:
            raise DocumentError(f"has more than {MAX_PAGES:,} parts")
        if self.n_chars > self.max_chars:
            raise DocumentError(f"has more than {self.max_chars:,} characters of text")
        self.parts.append((place, text))


class _TimeUp(BaseException):
    """No ``Exception``, so that no library takes it for an error in the file and goes on."""


def format_of(name: str, content: bytes) -> Format | None:
    """Tell the format of a document by its content, of HTML also, of e-mail only by its name; None for plain text."""
    if content[:_PROBED_BYTES].lstrip(b"\xef\xbb\xbf\0 \t\r\n").startswith(b"%PDF-"):
        return "PDF"
    if content.startswith(_ZIP):
        members = members_of(content)
        return "EPUB" if CONTAINER in members else None if _OFFICE.isdisjoint(members) else "Office"
    if content.startswith(_OLD_OFFICE):
        return "old Office"
    if PurePath(name).suffix.lower() == ".eml":
        return "e-mail"
    beginning = content[:_PROBED_BYTES].decode("ascii", "ignore").lstrip().lower()
    if PurePath(name).suffix.lower() in _HTML_SUFFIXES or beginning.startswith(_HTML_BEGINNINGS):
        return "HTML"
    return None


def unavailable_reason(kind: Format) -> str | None:
    """Return why no document of a format can be read here; None if they can."""
    if kind == "old Office":
        return "is encrypted, or in a format of Office before 2007"
    if kind == "PDF" and importlib.util.find_spec("pypdfium2") is None:
        return "needs pip install pypdfium2"
    return None


def read(name: str, content: bytes, max_chars: int | None = None) -> Extracted:
    """Take the text out of a file of any kind; why nothing of it can be read is said in the result."""
    kind = format_of(name, content)
    if kind is not None:
        why = unavailable_reason(kind)
        return (
            extract(content, kind, max_chars)
            if why is None
            else Extracted(warning=why, skipped_kind=kind)
        )
    text = decode(content)
    if text is None:
        return Extracted(warning="is binary, not text", skipped_kind=BINARY)
    if max_chars is not None and len(text) > max_chars:
        return Extracted(warning=f"has more than {max_chars:,} characters")
    return Extracted([({}, text)], has_headings=PurePath(name).suffix.lower() in _MARKDOWN_SUFFIXES)


def extract(content: bytes, kind: Format, max_chars: int | None = None) -> Extracted:
    """Take the text out of a document of a format that can be read here.

    What is wrong with it is said in the result, whatever an extractor raises.
    """
    found = Extracted(
        has_headings=kind != "PDF", max_chars=MAX_CHARS if max_chars is None else max_chars
    )
    if len(content) > MAX_BYTES:
        found.warning = f"is larger than {MAX_BYTES >> 20} MiB"
        return found
    try:
        with _time_limit(MAX_S):
            _EXTRACTORS[kind](content, found)
    except DocumentError as error:
        found.warning = str(error)
    except _TimeUp:
        found.warning = f"took more than {MAX_S:g} s of processor time to read"
    except Exception as error:  # a damaged file may raise anything
        found.warning = f"cannot be read ({_in_a_line(error)})"
    return found


def _extract_pdf(content: bytes, found: Extracted) -> None:
    import pypdfium2

    pages: list[str] = []
    unread, n_chars = [], 0
    with _PDFIUM:
        try:
            document = pypdfium2.PdfDocument(content)
        except pypdfium2.PdfiumError as error:
            raise DocumentError("is encrypted") if "assword" in str(error) else error from None
        with contextlib.closing(document):
            n_pages, titles = len(document), _titles_of_pages(document)
            try:
                for number in range(min(n_pages, MAX_PAGES)):
                    try:
                        with contextlib.closing(document[number]) as page:
                            pages.append(page.get_textpage().get_text_range())
                    except pypdfium2.PdfiumError as error:  # the other pages may be whole
                        unread.append(f"page {number + 1}: {_in_a_line(error)}")
                        pages.append("")
                    n_chars += len(pages[-1])
                    if n_chars > found.max_chars:
                        break
            finally:  # also where the time is up
                for number, text in enumerate(running_text(pages)):
                    if text:
                        found.add({"page": number + 1, **titles(number)}, text)
    if n_pages > MAX_PAGES:
        raise DocumentError(f"has {n_pages:,} pages, of which the first {MAX_PAGES:,} are searched")
    if unread:
        raise DocumentError(
            f"has {len(unread):,} of {n_pages:,} pages that cannot be read ({unread[0]})"
        )
    if not found.parts:
        raise DocumentError("has no text, only pictures")


def _titles_of_pages(document: PdfDocument) -> Callable[[int], Mapping[str, str]]:
    """Return what tells the ``title`` of a page: the document's own and, from the outline, the last headings so far."""
    own = " ".join(document.get_metadata_value("Title").split())[:MAX_TITLE_CHARS]
    numbers, titles, above = [-1], [own], list[str]()
    with contextlib.suppress(Exception):  # of a damaged outline what comes before is enough
        for heading in itertools.islice(document.get_toc(), MAX_PAGES):
            target = heading.get_dest()
            above = [
                *above[: heading.level],
                " ".join(heading.get_title().split())[:MAX_TITLE_CHARS],
            ]
            numbers.append(max(numbers[-1], (target and target.get_index()) or 0))
            titles.append(" > ".join(filter(None, [own, *above])))

    def title(number: int) -> Mapping[str, str]:
        found = titles[bisect.bisect_right(numbers, number) - 1]
        return {"title": found} if found else {}

    return title


def _extract_html(content: bytes, found: Extracted) -> None:
    _add_whole(found, *text_of_page(decode(content) or ""))


def _extract_mail(content: bytes, found: Extracted) -> None:
    from relevance_gen.documents.mail import text_of_mail  # imports email, which takes 10 ms

    _add_whole(found, *text_of_mail(content))


def _add_whole(found: Extracted, title: str, text: str) -> None:
    found.add({"title": title[:MAX_TITLE_CHARS]} if title else {}, text)


def _extract_archive(
    parts_of: Callable[[Archive], Iterator[tuple[Place, str]]], content: bytes, found: Extracted
) -> None:
    with unpacked(content) as archive:
        for place, text in parts_of(archive):
            found.add(place, text)


def _in_a_line(error: Exception) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"


_EXTRACTORS: Final[dict[Format, Callable[[bytes, Extracted], None]]] = {
    "PDF": _extract_pdf,
    "HTML": _extract_html,
    "Office": partial(_extract_archive, parts_of_office_file),
    "EPUB": partial(_extract_archive, chapters),
    "e-mail": _extract_mail,
}


@contextlib.contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise `_TimeUp` after so much processor time, wherever the main thread is then; other threads have no such limit.

    By the clock, a busy machine would cut a document that a quiet one reads whole.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ring(_signal: int, _frame: FrameType | None) -> None:
        raise _TimeUp

    previous = signal.signal(signal.SIGPROF, ring)
    try:
        signal.setitimer(
            signal.ITIMER_PROF, seconds, 1.0
        )  # and again each second, in case something catches all
        yield
    finally:
        with contextlib.suppress(_TimeUp):
            signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
