"""Count terms in chunks and sort the counts by term.

Counting works on one block at a time, in cache; sorting on the whole collection. Both sort by radix on 16-bit digits,
which takes the same time on every machine and needs no vector instructions.
"""

from __future__ import annotations

import itertools
import re
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.growing import GrowingArray
from relevance_gen.retrieval.terms import SPELLED_BYTES, Ids, Offsets, Tokens, beginnings, buckets, ragged_ranges

Number = TypeVar("Number", bound=np.number)
Chunks = npt.NDArray[np.uint32]
Counts = npt.NDArray[np.uint32]
Flags = npt.NDArray[np.bool_]

MAX_BLOCK_CHUNKS: Final = 1 << 16
"""Most chunks counted at once: a chunk's number in its block has 16 bits."""


@frozen
class TermCounts:
    """How often each term stands in each chunk of one block.

    Attributes:
        token: number of the first token of that term in that chunk, shape (P,).
        ids: id of the term, shape (P,); equal ids are mostly neighbours.
        chunk: number of the chunk in the block, shape (P,).
        tf: tokens of that term in that chunk, at least 1, shape (P,).
    """

    token: Offsets
    ids: Ids
    chunk: Offsets
    tf: Offsets


def count_terms(ids: Ids, counts: Offsets) -> TermCounts:
    """Count the terms of each chunk of one block.

    For every chunk the result is the same, and in the same order, whatever other chunks share its block.

    Args:
        ids: term id of each token, chunk after chunk, shape (T,).
        counts: tokens of each chunk, at most `MAX_BLOCK_CHUNKS` of them, summing to T.
    """
    bucket = buckets(ids)
    order = np.argsort(bucket, kind="stable")  # radix sort
    chunk_of = np.repeat(np.arange(counts.size, dtype=np.uint64), counts)
    # The bucket holds the 16 bits of the id that the shift drops.
    keys = ((ids << np.uint64(16)) | chunk_of).take(order)
    edges = np.flatnonzero(keys[1:] != keys[:-1]) + 1
    edges = np.concatenate(([0], edges, [ids.size])) if ids.size else np.zeros(1, np.int64)
    token, tf = order.take(edges[:-1]), np.diff(edges)
    chunk = (keys.take(edges[:-1]) & np.uint64(0xFFFF)).view(np.int64)
    found = TermCounts(token, ids.take(token), chunk, tf)
    beside = (chunk[1:] == chunk[:-1]) & ((found.ids[1:] ^ found.ids[:-1]) < np.uint64(1 << 48))
    middle = np.flatnonzero(beside[1:] & beside[:-1]) + 1
    return _join_split_runs(found, middle) if middle.size else found


def _join_split_runs(found: TermCounts, middle: Offsets) -> TermCounts:
    """Join counts of one term in one chunk that other terms of the same bucket stand between.

    Args:
        found: the counts, one for each run of equal tokens.
        middle: numbers of the runs that have one of the same bucket and chunk on either side.
    """
    suspects = np.unique(np.concatenate((middle - 1, middle, middle + 1)))
    order = suspects[np.lexsort((suspects, found.ids[suspects], found.chunk[suspects]))]
    again = (found.ids[order[1:]] == found.ids[order[:-1]]) & (found.chunk[order[1:]] == found.chunk[order[:-1]])
    if not again.any():
        return found
    leader = np.concatenate(([True], ~again))
    tf = found.tf.copy()
    tf[order[leader]] = np.add.reduceat(tf[order], np.flatnonzero(leader))
    dropped = [-1, *np.sort(order[~leader]).tolist(), tf.size]
    return TermCounts(
        _without(found.token, dropped),
        _without(found.ids, dropped),
        _without(found.chunk, dropped),
        _without(tf, dropped),
    )


def _without(values: npt.NDArray[Number], dropped: list[int]) -> npt.NDArray[Number]:
    """Return the values but for those at `dropped`, a few places ascending between -1 and the length."""
    return np.concatenate([values[before + 1 : place] for before, place in itertools.pairwise(dropped)])


