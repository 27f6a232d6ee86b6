"""Measure how well files are ranked: `python -m bench.files DIR…`, with judged questions to repositories.

A DIR has ``files.jsonl.gz`` (``{path, text}`` a line) and ``tasks.json`` (``[{query, category,
relevant: [path]}]``). Only code counts, and one result a file. The peers are given a file as one
text, with its path in front, and the question as it is, but for ripgrep: files by the number of
matches of any of the question's words, which its ``--count-matches`` tells, counted here by the
same rule.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import re
import sqlite3
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from relevance_gen import FolderIndex, split
from relevance_gen.retrieval.chunk_index import ChunkIndex
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS

_CODE = frozenset(
    "py js ts tsx jsx go java php rb rs cs kt scala swift ex exs c cc cpp h hpp hs lua sh bash bats zig mjs cjs".split()
)
_Ask = Callable[[str], list[str]]
_Files = list[dict[str, str]]


def _words(query: str) -> list[str]:
    words = re.findall(r"\w+", query.lower())
    return [word for word in words if word not in ENGLISH_STOP_WORDS] or words


def _ordered(files: _Files, scores: np.ndarray) -> list[str]:
    best = np.argsort(-scores, kind="stable")[:10].tolist()
    return [files[at]["path"] for at in best if scores[at] > 0]


def by_folder(files: _Files) -> _Ask:
    """Rank files as `FolderIndex` does."""
    root = Path(tempfile.mkdtemp())
    for file in files:
        path = root / file["path"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file["text"])
    index = FolderIndex(root, cache=False)
    return lambda query: [
        result.metadata["path"] for result in index.search(query, true_order=False)
    ]


def by_chunks(files: _Files) -> _Ask:
    """Rank files by the best of their chunks, as plain search has them."""
    rows = [
        (file["path"], chunk)
        for file in files
        for chunk in split(file["text"], max_chars=1000)
        if chunk.strip()
    ]
    index = ChunkIndex([{"text": chunk, "metadata": {"path": path}} for path, chunk in rows])
    return lambda query: [
        one.metadata["path"] for one in index.search(query, true_order=False, distinct="path")
    ]


def by_matches(files: _Files) -> _Ask:
    """Rank files by the number of matches, as ``rg --count-matches --ignore-case`` counts them."""

    def ask(query: str) -> list[str]:
        pattern = re.compile("|".join(map(re.escape, _words(query))), re.IGNORECASE)
        return _ordered(files, np.array([len(pattern.findall(file["text"])) for file in files]))

    return ask


def by_fts5(files: _Files) -> _Ask:
    """Rank files as SQLite's FTS5 does, with its Porter stemmer."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "create virtual table files using fts5(path, text, tokenize='porter unicode61')"
    )
    database.executemany(
        "insert into files values (?, ?)", [(file["path"], file["text"]) for file in files]
    )

    def ask(query: str) -> list[str]:
        wanted = " or ".join(f'"{word}"' for word in _words(query)).replace(" or ", " OR ")
        sql = "select path from files where files match ? order by bm25(files, 3.0, 1.0) limit 10"
        return [path for (path,) in database.execute(sql, (wanted,))]

    return ask


def by_bm25s(files: _Files) -> _Ask:
    """Rank files as bm25s does, with stop words and stems."""
    import bm25s
    import Stemmer

    stemmer = Stemmer.Stemmer("english")
    tokens = bm25s.tokenize(
        [f"{file['path']}\n{file['text']}" for file in files],
        stopwords="en",
        stemmer=stemmer,
        show_progress=False,
    )
    index = bm25s.BM25()
    index.index(tokens, show_progress=False)

    def ask(query: str) -> list[str]:
        asked = bm25s.tokenize(
            query, stopwords="en", stemmer=stemmer, return_ids=False, show_progress=False
        )[0]
        return _ordered(
            files, np.asarray(index.get_scores(asked)) if asked else np.zeros(len(files))
        )

    return ask


def by_scikit_learn(files: _Files) -> _Ask:
    """Rank files with scikit-learn's TF-IDF, sublinear counts and stop words."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    vectorizer = TfidfVectorizer(sublinear_tf=True, stop_words="english")
    matrix = vectorizer.fit_transform([f"{file['path']}\n{file['text']}" for file in files])
    return lambda query: _ordered(files, (matrix @ vectorizer.transform([query]).T).toarray()[:, 0])


def _same(one: str, other: str) -> bool:
    return one == other or one.endswith("/" + other) or other.endswith("/" + one)


def _ndcg(found: list[str], wanted: list[str]) -> float:
    ranks = [
        next((rank for rank, path in enumerate(found[:10], 1) if _same(path, one)), None)
        for one in wanted
    ]
    ideal = math.fsum(1 / math.log2(rank + 2) for rank in range(min(10, len(wanted))))
    return math.fsum(1 / math.log2(rank + 1) for rank in ranks if rank) / ideal


def main() -> None:
    """Print nDCG@10 of each ranking, for each repository and on the mean of all questions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", metavar="DIR", nargs="+", type=Path)
    rankings = {
        "FolderIndex": by_folder,
        "chunks": by_chunks,
        "bm25s": by_bm25s,
        "FTS5": by_fts5,
        "scikit-learn": by_scikit_learn,
        "ripgrep": by_matches,
    }
    values: dict[str, list[float]] = {name: [] for name in rankings}
    print("| repository | files | " + " | ".join(rankings) + " |\n|" + "---|" * (len(rankings) + 2))
    for folder in parser.parse_args().folders:
        with gzip.open(folder / "files.jsonl.gz", "rt") as lines:
            files = [json.loads(line) for line in lines]
        files = [
            file
            for file in files
            if "." not in (name := Path(file["path"]).name) or name.rpartition(".")[2] in _CODE
        ]
        tasks = json.loads((folder / "tasks.json").read_text())
        row = []
        for name, make in rankings.items():
            ask = make(files)
            got = [_ndcg(ask(task["query"]), task["relevant"]) for task in tasks]
            values[name] += got
            row.append(f"{np.mean(got):.3f}")
        print(f"| {folder.name} | {len(files)} | " + " | ".join(row) + " |", flush=True)
    means = " | ".join(f"{np.mean(got):.4f}" for got in values.values())
    print(f"| mean of {len(values['chunks'])} questions | | {means} |")


if __name__ == "__main__":
    main()
