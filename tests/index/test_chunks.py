"""Validation of chunks."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import Chunk, InvalidRequestError, wire
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.records.validation import read_chunks

chunk_values = st.one_of(
    st.sampled_from(["a", "", "  ", "b c"]),
    st.fixed_dictionaries(
        {},
        optional={
            "text": st.sampled_from(["a", " ", "b", 3, None]),
            "metadata": st.sampled_from([{}, {"page": 1}, [], None]),
            "original_index": st.sampled_from([0, -1, None, True, "1"]),
            "txet": st.just("a"),
        },
    ),
    st.sampled_from([None, 3, [], True]),
)


@given(st.lists(chunk_values, max_size=5))
def test_read_chunks_accepts_what_chunk_accepts(chunks: list[Any]) -> None:
    """The loop over many chunks accepts, returns and refuses exactly the same values as making each `Chunk`."""

    def slowly() -> tuple[list[str], dict[int, Any]]:
        made = []
        for position, value in enumerate(chunks):
            path = f"chunks[{position}]"
            if not isinstance(value, (str, dict)):
                raise InvalidRequestError.must_be(path, "a string, a mapping or a Chunk", value)
            made.append(
                wire.structure(
                    Chunk, {"text": value} if isinstance(value, str) else value, path=path
                )
            )
        metadata = {
            position: chunk.metadata for position, chunk in enumerate(made) if chunk.metadata
        }
        return [chunk.text for chunk in made], metadata

    try:
        expected = slowly()
    except InvalidRequestError as error:
        with pytest.raises(InvalidRequestError) as caught:
            read_chunks(chunks)
        assert (str(caught.value), caught.value.field) == (str(error), error.field)
    else:
        assert read_chunks(chunks) == Chunks(*expected)


def test_read_chunks_of_many_chunks_is_fast() -> None:
    """Checking 20,000 chunk objects takes a small part of a search's time."""
    chunks = [{"text": "some text", "metadata": {"page": n}} for n in range(20_000)]
    best_s = min(_timed(chunks) for _ in range(5))
    assert best_s < 0.1


def _timed(chunks: list[dict[str, Any]]) -> float:
    started_s = time.perf_counter()
    read_chunks(chunks)
    return time.perf_counter() - started_s


def test_read_chunks_returns_checked_chunks_unchanged() -> None:
    """Checked chunks are returned unchanged, and errors use the caller's name for chunks."""
    checked = read_chunks(["a cat", {"text": "a dog", "metadata": {"page": 1}}])
    assert read_chunks(checked) is checked
    with pytest.raises(
        InvalidRequestError, match=r"chunk_txts\[1\] must be a string or an object, got 7"
    ):
        read_chunks(["a", 7], path="chunk_txts", kinds="a string or an object")
