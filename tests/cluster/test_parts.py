"""What is made block by block, and mapped from a file, is what is made of all at once."""

from __future__ import annotations

import datetime
import pickle

import numpy as np
import pytest
from attrs import evolve

from relevance_gen.cluster import parts
from relevance_gen.cluster.parts import Product, make
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.retrieval.answer import answer
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.text.token_counting import token_counter
from relevance_gen.types import SearchMetadata
from tests.cluster.shared import QUERIES, texts

DAY = datetime.date(2026, 1, 2)


def product(n_blocks: int) -> tuple[Product, list[tuple[int, int]]]:
    """Make chunks with blank ones, titles and metadata, some of it no JSON, in so many blocks or one more."""
    chunks = read_chunks(
        [
            {
                "text": text if place % 9 else " ",
                "title": "Cats" if place % 5 == 1 else "",
                "metadata": one,
            }
            for place, text in enumerate(texts(200, seed=4))
            for one in ({"day": DAY, "page": place} if place in (7, 150) else {"page": place},)
        ],
        blank="skip",
    )
    batches = [chunks.take(range(first, min(first + 7, 200))) for first in range(0, 200, 7)]
    told: list[tuple[int, int]] = []
    with pytest.MonkeyPatch.context() as patch:
        n_bytes = sum(map(parts.sys.getsizeof, chunks.texts))
        patch.setattr(parts, "_BLOCK_BYTES", n_bytes // n_blocks if n_blocks > 1 else 1 << 30)
        return make(batches, token_counter(), lambda done, total: told.append((done, total))), told


@pytest.mark.parametrize("n_blocks", [2, 5, 29])
def test_blocks_are_what_all_at_once_is(n_blocks: int) -> None:
    """Chunks, positions, statistics, tokens and answers are the same bits, and so they are of a copy."""
    (one, _), (many, told) = product(1), product(n_blocks)
    assert told == sorted(told)
    assert told[-1][1] == 200
    assert len({n_read for _, n_read in told}) >= min(n_blocks, 20)
    assert (many.n_positions, many.n_tokens) == (one.n_positions, one.n_tokens)
    assert [*many.segment.chunks] == [*one.segment.chunks]
    assert many.segment.chunks.metadata_of(6) == {"day": DAY, "page": 7}
    copy = evolve(many, segment=pickle.loads(pickle.dumps(many.segment)))
    answers = []
    for made in (one, many, copy):
        collection = Collection([made.segment], weighting_named("pivoted"))
        counts = SearchMetadata(1, made.n_tokens)
        found = [
            answer(SearchParams(query, where={"page": [*range(60)]}), collection, 200, counts)
            for query in QUERIES
        ]
        answers.append((found, [one.confidence for one in found], collection.statistics.norm_sum))
        for name in ("positions", "hashes", "norms", "english_margin", "title_hashes"):
            assert (
                np.asarray(getattr(made.segment, name)).tobytes()
                == getattr(one.segment, name).tobytes()
            )
    assert answers[1] == answers[0] == answers[2]


def test_titles_and_metadata_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chunks of which the text is the least are made in blocks all the same, so that memory is bounded."""
    monkeypatch.setattr(parts, "_BLOCK_BYTES", 10_000)
    for kind in (lambda long: {"title": long}, lambda long: {"metadata": {"all": long}}):
        batches = [read_chunks([{"text": "a cat", **kind(f"{n} " * 250)} for n in range(5)])] * 20
        told: list[int] = []
        make(batches, token_counter(), lambda _, total, told=told: told.append(total))
        assert sorted(set(told)) == [*range(20, 101, 20)]
