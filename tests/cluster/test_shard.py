"""A shard keeps few segments, however often something was added to it, and is copied as it is."""

from __future__ import annotations

import numpy as np

from relevance_gen.cluster.parts import Product, Recipe, make
from relevance_gen.cluster.shard import Shard
from relevance_gen.progress import Progress
from relevance_gen.retrieval.segment.chunks import Chunks
from relevance_gen.tokens import TokenCounter, token_counter
from tests.cluster.shared import texts


class Texts:
    """A part of chunks that are at hand."""

    n_chars = 0

    def __init__(self, chunks: list[str]) -> None:
        self._chunks = Chunks.read(chunks)

    def make(self, counter: TokenCounter, progress: Progress | None) -> Product:
        """Make them searchable."""
        return make([self._chunks], counter, progress)


def recipe() -> Recipe:
    made = Recipe.of(Texts(texts(500)))
    for number, text in enumerate(texts(300, seed=1)):
        made = made.with_part(Texts([text]), 500 + number)
    return made.without(np.arange(0, 600, 7))


def test_a_shard_of_many_parts_has_few_segments() -> None:
    """A shard that is made again has as few segments as one that was never lost, and the same chunks."""
    grown, again = (Shard("pivoted", token_counter()) for _ in range(2))
    first, *others = recipe().parts
    told = grown.build(Recipe.of(*first))
    for epoch, (part, position) in enumerate(others):
        grown.adopt(epoch, told.statistics)
        told = grown.add(part, position)
    grown.adopt(300, told.statistics)
    told = grown.remove(recipe().removed)
    grown.adopt(301, told.statistics)
    rebuilt = again.build(recipe())
    again.adopt(301, rebuilt.statistics)
    assert rebuilt.digest == told.digest
    assert len(again._segments()) <= len(grown._segments()) + 1 < 10


def test_a_copy_is_the_same() -> None:
    """A replica that was copied tells what the one tells that it was copied from, and can be changed as that can."""
    one, copy = (Shard("pivoted", token_counter()) for _ in range(2))
    told = one.build(recipe())
    one.adopt(0, told.statistics)
    copied = copy.take(one.copy())
    copy.adopt(0, copied.statistics)
    for first, second in ((told, copied), (one.remove(np.array([1, 700])), copy.remove(np.array([1, 700])))):
        assert (first.digest, first.n_tokens) == (second.digest, second.n_tokens)
        assert first.statistics.norm_sum == second.statistics.norm_sum
