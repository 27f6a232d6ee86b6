"""`relevance-gen search` with an index that is kept: built once, searched often."""

import errno
import os
from pathlib import Path

import pytest

from relevance_gen import ChunkIndex
from relevance_gen.cli import main
from relevance_gen.documents import extraction
from small_models import ENCODER
from tests.cli.conftest import FRUIT
from tests.cli.documents import pdf


def test_an_index_is_saved_and_searched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What --save kept, --index searches without the files, with the same results, places and conditions."""
    arguments = ["apples", "--json", "--where", "path=fruit.txt"]
    assert main(["search", *arguments, ".", "--save", "kept.index", "--weighting", "cosine"]) == 0
    built = capsys.readouterr()
    Path("fruit.txt").unlink()
    assert main(["search", *arguments, "--index", "kept.index"]) == 0
    assert capsys.readouterr() == built
    assert main(["search", "zebra", "--index", "kept.index"]) == 1
    assert capsys.readouterr() == ("", "relevance-gen: nothing found in 2 chunks of kept.index\n")
    assert main(["search", "coffee", "deep", "--save", "kept.index"]) == 0  # an index may be replaced
    assert len(ChunkIndex.load("kept.index")) == 1


def test_an_index_of_chunks_from_elsewhere(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An index that a program saved is searched, too; its chunks are numbered where they say nothing of a place."""
    ChunkIndex(["pears", {"text": "apples", "metadata": {"first_line": "x", "page": "\x1b"}}]).save("other.index")
    assert main(["search", "apples", "--index", "other.index"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("  chunk 1:page ␛")
    assert main(["search", "pears", "--index", "other.index"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("  chunk 0:?")


def test_an_encoder_lifts_and_its_vectors_are_kept(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--encoder gives other scores; --save keeps its vectors, and another encoder encodes again, and says so."""
    by_encoder = ["--encoder", str(ENCODER), "--json"]
    assert main(["search", "apples", "."]) == 0
    words = capsys.readouterr()
    assert main(["search", "apples", ".", *by_encoder]) == 0
    once = capsys.readouterr()
    assert once != words
    assert main(["search", "apples", ".", *by_encoder, "--save", "kept.index"]) == 0
    assert capsys.readouterr() == once
    assert main(["search", "apples", "--index", "kept.index", *by_encoder]) == 0
    assert capsys.readouterr() == once
    Path("other.gguf").write_bytes(ENCODER.read_bytes() + bytes(32))
    assert main(["search", "apples", "--index", "kept.index", "--encoder", "other.gguf", "--json"]) == 0
    told = "relevance-gen: kept.index holds no vectors of this encoder, so the best chunks are encoded now\n"
    assert capsys.readouterr() == (once.out, told)
    assert main(["search", "apples", ".", "--encoder", "missing.gguf"]) == 2
    assert capsys.readouterr().err == "relevance-gen: missing.gguf does not exist\n"


def test_what_was_not_read_whole_is_said_again(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index knows which document was cut: whoever asks it is told, by the message, the result and the status."""
    monkeypatch.setattr(extraction, "MAX_PAGES", 1)
    Path("cut.pdf").write_bytes(pdf("Apples are red", "Pears are green"))
    told = "relevance-gen: cut.pdf: has 2 pages, of which the first 1 are searched\n"
    assert main(["search", "red apples", "cut.pdf", "--save", "kept.index"]) == 2
    built = capsys.readouterr()
    assert built.err == told
    assert "  cut.pdf:page 1  (not read whole)\n" in built.out
    assert main(["search", "red apples", "--index", "kept.index"]) == 2
    assert capsys.readouterr() == built
    assert main(["search", "green pears", "--index", "kept.index"]) == 2
    assert capsys.readouterr() == ("", f"{told}relevance-gen: nothing found in 1 chunk of kept.index\n")
    assert main(["ask", "Which are red?", "--index", "kept.index"]) == 2
    assert told in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--index", "none", "fruit.txt"], "--index searches what was saved: leave out FILE"),
        (["--index", "none", "-g", "*", "--save", "x", "."], "leave out FILE and --save and --glob"),
        (["--index", "none"], "none: No such file or directory"),
        (["--index", "fruit.txt"], "fruit.txt "),
        (
            ["--save", "fruit.txt", "."],
            "--save must be a new file or a saved index, got 'fruit.txt'; name another file",
        ),
        (["--save", "no/where", "."], "--save: no is no folder that can be written to"),
        (["--save", "deep", "."], "--save: deep: Is a directory"),
        (["-t", "pyy", "."], "there is no file type 'pyy'; did you mean py?"),
    ],
)
def test_what_makes_no_sense_is_trouble(
    arguments: list[str], complaint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that contradict each other, or an index that cannot be, are refused in one line, before any work."""
    assert main(["search", "apples", *arguments]) == 2
    shown = capsys.readouterr()
    assert complaint in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert Path("fruit.txt").read_text() == FRUIT


def test_an_index_that_cannot_be_written(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the disk is full, the results are shown all the same, and the exit status says that something failed."""

    def full(index: ChunkIndex, path: str) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(ChunkIndex, "save", full)
    assert main(["search", "apples", "fruit.txt", "--save", "x"]) == 2
    shown = capsys.readouterr()
    assert "fruit.txt:1" in shown.out
    assert shown.err == "relevance-gen: x: No space left on device; the index is not saved\n"
