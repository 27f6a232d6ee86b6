"""Tests of reading files as chunks with locations and titles, and of its errors."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, InvalidRequestError, read_documents, search, split, split_document
from relevance_gen.documents.extraction import Extracted
from relevance_gen.documents.reading import document_chunks
from tests.cli.documents import docx, pdf, run


def title_without_file(chunk: Chunk, folder: Path) -> str:
    """Return the title of a chunk without the folder and file name at its start."""
    name = f"{folder.name}/{Path(chunk.metadata['path']).name}"
    assert chunk.title == name or chunk.title.startswith(f"{name} > ")
    return chunk.title.removeprefix(name).removeprefix(" > ")


def test_chunks_have_location_and_title(tmp_path: Path) -> None:
    """Chunks have page, line, offsets, document title and headings; files keep their order."""
    contents = {
        "a.pdf": pdf("Apples are red.", title="Fruit", outline={"Colours": 0}),
        "b.html": b"<title>Pets</title><nav>Home</nav><h1>Pets</h1><h2>Cats</h2><p>They purr.",
        "c.txt": b"# no heading\nPlain.",
        "f.txt": b"The Ferry\r\n\r\nIt leaves at seven.",
        "d.docx": docx(
            '<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>' + run("Trees"), run("They grow.")
        ),
        "e.md": b"An intro is here.\n\n# One\nText is there.\n\n## Two\nMore of it.\n\n```\n# code\n```\n\n"
        b"# Three\nEnd.",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in contents]
    chunks = read_documents(paths, max_chars=20)
    reported = [
        (Path(chunk.metadata["path"]).name, chunk.text, title_without_file(chunk, tmp_path))
        for chunk in chunks
    ]
    assert reported == [
        ("a.pdf", "Apples are red.", "Fruit > Colours"),
        ("b.html", "# Pets\n\n## Cats", "Pets"),
        ("b.html", "They purr.", "Pets > Cats"),
        ("c.txt", "# no heading\nPlain.", ""),
        ("f.txt", "The Ferry", "The Ferry"),
        ("f.txt", "It leaves at seven.", "The Ferry"),
        ("d.docx", "# Trees\n\nThey grow.", "Trees"),
        ("e.md", "An intro is here.", ""),
        ("e.md", "# One\nText is there.", "One"),
        ("e.md", "## Two\nMore of it.", "One > Two"),
        ("e.md", "```\n# code\n```", "One > Two"),
        ("e.md", "# Three\nEnd.", "Three"),
    ]
    assert chunks[0] == Chunk(
        "Apples are red.",
        {"path": str(paths[0]), "page": 1, "start": 0, "end": 15},
        title=f"{tmp_path.name}/a.pdf > Fruit > Colours",
    )
    assert chunks[8].metadata == {
        "path": str(paths[5]),
        "first_line": 3,
        "last_line": 4,
        "start": 19,
        "end": 39,
    }
    assert search("What do cats do?", chunks, top_n=1).results[0].chunk_txt == "They purr."


def test_unreadable_file_raises_with_path(tmp_path: Path) -> None:
    """Missing files, folders and unreadable files raise errors that have the path."""
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4 no")
    with pytest.raises(FileNotFoundError, match=r"none\.txt"):
        read_documents([str(tmp_path / "none.txt")])
    with pytest.raises(InvalidRequestError, match="search a folder with FolderIndex") as caught:
        read_documents([tmp_path])
    assert caught.value.field == "paths[0]"
    for name, why in (("a.bin", "is binary, not text"), ("b.pdf", "cannot be read")):
        with pytest.raises(InvalidRequestError, match=f"{name} {why}") as caught:
            read_documents([tmp_path / name])
        assert caught.value.field == "paths[0]"
    for paths, field in (
        ("a.txt", "paths"),
        ([1], "paths[0]"),
        ([b"a.txt"], "paths[0]"),
        ([tmp_path / "a.txt"], "max_chars"),
    ):
        (tmp_path / "a.txt").write_text("Text.")
        with pytest.raises(InvalidRequestError) as caught:
            read_documents(paths, max_chars=0)
        assert caught.value.field == field


def test_incomplete_file_has_metadata(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk of a partly read file has the reason in its metadata."""
    monkeypatch.setattr("relevance_gen.documents.extraction.MAX_PAGES", 1)
    (tmp_path / "a.pdf").write_bytes(pdf("One.", "Two."))
    (chunk,) = read_documents([tmp_path / "a.pdf"])
    assert chunk.metadata["incomplete"] == "has 2 pages, of which the first 1 are searched"


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([3], r"paths\[0\] must be the path of a file, got 3"),
        (["book.txt", 3], r"paths\[1\] must be the path of a file, got 3"),
        (["\ud800"], r"paths\[0\] cannot be a path: it has a lone surrogate"),
        ("book.txt", "paths must be a list of files, got 'book.txt'; put a file in a list"),
    ],
)
def test_read_documents_of_invalid_path_names_it(paths: Any, message: str) -> None:
    """The error has the index of the path, and is raised before a file is read."""
    with pytest.raises(InvalidRequestError, match=message):
        read_documents(paths)


