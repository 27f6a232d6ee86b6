"""Every node reads its own part of a source, and all parts together are what one reader would read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, ChunkIndex, InvalidRequestError, split
from relevance_gen.cluster import ClusterIndex
from relevance_gen.cluster.search import sources as files
from relevance_gen.errors import ClusterError
from tests.cluster.shared import QUERIES, texts


def plan(
    source: Any, n_shards: int | None = None, n_cpus: int = 2, text: str = "text"
) -> list[files.FilePieces]:
    return files.plan_reading(source, n_shards, text, "title", "error", n_cpus)


def read(source: Any, n_shards: int | None = None, n_cpus: int = 2) -> list[tuple[str, Any]]:
    """Return the chunks of a source, in order."""
    found = []
    for part in plan(source, n_shards, n_cpus):
        found += [(chunk.text, chunk.metadata) for batch in part.batches() for chunk in batch]
    return found


@given(
    st.lists(
        st.tuples(st.sampled_from(texts(9)), st.sampled_from(["\n", "\r\n", "\n\n"])),
        min_size=1,
        max_size=30,
    ),
    st.integers(1, 60),
)
def test_lines_are_read_once(
    tmp_path_factory: pytest.TempPathFactory,
    lines: list[tuple[str, str]],
    n_shards: int,
) -> None:
    """Each line of a file is read once, in order, regardless of the pieces."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b"".join((json.dumps(text) + end).encode() for text, end in lines))
    assert read(path, n_shards) == [(text, {}) for text, _ in lines]


@given(st.integers(1, 30), st.integers(1, 40))
def test_rows_are_read_once(
    tmp_path_factory: pytest.TempPathFactory, group: int, n_shards: int
) -> None:
    """Each row of a file is read once, in order, regardless of the pieces."""
    path = tmp_path_factory.mktemp("rows") / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": texts(30)}), path, row_group_size=group)
    assert read(path, n_shards) == [(text, {}) for text in texts(30)]


def test_large_row_group_is_divided(tmp_path: Path) -> None:
    """A large row group makes the requested number of shards of similar size."""
    path = tmp_path / "a.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"text": texts(1000)}), path)
    shards = plan(path, 4)
    assert [len(shard.pieces) for shard in shards] == [1] * 4
    sizes = [piece.stop - piece.start for shard in shards for piece in shard.pieces]
    assert sum(sizes) == 1000
    assert max(sizes) <= 2 * min(sizes)
    assert read(path, 4) == [(text, {}) for text in texts(1000)]


def test_compressed_file_is_one_piece(tmp_path: Path) -> None:
    """A compressed file is a single piece."""
    for number in range(6):
        (tmp_path / f"{number}.jsonl.gz").write_bytes(
            gzip.compress(json.dumps(texts(40, number)[0]).encode())
        )
    shards = plan(tmp_path, 3)
    assert [len(shard.pieces) for shard in shards] == [2, 2, 2]


@given(st.integers(1, 9), st.integers(1, 2000))
def test_shards_of_a_source_have_similar_sizes(
    tmp_path_factory: pytest.TempPathFactory, n_shards: int, n: int
) -> None:
    """A file of lines makes the requested number of shards, each at most twice its share."""
    path = tmp_path_factory.mktemp("lines") / "a.jsonl"
    path.write_bytes(b'"a"\n' * 100 * n)
    shards = [
        sum(piece.stop - piece.start for piece in shard.pieces) for shard in plan(path, n_shards)
    ]
    assert len(shards) == n_shards
    assert sum(shards) == 400 * n
    assert max(shards) <= 2 * 400 * n / n_shards + 1


def fill(folder: Path) -> list[Any]:
    """Write files of every kind, and return the chunks that they hold in order."""
    first, second, third = texts(10, 1), texts(10, 2), texts(10, 3)
    (folder / "b").mkdir(parents=True)
    lines = [
        {"text": text, "page": row, "metadata": {"by": "us"}} for row, text in enumerate(first)
    ]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, lines)))
    table = pyarrow.table({"text": second, "page": list(range(10))})
    pyarrow.parquet.write_table(table, folder / "b" / "c.parquet", row_group_size=3)
    (folder / "d.txt").write_text("\n\n".join(third))
    (folder / "_SUCCESS").write_text("")
    (folder / "e.jsonl.gz").write_bytes(gzip.compress(json.dumps(first[0]).encode()))
    (folder / "f.ndjson.zst").write_bytes(zstandard.compress(json.dumps(second[0]).encode()))
    (folder / "g.txt.gz").write_bytes(b"left alone")
    return [
        *({"text": text, "metadata": {"page": row, "by": "us"}} for row, text in enumerate(first)),
        *({"text": text, "metadata": {"page": row}} for row, text in enumerate(second)),
        *split("\n\n".join(third)),
        first[0],
        second[0],
    ]


