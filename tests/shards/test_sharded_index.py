"""Tests that a sharded index gives the results of `ChunkIndex` with any number of writers, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, ChunkIndex, InvalidRequestError
from relevance_gen.errors import IndexConflictError, IndexFormatError
from relevance_gen.shards import changes, shard_files
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.shards.sharded_index import ShardedIndex
from relevance_gen.shards.versions import ShardRecord
from tests import strategies
from tests.profiles import costly
from tests.retrieval.test_dense_fusion import LetterEncoder
from tests.serve.shards import save_shards
from tests.shards.states import state, states


def answers(index: Any, query: str, **options: Any) -> tuple[Any, ...]:
    """Return a response in a form whose equality means equal bits."""
    response = index.search(query, **options)
    return response, response.confidence, response.metadata


def positions_of(index: ChunkIndex) -> list[int]:
    return [chunk.original_index for chunk in index]


titled_chunks = st.lists(
    st.builds(
        lambda text, title, page: {"text": text, "title": title, "metadata": {"page": page}},
        st.sampled_from(strategies.ENGLISH),
        st.sampled_from(["", "One", "Cats and dogs"]),
        st.integers(0, 2),
    ),
    max_size=4,
)


@costly
@given(data=st.data())
def test_sharded_index_equals_chunk_index(data: st.DataObject) -> None:
    """For any changes by two writers, results, explanations and chunks have equal bits."""
    weighting = data.draw(st.sampled_from(["pivoted", "cosine"]))
    chunks: list[Any] = [*data.draw(strategies.chunk_lists), *data.draw(titled_chunks), "cats"]
    with tempfile.TemporaryDirectory() as location, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(changes, "_MIN_MERGED_SHARDS", data.draw(st.sampled_from([2, 8])))
        save_shards(location, chunks, data.draw(st.integers(1, 4)), weighting)
        handles = [ShardedIndex.open(location), ShardedIndex.open(location)]
        expected = ChunkIndex(chunks, weighting=weighting)
        query = data.draw(strategies.queries)
        for _ in range(data.draw(st.integers(1, 4))):
            index = data.draw(st.sampled_from(handles))
            action = data.draw(st.sampled_from(["add", "remove", "where", "compact"]))
            if action == "add":
                added = [*data.draw(strategies.chunk_lists), *data.draw(titled_chunks)]
                assert index.add(added) == expected.add(added)
            elif action == "remove" and len(expected) > 1:
                removed = data.draw(st.lists(st.sampled_from(positions_of(expected)), min_size=1))
                assert index.remove(removed) == expected.remove(removed)
            elif action == "where" and "page" in expected.metadata_keys:
                assert index.remove(where={"page": 1}) == expected.remove(where={"page": 1})
            elif action == "compact":
                index.compact()
        for index in handles:
            index.refresh()
            top_n = data.draw(st.integers(1, 60))
            assert answers(index, query, top_n=top_n) == answers(expected, query, top_n=top_n)
            options = {"spans": True, "true_order": False, "min_relative_score": 0.5}
            assert answers(index, query, **options) == answers(expected, query, **options)
            assert list(index) == list(expected)
            assert index.metadata_keys == expected.metadata_keys
            left = positions_of(expected)
            if left:
                position = data.draw(st.sampled_from(left))
                assert index.explain(query, position) == expected.explain(query, position)
                assert index[position] == expected[position]
                assert index[position] in index
                odd = [one for one in left if one % 2]
                assert answers(index, query, where=odd) == answers(expected, query, where=odd)


def test_index_works_in_each_storage(location: str, tmp_path: Path) -> None:
    """An index in S3, in a folder and in memory can be built, searched, changed and opened again."""
    expected = ChunkIndex(["cats purr", "dogs bark", "cows moo"])
    index = ShardedIndex.build(["cats purr", "dogs bark"], location)
    assert index.add(["cows moo"]) == range(2, 3)
    expected.remove([0])
    assert index.remove([0]) == 1
    cache = ShardCache(tmp_path / "cache", 1 << 20)
    for opened in (index, ShardedIndex.open(location), ShardedIndex.open(location, cache=cache)):
        assert answers(opened, "dogs") == answers(expected, "dogs")
        assert opened.version == 3
        assert opened.n_shards == 2
    assert index.compact() == 1
    assert answers(index, "moo") == answers(expected, "moo")
    assert repr(index).startswith("<ShardedIndex of 2 chunks in 1 shards, version 4")


@pytest.mark.parametrize("scheme", ["s3", "file"])
def test_concurrent_writers_lose_no_chunk(store: Any, tmp_path: Path, scheme: str) -> None:
    """All chunks of concurrent writers are present at the returned positions."""
    location = f"s3://corpora/{tmp_path.name}" if scheme == "s3" else str(tmp_path)
    ShardedIndex.build([], location)

    def add(writer: int) -> dict[int, str]:
        index = ShardedIndex.open(location)
        added = {}
        for number in range(5):
            text = f"cat {number} of writer {writer}"
            (position,) = index.add([text])
            added[position] = text
        return added

    with ThreadPoolExecutor(3) as pool:
        expected = {}
        for added in pool.map(add, range(3)):
            expected |= added
    index = ShardedIndex.open(location)
    assert [chunk.text for chunk in index] == [expected[position] for position in range(15)]
    assert index.n_shards < 15


WRITER = """
import sys
from relevance_gen.shards.sharded_index import ShardedIndex
index = ShardedIndex.open(sys.argv[1])
number = 0
while True:
    number += 1
    text = f"cat {number} of writer {sys.argv[2]}"
    (position,) = index.add([text])
    print(position, text, flush=True)
