"""Count the terms of one block of chunks, while all of its arrays are in the core's cache."""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.retrieval.arrays import Ids, Offsets, different, runs
from relevance_gen.retrieval.text.ids import buckets

MAX_BLOCK_CHUNKS: Final = 1 << 16
"""Most chunks counted at once: a chunk's number in its block has 16 bits."""


@frozen
class TermCounts:
    """How often each term stands in each chunk of one block.

    Attributes:
        occurrence: number of the first occurrence of that term in that chunk, shape (P,).
        ids: id of the term, shape (P,); equal ids are mostly neighbours.
        chunk: number of the chunk in the block, shape (P,).
        tf: occurrences of that term in that chunk, at least 1, shape (P,).
        of_occurrence: number of the count that each occurrence went into, shape (T,); None unless it was asked for.
    """

    occurrence: Offsets
    ids: Ids
    chunk: Offsets
    tf: Offsets
    of_occurrence: Offsets | None = None


def count_terms(ids: Ids, counts: Offsets, *, keep_occurrences: bool = False) -> TermCounts:
    """Count the terms of each chunk of one block.

    For every chunk the result is the same, and in the same order, whatever other chunks share its block.

    Args:
        ids: term id of each occurrence, chunk after chunk, shape (T,).
        counts: occurrences of each chunk, at most `MAX_BLOCK_CHUNKS` of them, summing to T.
        keep_occurrences: whether to tell which count each occurrence went into.
    """
    bucket = buckets(ids)
    order = np.argsort(bucket, kind="stable")  # radix sort
    chunk_of = np.repeat(np.arange(counts.size, dtype=np.uint64), counts)
    # The bucket holds the 16 bits of the id that the shift drops.
    keys = ids << np.uint64(16)
    keys |= chunk_of
    keys = keys.take(order)
    first, tf = runs(keys)
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
    """Join counts of one term in one chunk that other terms of the same bucket stand between.

    Args:
        found: the counts, one for each run of equal occurrences; its arrays are used up.
        middle: numbers of the runs that have one of the same bucket and chunk on either side.
    """
    suspects = different(np.concatenate((middle - 1, middle, middle + 1)))
    order = suspects[np.lexsort((suspects, found.ids[suspects], found.chunk[suspects]))]
    again = (found.ids[order[1:]] == found.ids[order[:-1]]) & (found.chunk[order[1:]] == found.chunk[order[:-1]])
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
        number[order] = number[order[np.maximum.accumulate(np.where(leads, np.arange(order.size), 0))]]
        of_occurrence = number.take(of_occurrence)
    return TermCounts(found.occurrence[kept], found.ids[kept], found.chunk[kept], tf[kept], of_occurrence)
