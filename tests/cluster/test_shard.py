"""A shard keeps few segments, however often something was added to it, is copied as it is, and can be cut."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.cluster import parts
from relevance_gen.cluster.parts import Product, Recipe, ShardFile, make
from relevance_gen.cluster.runs import NO_POSITIONS, PositionRuns
from relevance_gen.cluster.shard import Contribution, Shard
from relevance_gen.index import array_layout as layout
from relevance_gen.index import storage
from relevance_gen.index.array_file import padded
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.progress import Progress
from relevance_gen.text.token_counting import TokenCounter, token_counter
from tests.cluster.shared import texts
from tests.profiles import costly


class Texts:
    """A part of chunks that are at hand."""

    n_chars = 0

    def __init__(self, chunks: list[Any]) -> None:
        self._chunks = read_chunks(chunks)

    def make(
        self, counter: TokenCounter, progress: Progress | None, removed: PositionRuns = NO_POSITIONS
    ) -> Product:
        """Make those searchable that were not removed."""
        return make([self._chunks], counter, progress, removed)


def recipe(n: int = 500, n_added: int = 300) -> Recipe:
    made = Recipe.of(Texts(texts(n)))
    for number, text in enumerate(texts(n_added, seed=1)):
        made = made.with_part(Texts([text]), n + number)
    return made.without(np.arange(0, n, 7))


@pytest.mark.parametrize("most_in_memory", [0, 1 << 22])
def test_a_shard_of_many_parts_has_few_segments(
    most_in_memory: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shard that is made again has as few segments as one that was never lost, and the same chunks.

    So it is where segments are merged in files, too.
    """
    monkeypatch.setattr(parts, "_MERGED_POSTINGS", most_in_memory)
    grown, again = (Shard("pivoted", token_counter()) for _ in range(2))
    first, *others = recipe().parts
    told = grown.build(Recipe.of(*first))
    for epoch, (part, position) in enumerate(others):
        grown.adopt(epoch, told.statistics)
        told = grown.add(part, position)
    grown.adopt(300, told.statistics)
    told = grown.remove(np.arange(0, 500, 7))
    grown.adopt(301, told.statistics)
    rebuilt = again.build(recipe())
    again.adopt(301, rebuilt.statistics)
    assert rebuilt.digest == told.digest
    assert len(again._segments()) <= len(grown._segments()) + 1 < 10


@costly
@given(st.integers(1, 400_000))
def test_a_copy_is_the_same(step: int) -> None:
    """A replica that was copied, however it was sent, tells what the other tells, and can be changed as that can."""
    one, told = made(recipe(90, 10))
    sizes = one.copy()
    total = sum(map(padded, sizes))
    sent = b"".join(one.piece(start, start + step) for start in range(0, total, step))
    assert len(sent) == total
    one._segments()[0].lengths  # noqa: B018 remembered from now on, and so it would be in a second pickle
    assert one.copy() == sizes
    assert one.piece(0, total) == sent
    copy = Shard("pivoted", token_counter())
    copied = copy.take(np.frombuffer(sent, np.uint8), sizes)
    copy.adopt(0, copied.statistics)
    for first, second in (
        (told, copied),
        (one.remove(np.array([1, 97])), copy.remove(np.array([1, 97]))),
    ):
        assert (first.digest, first.n_tokens) == (second.digest, second.n_tokens)
        assert first.statistics.norm_sum == second.statistics.norm_sum
    one.adopt(1, told.statistics)
    assert one.piece(0, total) == b""


