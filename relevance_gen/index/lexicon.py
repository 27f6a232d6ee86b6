"""Hold the distinct terms of a segment's chunks, and values that queries derive from them.

The derived values are stems, prefixes and n-grams. They are computed when they are first read, for
all terms or for all terms of one prefix bucket at once, because a query compares many terms, and an
index answers many queries. A prefix bucket is the terms whose ids have the same top 8 bits, which
are a hash of the first letters; see `relevance_gen.text.term_hashes`.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
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
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from relevance_gen.text.term_hashes import (
    MAX_PREFIX_BYTES,
    MAX_SPELLING_BYTES,
    hash_prefixes,
    prefix_bucket_bounds,
)
from relevance_gen.text.word_forms import MIN_LETTERS, number_flags, stem_all

DERIVED_BYTES_PER_TERM: Final = 27
"""Maximum bytes of the values derived from a term: stem, number of letters, prefix and its ordinal,
number of chunks of a sample that have the term, whether it can be inflected, and whether it is a
number."""
_BATCH_TERMS: Final = 1 << 13
"""Number of terms that are decoded at once, which bounds the memory for large lexicons."""
_COMPARED_TERMS: Final = 1 << 14
"""Number of terms that are compared with a word at once, which bounds the memory, too."""
_NGRAM_LETTERS: Final = 4
_LINE_END: Final = ord("\n")
_MULTIPLIERS: Final = np.array(
    [0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F, 0xA0761D6478BD642F], np.uint64
)


@frozen(eq=False)
class PrefixMatches:
    """Terms that have a prefix in common with a word.

    Attributes:
        term_ords: ordinals of the terms, ascending, shape (n,).
        n_shared: number of letters that each term shares with the word from the start, shape (n,).
        n_letters: number of letters of each term, shape (n,).
    """

    term_ords: Offsets
    n_shared: Offsets
    n_letters: Offsets


@frozen(eq=False)
class Lexicon:
    """Distinct terms in the order of their ids. The ordinal of a term is its index in this order.

    Attributes:
        ids: ids of the terms, ascending, shape (V,).
        spelling: spellings in folded UTF-8, each followed by a line end; at most the first
            `MAX_SPELLING_BYTES` bytes of a term.
        spelling_first: offset of each spelling in `spelling`, and the size of `spelling`, of
            shape (V + 1,).
    """

    ids: Ids
    spelling: Bytes
    spelling_first: Offsets
    _stems: dict[int, Offsets] = field(init=False, factory=dict, repr=False)

    def __reduce__(self) -> tuple[type[Lexicon], tuple[Ids, Bytes, Offsets]]:
        """Pickle the three attributes without the cached hashes of stems.

        Python's `hash` of a text differs between processes.
        """
        return Lexicon, (self.ids, self.spelling, self.spelling_first)

    @property
    def size(self) -> int:
        """Number of terms, V."""
        return self.ids.size

    def find(self, ids: Ids) -> Offsets:
        """Return the ordinal of the term with each id, -1 if there is none, shape (n,)."""
        return arrays.find(self.ids, ids)

    def find_exact(self, term_id: int) -> Offsets:
        """Return the ordinal of the term with an id, shape (1,), or an empty array if absent."""
        term_ords = self.find(np.array([term_id], np.uint64))
        return term_ords[term_ords >= 0]

    def decode_terms(self, term_ords: Offsets) -> list[str]:
        """Return the spellings of the terms with these ordinals, in order."""
        first = self.spelling_first[term_ords]
        n_bytes = self.spelling_first[term_ords + 1] - first
        letters = self.spelling[arrays.ragged_ranges(first, n_bytes)]
        return letters.tobytes().decode("utf-8", "replace").split("\n")[:-1]

    def find_by_substring(self, substring: bytes) -> Offsets:
        """Return the ordinals of the terms whose spelling contains `substring`, ascending."""
        matches = re.finditer(re.escape(substring), self.spelling.data)
        offsets = np.array([match.start() for match in matches], np.int64)
        return arrays.unique(self.spelling_first.searchsorted(offsets, "right") - 1)

    # ── Inflections and misspellings ──────────────────────────────────────────────────────────────

    @functools.cached_property
    def _bucket_bounds(self) -> list[int]:
        return [*self.ids.searchsorted(prefix_bucket_bounds()).tolist(), self.size]

    def find_by_stem(self, term_id: int, stem: str) -> Offsets:
        """Return the ordinals of the terms with this stem, ascending.

        Only the prefix bucket of `term_id` is searched. Stop words and terms that cannot be
        inflected are left out.
        """
        bucket = term_id >> 56
        low, high = self._bucket_bounds[bucket : bucket + 2]
        if bucket not in self._stems:
            self._stems[bucket] = self._hash_stems(low, high)
        has_stem = self._stems[bucket] == hash(stem)
        return low + np.flatnonzero(has_stem)

    def cache_stems(self) -> None:
        """Compute and cache the stems of all terms; otherwise queries compute those they need."""
        stems = self._hash_stems(0, self.size)
        stems_of_buckets = np.split(stems, self._bucket_bounds[1:-1])
        self._stems.update(enumerate(stems_of_buckets))

    def _hash_stems(
        self,
        low: int,
        high: int,
    ) -> npt.NDArray[np.int64]:
        """Return a hash of the stem of each term with an ordinal in [low, high).

        The hash is 0 for stop words and for terms that cannot be inflected.
        The hashes are Python's, which differ between processes: they are never saved nor sent.
        """
        stems = np.zeros(high - low, np.int64)
        term_ords = self.can_inflect[low:high].nonzero()[0] + low
        for batch_slice in arrays.batch_slices(term_ords.size, _BATCH_TERMS):
            batch = term_ords[batch_slice]
            words = self.decode_terms(batch)
            hashes = [
                0 if word in ENGLISH_STOP_WORDS else hash(stem)
                for word, stem in zip(words, stem_all(words), strict=True)
            ]
            stems[batch - low] = hashes
        return stems

    def find_beginning(self, term_id: int, prefix: bytes) -> Iterator[Offsets]:
        """Yield the ordinals of the terms that begin with `prefix`, ascending.

        Only the prefix bucket of `term_id` is searched. Ordinals are yielded batch by batch, which
        bounds the memory.
        """
        bucket = term_id >> 56
        low, high = self._bucket_bounds[bucket : bucket + 2]
        for batch in arrays.batch_slices(high - low, _COMPARED_TERMS):
            term_ords = np.arange(low + batch.start, min(low + batch.stop, high))
            first = self.spelling_first[term_ords]
            # A spelling shorter than the prefix differs at its line end.
            for offset, byte in enumerate(prefix):
                is_equal = self.spelling.take(first + offset) == byte
                if not is_equal.all():
                    term_ords = term_ords[is_equal]
                    first = first[is_equal]
            yield term_ords

    def find_by_prefix(
        self,
        term_id: int,
        prefix: bytes,
        word: bytes,
    ) -> Iterator[PrefixMatches]:
        """Yield the terms that begin with `prefix`, with the number of letters shared with `word`.

        Terms that cannot be inflected are left out.
        Terms are yielded batch by batch, which bounds the memory.

        Args:
            term_id: id of a term, whose prefix bucket is searched.
            prefix: first bytes of `word`.
            word: folded spelling to compare the terms with.
        """
        n_bytes = len(prefix)
        # letters_in[n]: number of complete letters in the first n bytes of the word. A byte
        # 10xxxxxx continues a letter.
        ends_letter = [(byte & 0xC0) != 0x80 for byte in word[1:]]
        letters_in = np.cumsum([0, *ends_letter, True])
        for beginning in self.find_beginning(term_id, prefix):
            term_ords = beginning[self.can_inflect.take(beginning)]
            first = self.spelling_first[term_ords] + n_bytes
            n_shared_bytes = n_bytes + self._count_shared(first, word[n_bytes:], step=1)
            yield PrefixMatches(term_ords, letters_in[n_shared_bytes], self.n_letters[term_ords])

    def _count_shared(
        self,
        offsets: Offsets,
        letters: bytes,
        *,
        step: int,
    ) -> Offsets:
        """Return the number of bytes from each offset in `spelling` that equal `letters` in order.

        Counting stops at the first byte that differs. `step` 1 reads the spelling forwards, and -1
        backwards.
        """
        n_shared = np.zeros(offsets.size, np.int64)
        open_rows = np.arange(offsets.size)
        # No comparison crosses into another spelling: a line end is between two spellings.
        for n_read, byte in enumerate(letters):
            read = self.spelling.take(offsets.take(open_rows) + n_read * step)
            open_rows = open_rows[read == byte]
            if not open_rows.size:
                break
            n_shared[open_rows] += 1
        return n_shared

    def fuzzy_matches(self, word: str) -> Offsets:
        """Return the ordinals of the terms that may be the correct spelling of a word, ascending.

        These terms can be inflected, begin with the word's first letter, and differ from it by at
        most one insertion, deletion, substitution or transposition of adjacent letters.
        """
        batches = arrays.batch_slices(self.size, _COMPARED_TERMS)
        matches = [self._fuzzy_matches_in(batch, word) for batch in batches]
        return arrays.concat(matches, np.int64)

    def _fuzzy_matches_in(self, batch: slice, word: str) -> Offsets:
        """Return the results of `fuzzy_matches` whose ordinals are in a slice of all ordinals."""
        n = len(word)
        is_candidate = np.abs(self.n_letters[batch] - n) <= 1
        is_candidate &= self.can_inflect[batch]
        term_ords = batch.start + np.flatnonzero(is_candidate)
        letters = word.encode()
        has_first_byte = self.spelling[self.spelling_first[term_ords]] == letters[0]
        term_ords = term_ords[has_first_byte]
        # Number of letters that each term shares with the word at the start, and at the end.
        first = self.spelling_first[term_ords]
        last = self.spelling_first[term_ords + 1] - 2
        n_first_bytes = self._count_shared(first, letters, step=1)
        n_last_bytes = self._count_shared(last, letters[::-1], step=-1)
        starts_letter = [(byte & 0xC0) != 0x80 for byte in letters]
        n_first = np.cumsum([0, *starts_letter[1:], True])[n_first_bytes]
        n_last = np.cumsum([0, *reversed(starts_letter)])[n_last_bytes]
        n_letters = self.n_letters[term_ords]
        is_match = n_first + n_last >= np.maximum(n_letters, n) - 1
        # Terms that differ in two adjacent letters, which can be transposed.
        rows = np.flatnonzero((n_letters == n) & (n_first + n_last == n - 2))
        spellings = self.decode_terms(term_ords[rows])
        lows = n_first[rows].tolist()
        for row, low, spelling in zip(rows, lows, spellings, strict=True):
            transposed = word[low : low + 2][::-1]
            end = word[low + 2 :]
            is_match[row] = spelling == word[:low] + transposed + end
        matches: Offsets = term_ords[is_match & (n_first > 0)]
        return matches

    @functools.cached_property
    def n_letters(self) -> Offsets:
        """Number of letters of each term, shape (V,)."""
        n_letters = np.empty(self.size, np.int64)
        for batch, spelling, bounds in self._spelling_batches():
            starts_letter = (spelling & 0xC0) != 0x80  # other bytes continue a character
            # The line end of each spelling counts as a letter.
            n_starts = np.add.reduceat(starts_letter, bounds[:-1], dtype=np.int64)
            n_letters[batch] = n_starts - 1
        return n_letters

    def _spelling_batches(self) -> Iterator[tuple[slice, Bytes, Offsets]]:
        """Yield the ordinals of each batch of m terms, an array of the spellings, and its bounds.

        The bounds are the offset of each spelling in this array, and its size, shape (m + 1,).
        """
        for batch in arrays.batch_slices(self.size, _BATCH_TERMS):
            bounds = self.spelling_first[batch.start : batch.stop + 1]
            yield batch, self.spelling[bounds[0] : bounds[-1]], bounds - bounds[0]

    @functools.cached_property
    def can_inflect(self) -> Flags:
        """Whether each term can be inflected, shape (V,).

        `relevance_gen.text.word_forms.can_inflect` defines this.
        """
        can_inflect = np.empty(self.size, bool)
        for batch, spelling, bounds in self._spelling_batches():
            is_letter = (spelling - np.uint8(ord("0"))) > 9
            is_letter &= spelling != ord("_")
            flags = np.logical_and.reduceat(is_letter, bounds[:-1])
            lead = spelling[bounds[:-1]]
            flags &= (lead < FIRST_NGRAM_LEAD) | (lead > TRIPLE_LEAD)
            flags &= self.n_letters[batch] >= MIN_LETTERS
            flags &= np.diff(bounds) <= MAX_SPELLING_BYTES
            can_inflect[batch] = flags
        return can_inflect

    @functools.cached_property
    def is_number(self) -> Flags:
        """Whether each term is a number other than a year, shape (V + 1,).

        `relevance_gen.text.word_forms.is_number` defines this. The last element is False: it
        belongs to the ordinal V, which marks the empty elements of `TokenSequences.terms`.
        """
        is_number = np.zeros(self.size + 1, bool)
        for batch, spelling, bounds in self._spelling_batches():
            n_bytes = np.diff(bounds) - 1
            is_number[:-1][batch] = number_flags(spelling, bounds[:-1], n_bytes)
        return is_number

    # ── Prefixes and n-grams ──────────────────────────────────────────────────────────────────────

    @property
    def prefixes(self) -> Hashes:
        """Distinct prefix hashes of all terms, ascending; see `hash_prefixes`. The first is 0."""
        return self._prefixes[0]

    @property
    def prefix_ords(self) -> TermOrds:
        """Index in `prefixes` of each term's prefix hash, shape (V + 1,).

        The last element is 0, the index of the prefix hash 0. It belongs to the ordinal V, which
        marks the empty elements of `TokenSequences.terms`.
        """
        return self._prefixes[1]

    @functools.cached_property
    def _prefixes(self) -> tuple[Hashes, TermOrds]:
        hashes = np.zeros(self.size + 1, np.uint32)
        for batch, spelling, bounds in self._spelling_batches():
            padded = spelling.tobytes() + bytes(MAX_PREFIX_BYTES)
            starts = bounds[:-1]
            length = np.diff(bounds) - 1
            hashes[:-1][batch] = hash_prefixes(self.ids[batch], padded, starts, length)
        prefixes = arrays.unique(hashes)
        for ordinals in arrays.batch_slices(self.size, _BATCH_TERMS):
            hashes[ordinals] = prefixes.searchsorted(hashes[ordinals])
        return prefixes, hashes

    def char_ngrams(self, term_ords: Offsets) -> tuple[Hashes, Offsets]:
        """Return the hashes of the character 4-grams of n terms, and each term's number of hashes.

        The hashes, all above 0, are in the order of the terms, shape (sum of the numbers,); the
        numbers have shape (n,). A word of fewer than 4 letters has one hash, of all its letters.
        Terms of scripts without spaces have none, because they are n-grams already.
        """
        first = self.spelling_first[term_ords]
        n_bytes = self.spelling_first[term_ords + 1] - first - 1
        lead = self.spelling[first]
        n_bytes[(lead >= FIRST_NGRAM_LEAD) & (lead <= TRIPLE_LEAD)] = 0
        letters = self.spelling[arrays.ragged_ranges(first, n_bytes + 1)]
        # Spellings that were cut to nothing need a line end, too.
        letters[np.cumsum(n_bytes + 1) - 1] = _LINE_END
        decoded = letters.tobytes().decode("utf-8", "replace")
        codes = np.frombuffer(decoded.encode("utf-32-le"), "<u4").astype(np.uint64)
        ends = np.flatnonzero(codes == _LINE_END)
        n_letters = np.diff(ends, prepend=-1) - 1
        n_ngrams = np.maximum(n_letters - _NGRAM_LETTERS + 1, 1)
        n_ngrams[n_letters == 0] = 0
        # For each n-gram: index of its first letter, and number of letters from there to the end of
        # its term.
        first_letter = arrays.ragged_ranges(ends - n_letters, n_ngrams)
        n_left = np.repeat(ends, n_ngrams) - first_letter
        hashes = np.zeros(first_letter.size, np.uint64)
        padded = np.append(codes, np.zeros(_NGRAM_LETTERS, np.uint64))
        for offset, multiplier in enumerate(_MULTIPLIERS):
            values = padded[first_letter + offset] + np.uint64(1)
            hashes ^= np.where(offset < n_left, values, np.uint64(0)) * multiplier
        hashes = hashes * _MULTIPLIERS[1] >> np.uint64(32)
        return np.maximum(hashes.astype(np.uint32), np.uint32(1)), n_ngrams


def lexicon_of(
    ids: Ids,
    letters: Bytes,
    start: Offsets,
    length: Offsets,
) -> Lexicon:
    """Return the lexicon of V terms.

    Args:
        ids: ids of the terms, ascending, shape (V,).
        letters: folded text that has the spellings.
        start: offset of each term's spelling in `letters`, shape (V,).
        length: bytes of each spelling, shape (V,).
    """
    n_bytes = np.minimum(length, MAX_SPELLING_BYTES) + 1
    first = arrays.bounds_of(n_bytes)
    spelling = GrowingArray(np.uint8, int(first[-1]))
    _append_lines(spelling, letters, start, n_bytes)
    return Lexicon(ids, spelling.finish(), first)


def _append_lines(
    lines: GrowingArray[np.uint8],
    letters: Bytes,
    start: Offsets,
    n_bytes: Offsets,
) -> None:
    """Append slices of a text to `lines`, with the last byte of each replaced by a line end."""
    for batch in arrays.batch_slices(start.size, _BATCH_TERMS):
        indices = arrays.ragged_ranges(start[batch], n_bytes[batch])
        new_lines = letters.take(indices, mode="clip")
        new_lines[np.cumsum(n_bytes[batch]) - 1] = _LINE_END
        lines.extend(new_lines)


class LexiconBuilder:
    """Collects the terms of several blocks or lexicons into one lexicon.

    Each term that is added makes an entry, also if the term was added before.

    Args:
        n_expected: expected number of entries; there may be more.
    """

    def __init__(self, n_expected: int) -> None:
        self._ids = GrowingArray(np.uint64, n_expected)
        self._n_bytes = GrowingArray(np.uint8, n_expected)
        self._spelling = GrowingArray(np.uint8, 4 * n_expected)

    def add(
        self,
        ids: Ids,
        letters: Bytes,
        start: Offsets,
        length: Offsets,
    ) -> int:
        """Add terms in any order, with the arguments of `lexicon_of`.

        Return the index of the first new entry.
        """
        first_entry = len(self._ids)
        self._ids.extend(ids)
        n_bytes = np.minimum(length, MAX_SPELLING_BYTES) + 1
        self._n_bytes.extend(n_bytes)
        _append_lines(self._spelling, letters, start, n_bytes)
        return first_entry

    def build(self) -> tuple[Lexicon, TermOrds]:
        """Return the lexicon of the distinct terms, and the ordinal in it of each entry's term.

        This builder is empty afterwards.
        """
        entry_ids = self._ids.finish()
        order = arrays.order_by_id(entry_ids)
        ids = entry_ids.take(order)
        del entry_ids
        is_new = arrays.run_starts(ids)
        term_ords = np.empty(ids.size, np.uint32)
        term_ords[order] = np.cumsum(is_new, dtype=np.uint32) - np.uint32(1)
        entries = order[is_new]
        del order
        n_bytes = self._n_bytes.finish()
        start = arrays.starts_of(n_bytes)[entries]
        length = n_bytes[entries].astype(np.int64) - 1
        return lexicon_of(ids[is_new], self._spelling.finish(), start, length), term_ords
