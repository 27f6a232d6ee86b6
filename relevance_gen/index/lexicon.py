"""Hold the different terms of some chunks, and what is made of each: stumps, letters in a row, stems.

All of it is made when first asked for, and for all words at once or for all that begin alike: a question asks for what
many words have in common, and an index is asked many questions.
"""

from __future__ import annotations

import functools
import itertools
import re
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from relevance_gen import arrays
from relevance_gen.arrays import (
    Bytes,
    Flags,
    GrowingArray,
    Hashes,
    Ids,
    Offsets,
    TermOrds,
)
from relevance_gen.text.scripts import FIRST_NGRAM_LEAD, TRIPLE_LEAD
from relevance_gen.text.stems import MIN_LETTERS, stem_all
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from relevance_gen.text.term_hashes import (
    SPELLED_BYTES,
    STUMP_BYTES,
    hash_prefixes,
    prefix_bucket_bounds,
)

MADE_BYTES: Final = 26
"""What is made of a word when first asked for takes at most so many bytes: stem, letters, stump and its number, how
many chunks of a sample have it, and whether it is inflected."""
_STEP: Final = 1 << 13
"""Terms spelled together: it bounds the memory for very many."""
_GRAM_LETTERS: Final = 4
_LINE_END: Final = ord("\n")
_MIX: Final = np.array(
    [0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F, 0xA0761D6478BD642F], np.uint64
)