"""


@pytest.mark.parametrize("n_rounds", [2, pytest.param(9, marks=pytest.mark.soak)])
def test_killed_writers_lose_no_acknowledged_chunk(tmp_path: Path, n_rounds: int) -> None:
    """Chunks that a writer had acknowledged before it was killed are there, and the index is intact."""
    index = ShardedIndex.build([], tmp_path)
    acknowledged = {}
    for attempt in range(n_rounds):
        writers = [
            subprocess.Popen(
                [sys.executable, "-c", WRITER, str(tmp_path), f"{attempt}.{number}"],
                stdout=subprocess.PIPE,
                text=True,
            )
            for number in range(2)
        ]
        for writer in writers:
            assert writer.stdout is not None
            lines = [writer.stdout.readline() for _ in range(5)]
            writer.send_signal(signal.SIGKILL)
            lines += writer.stdout.read().splitlines()
            writer.stdout.close()
            writer.wait()
            for line in lines:
                position, _, text = line.strip().partition(" ")
                acknowledged[int(position)] = text
    index.refresh()
    for position, text in acknowledged.items():
        assert index[position].text == text
    assert len(acknowledged) >= 10 * n_rounds


def test_small_change_writes_little(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Adding or removing one chunk of a large index writes at most 100 KB."""
    chunks = [{"text": f"cat {number} " * 50, "title": f"Cat {number}"} for number in range(2000)]
    index = ShardedIndex.build(chunks, tmp_path)
    before = {path.name: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    index.add(["one more cat"])
    index.remove([7])
    new = [path for path in tmp_path.iterdir() if before.get(path.name) != path.stat().st_mtime_ns]
    assert sum(path.stat().st_size for path in new) < 100_000


def test_unchanged_shards_are_not_fetched_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`refresh` reads only the shards that are new."""
    location, read, read_all = f"memory://{tmp_path.name}", list[str](), ObjectStore.read_all
    index = ShardedIndex.build(state(0), location)
    reader = ShardedIndex.open(location)
    index.add(["a cat"])

    def counting(self: ObjectStore, name: str) -> bytes:
        read.append(name)
        return read_all(self, name)

    monkeypatch.setattr(ObjectStore, "read_all", counting)
    assert reader.refresh()
    assert read == [reader._version.shards[-1].file.name]


def test_large_removals_rewrite_the_shard(tmp_path: Path) -> None:
    """A shard that has lost most of its chunks is rewritten, and an empty shard is dropped."""
    index = ShardedIndex.build(state(0), tmp_path)
    index.add(state(1))

    def shards() -> tuple[ShardRecord, ...]:
        return index._version.shards

    first, second = shards()
    index.remove([0])
    assert shards()[0].file == first.file
    assert shards()[0].removed_positions.tolist() == [0]
    index.remove([1, 2])
    assert shards()[0].file != first.file
    assert shards()[0].removed_positions.tolist() == []
    index.remove([3])
    assert shards() == (second,)
    assert states(index) == {"1"}
    assert index.add(["a cat"]) == range(8, 9)
    index.remove(where=lambda _: True)
    assert len(index) == 0
    assert index.search("cat").results == ()
    assert index.add(["a cat"]) == range(9, 10)
    assert len(index.search("cat").results) == 1


def test_interrupted_compaction_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A merge whose shards were changed by another writer meanwhile is discarded."""
    save_shards(str(tmp_path), state(0, 8), 4)
    index, other = ShardedIndex.open(tmp_path), ShardedIndex.open(tmp_path)
    merge = shard_files.LocalShardEditor.merge

    def slow_merge(self: shard_files.LocalShardEditor, shards: Any) -> ShardRecord:
        merged = merge(self, shards)
        if len(other) == 8:
            other.remove([0])
        return merged

    monkeypatch.setattr(shard_files.LocalShardEditor, "merge", slow_merge)
    assert index.compact() == 0
    assert len(index) == 7
    assert index.compact() == 3
    assert [chunk.original_index for chunk in index] == [*range(1, 8)]


def test_index_of_other_settings_is_not_extended(tmp_path: Path) -> None:
    """If an index with another weighting replaces an index, a writer of the old index is refused."""
    index = ShardedIndex.build(["cats"], tmp_path)
    ShardedIndex.build(["dogs"], tmp_path, weighting="cosine")
    with pytest.raises(IndexConflictError, match="open it again"):
        index.add(["more cats"])
    (tmp_path / "index.json").unlink()
    with pytest.raises(IndexFormatError, match="holds no saved index any more"):
        index.add(["more cats"])


def test_sources_are_built_and_added(tmp_path: Path) -> None:
    """Files of records are read as `ChunkIndex.build` reads them."""
    source = tmp_path / "records.jsonl"
    source.write_text('{"body": "cats purr", "page": 1}\n{"body": "dogs bark", "page": 2}\n')
    expected = ChunkIndex.build(source, tmp_path / "expected", text="body")
    index = ShardedIndex.build(source, tmp_path / "index", text="body")
    assert list(index) == list(expected)
    assert index.add_source(source, text="body") == range(2, 4)
    assert [chunk.metadata["page"] for chunk in index] == [1, 2, 1, 2]


def test_encoder_and_blank_chunks(tmp_path: Path) -> None:
    """An encoder of one search encodes its candidates; blank chunks keep their positions."""
    chunks = ["a b", " ", "c d"]
    index = ShardedIndex.build(chunks, tmp_path, blank="skip")
    expected = ChunkIndex(chunks, blank="skip")
    for one in (index, expected):
        assert one.add(["", "e"], blank="skip") == range(3, 5)
        assert one.add([" "], blank="skip") == range(5, 6)
    encoder = LetterEncoder()
    assert answers(index, "c", encoder=encoder) == answers(expected, "c", encoder=encoder)
    assert index.add([]) == range(6, 6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda index: index.search(" "), "query must be"),
        (lambda index: index.search("a", where={"pages": 1}), "where must name keys"),
        (lambda index: index.add(["fine", " "]), r"chunks\[1\]"),
        (
            lambda index: index.add([{"text": "a", "metadata": {"b": {1}}}]),
            r"chunks\[0\]\.metadata\.b must be JSON",
        ),
        (lambda index: index.remove([0, -1]), r"positions\[1\] must be"),
        (lambda index: index.remove(iter([0, 0, 9])), r"positions\[2\] must be"),
        (lambda index: index.explain("a", 10**6), "chunk must be"),
        (lambda index: index[10**6], "position must be an integer in"),
    ],
)
def test_invalid_arguments_change_nothing(
    tmp_path: Path, call: Callable[[ShardedIndex], Any], message: str
) -> None:
    """An invalid argument raises an error that names it, and the index stays as it is."""
    index = ShardedIndex.build([{"text": "cats", "metadata": {"page": 1}}], tmp_path)
    with pytest.raises(InvalidRequestError, match=message):
        call(index)
    assert ShardedIndex.open(tmp_path).version == 1


def test_membership_compares_the_whole_chunk(tmp_path: Path) -> None:
    """A `Chunk` is in the index if text, metadata and title are equal; a string if the text is."""
    index = ShardedIndex.build([{"text": "cats", "title": "pets"}], tmp_path)
    chunk = index[0]
    assert isinstance(chunk, Chunk)
    assert chunk in index
    assert evolve(chunk, title="other") not in index
    assert "cats" in index
    assert index.nbytes > 0
    assert np.array_equal(index._version.shards[0].removed_positions, [])
