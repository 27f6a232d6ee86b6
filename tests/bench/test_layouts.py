"""Tests of reading judged collections in their published layouts."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bench import layouts
from bench.layouts import Records

EXPECTED = Records(
    [
        {"_id": "1", "title": "Whales", "text": "A whale dives."},
        {"_id": "2", "title": "", "text": "A ship."},
    ],
    {"q": "what dives"},
    {"q": {"1": 1}},
)


def lines(*records: dict[str, object]) -> str:
    return "".join(f"{json.dumps(record)}\n" for record in records)


@pytest.mark.parametrize("is_packed", [True, False])
@pytest.mark.parametrize("judged", ["qrels/test.tsv", "qrels.tsv", "qrels.jsonl"])
def test_read_beir_folder(tmp_path: Path, judged: str, *, is_packed: bool) -> None:
    """BEIR files are read compressed or plain, with judgments as a table or as lines."""
    files = {
        "corpus.jsonl": lines(
            {"_id": "1", "title": "Whales", "text": "A whale dives."},
            {"_id": "2", "text": "A ship."},
        ),
        "queries.jsonl": lines({"_id": "q", "text": "what dives"}),
        "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq\t1\t1\n",
        "qrels.tsv": "query-id\tcorpus-id\tscore\nq\t1\t1\n",
        "qrels.jsonl": lines({"query-id": "q", "corpus-id": "1", "score": 1}),
    }
    (tmp_path / "qrels").mkdir()
    for name in ("corpus.jsonl", "queries.jsonl", judged):
        content = files[name].encode()
        (tmp_path / f"{name}{'.gz' * is_packed}").write_bytes(
            gzip.compress(content) if is_packed else content
        )
    assert layouts.read(tmp_path) == EXPECTED


def test_read_folder_without_file_raises_with_name(tmp_path: Path) -> None:
    """The error names the missing file."""
    with pytest.raises(FileNotFoundError, match=r"no corpus.jsonl in .*, gzipped or not"):
        layouts.read(tmp_path)


@pytest.mark.parametrize("text", ["A whale dives.", "White Whales [SEP] A whale dives."])
def test_read_squad_file(tmp_path: Path, text: str) -> None:
    """Each paragraph is one chunk with the title of its article, and answers its questions."""
    asked = [{"id": "a", "question": "what dives"}, {"id": "b", "question": "who dives"}]
    paragraphs = [
        {"context": text, "qas": asked[:1]},
        {"context": "It sings.", "qas": []},
        {"context": text, "qas": asked[1:]},
    ]
    path = tmp_path / "xquad.en.json"
    path.write_text(json.dumps({"data": [{"title": "White_Whales", "paragraphs": paragraphs}]}))
    read = layouts.read(path)
    assert [(chunk["title"], chunk["text"]) for chunk in read.chunks] == [
        ("White Whales", "A whale dives."),
        ("White Whales", "It sings."),
    ]
    assert read.queries == {"a": "what dives", "b": "who dives"}
    assert read.qrels == {"a": {"0": 1}, "b": {"0": 1}}


def test_read_cmrc_file(tmp_path: Path) -> None:
    """The field names of CMRC 2018 are supported."""
    path = tmp_path / "cmrc-zh.json"
    article = {
        "context_id": "D",
        "context_text": "\u9cb8\u9c7c",
        "title": "t",
        "qas": [{"query_id": "q", "query_text": "?"}],
    }
    path.write_text(json.dumps([article]))
    assert layouts.read(path) == Records(
        [{"_id": "0", "title": "t", "text": "\u9cb8\u9c7c"}], {"q": "?"}, {"q": {"0": 1}}
    )


def test_read_npl_folder(tmp_path: Path) -> None:
    """Records end with a line that contains only a slash."""
    (tmp_path / "doc-text").write_text("1\nmicrowave\nspectroscopy\n   /\n2\nradio / waves\n   /\n")
    (tmp_path / "query-text").write_text("1\nWAVES\n/\n")
    (tmp_path / "rlv-ass").write_text("1\n   2 1\n   /\n")
    assert layouts.read(tmp_path) == Records(
        [
            {"_id": "1", "title": "", "text": "microwave spectroscopy"},
            {"_id": "2", "title": "", "text": "radio / waves"},
        ],
        {"1": "WAVES"},
        {"1": {"2": 1, "1": 1}},
    )
