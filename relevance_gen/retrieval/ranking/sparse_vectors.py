"""Sparse count vectors of a few chunks, and of a sample of all chunks.

They count word prefixes or character n-grams.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen import arrays
from relevance_gen.arrays import Floats, Hashes, Offsets
from relevance_gen.index.segment import POSITION_GAP, TokenSequences

MAX_CHUNKS: Final = 1 << 8
"""Maximum number of chunks that are compared with each other; there are more than a few dozen only
with ties."""
SAMPLE_SIZE: Final = 128
"""Number of chunks in the sample."""
_CHUNK_BITS: Final = 8
_CHUNK_MASK: Final = MAX_CHUNKS - 1
_MAX_DIMENSIONS_32_BIT: Final = 1 << 32 - _CHUNK_BITS
"""Up to this number of dimensions, dimension and chunk fit into 32 bits, which are sorted in half
the time."""
_BATCH_ENTRIES: Final = 1 << 18
"""Entries that are looked up or counted together; bounds the memory for long chunks."""

_Keys: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""A dimension and a chunk, combined to one integer."""


@frozen(eq=False)
class _KeyCounts:
    """Distinct keys, and the number of entries with each key."""

    keys: _Keys  # ascending, shape (P,)
    tf: Offsets  # shape (P,)

    @classmethod
    def merge(cls, batches: list[_KeyCounts]) -> _KeyCounts:
        """Return the counts of several batches together; the list is emptied to free memory."""
        keys = np.concatenate([batch.keys for batch in batches])
        tf = np.concatenate([batch.tf for batch in batches])
        batches.clear()
        order = keys.argsort(kind="stable")
        keys, tf = keys.take(order), tf.take(order)
        del order
        first, _ = arrays.runs(keys)
        return cls(keys.take(first), np.add.reduceat(tf, first))


@frozen(eq=False)
class SparseVector:
    """The entries of n sparse vectors, one vector for each chunk.

    A dimension of a vector is a word prefix or a character n-gram, and its value is the number of
    its occurrences in the chunk. There is one entry for each occurrence.
    """

    entries: Hashes  # dimension of each entry, chunk after chunk; 0 is not counted. Shape (T,)
    counts: Offsets  # number of entries of each chunk, shape (n,), with sum T
    # hash of each dimension, ascending, the first is 0; None if the entries are hashes
    hashes: Hashes | None = None

    def __reduce__(self) -> tuple[type[SparseVector], tuple[Hashes, Offsets]]:
        """Pickle the hash of each entry's dimension instead of its index.

        The array of the hashes of all dimensions, which can have millions of elements, is then not
        pickled.
        """
        return SparseVector, (_to_hashes(self.hashes, self.entries), self.counts)

    @classmethod
    def of_prefixes(cls, tokens: TokenSequences) -> SparseVector:
        """Return the word prefixes of chunks.

        Stop words, and the gaps between chunks, are not counted.
        """
        term_ords, prefix_ords = tokens.terms[POSITION_GAP:], tokens.lexicon.prefix_ords
        entries = np.empty(term_ords.size, np.uint32)
        for start in range(0, term_ords.size, _BATCH_ENTRIES):
            batch = slice(start, start + _BATCH_ENTRIES)
            entries[batch] = prefix_ords.take(term_ords[batch])
        return cls(entries, tokens.counts + POSITION_GAP, tokens.lexicon.prefixes)

    @classmethod
    def merge(cls, parts: Sequence[SparseVector], rows: Sequence[Offsets]) -> SparseVector:
        """Return the vectors of the chunks of several segments together.

        The arguments are as for `Features.merge`.
        """
        hashes = parts[0].hashes
        if any(part.hashes is not hashes for part in parts):
            hashes = None
            parts = [cls(_to_hashes(part.hashes, part.entries), part.counts) for part in parts]
        entries = np.concatenate([part.entries for part in parts])
        counts = np.concatenate([part.counts for part in parts])
        return cls(entries, counts, hashes).take(np.argsort(np.concatenate(rows)))

    def take(self, rows: Offsets) -> SparseVector:
        """Return the vectors of the chunks at the given rows."""
        starts, counts = arrays.starts_of(self.counts)[rows], self.counts[rows]
        return SparseVector(self.entries[arrays.ragged_ranges(starts, counts)], counts, self.hashes)

    def tally(self) -> Tally:
        """Return how often each chunk has each dimension."""
        ends = self.counts.cumsum()
        batch_counts = []
        for start in range(0, max(self.entries.size, 1), _BATCH_ENTRIES):
            batch_counts.append(self._count(slice(start, start + _BATCH_ENTRIES), ends))
        counts = batch_counts.pop() if len(batch_counts) == 1 else _KeyCounts.merge(batch_counts)
        keys, tf = counts.keys, counts.tf
        dimensions: _Keys = np.right_shift(keys, keys.dtype.type(_CHUNK_BITS))
        first, df = arrays.runs(dimensions)
        return Tally(
            n_chunks=ends.size,
            hashes_of=self.hashes,
            dimensions=dimensions.take(first),
            df=df,
            dimension=np.arange(df.size).repeat(df),
            chunk=(keys & keys.dtype.type(_CHUNK_MASK)).astype(np.intp),
            tf=tf,
        )

    def _count(self, batch: slice, ends: Offsets) -> _KeyCounts:
        """Return the distinct keys of a batch of entries with their counts.

        A key is a dimension and a chunk, combined to one integer: the chunk is in the lowest
        `_CHUNK_BITS` bits. Keys of dimension 0, which stands for entries that are not counted, such
        as stop words, are left out.

        Args:
            batch: slice of the entries.
            ends: the index after the last entry of each chunk, shape (n,).
        """
        has_few = self.hashes is not None and self.hashes.size <= _MAX_DIMENSIONS_32_BIT
        dtype: type[np.unsignedinteger[Any]] = np.uint32 if has_few else np.uint64
        keys: _Keys = self.entries[batch].astype(dtype)
        counts = self.counts
        if keys.size < self.entries.size:
            batch_ends = np.clip(ends - batch.start, 0, keys.size)
            counts = np.diff(batch_ends, prepend=0)
        keys <<= dtype(_CHUNK_BITS)
        keys |= np.arange(counts.size, dtype=dtype).repeat(counts)
        # Without dimension 0: half of the words of a text are stop words.
        keys = keys.compress(keys >= dtype(1 << _CHUNK_BITS))  # faster than indexing by flags
        keys.sort()
        first, tf = arrays.runs(keys)
        return _KeyCounts(keys.take(first), tf)


