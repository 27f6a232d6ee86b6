"""Tests of `relevance-gen index` and of searching the saved index."""

from pathlib import Path

import pytest

from relevance_gen import ChunkIndex
from relevance_gen.cli import main
from relevance_gen.documents import extraction
from small_models import ENCODER
from tests.cli.conftest import FRUIT
from tests.cli.documents import pdf
from tests.serve.shards import save_shards

MISSING_MODEL = (
    "relevance-gen: the model file missing.gguf does not exist; pass the path of a GGUF file, or the name of a model on "
    "the Hugging Face hub, such as owner/name\n"
)


def test_saved_index_gives_results_of_files(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--index` searches a saved index without its files, with equal results and filters."""
    arguments = ["apples", "--json", "--where", "path=fruit.txt"]
    assert (
        main(["search", *arguments, ".", "--rank-passages", "--no-cache", "--weighting", "cosine"])
        == 0
    )
    built = capsys.readouterr()
    assert main(["index", ".", "--save", "kept.index", "--weighting", "cosine"]) == 0
    assert capsys.readouterr() == ("kept.index: 2 chunks of 2 files\n", "")
    Path("fruit.txt").unlink()
    assert main(["search", *arguments, "--index", "kept.index"]) == 0
    assert capsys.readouterr() == built
    assert main(["search", "zebra", "--index", "kept.index"]) == 1
    assert capsys.readouterr() == ("", "relevance-gen: nothing found in 2 chunks of kept.index\n")
    assert main(["index", "deep", "--save", "kept.index"]) == 0  # an index may be replaced
    assert len(ChunkIndex.load("kept.index")) == 1


def test_index_reads_fields_of_records(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Records are read by the named fields; a damaged line is reported and nothing is saved."""
    Path("pets.jsonl").write_text(
        '{"body": "Cats purr.", "page": 3}\n{"body": " "}\n{"body": "Dogs bark.", "page": 4}\n'
    )
    arguments = ["index", "pets.jsonl", "--save", "pets.index", "--text", "body"]
    assert main([*arguments, "--skip-blank"]) == 0
    assert capsys.readouterr() == ("pets.index: 2 chunks of pets.jsonl\n", "")
    assert main(["search", "dogs", "--index", "pets.index", "--where", "page=4", "--json"]) == 0
    assert '"original_index":2' in capsys.readouterr().out.replace(" ", "")
    conditions = ["--where", "page>=4", "--where", "page<5"]
    assert main(["search", "dogs cats", "--index", "pets.index", *conditions, "--json"]) == 0
    output = capsys.readouterr().out.replace(" ", "")
    assert '"original_index":2' in output
    assert '"original_index":0' not in output
    Path("pets.index").unlink()
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert "pets.jsonl line 2: body must be" in err
    assert err.endswith("; leave it out, or pass --skip-blank\n")
    assert not Path("pets.index").exists()


def test_index_reads_several_record_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Files are read in order by the same fields; a missing field is reported by its option."""
    Path("cats.jsonl").write_text('{"body": "Cats purr.", "head": "Cats"}\n')
    Path("dogs.ndjson").write_text('{"body": "Dogs bark."}\n')
    arguments = ["index", "cats.jsonl", "dogs.ndjson", "--save", "pets.index"]
    assert main([*arguments, "--text", "body", "--title", "head"]) == 0
    assert capsys.readouterr() == ("pets.index: 2 chunks of 2 files\n", "")
    assert [(one.text, one.title) for one in ChunkIndex.load("pets.index")] == [
        ("Cats purr.", "Cats"),
        ("Dogs bark.", ""),
    ]
    assert main(arguments) == 2
    assert (
        "must have the field 'text', which --text names; its fields are body, head"
        in capsys.readouterr().err
    )
    assert main([*arguments, "--text", "body", "--title", "heat"]) == 2
    assert "must have the field 'heat', which --title names; " in capsys.readouterr().err


def test_search_of_program_index_numbers_chunks(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Chunks of an index saved by a program are labeled by number and title if they have no path."""
    ChunkIndex(
        [
            "pears",
            {"text": "plums", "title": "Red\nor blue"},
            {"text": "apples", "metadata": {"first_line": "x", "page": "\x1b"}},
        ]
    ).save("other.index")
    assert main(["search", "apples", "--index", "other.index"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("  chunk 2:page ␛")
    assert main(["search", "pears", "--index", "other.index"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("  chunk 0")
    assert main(["search", "plums", "--index", "other.index"]) == 0
    assert capsys.readouterr().out.splitlines()[0].endswith("  chunk 1  Red or blue")


def test_search_of_sharded_index_needs_no_cluster(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sharded index is searched by folder or URL; a location without an index is an error."""
    save_shards(
        str(folder / "saved"), ["pears", {"text": "apples", "metadata": {"path": "fruit.txt"}}], 2
    )
    for place in ("saved", f"file://{folder}/saved"):
        assert main(["search", "apples", "--index", place]) == 0
        assert capsys.readouterr().out.splitlines()[0].endswith("  fruit.txt")
    for place in ("deep", "memory://nothing"):
        assert main(["search", "apples", "--index", place]) == 2
        assert f"{place} holds no saved index" in capsys.readouterr().err
    assert main(["search", "apples", "--index", "nothing://there"]) == 2
    assert "must be an address that fsspec can open" in capsys.readouterr().err


def test_index_saves_encoder_vectors(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`index` saves the vectors of `--encoder`; a different encoder encodes again with a notice."""
    by_encoder = ["--encoder", str(ENCODER), "--json"]
    assert main(["search", "apples", "."]) == 0
    words = capsys.readouterr()
    assert main(["search", "apples", ".", *by_encoder]) == 0
    once = capsys.readouterr()
    assert once != words
    assert main(["index", ".", "--encoder", str(ENCODER), "--save", "kept.index"]) == 0
    capsys.readouterr()
    assert main(["search", "apples", "--index", "kept.index", *by_encoder]) == 0
    assert capsys.readouterr() == once
    Path("other.gguf").write_bytes(ENCODER.read_bytes() + bytes(32))
    assert (
        main(["search", "apples", "--index", "kept.index", "--encoder", "other.gguf", "--json"])
        == 0
    )
    reported = "relevance-gen: kept.index holds no vectors of this encoder, so the best chunks are encoded now\n"
    assert capsys.readouterr() == (once.out, reported)
    assert main(["search", "apples", ".", "--encoder", "missing.gguf"]) == 2
    assert capsys.readouterr().err == MISSING_MODEL


def test_saved_index_repeats_incomplete_document_warning(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A search of a saved index repeats the warning, metadata and status for a cut document."""
    monkeypatch.setattr(extraction, "MAX_PAGES", 1)
    Path("cut.pdf").write_bytes(pdf("Apples are red", "Pears are green"))
    reported = "relevance-gen: cut.pdf: has 2 pages, of which the first 1 are searched\n"
    assert main(["search", "red apples", "cut.pdf"]) == 2
    built = capsys.readouterr()
    assert main(["index", "cut.pdf", "--save", "kept.index"]) == 2
    assert capsys.readouterr() == ("kept.index: 1 chunk of 1 file\n", reported)
    assert built.err == reported
    assert "  cut.pdf:page 1  (not read whole)\n" in built.out
    assert main(["search", "red apples", "--index", "kept.index"]) == 2
    assert capsys.readouterr() == built
    assert main(["search", "green pears", "--index", "kept.index"]) == 2
    assert capsys.readouterr() == (
        "",
        f"{reported}relevance-gen: nothing found in 1 chunk of kept.index\n",
    )
    assert main(["ask", "Which are red?", "--index", "kept.index"]) == 2
    assert reported in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["search", "x", "--index", "none", "fruit.txt"],
            "--index searches a saved index: leave out FILE",
        ),
        (["search", "x", "--index", "none", "-g", "*", "."], "leave out FILE and --glob"),
        (["search", "x", "--index", "none"], "none: No such file or directory"),
        (["search", "x", "--index", "fruit.txt"], "fruit.txt "),
        (
            ["index", "--save", "fruit.txt", "."],
            "--save must be a new file or a saved index, got 'fruit.txt'; name another file",
        ),
        (["index", "--save", "no/where", "."], "no/where: No such file or directory"),
        (
            ["index", "--save", "deep", "."],
            "--save must be a new file, an index or an empty folder",
        ),
        (["index", "--save", "x", "none.jsonl"], "none.jsonl: No such file or directory"),
        (
            ["index", "--save", "x", "a.jsonl", "fruit.txt"],
            "a.jsonl holds records, and fruit.txt does not: index them separately",
        ),
        (
            ["index", "--save", "x", "fruit.txt", "--text", "a", "--skip-blank"],
            "records take --text and --skip-blank; ",
        ),
        (["search", "x", "-t", "pyy", "."], "--type must be names of file types, got 'pyy'"),
    ],
)
def test_index_with_contradicting_options_exits_with_2(
    arguments: list[str], complaint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Contradicting options and impossible indexes are rejected in one line before any work."""
    Path("a.jsonl").write_text('{"text": "a"}')
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert complaint in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert Path("fruit.txt").read_text() == FRUIT


def test_index_in_folder_is_built_and_extended(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--save` writes an index to an empty folder or a URL, and `--add` adds chunks to it."""
    Path("pets.jsonl").write_text('{"text": "Cats purr."}\n{"text": "Dogs bark."}\n')
    Path("saved").mkdir()
    for place in ("saved", f"file://{folder}/other"):
        assert main(["index", "pets.jsonl", "--save", place]) == 0
        assert capsys.readouterr().out == f"{place}: 2 chunks of pets.jsonl\n"
        assert main(["index", "pets.jsonl", "--add", place]) == 0
        assert capsys.readouterr().out == f"{place}: 2 chunks of pets.jsonl\n"
        assert main(["search", "purr", "--index", place, "--json"]) == 0
        assert capsys.readouterr().out.count("original_index") == 2
    assert main(["index", "pets.jsonl", "--save", "."]) == 2
    assert "--save must be a new file, an index or an empty folder" in capsys.readouterr().err
    assert main(["index", "pets.jsonl", "--add", "nowhere"]) == 2
    assert "holds no saved index" in capsys.readouterr().err
    assert main(["index", "pets.jsonl", "--save", "saved", "--encoder", "a.gguf"]) == 2
