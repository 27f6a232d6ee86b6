"""Find other spellings of words of a query that occur in no chunk.

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
→ ``US``, ``GPT-4`` → ``GPT4``. The search then runs as if the user had typed the variant. Source:
the rules are ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Final

from attrs import frozen

from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS

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

    def choose(self, df_of: Callable[[str], int]) -> str | None:
        """Return the variant with the highest df, the first of equals; None if every df is 0.

        The df of a variant is that of its rarest word if `needs_all`, otherwise that of its most
        frequent word.

        Args:
            df_of: returns the number of chunks that have a word.
        """
        best, best_df = None, 0
        for text in self.texts:
            counts = list(map(df_of, text.split()))
            df = min(counts) if self.needs_all else max(counts)
            if df > best_df:
                best, best_df = text, df
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
