"""Make a segment of chunks, block by block, or of other segments, so that an index that grows has few of them."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np

from relevance_gen.arrays import (
    Counts,
    Flags,
    Ids,
    Offsets,
    find_all,
    inverse,
    starts_of,
    sum_by,
)
from relevance_gen.index.array_layout import CHUNK_ATTRIBUTES
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.formulas import saturate
from relevance_gen.index.passages import Passages
from relevance_gen.index.postings import (
    MAX_BLOCK_CHUNKS,
    PostingsBuilder,
    TermCounts,
    count_terms,
)
from relevance_gen.index.segment import Segment, Votes
from relevance_gen.progress import Progress
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.text import blocks as portions
from relevance_gen.text.blocks import batch_by_size, lengths, pieces
from relevance_gen.text.stop_words import ENGLISH_MARKERS, OTHER_MARKERS
from relevance_gen.text.term_hashes import buckets
from relevance_gen.text.tokenization import Occurrences, tokenize

_HASH_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_CHARS_PER_OCCURRENCE: Final = 4
"""Most texts have at least so many characters for each occurrence of a term."""
_TIER: Final = 4
"""A segment is merged with the one before it unless that is more than so many times its size."""
_N_RANGES: Final = 16
"""The counts of a long chunk's pieces are added up by so many ranges of ids in turn, to bound the memory."""

Merge: TypeAlias = Callable[[Sequence[Segment]], Segment]
"""Makes one segment of several, as `merge` does."""


def build(
    chunks: Chunks,
    positions: Offsets,
    *,
    keep_occurrences: bool = True,
    wanted: Flags | None = None,
    progress: Progress | None = None,
) -> Segment:
    """Make a segment of chunks at some positions of the collection, ascending, shape (N,).

    One-shot search keeps no occurrences: it needs those of a few chunks only. Postings are kept of the terms of
    `wanted` beginnings, shape (BEGINNINGS,), or all. Progress is told as (chunks done, all chunks) after every block.
    """
    texts = chunks.indexed_texts
    expected = int(lengths(texts).sum()) // _CHARS_PER_OCCURRENCE
    builder = PostingsBuilder(expected, wanted, keep_occurrences=keep_occurrences)
    squares = np.zeros(len(texts))
    english_margin = np.zeros(len(texts), np.int32)
    hashes = np.zeros(len(texts), np.uint64)
    n_occurrences = np.zeros(len(texts), np.int64)
    is_ascii = np.fromiter(map(str.isascii, texts), bool, len(texts))
    done = 0
    parts: list[tuple[Ids, Counts]] = []
    for numbers, some, is_last in _blocks(texts, is_ascii):
        raise_if_cancelled()
        block = tokenize(some)
        found = count_terms(block.ids, block.counts, keep_occurrences=keep_occurrences)
        builder.add(block, found, numbers)
        english_margin[numbers] += _votes(found, numbers.size)
        hashes[numbers] += _sum_ids(block)
        n_occurrences[numbers] += block.counts
        if is_last and not parts:
            squares[numbers] = sum_by(found.chunk, np.square(saturate(found.tf)), numbers.size)
        else:
            parts.append((found.ids, found.tf.astype(np.uint32)))
            if is_last:
                squares[numbers] = _square_sum(parts)
                parts.clear()
        done += numbers.size if is_last else 0
        if progress is not None:
            progress(done, len(texts))
    postings, occurrences = builder.build()
    title_hashes, title_sizes = _titles(chunks)
    hashes *= _HASH_MULTIPLIER
    return Segment(
        positions=positions,
        chunks=chunks,
        postings=postings,
        occurrences=occurrences,
        first_occurrence=_first_occurrences(n_occurrences, is_ascii),
        n_occurrences=n_occurrences,
        norms=np.sqrt(squares),
        english_margin=english_margin,
        hashes=hashes ^ (hashes >> np.uint64(32)),
        title_hashes=title_hashes,
        title_sizes=title_sizes,
    )


def _titles(chunks: Chunks) -> tuple[Ids, Counts]:
    """Return a hash of each chunk's title, 0 for none, and the number of occurrences in it, shape (N,) each."""
    hashes, sizes = np.zeros(len(chunks.texts), np.uint64), np.zeros(len(chunks.texts), np.uint32)
    if chunks.titles:
        number_of = {
            title: number for number, title in enumerate(dict.fromkeys(chunks.titles.values()))
        }
        titles = [*number_of]
        counts = np.zeros(len(titles), np.int64)
        for numbers, some, _ in _blocks(
            titles, np.fromiter(map(str.isascii, titles), bool, len(titles))
        ):
            counts[numbers] += tokenize(some).counts
        hashed = [
            hashlib.blake2b(title.encode("utf-8", "surrogatepass"), digest_size=8)
            for title in titles
        ]
        number = np.array([number_of[title] for title in chunks.titles.values()])
        titled = np.array([*chunks.titles])
        hashes[titled] = np.array(
            [max(int.from_bytes(one.digest(), "little"), 1) for one in hashed], np.uint64
        )[number]
        sizes[titled] = counts[number]
    return hashes, sizes


def _first_occurrences(n_occurrences: Offsets, is_ascii: Flags) -> Offsets:
    """Return where each chunk's occurrences begin: those of ASCII texts stand before those of all others."""
    order = np.argsort(~is_ascii, kind="stable")
    first = np.empty(order.size, np.int64)
    first[order] = starts_of(n_occurrences[order])
    return first


def _sum_ids(block: Occurrences) -> Ids:
    """Return the sum of the ids of each chunk's words, which is the same in any order."""
    sums = np.zeros(block.counts.size, np.uint64)
    some = np.flatnonzero(block.counts)
    if some.size:
        sums[some] = np.add.reduceat(block.ids, starts_of(block.counts)[some])
    return sums


