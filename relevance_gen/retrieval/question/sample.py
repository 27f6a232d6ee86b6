"""Count in how many chunks of a sample of the collection each word's beginning stands.

The sample are the 128 chunks with the smallest hashes of their words: the same ones in whatever order the chunks stand
and however they are cut into segments.
"""

from __future__ import annotations

import functools
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.arrays import Floats, Hashes
from relevance_gen.retrieval.question.bags import MAX_CHUNKS, Bag, Tally

SAMPLE_SIZE: Final = 128


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
            return rarities(self.size).take(self.df.take(tally.features))
        hashes = tally.hashes
        at = self.names.searchsorted(hashes)
        here = self.names.take(at, mode="clip") == hashes if self.names.size else np.zeros(hashes.size, bool)
        df = np.zeros(hashes.size, np.uint8)
        df[here] = self.df.take(at[here])
        return rarities(self.size).take(df)


@functools.lru_cache(maxsize=MAX_CHUNKS)
def rarities(n: int) -> Floats:
    """Return ``ln(1 + n / max(df, 1))`` for every df, shape (n + 1,)."""
    return np.log1p(n / np.maximum(np.arange(n + 1), 1))
