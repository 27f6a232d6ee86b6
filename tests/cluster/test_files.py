"""Every node reads its own part of a source, and all parts together are what one reader would read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, InvalidRequestError, split
from relevance_gen.cluster import ClusterIndex, files
from relevance_gen.errors import ClusterError
from relevance_gen.tokens import token_counter
from tests.cluster.shared import QUERIES, kill_process, texts, until


def read(source: Any, n_shards: int | None = None, n_cpus: int = 2) -> list[tuple[str, Any]]:
    """Return what the parts of a source hold, in order, as their segments hold it."""
    found = []
    for part in files.plan_reading(source, n_shards, "text", "error", n_cpus):
        found += [(chunk.text, chunk.metadata) for chunk in part.make(token_counter(), None).segment.chunks]
    return found


@given(
    st.lists(st.tuples(st.sampled_from(texts(9)), st.sampled_from(["\n", "\r\n", "\n\n"])), min_size=1, max_size=30),
    st.integers(1, 60),
    st.integers(1, 9),
)
def test_every_line_is_read_once(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]], piece_bytes: int, n_shards: int
) -> None:
    """However a file of lines is cut into pieces, each line is read once, in order."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"".join((json.dumps(text) + end).encode() for text, end in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_PIECE_BYTES", piece_bytes)
        assert read(path, n_shards) == [(text, {}) for text, _ in lines]


@given(st.integers(1, 9), st.integers(1, 2000))
def test_shards_of_a_source_are_about_as_large(tmp_path_factory: pytest.TempPathFactory, n_shards: int, n: int) -> None:
    """Of one file of lines there are as many shards as asked for, and none has more than twice its share of it."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b'"a"\n' * 100 * n)
    shards = [sum(piece.n_bytes for piece in one.pieces) for one in files.plan_reading(path, n_shards, "t", "skip", 1)]
    assert len(shards) == n_shards
    assert sum(shards) == 400 * n
    assert max(shards) <= 2 * 400 * n / n_shards + 1


def fill(folder: Path) -> list[Any]:
    """Write files of every kind, and return the chunks that they hold in order."""
    first, second, third = texts(10, 1), texts(10, 2), texts(10, 3)
    (folder / "b").mkdir(parents=True)
    lines = [{"text": text, "page": place, "metadata": {"by": "us"}} for place, text in enumerate(first)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    table = pyarrow.table({"text": second, "page": list(range(10))})
    pyarrow.parquet.write_table(table, folder / "b" / "c.parquet", row_group_size=3)
    (folder / "d.txt").write_text("\n\n".join(third))
    (folder / "_SUCCESS").write_text("")
    return [
        *({"text": text, "metadata": {"page": place, "by": "us"}} for place, text in enumerate(first)),
        *({"text": text, "metadata": {"page": place}} for place, text in enumerate(second)),
        *split("\n\n".join(third)),
    ]


def test_a_folder_of_every_kind(cluster: Any, tmp_path: Path) -> None:
    """An index of a folder has the bits of one of the chunks in it, tells how far it is, and comes back from there."""
    chunks = fill(tmp_path / "in")
    one = ChunkIndex(chunks)
    told: list[tuple[int, int]] = []
    with ClusterIndex(source=tmp_path / "in", n_shards=3, progress=lambda *done: told.append(done)) as index:
        assert index.stats().num_shards >= 2
        assert all(done <= total for done, total in told)
        index.remove([0, 11])
        one.remove([0, 11])
        assert index.search(QUERIES, where={"page": [3, 4]}) == one.search(QUERIES, where={"page": [3, 4]})
        kill_process(index._fresh().state.shards[1].hosts[0].handle)
        until(lambda: index.search("cats", allow_partial=True).metadata.num_missing_chunks == 0, "the shard is back")
        assert index.search(QUERIES) == one.search(QUERIES)
        path = tmp_path / "in" / "a.jsonl"
        first, second, third, *others = path.read_text().split("\n")
        path.write_text("\n".join([first, third, second, *others]))
        kill_process(index._fresh().state.shards[0].hosts[0].handle)
        until(lambda: "source has changed" in "".join(index.stats().errors), "a changed source is told")


def test_addresses_are_read(tmp_path: Path) -> None:
    """An address is read as the path is, and a list of files in its own order."""
    chunks = fill(tmp_path / "in")
    plain = [(one, {}) if isinstance(one, str) else (one["text"], one["metadata"]) for one in chunks]
    assert read(f"file://{tmp_path}/in") == plain
    assert read([tmp_path / "in" / "b", tmp_path / "in" / "a.jsonl"]) == plain[10:20] + plain[:10]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.jsonl", b'"fine"\n{"no text": 1}\n', r"a\.jsonl at byte 7: text must be a string .* got None"),
        ("a.jsonl", b'"fine"\n17\n', r"a\.jsonl at byte 7 must be a string, .* got 17"),
        ("a.jsonl", b'"fine"\nno JSON\n', r"a\.jsonl must hold a JSON value at byte 7"),
        ("a.jsonl", b'"fine"\n" "\n', r"a\.jsonl at byte 7.*not blank"),
        ("a.parquet", b"no Parquet at all", r"a\.parquet must be Parquet"),
        ("a.txt", b"\xff\xfe\xfd", r"a\.txt must be UTF-8"),
        ("a.pdf", b"", "source must hold files of"),
    ],
)
def test_what_cannot_be_read_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    """An error names the file, and where in it."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequestError, match=said):
        read(tmp_path)


