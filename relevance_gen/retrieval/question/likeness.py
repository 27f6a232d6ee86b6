"""Lift the chunks that are like the best ones: chunks that tell of the same answer the same question.

With n candidates d, and the best five of them (and ties) j, of own scores r::

    l(d) = Σ_j v(j) r(j) sim(d, j)           v(j) = (r(j) / r(1)) ** 24, over the sum of these
    sim(d, j) = cosine of the vectors        u(b, d) = tf / (tf + 1.6) · (ln(1 + n / df) + ln(1 + S / max(df_S, 1)))

b are the first five letters of a word, so that its forms are one; English function words are left out. df counts the
candidates that have it, df_S the chunks of a sample: the S = 128 chunks of the collection with the smallest hashes of
their words, the same ones in whatever order the chunks stand. A candidate alone is like itself: l = r.

Sources: Diaz, "Regularizing Ad Hoc Retrieval Scores", CIKM 2005, on van Rijsbergen's cluster hypothesis; the formula is
ours, measured in docs/retrieval.md.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.arrays import Floats, Hashes, Offsets
from relevance_gen.retrieval.question.bags import MAX_CHUNKS, Bag, Tally
from relevance_gen.retrieval.question.ranking import at_least_as_good
from relevance_gen.retrieval.segment.saturation import saturated

SAMPLE_SIZE: Final = 128
_N_BEST: Final = 5
_SHARPNESS: Final = 24


@frozen(eq=False)
class Sample:
    """How many chunks of the sample have each feature.

    Attributes:
        size: number of chunks, S.
        names: hashes of features, ascending.
        df: number of chunks that have each, at most S.
    """

    size: int
    names: Hashes
    df: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, bag: Bag) -> Sample:
        """Count the chunks of a bag, of at most `SAMPLE_SIZE`."""
        tally = bag.tally()
        if tally.names is None:
            return cls(tally.n_chunks, tally.features, tally.df.astype(np.uint8))
        df = np.zeros(tally.names.size, np.uint8)
        df[tally.features] = tally.df
        return cls(tally.n_chunks, tally.names, df)

    def rarity(self, tally: Tally) -> Floats:
        """Return ``ln(1 + S / max(df, 1))`` for each feature of a tally."""
        if tally.names is self.names:
            return _rarities(self.size).take(self.df.take(tally.features))
        hashes = tally.hashes
        at = self.names.searchsorted(hashes)
        here = self.names.take(at, mode="clip") == hashes if self.names.size else np.zeros(hashes.size, bool)
        df = np.zeros(hashes.size, np.uint8)
        df[here] = self.df.take(at[here])
        return _rarities(self.size).take(df)


@functools.lru_cache(maxsize=MAX_CHUNKS)
def _rarities(n: int) -> Floats:
    """Return ``ln(1 + n / max(df, 1))`` for every df, shape (n + 1,)."""
    return np.log1p(n / np.maximum(np.arange(n + 1), 1))


def likeness(bag: Bag, scores: Floats, sample: Sample) -> Floats:
    """Return what chunks are given for being like the best of them.

    Args:
        bag: the beginnings of their words.
        scores: their own scores, in [0, 1], shape (n,).
        sample: how many chunks of the collection have each beginning.

    Returns:
        At most the best score, shape (n,).
    """
    if scores.size < 2:  # before its words are counted, which may be very many
        return scores.copy()
    tally = bag.tally()
    if not tally.tf.size:
        return scores.copy()
    idf = _rarities(tally.n_chunks).take(tally.df)
    idf += sample.rarity(tally)
    value = saturated(tally.tf)
    value *= idf.repeat(tally.df)
    norms = tally.norms(value)
    norms[norms == 0.0] = 1.0
    value /= norms.take(tally.chunk)
    best = at_least_as_good(scores, _N_BEST)
    best = best.take((-scores.take(best)).argsort(kind="stable"))
    weight = (scores[best] / scores[best[0]]) ** _SHARPNESS
    share = np.zeros(scores.size)
    share[best] = weight / weight.sum() * scores[best]
    # The sum of the vectors of the best, each times its weight, is added up by size: the same in any order of chunks.
    given = share.take(tally.chunk)
    of_best: Offsets = (given > 0.0).nonzero()[0]
    feature, added = tally.place.take(of_best), value.take(of_best) * given.take(of_best)
    order = added.argsort()
    profile = np.bincount(feature.take(order), added.take(order), tally.features.size)
    value *= profile.repeat(tally.df)
    return np.asarray(np.minimum(np.bincount(tally.chunk, value, tally.n_chunks), scores.max()))
