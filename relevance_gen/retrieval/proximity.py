"""Prefer chunks that hold the query's words together: in its order side by side, and all within a short passage.

Two bonuses, added to the cosine of the most promising chunks::

    pairs(q, d)    = 0.2 · Σ_b (1 + ln qtf(b)) idf(b) tf(b, d) / (tf(b, d) + 1.6) / (‖w(·, q)‖₂ · (0.4 m + 0.6 n(d)))
    coverage(q, d) = 0.2 · max over windows of 24 tokens of Σ idf(t), t in the window / Σ idf(t), t in the query

b runs over the pairs of neighbouring words in the query; idf(b) is the mean of its words' (0 for function words).
A word stands for all its matches, and a chunk's word for that of the query which it matches best. Of a long query the
32 rarest words count.

Source: Tao and Zhai, "An Exploration of Proximity Measures in Information Retrieval", SIGIR 2007, for the idea;
the formulas are ours, measured in docs/retrieval.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.matching import Match
from relevance_gen.retrieval.segment import Floats
from relevance_gen.retrieval.terms import Ids, Offsets
from relevance_gen.retrieval.weighting import saturated

WINDOW: Final = 24
"""Tokens in a passage: a sentence or so."""


@frozen
class Proximity:
    """The two bonuses of some chunks, before their weights, shape (n,) each."""

    pairs: Floats
    coverage: Floats


class ProximityScorer:
    """Scores how closely chunks hold the words of one query.

    Args:
        matches: for each query word the terms it stands for.
        idf: idf of each word; 0 for one that counts only in pairs.
        pairs: for each pair of word numbers that are neighbours in the query, how often.

    Attributes:
        total_idf: sum of the idf of all words.
    """

    def __init__(self, matches: Sequence[Match], idf: Sequence[float], pairs: Mapping[tuple[int, int], int]) -> None:
        self._made_of = matches, idf, pairs
        word = np.repeat(np.arange(len(matches)), [match.ids.size for match in matches])
        ids = np.concatenate([np.zeros(0, np.uint64), *(match.ids for match in matches)])
        weight = np.concatenate([np.zeros(0), *(match.weight for match in matches)])
        order = np.lexsort((-weight, ids))  # of equal ids the best match is the first, and found
        self._ids, self._word = ids[order], word[order]
        self._maybe = np.zeros(1 << 16, bool)
        self._maybe[_low_bits(self._ids)] = True
        self._idf = np.array(idf, np.float64)
        self._counted = np.flatnonzero(self._idf)
        self.total_idf = math.fsum(idf) or 1.0
        self._pair_number = np.zeros((len(matches), len(matches)), np.int64)
        self._pair_weight = np.zeros(len(pairs) + 1)
        for number, ((left, right), times) in enumerate(pairs.items(), 1):
            self._pair_number[left, right] = number
            self._pair_weight[number] = (1.0 + math.log(times)) * (idf[left] + idf[right]) / 2.0
        self._pair_times = np.array([0, *pairs.values()])

    def __reduce__(self) -> tuple[object, ...]:
        return ProximityScorer, self._made_of

    def __bool__(self) -> bool:
        """Tell whether there is any word to look for."""
        return bool(self._idf.size)

    def score(self, ids: Ids, counts: Offsets) -> Proximity:
        """Score chunks.

        Args:
            ids: term id of each token, chunk after chunk, shape (T,).
            counts: tokens of each chunk, shape (n,), summing to T.

        Returns:
            pairs, to be divided by the cosine's denominator, and coverage in [0, 1], shape (n,) each.
        """
        place, word = self._occurrences(ids)
        chunk = np.searchsorted(np.cumsum(counts), place, "right")
        # Chunks apart, so that no pair and no window reaches from one into the next.
        place += WINDOW * chunk
        return Proximity(self._pairs(place, word, chunk, counts.size), self._coverage(place, word, chunk, counts.size))

    def pairs_of_query(self) -> float:
        """Return what the pairs would score in the query itself, to be divided by the cosine's denominator."""
        return math.fsum(self._pair_weight * saturated(self._pair_times))

    def _occurrences(self, ids: Ids) -> tuple[Offsets, Offsets]:
        """Find the query's words among the tokens: their places, ascending, and which word stands there."""
        place: Offsets = np.flatnonzero(self._maybe.take(_low_bits(ids)))
        seen = ids.take(place)
        nearest = np.searchsorted(self._ids, seen)
        equal = self._ids.take(nearest, mode="clip") == seen if self._ids.size else np.zeros(0, bool)
        return place[equal], self._word[nearest[equal]]

    def _pairs(self, place: Offsets, word: Offsets, chunk: Offsets, n_chunks: int) -> Floats:
        left = np.flatnonzero(place[1:] == place[:-1] + 1)
        pair = self._pair_number[word[left], word[left + 1]]
        kinds = self._pair_weight.size
        tf = np.bincount(chunk[left] * kinds + pair, minlength=n_chunks * kinds).reshape(n_chunks, kinds)
        return np.asarray((saturated(tf) * self._pair_weight).sum(axis=1))

    def _coverage(self, place: Offsets, word: Offsets, chunk: Offsets, n_chunks: int) -> Floats:
        """Try the window that begins at each occurrence: a best window begins at one."""
        best = np.zeros(n_chunks)
        if place.size and self._counted.size:
            own = np.where(word == self._counted[:, np.newaxis], place, place[-1] + WINDOW)
            following = np.minimum.accumulate(own[:, ::-1], axis=1)[:, ::-1]
            inside = following - place < WINDOW
            np.maximum.at(best, chunk, (inside * self._idf[self._counted, np.newaxis]).sum(axis=0))
        return np.minimum(best / self.total_idf, 1.0)


def _low_bits(ids: Ids) -> npt.NDArray[np.uint16]:
    return ids.astype(np.uint16)
