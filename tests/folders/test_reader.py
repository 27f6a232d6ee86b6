"""Reading the files of a folder: isolated documents, and lines of large files in bounded memory."""

import io
import os
import threading
import tracemalloc
from concurrent.futures import Future
from pathlib import Path

import pytest
from attrs import define, evolve, field
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.documents import isolation
from relevance_gen.documents.charset import decode
from relevance_gen.documents.extraction import Extracted
from relevance_gen.documents.isolation import DocumentPool
from relevance_gen.errors import InvalidRequestError, RequestCancelledError
from relevance_gen.folders import files as files_module
from relevance_gen.folders.files import FileRecord, LineReader, read_lines
from relevance_gen.folders.folder_index import FolderIndex
from relevance_gen.folders.reader import STILL_BEING_READ
from relevance_gen.request_scope import budget_scope, cancel_scope
from tests.cli.documents import docx, run

QUADRATIC_HTML = b"<html>" + b"<!" * 2_000_000
WAIT_S = 60
FILES = {"large.txt": FileRecord(None)}


@define
class ScriptedPool:
    """A pool whose documents complete when the test calls `complete`."""

    n_processes: int = 1
    futures: dict[str, Future[Extracted]] = field(factory=dict)
    n_submitted: int = 0

    def submit(self, name: str, _: bytes) -> Future[Extracted]:
        """Return a future that the test completes."""
        self.n_submitted += 1
        self.futures[name] = Future()
        return self.futures[name]

    def complete(self, name: str, text: str) -> None:
        """Complete a document."""
        self.futures[name].set_result(Extracted([({}, text)]))


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> ScriptedPool:
    """The pool of all folders."""
    pool = ScriptedPool()
    monkeypatch.setattr(isolation, "POOL", pool)
    return pool


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a text and a document, both older than a tick of the clock."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "notes.txt").write_text("Apples are red.")
    (root / "page.html").write_text("<html>Pears are green.")
    later_ns = (root / "page.html").stat().st_ctime_ns + 3_000_000_000
    monkeypatch.setattr("time.time_ns", lambda: later_ns)
    return root


def paths(index: FolderIndex, query: str) -> list[str]:
    """Return the paths of the results of a search."""
    return [result.metadata["path"] for result in index.search(query)]


# ── Documents ────────────────────────────────────────────────────────────────────────────────────


