"""Tests of ``relevance-gen ask``: the answer, followed by its sources."""

import json

import pytest

from relevance_gen import Reranker
from relevance_gen.cli import main
from small_models import BIGRAM, ENCODER, RERANKER

MISSING_MODEL = (
    "relevance-gen: the model file missing.gguf does not exist; pass the path of a GGUF file, or the name of a model on "
    "the Hugging Face hub, such as owner/name\n"
)


SENTENCE = "Bees tell each other where the flowers are by dancing."
NOTES = f"The lighthouse was built in 1831 by a family of masons.\n\n{SENTENCE} The treaty was signed.\n"
QUESTION = "How do bees find flowers?"
COPIED = "relevance-gen: the answer is the best passage"


@pytest.fixture
def notes(folder, monkeypatch):
    monkeypatch.delenv("RELEVANCE_GEN_MODEL", raising=False)
    (folder / "notes.txt").write_text(NOTES)
    return folder


def test_ask_prints_answer_then_sources(notes, capsys):
    """The output has the answer, a blank line, and each source with number, score, file and line."""
    assert main(["ask", QUESTION, "notes.txt", "--max-chars", "60"]) == 0
    out, err = capsys.readouterr()
    answer, blank, source, text, *_ = out.splitlines()
    assert (answer, blank, text) == (f"{SENTENCE} [1]", "", f"  {SENTENCE}")
    assert source.startswith("[1] 0.")
    assert source.endswith("  notes.txt:3")
    assert err.startswith(COPIED)
    assert err.count("\n") == 1


