"""Files as chunks, with their places and titles, and errors that name the file."""

from pathlib import Path

import pytest

from relevance_gen import Chunk, InvalidRequestError, read_documents, search
from tests.cli.documents import docx, pdf, run


def test_every_chunk_has_its_place_and_title(tmp_path: Path) -> None:
    """A page, a line, the characters, the document's title and the headings above; files keep their order."""
    contents = {
        "a.pdf": pdf("Apples are red.", title="Fruit", outline={"Colours": 0}),
        "b.html": b"<title>Pets</title><nav>Home</nav><h1>Pets</h1><h2>Cats</h2><p>They purr.",
        "c.txt": b"# no heading\nPlain.",
        "d.docx": docx('<w:pPr><w:pStyle w:val="Heading1"/></w:pPr>' + run("Trees"), run("They grow.")),
        "e.md": b"An intro is here.\n\n# One\nText is there.\n\n## Two\nMore of it.\n\n```\n# code\n```\n\n"
        b"# Three\nEnd.",
    }
    for name, content in contents.items():
        (tmp_path / name).write_bytes(content)
    paths = [tmp_path / name for name in contents]
    chunks = read_documents(paths, max_chars=20)
    told = [(Path(chunk.metadata["path"]).name, chunk.text, chunk.title) for chunk in chunks]
    assert told == [
        ("a.pdf", "Apples are red.", "Fruit > Colours"),
        ("b.html", "# Pets\n## Cats", "Pets"),
        ("b.html", "They purr.", "Pets > Cats"),
        ("c.txt", "# no heading\nPlain.", ""),
        ("d.docx", "# Trees\nThey grow.", "Trees"),
        ("e.md", "An intro is here.", ""),
        ("e.md", "# One\nText is there.", "One"),
        ("e.md", "## Two\nMore of it.", "One > Two"),
        ("e.md", "```\n# code\n```", "One > Two"),
        ("e.md", "# Three\nEnd.", "Three"),
    ]
    assert chunks[0] == Chunk(
        "Apples are red.", {"path": str(paths[0]), "page": 1, "start": 0, "end": 15}, title="Fruit > Colours"
    )
    assert chunks[6].metadata == {"path": str(paths[4]), "first_line": 3, "last_line": 4, "start": 19, "end": 39}
    assert search("What do cats do?", chunks, top_n=1).results[0].chunk_txt == "They purr."


def test_what_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A file that is not there, a folder, and one of which nothing can be read are errors that name it."""
    (tmp_path / "a.bin").write_bytes(b"\0\1")
    (tmp_path / "b.pdf").write_bytes(b"%PDF-1.4 no")
    for name, error in (("none.txt", FileNotFoundError), ("", IsADirectoryError)):
        with pytest.raises(error, match=str(tmp_path)):
            read_documents([str(tmp_path / name)])
    for name, why in (("a.bin", "is no text, PDF, HTML or Office file"), ("b.pdf", "cannot be read")):
        with pytest.raises(InvalidRequestError, match=f"{name} {why}") as caught:
            read_documents([tmp_path / name])
        assert caught.value.field == "paths[0]"
    for paths, field in (
        ("a.txt", "paths"),
        ([1], "paths"),
        ([b"a.txt"], "paths"),
        ([tmp_path / "a.txt"], "max_chars"),
    ):
        (tmp_path / "a.txt").write_text("Text.")
        with pytest.raises(InvalidRequestError) as caught:
            read_documents(paths, max_chars=0)
        assert caught.value.field == field


def test_what_was_not_read_whole_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each chunk of a file that was not read whole says why."""
    monkeypatch.setattr("relevance_gen.documents.extraction.MAX_PAGES", 1)
    (tmp_path / "a.pdf").write_bytes(pdf("One.", "Two."))
    (chunk,) = read_documents([tmp_path / "a.pdf"])
    assert chunk.metadata["incomplete"] == "has 2 pages, of which the first 1 are searched"


def test_nothing_is_nothing() -> None:
    """No files have no chunks."""
    assert read_documents([]) == []
