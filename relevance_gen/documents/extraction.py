"""Extract the text of PDFs, HTML pages, Office files, books and e-mails, within limits."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import PurePath
from types import FrameType
from typing import TYPE_CHECKING, Final, Literal, TypeAlias

from attrs import define, field

from relevance_gen.documents.charset import decode, decode_page
from relevance_gen.documents.office import (
    BOOK_CONTAINER,
    Archive,
    DocumentError,
    PartLocation,
    book_chapters,
    members_of,
    office_parts,
    open_archive,
)
from relevance_gen.documents.reflow import reflow
from relevance_gen.documents.tables import DELIMITED_SUFFIXES, one_line, table_text
from relevance_gen.documents.webpages import page_text

if TYPE_CHECKING:
    from pypdfium2 import PdfDocument

Format: TypeAlias = Literal["PDF", "HTML", "Office", "EPUB", "e-mail", "old Office"]

BINARY: Final = "binary"
"""The `Extracted.skipped_kind` of a file that is neither text nor in a supported format."""
MAX_BYTES: Final = 1 << 28
"""Maximum size of a document; a larger document is not read."""
MAX_PAGES: Final = 20_000
"""Maximum number of parts of a document, such as pages; the parts before the limit are kept."""
MAX_CHARS: Final = 1 << 27
"""Maximum characters of text of a document; the parts before the limit are kept."""
MAX_TITLE_CHARS: Final = 200
"""Maximum characters of a title or heading; the rest is dropped."""
MAX_CPU_S: Final = 120.0
"""Maximum CPU seconds for one document that is read on the main thread."""

_PROBED_BYTES: Final = 1024
_MAX_ERROR_CHARS: Final = 100
_PDFIUM: Final = threading.Lock()
"""Held while PDFium, which is not thread-safe, reads a document."""
_HTML_BEGINNINGS: Final = ("<!doctype html", "<html")
_HTML_SUFFIXES: Final = frozenset({".htm", ".html", ".xhtml"})
_MARKDOWN_SUFFIXES: Final = frozenset({".md", ".markdown", ".mdx"})
_ARCHIVE_SUFFIXES: Final = frozenset({".docx", ".epub", ".odp", ".ods", ".odt", ".pptx", ".xlsx"})
"""Suffixes of documents that are zip archives."""
_OLD_OFFICE: Final = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"
_ZIP: Final = b"PK\x03\x04"
_OFFICE_MEMBERS: Final = frozenset(
    {"word/document.xml", "ppt/presentation.xml", "xl/workbook.xml", "content.xml"}
)
_KNOWN_MEMBERS: Final = [name.encode() for name in (BOOK_CONTAINER, *_OFFICE_MEMBERS)]


@define
class Extracted:
    """The text of a file.

    Attributes:
        parts: the texts of the parts in order, each after its location in the document.
        warning: why the text is incomplete, phrased to follow the file name; None if it is
            complete.
        skipped_kind: the kind of the file, if files of that kind cannot be read in this
            environment; otherwise None.
        has_headings: whether the text can contain Markdown headings.
        n_chars: number of characters of all texts, and of all strings in their locations, such as
            titles.
        max_chars: maximum of `n_chars`.
    """

    parts: list[tuple[PartLocation, str]] = field(factory=list)
    warning: str | None = None
    skipped_kind: str | None = None
    has_headings: bool = False
    n_chars: int = 0
    max_chars: int = MAX_CHARS

    def add(self, location: PartLocation, text: str) -> None:
        """Append the text of a part with its location.

        Raises:
            DocumentError: there are already `MAX_PAGES` parts, or `n_chars` would exceed
                `max_chars`; the part was not appended.
        """
        names = [name for name in location.values() if isinstance(name, str)]
        self.n_chars += len(text) + sum(map(len, names))
        if len(self.parts) == MAX_PAGES:
            raise DocumentError(f"has more than {MAX_PAGES:,} parts")
        if self.n_chars > self.max_chars:
            raise DocumentError(f"has more than {self.max_chars:,} characters of text")
        self.parts.append((location, text))

    def add_single(self, title: str, text: str) -> None:
        """Append the only part of a document; its location has the title, unless that is empty."""
        self.add({"title": title[:MAX_TITLE_CHARS]} if title else {}, text)


class _CpuTimeExceeded(BaseException):
    """Raised in an extraction that has exceeded its CPU time, to end it.

    It is not an `Exception`, so that a library does not catch it and continue.
    """


def format_of(name: str, content: bytes) -> Format | None:
    """Return the format of a document; None for plain text and for other binary files.

    Most formats are recognized by content, e-mail by the file name, and HTML by either.
    """
    if content[:_PROBED_BYTES].lstrip(b"\xef\xbb\xbf\0 \t\r\n").startswith(b"%PDF-"):
        return "PDF"
    if content.startswith(_ZIP):
        members = members_of(content) if _may_be_document(content) else frozenset()
        if BOOK_CONTAINER in members:
            return "EPUB"
        return None if _OFFICE_MEMBERS.isdisjoint(members) else "Office"
    if content.startswith(_OLD_OFFICE):
        return "old Office"
    suffix = PurePath(name).suffix.lower()
    if suffix == ".eml":
        return "e-mail"
    beginning = content[:_PROBED_BYTES].decode("ascii", "ignore").lstrip().lower()
    if suffix in _HTML_SUFFIXES or beginning.startswith(_HTML_BEGINNINGS):
        return "HTML"
    return None


def _may_be_document(archive: bytes) -> bool:
    """Return whether an archive contains the name of a member by which documents are recognized."""
    return any(member in archive for member in _KNOWN_MEMBERS)


def needs_parser(name: str, content: bytes) -> bool:
    """Return whether the text of a file is extracted by a parser, which a hostile file can exploit.

    True also for an archive that merely contains the name of a document's member; False for a
    document that cannot be read in this environment. The check searches the complete content of an
    archive, but only the first bytes of any other file.
    """
    if content.startswith(_ZIP):
        return _may_be_document(content)
    kind = format_of(name, content)
    return kind is not None and unavailable_reason(kind) is None


def may_need_parser(name: str, beginning: bytes) -> bool:
    """Return whether a file may need a parser, given its first bytes; see `needs_parser`.

    True for every archive, because the names of its members may follow later.
    """
    return beginning.startswith(_ZIP) or needs_parser(name, beginning)


def unavailable_reason(kind: Format) -> str | None:
    """Return why documents of a format cannot be read in this environment; None if they can be.

    The reason is phrased to follow the file name.
    """
    if kind == "old Office":
        return "is encrypted, or in a format of Office before 2007"
    if kind == "PDF" and importlib.util.find_spec("pypdfium2") is None:
        return "needs pip install pypdfium2"
    return None


def read(name: str, content: bytes, max_chars: int | None = None) -> Extracted:
    """Return the text of a file of any kind; if text is missing, the result has a warning.

    Args:
        name: the name of the file, whose suffix can decide the format.
        content: the bytes of the file.
        max_chars: maximum characters of text; a longer plain text is not read at all. None means
            `MAX_CHARS` for documents, and no limit for plain text.
    """
    kind = format_of(name, content)
    if kind is not None:
        reason = unavailable_reason(kind)
        if reason is not None:
            return Extracted(warning=reason, skipped_kind=kind)
        return extract(content, kind, max_chars)
    suffix = PurePath(name).suffix.lower()
    if suffix in _ARCHIVE_SUFFIXES and content.startswith(_ZIP):
        return Extracted(warning="is damaged, or not a document of the kind that its name states")
    text = decode(content)
    if text is None:
        return Extracted(warning="is binary, not text", skipped_kind=BINARY)
    if max_chars is not None and len(text) > max_chars:
        return Extracted(warning=f"has more than {max_chars:,} characters")
    if suffix in DELIMITED_SUFFIXES:
        text = table_text(text, max_chars or MAX_CHARS)
    return Extracted([({}, text)], has_headings=suffix in _MARKDOWN_SUFFIXES)


def extract(content: bytes, kind: Format, max_chars: int | None = None) -> Extracted:
    """Return the text of a document; its format `kind` must be readable in this environment.

    Any error of an extractor becomes the warning of the result, which keeps the parts that were
    extracted before the error. `max_chars` is the maximum characters of text; None means
    `MAX_CHARS`.
    """
    extracted = Extracted(has_headings=kind != "PDF", max_chars=max_chars or MAX_CHARS)
    if len(content) > MAX_BYTES:
        extracted.warning = f"is larger than {MAX_BYTES >> 20} MiB"
        return extracted
    try:
        with _cpu_time_limit(MAX_CPU_S):
            _EXTRACTORS[kind](content, extracted)
    except DocumentError as error:
        extracted.warning = str(error)
    except _CpuTimeExceeded:
        extracted.warning = f"took more than {MAX_CPU_S:g} s of processor time to read"
    except MemoryError:
        extracted.warning = "cannot be read within the memory allowed"
    except Exception as error:  # damaged files raise all kinds of errors
        extracted.warning = f"cannot be read ({_summarize(error)})"
    return extracted


def _extract_pdf(content: bytes, extracted: Extracted) -> None:
    import pypdfium2

    with _PDFIUM:
        try:
            document = pypdfium2.PdfDocument(content)
        except pypdfium2.PdfiumError as error:
            raise DocumentError("is encrypted") if "assword" in str(error) else error from None
        with contextlib.closing(document):
            n_pages = len(document)
            errors = _add_pages(document, extracted)
    if n_pages > MAX_PAGES:
        raise DocumentError(f"has {n_pages:,} pages, of which the first {MAX_PAGES:,} are searched")
    if errors:
        n_unread = f"{len(errors):,} of {n_pages:,}"
        raise DocumentError(f"has {n_unread} pages that cannot be read ({errors[0]})")
    if not extracted.parts:
        raise DocumentError("has no text, only pictures")


def _add_pages(document: PdfDocument, extracted: Extracted) -> list[str]:
    """Add the texts of the pages of a PDF to `extracted`, at most the first `MAX_PAGES` pages.

    The caller must hold the lock `_PDFIUM`.

    Returns:
        A message for each page that cannot be read.
    """
    import pypdfium2

    titles = _page_titles(document)
    errors: list[str] = []
    pages: list[str] = []
    n_chars = 0
    try:
        for index in range(min(len(document), MAX_PAGES)):
            try:
                with contextlib.closing(document[index]) as page:
                    pages.append(page.get_textpage().get_text_range())
            except pypdfium2.PdfiumError as error:  # other pages may be intact
                errors.append(f"page {index + 1}: {_summarize(error)}")
                pages.append("")
            n_chars += len(pages[-1])
            if n_chars > extracted.max_chars:
                break
    finally:  # also if the CPU time is exceeded
        title = titles[-1]
        for index, text in enumerate(reflow(pages)):
            title = titles.get(index, title)
            if text:
                location: dict[str, str | int] = {"page": index + 1}
                if title:
                    location["title"] = title
                extracted.add(location, text)
    return errors


def _page_titles(document: PdfDocument) -> dict[int, str]:
    """Return the titles of the pages of a PDF, each by the index of the first page that has it.

    These are the title of the document, by -1, and for each entry of the outline, up to the first
    damaged entry, the title of the document and the headings down to the entry, joined by `` > ``.
    The keys ascend.
    """
    document_title = one_line(document.get_metadata_value("Title"))[:MAX_TITLE_CHARS]
    titles = {-1: document_title}
    headings: list[str] = []
    first_page = 0
    with contextlib.suppress(Exception):  # keep the entries before a damaged entry
        for entry in itertools.islice(document.get_toc(), MAX_PAGES):
            target = entry.get_dest()
            page = target.get_index() if target else 0
            heading = one_line(entry.get_title())[:MAX_TITLE_CHARS]
            headings = [*headings[: entry.level], heading]
            first_page = max(first_page, page or 0)
            titles[first_page] = " > ".join(filter(None, [document_title, *headings]))
    return titles


def _extract_html(content: bytes, extracted: Extracted) -> None:
    extracted.add_single(*page_text(decode_page(content)))


def _extract_mail(content: bytes, extracted: Extracted) -> None:
    from relevance_gen.documents.mail import mail_text  # importing email takes 10 ms

    extracted.add_single(*mail_text(content))


def _extract_archive(
    parts_of: Callable[[Archive], Iterator[tuple[PartLocation, str]]],
    content: bytes,
    extracted: Extracted,
) -> None:
    with open_archive(content) as archive:
        for location, text in parts_of(archive):
            extracted.add(location, text)


def _summarize(error: Exception) -> str:
    message = one_line(str(error))[:_MAX_ERROR_CHARS]
    return f"{type(error).__name__}: {message}"


_EXTRACTORS: Final[dict[Format, Callable[[bytes, Extracted], None]]] = {
    "PDF": _extract_pdf,
    "HTML": _extract_html,
    "Office": partial(_extract_archive, office_parts),
    "EPUB": partial(_extract_archive, book_chapters),
    "e-mail": _extract_mail,
}


@contextlib.contextmanager
def _cpu_time_limit(seconds: float) -> Iterator[None]:
    """Raise `_CpuTimeExceeded` in the context after `seconds` of CPU time of this process.

    On threads other than the main thread, and on systems without such timers, nothing is raised. A
    limit by the clock instead of CPU time would truncate documents on a busy machine.
    """
    is_main_thread = threading.current_thread() is threading.main_thread()
    if not is_main_thread or not hasattr(signal, "setitimer"):
        yield
        return

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise _CpuTimeExceeded

    previous = signal.signal(signal.SIGPROF, interrupt)
    try:
        # Repeat every second, in case a library catches all exceptions.
        signal.setitimer(signal.ITIMER_PROF, seconds, 1.0)
        yield
    finally:
        with contextlib.suppress(_CpuTimeExceeded):
            signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)
