"""Tests of the files that `relevance-gen search` reads, skips and reports."""

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from relevance_gen.cli import main
from tests.cli.conftest import ENVIRONMENT
from tests.cli.documents import docx, pdf, pptx, run, xlsx


@pytest.mark.parametrize(
    ("name", "content", "place", "shown"),
    [
        ("report.pdf", pdf("Pears are green", "Apples are red"), {"page": 2}, "report.pdf:page 2"),
        ("talk.pptx", pptx("Pears", "Apples"), {"slide": 2}, "talk.pptx:slide 2"),
        (
            "book.xlsx",
            xlsx(Pears=[["Pear"]], Prices=[["Apples", 3]]),
            {"sheet": "Prices"},
            "book.xlsx:sheet Prices",
        ),
        (
            "letter.docx",
            docx(run("Pears"), run("Apples")),
            {"first_line": 1, "last_line": 3},
            "letter.docx:3",
        ),
        (
            "page.html",
            b"<p>Pears</p>\n<p>\n<b>App</b>les</p>",
            {"first_line": 1, "last_line": 3},
            "page.html:3",
        ),
    ],
)
def test_search_of_document_has_location(
    name: str,
    content: bytes,
    place: dict[str, object],
    shown: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A document is searched; its location is printed and can be used as a filter."""
    Path(name).write_bytes(content)
    assert main(["search", "apples", name, "--lines", "1"]) == 0
    assert f"  {shown}\n" in capsys.readouterr().out
    wanted = [
        part
        for key, value in ({"path": name} | place).items()
        for part in ("--where", f"{key}={value}")
    ]
    assert main(["search", "apples", ".", "--json", *wanted]) == 0
    (result,) = json.loads(capsys.readouterr().out)["results"]
    metadata, text = result["metadata"], result["chunk_txt"]
    assert "Apples" in text
    assert metadata == {
        "path": name,
        **place,
        "start": metadata["start"],
        "end": metadata["start"] + len(text),
    }


def test_search_reports_damaged_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A damaged document is reported with the reason, and other files are searched."""
    Path("bad.pdf").write_bytes(b"%PDF-1.7 no more")
    assert main(["search", "apples", "."]) == 2
    shown = capsys.readouterr()
    assert shown.err.startswith("relevance-gen: bad.pdf: cannot be read (Pdf")
    assert shown.err.count("\n") == 1
    assert "fruit.txt:1" in shown.out


def test_search_detects_document_on_stdin(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The format of the standard input is detected from its content."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(pdf("Apples are red"))))
    assert main(["search", "apples"]) == 0
    assert "  (standard input):page 1\n  Apples are red\n" in capsys.readouterr().out


def test_search_reports_skipped_files(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A named unreadable file has its own line and status 2; skipped files of folders are counted."""
    monkeypatch.setattr(
        "importlib.util.find_spec", lambda _name: None
    )  # as where the extra is not installed
    contents = {
        "picture.png": b"\x89PNG\0\0apples",
        "report.pdf": pdf("apples"),
        "old.doc": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1 apples",
    }
    for name, content in contents.items():
        Path(name).write_bytes(content)
    assert main(["search", "apples", "fruit.txt", *contents]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "relevance-gen: picture.png: is binary, not text",
        "relevance-gen: report.pdf: needs pip install pypdfium2",
        "relevance-gen: old.doc: is encrypted, or in a format of Office before 2007",
    ]
    Path("link.txt").symlink_to("fruit.txt")
    Path("link.md").symlink_to("fruit.txt")
    assert main(["search", "apples", "."]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "relevance-gen: skipped 1 old Office file: each is encrypted, or in a format of Office before 2007",
        "relevance-gen: skipped 1 binary file",
        "relevance-gen: skipped 1 PDF file: each needs pip install pypdfium2",
        "relevance-gen: skipped 2 symbolic links; --follow follows them",
    ]


@pytest.mark.parametrize("paths", [["fruit.txt", "."], ["fruit.txt", "./fruit.txt"]])
def test_file_of_several_paths_is_read_once(
    paths: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file that is named twice, or named and in a named folder, has its passages once."""
    assert main(["search", "bananas", *paths, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["results"]
    assert [result["metadata"]["path"] for result in found] == ["fruit.txt"]


def test_options_filter_files_of_folders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """File options filter the files of folders; files named explicitly are always searched."""
    for name in ("a.py", "b.md", "c.log", ".hidden"):
        Path(name).write_text("apples")
    Path(".gitignore").write_text("*.log")
    for options, sources in (
        ([], {"a.py", "b.md", "fruit.txt", "deep/er/café.md"}),
        (
            ["--hidden", "--no-ignore"],
            {"a.py", "b.md", "fruit.txt", "deep/er/café.md", "c.log", ".hidden"},
        ),
        (["-t", "py"], {"a.py"}),
        (["--type", "md", "--glob", "!deep"], {"b.md"}),
        (["-g", "*.log"], {"c.log"}),
        (["-g", "*.py", "fruit.txt"], {"a.py", "fruit.txt"}),
    ):
        assert main(["search", "apples", ".", *options, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)["results"]
        assert {result["metadata"]["path"] for result in found} == sources


@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_undecodable_file_name_is_printed(encoding: str, folder: Path) -> None:
    """A file name with invalid encoding is found and printed in any output encoding."""
    name = os.fsdecode(b"caf\xe9.txt")
    Path(name).write_text("apples 🍎")
    done = subprocess.run(
        [sys.executable, "-m", "relevance_gen", "search", "apples", "."],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        env=ENVIRONMENT | {"PYTHONIOENCODING": encoding},
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"  caf?.txt:1\n  apples " in done.stdout
