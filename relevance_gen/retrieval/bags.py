"""Count what stands in each of a few chunks: words' beginnings, or letters in a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.retrieval.segment import Floats, Reading
from relevance_gen.retrieval.terms import Ids, Offsets, ragged_ranges
from relevance_gen.retrieval.vocabulary import Numbers

MAX_CHUNKS: Final = 1 << 8
"""Most chunks compared with each other; only ties make them more than a few dozen."""
_STEP: Final = 1 << 18
"""Features looked up or counted together: it bounds the memory for long chunks."""


@frozen(eq=False)
class Bag:
    """What stands in each of some chunks.

    Attributes:
        features: hashes, chunk after chunk; 0 for what does not count. Shape (T,).
        counts: how many each chunk has, shape (n,), summing to T.
    """

    features: Numbers
    counts: Offsets

    @classmethod
    def of_words(cls, reading: Reading) -> Bag:
        """Return the beginnings of the words that were read; function words, and places of no word, have none."""
        found, n_found = [], np.zeros(reading.starts.size, np.int64)
        for low in range(0, reading.words.size, _STEP):
            stumps = reading.vocabulary.stumps.take(reading.words[low : low + _STEP])
            at: Offsets = (stumps != 0).nonzero()[0]  # much quicker on booleans
            found.append(stumps.take(at))
            first = at.searchsorted(reading.starts - low)
            n_found += at.searchsorted(reading.starts + (reading.counts - low)) - first
        return cls(found[0] if len(found) == 1 else np.concatenate(found), n_found)

    @classmethod
    def joined(cls, bags: Sequence[Bag]) -> Bag:
        """Return the bag of the chunks of some, one after the other."""
        if len(bags) == 1:
            return bags[0]
        features = np.concatenate([_NO_FEATURES, *(bag.features for bag in bags)])
        return cls(features, np.concatenate([_NO_PLACES, *(bag.counts for bag in bags)]))

    @classmethod
    def merge(cls, bags: Sequence[Bag], places: Sequence[Offsets]) -> Bag:
        """Return the bag of several segments' chunks; `places` are those that each segment's chunks take in it."""
        if len(bags) == 1:
            return bags[0]
        return cls.joined(bags).take(np.argsort(np.concatenate([_NO_PLACES, *places])))

    def take(self, kept: Offsets) -> Bag:
        """Return the bag of some of the chunks."""
        first = np.cumsum(self.counts) - self.counts
        return Bag(self.features[ragged_ranges(first[kept], self.counts[kept])], self.counts[kept])

    def tally(self) -> Tally:
        """Count how often each chunk has each feature."""
        ends = np.cumsum(self.counts)
        steps = [self._count(slice(low, low + _STEP), ends) for low in range(0, self.features.size, _STEP)]
        key, tf = steps[0] if steps else _NO_COUNTS
        if len(steps) > 1:
            key, tf = (np.concatenate(arrays) for arrays in zip(*steps, strict=True))
            del steps
            order = key.argsort(kind="stable")
            key, tf = key.take(order), tf.take(order)
            del order
            first, _ = _runs(key)
            key, tf = key.take(first), np.add.reduceat(tf, first) if first.size else tf
        feature = key >> _CHUNK_BITS
        first, df = _runs(feature)
        place = np.arange(df.size).repeat(df)
        chunk = (key & _CHUNK_MASK).view(np.int64)
        return Tally(ends.size, feature.take(first).astype(np.uint32), df, place, chunk, tf)

    def _count(self, some: slice, ends: Offsets) -> tuple[Ids, Offsets]:
        """Count some of the features: by feature and chunk as one number, ascending, and how often each stands there.

        Args:
            some: where these stand.
            ends: where each chunk's features end.
        """
        features = self.features[some]
        counts = self.counts
        if features.size < self.features.size:
            counts = np.diff(np.clip(ends - some.start, 0, features.size), prepend=0)
        key = features.astype(np.uint64)
        key <<= _CHUNK_BITS
        key |= np.arange(counts.size, dtype=np.uint64).repeat(counts)
        key.sort()
        key = key[key.searchsorted(np.uint64(1) << _CHUNK_BITS) :]
        first, tf = _runs(key)
        return key.take(first), tf


def _runs(values: Ids) -> tuple[Offsets, Offsets]:
    """Return where each run of equal values begins, and how long it is."""
    inner: Offsets = (values[1:] != values[:-1]).nonzero()[0]
    edges = np.empty(inner.size + 2, np.int64)
    edges[0], edges[-1] = 0, values.size
    np.add(inner, 1, out=edges[1:-1])
    first = edges[:-1] if values.size else edges[:0]
    return first, edges[1:][: first.size] - first


@frozen(eq=False)
class Tally:
    """How often each of some chunks has each feature: by feature, then by chunk.

    Attributes:
        n_chunks: number of chunks, n.
        features: the different features, ascending, shape (F,).
        df: number of chunks that have each, shape (F,).
        feature: place among these of each count, ascending, shape (P,).
        chunk: number of each count's chunk, in [0, n), shape (P,).
        tf: how often that chunk has that feature, shape (P,).
    """

    n_chunks: int
    features: Numbers
    df: Offsets
    feature: Offsets
    chunk: Offsets
    tf: Offsets

    def norms(self, value: Floats) -> Floats:
        """Return the Euclidean length of each chunk's values, shape (n,)."""
        return np.sqrt(np.bincount(self.chunk, value * value, self.n_chunks))


_CHUNK_BITS: Final = np.uint64(8)
_CHUNK_MASK: Final = np.uint64(MAX_CHUNKS - 1)
_NO_FEATURES: Final[Numbers] = np.zeros(0, np.uint32)
_NO_PLACES: Final[Offsets] = np.zeros(0, np.int64)
_NO_COUNTS: Final[tuple[Ids, Offsets]] = np.zeros(0, np.uint64), _NO_PLACES
