"""Postings of terms: count the terms of blocks, and collect the counts of blocks or segments.

A block is counted while all of its arrays fit in the cache of a CPU core. The collected counts are
sorted by term once at the end, with a radix sort on 16-bit digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen import arrays
from relevance_gen.arrays import (
    Bytes,
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
"""Maximum number of chunks in a block: the index of a chunk in its block has 16 bits."""
_BATCH_OCCURRENCES: Final = 1 << 18
"""Number of occurrences that are renumbered at once: numpy converts them to indices of twice the
size."""


@frozen
class TermCounts:
    """Number of occurrences of each term in each chunk of one block: P pairs of a term and a chunk.

    Attributes:
        occurrence: index of the first occurrence of the term in the chunk, among the T occurrences
            of the block, shape (P,).
        ids: ids of the terms, shape (P,); equal ids are mostly neighbors.
        chunk: index of the chunk in the block, shape (P,).
        tf: number of occurrences of the term in the chunk, at least 1, shape (P,).
        row_of_occurrence: index of the pair that each of the T occurrences belongs to, shape (T,);
            None if `count_terms` was called without `keep_occurrences`.
    """

    occurrence: Offsets
    ids: Ids
    chunk: Offsets
    tf: Offsets
    row_of_occurrence: Offsets | None = None


def count_terms(
    ids: Ids,
    counts: Offsets,
    *,
    keep_occurrences: bool = False,
) -> TermCounts:
    """Return the number of occurrences of each term in each chunk of one block.

    The returned pairs of a term and a chunk ascend by the top 16 bits of the term's id. The pairs
    of a chunk and their order do not depend on the other chunks of the block.

    Args:
        ids: id of each occurrence's term, chunk after chunk, shape (T,).
        counts: number of occurrences in each chunk, shape (n,), n ≤ `MAX_BLOCK_CHUNKS`; their sum
            is T.
        keep_occurrences: whether the result has `TermCounts.row_of_occurrence`.
    """
    order = np.argsort(buckets(ids), kind="stable")  # a radix sort, because buckets have 16 bits
    chunk_of = np.repeat(np.arange(counts.size, dtype=np.uint64), counts)
    # Keys: the low 48 bits of the id, then the index of the chunk. Sorting by bucket covers the
    # other 16 bits.
    keys = ids << np.uint64(16)
    keys |= chunk_of
    keys = keys.take(order)
    first, tf = arrays.runs(keys)
    occurrence = order.take(first)
    chunk = (keys.take(first) & np.uint64(0xFFFF)).view(np.int64)
    row_of_occurrence = None
    if keep_occurrences:
        row_of_occurrence = np.empty(ids.size, np.int64)
        row_of_occurrence[order] = np.repeat(np.arange(tf.size), tf)
    counted = TermCounts(occurrence, ids.take(occurrence), chunk, tf, row_of_occurrence)
    # A run that lies between two runs of the same bucket and chunk can split the occurrences of one
    # term.
    different_bits = counted.ids[2:] ^ counted.ids[:-2]
    has_same_bucket = different_bits < np.uint64(1 << 48)
    suspects = np.flatnonzero((chunk[2:] == chunk[:-2]) & has_same_bucket) + 1
    return _join_split_runs(counted, suspects) if suspects.size else counted


def _join_split_runs(runs: TermCounts, suspects: Offsets) -> TermCounts:
    """Merge the runs of the same term and chunk, so that each term and chunk has one pair.

    The occurrences were sorted only by the bucket of their ids. A run is a sequence of adjacent
    occurrences of one term in one chunk. If terms of the same bucket alternate in a chunk, one term
    has several runs. Modifies the arrays of `runs`, and returns the merged counts.

    Args:
        runs: counts of the runs.
        suspects: indices of the runs between two runs of the same bucket and chunk; only these runs
            and the runs next to them may need to be merged.
    """
    candidates = arrays.unique(np.concatenate((suspects - 1, suspects, suspects + 1)))
    keys = (candidates, runs.ids[candidates], runs.chunk[candidates])
    order = candidates[np.lexsort(keys)]
    is_repeated = runs.ids[order[1:]] == runs.ids[order[:-1]]
    is_repeated &= runs.chunk[order[1:]] == runs.chunk[order[:-1]]
    if not is_repeated.any():
        return runs
    is_first = np.concatenate(([True], ~is_repeated))
    first_runs = order[is_first]
    tf = runs.tf
    tf[first_runs] = np.add.reduceat(tf[order], np.flatnonzero(is_first))
    mask = np.ones(tf.size, bool)
    mask[order[~is_first]] = False
    row_of_occurrence = runs.row_of_occurrence
    if row_of_occurrence is not None:
        new_index = np.cumsum(mask) - 1
        group = np.cumsum(is_first) - 1  # index in `first_runs` of each run of `order`
        new_index[order] = new_index[first_runs[group]]
        row_of_occurrence = new_index.take(row_of_occurrence)
    return TermCounts(
        occurrence=runs.occurrence[mask],
        ids=runs.ids[mask],
        chunk=runs.chunk[mask],
        tf=tf[mask],
        row_of_occurrence=row_of_occurrence,
    )


@frozen(eq=False)
class PostingsOfTerms:
    """The P postings of a list of terms, term after term, without removed chunks.

    Attributes:
        chunk: ordinal of the chunk of each posting, ascending for each term, shape (P,).
        tf: number of occurrences of the term in the chunk, shape (P,).
        counts: number of postings of each term, in the order of the list.
    """

    chunk: ChunkOrds
    tf: Counts
    counts: list[int]


@frozen(eq=False)
class Postings:
    """Inverted index: the chunks that contain each of V terms.

    All methods skip removed chunks, and terms that only removed chunks contain.

    Attributes:
        lexicon: the terms.
        first: offset of each term's postings, and the number of postings P, shape (V + 1,).
        chunk: ordinal of the chunk of each posting, ascending for each term, shape (P,).
        tf: occurrences of the term in the chunk, shape (P,).
        live: whether each chunk has not been removed, shape (N,); None if no chunk was removed.
    """

    lexicon: Lexicon
    first: Offsets
    chunk: ChunkOrds
    tf: Counts
    live: Flags | None = None

    def of_terms(self, term_ords: Sequence[int]) -> PostingsOfTerms:
        """Return the postings of the terms with these ordinals, term after term."""
        chunks, tfs, counts = [], [], []
        for term_ord in term_ords:
            start, end = int(self.first[term_ord]), int(self.first[term_ord + 1])
            chunks.append(self.chunk[start:end])
            tfs.append(self.tf[start:end])
            counts.append(end - start)
        if len(chunks) == 1:
            chunk, tf = chunks[0], tfs[0]
        else:
            chunk, tf = arrays.concat(chunks, np.uint32), arrays.concat(tfs, np.uint32)
        if self.live is None:
            return PostingsOfTerms(chunk, tf, counts)
        is_live = self.live[chunk]
        term_index = np.repeat(np.arange(len(counts)), counts)[is_live]
        live_counts = np.bincount(term_index, minlength=len(counts)).tolist()
        return PostingsOfTerms(chunk[is_live], tf[is_live], live_counts)

    def df(self, term_ords: Offsets) -> Offsets:
        """Return the number of chunks that contain each of n terms, their document frequency.

        Args:
            term_ords: ordinals of the terms, shape (n,).
        """
        if self.live is None:
            return self.first[term_ords + 1] - self.first[term_ords]
        return np.array(self.of_terms(term_ords.tolist()).counts, np.int64)

    def df_of_all(self) -> Offsets:
        """Return the document frequency of all terms, shape (V,)."""
        if self.live is None:
            return np.diff(self.first)
        return np.diff(arrays.bounds_of(self.live[self.chunk])[self.first])


class PostingsBuilder:
    """Collects the counts of blocks, or the postings of segments, into the postings of one segment.

    Args:
        n_expected: expected number of postings; there may be more.
        prefix_bucket_filter: which prefix buckets to index, shape (N_PREFIX_BUCKETS,): a query
            needs only the buckets of its own terms. None indexes all terms.
    """

    def __init__(
        self,
        n_expected: int,
        prefix_bucket_filter: Flags | None = None,
    ) -> None:
        self._prefix_buckets = None
        if prefix_bucket_filter is not None:
            self._prefix_buckets = np.flatnonzero(prefix_bucket_filter).astype(np.uint8)
        self._lexicon = LexiconBuilder(n_expected // 4)
        self._counts = GrowingArray(np.uint32, n_expected // 4)  # postings of each lexicon entry
        self._chunks = GrowingArray(np.uint32, n_expected)  # entry after entry
        self._tfs = GrowingArray(np.uint32, n_expected)
        # lexicon entry of each occurrence
        self._occurrences = GrowingArray(np.uint32, n_expected)
        self._last_chunk = -1
        self._has_split_chunks = False

    def add(
        self,
        block: Occurrences,
        counts: TermCounts,
        chunk_ords: Offsets,
    ) -> None:
        """Add the counts of one block.

        The pieces of a long chunk are added in order, each as a block with the chunk's ordinal.

        Args:
            block: the occurrences that were counted.
            counts: their counts.
            chunk_ords: ordinal in the segment of each chunk of the block, shape (n,).
        """
        if self._prefix_buckets is not None:
            counts = _filter_counts(counts, self._prefix_buckets)
        if not counts.ids.size:
            return
        self._has_split_chunks |= int(chunk_ords[0]) == self._last_chunk
        self._last_chunk = int(chunk_ords[-1])
        run_first, n_postings = arrays.runs(counts.ids)
        spelled = counts.occurrence[run_first]
        letters = np.frombuffer(block.folded, np.uint8)
        first_entry = self._lexicon.add(
            counts.ids[run_first], letters, block.start[spelled], block.length[spelled]
        )
        self._counts.extend(n_postings)
        if counts.row_of_occurrence is not None:
            entries = np.arange(first_entry, first_entry + run_first.size, dtype=np.uint32)
            self._occurrences.extend(entries.repeat(n_postings).take(counts.row_of_occurrence))
        self._chunks.extend(chunk_ords.take(counts.chunk))
        self._tfs.extend(counts.tf)

    def add_segment(
        self,
        postings: Postings,
        occurrences: TermOrds,
        chunk_ords: Offsets,
    ) -> None:
        """Add the postings of another segment, without the terms that only removed chunks contain.

        Args:
            postings: the postings of the other segment.
            occurrences: for each occurrence in the chunks that are not removed, chunk after chunk,
                the ordinal of its term in the lexicon of the other segment, shape (T,).
            chunk_ords: for each chunk of the other segment, its ordinal in the new segment, shape
                (N,); ignored for removed chunks.
        """
        lexicon = postings.lexicon
        df = postings.df_of_all()
        live_terms = df.nonzero()[0]
        start = lexicon.spelling_first[live_terms]
        n_bytes = lexicon.spelling_first[live_terms + 1] - start - 1
        first_entry = self._lexicon.add(lexicon.ids[live_terms], lexicon.spelling, start, n_bytes)
        self._counts.extend(df[live_terms])
        chunk = postings.chunk
        tf = postings.tf
        if postings.live is not None:
            is_live = postings.live.take(chunk)
            chunk = chunk[is_live]
            tf = tf[is_live]
        self._chunks.extend(chunk_ords.take(chunk))
        self._tfs.extend(tf)
        entries = np.zeros(lexicon.size, np.uint32)
        entries[live_terms] = np.arange(first_entry, first_entry + live_terms.size)
        self._occurrences.extend(entries.take(occurrences))

    def build(self) -> tuple[Postings, TermOrds]:
        """Return the postings sorted by term, and the ordinal of each occurrence's term.

        The ordinals are those of the lexicon of the postings, and the occurrences are in the order
        in which they were added. Counts without `TermCounts.row_of_occurrence` add no occurrences.
        This builder is empty afterwards.
        """
        lexicon, term_ords = self._lexicon.build()
        occurrences = self._occurrences.finish()
        for batch in arrays.batch_slices(occurrences.size, _BATCH_OCCURRENCES):
            occurrences[batch] = term_ords.take(occurrences[batch])
        counts = self._counts.finish().astype(np.int64)
        df = arrays.sum_by(term_ords, counts, lexicon.size).astype(np.int64)
        by_term = arrays.order_by_digits(term_ords, 2 if lexicon.size > 1 << 16 else 1)
        del term_ords
        # Indices of the postings, entry after entry in the order of the terms, shape (P,).
        first = arrays.starts_of(counts).take(by_term)
        order = arrays.ragged_ranges(first, counts.take(by_term))
        del by_term, first
        chunk = self._chunks.finish().take(order)
        tf = self._tfs.finish().take(order)
        del order
        if self._has_split_chunks:
            # Pieces of one chunk have a posting each: add these up.
            term_ord = np.arange(df.size).repeat(df)
            is_first = arrays.run_starts(term_ord) | arrays.run_starts(chunk)
            df = np.diff(arrays.bounds_of(is_first)[arrays.bounds_of(df)])
            tf = np.add.reduceat(tf, is_first.nonzero()[0])
            chunk = chunk[is_first]
        return Postings(lexicon, arrays.bounds_of(df), chunk, tf), occurrences


def _filter_counts(counts: TermCounts, bucket_list: Bytes) -> TermCounts:
    """Return only the counts of the terms whose ids are in one of the prefix buckets.

    The result has no `row_of_occurrence`.

    Args:
        counts: counts whose prefix buckets ascend, as `count_terms` returns them.
        bucket_list: the prefix buckets to keep, ascending.
    """
    rows, _ = arrays.find_all(prefix_buckets(counts.ids), bucket_list)
    return TermCounts(
        counts.occurrence[rows],
        counts.ids[rows],
        counts.chunk[rows],
        counts.tf[rows],
    )
