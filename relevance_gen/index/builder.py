"""Build a segment from chunks, block by block, and merge segments.

Merging keeps the number of segments of a growing index low.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import (
    Counts,
    Flags,
    Floats,
    Ids,
    Offsets,
    bounds_of,
    find,
    find_all,
    inverse,
    starts_of,
    sum_by,
    unique,
)
from relevance_gen.index import formulas
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
from relevance_gen.index.segment import Segment, chunk_hashes
from relevance_gen.progress import Progress
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.text import blocks
from relevance_gen.text.stop_words import ENGLISH_MARKERS, OTHER_MARKERS
from relevance_gen.text.term_hashes import buckets
from relevance_gen.text.tokenization import Occurrences, tokenize

_MIN_CHARS_PER_OCCURRENCE: Final = 4
"""Minimum characters per term occurrence in most texts, to estimate the number of postings."""
_TIER_RATIO: Final = 4
"""A segment is merged with the segment before it, unless the latter is more than this number of
times as large."""
_N_ID_RANGES: Final = 16
"""Number of ranges of ids into which the counts of a long chunk's pieces are divided: counts are
added range by range, to bound the memory."""


@frozen
class _Block:
    """Texts that are tokenized together: of n complete chunks, or one piece of a long chunk.

    Attributes:
        chunk_ords: ordinals of the chunks, ascending, shape (n,).
        texts: the text of each chunk, or the piece.
        is_last: whether no other piece of the last chunk follows.
    """

    chunk_ords: Offsets
    texts: list[str]
    is_last: bool = True


@frozen
class _PieceCounts:
    """Ids of terms of a piece of a chunk, and the number of occurrences of each."""

    ids: Ids
    tf: Counts


def build(
    chunks: Chunks,
    positions: Offsets,
    *,
    keep_occurrences: bool = True,
    prefix_bucket_filter: Flags | None = None,
    progress: Progress | None = None,
) -> Segment:
    """Build and return a segment of chunks.

    Args:
        chunks: the chunks, N of them, none blank.
        positions: position of each chunk in its index, ascending, shape (N,).
        keep_occurrences: whether to store the term of each occurrence. One-shot search, which
            builds a segment for a single query, does not store it: it tokenizes the few candidates
            again.
        prefix_bucket_filter: for each prefix bucket (the top 8 bits of a term's id), whether its
            terms get postings, shape (N_PREFIX_BUCKETS,); None for all.
        progress: called after each block with the number of chunks done and the number of all
            chunks.
    """
    texts = chunks.indexed_texts
    n_chunks = len(texts)
    n_expected = int(blocks.lengths(texts).sum()) // _MIN_CHARS_PER_OCCURRENCE
    builder = PostingsBuilder(n_expected, prefix_bucket_filter)
    norms = np.zeros(n_chunks)
    english_margin = np.zeros(n_chunks, np.int32)
    hashes = np.zeros(n_chunks, np.uint64)
    n_occurrences = np.zeros(n_chunks, np.int64)
    first_occurrence = np.zeros(n_chunks, np.int64)
    n_tokens = 0
    n_done = 0
    # The counted pieces of a long chunk, without numbers and with only numbers.
    pieces: list[_PieceCounts] = []
    number_pieces: list[_PieceCounts] = []
    for block in _blocks(texts):
        raise_if_cancelled()
        chunk_ords = block.chunk_ords
        tokens = tokenize(block.texts)
        counts = count_terms(tokens.ids, tokens.counts, keep_occurrences=keep_occurrences)
        builder.add(tokens, counts, chunk_ords)
        english_margin[chunk_ords] += _english_margin(counts, chunk_ords.size)
        hashes[chunk_ords] += _sum_ids(tokens)
        n_occurrences[chunk_ords] += tokens.counts
        if not pieces:
            first_occurrence[chunk_ords] = n_tokens + starts_of(tokens.counts)
        n_tokens += tokens.ids.size
        numbers = _find_all_terms(counts, tokens.number_ids())
        if block.is_last and not pieces:
            squares = np.square(saturate(counts.tf))
            number_squares = sum_by(counts.chunk[numbers], squares[numbers], chunk_ords.size)
            squares[numbers] = 0.0
            word_squares = sum_by(counts.chunk, squares, chunk_ords.size)
            norms[chunk_ords] = formulas.norms(word_squares, number_squares)
        else:
            tf = counts.tf.astype(np.uint32)
            word_ids = np.delete(counts.ids, numbers)
            pieces.append(_PieceCounts(word_ids, np.delete(tf, numbers)))
            number_pieces.append(_PieceCounts(counts.ids[numbers], tf[numbers]))
            if block.is_last:
                word_squares = _square_sum(pieces)
                norms[chunk_ords] = formulas.norms(word_squares, _square_sum(number_pieces))
                pieces.clear()
                number_pieces.clear()
        if block.is_last:
            n_done += chunk_ords.size
        if progress is not None:
            progress(n_done, n_chunks)
    postings, occurrences = builder.build()
    title_hashes, title_sizes = _title_arrays(chunks)
    return Segment(
        positions=positions,
        chunks=chunks,
        postings=postings,
        occurrences=occurrences if keep_occurrences else None,
        first_occurrence=first_occurrence,
        n_occurrences=n_occurrences,
        norms=norms,
        english_margin=english_margin,
        hashes=chunk_hashes(hashes),
        title_hashes=title_hashes,
        title_sizes=title_sizes,
    )


def _title_arrays(chunks: Chunks) -> tuple[Ids, Counts]:
    """Return a hash of each chunk's title, and the number of occurrences in the title.

    Both arrays have shape (N,) and are 0 for a chunk without a title.
    """
    hashes = np.zeros(len(chunks.texts), np.uint64)
    sizes = np.zeros(len(chunks.texts), np.uint32)
    if not chunks.titles:
        return hashes, sizes
    row_of: dict[str, int] = {}  # row of each distinct title
    rows = [row_of.setdefault(title, len(row_of)) for title in chunks.titles.values()]
    title_sizes = np.zeros(len(row_of), np.int64)
    for block in _blocks([*row_of]):
        title_sizes[block.chunk_ords] += tokenize(block.texts).counts
    title_hashes = np.array([*map(_hash_title, row_of)], np.uint64)
    chunk_ords = [*chunks.titles]
    hashes[chunk_ords] = title_hashes[rows]
    sizes[chunk_ords] = title_sizes[rows]
    return hashes, sizes


def _hash_title(title: str) -> int:
    digest = hashlib.blake2b(title.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return max(int.from_bytes(digest, "little"), 1)


def _sum_ids(tokens: Occurrences) -> Ids:
    """Return the sum modulo 2⁶⁴ of the ids of all term occurrences of each of n texts, shape (n,).

    The hash of a chunk is computed from this sum, so that it does not depend on the terms' order.
    """
    totals = np.zeros(tokens.ids.size + 1, np.uint64)
    np.cumsum(tokens.ids, out=totals[1:])
    return np.diff(totals[bounds_of(tokens.counts)])


def _square_sum(pieces: Sequence[_PieceCounts]) -> Floats:
    """Return the sum of the squares of a long chunk's saturated counts, shape (1,).

    The squares are added in the same order as for a chunk that is counted at once, so that the sum
    is bit-identical for any division of the chunk into pieces.

    Args:
        pieces: the counts of all pieces of the chunk, in order.
    """
    range_starts = np.arange(_N_ID_RANGES + 1)
    bounds = [np.searchsorted(piece.ids >> np.uint64(60), range_starts) for piece in pieces]
    total = np.zeros(1)
    for low in range(_N_ID_RANGES):
        slices = [slice(bound[low], bound[low + 1]) for bound in bounds]
        pairs = list(zip(pieces, slices, strict=True))
        ids = np.concatenate([piece.ids[in_range] for piece, in_range in pairs])
        tf = np.concatenate([piece.tf[in_range] for piece, in_range in pairs])
        unique_ids, first, term_index = np.unique(ids, return_index=True, return_inverse=True)
        order = np.lexsort((first, buckets(unique_ids)))
        tf_of_chunk = sum_by(term_index, tf, unique_ids.size)
        squares = np.square(saturate(tf_of_chunk[order]))
        total = np.append(total, squares).cumsum()[-1:]  # adds from first to last
    return total


def _blocks(texts: Sequence[str]) -> Iterator[_Block]:
    """Yield blocks of limited size: first of ASCII texts, which need no folding, then of the rest.

    `texts` has the texts of all chunks.
    """
    is_ascii = np.fromiter(map(str.isascii, texts), bool, len(texts))
    n_chars = blocks.lengths(texts)
    ascii_chars = blocks.BLOCK_CHARS
    other_chars = blocks.BLOCK_CHARS // 2  # other characters have two bytes or three
    groups = (np.flatnonzero(is_ascii), ascii_chars), (np.flatnonzero(~is_ascii), other_chars)
    for chunk_ords, block_chars in groups:
        batches = blocks.batch_by_size(n_chars[chunk_ords], block_chars, MAX_BLOCK_CHUNKS)
        for start, end in batches:
            batch = chunk_ords[start:end]
            batch_texts = [texts[chunk_ord] for chunk_ord in batch.tolist()]
            if batch.size > 1:
                yield _Block(batch, batch_texts)
                continue
            pieces = blocks.pieces(batch_texts[0], block_chars)
            piece = next(pieces)
            for next_piece in pieces:
                yield _Block(batch, [piece], is_last=False)
                piece = next_piece
            yield _Block(batch, [piece])


def _find_all_terms(counts: TermCounts, ids: Ids) -> Offsets:
    """Return the indices in `counts` of the counts whose terms have any of the given ids.

    `ids` must ascend.
    """
    rows, _ = find_all(buckets(counts.ids), unique(buckets(ids)))
    return rows.compress(find(ids, counts.ids.take(rows)) >= 0)


def _english_margin(
    counts: TermCounts,
    n_chunks: int,
) -> npt.NDArray[np.int32]:
    """Return the English margin of each chunk of a block, shape (n_chunks,).

    The margin is the number of occurrences of English marker words minus the number of occurrences
    of other languages' marker words.

    Args:
        counts: the counts of the block, as `count_terms` returns them.
        n_chunks: number of chunks of the block.
    """
    marker_ids = _marker_ids()
    sign = np.repeat([1, -1], [len(ENGLISH_MARKERS), len(OTHER_MARKERS)])
    # The counts ascend by bucket, so their markers are found by bucket; other terms of the bucket
    # count 0.
    rows, n_rows = find_all(buckets(counts.ids), buckets(marker_ids))
    is_marker = counts.ids[rows] == np.repeat(marker_ids, n_rows)
    margin = counts.tf[rows] * np.repeat(sign, n_rows) * is_marker
    return sum_by(counts.chunk[rows], margin, n_chunks).astype(np.int32)


@functools.cache
def _marker_ids() -> Ids:
    """Return the ids of the marker words: English words, then words of other languages."""
    return tokenize([*ENGLISH_MARKERS, *OTHER_MARKERS], toneless=False).ids


# ── Merging ───────────────────────────────────────────────────────────────────────────────────────


def merge(segments: Sequence[Segment]) -> Segment:
    """Return one segment with the chunks of several segments, ordered by position.

    Removed chunks are left out. A single segment without removed chunks is returned unchanged;
    otherwise each segment must store occurrences.
    """
    if len(segments) == 1 and segments[0].postings.live is None:
        return segments[0]
    live_ords = [np.flatnonzero(segment.live) for segment in segments]
    parts = list(zip(segments, live_ords, strict=True))
    positions = np.concatenate([segment.positions[chunk_ords] for segment, chunk_ords in parts])
    order = np.argsort(positions, kind="stable")
    new_ords = inverse(order)
    n_postings = sum(segment.postings.chunk.size for segment in segments)
    builder = PostingsBuilder(n_postings)
    n_done = 0
    for segment, chunk_ords in parts:
        new_ord_of = np.zeros(segment.size, np.int64)
        new_ord_of[chunk_ords] = new_ords[n_done : n_done + chunk_ords.size]
        n_done += chunk_ords.size
        builder.add_segment(segment.postings, segment.occurrences_of(chunk_ords), new_ord_of)
    postings, occurrences = builder.build()
    arrays = {}
    for name in CHUNK_ATTRIBUTES:
        values = [getattr(segment, name)[chunk_ords] for segment, chunk_ords in parts]
        arrays[name] = np.concatenate(values)[order]
    # The occurrences were added segment after segment.
    n_occurrences = arrays["n_occurrences"][new_ords]
    arrays["first_occurrence"] = starts_of(n_occurrences)[order]
    chunks = Chunks.concat(
        segment.chunks.take(chunk_ords.tolist()) for segment, chunk_ords in parts
    )
    return Segment(
        chunks=chunks.take(order.tolist()),
        postings=postings,
        occurrences=occurrences,
        passages=_merge_passages(segments, live_ords, order),
        **arrays,
    )


def _merge_passages(
    segments: Sequence[Segment],
    live_ords: Sequence[Offsets],
    order: Offsets,
) -> Passages | None:
    """Return the passages of the merged chunks; None if a segment lacks passages.

    Args:
        segments: the segments that are merged.
        live_ords: ordinals of the chunks of each segment that are not removed.
        order: for each merged chunk, its index among these chunks, segment after segment.
    """
    parts = []
    for segment, chunk_ords in zip(segments, live_ords, strict=True):
        if segment.passages is None:
            return None
        parts.append(segment.passages.take(chunk_ords))
    return Passages.concat(parts).take(order)


def merge_tiered(segments: list[Segment]) -> list[Segment]:
    """Merge the last two segments repeatedly, so that the number of segments stays small.

    Merging ends if one segment is left, or if the segment before the last has more than 4 times as
    many chunks as the last. Each chunk is therefore copied only a few times. Modifies and returns
    the list.
    """
    while len(segments) > 1:
        last_size = segments[-1].statistics.n_chunks
        if segments[-2].statistics.n_chunks > _TIER_RATIO * last_size:
            break
        segments[-2:] = [merge(segments[-2:])]
    return segments


@frozen
class Removal:
    """Result of removing chunks.

    Attributes:
        segments: the segments without the removed chunks.
        texts: texts of the chunks that were removed.
    """

    segments: list[Segment]
    texts: list[str]


def remove_chunks(segments: Sequence[Segment], positions: Offsets) -> Removal:
    """Return the segments without some chunks, and the texts of these chunks.

    A segment in which fewer than half of the chunks remain is rebuilt without the removed chunks.
    Empty segments are dropped, except one if all are empty.

    Args:
        segments: the segments of an index.
        positions: positions in the index of the chunks to remove; positions without a chunk are
            ignored.
    """
    remaining = []
    texts = []
    for segment in segments:
        chunk_ords = segment.find(positions)
        chunk_ords = chunk_ords[chunk_ords >= 0]
        remaining_segment = segment
        if chunk_ords.size:
            texts += [segment.chunks.texts[chunk_ord] for chunk_ord in chunk_ords.tolist()]
            remaining_segment = segment.without(chunk_ords)
        if 2 * remaining_segment.statistics.n_chunks < remaining_segment.size:
            remaining_segment = merge([remaining_segment])
        remaining.append(remaining_segment)
    non_empty = [segment for segment in remaining if segment.size]
    return Removal(non_empty or remaining[:1], texts)
