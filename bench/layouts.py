"""Read judged collections in their published layouts from local files, without a download.

=====================================  ==========================================================================
a folder in the BEIR layout            ``corpus.jsonl``, ``queries.jsonl`` and ``qrels/test.tsv`` (an unpacked archive
                                       of BEIR), ``qrels.tsv`` or ``qrels.jsonl`` (LIMIT-small), gzipped or not
a ``.json`` file in the SQuAD layout   XQuAD, JSQuAD (JGLUE) and CMRC 2018: a paragraph is a chunk, the one that a
                                       question was asked about is the answer, and an article's title is a title
a folder with ``doc-text``             NPL as the University of Glasgow has it, with ``query-text`` and ``rlv-ass``
=====================================  ==========================================================================
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from attrs import frozen


@frozen
class Records:
    """The unchanged records of a collection.

    Attributes:
        chunks: ``_id``, ``title`` and ``text`` of each.
        queries: the texts.
        qrels: by query and chunk.
    """

    chunks: list[dict[str, str]]
    queries: dict[str, str]
    qrels: dict[str, dict[str, int]]


def read(path: Path) -> Records:
    """Read a collection in the layout that it has."""
    if path.is_file():
        return read_squad(json.loads(path.read_text(encoding="utf-8")))
    return read_npl(path) if (path / "doc-text").exists() else read_beir(path)


def read_beir(folder: Path) -> Records:
    chunks = [
        {"_id": json_line["_id"], "title": json_line.get("title", ""), "text": json_line["text"]}
        for json_line in _json_lines(folder, "corpus")
    ]
    queries = {query["_id"]: query["text"] for query in _json_lines(folder, "queries")}
    qrels: dict[str, dict[str, int]] = {}
    for query_id, chunk_id, score in _judgments(folder):
        qrels.setdefault(str(query_id), {})[str(chunk_id)] = int(float(score))
    return Records(chunks, queries, qrels)


def _judgments(folder: Path) -> Iterator[Sequence[Any]]:
    """Yield query, chunk and score of each judgment of a folder in the BEIR layout."""
    for name in ("qrels/test.tsv", "qrels.tsv"):
        if _found(folder, name) is not None:
            _header, *lines = _lines(folder, name)
            yield from (line.split("\t") for line in lines)
            return
    for judgment in _json_lines(folder, "qrels"):
        yield judgment["query-id"], judgment["corpus-id"], judgment["score"]


def read_squad(content: Any) -> Records:
    """Read a file in the layout of SQuAD, JSQuAD or CMRC 2018; equal paragraphs are merged."""
    numbers: dict[tuple[str, str], str] = {}
    records = Records([], {}, {})
    for article in content["data"] if isinstance(content, dict) else content:
        for paragraph in article.get("paragraphs", [article]):
            title, text = (
                article.get("title", "").replace("_", " "),
                paragraph.get("context") or article["context_text"],
            )
            text = text.rpartition(" [SEP] ")[2]  # JSQuAD repeats the title
            number = numbers.setdefault((title, text), str(len(numbers)))
            if len(numbers) > len(records.chunks):
                records.chunks.append({"_id": number, "title": title, "text": text})
            for asked in paragraph["qas"]:
                query_id = str(asked.get("id") or asked["query_id"])
                records.queries[query_id] = asked.get("question") or asked["query_text"]
                records.qrels[query_id] = {number: 1}
    return records


def read_npl(folder: Path) -> Records:
    chunks = [
        {"_id": number, "title": "", "text": text} for number, text in _glasgow(folder / "doc-text")
    ]
    qrels = {number: dict.fromkeys(ids.split(), 1) for number, ids in _glasgow(folder / "rlv-ass")}
    return Records(chunks, dict(_glasgow(folder / "query-text")), qrels)


def _glasgow(path: Path) -> Iterator[tuple[str, str]]:
    """Yield number and text of each record; a line with a slash alone ends it."""
    words: list[str] = []
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        if line.strip() != "/":
            words += line.split()
        elif words:
            yield words[0], " ".join(words[1:])
            words = []


def _found(folder: Path, name: str) -> Path | None:
    return next((path for path in (folder / name, folder / f"{name}.gz") if path.exists()), None)


def _lines(folder: Path, name: str) -> Iterator[str]:
    path = _found(folder, name)
    if path is None:
        raise FileNotFoundError(f"no {name} in {folder}, gzipped or not")
    open_text = gzip.open if path.suffix == ".gz" else open
    with open_text(path, "rt", encoding="utf-8") as lines:
        yield from lines


def _json_lines(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    yield from map(json.loads, _lines(folder, f"{name}.jsonl"))
