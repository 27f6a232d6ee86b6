"""Build an index in a file: the result equals an index built in memory, and failures leave no files."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, InvalidRequestError
from relevance_gen.documents import extraction
from relevance_gen.index import parallel_build, spill
from relevance_gen.index.records import sources
from relevance_gen.types import Chunk, Metadata, WeightingName
from tests import corpus, strategies
from tests.environments import ROOT
from tests.profiles import costly
from tests.retrieval.asking import ALL, WEIGHTINGS
from tests.retrieval.test_dense_fusion import LetterEncoder

RECORDS = [
    {"text": text, "title": f"Part {number % 3}" if number % 2 else None, "page": number % 5}
    for number, text in enumerate([*corpus.prose(40, 12), "Größe столица 猫が好き", "the cat"])
]
AS_CHUNKS = [Chunk(one["text"], {"page": one["page"]}, title=one["title"] or "") for one in RECORDS]  # type: ignore[arg-type]
LINES = "\n".join(map(json.dumps, RECORDS)).encode()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


def assert_same(built: ChunkIndex, expected: ChunkIndex, *queries: str) -> None:
    """Check that two indexes have equal chunks and bit-identical answers."""
    assert repr(built) == repr(expected)
    assert list(built) == list(expected)
    assert built.metadata_keys == expected.metadata_keys
    for query in queries:
        assert built.search(query, ALL) == expected.search(query, ALL)
        assert [built.explain(query, chunk.original_index) for chunk in built.chunks] == [  # type: ignore[arg-type]
            expected.explain(query, chunk.original_index)  # type: ignore[arg-type]
            for chunk in expected.chunks
        ]


titles = st.just("") | strategies.chunk_texts.filter(lambda title: not title.isspace())
records = st.builds(
    Chunk, strategies.chunk_texts, st.just({}) | st.just({"page": [1, None]}), title=titles
)


@costly
@given(
    st.lists(records, max_size=8),
    strategies.queries,
    st.sampled_from(WEIGHTINGS),
    st.sampled_from([5, 10_000, 1 << 30]),
    st.sampled_from([1, 2, 7, 1 << 17]),
)
def test_build_with_any_block_size_equals_index_in_memory(
    folder: Path, chunks: list[Chunk], query: str, weighting: WeightingName, times: int, step: int
) -> None:
    """With any number of chunks in a block and any number of terms merged at once, the index is equal."""
    with pytest.MonkeyPatch.context() as cut:
        cut.setattr(sources, "_MEMORY_PER_TEXT", times)
        cut.setattr(spill, "_BATCH_ELEMENTS", step)
        built = ChunkIndex.build(iter(chunks), folder / "built", weighting=weighting)
    assert_same(built, ChunkIndex(chunks, weighting=weighting), query)
    assert_same(ChunkIndex.load(folder / "built"), built)
    built.add(["a cat"])
    assert built.search("cat").results


def test_built_file_equals_saved_file_for_ascii_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For ASCII texts the files are equal byte by byte, also with several blocks and processes."""
    texts = corpus.prose(300, 20)
    ChunkIndex(texts).save(tmp_path / "saved")
    monkeypatch.setattr(sources, "_MEMORY_PER_TEXT", 1 << 10)
    monkeypatch.setattr(parallel_build, "_MIN_CHARS_PER_FORK", 1 << 12)
    for n_jobs in (1, 2):
        ChunkIndex.build(texts, tmp_path / "built", n_jobs=n_jobs)
        assert (tmp_path / "built").read_bytes() == (tmp_path / "saved").read_bytes()


