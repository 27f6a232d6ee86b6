"""Hold where each term stands; count that in a block of chunks, and collect it from blocks or other segments.

A block is counted while all of its arrays are in the core's cache. What is collected is sorted by term at the end, all
at once, by radix on 16-bit digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen import arrays
from relevance_gen.arrays import (
    ChunkOrds,
    Counts,
    Flags,
    GrowingArray,
    Ids,
    Offsets,
    TermOrds,
)
from relevance_gen.index.lexicon import Lexicon, LexiconBuilder
from relevance_gen.text.term_hashes import buckets, prefix_buckets
from relevance_gen.text.tokenization import Occurrences

MAX_BLOCK_CHUNKS: Final = 1 << 16
"""Most chunks counted at once: a chunk's number in its block has 16 bits."""
_STEP: Final = 1 << 18
"""Numbers looked up together, which numpy makes into indices of twice their size."""


@frozen
class TermCounts:
    """How often each term stands in each chunk of one block."""

    occurrence: Offsets  # number of the first occurrence of that term in that chunk, shape (P,)
    ids: Ids  # id of the term, shape (P,); equal ids are mostly neighbours
    chunk: Offsets  # number of the chunk in the block, shape (P,)
    tf: Offsets  # occurrences of that term in that chunk, at least 1, shape (P,)
    # number of the count that each occurrence went into, shape (T,); None unless it was asked for
    of_occurrence: Offsets | None = None


def count_terms(ids: Ids, counts: Offsets, *, keep_occurrences: bool = False) -> TermCounts:
    """Count the terms of each chunk of one block, of `MAX_BLOCK_CHUNKS` at most.

    For every chunk the result is the same, and in the same order, whatever other chunks share its block. The ids are
    those of the occurrences of chunk after chunk, shape (T,), and the counts sum to T.
    """
    bucket = buckets(ids)
    order = np.argsort(bucket, kind="stable")  # radix sort
    chunk_of = np.repeat(np.arange(counts.size, dtype=np.uint64), counts)
    # The bucket holds the 16 bits of the id that the shift drops.
    keys = ids << np.uint64(16)
    keys |= chunk_of
    keys = keys.take(order)
    first, tf = arrays.runs(keys)
    occurrence = order.take(first)
    chunk = (keys.take(first) & np.uint64(0xFFFF)).view(np.int64)
    of_occurrence = None
    if keep_occurrences:
        of_occurrence = np.empty(ids.size, np.int64)
        of_occurrence[order] = np.repeat(np.arange(tf.size), tf)
    found = TermCounts(occurrence, ids.take(occurrence), chunk, tf, of_occurrence)
    between = (chunk[2:] == chunk[:-2]) & ((found.ids[2:] ^ found.ids[:-2]) < np.uint64(1 << 48))
    middle = np.flatnonzero(between) + 1
    return _join_split_runs(found, middle) if middle.size else found


def _join_split_runs(found: TermCounts, middle: Offsets) -> TermCounts:
    """Join counts of one term in one chunk that other terms of the same bucket stand between; their arrays are used up.

    Counts are those of runs of equal occurrences, and `middle` of those between two of the same bucket and chunk.
    """
    suspects = arrays.unique(np.concatenate((middle - 1, middle, middle + 1)))
    order = suspects[np.lexsort((suspects, found.ids[suspects], found.chunk[suspects]))]
    again = (found.ids[order[1:]] == found.ids[order[:-1]]) & (
        found.chunk[order[1:]] == found.chunk[order[:-1]]
    )
    if not again.any():
        return found
    leads = np.concatenate(([True], ~again))
    tf = found.tf
    tf[order[leads]] = np.add.reduceat(tf[order], np.flatnonzero(leads))
    kept = np.ones(tf.size, bool)
    kept[order[~leads]] = False
    of_occurrence = found.of_occurrence
    if of_occurrence is not None:
        number = np.cumsum(kept) - 1
        number[order] = number[
            order[np.maximum.accumulate(np.where(leads, np.arange(order.size), 0))]
        ]
        of_occurrence = number.take(of_occurrence)
    return TermCounts(
        found.occurrence[kept], found.ids[kept], found.chunk[kept], tf[kept], of_occurrence
    )


@frozen(eq=False)
class Postings:
    """Where each term stands: an inverted index."""

    lexicon: Lexicon  # the terms
    first: Offsets  # offset of each term's postings, shape (V + 1,)
    chunk: ChunkOrds  # number of the chunk of each posting, ascending for each term, shape (P,)
    tf: Counts  # occurrences of the term in the chunk, shape (P,)
    # whether each chunk is still there, shape (N,); None where all are. Every method passes over chunks that are not,
    # and over terms that no other chunk has
    live: Flags | None = None

    def of_terms(self, numbers: Sequence[int]) -> tuple[ChunkOrds, Counts, list[int]]:
        """Return chunk and tf of the postings of some terms, term after term, and how many each term has."""
        first = self.first
        spans = [slice(int(first[number]), int(first[number + 1])) for number in numbers]
        if len(spans) == 1:
            chunk, tf = self.chunk[spans[0]], self.tf[spans[0]]
        else:
            chunk = np.concatenate([self.chunk[:0], *[self.chunk[span] for span in spans]])
            tf = np.concatenate([self.tf[:0], *[self.tf[span] for span in spans]])
        counts = [span.stop - span.start for span in spans]
        if self.live is None:
            return chunk, tf, counts
        kept = self.live[chunk]
        owner = np.repeat(np.arange(len(counts)), counts)[kept]
        return chunk[kept], tf[kept], np.bincount(owner, minlength=len(counts)).tolist()

    def df(self, numbers: Offsets) -> Offsets:
        """Return the number of chunks that hold each of some terms."""
        if self.live is None:
            return self.first[numbers + 1] - self.first[numbers]
        return np.array(self.of_terms(numbers.tolist())[2], np.int64)

    def document_frequency(self) -> Offsets:
        """Return the number of chunks that hold each term, shape (V,)."""
        if self.live is None:
            return np.diff(self.first)
        return np.diff(arrays.bounds_of(self.live[self.chunk])[self.first])


