"""Count terms in chunks and sort the counts by term.

Counting works on one block at a time, in cache; sorting on the whole collection. Both sort by radix on 16-bit digits,
which takes the same time on every machine and needs no vector instructions. They stand in one long file because they
share that sort, and the layout of what is counted.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.arrays import (
    ChunkNumbers,
    Counts,
    Flags,
    GrowingArray,
    Ids,
    Number,
    Offsets,
    TermNumbers,
    different,
    ragged_ranges,
)
from relevance_gen.retrieval.segment.lexicon import Lexicon, lexicon_of
from relevance_gen.retrieval.text.terms import SPELLED_BYTES, Occurrences, beginnings, buckets

_STEP: Final = 1 << 18
"""Numbers looked up together, which numpy makes into indices of twice their size."""
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
    edge = np.ones(ids.size + 1, bool)
    np.not_equal(keys[1:], keys[:-1], out=edge[1:-1])
    edges = np.flatnonzero(edge)
    occurrence, tf = order.take(edges[:-1]), np.diff(edges)
    chunk = (keys.take(edges[:-1]) & np.uint64(0xFFFF)).view(np.int64)
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
    joined = np.sort(order[~leads])
    of_occurrence = found.of_occurrence
    if of_occurrence is not None:
        number = np.arange(tf.size)
        number[order] = order[np.maximum.accumulate(np.where(leads, np.arange(order.size), 0))]
        of_occurrence = (number - np.searchsorted(joined, number)).take(of_occurrence)
    dropped = [-1, *joined.tolist(), tf.size]
    return TermCounts(
        _without(found.occurrence, dropped),
        _without(found.ids, dropped),
        _without(found.chunk, dropped),
        _without(tf, dropped),
        of_occurrence,
    )


def _without(values: npt.NDArray[Number], dropped: list[int]) -> npt.NDArray[Number]:
    """Move the values up over those at `dropped`, a few places ascending between -1 and the length."""
    for n_dropped, (before, place) in enumerate(itertools.pairwise(dropped)):
        values[before + 1 - n_dropped : place - n_dropped] = values[before + 1 : place]
    return values[: values.size - len(dropped) + 2]


@frozen(eq=False)
class Postings:
    """Where each term stands: an inverted index.

    Attributes:
        lexicon: the terms.
        first: offset of each term's postings, shape (V + 1,).
        chunk: number of the chunk of each posting, ascending for each term, shape (P,).
        tf: occurrences of the term in the chunk, shape (P,).
        live: whether each chunk is still there, shape (N,); None where all are. Every method passes over chunks that
            are not, and over terms that no other chunk has.
    """

    lexicon: Lexicon
    first: Offsets
    chunk: ChunkNumbers
    tf: Counts
    live: Flags | None = None

    def of_terms(self, numbers: Sequence[int]) -> tuple[ChunkNumbers, Counts, list[int]]:
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

    def living_ids(self) -> Ids:
        """Return the ids of the terms that some chunk still has, ascending."""
        ids = self.lexicon.ids
        return ids if self.live is None else ids[self.document_frequency() > 0]

    def df(self, numbers: Offsets) -> Offsets:
        """Return the number of chunks that hold each of some terms."""
        if self.live is None:
            return self.first[numbers + 1] - self.first[numbers]
        return np.array(self.of_terms(numbers.tolist())[2], np.int64)

    def document_frequency(self) -> Offsets:
        """Return the number of chunks that hold each term, shape (V,)."""
        if self.live is None:
            return np.diff(self.first)
        seen = np.concatenate(([0], np.cumsum(self.live[self.chunk])))
        return np.diff(seen[self.first])


class PostingsBuilder:
    """Collects the counts of block after block.

    Args:
        room: number of postings to expect; there may be more.
        wanted: beginnings of the terms to keep, bool, shape (BEGINNINGS,); None keeps all. A question needs only the
            terms that begin as its own do.
        keep_occurrences: whether to keep which term each occurrence is; then all terms must be wanted.
    """

    def __init__(
        self, room: int, wanted: npt.NDArray[np.bool_] | None = None, *, keep_occurrences: bool = False
    ) -> None:
        self._wanted = None if wanted is None else np.flatnonzero(wanted).astype(np.uint8)
        # The vocabulary of each block, an entry for each of its terms …
        self._ids = GrowingArray(np.uint64, room // 4)
        self._spelled_lengths = GrowingArray(np.uint8, room // 4)
        self._spellings = GrowingArray(np.uint8, room)
        # … and its postings, with the number of the term's entry.
        self._entries = GrowingArray(np.uint32, room)
        self._chunks = GrowingArray(np.uint32, room)
        self._tfs = GrowingArray(np.uint32, room)
        self._occurrences = GrowingArray(np.uint32, room) if keep_occurrences else None
        self._last_chunk = -1
        self._has_pieces = False

    def add(self, occurrences: Occurrences, found: TermCounts, chunk_numbers: Offsets) -> None:
        """Add the counts of one block.

        Args:
            occurrences: the block.
            found: its counts.
            chunk_numbers: numbers of its chunks in the collection. The pieces of one chunk are added one by one, each
                with that chunk's number, and no other in between.
        """
        if self._wanted is not None:
            heads = beginnings(found.ids)  # ascending, as the ids' top 16 bits are
            low = np.searchsorted(heads, self._wanted, "left")
            kept = ragged_ranges(low, np.searchsorted(heads, self._wanted, "right") - low)
            found = TermCounts(found.occurrence[kept], found.ids[kept], found.chunk[kept], found.tf[kept])
        if not found.ids.size:
            return
        self._has_pieces |= int(chunk_numbers[0]) == self._last_chunk
        self._last_chunk = int(chunk_numbers[-1])
        new = np.concatenate(([True], found.ids[1:] != found.ids[:-1]))
        occurrence = found.occurrence[new]
        length = np.minimum(occurrences.length[occurrence], SPELLED_BYTES)
        letters = np.frombuffer(occurrences.folded, np.uint8)
        entries = (np.cumsum(new) + (len(self._ids) - 1)).astype(np.uint32)
        self._entries.extend(entries)
        if self._occurrences is not None and found.of_occurrence is not None:
            self._occurrences.extend(entries.take(found.of_occurrence))
        self._chunks.extend(chunk_numbers.take(found.chunk).astype(np.uint32))
        self._tfs.extend(found.tf.astype(np.uint32))
        self._ids.extend(found.ids[new])
        self._spelled_lengths.extend(length.astype(np.uint8))
        self._spellings.extend(letters.take(ragged_ranges(occurrences.start[occurrence], length)))

    def build(self) -> tuple[Postings, TermNumbers | None]:
        """Sort everything by term; the builder is spent.

        Returns:
            The postings; and if occurrences are kept, the number in the vocabulary of every occurrence, shape (T,).
        """
        lexicon, number = self._build_vocabulary()
        occurrences = None if self._occurrences is None else _renumbered(self._occurrences.finish(), number)
        terms = _renumbered(self._entries.finish(), number)
        del number
        by_term = _order_by_digits(terms, 2 if lexicon.size > 1 << 16 else 1)
        chunk = self._chunks.finish().take(by_term)
        tf = self._tfs.finish().take(by_term)
        if self._has_pieces:
            terms = terms.take(by_term)
        del by_term
        if self._has_pieces:
            leads = np.ones(terms.size, bool)
            leads[1:] = (terms[1:] != terms[:-1]) | (chunk[1:] != chunk[:-1])
            tf = np.add.reduceat(tf, np.flatnonzero(leads)) if tf.size else tf
            terms, chunk = terms[leads], chunk[leads]
        first = np.zeros(lexicon.size + 1, np.int64)
        step = max(_STEP, lexicon.size)
        for low in range(0, terms.size, step):
            first[1:] += np.bincount(terms[low : low + step], minlength=lexicon.size)
        np.cumsum(first, out=first)
        return Postings(lexicon, first, chunk, tf), occurrences

    def _build_vocabulary(self) -> tuple[Lexicon, TermNumbers]:
        """Return the different words, and the number of each entry's word among them."""
        entry_ids = self._ids.finish()
        order = _order_by_id(entry_ids)
        ids = entry_ids.take(order)
        del entry_ids
        new = np.concatenate((np.ones(min(1, ids.size), bool), ids[1:] != ids[:-1]))
        number = np.empty(ids.size, np.uint32)
        number[order] = np.cumsum(new, dtype=np.uint32) - np.uint32(1)
        entries = order[new]
        del order
        length = self._spelled_lengths.finish()
        start = np.cumsum(length, dtype=np.int64)
        start -= length
        words = lexicon_of(ids[new], self._spellings.finish(), start[entries], length[entries].astype(np.int64))
        return words, number


def _renumbered(values: TermNumbers, number: TermNumbers) -> TermNumbers:
    """Replace each value by its number, in its place; a step at a time, so that no array of indices is made of all."""
    for low in range(0, values.size, _STEP):
        values[low : low + _STEP] = number.take(values[low : low + _STEP])
    return values


def _order_by_id(ids: Ids) -> TermNumbers:
    """Sort by id: by as many leading digits as tell the ids apart, mostly two of four."""
    for digits in (2, 3):
        order = _order_by_digits(ids, digits, 64 - 16 * digits)
        kept = ids.take(order)
        if (kept[1:] >= kept[:-1]).all():
            return order
    return _order_by_digits(ids, 4)


def _order_by_digits(values: Ids | Counts, digits: int, shift: int = 0) -> TermNumbers:
    """Sort stably by some 16-bit digits from bit `shift` on, least digit first."""
    order = np.argsort(_digit(values, shift), kind="stable").astype(np.uint32)
    for digit in range(1, digits):
        order = order.take(np.argsort(_digit(values, 16 * digit + shift).take(order), kind="stable"))
    return order


def _digit(values: Ids | Counts, shift: int) -> npt.NDArray[np.uint16]:
    return (values >> values.dtype.type(shift)).astype(np.uint16)