def test_folder_of_all_kinds_equals_its_chunks(cluster: Any, tmp_path: Path) -> None:
    """An index of a folder equals an index of its chunks, and reports its progress."""
    chunks = fill(tmp_path / "in")
    one = ChunkIndex(chunks)
    reported: list[tuple[int, int]] = []
    with ClusterIndex(
        source=tmp_path / "in", n_shards=3, progress=lambda *done: reported.append(done)
    ) as index:
        assert index.stats().num_shards >= 2
        assert all(done <= total for done, total in reported)
        index.remove([0, 11])
        one.remove([0, 11])
        assert index.search(QUERIES, where={"page": [3, 4]}) == one.search(
            QUERIES, where={"page": [3, 4]}
        )
        assert index.search(QUERIES) == one.search(QUERIES)


def test_addresses_are_read(tmp_path: Path) -> None:
    """An address is read like a path, in another store too; a list of files is read in its order."""
    chunks = fill(tmp_path / "in")
    store = fsspec.filesystem("memory")
    store.put(f"{tmp_path}/in", "/shared", recursive=True)
    plain = [
        (chunk, {}) if isinstance(chunk, str) else (chunk["text"], chunk["metadata"])
        for chunk in chunks
    ]
    assert read(f"file://{tmp_path}/in") == read("memory://shared", 3) == plain
    store.rm("/shared", recursive=True)
    assert read([tmp_path / "in" / "b", tmp_path / "in" / "a.jsonl"]) == plain[10:20] + plain[:10]


RECORDS = [
    {
        "body": body,
        "head": f"Part {row % 3}" if row % 2 else None,
        "page": row % 5,
        "of": {"a": [row]},
    }
    for row, body in enumerate(texts(60, 7))
]
LINES = b"\xef\xbb\xbf" + "\r\n\n".join(map(json.dumps, RECORDS)).encode()


def as_parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path, row_group_size=25)


@pytest.mark.parametrize(
    ("name", "write"),
    [
        ("a.jsonl", lambda path: path.write_bytes(LINES)),
        (
            "a.ndjson.gz",
            lambda path: path.write_bytes(gzip.compress(LINES[:99]) + gzip.compress(LINES[99:])),
        ),
        (
            "a.jsonl.zst",
            lambda path: path.write_bytes(
                zstandard.compress(LINES[:99]) + zstandard.compress(LINES[99:])
            ),
        ),
        ("a.parquet", as_parquet),
    ],
)
def test_source_equals_chunk_index_build(
    cluster: Any, tmp_path: Path, name: str, write: Callable[[Path], Any]
) -> None:
    """Chunks, titles, metadata and answers of a file equal `ChunkIndex.build`, bit for bit."""
    write(tmp_path / name)
    one = ChunkIndex.build(tmp_path / name, tmp_path / "built", text="body", title="head")
    with ClusterIndex(source=tmp_path / name, text="body", title="head", n_shards=2) as index:
        assert len(index.stats().shards) == (1 if name.endswith((".gz", ".zst")) else 2)
        assert list(index) == list(one)
        assert {chunk.title for chunk in index} == {"", "Part 0", "Part 1", "Part 2"}
        for query in [*QUERIES, "Part 1"]:
            found, expected = (
                index.search(query, where={"page": [1, 2]}),
                one.search(query, where={"page": [1, 2]}),
            )
            assert (found, found.confidence) == (expected, expected.confidence)
            assert index.explain(query, 3) == one.explain(query, 3)


