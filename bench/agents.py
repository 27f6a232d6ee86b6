"""Measure an agent's tokens to find a file: `python -m bench.agents DIR…`, as `bench.files`.

The result is the number of tokens up to the first line with the name of a relevant file. Compared
are one answer of the tool `search` with ten results, and calls of `grep -rn --ignore-case` for the
question's rarest words, as an agent would choose them: the rarest word that occurs, then the two
rarest words, then the three rarest words, until a call prints a relevant file. The output of each
call is cut at 10,000 tokens, as agents cut it, and read from the top. The tokens of the complete
answers, which fill an agent's context, are recorded too. A question without a successful call
counts with the tokens of all calls.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relevance_gen.agents.folders import Folders
from relevance_gen.agents.tools import Tools
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from relevance_gen.text.token_counting import token_counter

_MOST_TOKENS = 10_000
"""Maximum tokens of the output of one grep."""
_count = token_counter(None).count
_Cost = tuple[int, int, bool]
_Files = dict[str, list[str]]


def _read(lines: list[str], relevant: set[str]) -> _Cost:
    """Return the tokens up to the first line of a relevant file, the total, and the success."""
    n_tokens, until = 0, None
    for line in lines:
        n_tokens += _count(line + "\n")
        if until is None and line.partition(":")[0] in relevant:
            until = n_tokens
        if n_tokens >= _MOST_TOKENS:
            break
    return (n_tokens if until is None else until), n_tokens, until is not None


def _grep(files: _Files, words: list[str]) -> list[str]:
    """Return the lines that ``grep -rniE`` prints for any of the words."""
    pattern = re.compile("|".join(map(re.escape, words)), re.IGNORECASE)
    return [
        f"{path}:{number}:{line}"
        for path, lines in files.items()
        for number, line in enumerate(lines, 1)
        if pattern.search(line)
    ]


def by_grep(files: _Files, query: str, relevant: set[str]) -> _Cost:
    """Read what grep finds."""
    words = dict.fromkeys(
        word
        for word in re.findall(r"\w+", query.lower())
        if word not in ENGLISH_STOP_WORDS and len(word) > 2
    )
    found = {word: len(lines) for word in words if (lines := _grep(files, [word]))}
    rarest = sorted(found, key=found.__getitem__)
    until, every, is_found = 0, 0, False
    for n_words in range(1, min(len(rarest), 3) + 1):
        more, whole, is_found = _read(_grep(files, rarest[:n_words]), relevant)
        until, every = until + more, every + whole
        if is_found:
            break
    return until, every, is_found


def by_search(tools: Tools, query: str, relevant: set[str]) -> _Cost:
    """Read the tool's answer."""
    return _read(tools.call("search", {"question": query}).splitlines(), relevant)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", metavar="DIR", nargs="+", type=Path)
    reported: dict[str, list[_Cost]] = {"grep, rarest words": [], "search, top 10": []}
    for folder in parser.parse_args().folders:
        with gzip.open(folder / "files.jsonl.gz", "rt", encoding="utf-8") as lines:
            texts = {file["path"]: file["text"] for file in map(json.loads, lines)}
        root = Path(tempfile.mkdtemp())
        for path, text in texts.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        tools = Tools(Folders.open([str(root)]))
        files = {path: text.split("\n") for path, text in sorted(texts.items())}
        ways: dict[str, Callable[[str, set[str]], _Cost]] = {
            "grep, rarest words": lambda query, relevant, files=files: by_grep(
                files, query, relevant
            ),
            "search, top 10": lambda query, relevant, tools=tools: by_search(
                tools, query, relevant
            ),
        }
        for task in json.loads((folder / "tasks.json").read_text()):
            for name, way in ways.items():
                reported[name].append(way(task["query"], set(task["relevant"])))
    print(
        f"{'':20}{'found':>8}  tokens to the first right line: median, mean, p90; of all answers: median, mean"
    )
    for name, rows in reported.items():
        until, every, found = np.array(rows).T
        spread = (
            np.median(until),
            until.mean(),
            np.quantile(until, 0.9),
            np.median(every),
            every.mean(),
        )
        print(f"{name:20}{found.mean():8.3f}" + "".join(f"{number:8.0f}" for number in spread))


if __name__ == "__main__":
    main()
