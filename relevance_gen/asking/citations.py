r"""The function `cite`: find the sentences of sources that support the sentences of a text.

A span p is a sentence of a source. Words are normalized as in search, and match if their first five
letters are equal; English stop words, numbers and n-grams match if they are equal. With N sentences
in all sources, of which df(t) contain a word t, the weight of the word is

    w(t) = ln(1 + N / max(df(t), 1))

and the share of a sentence s that a span p covers is the share of the weight of distinct words:

    share(s, p) = Σ w(t) for t in both s and p  /  Σ w(t) for t in s

The span with the largest share supports a sentence if the share is at least 0.35. Further spans are
added in the order of the weight that they add, while that is at least 0.2 of the total. The first of
equal spans wins. A sentence that occurs verbatim in a source has a share of 1.
Source: the rule is ours, measured in bench/citing.py.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Final

import numpy as np

from relevance_gen import checks
from relevance_gen.arrays import (
    Ids,
    Offsets,
    concat,
    ragged_ranges,
    run_starts,
    runs,
    sum_by,
)
from relevance_gen.errors import TooLargeError
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.request_scope import raise_if_cancelled, reserve
from relevance_gen.text.blocks import BLOCK_CHARS, batch_by_size, lengths
from relevance_gen.text.chunking import sentences
from relevance_gen.text.sentences import sentence_ends
from relevance_gen.text.term_hashes import hash_prefixes
from relevance_gen.text.tokenization import tokenize
from relevance_gen.types import Chunk, CitedSentence, CitedSpan, Metadata

_LEAST: Final = 0.35
"""Minimum share of a sentence that its first span covers."""
_LEAST_MORE: Final = 0.2
"""Minimum share of a sentence that each further span adds."""
_WHOLE: Final = 1 << 20
"""Weights are integers, so that their sum is exact."""
_MOST_COMPARED: Final = 1 << 28
"""Maximum words of sources that are compared for one answer, which takes some seconds."""
_OF_SENTENCE: Final = 1 << 12
"""The cost of a sentence in addition to its words, in words compared."""
_AHEAD: Final = 10
"""Characters after which it is certain whether a word begins a sentence: the longest such word in
`relevance_gen.text.sentences`.
"""
_LONG: Final = 2000
"""Paragraphs up to this length are processed with each piece, longer ones less often."""
_STEP: Final = 64
"""Sentences for which memory is reserved at once."""
_BLANK: Final = re.compile(r"\n\s*\n")
_NUMBERS: Final = re.compile(r"\[\d{1,3}(?:[-–,;] ?\d{1,3})*\]")
"""Source numbers in the text of a model."""


def cite(text: str, chunks: Iterable[str | Metadata | Chunk]) -> tuple[CitedSentence, ...]:
    """Return the sentences of a text, each with the spans of chunks that support it.

    Args:
        text: any string, such as an answer; numbers in brackets, as in ``[1]``, are ignored.
        chunks: as in `search`; titles are ignored.

    Returns:
        The sentences that have words, in order; an unsupported sentence has no spans.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.
        TooLargeError: there is too much to compare.

    >>> purr, moo = cite("Cats purr. Cows moo loudly.", ["It rained.", "Dogs bark. Cats purr."])
    >>> purr.spans, moo.spans
    ((CitedSpan(start=11, end=21, score=1.0, source=1),), ())
    """
    text = checks.to_python_scalar(text)
    checks.string.check("text", text)
    return Attributor(read_chunks(chunks).texts).cite(text)


class Attributor:
    """Finds the spans of sources that support an answer; sources are tokenized at the first call.

    Args:
        texts: the sources.
        offsets: the position of each source in the text to which spans refer; by default 0.
    """

    def __init__(self, texts: Sequence[str], offsets: Sequence[int] = ()) -> None:
        self.texts = texts
        self._offsets = offsets or [0] * len(texts)
        self._n_compared = 0

    def cite(
        self, text: str, offset: int = 0, ends: Sequence[int] | None = None
    ) -> tuple[CitedSentence, ...]:
        """Return the sentences of a text that have words, each with the spans that support it.

        Positions are relative to a text in which this text begins at `offset`. The sentences are
        those of `sentences` for the text and `ends`.

        Raises:
            TooLargeError: there was too much to compare.
        """
        reserve("sentence_char", len(text))
        spans = list(_cut(text, ends))
        words, numbers = _words([_NUMBERS.sub(" ", text[start:end]) for start, end in spans])
        order = numbers.argsort(kind="stable")
        words, numbers = words[order], numbers[order]
        cited = []
        for first, n in zip(*(bounds.tolist() for bounds in runs(numbers)), strict=True):
            raise_if_cancelled()
            start, end = spans[numbers[first]]
            cited.append(
                CitedSentence(
                    offset + start, offset + end, self._places_of(words[first : first + n])
                )
            )
        return tuple(cited)

    def _places_of(self, words: Ids) -> tuple[CitedSpan, ...]:
        """Return the spans that support a sentence with these distinct words."""
        places, keys, numbers = self._read
        first = keys.searchsorted(words)
        df = keys.searchsorted(words, "right") - first
        self._n_compared += _OF_SENTENCE + int(df.sum()) + len(places)
        if self._n_compared > _MOST_COMPARED:
            raise TooLargeError(
                "has too many sentences to be compared with so many of chunks", "text"
            )
        weight = np.rint(_WHOLE * np.log1p(len(places) / np.maximum(df, 1))).astype(np.int64)
        whole = weight.sum()
        number, word = numbers[ragged_ranges(first, df)], np.arange(words.size).repeat(df)
        left, found = weight.copy(), list[CitedSpan]()
        while number.size:
            added = sum_by(number, left[word], len(places))
            best = int(added.argmax())
            if added[best] < (_LEAST_MORE if found else _LEAST) * whole:
                break
            there = word[number == best]
            source, start, end = places[best]
            found.append(CitedSpan(start, end, float(weight[there].sum() / whole), source))
            left[there] = 0
        return tuple(found)

    @cached_property
    def _read(self) -> tuple[list[tuple[int, int, int]], Ids, Offsets]:
        """The sentences of the sources; their different words, ascending, and the number of the sentence of each."""
        reserve("sentence_char", sum(map(len, self.texts)))
        places, texts = [], []
        for source, (text, offset) in enumerate(zip(self.texts, self._offsets, strict=True)):
            raise_if_cancelled()
            for start, end in _cut(text):
                places.append((source, offset + start, offset + end))
                texts.append(text[start:end])
        return places, *_words(texts)


def _cut(text: str, ends: Sequence[int] | None = None) -> Iterator[tuple[int, int]]:
    """Yield the spans of the sentences of a text, and check whether the request is cancelled."""
    for number, span in enumerate(sentences(text, ends)):
        if number % _STEP == 0:
            raise_if_cancelled()
            reserve("sentence", _STEP)
        yield span


class StreamingAttributor:
    """Cites a text that arrives in pieces; the citations are those of the whole text."""

    def __init__(self, citer: Attributor) -> None:
        self._citer = citer
        self._text = ""  # from the beginning of a paragraph
        self._start = 0  # its position in the text
        self._begun = self._told = self._sure = (
            0  # in it: where a sentence begins, all is told, and stops are certain
        )
        self._n_looked = 0
        self._has_capital = False

    def add(self, piece: str, *, is_last: bool = False) -> list[str | CitedSentence]:
        """Return the next parts of the text, and each complete sentence after its last part.

        The last few characters are held back while they may decide where a sentence ends. If only
        later lines of the paragraph decide that, the sentence follows later text.
        """
        self._text, n_before = self._text + piece, len(self._text)
        self._has_capital |= not f"{piece}a".islower()
        known = range(len(self._text) - _AHEAD, max(n_before - _AHEAD, 0), -1)
        self._sure = next((place for place in known if self._text[place - 1].isalnum()), self._sure)
        parts = list[str | CitedSentence]()
        if is_last or len(self._text) < _LONG or self._sure - self._n_looked > self._sure // 8:
            for end in self._certain_ends(is_last=is_last):
                parts.append(self._tell(end))
                parts += self._citer.cite(
                    self._text[self._begun : end], self._start + self._begun, [end - self._begun]
                )
                self._begun = end
            behind = max(
                (blank.end() for blank in _BLANK.finditer(self._text, 0, self._begun)), default=0
            )
            self._text, self._start, self._begun = (
                self._text[behind:],
                self._start + behind,
                self._begun - behind,
            )
            self._told, self._sure = self._told - behind, self._sure - behind
            self._n_looked = self._sure
        parts.append(self._tell(len(self._text) if is_last else self._sure))
        return [part for part in parts if part]

    def _tell(self, end: int) -> str:
        begun, self._told = self._told, max(self._told, end)
        return self._text[begun : self._told]

    def _certain_ends(self, *, is_last: bool) -> list[int]:
        """Return the ends of further sentences that do not depend on the text that follows.

        The extreme continuations of a paragraph are program code, in which each line is a sentence,
        and many short lines, in which the fewest lines are. If capitals follow in the text,
        sentences begin with a capital.
        """
        if is_last:
            ends = sentence_ends(self._text, is_lower_case=False if self._has_capital else None)
            return [end for end in ends if end > self._begun]
        text, n_lines = self._text.rstrip(), self._text.count("\n") + 1
        texts = text + "\n{" * (n_lines + 2), text + "\na" * (10 * n_lines + 10)
        is_lower_case = {False, not self._has_capital}
        every = [
            sentence_ends(text, is_lower_case=small) for text in texts for small in is_lower_case
        ]
        same = itertools.takewhile(lambda ends: len(set(ends)) == 1, zip(*every, strict=False))
        return [ends[0] for ends in same if self._begun < ends[0] < self._sure]


def _words(texts: Sequence[str]) -> tuple[Ids, Offsets]:
    """Return the different words of each of some texts, ascending, and the number of the text that has each."""
    words, numbers = list[Ids](), list[Offsets]()
    for start, end in batch_by_size(lengths(texts), BLOCK_CHARS):
        raise_if_cancelled()
        block = tokenize(texts[start:end])
        prefixes = hash_prefixes(block.ids, block.folded, block.start, block.length)
        is_same_alone = (prefixes == 0) | (
            np.frombuffer(block.folded, np.uint8)[block.start] <= ord("9")
        )
        words.append(np.where(is_same_alone, block.ids, prefixes))
        numbers.append(np.arange(start, end).repeat(block.counts))
    word, number = concat(words, np.uint64), concat(numbers, np.int64)
    order = np.lexsort((number, word))
    word, number = word[order], number[order]
    is_new = run_starts(word) | run_starts(number)
    return word[is_new], number[is_new]