def _square_sum(parts: Sequence[tuple[Ids, Counts]]) -> float:
    """Return the sum of the squares of a chunk's saturated counts, added in the order of the chunk counted whole."""
    bounds = [
        np.searchsorted(ids >> np.uint64(60), np.arange(_N_RANGES + 1)).tolist() for ids, _ in parts
    ]
    total = 0.0
    for low in range(_N_RANGES):
        slices = [slice(bound[low], bound[low + 1]) for bound in bounds]
        ids = np.concatenate([ids[some] for (ids, _), some in zip(parts, slices, strict=True)])
        tf = np.concatenate([tf[some] for (_, tf), some in zip(parts, slices, strict=True)])
        unique, first, which = np.unique(ids, return_index=True, return_inverse=True)
        in_order = np.lexsort((first, buckets(unique)))
        values = np.square(saturate(sum_by(which, tf, unique.size)[in_order]))
        total = float(sum_by(np.zeros(values.size + 1, np.int64), np.append(total, values), 1)[0])
    return total


def _blocks(texts: Sequence[str], is_ascii: Flags) -> Iterator[tuple[Offsets, list[str], bool]]:
    """Yield what to cut together: ASCII with ASCII, which needs no folding, and not too much.

    Numbers of chunks and the text of each, or one number and a piece of a long text; and whether that ends them.
    """
    n_chars = lengths(texts)
    for numbers, block_chars in (
        (np.flatnonzero(is_ascii), portions.BLOCK_CHARS),
        (
            np.flatnonzero(~is_ascii),
            portions.BLOCK_CHARS // 2,
        ),  # two bytes to a character, or three
    ):
        for start, end in batch_by_size(n_chars[numbers], block_chars, MAX_BLOCK_CHUNKS):
            some = numbers[start:end]
            if some.size > 1:
                yield some, [texts[number] for number in some.tolist()], True
                continue
            following = pieces(texts[some[0]], block_chars)
            piece = next(following)
            for after in following:
                yield some, [piece], False
                piece = after
            yield some, [piece], True


def _votes(found: TermCounts, n_chunks: int) -> Votes:
    """Return the frequent words of English in each chunk of a block, less those of other languages."""
    markers, vote = _markers()
    marked, n = find_all(buckets(found.ids), buckets(markers))  # they ascend by these
    cast = found.tf[marked] * np.repeat(vote, n) * (found.ids[marked] == np.repeat(markers, n))
    return sum_by(found.chunk[marked], cast, n_chunks).astype(np.int32)


@functools.cache
def _markers() -> tuple[Ids, Offsets]:
    """Return the ids of words that tell languages, and the vote of each: 1 for English, -1 for any other."""
    ids = tokenize([*ENGLISH_MARKERS, *OTHER_MARKERS], toneless=False).ids
    return ids, np.repeat([1, -1], [len(ENGLISH_MARKERS), len(OTHER_MARKERS)])


# ── Merging ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def merge(segments: Sequence[Segment]) -> Segment:
    """Return one segment of the chunks of several, without those taken out. Their occurrences must be kept."""
    if len(segments) == 1 and segments[0].postings.live is None:
        return segments[0]
    parts = [(segment, np.flatnonzero(segment.live)) for segment in segments]
    order = np.argsort(
        np.concatenate([segment.positions[kept] for segment, kept in parts]), kind="stable"
    )
    new_number = inverse(order)
    builder = PostingsBuilder(
        sum(segment.postings.chunk.size for segment in segments), keep_occurrences=True
    )
    done = 0
    for segment, kept in parts:
        numbers = np.zeros(segment.size, np.int64)
        numbers[kept] = new_number[done : done + kept.size]
        done += kept.size
        builder.add_segment(segment.postings, segment.occurrences_of(kept), numbers)
    postings, occurrences = builder.build()
    of_chunks = {
        name: np.concatenate([getattr(segment, name)[kept] for segment, kept in parts])[order]
        for name in CHUNK_ATTRIBUTES
    }
    of_chunks["first_occurrence"] = starts_of(of_chunks["n_occurrences"][new_number])[order]
    passages = [
        segment.passages.take(kept) for segment, kept in parts if segment.passages is not None
    ]
    return Segment(
        chunks=Chunks.concat([segment.chunks.take(kept.tolist()) for segment, kept in parts]).take(
            order.tolist()
        ),
        postings=postings,
        occurrences=occurrences,
        passages=Passages.concat(passages).take(order)
        if passages and len(passages) == len(parts)
        else None,
        **of_chunks,
    )


def merge_tiered(segments: list[Segment], merge: Merge = merge) -> list[Segment]:
    """Merge the last segments until each is much smaller than the one before it.

    So there are few of them, and a chunk is copied only a few times in its life, however it was added.
    """
    while (
        len(segments) > 1
        and segments[-2].statistics.n_chunks <= _TIER * segments[-1].statistics.n_chunks
    ):
        segments[-2:] = [merge(segments[-2:])]
    return segments


def remove_chunks(
    segments: Sequence[Segment], positions: Offsets, merge: Merge = merge
) -> tuple[list[Segment], list[str]]:
    """Take the chunks at some positions out of segments; return the segments that are left, and the chunks' texts.

    A segment of which most is gone is made anew of what is left; of segments of which nothing is left one stays.
    """
    left, texts = [], []
    for segment in segments:
        numbers = segment.find(positions)
        numbers = numbers[numbers >= 0]
        if numbers.size:
            texts += [segment.chunks.texts[number] for number in numbers.tolist()]
            segment = segment.without(numbers)
        if 2 * segment.statistics.n_chunks < segment.size:
            segment = merge([segment])
        left.append(segment)
    return [segment for segment in left if segment.size] or left[:1], texts