@frozen
class Postings:
    """Where each term stands: an inverted index.

    Attributes:
        ids: the vocabulary's ids, ascending, shape (V,).
        first: offset of each term's postings, shape (V + 1,).
        chunk: number of the chunk of each posting, shape (P,).
        tf: tokens of the term in the chunk, shape (P,).
        spelling: spellings of all terms, each ended by a line end; at most the first `SPELLED_BYTES` of each.
        spelling_first: offset of each term's spelling, shape (V + 1,).
        live: whether each chunk is still there, shape (N,); None where all are. Every method passes over chunks that
            are not, and over terms that no other chunk has.
    """

    ids: Ids
    first: Offsets
    chunk: Chunks
    tf: Counts
    spelling: npt.NDArray[np.uint8]
    spelling_first: Offsets
    live: Flags | None = None

    def find(self, term_id: int) -> Offsets:
        """Return the number of a term in the vocabulary, shape (1,), or nothing, shape (0,)."""
        number = int(np.searchsorted(self.ids, np.uint64(term_id)))
        found = number < self.ids.size and self.ids[number] == term_id
        return self._living(np.array([number] if found else [], np.int64))

    def spell(self, numbers: Offsets) -> list[str]:
        """Return the spellings of some terms, by their numbers in the vocabulary."""
        first = self.spelling_first[numbers]
        letters = self.spelling[ragged_ranges(first, self.spelling_first[numbers + 1] - first)]
        return letters.tobytes().decode("utf-8", "replace").split("\n")[:-1]

    def with_prefix(self, term_id: int, prefix: bytes) -> Offsets:
        """Return the numbers of the terms that have the beginning of a term and a prefix, and end in no digit."""
        low, high = np.searchsorted(self.ids, _beginning_bounds(term_id >> 56)).tolist()
        numbers = np.arange(low, high)
        for offset, byte in enumerate(prefix):  # a shorter spelling is told by its line end
            numbers = numbers[self.spelling[self.spelling_first[numbers] + offset] == byte]
        last = self.spelling[self.spelling_first[numbers + 1] - 2]
        return self._living(numbers[(last < ord("0")) | (last > ord("9"))])

    def containing(self, part: bytes) -> Offsets:
        """Return the numbers of the terms whose spelling has `part` in it, ascending."""
        places = [found.start() for found in re.finditer(re.escape(part), self.spelling.data)]
        return self._living(np.unique(np.searchsorted(self.spelling_first, np.array(places, np.int64), "right") - 1))

    def of_terms(self, numbers: Offsets) -> tuple[Chunks, Counts, Offsets]:
        """Return chunk and tf of the postings of some terms, term after term, and how many each term has."""
        first = self.first[numbers]
        counts = self.first[numbers + 1] - first
        at = ragged_ranges(first, counts)
        chunk, tf = self.chunk[at], self.tf[at]
        if self.live is None:
            return chunk, tf, counts
        kept = self.live[chunk]
        owner = np.repeat(np.arange(counts.size), counts)[kept]
        return chunk[kept], tf[kept], np.bincount(owner, minlength=counts.size)

    def living_ids(self) -> Ids:
        """Return the ids of the terms that some chunk still has, ascending."""
        return self.ids if self.live is None else self.ids[self.document_frequency() > 0]

    def df(self, numbers: Offsets) -> Offsets:
        """Return the number of chunks that hold each of some terms."""
        return self.first[numbers + 1] - self.first[numbers] if self.live is None else self.of_terms(numbers)[2]

    def document_frequency(self) -> Offsets:
        """Return the number of chunks that hold each term, shape (V,)."""
        if self.live is None:
            return np.diff(self.first)
        seen = np.concatenate(([0], np.cumsum(self.live[self.chunk])))
        return np.diff(seen[self.first])

    def _living(self, numbers: Offsets) -> Offsets:
        return numbers if self.live is None else numbers[self.df(numbers) > 0]


def _beginning_bounds(beginning: int) -> Ids:
    low = beginning << 56
    return np.array([low, min(low + (1 << 56), (1 << 64) - 1)], np.uint64)


