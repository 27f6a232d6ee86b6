"""Prefer chunks that hold the query's words together, in its order, or at their beginning.

Four parts of a chunk's score, for the 50 chunks of the highest cosines::

    pairs(q, d)    = Σ_b (1 + ln qtf(b)) idf(b) tf(b, d) / (tf(b, d) + 1.6)
    coverage(q, d) = max over windows of 24 words of Σ idf(t), t in the window / Σ idf(t), t in the query
    head(q, d)     = the same for the chunk's first 16 words
    run(q, d)      = max over runs of Σ max(idf(t), 0.3), t in the run / the same sum over the whole query, at most 1

b goes through the pairs of neighbours in the query; idf(b) is the mean of their idf (0 for function words). A run is
two words or more of which every two neighbours are neighbours in the query, too, in that order. A word stands for all
its matches, and a chunk's word for that of the query which it matches best. Of a long query the 32 rarest words count,
and as many function words. What is added to a chunk's cosine is::

    0.2 pairs / (its denominator) + 0.2 coverage + 0.05 head + 0.2 run³

Sources: Tao and Zhai, "An Exploration of Proximity Measures in Information Retrieval", SIGIR 2007, for windows; Metzler
and Croft, "A Markov Random Field Model for Term Dependencies", SIGIR 2005, for pairs in order; the formulas are ours,
measured in docs/measurements.md.
"""

from __future__ import annotations

import itertools
import math
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from relevance_gen.arrays import Floats, Offsets
from relevance_gen.index.formulas import saturate, saturate_scalar
from relevance_gen.index.segment import POSITION_GAP, TokenSequences
from relevance_gen.retrieval.query.term_matching import Match, numbers_of_matches
from relevance_gen.retrieval.ranking.old_features import ChunkBatch, NumericFeatures
from relevance_gen.retrieval.ranking.stage import (
    MAX_WORDS,
    N_PROMISING,
    SelfMatch,
    Stage,
    Table,
    WeightedTerms,
)

WINDOW: Final = 24
"""Occurrences in a passage: a sentence or so."""
HEAD: Final = 16
_LEAST_IN_RUN: Final = 0.3
"""What a function word weighs in a run."""
_STEP: Final = 1 << 16
"""Places looked at together: it bounds the memory for a long chunk."""

COVERAGE: Final = "coverage"
PAIR_WEIGHT: Final = 0.2
COVERAGE_WEIGHT: Final = 0.2
HEAD_WEIGHT: Final = 0.05
RUN_WEIGHT: Final = 0.2
_WEIGHTS: Final = np.array([[PAIR_WEIGHT], [COVERAGE_WEIGHT], [HEAD_WEIGHT], [RUN_WEIGHT]])
_MAX_COUNTS: Final = 1 << 18
"""Most counts of pairs, those of all pairs in all chunks, that are held at once."""
_FEW: Final = 64
"""Up to so many words are quicker looked at by Python."""

_Words = npt.NDArray[np.uint8]
_Masks = npt.NDArray[Any]
_Neighbours: TypeAlias = tuple[Offsets, npt.NDArray[np.uint16]]


class Measures(NamedTuple):
    """How closely chunks hold the query's words; the module's docstring has the formulas. Shape (n,) each."""

    pairs: Floats
    coverage: Floats
    head: Floats
    run: Floats


