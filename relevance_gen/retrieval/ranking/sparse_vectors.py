"""Count what stands in each of a few chunks, and in a sample of all: words' beginnings, or letters in a row."""

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
"""Most chunks compared with each other; only ties make them more than a few dozen."""
SAMPLE_SIZE: Final = 128
_CHUNK_BITS: Final = 8
_CHUNK_MASK: Final = MAX_CHUNKS - 1
_MOST_SMALL: Final = 1 << 32 - _CHUNK_BITS
"""So many features can be told, with a chunk's number, in 32 bits, which sort in half the time."""
_STEP: Final = 1 << 18
"""Features looked up or counted together: it bounds the memory for long chunks."""

_Keys: TypeAlias = npt.NDArray[np.unsignedinteger[Any]]
"""A feature's number and a chunk's, as one number."""


@frozen(eq=False)
class SparseVector:
    """What stands in each of some chunks."""

    features: Hashes  # hashes, or numbers of hashes in `names`, chunk after chunk; 0 does not count. Shape (T,)
    counts: Offsets  # how many each chunk has, shape (n,), summing to T
    names: Hashes | None = (
        None  # hashes, ascending; the first is 0. None where the features are hashes themselves
    )

    def __reduce__(self) -> tuple[type[SparseVector], tuple[Hashes, Offsets]]:
        """Leave the names out of a pickle: those of a whole segment may be millions."""
        return SparseVector, (_hashes(self.names, self.features), self.counts)

    @classmethod
    def of_words(cls, reading: TokenSequences) -> SparseVector:
        """Return the beginnings of the words that were read; function words, and places of no word, do not count."""
        words, numbers = reading.terms[POSITION_GAP:], reading.lexicon.prefix_ords
        features = arrays.concat(
            (numbers.take(words[some]) for some in arrays.batch_slices(words.size, _STEP)),
            np.uint32,
        )
        return cls(features, reading.counts + POSITION_GAP, reading.lexicon.prefixes)

    @classmethod
    def merge(cls, bags: Sequence[SparseVector], places: Sequence[Offsets]) -> SparseVector:
        """Return the bag of several segments' chunks; `places` are those that each segment's chunks take in it."""
        names = bags[0].names
        if all(bag.names is names for bag in bags):
            features = np.concatenate([bag.features for bag in bags])
        else:
            names, features = (
                None,
                np.concatenate([_hashes(bag.names, bag.features) for bag in bags]),
            )
        whole = cls(features, np.concatenate([bag.counts for bag in bags]), names)
        return whole.take(np.argsort(np.concatenate(places)))

    def take(self, kept: Offsets) -> SparseVector:
        """Return the bag of some of the chunks."""
        first, counts = arrays.starts_of(self.counts)[kept], self.counts[kept]
        return SparseVector(self.features[arrays.ragged_ranges(first, counts)], counts, self.names)

    def tally(self) -> Tally:
        """Count how often each chunk has each feature."""
        ends = self.counts.cumsum()
        counts = [
            self._count(some, ends)
            for some in arrays.batch_slices(max(self.features.size, 1), _STEP)
        ]
        key, tf = counts[0]
        if len(counts) > 1:
            key, tf = (np.concatenate(parts) for parts in zip(*counts, strict=True))
            del counts
            order = key.argsort(kind="stable")
            key, tf = key.take(order), tf.take(order)
            del order
            first, _ = arrays.runs(key)
            key, tf = key.take(first), np.add.reduceat(tf, first)
        feature: _Keys = np.right_shift(key, key.dtype.type(_CHUNK_BITS))
        first, df = arrays.runs(feature)
        place = np.arange(df.size).repeat(df)
        chunk = (key & key.dtype.type(_CHUNK_MASK)).astype(np.intp)
        return Tally(ends.size, self.names, feature.take(first), df, place, chunk, tf)

    def _count(self, some: slice, ends: Offsets) -> tuple[_Keys, Offsets]:
        """Count some features: by feature and chunk as one number, ascending, and how often each stands there.

        Each chunk's features end at `ends`.
        """
        is_small = self.names is not None and self.names.size <= _MOST_SMALL
        kind: type[np.unsignedinteger[Any]] = np.uint32 if is_small else np.uint64
        key: _Keys = self.features[some].astype(kind)
        counts = self.counts
        if key.size < self.features.size:
            counts = np.diff(np.clip(ends - some.start, 0, key.size), prepend=0)
        key <<= kind(_CHUNK_BITS)
        key |= np.arange(counts.size, dtype=kind).repeat(counts)
        key = key.compress(
            key >= kind(1 << _CHUNK_BITS)
        )  # half of the words of a text are function words
        has_few_names = self.names is not None and self.names.size <= 1 << 16
        key = key.take(
            arrays.order_by_digits(key, 1 if has_few_names else 2, _CHUNK_BITS)
        )  # chunks are in order already
        first, tf = arrays.runs(key)
        return key.take(first), tf


def _hashes(names: Hashes | None, features: _Keys) -> _Keys:
    return features if names is None else names.take(features)


@frozen(eq=False)
class Tally:
    """How often each of some chunks has each feature: by feature, then by chunk."""

    n_chunks: int  # number of chunks, n
    names: Hashes | None  # those of the bag
    features: _Keys  # the different features, ascending, shape (F,)
    df: Offsets  # number of chunks that have each, shape (F,)
    place: Offsets  # place among these of each count, ascending, shape (P,)
    chunk: Offsets  # number of each count's chunk, in [0, n), shape (P,)
    tf: Offsets  # how often that chunk has that feature, shape (P,)

    @property
    def hashes(self) -> _Keys:
        """Hashes of the features, shape (F,)."""
        return _hashes(self.names, self.features)

    def norms(self, value: Floats) -> Floats:
        """Return the Euclidean length of each chunk's values, shape (n,)."""
        return np.sqrt(np.bincount(self.chunk, value * value, self.n_chunks))


@frozen(eq=False)
class Sample:
    """How many chunks of a sample have each feature.

    The sample are the `SAMPLE_SIZE` chunks with the smallest hashes of their words: the same ones in whatever order the
    chunks stand and however they are cut into segments. Of S chunks, `df` have each feature; `names` ascend.
    """

    size: int
    names: Hashes
    df: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, bag: SparseVector) -> Sample:
        """Count the chunks of a bag, of at most `SAMPLE_SIZE`."""
        tally = bag.tally()
        if tally.names is None:
            return cls(tally.n_chunks, tally.features, tally.df.astype(np.uint8))
        df = np.zeros(tally.names.size, np.uint8)
        df[tally.features] = tally.df
        return cls(tally.n_chunks, tally.names, df)

    def idf(self, tally: Tally) -> Floats:
        """Return ``ln(1 + S / max(df, 1))`` for each feature of a tally."""
        if tally.names is self.names:
            return rarities(self.size).take(self.df.take(tally.features))
        at = arrays.find(self.names, tally.hashes)
        df = np.zeros(at.size, np.uint8)
        df[at >= 0] = self.df.take(at[at >= 0])
        return rarities(self.size).take(df)


@functools.lru_cache(maxsize=MAX_CHUNKS)
def rarities(n: int) -> Floats:
    """Return ``ln(1 + n / max(df, 1))`` for every df, shape (n + 1,)."""
    return np.log1p(n / np.maximum(np.arange(n + 1), 1))