class PostingsBuilder:
    """Collects the counts of block after block, or the postings of several segments; `room` is how many to expect.

    Terms of the `wanted` beginnings are kept, bool, shape (BEGINNINGS,), or all: a question needs only those that begin
    as its own do. To keep which term each occurrence is of, all terms must be wanted.
    """

    def __init__(
        self, room: int, wanted: Flags | None = None, *, keep_occurrences: bool = False
    ) -> None:
        self._wanted = None if wanted is None else np.flatnonzero(wanted).astype(np.uint8)
        self._lexicon = LexiconBuilder(room // 4)
        # How many postings each entry of the lexicon has, and these, entry after entry.
        self._counts = GrowingArray(np.uint32, room // 4)
        self._chunks = GrowingArray(np.uint32, room)
        self._tfs = GrowingArray(np.uint32, room)
        # The entry of each occurrence.
        self._occurrences = GrowingArray(np.uint32, room) if keep_occurrences else None
        self._last_chunk = -1
        self._has_pieces = False

    def add(self, block: Occurrences, counts: TermCounts, chunk_numbers: Offsets) -> None:
        """Add the counts of one block, told the numbers that its chunks have in the segment.

        The pieces of one chunk are added one by one, each with that chunk's number, and no other in between.
        """
        if self._wanted is not None:
            kept, _ = arrays.find_all(
                prefix_buckets(counts.ids), self._wanted
            )  # they ascend, as the ids' top 16 bits do
            counts = TermCounts(
                counts.occurrence[kept], counts.ids[kept], counts.chunk[kept], counts.tf[kept]
            )
        if not counts.ids.size:
            return
        self._has_pieces |= int(chunk_numbers[0]) == self._last_chunk
        self._last_chunk = int(chunk_numbers[-1])
        heads, n_postings = arrays.runs(counts.ids)
        spelled = counts.occurrence[heads]
        letters = np.frombuffer(block.folded, np.uint8)
        first = self._lexicon.add(
            counts.ids[heads], letters, block.start[spelled], block.length[spelled]
        )
        self._counts.extend(n_postings)
        if self._occurrences is not None and counts.of_occurrence is not None:
            entries = np.arange(first, first + heads.size, dtype=np.uint32).repeat(n_postings)
            self._occurrences.extend(entries.take(counts.of_occurrence))
        self._chunks.extend(chunk_numbers.take(counts.chunk))
        self._tfs.extend(counts.tf)

    def add_segment(
        self, postings: Postings, occurrences: TermOrds, chunk_numbers: Offsets
    ) -> None:
        """Add what is known of another segment, but for the terms that no chunk has any more.

        Its chunks get new numbers, any where they were taken out; its occurrences are the numbers of their terms.
        """
        lexicon = postings.lexicon
        df = postings.document_frequency()
        kept = df.nonzero()[0]
        start = lexicon.spelling_first[kept]
        n_bytes = lexicon.spelling_first[kept + 1] - start - 1
        first = self._lexicon.add(lexicon.ids[kept], lexicon.spelling, start, n_bytes)
        self._counts.extend(df[kept])
        chunk, tf = postings.chunk, postings.tf
        if postings.live is not None:
            is_live = postings.live.take(chunk)
            chunk, tf = chunk[is_live], tf[is_live]
        self._chunks.extend(chunk_numbers.take(chunk))
        self._tfs.extend(tf)
        if self._occurrences is not None:
            entries = np.zeros(lexicon.size, np.uint32)
            entries[kept] = np.arange(first, first + kept.size)
            self._occurrences.extend(entries.take(occurrences))

    def build(self) -> tuple[Postings, TermOrds | None]:
        """Sort everything by term, and return also the number of each kept occurrence's term; the builder is spent."""
        lexicon, number = self._lexicon.build()
        occurrences = (
            None if self._occurrences is None else _renumbered(self._occurrences.finish(), number)
        )
        counts = self._counts.finish().astype(np.int64)
        df = arrays.sum_by(number, counts, lexicon.size).astype(np.int64)
        by_term = arrays.order_by_digits(number, 2 if lexicon.size > 1 << 16 else 1)
        del number
        in_order = arrays.ragged_ranges(
            arrays.starts_of(counts).take(by_term), counts.take(by_term)
        )
        del by_term
        chunk, tf = self._chunks.finish().take(in_order), self._tfs.finish().take(in_order)
        del in_order
        if self._has_pieces:
            leads = arrays.run_starts(np.arange(df.size).repeat(df)) | arrays.run_starts(chunk)
            df = np.diff(arrays.bounds_of(leads)[arrays.bounds_of(df)])
            tf, chunk = np.add.reduceat(tf, leads.nonzero()[0]), chunk[leads]
        return Postings(lexicon, arrays.bounds_of(df), chunk, tf), occurrences


def _renumbered(values: TermOrds, number: TermOrds) -> TermOrds:
    """Replace each value by its number, in its place; a step at a time, so that no array of indices is made of all."""
    for some in arrays.batch_slices(values.size, _STEP):
        values[some] = number.take(values[some])
    return values