def test_ask_prints_markers_and_headings(folder, capsys):
    """Each sentence has a source number or a note; each source has its line and headings."""
    (folder / "animals.md").write_text(
        f"# Animals\n\nA text about many of them.\n\n## Insects\n\n{SENTENCE}\n"
    )
    assert main(["ask", QUESTION, "animals.md", "--max-chars", "70"]) == 0
    answer, _, source, *_ = capsys.readouterr().out.splitlines()
    assert answer == f"{SENTENCE} [1]"
    assert source.endswith("  animals.md:7  Animals > Insects")
    assert (
        main(
            [
                "ask",
                QUESTION,
                "animals.md",
                "--no-copy",
                "--max-tokens",
                "3",
                "--model",
                str(BIGRAM),
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.split("\n\n")[0].endswith(" [not found in the sources]")


def test_ask_with_model_prints_no_notice(notes, capsys, monkeypatch):
    """A model from `--model` or the environment gets all options; no notice is printed."""
    options = ["--n-threads", "1", "--max-tokens", "7", "--seed", "3"]
    assert main(["ask", QUESTION, "notes.txt", "--model", str(BIGRAM), *options, "--json"]) == 0
    by_name = capsys.readouterr()
    monkeypatch.setenv("RELEVANCE_GEN_MODEL", str(BIGRAM))
    assert main(["ask", QUESTION, "notes.txt", *options, "--json"]) == 0
    assert capsys.readouterr() == by_name
    assert by_name.err == ""
    assert json.loads(by_name.out)["finish_reason"] in ("length", "stop", "eos")


def test_ask_with_reranker_has_search_scores(notes, capsys):
    """`--reranker` gives each source the score of `search` with the same reranker."""
    by_reranker = [QUESTION, "notes.txt", "--reranker", str(RERANKER), "--json"]
    assert main(["ask", *by_reranker]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert main(["search", *by_reranker]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    with Reranker(RERANKER) as reranker:
        (score,) = reranker.score(QUESTION, [f"{found['title']}\n{found['chunk_txt']}"])
    assert source["chunk_score"] == found["chunk_score"] == float(score)
    assert main(["ask", QUESTION, "--reranker", "missing.gguf"]) == 2
    assert capsys.readouterr() == ("", MISSING_MODEL)


def test_ask_with_encoder_has_search_scores(notes, capsys):
    """`--encoder` gives the scores of `search`; a missing encoder is an error before reading."""
    by_encoder = [QUESTION, "notes.txt", "--encoder", str(ENCODER), "--json"]
    assert main(["ask", *by_encoder]) == 0
    (source,) = json.loads(capsys.readouterr().out)["sources"]
    assert main(["search", *by_encoder]) == 0
    (found,) = json.loads(capsys.readouterr().out)["results"]
    assert source["chunk_score"] == found["chunk_score"]
    assert main(["search", QUESTION, "notes.txt", "--json"]) == 0
    assert found["chunk_score"] > json.loads(capsys.readouterr().out)["results"][0]["chunk_score"]
    assert main(["ask", QUESTION, "--encoder", "missing.gguf"]) == 2
    assert capsys.readouterr() == ("", MISSING_MODEL)


def test_ask_json_has_source_locations(notes, capsys):
    """`--json` prints one object, and the excerpt of a source matches its offsets in the file."""
    assert main(["ask", QUESTION, "notes.txt", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (source,) = answer["sources"]
    start = source["metadata"]["start"]
    shown = NOTES[start + source["shown"]["start"] : start + source["shown"]["end"]]
    assert answer["text"] == shown == SENTENCE


def test_ask_without_results_exits_with_1(notes, capsys):
    """Without results the status is 1, and stderr or the JSON answer reports the empty result."""
    assert main(["ask", "zebra?", "notes.txt"]) == 1
    assert capsys.readouterr() == ("", "relevance-gen: nothing found in 1 chunk of 1 file\n")
    assert main(["ask", "zebra?", "notes.txt", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["sources"] == []


def test_ask_below_min_confidence_prints_closest_passages(notes, capsys):
    """Below `--min-confidence` the status is 1 and the closest passages are printed."""
    assert (
        main(["ask", "Who signed the papers of the bank?", "notes.txt", "--max-chars", "60"]) == 1
    )
    out, err = capsys.readouterr()
    assert out.startswith("No answer found. These passages are the closest matches.\n\n[1] 0.")
    assert err == ""
    assert (
        main(["ask", "Who signed the papers of the bank?", "notes.txt", "--min-confidence", "0"])
        == 0
    )
    assert capsys.readouterr().err.startswith(COPIED)
    assert main(["ask", QUESTION, "notes.txt", "--min-confidence", "1", "--json"]) == 1
    answer = json.loads(capsys.readouterr().out)
    assert (answer["found"], len(answer["sources"])) == (False, 1)
    assert main(["ask", QUESTION, "notes.txt", "--min-confidence", "2"]) == 2
    assert "--min-confidence must be a finite number in [0, 1], got 2.0" in capsys.readouterr().err


def test_ask_copy_flags(notes, capsys):
    """`--no-copy` lets the embedded model generate freely; `--copy` works with other models."""
    assert main(["ask", QUESTION, "notes.txt", "--no-copy", "--max-tokens", "2"]) == 0
    assert len(capsys.readouterr().out.split("\n")[0]) < len(SENTENCE)
    assert main(["ask", QUESTION, "notes.txt", "--copy", "--model", str(BIGRAM)]) in (0, 2)


def test_ask_accepts_sources_of_search(notes, capsys):
    """`ask` accepts folders, globs and saved indexes, with the options of `search`."""
    assert main(["ask", QUESTION, ".", "-g", "*.md"]) == 1
    assert main(["index", ".", "-g", "*.txt", "--save", "kept.index"]) == 0
    capsys.readouterr()
    assert main(["ask", QUESTION, ".", "-g", "*.txt", "--no-cache"]) == 0
    first = capsys.readouterr().out
    assert main(["ask", QUESTION, "--index", "kept.index"]) == 0
    assert capsys.readouterr().out == first


def test_ask_reports_unreadable_file_after_answer(notes, capsys):
    """An unreadable file gives status 2 after the answer; a missing file prevents the answer."""
    notes.joinpath("binary.bin").write_bytes(b"\0")
    assert main(["ask", QUESTION, "notes.txt", "binary.bin"]) == 2
    out, err = capsys.readouterr()
    assert out.startswith(SENTENCE)
    assert "binary.bin: is binary" in err
    assert main(["ask", QUESTION, "notes.txt", "missing.txt"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.partition(";")[0]) == (
        "",
        "relevance-gen: missing.txt: No such file or directory",
    )


def test_ask_with_invalid_option_exits_before_reading(capsys):
    """An invalid option gives one line and status 2 before a file is read."""
    assert main(["ask", QUESTION, "/no/such/file", "--top-p", "2"]) == 2
    assert capsys.readouterr() == (
        "",
        "relevance-gen: --top-p must be a finite number in [0, 1], got 2.0\n",
    )
