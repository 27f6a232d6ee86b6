"""Tests of replacing chunks by an identifier in their metadata."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, ChunkIndex, InvalidRequestError
from relevance_gen.retrieval.base_index import MutableIndex
from relevance_gen.shards import changes
from relevance_gen.shards.sharded_index import ShardedIndex
from tests import strategies
from tests.profiles import costly

identified_chunks = st.lists(
    st.builds(
        lambda text, number: Chunk(text, {"id": number}),
        st.sampled_from(strategies.ENGLISH),
        st.sampled_from([1, 2, 3, "1", "two"]),
    ),
    max_size=4,
)
BUILDERS: list[Callable[..., MutableIndex]] = [
    lambda chunks, _: ChunkIndex(chunks),
    lambda chunks, folder: ShardedIndex.build(chunks, folder),
]


def replaced(chunks: dict[int, Chunk], new: list[Chunk], first: int) -> dict[int, Chunk]:
    """Return the chunks by position after a replacement; the new chunks begin at `first`."""
    identifiers = [chunk.metadata["id"] for chunk in new]
    result = {
        position: chunk
        for position, chunk in chunks.items()
        if chunk.metadata["id"] not in identifiers
    }
    return result | dict(enumerate(new, first))


def contents(index: MutableIndex) -> dict[Any, tuple[str, Any]]:
    return {chunk.original_index: (chunk.text, chunk.metadata) for chunk in index}


@costly
@given(data=st.data())
def test_replace_equals_removing_and_adding(data: st.DataObject) -> None:
    """Positions, chunks and results are those of a dict of the chunks, also after saving."""
    first_chunks = data.draw(identified_chunks)
    query = data.draw(strategies.queries)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        patch.setattr(changes, "_MIN_MERGED_SHARDS", 2)
        index = ChunkIndex(first_chunks)
        sharded = ShardedIndex.build(first_chunks, Path(folder, "shards"))
        chunks, n_positions = dict(enumerate(first_chunks)), len(first_chunks)
        for _ in range(data.draw(st.integers(1, 4))):
            new = data.draw(identified_chunks)
            expected_positions = range(n_positions, n_positions + len(new))
            assert index.replace(new) == expected_positions
            assert sharded.replace(new) == expected_positions
            chunks = replaced(chunks, new, n_positions)
            n_positions = expected_positions.stop
            index.save(Path(folder, "saved"))
            index = ChunkIndex.load(Path(folder, "saved"))
        expected = {position: (chunk.text, chunk.metadata) for position, chunk in chunks.items()}
        assert contents(index) == contents(sharded) == expected
        fresh = ChunkIndex(list(chunks.values())).search(query, 50)
        for other in (index, sharded):
            response = other.search(query, 50)
            scores = [(result.chunk_txt, result.chunk_score) for result in response]
            assert scores == [(result.chunk_txt, result.chunk_score) for result in fresh]
            assert response.metadata == fresh.metadata


def test_replace_in_folder_publishes_one_version(tmp_path: Path) -> None:
    """Removing and adding is one version; another reader sees both after one refresh."""
    chunks = [Chunk("Cats purr.", {"id": 1}), Chunk("Dogs bark.", {"id": 2})]
    index = ShardedIndex.build(chunks, tmp_path)
    reader = ShardedIndex.open(tmp_path)
    index.replace([Chunk("Cats meow.", {"id": 1})])
    assert index.version == reader.version + 1
    assert reader.refresh()
    assert [chunk.text for chunk in reader] == ["Dogs bark.", "Cats meow."]


def test_concurrent_replace_removes_what_another_writer_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a conflict, the chunks to remove are found again in the version of the other writer."""
    index = ShardedIndex.build([Chunk("Cats purr.", {"id": 1})], tmp_path)
    other = ShardedIndex.open(tmp_path)
    find = index._find_in
    n_attempts = 0

    def find_after_other_writer(*args: Any) -> Any:
        nonlocal n_attempts
        n_attempts += 1
        found = find(*args)
        if n_attempts == 1:
            other.replace([Chunk("Cats sleep.", {"id": 1})])
        return found

    monkeypatch.setattr(index, "_find_in", find_after_other_writer)
    assert index.replace([Chunk("Cats meow.", {"id": 1})]) == range(2, 3)
    assert n_attempts == 2
    assert [chunk.text for chunk in index] == ["Cats meow."]


def test_chunks_of_a_document_are_replaced_by_path() -> None:
    """Several chunks can have one identifier, and `key` names it."""
    old = [Chunk("Cats purr.", {"path": "a.txt"}), Chunk("Cats sleep.", {"path": "a.txt"})]
    index = ChunkIndex([*old, Chunk("Dogs bark.", {"path": "b.txt"})])
    new = [Chunk(text, {"path": "a.txt"}) for text in ("Cats.", "Kittens.", "Cats eat.")]
    assert index.replace(new, key="path") == range(3, 6)
    assert [chunk.text for chunk in index] == ["Dogs bark.", "Cats.", "Kittens.", "Cats eat."]


def test_rows_of_a_frame_are_replaced() -> None:
    """With `text`, the other columns of a table are metadata, the identifier included."""
    index = ChunkIndex(pd.DataFrame({"body": ["Cats.", "Dogs."], "id": [1, 2]}), text="body")
    index.replace(pd.DataFrame({"body": ["Puppies."], "id": [2]}), text="body")
    index.add(pd.DataFrame({"body": ["Cows."], "id": [3]}), text="body")
    assert [chunk.text for chunk in index] == ["Cats.", "Puppies.", "Cows."]


@pytest.mark.parametrize("build", BUILDERS)
@pytest.mark.parametrize(
    ("chunks", "options", "message"),
    [
        (["Cats."], {}, r"chunks\[0\].metadata.id must be a string or an integer, got None"),
        ([Chunk("Cats.", {"id": [1]})], {}, r"chunks\[0\].metadata.id must be"),
        ([Chunk("Cats.", {"id": True})], {}, r"chunks\[0\].metadata.id must be"),
        ([Chunk("A", {"id": 1}), " "], {}, r"chunks\[1\].text must be"),
        ([Chunk("Cats.", {"id": 1})], {"key": 3}, "key must be a string"),
    ],
)
def test_replace_with_invalid_arguments_changes_nothing(
    build: Callable[..., MutableIndex],
    chunks: list[Any],
    options: dict[str, Any],
    message: str,
    tmp_path: Path,
) -> None:
    """The error names the chunk and the key of the identifier."""
    index = build([Chunk("Dogs.", {"id": 1})], tmp_path)
    with pytest.raises(InvalidRequestError, match=message):
        index.replace(chunks, **options)
    assert [chunk.text for chunk in index] == ["Dogs."]