@frozen(eq=False)
class Lexicon:
    """Some terms, in the order of their ids; a term's number is its index here."""

    ids: Ids  # their ids, ascending, shape (V,)
    spelling: Bytes  # their spellings, each ended by a line end; at most the first `SPELLED_BYTES` of each
    spelling_first: Offsets  # offset of each spelling, shape (V + 1,)
    _stems: dict[int, npt.NDArray[np.int64]] = field(init=False, factory=dict, repr=False)

    def __reduce__(self) -> tuple[type[Lexicon], tuple[Ids, Bytes, Offsets]]:
        """Leave the remembered stems out of a pickle: they are kept by `hash`, which every process has its own of."""
        return Lexicon, (self.ids, self.spelling, self.spelling_first)

    @property
    def size(self) -> int:
        """Number of terms, V."""
        return self.ids.size

    def find(self, ids: Ids) -> Offsets:
        """Return the number of each id's term; -1 where there is none."""
        return arrays.find(self.ids, ids)

    def find_exact(self, term_id: int) -> Offsets:
        """Return the number of one term, shape (1,), or none, shape (0,)."""
        numbers = self.find(np.array([term_id], np.uint64))
        return numbers[numbers >= 0]

    def decode_terms(self, numbers: Offsets) -> list[str]:
        """Return the spellings of some words."""
        first = self.spelling_first[numbers]
        letters = self.spelling[
            arrays.ragged_ranges(first, self.spelling_first[numbers + 1] - first)
        ]
        return letters.tobytes().decode("utf-8", "replace").split("\n")[:-1]

    def find_by_substring(self, part: bytes) -> Offsets:
        """Return the numbers of the words whose spelling has `part` in it, ascending."""
        offsets = [found.start() for found in re.finditer(re.escape(part), self.spelling.data)]
        return arrays.unique(
            np.searchsorted(self.spelling_first, np.array(offsets, np.int64), "right") - 1
        )

    # ── Forms of one word ────────────────────────────────────────────────────────────────────────────────────────────

    def range_of(self, term_id: int) -> tuple[int, int]:
        """Return where the words begin and end that have the beginning of an id."""
        beginning = term_id >> 56
        return self._bounds[beginning], self._bounds[beginning + 1]

    @functools.cached_property
    def _bounds(self) -> list[int]:
        return [*self.ids.searchsorted(prefix_bucket_bounds()).tolist(), self.size]

    def find_by_stem(self, term_id: int, root: str) -> Offsets:
        """Return the numbers of the words that begin as a term does and have its stem, function words left out."""
        low, high = self.range_of(term_id)
        stems = self._stems.get(term_id >> 56)
        if stems is None:
            stems = self._stems[term_id >> 56] = self._stemmed(low, high)
        numbers: Offsets = (stems == hash(root)).nonzero()[0] + low
        return numbers

    def cache_stems(self) -> None:
        """Remember the stems of all words now, so that no question waits for those of its words' beginnings."""
        stems, ends = self._stemmed(0, self.size), itertools.pairwise(self._bounds)
        self._stems.update(
            {beginning: stems[low:high] for beginning, (low, high) in enumerate(ends)}
        )

    def _stemmed(self, low: int, high: int) -> npt.NDArray[np.int64]:
        """Return hashes of the stems of some words, and 0 for those without other forms."""
        every = np.flatnonzero(self.can_inflect[low:high]) + low
        stems = np.zeros(high - low, np.int64)
        for some in (every[step] for step in arrays.batch_slices(every.size, _STEP)):
            words = self.decode_terms(some)
            # Python's hashes differ from process to process: these are never saved nor sent.
            stems[some - low] = [
                0 if word in ENGLISH_STOP_WORDS else hash(stem)
                for word, stem in zip(words, stem_all(words), strict=True)
            ]
        return stems

    def find_by_prefix(
        self, term_id: int, prefix: bytes, word: bytes
    ) -> tuple[Offsets, Offsets, Offsets]:
        """Return the words that begin as a term does and with a prefix, and may have other forms.

        Their numbers, how many letters each shares from the first on with the folded term, and how many it has.
        """
        low, high = self.range_of(term_id)
        numbers: Offsets = np.flatnonzero(self.can_inflect[low:high]) + low
        first = self.spelling_first[numbers]
        for offset, byte in enumerate(prefix):  # a shorter spelling is told by its line end
            same = self.spelling.take(first + offset) == byte
            if not same.all():
                numbers, first = numbers[same], first[same]
        shared = len(prefix) + self._in_common(first + len(prefix), word[len(prefix) :], 1)
        whole = np.cumsum(
            [0, *((byte & 0xC0) != 0x80 for byte in word[1:]), True]
        )  # letters that end so far
        return numbers, whole[shared], self.n_letters[numbers]

    def _in_common(self, at: Offsets, letters: bytes, step: int) -> Offsets:
        """Return how many bytes are the same from each of some offsets on, forwards or backwards by `step`."""
        shared = np.zeros(at.size, np.int64)
        open_ = np.arange(at.size)
        for offset, byte in enumerate(
            letters
        ):  # no spelling is left: there is a line end between two
            open_ = open_[self.spelling.take(at.take(open_) + offset * step) == byte]
            if not open_.size:
                break
            shared[open_] += 1
        return shared

    def fuzzy_matches(self, word: str) -> Offsets:
        """Return the numbers of the words that may have other forms and are one letter away from a word.

        They have its first letter, and one letter added, dropped or changed, or two neighbours swapped.
        """
        alike = self.can_inflect & (np.abs(self.n_letters - len(word)) <= 1)
        numbers: Offsets = np.flatnonzero(alike)
        letters = word.encode()
        first = self.spelling_first[numbers]
        same = self.spelling[first] == letters[0]
        numbers, first = numbers[same], first[same]
        shared = self._in_common(first, letters, 1)
        shared += self._in_common(self.spelling_first[numbers + 1] - 2, letters[::-1], -1)
        # All but two letters of the word are at both ends; this leaves few words to be looked at letter by letter.
        numbers = numbers[shared >= len(letters) - 2 * max(len(letter.encode()) for letter in word)]
        asked = np.frombuffer(word.encode("utf-32-le"), "<u4")
        parts = (numbers[some] for some in arrays.batch_slices(numbers.size, _STEP))
        return arrays.concat((some[self._are_near(some, asked)] for some in parts), np.int64)

    def _are_near(self, numbers: Offsets, asked: npt.NDArray[np.uint32]) -> Flags:
        """Tell which of some words of about as many letters are one letter away from a word, told by its letters."""
        n, sizes = asked.size, self.n_letters[numbers]
        text = np.frombuffer(
            "\n".join([*self.decode_terms(numbers), "\n" * n]).encode("utf-32-le"), "<u4"
        )
        first = arrays.starts_of(sizes + 1)[:, np.newaxis]
        rows = text.take(first + np.arange(n))
        before = np.logical_and.accumulate(rows == asked, axis=1).sum(axis=1)
        backwards = text.take(first + sizes[:, np.newaxis] - 1 - np.arange(n), mode="wrap")
        behind = np.logical_and.accumulate(backwards == asked[::-1], axis=1).sum(axis=1)
        at = np.minimum(before, n - 2)
        every = np.arange(numbers.size)
        swapped = (rows[every, at] == asked[at + 1]) & (rows[every, at + 1] == asked[at])
        swapped &= (sizes == n) & (before + behind == n - 2)
        fuzzy_matches: Flags = (before > 0) & (
            swapped | (before + behind >= np.maximum(sizes, n) - 1)
        )
        return fuzzy_matches

    @functools.cached_property
    def n_letters(self) -> Offsets:
        """Letters of each word, shape (V,)."""
        leads = (self.spelling & 0xC0) != 0x80
        return np.add.reduceat(leads, self.spelling_first[:-1], dtype=np.int64) - 1

    @functools.cached_property
    def can_inflect(self) -> Flags:
        """Whether each word may have other forms: see `matching.can_inflect`. Shape (V,)."""
        plain = (self.spelling - np.uint8(ord("0"))) > 9
        plain &= self.spelling != ord("_")
        able = np.logical_and.reduceat(plain, self.spelling_first[:-1])
        lead = self.spelling[self.spelling_first[:-1]]
        able &= (lead < FIRST_NGRAM_LEAD) | (lead > TRIPLE_LEAD)
        return (
            able & (self.n_letters >= MIN_LETTERS) & (np.diff(self.spelling_first) <= SPELLED_BYTES)
        )

    # ── What words have in common ────────────────────────────────────────────────────────────────────────────────────

    @property
    def prefixes(self) -> Hashes:
        """The different stumps of all words, ascending; the first is 0. See `hash_prefixes`."""
        return self._stumps[0]

    @property
    def prefix_ords(self) -> TermOrds:
        """The number of each word's stump among these, and 0 for no word, the last; shape (V + 1,)."""
        return self._stumps[1]

    @functools.cached_property
    def _stumps(self) -> tuple[Hashes, TermOrds]:
        prefixes = np.zeros(self.size + 1, np.uint32)
        for low in range(0, self.size, _STEP):
            ids, first = self.ids[low : low + _STEP], self.spelling_first[low : low + _STEP + 1]
            letters = self.spelling[first[0] : first[-1]].tobytes() + bytes(STUMP_BYTES)
            prefixes[low : low + ids.size] = hash_prefixes(
                ids, letters, first[:-1] - first[0], np.diff(first) - 1
            )
        names = arrays.unique(prefixes)
        for some in arrays.batch_slices(self.size, _STEP):
            prefixes[some] = names.searchsorted(prefixes[some])
        return names, prefixes

    def char_ngrams(self, numbers: Offsets) -> tuple[Hashes, Offsets]:
        """Return hashes, above 0, of all four letters in a row of some words, or of a shorter word, and their numbers.

        Terms of scripts without spaces have none: they are letters in a row already.
        """
        first = self.spelling_first[numbers]
        n_bytes = self.spelling_first[numbers + 1] - first - 1
        lead = self.spelling[first] if numbers.size else np.zeros(0, np.uint8)
        n_bytes[(lead >= FIRST_NGRAM_LEAD) & (lead <= TRIPLE_LEAD)] = 0
        letters = self.spelling[arrays.ragged_ranges(first, n_bytes + 1)]
        letters[np.cumsum(n_bytes + 1) - 1] = (
            _LINE_END  # also where a word of another script was cut to nothing
        )
        text = np.frombuffer(
            letters.tobytes().decode("utf-8", "replace").encode("utf-32-le"), "<u4"
        ).astype(np.uint64)
        ends = np.flatnonzero(text == _LINE_END)
        n_letters = np.diff(ends, prepend=-1) - 1
        n_grams = np.where(n_letters > 0, np.maximum(n_letters - _GRAM_LETTERS + 1, 1), 0)
        first_letter = arrays.ragged_ranges(ends - n_letters, n_grams)
        rest = np.repeat(ends, n_grams) - first_letter
        hashed = np.zeros(first_letter.size, np.uint64)
        padded = np.append(text, np.zeros(_GRAM_LETTERS, np.uint64))
        for letter in range(_GRAM_LETTERS):
            hashed ^= (
                np.where(letter < rest, padded[first_letter + letter] + np.uint64(1), np.uint64(0))
                * _MIX[letter]
            )
        return np.maximum(
            (hashed * _MIX[1] >> np.uint64(32)).astype(np.uint32), np.uint32(1)
        ), n_grams