class Proximity(Stage):
    """Scores how closely chunks hold the words of one query.

    Args:
        matches: for each query word the terms it stands for; at most 64 words.
        idf: idf of each word; words with an idf of 0 are the last, and count only in pairs and runs.
        said: the query's words in reading order, as numbers of these; -1 for a word that is not looked for.
        norm: the query's Euclidean length.
    """

    parts = ("bigrams", COVERAGE, "lead", "phrase")
    n_best = N_PROMISING

    def __init__(
        self, matches: Sequence[Match], idf: Sequence[float], said: Sequence[int], norm: float
    ) -> None:
        self._made_of = matches, idf, said, norm
        self._norm = norm
        self._n_words = len(matches)
        self._total_idf = math.fsum(idf) or 1.0
        # A question may be as long as a book: its pairs are counted by compiled code, and no list is made of its words.
        pairs = {
            pair: times
            for pair, times in Counter(itertools.pairwise(said)).items()
            if min(pair) >= 0
        }
        self._pairs = pairs
        self._pair_weight = [
            (1.0 + math.log(times)) * (idf[left] + idf[right]) / 2.0
            for (left, right), times in pairs.items()
        ]
        run_weight = [max(rare, _LEAST_IN_RUN) for rare in idf]
        self._run_total = math.fsum(run_weight[word] for word in said if word >= 0) or 1.0
        self._pair_tables = _pair_tables(pairs, run_weight)
        pluralize = [rare for rare in idf if rare]
        self._bits = _bits(self._n_words + 1, len(pluralize))
        self._sums = _sums(pluralize)

    @classmethod
    def of(cls, terms: WeightedTerms) -> Proximity:
        """Look for the rarest words that count, and for as many that only stand between them."""
        between = [number for number, n in enumerate(terms.df) if n and not terms.idf[number]]
        near = (*terms.rarest, *between[:MAX_WORDS])
        said = _said(terms.query.order, near, [n > 0 for n in terms.df])
        return cls(
            [terms.matches[word] for word in near],
            [terms.idf[word] for word in near],
            said,
            terms.norm,
        )

    def __reduce__(self) -> tuple[object, ...]:
        return Proximity, self._made_of

    def of_query(self, total: float, own: SelfMatch) -> float:
        """Add what the query itself has of each part: all of it."""
        pairs = [
            weight * saturate_scalar(n)
            for weight, n in zip(self._pair_weight, self._pairs.values(), strict=True)
        ]
        total += PAIR_WEIGHT * math.fsum(pairs) / own.denominator
        total += (COVERAGE_WEIGHT + HEAD_WEIGHT) * (1.0 + own.unknown_idf / self._total_idf)
        return total + RUN_WEIGHT if pairs else total

    def score(self, table: Table) -> None:
        """Add the four parts to the scores."""
        table.add(self.parts, table.picked, table.tell(self.evidence, table.picked).values)

    def evidence(self, excerpt: ChunkBatch) -> NumericFeatures:
        """Return what each part adds to the cosines of some chunks, shape (4, n)."""
        given = np.array(self.measure(excerpt.reading))
        given[3] **= 3
        given *= _WEIGHTS
        given[0] /= excerpt.denominators * self._norm
        return NumericFeatures(given)

    def measure(self, reading: TokenSequences) -> Measures:
        """Return how closely each chunk of a reading holds the words."""
        starts = reading.starts
        query_word = numbers_of_matches(self._made_of[0], reading.lexicon)
        neighbours: list[_Neighbours] = []
        covered, heads = np.zeros(starts.size), np.zeros(starts.size, self._bits.dtype)
        for begin in range(0, reading.terms.size - WINDOW + 1, _STEP):
            # The words behind a step are looked at again in the next one, with all that is in their windows.
            word = query_word.take(reading.terms[begin : begin + _STEP + WINDOW - 1])
            neighbours.append(self._neighbours(word, begin))
            self._cover(word, starts - begin, covered, heads)
        pairs, run = self._in_order(neighbours, starts)
        covered /= self._total_idf
        head = self._weigh(heads)
        head /= self._total_idf
        return Measures(pairs, np.minimum(covered, 1.0), np.minimum(head, 1.0), run)

    def _neighbours(self, word: _Words, begin: int) -> _Neighbours:
        """Return where the query's pairs stand in a step that begins at a place, and the number of each."""
        word = word[: _STEP + 1]
        left: Offsets = np.logical_and(word[:-1], word[1:]).nonzero()[0]
        beside = word.take(left) * np.uint16(self._n_words + 1)
        beside += word.take(left + 1)
        number = self._pair_tables[0].take(beside)
        paired: Offsets = number.nonzero()[0]
        return left.take(paired) + begin, number.take(paired)

    def _in_order(self, neighbours: list[_Neighbours], starts: Offsets) -> tuple[Floats, Floats]:
        """Return the pairs and the longest run of each chunk, told where the query's pairs stand; the list is spent."""
        n, kinds = starts.size, len(self._pairs)
        run = np.zeros(n)
        left, number = neighbours[0]
        if len(neighbours) > 1:
            left, number = (np.concatenate(parts) for parts in zip(*neighbours, strict=True))
        neighbours.clear()
        if not left.size:
            return run, run
        _, of_left, of_right = self._pair_tables
        chunk = starts.searchsorted(left, "right")
        chunk -= 1
        pairs = np.empty(n)
        step = max(1, _MAX_COUNTS // (kinds + 1))
        for low in range(0, n, step):
            size = min(step, n - low)
            begin, end = chunk.searchsorted((low, low + size)).tolist()
            place = (chunk[begin:end] - low) * kinds + number[begin:end]
            values = saturate(
                np.bincount(place, minlength=size * kinds + 1)[1:].reshape(size, kinds)
            )
            values *= self._pair_weight
            pairs[low : low + size] = np.add.reduce(values, axis=1)
        first: Offsets = np.concatenate(([0], (left[1:] - left[:-1] != 1).nonzero()[0] + 1))
        total = np.add.reduceat(of_right.take(number), first)
        total += of_left.take(number.take(first))
        np.maximum.at(run, chunk.take(first), total)
        run /= self._run_total
        return pairs, np.minimum(run, 1.0)

    def _weigh(self, masks: _Masks) -> Floats:
        """Return the sum of the idf of the words in each mask."""
        if masks.itemsize == 1:
            return self._sums[0].take(masks)
        parts = (
            masks.astype(f"<u{masks.itemsize}", copy=False)
            .view(np.uint8)
            .reshape(-1, masks.itemsize)
        )
        total = self._sums[0].take(parts[:, 0])
        for place, sums in enumerate(self._sums[1:], 1):
            total += sums.take(parts[:, place])
        return total

    def _cover(self, word: _Words, starts: Offsets, covered: Floats, heads: _Masks) -> None:
        """Note the idf of each chunk's best window among those that begin in a step, and the words in its head.

        Chunks begin at `starts`, counted from the first of the places whose query's words are given.
        """
        within = self._bits.take(word)
        for n_places in (1, 2, 4):
            within = within[:-n_places] | within[n_places:]
        in_head = within[: -HEAD // 2] | within[HEAD // 2 :]
        values = self._weigh(in_head[: HEAD - WINDOW] | within[HEAD:])
        low, high = starts.searchsorted((0, min(_STEP, values.size))).tolist()
        heads[low:high] = in_head.take(starts[low:high])
        # A window that begins between two chunks has nothing that the first window of the second does not have.
        first, last = (starts - POSITION_GAP).searchsorted((0, values.size)).tolist()
        here = slice(max(first - 1, 0), last)
        if last:
            found = np.maximum.reduceat(values, np.maximum(starts[here] - POSITION_GAP, 0))
            np.maximum(covered[here], found, out=covered[here])


def _said(
    order: npt.NDArray[np.int16], near: Sequence[int], is_known: Sequence[bool]
) -> Sequence[int]:
    """Return the query's known words as numbers of the words to look for side by side; -1 for any other word."""
    if order.size <= _FEW:
        places = {number: at for at, number in enumerate(near)}
        return [
            places.get(number, -1) for number in order.tolist() if number >= 0 and is_known[number]
        ]
    # The words of a query as long as a book are held as bytes: no list of them is ever made.
    place = np.full(len(is_known), -1, np.int8)
    place[list(near)] = range(len(near))
    return array("b", place.take(order[np.array([*is_known, False]).take(order)]).tobytes())


def _pair_tables(
    pairs: Iterable[tuple[int, int]], run_weight: Sequence[float]
) -> tuple[npt.NDArray[np.uint16], Floats, Floats]:
    """Return the number of each pair, from 1 on, and what its left and its right word weigh in a run.

    Words count from 1 here, and 0 is any word that is not looked for. With `size` for the number of words, this one
    included, the number of a pair stands at ``left * size + right``. It is 0 for two words that are no pair.
    """
    size = len(run_weight) + 1
    numbers = np.zeros(size * size, np.uint16)
    weights = [(0.0, 0.0)]
    for number, (left, right) in enumerate(pairs, 1):
        numbers[(left + 1) * size + right + 1] = number
        weights.append((run_weight[left], run_weight[right]))
    of_left, of_right = np.array(weights).T
    return numbers, of_left, of_right


def _bits(size: int, n_counted: int) -> _Masks:
    """Return a bit for each word that counts, by its number from 1 on; 0 for all others."""
    kind = np.uint8 if n_counted <= 8 else np.uint16 if n_counted <= 16 else np.uint32
    return np.array(
        [0, *[1 << place for place in range(n_counted)], *[0] * (size - n_counted - 1)], kind
    )


def _sums(idf: Sequence[float]) -> list[Floats]:
    """Return for each byte of a mask the sums of the idf of all its values, each added in the words' order."""
    tables = []
    for start in range(0, max(len(idf), 1), 8):
        sums = [0.0]
        for rare in idf[start : start + 8]:
            sums += [total + rare for total in sums]
        tables.append(np.array(sums))
    return tables
