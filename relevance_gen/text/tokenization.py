"""Cut text into terms: each a slice of the folded bytes and a 64-bit id.

Words are runs of letters, marks and digits. An identifier (``getUserName``, ``HTTPServer``, ``get_user_name``) gives
the whole and its parts, if it has at most 64 KiB; dots part words, so that ``os.path`` is two words side by side.
Scripts without spaces give overlapping n-grams; see `relevance_gen.text.scripts`. The Arabic article, alone
or with a particle written on to it, comes off words that keep two letters or more (``والكتاب`` → ``كتاب``): else all
words with it would begin alike.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Bytes, Flags, Ids, Offsets, run_starts
from relevance_gen.text.normalization import fold
from relevance_gen.text.scripts import (
    FIRST_NGRAM_LEAD,
    NGRAM_CHARACTER_BYTES,
    TRIPLE_LEAD,
)
from relevance_gen.text.term_hashes import (
    LONG_BYTES,
    LOW_BYTES,
    MAX_SPELLING_BYTES,
    eight_bytes,
    hash_terms,
)

_IDENTIFIER_BYTES: Final = 1 << 16
"""A longer word with capitals or underscores in it is data, not a name, and has no parts."""
_FEW: Final = 128
"""At most so many occurrences are inserted one by one, which is then quicker than merging."""
_PADDING: Final = b"\n" * (LONG_BYTES + 8)

_ARTICLES: Final = tuple(article.encode() for article in "وال فال بال كال ولل ال لل".split())
"""The Arabic article, and "and", "so", "with", "like" and "for" before it; longer ones first."""
_ARABIC_LETTER_BYTES: Final = 2


@frozen
class Occurrences:
    """The occurrences of terms in some texts, in reading order."""

    folded: bytes  # the folded, lower-cased bytes of all texts
    start: Offsets  # offset of each occurrence in `folded`, shape (T,), ascending
    length: Offsets  # bytes of each occurrence, shape (T,)
    ids: Ids  # id of each occurrence's term, shape (T,)
    counts: Offsets  # occurrences of each text, shape (number of texts,)

    def decode_term(self, occurrence: int) -> str:
        """Return the folded spelling of an occurrence, at most `MAX_SPELLING_BYTES` of it."""
        start = int(self.start[occurrence])
        return self.folded[
            start : start + min(int(self.length[occurrence]), MAX_SPELLING_BYTES)
        ].decode("utf-8", "replace")


def tokenize(texts: Sequence[str], *, toneless: bool = True) -> Occurrences:
    """Cut any strings into terms, with `toneless` Vietnamese words a second time without their tones.

    Work on a few hundred kilobytes at a time: every array then stays in the core's cache.
    """
    folded, ends = fold(texts, toneless=toneless)
    cased = b"\n" + folded + _PADDING
    lowered = cased.lower()
    letters = np.frombuffer(lowered, np.uint8)
    word = _is_lower(letters)
    word |= (letters - np.uint8(ord("0"))) < 10
    word |= letters >= 0x80  # letters and marks of other scripts
    is_ascii = folded.isascii()
    ngrams = None if is_ascii else _cut_ngrams(letters, word)
    cut = _identifier_cuts(np.frombuffer(cased, np.uint8), letters, word)
    edge = np.zeros(word.size, bool)
    np.not_equal(word[1:], word[:-1], out=edge[1:])
    edges = np.flatnonzero(edge)
    start = edges[::2].copy()  # contiguous, which is quicker for all that follows
    length = edges[1::2] - start
    for endless in (length > _IDENTIFIER_BYTES).nonzero()[0].tolist():
        cut[start[endless] : start[endless] + length[endless]] = False
    cuts = np.flatnonzero(cut)
    parts = _identifier_parts(letters, start, length, cuts) if cuts.size else None
    if not is_ascii and (_ARTICLES[-2] in lowered or _ARTICLES[-1] in lowered):
        start, length = _without_articles(lowered, start, length, cuts)
    if parts is not None:
        start, length = _merge(start, length, *parts)
    if ngrams is not None and ngrams[0].size:
        start, length = _merge(start, length, *ngrams)
    counts = np.diff(
        np.searchsorted(start, ends + 1), prepend=0
    )  # +1: `cased` begins with a line end
    return Occurrences(lowered, start, length, hash_terms(lowered, start, length), counts)


def _without_articles(
    lowered: bytes, start: Offsets, length: Offsets, cuts: Offsets
) -> tuple[Offsets, Offsets]:
    """Take the Arabic article off words that keep two letters or more; identifiers, cut at `cuts`, keep theirs."""
    first = eight_bytes(lowered)[start]
    cut = np.zeros(start.size, np.int64)
    for article in _ARTICLES:
        n = len(article)
        begins = (first & LOW_BYTES[n]) == np.uint64(int.from_bytes(article, "little"))
        cut[begins & (cut == 0) & (length >= n + 2 * _ARABIC_LETTER_BYTES)] = n
    cut[np.searchsorted(start, cuts, "right") - 1] = 0
    return start + cut, length - cut


def _cut_ngrams(letters: Bytes, word: Flags) -> tuple[Offsets, Offsets]:
    """Cut runs of scripts without spaces into overlapping n-grams, and take their bytes out of `word`.

    A run shorter than its n-gram is a term as a whole.
    """
    leads = (letters - np.uint8(FIRST_NGRAM_LEAD)) <= TRIPLE_LEAD - FIRST_NGRAM_LEAD
    starts = np.flatnonzero(leads)
    if not starts.size:
        return starts, starts
    word &= ~leads
    for following in range(1, NGRAM_CHARACTER_BYTES):
        word[following:] &= ~leads[:-following]
    triple = letters[starts] == TRIPLE_LEAD
    breaks = (
        np.flatnonzero((np.diff(starts) != NGRAM_CHARACTER_BYTES) | (triple[1:] != triple[:-1])) + 1
    )
    run_first = np.concatenate(([0], breaks))
    run_length = np.diff(run_first, append=starts.size)
    size = np.minimum(np.where(triple[run_first], 3, 2), run_length)
    in_run = np.arange(starts.size) - np.repeat(run_first, run_length)
    begins = np.flatnonzero(in_run <= np.repeat(run_length - size, run_length))
    return starts.take(begins), np.repeat(NGRAM_CHARACTER_BYTES * size, run_length).take(begins)


def _identifier_cuts(cased: Bytes, letters: Bytes, word: Flags) -> Flags:
    """Find where identifiers are cut, and take single underscores between letters into `word`.

    That is at each such underscore, and at a hump: a capital inside a word with a small letter before or behind it.
    """
    small = _is_lower(cased)
    cut = np.zeros(word.size, bool)
    cut[1:] = cased[1:] != letters[1:]
    cut[1:] &= word[:-1]
    cut[1:-1] &= small[:-2] | small[2:]
    del small
    joint = letters == ord("_")
    joint[1:-1] &= word[:-2]
    joint[1:-1] &= word[2:]
    word |= joint
    cut |= joint
    return cut


def _identifier_parts(
    letters: Bytes, start: Offsets, length: Offsets, cuts: Offsets
) -> tuple[Offsets, Offsets]:
    """Return start and length of the parts of every word that is cut."""
    owner = np.searchsorted(start, cuts, "right") - 1
    first = run_starts(owner)
    underscore = letters[cuts] == ord("_")
    # A part begins with its word, at a hump, or behind an underscore; it ends where the next begins or the word ends.
    begin = np.concatenate((start[owner[first]], cuts + underscore))
    end = np.concatenate((cuts, (start + length)[owner[np.append(first[1:], True)]]))
    begin.sort()
    end.sort()
    return begin, end - begin


def _is_lower(letters: Bytes) -> Flags:
    return (letters - np.uint8(ord("a"))) < 26


def _merge(
    start: Offsets, length: Offsets, more_start: Offsets, more_length: Offsets
) -> tuple[Offsets, Offsets]:
    """Merge two lists in reading order; of two occurrences with one start the first list's comes first."""
    if more_start.size > _FEW:
        starts = np.concatenate((start, more_start))
        order = np.argsort(
            starts, kind="stable"
        )  # the starts are two ascending runs, which this sort merges
        return starts.take(order), np.concatenate((length, more_length)).take(order)
    offsets = [0, *np.searchsorted(start, more_start, "right").tolist(), start.size]
    return _weave(start, more_start, offsets), _weave(length, more_length, offsets)


def _weave(values: Offsets, more: Offsets, offsets: list[int]) -> Offsets:
    """Insert a few values: `more[i]` at `offsets[i + 1]`; the first and last offset are the ends of `values`."""
    between = [values[low:high] for low, high in itertools.pairwise(offsets)]
    pieces = [
        piece for number, part in enumerate(between) for piece in (part, more[number : number + 1])
    ]
    return np.concatenate(pieces)
