"""Tests of command-line arguments: their order, arguments after `--`, and suggestions for typos."""

import json
from pathlib import Path

import pytest

from relevance_gen.cli import main


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["serch", "x"], "there is no command 'serch'; did you mean search?"),
        (
            ["apples", "."],
            "there is no command 'apples'; commands are search, ask, index, generate, mcp, agents, serve",
        ),
        (["--versoin"], "unrecognized arguments: --versoin; did you mean --version?"),
        (["search", "x", "--topn", "3"], "unrecognized arguments: --topn; did you mean --top-n?"),
        (
            ["search", "x", "--colour=always"],
            "unrecognized arguments: --colour; did you mean --color?",
        ),
        (["search", "x", "--qqqqqq"], "unrecognized arguments: --qqqqqq"),
        (
            ["search", "x", "--wherever", "--", "--where"],
            "unrecognized arguments: --wherever; did you mean --where?",
        ),
        (
            ["search", "-n is what"],
            "got ' is what'; a question that begins with - goes after --",
        ),
        (
            ["generate", "x", "--max-token-s", "3"],
            "unrecognized arguments: --max-token-s; did you mean --max-tokens?",
        ),
        (
            ["generate", "x", "--temperatur", "0"],
            "unrecognized arguments: --temperatur; did you mean --temperature?",
        ),
        (["search", "x", "--top", "3"], "unrecognized arguments: --top; did you mean --top-n?"),
        (
            ["search", "x", "--top-n", "0"],
            "argument -n/--top-n: must be an integer of at least 1, got '0'",
        ),
        (
            ["search", "x", "--max-chars", "0"],
            "argument --max-chars: must be an integer of at least 1, got '0'",
        ),
        (
            ["search", "x", "--jobs", "-2"],
            "argument --jobs: must be an integer of at least 1, got '-2'",
        ),
        (
            ["generate", "x", "--max-tokens", "ten"],
            "argument --max-tokens: must be an integer, got 'ten'",
        ),
        (["generate", "x", "--min-p", "ten"], "argument --min-p: must be a number, got 'ten'"),
        (["generate", "x", "--logit-bias", "7"], "argument --logit-bias: must be ID=BIAS, got '7'"),
        ([], "a command is missing; commands are search, ask, index, generate, mcp, agents, serve"),
        (["search", "x", ""], "argument FILE: must not be empty"),
        (["search", "x", "--", ""], "argument FILE: must not be empty"),
        (["index", "x", "--save", ""], "argument --save: must not be empty"),
        (["search", "x", "--index="], "argument --index: must not be empty"),
        (["search", "x", "--encoder", ""], "argument --encoder: must not be empty"),
        (["ask", "x", "--encoding", ""], "argument --encoding: must not be empty"),
        (["generate", "x", "--model", ""], "argument -m/--model: must not be empty"),
        (["generate", "x", "y"], "unrecognized arguments: y"),
    ],
)
def test_unknown_flag_or_command_suggests_similar_name(
    arguments: list[str], hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown flag or command is rejected in two short lines with the most similar name."""
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    usage, error, end = capsys.readouterr().err.split("\n")
    assert usage.startswith("usage: relevance-gen ")
    assert error.endswith(hint)
    assert end == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["search", " ", "."], "QUESTION must be a string that is not blank, got ' '"),
        (
            ["ask", "x", ".", "--max-tokens", "0"],
            "--max-tokens must be an integer of at least 1, got 0",
        ),
        (
            ["generate", "x", "--logit-bias", "7=200"],
            "--logit-bias[7] must be a finite number in [-100, 100], got 200.0",
        ),
    ],
)
def test_error_names_option_or_argument(
    arguments: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An invalid value is reported under the name of its option or argument."""
    assert main(arguments) == 2
    assert capsys.readouterr() == ("", f"relevance-gen: {message}\n")


@pytest.mark.parametrize("question", ["-n is what?", "--json", "-5", "-x", "--top-n=3", "-"])
def test_arguments_after_double_dash_are_positional(
    question: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All arguments after `--` are question and files, even with a leading dash."""
    Path("-x").write_text("the option -n is what -x is not, nor --json, nor -5, nor --top-n=3")
    status = main(["search", "-n", "1", "--json", "--", question, "-x"])
    assert status == (1 if question == "-" else 0)
    assert len(json.loads(capsys.readouterr().out)["results"]) == 1 - status


def test_question_with_leading_dash_is_accepted(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A question of several words that matches no option needs no `--`."""
    assert main(["search", "--bananas or apples?", "fruit.txt"]) == 0


def test_options_are_accepted_at_any_position(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Options before, between and after question and files give equal output."""
    shown = set()
    words, option = ["apples", "fruit.txt", "deep"], ["-n", "1"]
    for at in range(4):
        assert main(["search", *words[:at], *option, *words[at:], "--json"]) == 0
        shown.add(capsys.readouterr().out)
    assert len(shown) == 1


def test_type_list_needs_no_query(capsys: pytest.CaptureFixture[str]) -> None:
    """--type-list shows the types, and needs no question."""
    with pytest.raises(SystemExit) as ended:
        main(["search", "--type-list"])
    assert ended.value.code == 0
    assert "\npy: *.py, *.pyi\n" in capsys.readouterr().out


def test_help_of_mcp_keeps_capitals(capsys: pytest.CaptureFixture[str]) -> None:
    """The description of a command begins with a capital and keeps the capitals of names."""
    with pytest.raises(SystemExit):
        main(["mcp", "--help"])
    assert "Serve folders to agents, by the Model Context Protocol." in capsys.readouterr().out