def test_an_error_calls_the_text_as_its_file_does(tmp_path: Path) -> None:
    """Where another field holds the text, the error names that."""
    (tmp_path / "a.jsonl").write_text('{"body": "fine"}\n{"body": 4}\n')
    (part,) = files.plan_reading(tmp_path, 1, "body", "error", 2)
    with pytest.raises(InvalidRequestError, match=r"a\.jsonl at byte 17: body must be a string .* got 4$"):
        part.make(token_counter(), None)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "chunks must be given, or source"),
        ({"chunks": ["a"], "source": "b"}, "not both"),
        ({"source": "/nowhere"}, "source must be there"),
        ({"source": []}, "source must be a file"),
        ({"source": [__file__, ""]}, "source must be a file"),
        ({"source": "nowhere://a"}, "nowhere://a must be an address that fsspec can open"),
        ({"source": __file__}, "source must be one of"),
        ({"source": __file__, "text_field": ""}, "text_field must be"),
        ({"source": __file__, "blank": "maybe"}, "blank must be"),
    ],
)
def test_bad_sources_are_named(cluster: Any, options: Any, said: str) -> None:
    """What is no source is told before anything is started."""
    with pytest.raises(InvalidRequestError, match=said):
        ClusterIndex(**options)


def test_a_bad_file_fails_the_building(cluster: Any, tmp_path: Path) -> None:
    """What a node finds wrong reaches the caller."""
    (tmp_path / "a.jsonl").write_text("no JSON")
    with pytest.raises(ClusterError, match=r"a\.jsonl must hold a JSON value at byte 0"):
        ClusterIndex(source=tmp_path)


def test_files_without_a_chunk_make_an_index_without_one(cluster: Any, tmp_path: Path) -> None:
    """An empty file is no error, alone or beside others, as an empty list of chunks is none."""
    for name in ("a.jsonl", "b.txt"):
        (tmp_path / name).touch()
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "c.parquet")
    for source in (*tmp_path.iterdir(), tmp_path):
        assert read(source) == []
    with ClusterIndex(source=tmp_path / "a.jsonl") as index:
        assert len(index) == 0
        assert list(index.search("a cat")) == []
        assert index.add(["a cat"]) == range(1)
        assert len(index.search("a cat")) == 1