def test_build_with_encoder_keeps_the_passages_of_all_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Passages of all blocks are stored, including long and blank chunks."""
    monkeypatch.setattr(sources, "_MEMORY_PER_TEXT", 10_000)
    texts = ["purr " * 500, "", *corpus.prose(20, 12)]
    encoder = LetterEncoder()
    built = ChunkIndex.build(texts, tmp_path / "built", blank="skip", encoder=encoder)
    assert_same(built, ChunkIndex(texts, blank="skip", encoder=encoder), "purr", texts[5])
    passages = built._state.segments.segments[0].passages
    assert passages is not None
    assert passages.first.size == len(texts)
    assert passages.starts.size > len(texts)


def parquet(path: Path) -> None:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(RECORDS), path, row_group_size=7)


def frames(path: Path) -> None:
    skipped = b"\x50\x2a\x4d\x18" + (3).to_bytes(4, "little") + b"abc"
    path.write_bytes(zstandard.compress(LINES[:100]) + skipped + zstandard.compress(LINES[100:]))


@pytest.mark.parametrize(
    ("name", "write"),
    [
        (
            "a.jsonl",
            lambda path: path.write_bytes(b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\r\n\n")),
        ),
        (
            "a.ndjson.gz",
            lambda path: path.write_bytes(gzip.compress(LINES[:50]) + gzip.compress(LINES[50:])),
        ),
        ("a.JSONL.zst", frames),
        ("a.b.parquet", parquet),
    ],
)
def test_build_reads_every_file_format(
    tmp_path: Path, name: str, write: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JSON lines, compressed or not, and Parquet give their chunks; progress ends at the end."""
    monkeypatch.setattr(sources, "_MEMORY_PER_TEXT", 10_000)
    write(tmp_path / name)
    reported: list[tuple[int, int]] = []
    built = ChunkIndex.build(
        str(tmp_path / name), tmp_path / "built", progress=lambda *one: reported.append(one)
    )
    assert_same(built, ChunkIndex(AS_CHUNKS), "the cat", "猫")
    assert built.search("cat", where={"page": [1]}).results
    assert reported[-1] == (len(RECORDS), len(RECORDS))
    assert all(done <= total for done, total in reported)


@pytest.mark.parametrize(
    "source",
    [RECORDS, iter(RECORDS), AS_CHUNKS, pyarrow.Table.from_pylist(RECORDS)],
    ids=lambda one: type(one).__name__,
)
def test_build_reads_records_in_memory(tmp_path: Path, source: Any) -> None:
    """Mappings, chunks and tables are records; the caller names the fields."""
    assert_same(ChunkIndex.build(source, tmp_path / "built"), ChunkIndex(AS_CHUNKS), "the cat")


def test_build_reads_text_and_title_from_named_fields(tmp_path: Path) -> None:
    """`text` and `title` name fields; all other fields and the content of `metadata` become metadata; null is ignored."""
    record = {
        "body": "a cat",
        "head": "Pets",
        "text": "x",
        "metadata": {"page": 1},
        "none": None,
        "title": 3,
    }
    built = ChunkIndex.build([record], tmp_path / "built", text="body", title="head")
    assert built[0] == Chunk("a cat", {"text": "x", "title": 3, "page": 1}, 0, "Pets")
    untitled = ChunkIndex.build([record], tmp_path / "built", text="body", title="")
    assert (untitled[0].title, untitled[0].metadata["head"]) == ("", "Pets")


def test_build_with_absent_title_field_raises_an_error(tmp_path: Path) -> None:
    """The field named by `title` can be absent from records, but not from all records."""
    records = [{"text": "a cat", "head": "Pets"}, {"text": "a dog"}, "a bird"]
    assert ChunkIndex.build(records, tmp_path / "built", title="head")[0].title == "Pets"
    with pytest.raises(
        InvalidRequestError, match=r"'haed', which title= names; did you mean head\?"
    ):
        ChunkIndex.build(records[:1], tmp_path / "built", title="haed")
    assert len(ChunkIndex.build(records[2:], tmp_path / "built", title="head")) == 1


def test_build_reads_paths_in_a_list_as_files(tmp_path: Path) -> None:
    """Paths in a list are read as files in their order, and positions continue; a file name as a text is an error."""
    (tmp_path / "a.jsonl").write_bytes(LINES)
    parquet(tmp_path / "b.parquet")
    reported: list[tuple[int, int]] = []
    source = [tmp_path / "a.jsonl", "a bird", tmp_path / "b.parquet"]
    built = ChunkIndex.build(source, tmp_path / "built", progress=lambda *one: reported.append(one))
    assert_same(built, ChunkIndex([*AS_CHUNKS, "a bird", *AS_CHUNKS]), "the cat")
    assert reported[-1] == (len(built), len(built))
    assert len(ChunkIndex.build(iter(source), tmp_path / "built")) == len(built)
    with pytest.raises(
        InvalidRequestError, match=r"source\[0\] must be a text, and not the name of a file"
    ):
        ChunkIndex.build([str(tmp_path / "a.jsonl")], tmp_path / "built")
    with pytest.raises(InvalidRequestError, match=r"source\[1\] must be JSON lines"):
        ChunkIndex.build(["a bird", tmp_path / "built"], tmp_path / "other")
    assert len(ChunkIndex.build(["x" * 5000 + ".jsonl", "none.jsonl"], tmp_path / "built")) == 2


