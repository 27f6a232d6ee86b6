r"""The function `cite`: find the sentences of sources that support the sentences of a text.

A span p is a sentence of a source. Words are normalized as in search, and match if their first five
letters are equal; English stop words, numbers and n-grams match if they are equal. With N sentences
in all sources, of which df(t) contain a word t, the weight of the word is

    w(t) = ln(1 + N / max(df(t), 1))

and the share of a sentence s that a span p covers is the share of the weight of distinct words:

    share(s, p) = Σ w(t) for t in both s and p  /  Σ w(t) for t in s

The span with the largest share supports a sentence if the share is at least 0.35. Further spans are
added in the order of the weight that they add, while that is at least 0.2 of the total. If spans
are equal, the first is used. A sentence that occurs verbatim in a source has a share of 1. A
sentence that repeats itself, or whose numbers, names or negations disagree with its spans
(`asking.agreement`), gets none. Source: the rule is ours, measured in bench/citing.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from attrs import frozen

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
from relevance_gen.asking.agreement import Statement, agrees, read_statement
from relevance_gen.errors import TooLargeError
from relevance_gen.forks import LazyAttribute
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.request_scope import raise_if_cancelled, reserve
from relevance_gen.text.blocks import BLOCK_CHARS, batch_by_size, lengths
from relevance_gen.text.chunking import sentences
from relevance_gen.text.sentences import sentence_ends
from relevance_gen.text.term_hashes import hash_prefixes
from relevance_gen.text.tokenization import tokenize
from relevance_gen.types import Chunk, CitedSentence, CitedSpan, Metadata

_MIN_SHARE: Final = 0.35
"""Minimum share of a sentence that its first span covers."""
_MIN_ADDED_SHARE: Final = 0.2
"""Minimum share of a sentence that each further span adds."""
_WEIGHT_SCALE: Final = 1 << 20
"""Weights are multiplied by this and rounded to integers, so that their sum is exact."""
_MAX_COMPARED_WORDS: Final = 1 << 28
"""Maximum words of sources that are compared for one answer, which takes some seconds."""
_SENTENCE_COST: Final = 1 << 12
"""The cost of a sentence in addition to its words, in words compared."""
_LOOKAHEAD_CHARS: Final = 10
"""Characters after which it is certain whether a word begins a sentence: the longest such word in
`relevance_gen.text.sentences`.
"""
_LONG_PARAGRAPH_CHARS: Final = 2000
"""Paragraphs up to this length are processed with each piece, longer paragraphs less often."""
_RESERVED_SENTENCES: Final = 64
"""Sentences for which memory is reserved at once."""
_BLANK_LINE: Final = re.compile(r"\n\s*\n")
_SOURCE_NUMBERS: Final = re.compile(r"\[\d{1,3}(?:[-–,;] ?\d{1,3})*\]")
"""Matches source numbers in the text of a model, such as ``[1]`` or ``[2, 3]``."""


def cite(
    text: str,
    chunks: Iterable[str | Metadata | Chunk],
) -> tuple[CitedSentence, ...]:
    """Return the sentences of a text, each with the spans of chunks that support it.

    Args:
        text: any string, such as an answer; numbers in brackets, as in ``[1]``, are ignored.
        chunks: as in `search`; titles are ignored.

    Returns:
        The sentences that have words, in order; the tuple of spans of an unsupported sentence is
        empty.

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


@frozen
class _DistinctWords:
    """The distinct words of each of several sentences, sorted by word and sentence.

    There are n pairs of a sentence and a word that occurs in it.

    Attributes:
        ids: the id of the word of each pair, shape (n,).
        sentences: the index of the sentence of each pair, shape (n,).
    """

    ids: Ids
    sentences: Offsets


@frozen
class _SourceSentences:
    """All sentences of all sources, in order.

    Attributes:
        spans: for each sentence, the index of its source, its start and its end. The offset of the
            source, as in `Attributor`, is added to start and end.
        words: the distinct words of each sentence; sentence i has the span ``spans[i]``.
    """

    spans: list[tuple[int, int, int]]
    words: _DistinctWords