class PostingsBuilder:
    """Collects the counts of block after block.

    Args:
        room: number of postings to expect; there may be more.
        wanted: beginnings of the terms to keep, bool, shape (BEGINNINGS,); None keeps all. A question needs only the
            terms that begin as its own do.
    """

    def __init__(self, room: int, wanted: npt.NDArray[np.bool_] | None = None) -> None:
        self._wanted = None if wanted is None else np.flatnonzero(wanted).astype(np.uint8)
        # The vocabulary of each block, an entry for each of its terms …
        self._ids = GrowingArray(np.uint64, room // 4)
        self._spelled_lengths = GrowingArray(np.int64, room // 4)
        self._spellings = GrowingArray(np.uint8, room)
        # … and its postings, with the number of the term's entry.
        self._entries = GrowingArray(np.uint32, room)
        self._chunks = GrowingArray(np.uint32, room)
        self._tfs = GrowingArray(np.uint32, room)

    def add(self, tokens: Tokens, found: TermCounts, chunk_numbers: Offsets) -> None:
        """Add the counts of one block whose chunks have these numbers in the collection."""
        if self._wanted is not None:
            heads = beginnings(found.ids)  # ascending, as the ids' top 16 bits are
            low = np.searchsorted(heads, self._wanted, "left")
            kept = ragged_ranges(low, np.searchsorted(heads, self._wanted, "right") - low)
            found = TermCounts(found.token[kept], found.ids[kept], found.chunk[kept], found.tf[kept])
        if not found.ids.size:
            return
        new = np.concatenate(([True], found.ids[1:] != found.ids[:-1]))
        token = found.token[new]
        length = np.minimum(tokens.length[token], SPELLED_BYTES)
        letters = np.frombuffer(tokens.folded, np.uint8)
        self._entries.extend((np.cumsum(new) + (len(self._ids) - 1)).astype(np.uint32))
        self._chunks.extend(chunk_numbers.take(found.chunk).astype(np.uint32))
        self._tfs.extend(found.tf.astype(np.uint32))
        self._ids.extend(found.ids[new])
        self._spelled_lengths.extend(length)
        self._spellings.extend(letters.take(ragged_ranges(tokens.start[token], length)))

    def build(self) -> Postings:
        """Sort everything by term; the builder is spent."""
        ids, number, spelling, spelling_first = self._build_vocabulary()
        terms = number.take(self._entries.finish())
        first = np.zeros(ids.size + 1, np.int64)
        np.cumsum(np.bincount(terms, minlength=ids.size), out=first[1:])
        by_term = _order_by_digits(terms, 2 if ids.size > 1 << 16 else 1)
        del terms
        chunk = self._chunks.finish().take(by_term)
        return Postings(ids, first, chunk, self._tfs.finish().take(by_term), spelling, spelling_first)

    def _build_vocabulary(self) -> tuple[Ids, Counts, npt.NDArray[np.uint8], Offsets]:
        """Return the different ids, ascending; the number of each entry's id among them; and their spellings."""
        entry_ids = self._ids.finish()
        order = _order_by_id(entry_ids)
        ids = entry_ids.take(order)
        new = np.concatenate((np.ones(min(1, ids.size), bool), ids[1:] != ids[:-1]))
        number = np.empty(ids.size, np.uint32)
        number[order] = np.cumsum(new) - 1
        return ids[new], number, *self._spell(order[new])

    def _spell(self, entries: Offsets) -> tuple[npt.NDArray[np.uint8], Offsets]:
        """Gather the spellings of some entries, each ended by a line end, and their offsets."""
        length = self._spelled_lengths.finish()
        start = np.cumsum(length) - length
        first = np.zeros(entries.size + 1, np.int64)
        np.cumsum(length[entries] + 1, out=first[1:])
        spelling = np.full(int(first[-1]), ord("\n"), np.uint8)
        letters = self._spellings.finish()
        spelling[ragged_ranges(first[:-1], length[entries])] = letters[ragged_ranges(start[entries], length[entries])]
        return spelling, first


def _order_by_id(ids: Ids) -> Offsets:
    """Sort by id: by as many leading digits as tell the ids apart, mostly two of four."""
    for digits in (2, 3):
        order = _order_by_digits(ids >> np.uint64(64 - 16 * digits), digits)
        kept = ids.take(order)
        if (kept[1:] >= kept[:-1]).all():
            return order
    return _order_by_digits(ids, 4)


def _order_by_digits(values: Ids | Counts, digits: int) -> Offsets:
    """Sort stably by the lowest 16-bit digits, least digit first."""
    order = np.argsort(values.astype(np.uint16), kind="stable")
    for digit in range(1, digits):
        shifted = (values >> values.dtype.type(16 * digit)).astype(np.uint16)
        order = order.take(np.argsort(shifted.take(order), kind="stable"))
    return order
