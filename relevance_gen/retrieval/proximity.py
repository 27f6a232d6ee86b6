"""Prefer chunks that hold the query's words together, in its order, or at their beginning.

Four parts of a chunk's score, for the most promising chunks::

    pairs(q, d)    = Σ_b (1 + ln qtf(b)) idf(b) tf(b, d) / (tf(b, d) + 1.6)
    coverage(q, d) = max over windows of 24 tokens of Σ idf(t), t in the window / Σ idf(t), t in the query
    head(q, d)     = the same for the chunk's first 16 tokens
    run(q, d)      = max over runs of Σ max(idf(t), 0.3), t in the run / the same sum over the whole query, at most 1

b goes through the pairs of neighbours in the query; idf(b) is the mean of their idf (0 for function words). A run is
two tokens or more of which every two neighbours are neighbours in the query, too, in that order. A word stands for all
its matches, and a chunk's word for that of the query which it matches best. Of a long query the 32 rarest words count,
and as many function words. `relevance_gen.retrieval.weighting` says what each part weighs.

Sources: Tao and Zhai, "An Exploration of Proximity Measures in Information Retrieval", SIGIR 2007, for windows; Metzler
and Croft, "A Markov Random Field Model for Term Dependencies", SIGIR 2005, for pairs in order; the formulas are ours,
measured in docs/retrieval.md.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.retrieval.matching import Match
from relevance_gen.retrieval.segment import Floats, Reading
from relevance_gen.retrieval.terms import Ids, Offsets
from relevance_gen.retrieval.vocabulary import Flags, Vocabulary
from relevance_gen.retrieval.weighting import saturated, saturated_one

WINDOW: Final = 24
"""Tokens in a passage: a sentence or so."""
HEAD: Final = 16
_LEAST_IN_RUN: Final = 0.3
"""What a function word weighs in a run."""
_STEP: Final = 1 << 16
"""Words whose windows are looked at together: it bounds the memory for a long chunk."""

_NO_IDS: Final[Ids] = np.zeros(0, np.uint64)
_NO_WEIGHT: Final[Floats] = np.zeros(0)

_Words = npt.NDArray[np.uint8]
_Masks = npt.NDArray[Any]


@frozen(eq=False)
class Proximity:
    """The parts of some chunks' scores; the module's docstring has the formulas. Shape (n,) each."""

    pairs: Floats
    coverage: Floats
    head: Floats
    run: Floats


class ProximityScorer:
    """Scores how closely chunks hold the words of one query.

    Args:
        matches: for each query word the terms it stands for; at most 64 words.
        idf: idf of each word; words with an idf of 0 are the last, and count only in pairs and runs.
        said: the query's tokens in reading order, as numbers of these words; -1 for a word that is not looked for.

    Attributes:
        total_idf: sum of the idf of all words.
    """

    def __init__(self, matches: Sequence[Match], idf: Sequence[float], said: Sequence[int]) -> None:
        self._made_of = matches, idf, said
        self._n_words = len(matches)
        self._idf = tuple(idf)
        self.total_idf = math.fsum(idf) or 1.0
        pairs: dict[tuple[int, int], int] = {}
        for left, right in itertools.pairwise(said):
            if left >= 0 and right >= 0:
                pairs[left, right] = pairs.get((left, right), 0) + 1
        self._pairs = pairs
        self._pair_weight = [
            (1.0 + math.log(times)) * (idf[left] + idf[right]) / 2.0 for (left, right), times in pairs.items()
        ]
        self._run_weight = [max(rare, _LEAST_IN_RUN) for rare in idf]
        self._run_total = math.fsum(self._run_weight[word] for word in said if word >= 0) or 1.0

    def __reduce__(self) -> tuple[object, ...]:
        return ProximityScorer, self._made_of

    def __bool__(self) -> bool:
        """Tell whether there is any word to look for."""
        return bool(self._n_words)

    @property
    def n_pairs(self) -> int:
        """Number of different pairs of words that are looked for and neighbours in the query."""
        return len(self._pairs)

    def pairs_of_query(self) -> float:
        """Return what the pairs would score in the query itself."""
        return math.fsum(
            [weight * saturated_one(n) for weight, n in zip(self._pair_weight, self._pairs.values(), strict=True)]
        )

    def score(self, reading: Reading) -> Proximity:
        """Score chunks."""
        if not reading.starts.size:
            return Proximity(*np.zeros((4, 0)))
        word = self._words_of(reading.vocabulary).take(reading.words)
        at: Offsets = (word != 0).nonzero()[0]  # much quicker on booleans
        word = word.take(at)
        pairs, run = self._in_order(word, at, reading.starts)
        coverage, head = self._covered(word, at, reading.starts)
        return Proximity(pairs, coverage, head, run)

    # ── Which word of the query stands where ─────────────────────────────────────────────────────────────────────────

    @functools.cached_property
    def _matched(self) -> tuple[Ids, _Words]:
        """Ids of all matches and the query's words that they stand for, from 1 on; of equal ids the last is meant."""
        matches = self._made_of[0]
        backwards = range(self._n_words - 1, -1, -1)
        ids = np.concatenate([_NO_IDS, *[matches[word].ids for word in backwards]])
        numbers = np.arange(self._n_words, 0, -1, dtype=np.uint8)
        word = numbers.repeat([matches[word].ids.size for word in backwards])
        weight = np.concatenate([_NO_WEIGHT, *[matches[word].weight for word in backwards]])
        if not (weight == 1.0).all():
            order = weight.argsort(kind="stable")
            ids, word = ids[order], word[order]
        return ids, word

    def _words_of(self, vocabulary: Vocabulary) -> _Words:
        """Return for each word of a vocabulary which of the query's it stands for, from 1 on; 0 for none."""
        ids, word = self._matched
        words = np.zeros(vocabulary.size + 1, np.uint8)
        at = vocabulary.find(ids)
        here = at >= 0
        words[at[here]] = word[here]
        return words

    # ── Side by side ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _in_order(self, word: _Words, at: Offsets, starts: Offsets) -> tuple[Floats, Floats]:
        """Return the pairs and the longest run of each chunk, told the words of the query that it has and where."""
        n, kinds = starts.size, len(self._pairs) + 1
        run = np.zeros(n)
        if kinds == 1:
            return run, run
        size = self._n_words + 1
        kind = np.uint8 if size * size <= 256 else np.uint16
        number_of = np.zeros(size * size, kind)
        for place, (left, right) in enumerate(self._pairs, 1):
            number_of[(left + 1) * size + right + 1] = place
        neighbours = word[:-1] * kind(size)
        neighbours += word[1:]
        number = number_of.take(neighbours)
        number[at[1:] != at[:-1] + 1] = 0
        left_word: Offsets = (number != 0).nonzero()[0]
        chunk = starts.searchsorted(at.take(left_word), "right") - 1
        counted: Offsets = chunk * kinds
        np.add(counted, number.take(left_word), out=counted)
        tf = np.bincount(counted, minlength=n * kinds).reshape(n, kinds)
        pairs = (saturated(tf[:, 1:]) * np.array(self._pair_weight)).sum(axis=1)
        if left_word.size:
            weight = np.array([0.0, *self._run_weight])
            first = _first_of_each(left_word[1:] - left_word[:-1] != 1)
            total = np.add.reduceat(weight.take(word.take(left_word + 1)), first)
            total += weight.take(word.take(left_word.take(first)))
            chunk = chunk.take(first)
            first = _first_of_each(chunk[1:] != chunk[:-1])
            run[chunk.take(first)] = np.maximum.reduceat(total, first) / self._run_total
        return pairs, np.minimum(run, 1.0)

    # ── Within a passage ─────────────────────────────────────────────────────────────────────────────────────────────

    @functools.cached_property
    def _bits(self) -> _Masks:
        """A bit for each word that counts, by its number from 1 on; 0 for all others."""
        n_counted = sum(map(bool, self._idf))
        kind = np.uint8 if n_counted <= 8 else np.uint16 if n_counted <= 16 else np.uint32
        bits = np.zeros(self._n_words + 1, kind)
        bits[1 : n_counted + 1] = np.left_shift(kind(1), np.arange(n_counted, dtype=kind))
        return bits

    @functools.cached_property
    def _sums(self) -> list[Floats]:
        """For each byte of a mask the sums of the idf of all its 256 values, each added in the words' order."""
        idf = [*filter(None, self._idf), 0.0]
        tables = []
        for start in range(0, len(idf), 8):
            sums = np.zeros(256)
            for place, rare in enumerate(idf[start : start + 8]):
                np.add(sums[: 1 << place], rare, out=sums[1 << place : 2 << place])
            tables.append(sums)
        return tables

    def _weigh(self, masks: _Masks) -> Floats:
        """Return the sum of the idf of the words in each mask."""
        if masks.itemsize == 1:
            return self._sums[0].take(masks)
        parts = masks.astype(f"<u{masks.itemsize}", copy=False).view(np.uint8).reshape(-1, masks.itemsize)
        total = self._sums[0].take(parts[:, 0])
        for place, sums in enumerate(self._sums[1 : masks.itemsize], 1):
            total += sums.take(parts[:, place])
        return total

    def _covered(self, word: _Words, at: Offsets, starts: Offsets) -> tuple[Floats, Floats]:
        """Return the share of the query's idf in each chunk's best window, and in its head.

        The best window is one that begins with a word that counts.
        """
        best, heads = np.zeros(starts.size), np.zeros(starts.size, self._bits.dtype)
        bits = self._bits.take(word)
        counts: Offsets = (bits != 0).nonzero()[0]
        bits, at = bits.take(counts), at.take(counts)
        for begin in range(0, at.size, _STEP):
            # The words behind a step are looked at again in the next one, with all that is in their windows.
            here, places = bits[begin : begin + _STEP + WINDOW], at[begin : begin + _STEP + WINDOW]
            windows = here.copy()
            for further in range(1, min(WINDOW, places.size)):
                inside = places[further:] - places[:-further] < WINDOW
                if not inside.any():
                    break
                windows[:-further] |= here[further:] * inside
            chunk = starts.searchsorted(places, "right") - 1
            first = _first_of_each(chunk[1:] != chunk[:-1])
            in_head = places - starts.take(chunk) < HEAD
            chunk = chunk.take(first)
            heads[chunk] |= np.bitwise_or.reduceat(here * in_head, first)
            best[chunk] = np.maximum(best.take(chunk), np.maximum.reduceat(self._weigh(windows), first))
        best /= self.total_idf
        head = self._weigh(heads) / self.total_idf
        return np.minimum(best, 1.0), np.minimum(head, 1.0)


def _first_of_each(is_new: Flags) -> Offsets:
    """Return the place of the first of each group, told for every element but the first whether it begins a group."""
    first: Offsets = np.concatenate(([0], is_new.nonzero()[0] + 1))
    return first