class Attributor:
    """Finds the spans of sources that support an answer; sources are tokenized at the first call.

    Args:
        texts: the sources.
        offsets: for each source, the number that is added to the positions of its spans: the
            position of the source in a longer text. By default, all are 0.
    """

    def __init__(self, texts: Sequence[str], offsets: Sequence[int] = ()) -> None:
        self.texts = texts
        self._offsets = offsets or [0] * len(texts)
        self._n_compared = 0
        self._statements: dict[CitedSpan, Statement] = {}

    def cite(
        self, text: str, offset: int = 0, ends: Sequence[int] | None = None
    ) -> tuple[CitedSentence, ...]:
        """Return the sentences of a text that have words, each with the spans that support it.

        Args:
            text: the text.
            offset: added to the positions of the returned sentences: the position of this text in
                a longer text.
            ends: the ends of the sentences, as positions in `text`; by default they are determined.

        Raises:
            TooLargeError: in this call and all earlier calls of this object, too many words of
                texts and sources had to be compared.
        """
        reserve("sentence_char", len(text))
        spans = list(_sentence_spans(text, ends))
        texts = [_SOURCE_NUMBERS.sub(" ", text[start:end]) for start, end in spans]
        words = _distinct_words(texts)
        order = words.sentences.argsort(kind="stable")
        word_ids = words.ids[order]
        sentence_ords = words.sentences[order]
        cited = []
        for first, n_words in zip(*runs(sentence_ords), strict=True):
            raise_if_cancelled()
            sentence_ord = sentence_ords[first]
            start, end = spans[sentence_ord]
            supporting = self._supporting_spans(word_ids[first : first + n_words])
            sources = [self._statement_of(span) for span in supporting]
            if sources and not agrees(read_statement(texts[sentence_ord]), sources):
                supporting = ()
            cited.append(CitedSentence(offset + start, offset + end, supporting))
        return tuple(cited)

    def _statement_of(self, span: CitedSpan) -> Statement:
        """Return the `Statement` of the text of a span; it is computed once and then stored."""
        key = CitedSpan(span.start, span.end, 1.0, span.source)
        if key not in self._statements:
            offset = self._offsets[span.source]
            text = self.texts[span.source][span.start - offset : span.end - offset]
            reserve("sentence_char", len(text))
            self._statements[key] = read_statement(text)
        return self._statements[key]

    def _supporting_spans(self, words: Ids) -> tuple[CitedSpan, ...]:
        """Return the spans that support a sentence, in the order in which they were selected.

        The spans are selected by the rule of the module docstring, without `agrees`.

        Args:
            words: the ids of the distinct words of the sentence, shape (n,).

        Raises:
            TooLargeError: too many words were compared by this object.
        """
        sources = self._source_sentences
        n_spans = len(sources.spans)
        first = sources.words.ids.searchsorted(words)
        df = sources.words.ids.searchsorted(words, "right") - first
        self._n_compared += _SENTENCE_COST + int(df.sum()) + n_spans
        if self._n_compared > _MAX_COMPARED_WORDS:
            raise TooLargeError(
                "has too many sentences for a comparison with the sentences of the chunks", "text"
            )
        idf = np.log1p(n_spans / np.maximum(df, 1))
        weights = np.rint(_WEIGHT_SCALE * idf).astype(np.int64)
        total = weights.sum()
        # Each pair of a source sentence and a word of both, shape (n_pairs,).
        pair_sentences = sources.words.sentences[ragged_ranges(first, df)]
        pair_words = np.arange(words.size).repeat(df)
        uncovered = weights.copy()
        min_share = _MIN_SHARE
        supporting: list[CitedSpan] = []
        while pair_sentences.size:
            added_weights = sum_by(pair_sentences, uncovered[pair_words], n_spans)
            best = int(added_weights.argmax())
            if added_weights[best] < min_share * total:
                break
            covered_words = pair_words[pair_sentences == best]
            share = float(weights[covered_words].sum() / total)
            source, start, end = sources.spans[best]
            supporting.append(CitedSpan(start, end, share, source))
            uncovered[covered_words] = 0
            min_share = _MIN_ADDED_SHARE
        return tuple(supporting)

    @LazyAttribute
    def _source_sentences(self) -> _SourceSentences:
        reserve("sentence_char", sum(map(len, self.texts)))
        spans = []
        texts = []
        for source, text in enumerate(self.texts):
            raise_if_cancelled()
            offset = self._offsets[source]
            for start, end in _sentence_spans(text):
                spans.append((source, offset + start, offset + end))
                texts.append(text[start:end])
        return _SourceSentences(spans, _distinct_words(texts))


def _sentence_spans(
    text: str,
    ends: Sequence[int] | None = None,
) -> Iterator[tuple[int, int]]:
    """Yield the start and the end of each sentence of `text`.

    Args:
        text: the text.
        ends: the ends of the sentences; by default they are determined.

    Raises:
        RequestCancelledError: the current request was cancelled.
    """
    for sentence_ord, span in enumerate(sentences(text, ends)):
        if sentence_ord % _RESERVED_SENTENCES == 0:
            raise_if_cancelled()
            reserve("sentence", _RESERVED_SENTENCES)
        yield span