def lexicon_of(ids: Ids, letters: Bytes, start: Offsets, length: Offsets) -> Lexicon:
    """Return the lexicon of terms of some ids, ascending, that are told by slices of folded text, shape (V,) each."""
    n_bytes = np.minimum(length, SPELLED_BYTES) + 1
    first = arrays.bounds_of(n_bytes)
    spelling = np.empty(int(first[-1]), np.uint8)
    for some in arrays.batch_slices(ids.size, _STEP):
        lines = _lines(letters, start[some], n_bytes[some])
        spelling[first[some.start] :][: lines.size] = lines
    return Lexicon(ids, spelling, first)


def _lines(letters: Bytes, start: Offsets, n_bytes: Offsets) -> Bytes:
    """Return some slices of text one behind the other, with a line end in place of the last byte of each."""
    lines = letters.take(arrays.ragged_ranges(start, n_bytes), mode="clip")
    lines[np.cumsum(n_bytes) - 1] = _LINE_END
    return lines


class LexiconBuilder:
    """Collects the terms of block after block, or of several lexicons, into one.

    A term has an entry for each time that it is added; `room` is how many to expect, and there may be more.
    """

    def __init__(self, room: int) -> None:
        self._ids = GrowingArray(np.uint64, room)
        self._n_bytes = GrowingArray(np.uint8, room)
        self._spelling = GrowingArray(np.uint8, 4 * room)

    def add(self, ids: Ids, letters: Bytes, start: Offsets, length: Offsets) -> int:
        """Add terms in any order, told as for `lexicon_of`; return the number of the first one's entry."""
        first = len(self._ids)
        self._ids.extend(ids)
        n_bytes = np.minimum(length, SPELLED_BYTES) + 1
        self._n_bytes.extend(n_bytes)
        for some in arrays.batch_slices(ids.size, _STEP):
            self._spelling.extend(_lines(letters, start[some], n_bytes[some]))
        return first

    def build(self) -> tuple[Lexicon, TermOrds]:
        """Return the lexicon of the different terms, and the number of each entry's term in it; this one is spent."""
        entry_ids = self._ids.finish()
        order = arrays.order_by_id(entry_ids)
        ids = entry_ids.take(order)
        del entry_ids
        new = arrays.run_starts(ids)
        number = np.empty(ids.size, np.uint32)
        number[order] = np.cumsum(new, dtype=np.uint32) - np.uint32(1)
        entries = order[new]
        del order
        n_bytes = self._n_bytes.finish()
        start = arrays.starts_of(n_bytes)[entries]
        return lexicon_of(
            ids[new], self._spelling.finish(), start, n_bytes[entries].astype(np.int64) - 1
        ), number