def test_tables_and_mappings_are_chunks(cluster: Any) -> None:
    """Rows of a table and mappings are the same chunks as in `ChunkIndex`."""
    for chunks in (pyarrow.Table.from_pylist(RECORDS), RECORDS):
        one = ChunkIndex(chunks, text="body")
        with ClusterIndex(chunks, text="body", n_shards=2) as index:
            assert list(index) == list(one)
            assert index.search(QUERIES) == one.search(QUERIES)
    with ClusterIndex(pyarrow.table({"text": ["a cat"], "title": ["Cats"], "page": [3]})) as index:
        assert index[0] == Chunk("a cat", {"page": 3}, 0, "Cats")


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "a.jsonl",
            b'"fine"\n{"no text": 1}\n',
            r"a\.jsonl line 2 must have the field 'text'.* text= names.* mean no text\?",
        ),
        ("a.jsonl", b'"fine"\n17\n', r"a\.jsonl line 2 must be a string, .* got 17"),
        ("a.jsonl", b'"fine"\nno JSON\n', r"a\.jsonl line 2 must be JSON"),
        ("a.jsonl", b'"fine"\n" "\n', r"a\.jsonl line 2: text .*not blank"),
        (
            "a.jsonl",
            b'"fine"\n{"text": "a", "title": 7}\n',
            r"a\.jsonl line 2: title must be a string, got 7",
        ),
        (
            "a.jsonl",
            b'"fine"\n' + b"a" * (5 << 20),
            r"a\.jsonl line 2 must be at most 4,194,304 bytes long",
        ),
        (
            "a.jsonl.gz",
            gzip.compress(b'"a"\n' * 9, mtime=0)[:-9],
            r"a\.jsonl\.gz line \d+ is damaged or truncated",
        ),
        ("a.jsonl.gz", b'"no gzip"', r"a\.jsonl\.gz line 1 is damaged"),
        ("a.jsonl.zst", gzip.compress(LINES, mtime=0), r"a\.jsonl\.zst line 1 is damaged"),
        ("a.parquet", b"no Parquet at all", r"a\.parquet must be Parquet"),
        ("a.txt", b"\xff\xfe\xfd", r"a\.txt must be UTF-8"),
        (
            "a.pdf",
            b"",
            r"source must be JSON lines .*, Parquet .*, \.txt or \.md, or a folder that contains such files, got",
        ),
    ],
)
def test_invalid_file_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    """The error names the file and the row."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidRequestError, match=said):
        read(tmp_path)


def test_error_in_later_shard_names_byte_or_row(tmp_path: Path) -> None:
    """If a shard begins inside a file, the error names the byte or row, and the field."""
    (tmp_path / "a.jsonl").write_text('{"body": "fine"}\n{"body": 4}\n')
    part = plan(tmp_path, 2, text="body")[-1]
    with pytest.raises(
        InvalidRequestError, match=r"a\.jsonl line at byte 17: body must be a string .* got 4$"
    ):
        list(part.batches())
    pyarrow.parquet.write_table(
        pyarrow.table({"body": ["fine", "fine", None]}), tmp_path / "b.parquet"
    )
    part = plan(tmp_path / "b.parquet", 3, text="body")[-1]
    with pytest.raises(
        InvalidRequestError, match=r"b\.parquet row 2: body must be a string .* got None"
    ):
        list(part.batches())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "chunks must be given, or source"),
        ({"chunks": ["a"], "source": "b"}, "not both"),
        ({"source": "/nowhere"}, "source must exist"),
        ({"source": []}, "source must be a file"),
        ({"source": [__file__, ""]}, r"source\[1\] must be a file or a folder"),
        ({"source": [__file__, 5]}, r"source\[1\] must be a file or a folder, got 5"),
        ({"source": ""}, r"source\[0\] must be"),
        ({"source": "nowhere://a"}, "nowhere://a must be an address that fsspec can open"),
        (
            {"source": __file__},
            "source must be JSON lines .*, or a folder that contains such files",
        ),
        ({"source": __file__, "text": 7}, "text must be the name of a field, or None, got 7"),
        ({"source": __file__, "title": None}, "title must be the name of a field"),
        (
            {"chunks": ["a"], "title": "head"},
            "title must be .* \"title\" without a source, got 'head'",
        ),
        ({"source": __file__, "blank": "maybe"}, "blank must be"),
    ],
)
def test_invalid_source_is_refused(cluster: Any, options: Any, said: str) -> None:
    """An invalid source raises an error before any process is started."""
    with pytest.raises(InvalidRequestError, match=said):
        ClusterIndex(**options)


def test_invalid_file_fails_the_build(cluster: Any, tmp_path: Path) -> None:
    """An invalid record that a node finds fails the build."""
    (tmp_path / "a.jsonl").write_text("no JSON")
    with pytest.raises(ClusterError, match=r"a\.jsonl line 1 must be JSON"):
        ClusterIndex(source=tmp_path)


def test_empty_files_make_an_empty_index(cluster: Any, tmp_path: Path) -> None:
    """Empty files make an index without chunks, alone or together."""
    for name in ("a.jsonl", "b.txt", "d.jsonl.gz", "e.jsonl.zst"):
        (tmp_path / name).touch()
    pyarrow.parquet.write_table(
        pyarrow.table({"text": pyarrow.array([], pyarrow.string())}), tmp_path / "c.parquet"
    )
    for source in (*tmp_path.iterdir(), tmp_path):
        assert read(source) == []
    with ClusterIndex(source=tmp_path / "a.jsonl") as index:
        assert len(index) == 0
        assert list(index.search("a cat")) == []
        assert index.add(["a cat"]) == range(1)
        assert len(index.search("a cat")) == 1
