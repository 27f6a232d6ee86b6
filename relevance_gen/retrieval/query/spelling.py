"""Replace words of a query that occur in no chunk by other spellings or by corrections.

If neither a word of ASCII letters and digits nor an inflection of it occurs in a chunk, it has the
following variants. The search uses a variant whose words occur in chunks; if there are several, the
variant whose rarest word occurs in the most chunks:

* letters and digits separated: ``FY2022`` → ``FY 2022``, ``10K`` → ``10 K``, but not ordinals and
  decades such as ``10th`` and ``90s``; either part in a chunk is sufficient;
* a number of four digits or more split into groups of three, as a thousands separator splits it
  into tokens: ``3164`` → ``3 164``;
* an acronym in the other number: ``VMs`` → ``VM``, ``GPU`` → ``GPUs``;
* the first letter separated, if it is e or x: ``email`` → ``e mail``;
* a word of seven letters or more as two words of three letters or more, without stop words:
  ``dataset`` → ``data set``.

Words joined by ``-``, ``.`` or ``,`` become a single word if any of them is in no chunk: ``U.S.``
→ ``US``, ``GPT-4`` → ``GPT4``.

A correction is a word of a chunk at edit distance 1. A word of seven letters or more is replaced by
the most frequent word of the chunks that has the same first letter, and differs by one letter
inserted, deleted or changed, or by two adjacent letters swapped; of equally frequent words by the
first in alphabetical order. A word that occurs in a chunk, in any of its inflections, is never
replaced. Identifiers and their parts, scripts without spaces and words with digits are left
unchanged, and so are queries with operators and queries of more than 64 words.

The query with the replacements is processed as if the user had typed it. Source: the rules are
ours, measured in docs/measurements.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np
from attrs import evolve, frozen

from relevance_gen.retrieval.query.parsing import Query, parse
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from relevance_gen.text.tokenization import tokenize

_MAX_VARIED_RUNS: Final = 8
"""Maximum number of words, or runs of joined words, of a query that get variants; bounds the
work."""
_MIN_COMPOUND_LETTERS: Final = 7
_MIN_PART_LETTERS: Final = 3
_MAX_COMPOUND_LETTERS: Final = 24
_RUN: Final = re.compile(r"(?<!\w)[A-Za-z0-9]+(?:[-.,][A-Za-z0-9]+)*(?!\w)")
_WORD: Final = re.compile("[A-Za-z0-9]+")
_LETTERS_AND_DIGITS: Final = re.compile(
    "([A-Za-z]+)([0-9]+)|([0-9]+)(?!(?:st|nd|rd|th|s)$)([A-Za-z]+)"
)
"""Matches a word of letters and digits, except ordinals and decades."""
_LONG_NUMBER: Final = re.compile("[1-9][0-9]{3,14}")
_PLURAL_ACRONYM: Final = re.compile("[A-Z]{2,6}s")
_ACRONYM: Final = re.compile("[A-Z]{2,6}")
_WITH_PREFIX: Final = re.compile("[ex][a-z]{3,}")


@frozen(order=True)
class Correction:
    """A replacement of a range of a query's text.

    Attributes:
        start: index of the first character of the range.
        end: index after the last.
        text: the text that replaces it.
    """

    start: int
    end: int
    text: str

    def overlaps(self, other: Correction) -> bool:
        """Return whether the ranges have a character in common."""
        return self.start < other.end and other.start < self.end


def corrections_of(
    query: Query,
    near_terms: Mapping[str, Mapping[str, int]],
) -> list[Correction]:
    """Return the corrections of the misspelled words of a query, in the order of the text.

    Args:
        query: the query.
        near_terms: for each misspelled word the terms at edit distance 1, and the number of chunks
            that have each.
    """
    replacements = {}
    for word, terms in near_terms.items():
        if terms:
            replacements[word] = min(terms, key=lambda term: (-terms[term], term))
    if not replacements:
        return []
    tokens = tokenize([query.text], toneless=False)
    ends = tokens.start + tokens.length
    # Tokens without overlap: the parts of an identifier overlap with the identifier.
    ends_before = np.maximum.accumulate(ends)[:-1]
    is_alone = np.append(tokens.start[1:] >= ends_before, True)
    is_alone[1:] &= is_alone[:-1]
    misspelled, texts = [], []
    for token in np.flatnonzero(is_alone).tolist():
        text = replacements.get(tokens.decode_term(token))
        if text is not None:
            misspelled.append(token)
            texts.append(text)
    starts, stops = tokens.find_characters(query.text, np.array(misspelled, int))
    return list(map(Correction, starts.tolist(), stops.tolist(), texts))


def correct(query: Query, corrections: Sequence[Correction], *, is_english: bool) -> Query:
    """Return a corrected query; of overlapping corrections the first of the sequence is applied.

    Args:
        query: the query.
        corrections: the corrections.
        is_english: as for `parse`.
    """
    applied: list[Correction] = []
    for correction in corrections:
        if not any(map(correction.overlaps, applied)):
            applied.append(correction)
    text, end, replaced = "", 0, {}
    for correction in sorted(applied):
        replaced[query.text[correction.start : correction.end]] = correction.text
        text += query.text[end : correction.start] + correction.text
        end = correction.end
    corrected = parse(text + query.text[end:], inflects=True, is_english=is_english)
    return evolve(corrected, corrections=replaced)


@frozen
class Variants:
    """Variants of one range of a query.

    Attributes:
        start: index of the first character of the range.
        end: index after the last.
        texts: the variants, each of words separated by spaces.
        needs_all: whether chunks must have all words of a variant, instead of any.
    """

    start: int
    end: int
    texts: list[str]
    needs_all: bool = True

    def choose(self, df_of: Callable[[str], int]) -> list[Correction]:
        """Return the variant with the highest df, the first of equals; [] if every df is 0.

        The df of a variant is that of its rarest word if `needs_all`, otherwise that of its most
        frequent word.

        Args:
            df_of: returns the number of chunks that have a word.
        """
        best: list[Correction] = []
        best_df = 0
        for text in self.texts:
            counts = list(map(df_of, text.split()))
            df = min(counts) if self.needs_all else max(counts)
            if df > best_df:
                best, best_df = [Correction(self.start, self.end, text)], df
        return best


def find_variants(text: str, unknown: Sequence[str]) -> list[Variants]:
    """Return the variants of the words of a query.

    Args:
        text: the query.
        unknown: its normalized words that occur in no chunk.
    """
    variants = []
    for run in _RUN.finditer(text):
        words = list(_WORD.finditer(run[0]))
        is_unknown = [word[0].lower() in unknown for word in words]
        if len(words) > 1 and any(is_unknown):
            joined = "".join([word[0] for word in words])
            variants.append(Variants(run.start(), run.end(), [joined]))
        for word, has_variants in zip(words, is_unknown, strict=True):
            if has_variants:
                word_variants = _variants_of(word[0], run.start() + word.start())
                if word_variants.texts:
                    variants.append(word_variants)
    return variants[:_MAX_VARIED_RUNS]


def _variants_of(word: str, start: int) -> Variants:
    """Return the variants of one word of the query.

    Args:
        word: the word.
        start: index of its first character in the text of the query.
    """
    match = _LETTERS_AND_DIGITS.fullmatch(word)
    if match is not None:
        separated = " ".join([part for part in match.groups() if part])
        return Variants(start, start + len(word), [separated], needs_all=False)
    texts = []
    if _LONG_NUMBER.fullmatch(word):
        texts.append(f"{int(word):,}".replace(",", " "))
    elif _PLURAL_ACRONYM.fullmatch(word):
        texts.append(word[:-1])
    elif _ACRONYM.fullmatch(word):
        texts.append(f"{word}s")
    if not (word.isalpha() and word[1:].islower()):
        return Variants(start, start + len(word), texts)
    if _WITH_PREFIX.fullmatch(word.lower()):
        texts.append(f"{word[0]} {word[1:]}")
    if _MIN_COMPOUND_LETTERS <= len(word) <= _MAX_COMPOUND_LETTERS:
        for middle in range(_MIN_PART_LETTERS, len(word) - _MIN_PART_LETTERS + 1):
            parts = (word[:middle], word[middle:])
            if ENGLISH_STOP_WORDS.isdisjoint(map(str.lower, parts)):
                texts.append(" ".join(parts))
    return Variants(start, start + len(word), texts)
