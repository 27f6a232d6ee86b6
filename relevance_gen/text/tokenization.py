"""Tokenize text: each token is a slice of the folded text and the 64-bit id of its term.

Words are runs of letters, marks and digits. An identifier (``getUserName``, ``HTTPServer``,
``get_user_name``) of at most 64 KiB gives the identifier and its parts; dots separate words, so
``os.path`` is two adjacent words. Scripts without spaces give overlapping n-grams; see
`relevance_gen.text.scripts`. The Arabic article, alone or with a particle before it, is removed
from words that keep two letters or more (``والكتاب`` → ``كتاب``): otherwise all words with an
article would have the same prefix.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Bytes, Flags, Ids, Offsets, find_all, run_starts, unique
from relevance_gen.text.normalization import fold, folded_sizes
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
from relevance_gen.text.word_forms import number_flags

_MAX_IDENTIFIER_BYTES: Final = 1 << 16
"""A longer word with capitals or underscores is data and not a name, and is not split into
parts."""
_MAX_INSERTIONS: Final = 128
"""Up to this number of tokens, inserting each is faster than merging."""
_PADDING: Final = b"\n" * (LONG_BYTES + 8)
_UNDERSCORE: Final = ord("_")

_ARTICLES: Final = tuple(article.encode() for article in "وال فال بال كال ولل ال لل".split())
"""The Arabic article, and the article after "and", "so", "with", "like" and "for"; the longest are
first."""
_SHORT_ARTICLES: Final = _ARTICLES[-2:]
"""The last two articles, of which every other article contains at least one as a substring."""
_ARABIC_LETTER_BYTES: Final = 2


@frozen
class Occurrences:
    """The tokens of n texts, text after text: T occurrences of terms.

    Attributes:
        folded: the folded, lower-cased bytes of all texts.
        start: offset of each occurrence in `folded`, ascending, shape (T,).
        length: number of bytes of each occurrence, shape (T,).
        ids: id of each occurrence's term, shape (T,).
        counts: number of tokens in each text, shape (n,).
        digits: offsets of the digits in `folded`, ascending.
    """

    folded: bytes
    start: Offsets
    length: Offsets
    ids: Ids
    counts: Offsets
    digits: Offsets

    def decode_term(self, occurrence: int) -> str:
        """Return the folded spelling of a token, truncated to `MAX_SPELLING_BYTES` bytes.

        `occurrence` is the index of the token in `start`, in [0, T).
        """
        start = int(self.start[occurrence])
        n_bytes = min(int(self.length[occurrence]), MAX_SPELLING_BYTES)
        return self.folded[start : start + n_bytes].decode("utf-8", "replace")

    def find_characters(
        self,
        text: str,
        selected: Offsets,
    ) -> tuple[Offsets, Offsets]:
        """Return the start and the end of selected tokens in a text, in code points.

        A token's range includes the following characters that normalize to nothing, such as
        combining marks. For a part of an identifier that starts or ends inside of the normalization
        of one character, the range of the whole identifier is returned.

        Args:
            text: the text, the only one from which these occurrences were made.
            selected: indices of the tokens to find, shape (m,).

        Returns:
            The index of the first character of each selected token, and the index after its last
            character, shape (m,) each.
        """
        # The normalized bytes of the text follow a line end.
        low = self.start - 1
        high = low + self.length
        # Number of normalized bytes up to the end of each character.
        n_bytes_to = np.cumsum(folded_sizes(text))
        start = n_bytes_to.searchsorted(low[selected], "right")
        last = n_bytes_to.searchsorted(high[selected] - 1, "right")
        # A part of an identifier can start or end inside of the bytes of one character: then the
        # whole identifier is used.
        start_bytes = np.where(start, n_bytes_to[start - 1], 0)
        is_inside = start_bytes != low[selected]
        is_inside |= n_bytes_to[last] != high[selected]
        if is_inside.any():
            reach = np.maximum.accumulate(high)
            is_first = np.append(True, high[1:] > reach[:-1])
            first_tokens = is_first.nonzero()[0]
            identifier = first_tokens.searchsorted(selected[is_inside], "right") - 1
            whole = first_tokens[identifier]
            start[is_inside] = n_bytes_to.searchsorted(low[whole], "right")
            last[is_inside] = n_bytes_to.searchsorted(high[whole] - 1, "right")
        end = n_bytes_to.searchsorted(n_bytes_to[last], "right")
        return start, end

    def number_ids(self) -> Ids:
        """Return the distinct ids of the words for which `is_number` is True, ascending."""
        occurrences, _ = find_all(self.start, self.digits)
        letters = np.frombuffer(self.folded, np.uint8)
        start = self.start.take(occurrences)
        length = self.length.take(occurrences)
        flags = number_flags(letters, start, length)
        return unique(self.ids.take(occurrences.compress(flags)))


@frozen(eq=False)
class _Slices:
    """Start and length in bytes of n slices of the padded folded text, shape (n,) each."""

    start: Offsets
    length: Offsets


def tokenize(
    texts: Sequence[str],
    *,
    toneless: bool = True,
) -> Occurrences:
    """Return the tokens of texts, which can be any strings.

    The caller should pass at most some hundred kilobytes at a time, so that all arrays stay in the
    cache of a CPU core.

    Args:
        texts: the texts.
        toneless: whether Vietnamese words with tones give a second token without tones.
    """
    folded_texts = fold(texts, toneless=toneless)
    folded = folded_texts.content
    cased = b"\n" + folded + _PADDING
    lowered = cased.lower()
    letters = np.frombuffer(lowered, np.uint8)
    # For each byte: whether it is part of a word, and whether an identifier is split there.
    is_digit = (letters - np.uint8(ord("0"))) < 10
    is_word = _is_lower(letters)
    is_word |= is_digit
    is_word |= letters >= 0x80  # letters and marks of other scripts
    is_ascii = folded.isascii()
    ngrams = None if is_ascii else _split_ngrams(letters, is_word)
    is_split = _find_splits(np.frombuffer(cased, np.uint8), letters, is_word)
    tokens = _word_slices(is_word)
    for word in (tokens.length > _MAX_IDENTIFIER_BYTES).nonzero()[0].tolist():
        start = tokens.start[word]
        is_split[start : start + tokens.length[word]] = False
    splits = np.flatnonzero(is_split)
    parts = _identifier_parts(letters, tokens, splits) if splits.size else None
    if not is_ascii and any(article in lowered for article in _SHORT_ARTICLES):
        tokens = _without_articles(lowered, tokens, splits)
    if parts is not None:
        tokens = _merge(tokens, parts)
    if ngrams is not None and ngrams.start.size:
        tokens = _merge(tokens, ngrams)
    # + 1, because `cased` begins with a line end.
    counts = np.diff(tokens.start.searchsorted(folded_texts.ends + 1), prepend=0)
    ids = hash_terms(lowered, tokens.start, tokens.length)
    digits = is_digit.nonzero()[0]
    return Occurrences(lowered, tokens.start, tokens.length, ids, counts, digits)


def _word_slices(is_word: Flags) -> _Slices:
    """Return the words: the runs of bytes for which `is_word` is True.

    The first and the last element of `is_word` must be False.
    """
    is_edge = np.zeros(is_word.size, bool)
    np.not_equal(is_word[1:], is_word[:-1], out=is_edge[1:])
    edges = np.flatnonzero(is_edge)
    start = edges[::2].copy()  # contiguous, which makes all later steps faster
    return _Slices(start, edges[1::2] - start)


def _without_articles(
    lowered: bytes,
    words: _Slices,
    splits: Offsets,
) -> _Slices:
    """Return the words without the Arabic article, if two letters or more remain.

    Args:
        lowered: folded, lower-cased text.
        words: the words.
        splits: offsets where identifiers are split, ascending; these words remain unchanged.
    """
    first = eight_bytes(lowered)[words.start]
    n_removed = np.zeros(words.start.size, np.int64)
    for article in _ARTICLES:
        n_bytes = len(article)
        article_bytes = np.uint64(int.from_bytes(article, "little"))
        has_article = (first & LOW_BYTES[n_bytes]) == article_bytes
        is_long_enough = words.length >= n_bytes + 2 * _ARABIC_LETTER_BYTES
        n_removed[has_article & is_long_enough & (n_removed == 0)] = n_bytes
    n_removed[_owners(words, splits)] = 0
    return _Slices(words.start + n_removed, words.length - n_removed)


def _owners(words: _Slices, offsets: Offsets) -> Offsets:
    """Return the index of the word that contains each offset; each must be within a word."""
    return words.start.searchsorted(offsets, "right") - 1


def _split_ngrams(letters: Bytes, is_word: Flags) -> _Slices:
    """Return the overlapping n-grams of the runs of scripts without spaces.

    Their bytes are removed from `is_word`, which is modified in place.
    A run shorter than its n-gram is one token.
    """
    is_lead = (letters - np.uint8(FIRST_NGRAM_LEAD)) <= TRIPLE_LEAD - FIRST_NGRAM_LEAD
    starts = np.flatnonzero(is_lead)
    if not starts.size:
        return _Slices(starts, starts)
    is_word &= ~is_lead
    for offset in range(1, NGRAM_CHARACTER_BYTES):
        is_word[offset:] &= ~is_lead[:-offset]
    # Runs of adjacent characters of one n-gram size, as index and number of characters.
    is_triple = letters[starts] == TRIPLE_LEAD
    is_break = np.diff(starts) != NGRAM_CHARACTER_BYTES
    is_break |= is_triple[1:] != is_triple[:-1]
    run_first = np.concatenate(([0], np.flatnonzero(is_break) + 1))
    run_length = np.diff(run_first, append=starts.size)
    ngram_size = np.minimum(np.where(is_triple[run_first], 3, 2), run_length)
    # An n-gram begins at each character that has enough characters of its run after it.
    index_in_run = np.arange(starts.size) - np.repeat(run_first, run_length)
    last_index = np.repeat(run_length - ngram_size, run_length)
    begins = np.flatnonzero(index_in_run <= last_index)
    n_bytes = np.repeat(NGRAM_CHARACTER_BYTES * ngram_size, run_length)
    return _Slices(starts.take(begins), n_bytes.take(begins))


def _find_splits(
    cased: Bytes,
    letters: Bytes,
    is_word: Flags,
) -> Flags:
    """Return whether an identifier is split at each byte, and add joining underscores to `is_word`.

    A joining underscore is a single underscore between two bytes of words. Splits are at these
    underscores, and at camel-case boundaries: a capital in a word next to a small letter.

    Args:
        cased: folded text before lower-casing.
        letters: the same text in lower case.
        is_word: whether each byte is part of a word, modified in place.
    """
    is_small = _is_lower(cased)
    is_split = np.zeros(is_word.size, bool)
    is_split[1:] = cased[1:] != letters[1:]
    is_split[1:] &= is_word[:-1]
    is_split[1:-1] &= is_small[:-2] | is_small[2:]
    del is_small
    is_joint = letters == _UNDERSCORE
    is_joint[1:-1] &= is_word[:-2]
    is_joint[1:-1] &= is_word[2:]
    is_word |= is_joint
    is_split |= is_joint
    return is_split


def _identifier_parts(
    letters: Bytes,
    words: _Slices,
    splits: Offsets,
) -> _Slices:
    """Return the parts of the words that are split, in text order.

    Args:
        letters: folded, lower-cased text.
        words: all words.
        splits: offsets where words are split, ascending.
    """
    owner = _owners(words, splits)
    is_first = run_starts(owner)
    is_last = np.append(is_first[1:], True)
    is_underscore = letters[splits] == _UNDERSCORE
    # A part begins with its word, at a capital, or after an underscore; it ends where the next
    # begins or the word ends.
    word_starts = words.start[owner[is_first]]
    word_ends = (words.start + words.length)[owner[is_last]]
    starts = np.concatenate((word_starts, splits + is_underscore))
    ends = np.concatenate((splits, word_ends))
    starts.sort()
    ends.sort()
    return _Slices(starts, ends - starts)


def _is_lower(letters: Bytes) -> Flags:
    return (letters - np.uint8(ord("a"))) < 26


def _merge(tokens: _Slices, more: _Slices) -> _Slices:
    """Merge two lists of slices by their starts; for equal starts, a slice of `tokens` comes first.

    The starts of each list must ascend.
    """
    if more.start.size > _MAX_INSERTIONS:
        starts = np.concatenate((tokens.start, more.start))
        lengths = np.concatenate((tokens.length, more.length))
        # The starts are two ascending runs, which this sort merges.
        order = np.argsort(starts, kind="stable")
        return _Slices(starts.take(order), lengths.take(order))
    insert_at = tokens.start.searchsorted(more.start, "right").tolist()
    bounds = [0, *insert_at, tokens.start.size]
    start = _insert(tokens.start, more.start, bounds)
    return _Slices(start, _insert(tokens.length, more.length, bounds))


def _insert(
    values: Offsets,
    more: Offsets,
    bounds: list[int],
) -> Offsets:
    """Return `values` with ``more[i]`` inserted before the element at index ``bounds[i + 1]``.

    `bounds` begins with 0 and ends with the size of `values`.
    """
    parts = []
    for index, (low, high) in enumerate(itertools.pairwise(bounds)):
        parts += [values[low:high], more[index : index + 1]]
    return np.concatenate(parts)