def test_hostile_document_is_skipped_with_reason(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that takes quadratic time is skipped after the CPU limit; other files are searched."""
    monkeypatch.setattr(isolation, "POOL", DocumentPool(1, timeout_s=1))
    (root / "hostile.html").write_bytes(QUADRATIC_HTML)
    (root / "letter.docx").write_bytes(docx(run("Plums are blue.")))
    index = FolderIndex(root, cache=False)
    assert paths(index, "plums") == ["letter.docx"]
    assert paths(index, "apples") == ["notes.txt"]
    reason = "took more than 1 s of processor time to read"
    assert index.skipped.failures == {"hostile.html": reason}


def test_document_above_memory_limit_is_skipped_with_reason(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page of 100 MB exceeds the memory of its process only."""
    monkeypatch.setattr(isolation, "POOL", DocumentPool(1, memory_bytes=160 << 20))
    (root / "hostile.html").write_text("<html>" + "a" * 100_000_000)
    index = FolderIndex(root, cache=False)
    assert paths(index, "pears") == ["page.html"]
    assert index.skipped.failures == {"hostile.html": "cannot be read within the memory allowed"}


def test_search_while_document_is_read_answers_without_it(root: Path, pool: ScriptedPool) -> None:
    """While one thread waits for a document, another thread finds the other files."""
    index = FolderIndex(root, cache=False)
    reading = threading.Thread(target=index.snapshot)
    reading.start()
    assert paths(index, "apples") == ["notes.txt"]
    assert index.skipped.failures == {"page.html": STILL_BEING_READ}
    assert index.files() == ["notes.txt", "page.html"]
    assert index.read("notes.txt").text == "Apples are red."
    assert reading.is_alive()
    pool.complete("page.html", "Pears are green.")
    reading.join(WAIT_S)
    assert paths(index, "pears") == ["page.html"]
    assert index.skipped.failures == {}


def test_snapshot_with_time_limit_returns_without_document(root: Path, pool: ScriptedPool) -> None:
    """A snapshot with a time limit lists the document as still being read; a later one has it."""
    index = FolderIndex(root, cache=False)
    snapshot = index.snapshot(max_wait_s=0)
    assert snapshot.skipped.failures == {"page.html": STILL_BEING_READ}
    assert len(snapshot) == 1
    pool.complete("page.html", "Pears are green.")
    assert len(index.snapshot(max_wait_s=0)) == 2
    assert pool.n_submitted == 1


def test_cancelled_request_keeps_document(root: Path, pool: ScriptedPool) -> None:
    """The document of a cancelled request is not read again by the next request."""
    index = FolderIndex(root, cache=False)
    with cancel_scope(lambda: not pool.futures), pytest.raises(RequestCancelledError):
        index.snapshot()
    pool.complete("page.html", "Pears are green.")
    assert paths(index, "pears") == ["page.html"]
    assert pool.n_submitted == 1


def test_removed_document_is_discarded(root: Path, pool: ScriptedPool) -> None:
    """The result of a document that was removed while it was read is dropped."""
    index = FolderIndex(root, cache=False)
    index.snapshot(max_wait_s=0)
    (root / "page.html").unlink()
    assert len(index.snapshot()) == 1
    assert index._reader._documents == {}
    assert pool.futures["page.html"].cancelled()


def test_many_documents_are_read_in_order(root: Path) -> None:
    """With more documents than processes, chunks keep the order of their files."""
    for number in range(30):
        (root / f"{number:02}.html").write_text(f"<html>Plum number {number}.")
    index = FolderIndex(root, cache=False)
    texts = [index.snapshot().index.chunks[position].text for position in range(30)]
    assert texts == [f"Plum number {number}." for number in range(30)]


# ── Lines ────────────────────────────────────────────────────────────────────────────────────────

ENCODINGS = ["utf-8", "utf-8-sig", "utf-16", "utf-32", "cp1252"]


@given(
    text=st.text(st.sampled_from("a\né€\r "), max_size=40),
    encoding=st.sampled_from(ENCODINGS),
    first_line=st.integers(1, 8),
    n_lines=st.none() | st.integers(1, 8),
    block_bytes=st.integers(1, 7),
)
def test_read_lines_equals_split_of_whole_text(
    text: str, encoding: str, first_line: int, n_lines: int | None, block_bytes: int
) -> None:
    """Lines read in blocks equal the lines of the decoded text, for all encodings and ranges."""
    content = text.encode(encoding)
    last_line = None if n_lines is None else first_line + n_lines - 1
    whole = decode(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "_BLOCK_BYTES", block_bytes)
        lines = read_lines(io.BytesIO(content), LineReader(first_line, last_line, 1000))
    if whole is None:
        assert lines is None
        return
    expected = whole.split("\n")
    n_expected = len(expected) - (not expected[-1])
    assert lines is not None
    assert lines.n_lines == n_expected
    if first_line <= n_expected:
        end = n_expected if last_line is None else min(last_line, n_expected)
        assert lines.text == "\n".join(expected[first_line - 1 : end])


@pytest.mark.parametrize("unit", ["a", "\n", "é line\n"])
def test_read_of_large_file_has_bounded_memory(tmp_path: Path, unit: str) -> None:
    """A line of a file of 48 MiB takes a few MiB, however long the lines are."""
    n_units = (48 << 20) // len(unit.encode())
    (tmp_path / "large.txt").write_text(unit * n_units)
    # Indexing the file takes longer than reading it, so only the state knows the path.
    state = evolve(FolderIndex(tmp_path, cache=False, glob="none").snapshot(), files=FILES)
    tracemalloc.start()
    try:
        lines = state.read("large.txt", 1, 1, max_chars=10_000)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert lines.n_lines == (n_units if unit.endswith("\n") else 1)
    assert len(lines.text) <= 10_000
    assert peak_bytes < 16 << 20


def test_read_checks_cancellation_and_reserves_memory(root: Path) -> None:
    """A cancelled read ends, and a read reserves the characters that it returns."""
    state = FolderIndex(root, cache=False).snapshot()
    with cancel_scope(lambda: False), pytest.raises(RequestCancelledError):
        state.read("notes.txt")
    reserved: list[tuple[str, int]] = []
    with budget_scope(lambda unit, number: reserved.append((unit, number))):
        assert state.read("notes.txt").text == "Apples are red."
    assert reserved == [("result_char", 15)]


def test_read_of_unreadable_file_names_reason(root: Path) -> None:
    """A file that became binary or was removed since the last state is an error with the reason."""
    state = FolderIndex(root, cache=False).snapshot()
    (root / "notes.txt").write_bytes(b"\0")
    with pytest.raises(InvalidRequestError, match=r"notes\.txt is binary, not text"):
        state.read("notes.txt")
    os.remove(root / "notes.txt")
    with pytest.raises(InvalidRequestError, match="No such file"):
        state.read("notes.txt")
    assert state.read("page.html").text == "Pears are green."
