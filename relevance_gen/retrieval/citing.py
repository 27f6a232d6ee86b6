r"""The verb `cite`: which places of some sources say what the sentences of a text say.

A place is a sentence of a source. Words are folded as search folds them, and alike where they share their first five
letters; English function words, numbers and n-grams are alike where they are the same. With N sentences in all sources,
of which df(t) have a word t, that word weighs

    w(t) = ln(1 + N / max(df(t), 1))

and the share of a sentence s that a place p has is that of the weight of its different words:

    share(s, p) = Σ w(t) for t in both s and p  /  Σ w(t) for t in s

The place of the greatest share supports a sentence if that is at least 0.35, and after it, one by one, whichever adds
most, while that is at least 0.2 of the weight. Of equal places it is the first. A sentence that stands in a source word
for word has there a share of 1. Source: the rule is ours, measured in bench/citing.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from relevance_gen.caller import announce, check_wanted
from relevance_gen.chunking import sentences
from relevance_gen.errors import TooLargeError
from relevance_gen.retrieval.arrays import Ids, Offsets, joined, ragged_ranges, run_starts, runs, sum_by
from relevance_gen.retrieval.segment.chunks import Chunks
from relevance_gen.retrieval.text.ids import stumps_of
from relevance_gen.retrieval.text.portions import BLOCK_CHARS, cut_by_size, lengths
from relevance_gen.retrieval.text.terms import cut_terms
from relevance_gen.types import Chunk, CitationRequest, CitedPlace, CitedSentence, Metadata

_LEAST: Final = 0.35
"""Share of a sentence that the first place has."""
_LEAST_MORE: Final = 0.2
"""Share of a sentence that each further place adds."""
_WHOLE: Final = 1 << 20
"""Weights are whole numbers, so that all of them together are exactly the whole."""
_MOST_COMPARED: Final = 1 << 28
"""Most words of sources that are compared with those of one answer: some seconds."""
_OF_SENTENCE: Final = 1 << 12
"""What a sentence costs however few words it has, counted in words compared."""
_LONGEST_PENDING: Final = 1000
"""Characters of a stream in which no sentence ends, as of a table, that are taken for one."""
_STEP: Final = 64
"""Sentences that are announced together."""
_NUMBERS: Final = re.compile(r"\[\d{1,3}(?:[-–,;] ?\d{1,3})*\]")
"""Numbers of sources that a model wrote by itself."""


def cite(text: str, chunks: Iterable[str | Metadata | Chunk]) -> tuple[CitedSentence, ...]:
    """Return the sentences of a text, each with the places of some chunks that support it.

    Args:
        text: any string, as a model's answer; numbers in brackets, as in ``[1]``, are no words of it.
        chunks: as in `search`; titles are no part of them.

    Returns:
        The sentences that have words, in order; one that nothing supports has no places.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.
        TooLargeError: there is too much to compare.

    >>> purr, moo = cite("Cats purr. Cows moo loudly.", ["It rained.", "Dogs bark. Cats purr."])
    >>> purr.places, moo.places
    ((CitedPlace(start=11, end=21, score=1.0, source=1),), ())
    """
    request = CitationRequest(text, ())
    return Citer(Chunks.read(chunks).texts).cite(request.text)


class Citer:
    """Sources to cite for one answer. They are read when its first sentence is sought.

    Args:
        texts: the sources.
        offsets: where each begins in the text in which its places are told; 0 if not given.
    """

    def __init__(self, texts: Sequence[str], offsets: Sequence[int] = ()) -> None:
        self.texts = texts
        self._offsets = offsets or [0] * len(texts)
        self._n_compared = 0

    def cite(self, text: str, offset: int = 0) -> tuple[CitedSentence, ...]:
        """Return the sentences of a text that have words, told to begin at `offset`, each with what supports it.

        Raises:
            TooLargeError: there was too much to compare.
        """
        announce("cut_character", len(text))
        spans = list(_cut(text))
        words, numbers = _words([_NUMBERS.sub(" ", text[start:end]) for start, end in spans])
        order = numbers.argsort(kind="stable")
        words, numbers = words[order], numbers[order]
        cited = []
        for first, n in zip(*(bounds.tolist() for bounds in runs(numbers)), strict=True):
            check_wanted()
            start, end = spans[numbers[first]]
            cited.append(CitedSentence(offset + start, offset + end, self._places_of(words[first : first + n])))
        return tuple(cited)

    def _places_of(self, words: Ids) -> tuple[CitedPlace, ...]:
        """Return the places that support a sentence of some different words."""
        places, keys, numbers = self._read
        first = keys.searchsorted(words)
        df = keys.searchsorted(words, "right") - first
        self._n_compared += _OF_SENTENCE + int(df.sum()) + len(places)
        if self._n_compared > _MOST_COMPARED:
            raise TooLargeError("has too many sentences to be compared with so many of chunks", "text")
        weight = np.rint(_WHOLE * np.log1p(len(places) / np.maximum(df, 1))).astype(np.int64)
        whole = weight.sum()
        number, word = numbers[ragged_ranges(first, df)], np.arange(words.size).repeat(df)
        left, found = weight.copy(), list[CitedPlace]()
        while number.size:
            added = sum_by(number, left[word], len(places))
            best = int(added.argmax())
            if added[best] < (_LEAST_MORE if found else _LEAST) * whole:
                break
            there = word[number == best]
            source, start, end = places[best]
            found.append(CitedPlace(start, end, float(weight[there].sum() / whole), source))
            left[there] = 0
        return tuple(found)

    @cached_property
    def _read(self) -> tuple[list[tuple[int, int, int]], Ids, Offsets]:
        """The sentences of the sources; their different words, ascending, and the number of the sentence of each."""
        announce("cut_character", sum(map(len, self.texts)))
        places, texts = [], []
        for source, (text, offset) in enumerate(zip(self.texts, self._offsets, strict=True)):
            check_wanted()
            for start, end in _cut(text):
                places.append((source, offset + start, offset + end))
                texts.append(text[start:end])
        return places, *_words(texts)


def _cut(text: str) -> Iterator[tuple[int, int]]:
    """Yield where the sentences of a text stand, as long as the request is wanted."""
    for number, span in enumerate(sentences(text)):
        if number % _STEP == 0:
            check_wanted()
            announce("sentence", _STEP)
        yield span


class CitedStream:
    """Cites a text that comes in pieces, sentence by sentence.

    Args:
        citer: the sources.
    """

    def __init__(self, citer: Citer) -> None:
        self._citer = citer
        self._start = 0
        self._pending = ""

    def add(self, piece: str, *, is_last: bool = False) -> list[str | CitedSentence]:
        """Return a piece, in parts where sentences end, and behind its last part each sentence that has ended.

        One has ended when another has begun behind it, or with the last piece. Where that shows only after more has
        been told, both are told at the end of the second.
        """
        told, text = len(self._pending), self._pending + piece
        ends = [end for _, end in sentences(text)][:-1]
        if is_last or len(text) > _LONGEST_PENDING:
            ends.append(len(text))
        parts, begun = list[str | CitedSentence](), 0
        for end in ends:
            if not text[end:told].strip():
                parts += text[told:end], *self._citer.cite(text[begun:end], self._start)
                self._start += end - begun
                begun, told = end, max(told, end)
        self._pending = text[begun:]
        return [part for part in (*parts, text[told:]) if part]


def _words(texts: Sequence[str]) -> tuple[Ids, Offsets]:
    """Return the different words of each of some texts, ascending, and the number of the text that has each."""
    words, numbers = list[Ids](), list[Offsets]()
    for start, end in cut_by_size(lengths(texts), BLOCK_CHARS):
        check_wanted()
        block = cut_terms(texts[start:end])
        stumps = stumps_of(block.ids, block.folded, block.start, block.length)
        is_same_alone = (stumps == 0) | (np.frombuffer(block.folded, np.uint8)[block.start] <= ord("9"))
        words.append(np.where(is_same_alone, block.ids, stumps))
        numbers.append(np.arange(start, end).repeat(block.counts))
    word, number = joined(words, np.uint64), joined(numbers, np.int64)
    order = np.lexsort((number, word))
    word, number = word[order], number[order]
    is_new = run_starts(word) | run_starts(number)
    return word[is_new], number[is_new]
