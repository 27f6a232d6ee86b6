"""`relevance-gen index`, and searching what it kept: built once, searched often."""

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


def test_an_index_is_saved_and_searched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What `index` kept, --index searches without the files, with the same results, places and conditions."""
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


def test_records_are_chunks(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of records is read by the fields that are named; a damaged line is told of, and nothing is kept."""
    Path("pets.jsonl").write_text(
        '{"body": "Cats purr.", "page": 3}\n{"body": " "}\n{"body": "Dogs bark.", "page": 4}\n'
    )
    arguments = ["index", "pets.jsonl", "--save", "pets.index", "--text", "body"]
    assert main([*arguments, "--skip-blank"]) == 0
    assert capsys.readouterr() == ("pets.index: 2 chunks of pets.jsonl\n", "")
    assert main(["search", "dogs", "--index", "pets.index", "--where", "page=4", "--json"]) == 0
    assert '"original_index":2' in capsys.readouterr().out.replace(" ", "")
    Path("pets.index").unlink()
    assert main(arguments) == 2
    err = capsys.readouterr().err
    assert "pets.jsonl line 2: body must be" in err
    assert err.endswith("; leave it out, or pass --skip-blank\n")
    assert not Path("pets.index").exists()


def test_several_files_of_records_are_read(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are read one after the other, by the same fields, and a field that is not there is named as an option."""
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


def test_an_index_of_chunks_from_elsewhere(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index that a program saved is searched, too; chunks that tell no place are numbered and titled."""
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


def test_what_a_cluster_saved_is_searched(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its folder or its address, without a cluster; a folder or an address without one is told of."""
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


def test_an_encoder_lifts_and_its_vectors_are_kept(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """--encoder gives other scores; `index` keeps its vectors, and another encoder encodes again, and says so."""
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
    told = "relevance-gen: kept.index holds no vectors of this encoder, so the best chunks are encoded now\n"
    assert capsys.readouterr() == (once.out, told)
    assert main(["search", "apples", ".", "--encoder", "missing.gguf"]) == 2
    assert capsys.readouterr().err == MISSING_MODEL


def test_what_was_not_read_whole_is_said_again(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index knows which document was cut: whoever asks it is told, by the message, the result and the status."""
    monkeypatch.setattr(extraction, "MAX_PAGES", 1)
    Path("cut.pdf").write_bytes(pdf("Apples are red", "Pears are green"))
    told = "relevance-gen: cut.pdf: has 2 pages, of which the first 1 are searched\n"
    assert main(["search", "red apples", "cut.pdf"]) == 2
    built = capsys.readouterr()
    assert main(["index", "cut.pdf", "--save", "kept.index"]) == 2
    assert capsys.readouterr() == ("kept.index: 1 chunk of 1 file\n", told)
    assert built.err == told
    assert "  cut.pdf:page 1  (not read whole)\n" in built.out
    assert main(["search", "red apples", "--index", "kept.index"]) == 2
    assert capsys.readouterr() == built
    assert main(["search", "green pears", "--index", "kept.index"]) == 2
    assert capsys.readouterr() == (
        "",
        f"{told}relevance-gen: nothing found in 1 chunk of kept.index\n",
    )
    assert main(["ask", "Which are red?", "--index", "kept.index"]) == 2
    assert told in capsys.readouterr().err


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
        (["search", "x", "-t", "pyy", "."], "there is no file type 'pyy'; did you mean py?"),
    ],
)
def test_what_makes_no_sense_is_trouble(
    arguments: list[str], complaint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options that contradict each other, or an index that cannot be, are refused in one line, before any work."""
    Path("a.jsonl").write_text('{"text": "a"}')
    assert main(arguments) == 2
    shown = capsys.readouterr()
    assert complaint in shown.err
    assert (shown.out, shown.err.count("\n")) == ("", 1)
    assert Path("fruit.txt").read_text() == FRUIT


def test_an_index_in_a_folder_is_built_extended_and_searched(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--save` writes an index to an empty folder or an address, and `--add` adds chunks to it."""
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
