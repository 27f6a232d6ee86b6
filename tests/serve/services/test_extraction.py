"""Text extraction: the text of clients' documents, and limits for malicious documents."""

from __future__ import annotations

import base64
import fcntl
import os
import signal
import termios
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from relevance_gen.errors import BusyError, InvalidRequestError
from relevance_gen.serve.services.extraction import ExtractionTask, Extractor
from relevance_gen.types import DocumentPart, ExtractionResponse
from tests.cli.documents import _R, archive, docx, pdf, run
from tests.serve.harness import eventually


def extraction_task(content: bytes, name: str = "") -> ExtractionTask:
    """Make the request for a document."""
    return ExtractionTask(base64.b64encode(content).decode(), name)


@pytest.fixture(scope="module")
def extractor() -> Iterator[Extractor]:
    """An extractor with the server's limits."""
    made = Extractor()
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "content", "parts"),
    [
        (
            "a.pdf",
            pdf("Apples are red", "Pears"),
            [({"page": 1}, "Apples are red"), ({"page": 2}, "Pears")],
        ),
        ("a.docx", docx(run("Apples")), [({}, "Apples")]),
        ("a.html", b"<p>Apples", [({}, "Apples")]),
        ("a.txt", "Äpfel".encode("utf-16"), [({}, "Äpfel")]),
        ("", b"Apples", [({}, "Apples")]),
    ],
)
def test_each_format_equals_command_line(
    extractor: Extractor, name: str, content: bytes, parts: list[tuple[dict[str, int], str]]
) -> None:
    """The parts equal the parts of the command line, each with its location."""
    found = extractor.extract(extraction_task(content, name))
    assert [(part.place, part.text.strip(" ")) for part in found.parts] == parts
    assert found.warning is None


def test_extract_damaged_document_returns_readable_pages(extractor: Extractor) -> None:
    """Intact pages are returned, with a warning about the damaged pages."""
    broken = pdf("Apples are red", "Pears").replace(b"/Contents 8 0 R", b"/Contents 1 2 3")
    found = extractor.extract(extraction_task(broken))
    assert found.parts[0] == DocumentPart({"page": 1}, "Apples are red")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\0\1\2", "is binary, not text"),
        (b"%PDF-1.7 and nothing more", "cannot be read"),
        (archive({"word/document.xml": "<w:document"}), "is damaged or encrypted"),
        (pdf(""), "has no text, only pictures"),
        (b"x" * ((1 << 23) + 1), "has more than 8,388,608 characters"),
    ],
)
def test_extract_unreadable_document_is_rejected(
    extractor: Extractor, content: bytes, why: str
) -> None:
    """The error names the problem of the content."""
    with pytest.raises(InvalidRequestError, match=f"^content {why}") as caught:
        extractor.extract(extraction_task(content))
    assert caught.value.field == "content"


@pytest.mark.parametrize("content", ["a", "YQ", "YQ==\n", "Ä", "\ud800"])
def test_content_must_be_base64(extractor: Extractor, content: str) -> None:
    """Content that is not strict base64 is rejected before a process starts."""
    with pytest.raises(InvalidRequestError, match="content must be base64"):
        extractor.extract(ExtractionTask(content))


def test_extract_over_limits_ends_the_process() -> None:
    """A document that exceeds a limit ends the process, and the next document gets a new process."""
    for extractor, content, why in (
        (Extractor(timeout_s=0.001), b"Apples " * 1_000_000, "takes longer than 0.001 seconds"),
        (Extractor(memory_bytes=256 << 20), b"x" * (120 << 20), "within the memory allowed"),
    ):
        with pytest.raises(InvalidRequestError, match=why):
            extractor.extract(extraction_task(content))
        for sandbox in extractor._sandboxes:
            sandbox._timeout_s = 30
        assert extractor.extract(extraction_task(b"Pears")) == ExtractionResponse(
            (DocumentPart({}, "Pears"),)
        )
        extractor.close()


def test_extract_without_process_is_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    """If no process can be started, the request is rejected as busy."""
    monkeypatch.setattr("sys.executable", "/no/such/python")
    with pytest.raises(BusyError):
        Extractor().extract(extraction_task(b"Apples"))


def test_extract_killed_process_is_busy() -> None:
    """If the process is killed from outside, for example for lack of memory, the request is rejected as busy, and the next is answered."""
    extractor = Extractor()
    try:
        extractor.extract(extraction_task(b"Apples"))
        (process,) = [
            sandbox._process for sandbox in extractor._sandboxes if sandbox._process is not None
        ]
        os.kill(process.popen.pid, signal.SIGSTOP)  # so that it is killed while it has a document
        os.waitid(
            os.P_PID, process.popen.pid, os.WSTOPPED | os.WNOWAIT
        )  # until then it may still read
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(extractor.extract, extraction_task(b"Pears"))
            assert eventually(lambda: any(fcntl.ioctl(process.stdin, termios.FIONREAD, bytes(4))))
            os.kill(process.popen.pid, signal.SIGKILL)
            with pytest.raises(BusyError):
                answer.result()
        assert extractor.extract(extraction_task(b"Pears")) == ExtractionResponse(
            (DocumentPart({}, "Pears"),)
        )
    finally:
        extractor.close()


def test_sheet_names_count_as_text() -> None:
    """Sheet names count as text: a small archive can repeat a name many times."""
    name, extractor = "x" * 30_000, Extractor()
    sheets = "".join(f'<sheet name="{name}" r:id="a"/>' for _ in range(1000))
    book = archive(
        {
            "xl/workbook.xml": f"<workbook xmlns='x' {_R}><sheets>{sheets}</sheets></workbook>",
            "xl/_rels/workbook.xml.rels": '<x xmlns="x"><Relationship Id="a" Target="worksheets/a.xml"/></x>',
            "xl/worksheets/a.xml": '<worksheet xmlns="x"><sheetData><row><c><v>1</v></c></row></sheetData></worksheet>',
        }
    )
    assert len(book) < 200_000
    try:
        found = extractor.extract(extraction_task(book, "a.xlsx"))
        assert sum(len(str(part.place)) + len(part.text) for part in found.parts) < 9 << 20
        assert found.warning == "has more than 8,388,608 characters of text"
    finally:
        extractor.close()