def test_build_reads_the_documents_of_a_folder(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents are split as in FolderIndex, ignored files are not read, and warnings are logged."""
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "pets.md").write_text("# Cats\n\nThey purr.")
    (docs / ".hidden.md").write_text("cats")
    (docs / "data.bin").write_bytes(b"\0cats")
    (docs / "gone.md").write_text("Gone.")
    (docs / "huge.md").touch()
    os.truncate(docs / "huge.md", 1 << 40)
    opened = Path.open

    def opening(path: Path, *args: Any, **options: Any) -> Any:
        if path.name == "data.bin":  # by then all of the folder's files are listed
            (docs / "gone.md").unlink()
        return opened(path, *args, **options)

    monkeypatch.setattr(Path, "open", opening)
    monkeypatch.setattr(extraction, "MAX_BYTES", 1 << 20)
    built = ChunkIndex.build(docs, tmp_path / "built")
    assert [(one.title, one.metadata["path"]) for one in built] == [
        ("docs/pets.md > Cats", str(docs / "pets.md"))
    ]
    assert "data.bin" in caplog.text
    assert "gone.md: No such file" in caplog.text
    assert "huge.md: is larger than 1 MiB" in caplog.text


def test_build_with_blank_skip_keeps_positions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With blank="skip" blank and missing texts take positions, as for an index in memory."""
    monkeypatch.setattr(sources, "_MEMORY_PER_TEXT", 1 << 30)
    texts = [" ", "a cat", None, "a dog", {"text": None}, ""]
    assert_same(
        ChunkIndex.build(texts, tmp_path / "built", blank="skip"),
        ChunkIndex(texts, blank="skip"),
        "cat dog",
    )


LONG = json.dumps("x" * (1 << 18)).encode()
NO_TEXT = pyarrow.table({"text": pyarrow.array([b"\xff"]).view(pyarrow.string())})
FAR = pyarrow.table({"text": ["a cat"], "at": pyarrow.array([1 << 62], pyarrow.timestamp("us"))})


def _as_parquet(table: Any) -> bytes:
    pyarrow.parquet.write_table(table, file := io.BytesIO())
    return file.getvalue()


UNREADABLE = _as_parquet(NO_TEXT)


@pytest.mark.parametrize(
    ("name", "content", "refused"),
    [
        ("a.jsonl", b'"fine"\n\n{"text": 7}\n', r"a\.jsonl line 3: text must be a string .*got 7"),
        (
            "a.jsonl",
            b'"fine"\n{"txt": "a"}\n',
            r"a\.jsonl line 2 must have the field 'text'.*did you mean txt\?",
        ),
        (
            "a.jsonl",
            b'"fine"\n{"text": " "}\n',
            r'a\.jsonl line 2: text must be .*pass blank="skip"',
        ),
        (
            "a.jsonl",
            b'"fine"\n{"text": "a", "title": 7}\n',
            r"a\.jsonl line 2: title must be a string, got 7",
        ),
        (
            "a.jsonl",
            b'"fine"\n{"text": "a", "n": NaN}\n',
            r"a\.jsonl line 2: metadata\.n must be JSON",
        ),
        ("a.jsonl", b'"fine"\n{"text": "a"\n', r"a\.jsonl line 2 must be JSON"),
        ("a.jsonl", b"[" * 100_000, r"a\.jsonl line 1 must be JSON"),
        ("a.jsonl", b'"fine"\n"\xff"\n', r"a\.jsonl line 2 must be JSON"),
        ("a.jsonl", b'"fine"\n' + LONG, r"a\.jsonl line 2 must be at most 262,144 bytes long"),
        (
            "a.jsonl.gz",
            gzip.compress(LINES, mtime=0)[:-9],
            r"a\.jsonl\.gz line \d+ is damaged or truncated",
        ),
        ("a.jsonl.gz", b'"no gzip"', r"a\.jsonl\.gz line 1 is damaged"),
        ("a.jsonl.gz", gzip.compress(b" " * (1 << 24)), r"a\.jsonl\.gz line 1 must be at most"),
        (
            "a.jsonl.zst",
            zstandard.compress(LINES)[:-3],
            r"a\.jsonl\.zst line \d+ is damaged or truncated",
        ),
        (
            "a.jsonl.zst",
            zstandard.compress(b" " * (1 << 28)),
            r"a\.jsonl\.zst line 1 must be at most",
        ),
        (
            "a.jsonl.zst",
            zstandard.compress(LINES) + b"more",
            r"a\.jsonl\.zst line \d+ is damaged or truncated",
        ),
        ("a.parquet", b"no Parquet", r"a\.parquet must be Parquet"),
        ("a.parquet", UNREADABLE, r"a\.parquet row 0 must be Parquet: 'utf-8' codec can't decode"),
        ("a.txt", b"a cat", "source must be JSON lines .*read_documents"),
    ],
)
def test_build_from_damaged_file_raises_an_error_with_location(
    tmp_path: Path, name: str, content: bytes, refused: str
) -> None:
    """The error has the location of the damage, and the folder is unchanged."""
    (tmp_path / name).write_bytes(content)
    ChunkIndex(["before"]).save(tmp_path / "built")
    with pytest.raises(InvalidRequestError, match=refused):
        ChunkIndex.build(tmp_path / name, tmp_path / "built", memory_bytes=16 << 20)
    assert sorted(os.listdir(tmp_path)) == sorted([name, "built"])
    assert len(ChunkIndex.load(tmp_path / "built")) == 1


def test_build_reads_large_rows_in_small_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Large rows take no more memory than small rows."""
    path, read, iterate = (
        tmp_path / "a.parquet",
        list[int](),
        pyarrow.parquet.ParquetFile.iter_batches,
    )
    texts = [
        f"cat {number} " + "purrs " * (n_bytes // 6)
        for n_bytes in (10_000, 2 << 20)
        for number in range(12)
    ]
    with pyarrow.parquet.ParquetWriter(path, pyarrow.schema([("text", pyarrow.string())])) as file:
        for start in (0, 12):
            file.write(pyarrow.table({"text": texts[start : start + 12]}))

    def watched(*args: Any, **kwargs: Any) -> Any:
        for batch in iterate(*args, **kwargs):
            read.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", watched)
    for source in (path, texts):
        with closing(spill.Spill(tmp_path)) as spilled:
            blocks = sources.Records(source, "text", "title", "error", 16 << 20).blocks(
                spilled.content
            )
            sizes = [sum(map(len, chunks.texts)) for chunks, _ in blocks]
        assert sum(sizes) == sum(map(len, texts))
        assert max(sizes) < (16 << 20) / 5
    assert read == [1] * len(texts)


@pytest.mark.parametrize(
    ("source", "options", "refused"),
    [
        (7, {}, "source must be JSON lines"),
        (b"a cat", {}, "source must be JSON lines"),
        ("", {}, "source must be the path of a file"),
        (
            "file:///a.jsonl",
            {},
            r"source must be .* no address, got .*; ClusterIndex\(source=…\) takes addresses",
        ),
        ("a\0.jsonl", {}, "source cannot be a path: .*null byte"),
        (NO_TEXT, {}, "a table must be readable, but row 0 .*codec can't decode"),
        (FAR, {}, "a table must be readable, but row 0 .*out of range"),
        ([{"text": "a"}], {"text": 7}, "text must be a string, got 7"),
        ([{"text": "a"}], {"title": ["a"]}, "title must be a string"),
        ([], {"blank": "no"}, 'blank must be "error" or "skip"'),
        (["a cat", 7], {}, r"source\[1\] must be a string, a mapping or a Chunk, got 7"),
        (
            ["a cat"],
            {"memory_bytes": 1 << 20},
            "memory_bytes must be an integer of at least 16777216, got 1048576",
        ),
        (["a cat"], {"weighting": "bm25"}, "weighting must be"),
        ([{"text": "a", "metadata": {"at": {1}}}], {}, r"source\[0\]: metadata\.at must be JSON"),
        (
            ["a", "a " * (2 << 20)],
            {"memory_bytes": 16 << 20},
            r"source\[1\]: text takes 20,97[\d,]+ bytes .* cut it",
        ),
    ],
)
def test_build_with_invalid_argument_or_record_raises_an_error(
    tmp_path: Path, source: Any, options: Metadata, refused: str
) -> None:
    """The error names the argument or record, and the folder is unchanged."""
    with pytest.raises(InvalidRequestError, match=refused):
        ChunkIndex.build(source, tmp_path / "built", **options)
    assert os.listdir(tmp_path) == []


def test_build_from_missing_file_raises_os_error(tmp_path: Path) -> None:
    """A missing source and a missing folder raise the errors of the operating system."""
    with pytest.raises(FileNotFoundError, match=r"a\.jsonl"):
        ChunkIndex.build(tmp_path / "a.jsonl", tmp_path / "built")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        ChunkIndex.build(["a cat"], tmp_path / "nowhere" / "built")
    assert os.listdir(tmp_path) == []


def test_interrupted_build_leaves_no_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """^C while the source is read or the file is merged leaves the folder unchanged."""

    def interrupted() -> Iterator[str]:
        yield "a cat"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ChunkIndex.build(interrupted(), tmp_path / "built")
    assert os.listdir(tmp_path) == []
    monkeypatch.setattr(
        spill,
        "_merge_terms",
        lambda *_: next(interrupted()) and (_ for _ in ()).throw(KeyboardInterrupt),
    )
    with pytest.raises(KeyboardInterrupt):
        ChunkIndex.build(["a cat"], tmp_path / "built")
    assert os.listdir(tmp_path) == []


BUILD = """
import os, resource, signal, sys
from pathlib import Path
from relevance_gen import ChunkIndex
from relevance_gen.index import spill
from tests import corpus
target = Path(sys.argv[1])
"""


def run(script: str, target: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", BUILD + script, str(target)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )


def test_build_removes_files_of_killed_processes(tmp_path: Path) -> None:
    """A process that is killed during a merge leaves one file, which the next build removes; files of live processes remain."""
    kill = "spill._merge_terms = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\nChunkIndex.build(['a cat'], target)"
    assert run(kill, tmp_path / "built").returncode == -signal.SIGKILL
    (left,) = os.listdir(tmp_path)
    seen: list[list[str]] = []

    def texts() -> Iterator[str]:
        seen.append(os.listdir(tmp_path))
        ChunkIndex(["another"]).save(tmp_path / "another")
        seen.append(os.listdir(tmp_path))
        yield "a cat"

    assert len(ChunkIndex.build(texts(), tmp_path / "built")) == 1
    (own,) = seen[0]
    assert own != left
    assert sorted(seen[1]) == sorted([own, "another"])
    assert sorted(os.listdir(tmp_path)) == ["another", "built"]


def test_build_ignores_a_pipe_named_like_an_unfinished_file(tmp_path: Path) -> None:
    """A pipe with the name of an unfinished file does not block a build."""
    pipe = tmp_path / f".{'0' * 16}.unfinished"
    os.mkfifo(pipe)
    assert len(ChunkIndex.build(["a cat"], tmp_path / "built")) == 1
    assert pipe.exists()


def test_build_on_full_disk_keeps_the_old_file(tmp_path: Path) -> None:
    """If the disk is full, the error of the operating system is raised and only the old index remains."""
    ChunkIndex(["before"]).save(tmp_path / "built")
    full = """
resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, 1 << 16))
try:
    ChunkIndex.build(corpus.prose(2000, 20), target)
except OSError as error:
    print(error.errno)
"""
    done = run(full, tmp_path / "built")
    assert (done.stdout, done.returncode) == (f"{errno.EFBIG}\n", 0), done.stderr
    assert os.listdir(tmp_path) == ["built"]
    assert ChunkIndex.load(tmp_path / "built")[0].text == "before"


def test_build_of_large_source_stays_within_memory_bytes(tmp_path: Path) -> None:
    """A process limited to slightly more than `memory_bytes` builds an index from several times as many bytes."""
    bounded = """
sys.modules["gigatoken"] = None  # a Rust library that finds no memory ends the process
chunks = corpus.prose(100, 200)
ChunkIndex.build(chunks, target)
def data():
    line = next(one for one in Path("/proc/self/status").read_text().splitlines() if one.startswith("VmData"))
    return int(line.split()[1]) << 10
limit = data() + (16 << 20) + (12 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
n = 14_000
index = ChunkIndex.build((f"{chunks[number % 100]} {number}" for number in range(n)), target, memory_bytes=16 << 20)
print(len(index), index.search("13999").results[0].original_index)
"""
    done = run(bounded, tmp_path / "built")
    assert (done.stdout, done.returncode) == ("14000 13999\n", 0), done.stderr
