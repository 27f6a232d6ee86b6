"""Tests of `relevance-gen search`: files, output, and the exit statuses of grep."""

import io
import json
import os
import pty
import subprocess
import sys
from argparse import ArgumentTypeError, Namespace
from pathlib import Path
from typing import Any

import pytest

import relevance_gen
from relevance_gen.cli import main
from relevance_gen.cli.arguments import read_condition
from relevance_gen.cli.search import parse_where
from relevance_gen.cli.terminal import visible
from tests.cli.conftest import ENVIRONMENT, FRUIT


def test_search_prints_score_file_line_and_text(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result shows score, file, line and text; without a terminal there are no colors."""
    assert main(["search", "what is yellow?", "fruit.txt", "--max-chars", "30"]) == 0
    score, place = capsys.readouterr().out.splitlines()[0].split("  ")
    assert place == "fruit.txt:3"
    assert 0 < float(score) <= 1


def test_search_reads_subfolders(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All files below a folder are searched; hidden files and folders are skipped."""
    (folder / ".hidden").write_text("apple")
    (folder / ".git").mkdir()
    (folder / ".git" / "apple").write_text("apple")
    assert main(["search", "apples", ".", "--json"]) == 0
    parsed = json.loads(capsys.readouterr().out)
    assert {result["metadata"]["path"] for result in parsed["results"]} == {
        "deep/er/café.md",
        "fruit.txt",
    }


def test_search_json_has_locations(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--json` prints the documented response, and each location holds the chunk's text."""
    assert main(["search", "bananas", "fruit.txt", "--json", "--max-chars", "45"]) == 0
    response = json.loads(capsys.readouterr().out)
    (result,) = response["results"]
    assert set(result) == {
        "chunk_id",
        "chunk_txt",
        "chunk_score",
        "metadata",
        "original_index",
        "title",
    }
    assert set(response["metadata"]) == {"num_query_tokens", "num_context_tokens"}
    place = result["metadata"]
    assert place["path"] == "fruit.txt"
    assert FRUIT[place["start"] : place["end"]] == result["chunk_txt"]
    assert place["first_line"] == 3


def test_search_max_tokens_prints_best_sentences(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--max-tokens` prints the most relevant sentences with the line of the first sentence."""
    Path("birds.txt").write_text(
        "It rained.\n\nIt rained again. The heron hunts at dawn. It snowed for days.\n"
    )
    assert main(["search", "when does the heron hunt?", "birds.txt", "--max-tokens", "9"]) == 0
    head, *lines = capsys.readouterr().out.rstrip("\n").split("\n")
    assert head.endswith("birds.txt:3")
    assert lines == ["  The heron hunts at dawn."]
    assert (
        main(["search", "when does the heron hunt?", "birds.txt", "--max-tokens", "9", "--json"])
        == 0
    )
    (kept,) = json.loads(capsys.readouterr().out)["sentences"]
    assert (kept["text"], kept["metadata"]["path"]) == ("The heron hunts at dawn.", "birds.txt")


def test_search_order_and_top_n(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Results are sorted by score, or by position with `--true-order`, and limited by `-n`."""
    texts = {
        "a": "apple pie and a lot more than that",
        "b": "plum",
        "c": "apple",
        "d": "apple tart",
    }
    for name, text in texts.items():
        Path(name).write_text(text)
    shown = {}
    for order in ("score", "position"):
        assert main(["search", "apple tart", *texts, "--json", "--sort", order, "-n", "2"]) == 0
        found = json.loads(capsys.readouterr().out)["results"]
        shown[order] = [result["metadata"]["path"] for result in found]
    assert shown == {"score": ["d", "c"], "position": ["c", "d"]}


def test_search_prints_best_lines_of_long_chunk(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--lines` prints the lines around the matched words with their line number, or all lines."""
    Path("long.txt").write_text(
        "\n".join(["nothing here"] * 20 + ["the treasure is buried"] + ["nothing"] * 10)
    )
    assert main(["search", "buried treasure", "long.txt", "--lines", "1"]) == 0
    place, line, end = capsys.readouterr().out.splitlines()
    assert (place[4:], line, end) == ("  long.txt:21", "  the treasure is buried", "")
    assert main(["search", "buried treasure", "long.txt", "--lines", "0"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 33


def test_search_prints_from_passage_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The printed excerpt begins with the line of the best passage."""
    options = "".join(
        f"`--{name}`: {purpose}\n"
        for name, purpose in {
            "n-ctx": "most tokens of a sequence; by default the model's",
            "n-threads": "number of threads that decode",
            "n-slots": "sequences at a time",
        }.items()
    )
    Path("options.md").write_text(options)
    for n_lines in ("1", "2", "4"):
        assert (
            main(["search", "how do I set the number of threads", "options.md", "--lines", n_lines])
            == 0
        )
        place, line, *_ = capsys.readouterr().out.splitlines()
        assert place.endswith("  options.md:2")
        assert line == "  `--n-threads`: number of threads that decode"


@pytest.mark.parametrize(
    ("text", "query", "marked"),
    [
        ("Connections were connected.", "connection", ["Connections", "connected"]),
        ("call get_user_name(x)", "user", ["user"]),
        ("Größe und Grösse", "grösse", ["Größe", "Grösse"]),
        ("今天天气很好", "天气", ["天气"]),
        ("the cat is on the mat", "what is on the mat", ["mat"]),
        ("हिन्दी में लिखा", "हिन्दी", ["हिन्दी"]),
    ],
)
def test_search_color_marks_matches(
    text: str, query: str, marked: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Color marks the matched words, in their inflections and in every script."""
    Path("text.txt").write_text(text + "\n\n" + "Something else altogether.", encoding="utf-8")
    assert main(["search", query, "text.txt", "--color", "always", "--max-chars", "40"]) == 0
    coloured = capsys.readouterr().out.split("\n")[1]
    assert [part.split("\x1b[0m")[0] for part in coloured.split("\x1b[1;31m")[1:]] == marked
    assert coloured.replace("\x1b[1;31m", "").replace("\x1b[0m", "").strip() == text


def test_search_escapes_control_characters(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Control characters in texts and file names are replaced by visible symbols."""
    Path("evil\x1b[2J.txt").write_text("apple\x1b]0;owned\x07\tpie\r\n\x9b2J")
    assert main(["search", "owned", "."]) == 0
    shown = capsys.readouterr().out
    assert "evil␛[2J.txt:1\n  apple␛]0;owned␇    pie\n" in shown
    assert shown.replace("\n", "").isprintable()


def test_search_without_results_exits_with_1(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without results the status is 1 with a summary on stderr; JSON has an empty list."""
    assert main(["search", "zebra", "."]) == 1
    assert capsys.readouterr() == ("", "relevance-gen: nothing found in 2 chunks of 2 files\n")
    assert main(["search", "zebra", ".", "-g", "*.nothing"]) == 1
    said = "relevance-gen: nothing found in 0 chunks of 0 files; --no-ignore and --hidden include more files\n"
    assert capsys.readouterr() == ("", said)
    assert main(["search", "zebra", "fruit.txt", "--json"]) == 1
    shown = capsys.readouterr()
    assert (json.loads(shown.out)["results"], shown.err) == ([], "")


def test_search_reports_unreadable_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unreadable file is reported, other files are searched, and the status is 2."""
    (folder / "binary.bin").write_bytes(b"\0")
    assert main(["search", "bananas", "binary.bin", "fruit.txt"]) == 2
    shown = capsys.readouterr()
    assert "fruit.txt:" in shown.out
    assert shown.err == "relevance-gen: binary.bin: is binary, not text\n"


@pytest.mark.parametrize(
    ("name", "complaint"),
    [
        ("friut.txt", "No such file or directory; did you mean fruit.txt?"),
        ("gone/fruit.txt", "No such file or directory; correct its name or leave it out"),
        ("fruit.txt/x", "Not a directory; correct its name or leave it out"),
        (
            "of",
            "No such file or directory; correct its name or leave it out; a question of several words goes in ",
        ),
        ("nul\0", "embedded null byte; correct its name or leave it out"),
        ("broken", "No such file or directory; correct its name"),
    ],
)
def test_missing_file_prevents_output(
    name: str, complaint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If a named file is missing, no result is printed, no index is saved, and the status is 2."""
    (folder / "broken").symlink_to("nowhere")
    for command in (["search", "bananas"], ["index", "--save", "kept.index"]):
        assert main([*command, "fruit.txt", name]) == 2
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith(
            f"relevance-gen: {visible(name)}: {complaint.partition('; a ')[0]}"
        )
        assert "a question" not in shown.err or command[0] == "search"
        assert shown.err.count("\n") == 1
    assert not Path("kept.index").exists()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["  ", "fruit.txt"], "QUESTION must be a string that is not blank"),
        (
            ["apple", "fruit.txt", "--encoding", "cl100k_bas"],
            "--encoding 'cl100k_bas' is neither a known name nor a file; did you",
        ),
    ],
)
def test_search_with_invalid_argument_prints_rule(
    arguments: list[str], complaint: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid argument is rejected in one line with the rule."""
    assert main(["search", *arguments]) == 2
    assert complaint in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["search"],
        ["serch", "x"],
        [],
        ["search", "x", "--top-n", "many"],
        ["search", "x", "--lines", "-1"],
        ["--nonsense"],
    ],
)
def test_search_with_wrong_usage_exits_with_2(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Arguments that cannot be parsed print the usage and exit with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert "usage: relevance-gen" in capsys.readouterr().err


def test_search_skips_binary_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A binary file is skipped with a note and without an error status."""
    Path("picture.png").write_bytes(b"\x89PNG\0\0apples")
    assert main(["search", "apples", "."]) == 0
    assert capsys.readouterr().err == "relevance-gen: skipped 1 binary file\n"


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "utf-16", "utf-8-sig"])
def test_words_are_found_in_each_encoding(
    encoding: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Words are found and shown right in every encoding that texts come in."""
    Path("text.txt").write_bytes("Größe zählt".encode(encoding))
    assert main(["search", "größe", "text.txt"]) == 0
    assert "  Größe zählt\n" in capsys.readouterr().out


def test_search_of_random_bytes_does_not_crash(folder: Path) -> None:
    """Undecodable, empty and blank files are searched or skipped without a crash."""
    Path("noise.bin").write_bytes(bytes(range(1, 256)) * 10)
    Path("empty.txt").write_bytes(b"")
    Path("blank.txt").write_bytes(b" \n\t\n")
    Path("bad16.txt").write_bytes(b"\xff\xfea\x00\x00\xd8b")
    assert main(["search", "apple", "noise.bin", "empty.txt", "blank.txt", "bad16.txt"]) in (0, 1)


def test_search_reports_empty_stdin(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without file arguments the standard input is searched, and its emptiness is reported."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO()))
    assert main(["search", "apples"]) == 1
    assert capsys.readouterr() == (
        "",
        "relevance-gen: nothing found in 0 chunks of the standard input\n",
    )


def test_standard_input(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A piped text is searched when no file is named, and as `-`."""
    for arguments in (["search", "bananas"], ["search", "bananas", "-"]):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(FRUIT.encode())))
        assert main(arguments) == 0
        assert "  (standard input):3\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "piped", "found"),
    [
        ([], None, "fruit.txt"),  # /dev/null, as a job of cron's has
        ([], b"more bananas", "(standard input)"),
        (["-t", "txt"], b"", "fruit.txt"),
        (["-g", "*.txt"], b"more bananas", "fruit.txt"),
        (["--hidden"], b"", "fruit.txt"),
        (["fruit.txt"], b"", "fruit.txt"),
    ],
)
def test_search_without_files_chooses_stdin_or_folder(
    folder: Path, arguments: list[str], piped: bytes | None, found: str
) -> None:
    """Without a terminal, piped input is searched, or the folder if a file option is present."""
    given = {"stdin": subprocess.DEVNULL} if piped is None else {"input": piped}
    run = [sys.executable, "-m", "relevance_gen", "search", "bananas", *arguments]
    done = subprocess.run(run, capture_output=True, check=False, env=ENVIRONMENT, **given)
    assert done.returncode == 0
    assert f"  {found}:" in done.stdout.decode()


def test_search_at_terminal_reads_working_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without file arguments at a terminal, the working folder is searched."""
    master, slave = pty.openpty()
    with os.fdopen(slave) as terminal:
        monkeypatch.setattr(sys, "stdin", terminal)
        assert main(["search", "bananas"]) == 0
    os.close(master)
    assert "  fruit.txt:" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--help"], "generate"),
        (["search", "--help"], "--max-chars"),
        (["--version"], relevance_gen.__version__),
    ],
)
def test_help_and_version_are_printed(
    arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--help` lists commands or options; `--version` prints the version."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("conditions", "sources"),
    [
        (["path=fruit.txt"], {"fruit.txt"}),
        (["path=fruit.txt", "path=more.txt"], {"fruit.txt", "more.txt"}),
        (["path=more.txt", "first_line=1"], {"more.txt"}),
        (["first_line=7000"], set()),
    ],
)
def test_search_where_filters_by_metadata(
    conditions: list[str], sources: set[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`--where` keeps chunks with any of the values of a key."""
    (folder / "more.txt").write_text("more apples")
    status = main(
        ["search", "apples", ".", "--json", *(f"--where={condition}" for condition in conditions)]
    )
    parsed = json.loads(capsys.readouterr().out)
    assert {result["metadata"]["path"] for result in parsed["results"]} == sources
    assert status == (0 if sources else 1)


def test_search_where_with_unknown_key_is_rejected(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown metadata key is rejected with a suggestion."""
    assert main(["search", "apples", ".", "--where", "pth=fruit.txt"]) == 2
    message = (
        "relevance-gen: --where must name keys that chunks have, got 'pth'; did you mean path?\n"
    )
    assert capsys.readouterr() == ("", message)


def test_search_where_without_value_is_rejected(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A condition without a key or an equals sign is rejected by name."""
    for condition in ("path", "=a"):
        with pytest.raises(SystemExit) as ended:
            main(["search", "apples", ".", "--where", condition])
        assert ended.value.code == 2
        assert "argument --where: must be KEY=VALUE" in capsys.readouterr().err


def test_search_reports_spelling_correction(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A corrected spelling is reported on stderr; an option disables the correction."""
    Path("rain.txt").write_text("Take an umbrella.")
    assert main(["search", "umbrela", "rain.txt"]) == 0
    assert (
        "searched for 'umbrella' instead of 'umbrela', which does not occur"
        in capsys.readouterr().err
    )
    assert main(["search", "--no-spelling-correction", "umbrela", "rain.txt"]) == 1
    assert "took" not in capsys.readouterr().err


@pytest.mark.parametrize(
    ("conditions", "expected"),
    [
        (["a=b"], {"a": ["b"]}),
        (["a=2"], {"a": ["2", 2]}),
        (["a=x>=y"], {"a": ["x>=y"]}),
        (["a>=2", "a<10"], {"a": [{"gte": 2, "lt": 10}]}),
        (["a>-1.5"], {"a": [{"gt": -1.5}]}),
        (["a>=2020"], {"a": [{"gte": 2020}, {"gte": "2020"}]}),
        (["day<=2020-01"], {"day": [{"lte": "2020-01"}]}),
        (["a=7", "a>8", "b=c"], {"a": ["7", 7, {"gt": 8}], "b": ["c"]}),
    ],
)
def test_where_conditions_become_alternatives(
    conditions: list[str], expected: dict[str, Any]
) -> None:
    """Values of a key are alternatives; bounds of a key form one range."""
    args = Namespace(where=[read_condition(text) for text in conditions])
    assert parse_where(args) == expected


def test_where_without_comparison_is_refused() -> None:
    """An argument without a comparison is an error that shows it."""
    with pytest.raises(ArgumentTypeError, match="must be KEY=VALUE or a comparison"):
        read_condition("page")


@pytest.mark.parametrize("condition", ["first_line<", "first_line>=", "first_line="])
@pytest.mark.parametrize("n_digits", [400, 5000])
def test_condition_with_a_huge_number_is_evaluated(
    folder: Path, capsys: pytest.CaptureFixture[str], condition: str, n_digits: int
) -> None:
    """A number beyond the range of floats, or of what Python converts, is no error."""
    status = main(["search", "apples", "fruit.txt", "--where", condition + "9" * n_digits])
    assert status == (0 if (condition, n_digits) == ("first_line<", 400) else 1)