def _to_hashes(hashes: Hashes | None, dimensions: _Keys) -> _Keys:
    return dimensions if hashes is None else hashes.take(dimensions)


@frozen(eq=False)
class Tally:
    """The number of occurrences of each dimension in each of n chunks.

    There are P counts, one for each pair of a dimension and a chunk in which it occurs, sorted by
    dimension and then by chunk.
    """

    n_chunks: int  # number of chunks, n
    hashes_of: Hashes | None  # hash of each dimension of the vectors; None if dimensions are hashes
    dimensions: _Keys  # the distinct dimensions that occur in a chunk, ascending, shape (D,)
    df: Offsets  # number of chunks that have each, shape (D,)
    # for each count the index of its dimension in `dimensions`, ascending, shape (P,)
    dimension: Offsets
    chunk: Offsets  # for each count its chunk, in [0, n), shape (P,)
    tf: Offsets  # how often that chunk has that dimension, shape (P,)

    @property
    def hashes(self) -> _Keys:
        """Hashes of the distinct dimensions, shape (D,)."""
        return _to_hashes(self.hashes_of, self.dimensions)

    def norms(self, weight: Floats) -> Floats:
        """Return the Euclidean length of each chunk's vector of weights, shape (n,).

        `weight`: for each of the P pairs of a dimension and a chunk, the weight of the dimension in
        the chunk, in the order of `tf`, shape (P,).
        """
        return np.sqrt(np.bincount(self.chunk, weight * weight, self.n_chunks))


@frozen(eq=False)
class Sample:
    """Number of chunks of a sample that have each dimension.

    The sample consists of the `SAMPLE_SIZE` chunks with the smallest hashes of their words: the
    same chunks in any order of the collection, and for any division into segments.
    """

    size: int  # number of chunks, at most `SAMPLE_SIZE`
    hashes: Hashes  # hash of each dimension, ascending, shape (D,)
    df: npt.NDArray[np.uint8]  # number of chunks that have each, shape (D,)

    @classmethod
    def of(cls, vectors: SparseVector) -> Sample:
        """Return the number of sample chunks with each dimension, from their vectors."""
        tally = vectors.tally()
        if tally.hashes_of is None:
            return cls(tally.n_chunks, tally.dimensions, tally.df.astype(np.uint8))
        df = np.zeros(tally.hashes_of.size, np.uint8)
        df[tally.dimensions] = tally.df
        return cls(tally.n_chunks, tally.hashes_of, df)

    def idf(self, tally: Tally) -> Floats:
        """Return ``ln(1 + S / max(df, 1))`` for each dimension of a tally, shape (D,).

        df is the number of chunks of the sample that have the dimension, S the size of the sample.
        """
        if tally.hashes_of is self.hashes:
            return sample_idf(self.size).take(self.df.take(tally.dimensions))
        index = arrays.find(self.hashes, tally.hashes)
        df = np.zeros(index.size, np.uint8)
        df[index >= 0] = self.df.take(index[index >= 0])
        return sample_idf(self.size).take(df)


@functools.lru_cache(maxsize=MAX_CHUNKS)
def sample_idf(n: int) -> Floats:
    """Return ``ln(1 + n / max(df, 1))`` for each df from 0 to n, at index df; shape (n + 1,).

    n is the number of chunks of a sample, and df the number of these that have a dimension.
    """
    return np.log1p(n / np.maximum(np.arange(n + 1), 1))