def test_read_documents_without_files_returns_empty_list() -> None:
    """An empty list of files gives an empty list of chunks."""
    assert read_documents([]) == []


@pytest.mark.parametrize(
    ("text", "title"),
    [
        ("The Ferry\n\nIt leaves.", "The Ferry"),
        ("\n \n  7 rules \r\n \t\r\n\r\nIt leaves.", "7 rules"),
        ("Über uns\n\nWir", "Über uns"),
        ("A b c d e f g h i j k l\n\nText", "A b c d e f g h i j k l"),
        ("A b c d e f g h i j k l m\n\nText", ""),
        ("The ferry\nIt leaves.", ""),
        ("The ferry leaves.\n\nText", ""),
        ("the ferry\n\nText", ""),
        ("- Ferry\n\nText", ""),
        ("The Ferry\n\n", ""),
        ("The Ferry", ""),
        (f"The {'x' * 200}\n\nText", ""),
        ("```\n# code\n```\n# Heading ##\nText", "Heading"),
        ("```\n# code", ""),
        ("Ferry\n\n# Ferry\nText", "Ferry"),
        ("", None),
    ],
)
def test_title_of_text_follows_strict_rule(text: str, title: str | None) -> None:
    """A first line is a title only by the strict rule; headings inside code are ignored."""
    chunks = split_document(text, max_chars=25)
    assert (chunks[-1].title if chunks else None) == title


_LINES = st.sampled_from(
    ["# A", "## B", "Title", "", "", "text of it. ", "```", "  # c", "9 lives"]
)


@given(st.lists(_LINES, max_size=20).map("\n".join), st.integers(1, 30), st.integers(0, 10))
def test_split_document_equals_split(text: str, max_chars: int, overlap: int) -> None:
    """Titles change no cut, offsets are correct, and texts and files are split alike."""
    chunks = split_document(text, max_chars, overlap=overlap)
    assert [chunk.text for chunk in chunks] == split(text, max_chars, overlap=overlap)
    for chunk in chunks:
        start, end = chunk.metadata["start"], chunk.metadata["end"]
        assert text[start:end] == chunk.text
        assert chunk.metadata["first_line"] == text[:start].count("\n") + 1
        assert chunk.metadata["last_line"] == text[:end].count("\n") + 1
    read = document_chunks("a.md", Extracted([({}, text)], has_headings=True), max_chars, name="")
    for chunk, same in zip(read, split_document(text, max_chars), strict=True):
        assert chunk == Chunk(same.text, {"path": "a.md", **same.metadata}, title=same.title)


def test_split_document_title_replaces_first_line() -> None:
    """The argument `title` replaces the title in the text; an invalid type raises an error."""
    assert split_document("Tea\n\n# Green\nIt is.", title="Drinks")[0].title == "Drinks"
    assert split_document("Tea\n\n# Green\nIt is.", 12, title="Drinks")[1].title == "Drinks > Green"
    for arguments, field in (({"title": 3}, "title"), ({"max_chars": 0}, "max_chars")):
        with pytest.raises(InvalidRequestError) as caught:
            split_document("Text", **arguments)  # type: ignore[arg-type]
        assert caught.value.field == field


@pytest.mark.parametrize("text", [None, 3, ["a"]])
def test_split_document_of_another_type_raises(text: Any) -> None:
    """A text that is not a string raises the same error as in `split`."""
    messages = []
    for function in (split, split_document):
        with pytest.raises(InvalidRequestError, match="text must be a string, got") as caught:
            function(text)
        messages.append(str(caught.value))
    assert messages[0] == messages[1]