class StreamingAttributor:
    """Finds the supporting spans of a text that arrives in pieces.

    The resulting `CitedSentence` objects equal those of `Attributor.cite` for the whole text.
    """

    def __init__(self, attributor: Attributor) -> None:
        self._attributor = attributor
        self._text = ""  # from the beginning of a paragraph
        self._offset = 0  # of this paragraph in the whole text
        # Positions in the paragraph:
        self._sentence_start = 0  # the first sentence that is not cited
        self._returned_end = 0  # the end of the returned text
        self._certain_end = 0  # before it, the text that follows changes no end of a sentence
        self._searched_end = 0  # `_certain_end` of the last search for sentences
        self._has_capital = False

    def add(self, piece: str, *, is_last: bool = False) -> list[str | CitedSentence]:
        """Append a piece to the text, and return its new parts and its new complete sentences.

        A sentence is complete if later text cannot change its end. A complete sentence, with its
        citations, is returned directly after the part that contains its end. The last few
        characters of the text are held back until more text arrives, because a sentence can end in
        them. The end of a sentence can also depend on later lines of its paragraph; then the
        sentence is returned after these lines, by a later call.

        Args:
            piece: the next piece of the text.
            is_last: whether no text follows; then nothing is held back.
        """
        n_before = len(self._text)
        self._text += piece
        self._has_capital |= not f"{piece}a".islower()
        first_new = max(n_before - _LOOKAHEAD_CHARS, 0)
        for end in range(len(self._text) - _LOOKAHEAD_CHARS, first_new, -1):
            if self._text[end - 1].isalnum():
                self._certain_end = end
                break
        parts: list[str | CitedSentence] = []
        is_short = len(self._text) < _LONG_PARAGRAPH_CHARS
        has_grown = self._certain_end - self._searched_end > self._certain_end // 8
        if is_last or is_short or has_grown:
            for end in self._certain_ends(is_last=is_last):
                start = self._sentence_start
                parts.append(self._text_until(end))
                sentence = self._text[start:end]
                parts += self._attributor.cite(sentence, self._offset + start, [end - start])
                self._sentence_start = end
            self._discard_paragraphs()
            self._searched_end = self._certain_end
        parts.append(self._text_until(len(self._text) if is_last else self._certain_end))
        return [part for part in parts if part]

    def _discard_paragraphs(self) -> None:
        """Discard the paragraphs whose sentences are all cited."""
        n_chars = 0
        for blank in _BLANK_LINE.finditer(self._text, 0, self._sentence_start):
            n_chars = blank.end()
        self._text = self._text[n_chars:]
        self._offset += n_chars
        self._sentence_start -= n_chars
        self._returned_end -= n_chars
        self._certain_end -= n_chars

    def _text_until(self, end: int) -> str:
        start = self._returned_end
        self._returned_end = max(start, end)
        return self._text[start : self._returned_end]

    def _certain_ends(self, *, is_last: bool) -> list[int]:
        """Return the ends, in `_text`, of the complete sentences that are not cited yet.

        If `is_last` is true, all sentences are complete. Otherwise a sentence is complete if no
        later text can change its end. Later lines can change how the lines of a paragraph are
        divided into sentences. Therefore the text is divided twice, with two extreme continuations
        appended: lines of program code, with which each line of the paragraph becomes a sentence,
        and short lines, with which as few lines as possible become separate sentences. While the
        text has no capital letter, each of the two is also divided by the rule for text without
        capitals. An end is returned if all these divisions, and all their earlier ends, are equal.
        """
        if is_last:
            ends = sentence_ends(self._text, is_lower_case=False if self._has_capital else None)
            return [end for end in ends if end > self._sentence_start]
        text = self._text.rstrip()
        n_lines = self._text.count("\n") + 1
        as_code = text + "\n{" * (n_lines + 2)
        as_short_lines = text + "\na" * (10 * n_lines + 10)
        ends_by_case = [
            sentence_ends(continued, is_lower_case=is_lower_case)
            for continued in (as_code, as_short_lines)
            for is_lower_case in {False, not self._has_capital}
        ]
        certain = []
        for end, *other_ends in zip(*ends_by_case, strict=False):
            if set(other_ends) != {end}:
                break
            if self._sentence_start < end < self._certain_end:
                certain.append(end)
        return certain


def _distinct_words(texts: Sequence[str]) -> _DistinctWords:
    """Return the distinct words of each text, by the rule of the module docstring."""
    id_blocks: list[Ids] = []
    sentence_blocks: list[Offsets] = []
    for start, end in batch_by_size(lengths(texts), BLOCK_CHARS):
        raise_if_cancelled()
        block = tokenize(texts[start:end])
        prefixes = hash_prefixes(block.ids, block.folded, block.start, block.length)
        first_bytes = np.frombuffer(block.folded, np.uint8)[block.start]
        must_be_equal = (prefixes == 0) | (first_bytes <= ord("9"))
        id_blocks.append(np.where(must_be_equal, block.ids, prefixes))
        sentence_blocks.append(np.arange(start, end).repeat(block.counts))
    ids = concat(id_blocks, np.uint64)
    sentence_ords = concat(sentence_blocks, np.int64)
    order = np.lexsort((sentence_ords, ids))
    ids = ids[order]
    sentence_ords = sentence_ords[order]
    is_new = run_starts(ids) | run_starts(sentence_ords)
    return _DistinctWords(ids[is_new], sentence_ords[is_new])
