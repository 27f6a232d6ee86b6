"""Patterns of ignore files and globs: their meaning, their limits, and their cost on hostile input."""

import subprocess
import sys
from pathlib import Path

import pytest

from relevance_gen.documents.globs import (
    MAX_PATTERN_CHARS,
    MAX_PATTERN_WILDCARDS,
    parse_pattern,
    paths_matching,
)
from relevance_gen.errors import InvalidRequestError, RequestCancelledError
from relevance_gen.request_scope import cancel_scope

ORDINARY_NAME = "a_file_with_an_ordinary_name_of_forty_chars_01.py"

HOSTILE = [
    ("*?" * 20 + "*z", ORDINARY_NAME),
    ("*a" * 20 + "*z", "a" * 255),
    ("*[ab]" * 12 + "*z", "ab" * 120),
    ("**/a/" * 12 + "**/*a*a*a*z", "/".join(["a"] * 2000)),
    ("*a*/" * 12 + "z", "/".join(["a" * 255] * 15)),
    ("?" * 60 + "*?", "é" * 127),
]

MATCH = "import sys; from relevance_gen.documents.globs import paths_matching; "
MATCH += "print(list(paths_matching([sys.argv[1]], [sys.argv[2]] * 100))[:1])"


@pytest.mark.parametrize(("glob", "path"), HOSTILE)
def test_paths_matching_hostile_glob_terminates(glob: str, path: str) -> None:
    """A glob with many wildcards is matched against a long path a hundred times and ends."""
    done = subprocess.run(
        [sys.executable, "-c", MATCH, glob, path],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == ("['" + path + "']\n" if glob.startswith("?") else "[]\n")


def test_walk_with_hostile_gitignore_terminates(tmp_path: Path) -> None:
    """A folder whose .gitignore has many wildcards is walked to its end."""
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*?" * 10 + "z\n" + "*?" * 30 + "z\n")
    for number in range(3):
        (tmp_path / f"{number}_{ORDINARY_NAME}").write_text("text")
    program = "import sys; from relevance_gen.documents.walker import *; "
    program += "print(len(list(Walker(Selection(), print).files(sys.argv[1]))))"
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        capture_output=True,
        check=True,
        text=True,
        timeout=60,
    )
    assert done.stdout == "3\n"


@pytest.mark.parametrize(
    ("line", "path", "matches"),
    [
        ("a*b*c", "abxbc", True),
        ("a*b*c", "abcb", False),
        ("*.tar.*", "x/a.tar.gz", True),
        ("**/a/**/b", "a/b", True),
        ("**/a/**/b", "x/a/y/a/z/b", True),
        ("**/a/**/b", "b/a", False),
        ("a/**", "a", False),
        ("a/**", "a/b/c", True),
        ("a/*/c", "a/b/b/c", False),
        ("[!a]b", "/b", False),
        ("x[!a]b", "x/b", False),
        ("[]x]", "]", True),
        ("[^a]", "b", True),
        ("[a-c].txt", "b.txt", True),
        ("\\*", "*", True),
        ("\\*", "a", False),
        ("a\nb", "a\nb", True),
        ("**/b", "a\nc/b", True),
    ],
)
def test_pattern_matches_as_in_git(line: str, path: str, matches: bool) -> None:
    """Stars stay within a segment, two stars cross segments, and a class never matches a slash."""
    pattern = parse_pattern(line)
    assert pattern is not None
    assert pattern.matches(path, is_folder=False) is matches


def test_parse_pattern_invalid_line_returns_none() -> None:
    """Comments, blank lines, open brackets, reversed ranges and final backslashes return None."""
    lines = ["", "  ", "# comment", "/", "!", "[", "[a", "[z-a]", "a\\", "a\r\\"]
    assert [parse_pattern(line) for line in lines] == [None] * len(lines)


@pytest.mark.parametrize(
    "glob", ["a" * (MAX_PATTERN_CHARS + 1), "*a" * (MAX_PATTERN_WILDCARDS + 1)]
)
def test_glob_above_limits_is_refused(glob: str) -> None:
    """A glob above a limit is an error that names both limits; such a line of an ignore file is skipped."""
    with pytest.raises(
        InvalidRequestError, match=r"^glob must have at most 1,024 characters and 64 wildcards"
    ):
        list(paths_matching([glob], ["a"]))
    assert parse_pattern(glob) is None
    assert parse_pattern(glob[: MAX_PATTERN_CHARS // 10]) is not None


@pytest.mark.parametrize("glob", ["a" * MAX_PATTERN_CHARS, "!" + "a" * (MAX_PATTERN_CHARS - 1)])
def test_glob_of_maximum_length_is_accepted(glob: str) -> None:
    """A glob of as many characters as the limit selects or excludes the path that it spells."""
    name = glob.removeprefix("!")
    assert list(paths_matching([glob], [name, "b"])) == ["b" if "!" in glob else name]


@pytest.mark.filterwarnings("error")
def test_parse_pattern_with_operators_in_brackets_warns_of_nothing() -> None:
    """Characters in brackets that are operators in Python's sets match themselves."""
    pattern = parse_pattern("[+--&&||~~[]")
    assert pattern is not None
    matching = [char for char in "*+,-./&|~[]a" if pattern.matches(char, is_folder=False)]
    assert matching == ["+", ",", "-", "&", "|", "~", "["]


def test_paths_matching_cancelled_request_raises() -> None:
    """Matching many paths ends when the request is cancelled."""
    with cancel_scope(lambda: False), pytest.raises(RequestCancelledError):
        list(paths_matching(["*.py"], ["a.py"]))