def test_a_mapped_shard_is_copied_as_it_lies_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text of a mapped segment is read to copy it, and the copy has texts, titles and metadata, JSON or not."""
    monkeypatch.setattr(parts, "_BLOCK_BYTES", 1000)
    day = datetime.date(2026, 1, 2)
    chunks = [
        {"text": text, "title": "Cats", "metadata": {"day": day, "page": 1}} for text in texts(20)
    ] + texts(20)
    one, told = made(Recipe.of(Texts(chunks)).without(np.array([3, 30])))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(storage, "_bytes_at", None)
        sizes = one.copy()
    assert sizes[0] < sum(sizes) / 2
    copy = Shard("pivoted", token_counter())
    assert copy.take(np.frombuffer(one.piece(0, 1 << 30), np.uint8), sizes).digest == told.digest
    copy.adopt(0, told.statistics)
    (first,), (second,) = one._segments(), copy._segments()
    assert all(array.flags.aligned for _, array in layout.arrays_of(second))
    assert [*first.chunks] == [*second.chunks]
    assert second.chunks.metadata_of(5) == {"day": day, "page": 1}
    assert second.occurrences is not None
    assert not second.occurrences.flags.owndata


def made(recipe: Recipe) -> tuple[Shard, Contribution]:
    """Return a shard of a recipe, searchable, and what it tells."""
    shard = Shard("pivoted", token_counter())
    told = shard.build(recipe)
    shard.adopt(0, told.statistics)
    return shard, told


@costly
@given(st.lists(st.integers(0, 10**6), min_size=1, max_size=3), st.sampled_from([1, 4000, 1 << 24]))
def test_a_cut_shard_is_two(cuts: list[int], block_bytes: int) -> None:
    """Wherever a shard is cut, again and again, its parts have all that it had, and are what their recipes make."""
    first = recipe(90, 10)
    whole, told = made(first)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(parts, "_BLOCK_BYTES", block_bytes)
        shards = [(whole, told, first)]
        for cut in cuts:
            shard, before, of_both = max(shards, key=lambda one: one[1].n_tokens)
            shards = [one for one in shards if one[0] is not shard]
            positions = np.concatenate([one.positions[one.live] for one in shard._segments()])
            at = int(np.sort(positions)[1 + cut % (positions.size - 1)])
            other = Shard("pivoted", token_counter())
            halves = shard.cut(at, other)
            for half, contribution, of_half in zip(
                (shard, other), halves, of_both.cut(at, 100), strict=True
            ):
                half.adopt(1, before.statistics)
                shards.append((half, contribution, of_half))
        for _, contribution, of_half in shards:
            _, again = made(of_half)
            assert (again.digest, again.n_tokens) == (contribution.digest, contribution.n_tokens)
            assert again.runs.first.tolist() == contribution.runs.first.tolist()
            assert again.statistics.norm_sum == contribution.statistics.norm_sum
    contributions = [contribution for _, contribution, _ in shards]
    assert sum(one.digest for one in contributions) % (1 << 64) == told.digest
    assert sum(one.n_tokens for one in contributions) == told.n_tokens
    assert sum(one.statistics.norm_sum for one in contributions) == told.statistics.norm_sum
    assert sum(len(of_half.parts) for *_, of_half in shards) <= len(first.parts) + len(cuts)


def test_the_middle_has_half_of_the_words() -> None:
    """A shard is cut where about half of its words are, whatever chunks they are in, and one chunk is not cut."""
    for sizes, expected in (
        ([1, 1, 1, 9], 3),
        ([9, 1, 1, 1], 1),
        ([2, 2, 2, 2], 2),
        ([0, 0, 0], 1),
        ([5], None),
    ):
        shard, _ = made(Recipe.of(Texts(["cat " * size or "?" for size in sizes])))
        assert shard.middle() == expected
    shard, told = made(recipe())
    other = Shard("pivoted", token_counter())
    middle = shard.middle()
    assert middle is not None
    assert all(
        told.n_tokens * 0.45 < half.n_tokens < told.n_tokens * 0.55
        for half in shard.cut(middle, other)
    )


def test_most_of_a_file_that_is_gone_is_made_anew(tmp_path: Path) -> None:
    """A shard of a saved file has what its recipe leaves, a little or most of it, and counts the tokens of that."""
    chunks = texts(60, seed=5)
    one, told = made(Recipe.of(Texts(chunks)))
    one.save(str(tmp_path), "a.shard", 60)
    is_whole = []
    saved = Recipe.of(ShardFile(str(tmp_path), "a.shard", told.n_tokens))
    for gone in (np.arange(5, 9), np.arange(3, 55)):
        assert made(saved.without(gone))[1].n_tokens == (removed := one.remove(gone)).n_tokens
        left, told = made(saved.without(gone))
        assert told.digest == removed.digest
        is_whole.append(left._segments()[0].postings.live is None)
    assert is_whole == [False, True]


def test_a_segment_on_one_side_stays_as_it_is() -> None:
    """Only what has chunks of both sides is made again when a shard is cut."""
    shard, _ = made(Recipe.of(Texts(texts(100))))
    told = shard.add(Texts(texts(9, seed=2)), 100)
    shard.adopt(1, told.statistics)
    others = shard._segments()
    rest = Shard("pivoted", token_counter())
    shard.cut(100, rest)
    for one in (shard, rest):
        one.adopt(2, told.statistics)
    assert len(others) == 2
    assert [*map(id, shard._segments()), *map(id, rest._segments())] == [*map(id, others)]


def test_what_is_of_no_use_is_let_go_of(monkeypatch: pytest.MonkeyPatch) -> None:
    """Earlier states and copies stay for a minute, and the last state for good."""
    shard, told = made(Recipe.of(Texts(texts(9))))
    shard.remove(np.array([2]))
    shard.adopt(1, told.statistics)
    sizes = shard.copy()
    shard.let_go()
    assert shard.scorers(0)
    assert shard.piece(0, sizes[0])
    monkeypatch.setattr("relevance_gen.cluster.shard._USED_S", -1.0)
    shard.let_go()
    assert shard.scorers(1)
    assert not shard.piece(0, sizes[0])
    with pytest.raises(KeyError):
        shard.scorers(0)
    assert shard.copy() == sizes
