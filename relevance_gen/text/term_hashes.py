"""Hash terms to ids, and words to hashes of their prefixes.

The id of a term is the same in every text, process and version of a saved index. Its top 8 bits,
the prefix bucket, hash only the first letters, so that terms with the same prefix are adjacent when
ids are sorted; the other 56 bits hash the complete term. The probability that any two of V distinct
terms have the same id is below V² / 2^57: 10^-5 for a million terms.
"""

from __future__ import annotations

import functools
import hashlib
from typing import Final

import numpy as np
import numpy.typing as npt

from relevance_gen.arrays import Hashes, Ids, Offsets, find
from relevance_gen.text.scripts import TRIPLE_LEAD
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS

_MASKS: Final = [(1 << 8 * n_bytes) - 1 for n_bytes in range(9)]
LOW_BYTES: Final = np.array(_MASKS, np.uint64)
"""For each n from 0 to 8, the mask that keeps the first n of 8 bytes (little-endian)."""
_MULTIPLIERS: Final = np.array(
    [0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F], np.uint64
)
"""Odd multipliers that spread bits over the whole word (golden ratio; Pelle Evensen's rrmxmx;
xxHash)."""
_MASK_64_BITS: Final = (1 << 64) - 1
_PREFIX_BUCKET_SHIFT: Final = np.uint64(56)
_ASCII_PREFIX_MASK: Final = np.uint64(0xE3EFFF)
"""Keeps the first three bytes, without one bit of the second byte and three of the third, so that
y, i and e are equal: fly and flies, dying and die, using and use have one prefix bucket."""
_OTHER_PREFIX_MASK: Final = np.uint64(0xFFFFFFFFFFFF)
"""Keeps the first six bytes: three letters of a two-byte alphabet."""
LONG_BYTES: Final = 64
"""Terms of more bytes are hashed separately: in the loop over 8-byte words, which hashes all terms
together, the terms of a text without spaces would take quadratic time."""
MAX_SPELLING_BYTES: Final = 64
"""Maximum number of bytes of a term that its spelling in a lexicon has. Terms of this many bytes or
more cannot be inflected."""
N_PREFIX_BUCKETS: Final = 256
"""Number of prefix buckets."""
_PREFIX_LETTERS: Final = 5
MAX_PREFIX_BYTES: Final = 16
"""Maximum number of bytes that a prefix hash depends on."""


def prefix_buckets(ids: Ids) -> npt.NDArray[np.uint8]:
    """Return the prefix bucket of each id, in [0, N_PREFIX_BUCKETS)."""
    return (ids >> _PREFIX_BUCKET_SHIFT).astype(np.uint8)


def prefix_bucket_bounds() -> Ids:
    """Return the least possible id in each prefix bucket, shape (N_PREFIX_BUCKETS,)."""
    return np.arange(N_PREFIX_BUCKETS, dtype=np.uint64) << _PREFIX_BUCKET_SHIFT


def buckets(ids: Ids) -> npt.NDArray[np.uint16]:
    """Return the top 16 bits of each id: prefix bucket and eight bits of the term's hash."""
    return (ids >> np.uint64(48)).astype(np.uint16)


def eight_bytes(lowered: bytes) -> Ids:
    """Return, for each offset, the eight bytes from there as a little-endian integer.

    The result is a view of `lowered` of shape (len(lowered) - 7,).
    """
    n_offsets = len(lowered) - 7
    return np.ndarray((n_offsets,), "<u8", lowered, strides=(1,))


def hash_term(word: str) -> int:
    """Return the id of one word, equal to the id that `hash_terms` returns.

    The word must be ASCII, of lower-case letters and digits, and shorter than `MAX_SPELLING_BYTES`.
    """
    spelling = word.encode()
    first = int.from_bytes(spelling[:8], "little")
    multipliers: list[int] = _MULTIPLIERS.tolist()
    hashed = first * multipliers[0] & _MASK_64_BITS
    hashed ^= hashed >> 32
    for offset in range(8, len(spelling), 8):
        hashed ^= int.from_bytes(spelling[offset : offset + 8], "little")
        hashed = hashed * multipliers[1] & _MASK_64_BITS
        hashed ^= hashed >> 29
    hashed = (hashed * multipliers[1] & _MASK_64_BITS) >> 8
    prefix = (first & int(_ASCII_PREFIX_MASK)) * multipliers[2] & _MASK_64_BITS
    return prefix >> 56 << 56 | hashed


def hash_terms(
    lowered: bytes,
    start: Offsets,
    length: Offsets,
) -> Ids:
    """Return the id of each of T terms.

    Args:
        lowered: folded, lower-cased text, with at least 8 bytes after the last term.
        start: offset of each term, shape (T,).
        length: bytes of each term, shape (T,).
    """
    words = eight_bytes(lowered)
    is_longer = length > 8
    if TRIPLE_LEAD in lowered:
        # A triple has nine bytes. The first is the same in all triples, so the other eight
        # distinguish them.
        lead = np.frombuffer(lowered, np.uint8).take(start)
        is_triple = is_longer & (lead == TRIPLE_LEAD)
        is_longer &= ~is_triple
        start = start + is_triple
    first = words[start]  # `take` would copy all words first
    first &= LOW_BYTES.take(length, mode="clip")
    hashed: Ids = first * _MULTIPLIERS[0]
    hashed ^= hashed >> np.uint64(32)
    longer = np.flatnonzero(is_longer)
    if longer.size:
        _mix_longer(hashed, longer, lowered, start, length)
    hashed *= _MULTIPLIERS[1]
    hashed >>= np.uint64(8)
    prefix = first  # modified in place, because it is not needed any more
    if lowered.isascii():
        prefix &= _ASCII_PREFIX_MASK
    else:
        is_ascii = (first & np.uint64(0x80)) == 0
        prefix &= np.where(is_ascii, _ASCII_PREFIX_MASK, _OTHER_PREFIX_MASK)
    prefix *= _MULTIPLIERS[2]
    prefix &= ~LOW_BYTES[7]
    hashed |= prefix
    return hashed


def _mix_longer(
    hashed: Ids,
    longer: Offsets,
    lowered: bytes,
    start: Offsets,
    length: Offsets,
) -> None:
    """Mix the bytes after the eighth into the hashes of the terms that have more bytes.

    The hash of a term of more than `LONG_BYTES` bytes is replaced by the BLAKE2b hash of all its
    bytes.

    Args:
        hashed: hashes of all terms, modified in place, shape (T,).
        longer: indices of the terms of more than 8 bytes.
        lowered: as for `hash_terms`.
        start: as for `hash_terms`.
        length: as for `hash_terms`.
    """
    is_very_long = length.take(longer) > LONG_BYTES
    for term in longer[is_very_long].tolist():
        spelling = lowered[start[term] : start[term] + length[term]]
        digest = hashlib.blake2b(spelling, digest_size=8).digest()
        hashed[term] = int.from_bytes(digest, "little")
    words = eight_bytes(lowered)
    terms = longer[~is_very_long]
    offset = start.take(terms)
    n_left = length.take(terms)
    mixed = hashed.take(terms)
    while terms.size:
        offset += 8
        n_left -= 8
        mixed ^= words[offset] & LOW_BYTES.take(n_left, mode="clip")
        mixed *= _MULTIPLIERS[1]
        mixed ^= mixed >> np.uint64(29)
        hashed[terms] = mixed
        # Continue with the terms that have more bytes.
        rows = np.flatnonzero(n_left > 8)
        terms = terms.take(rows)
        offset = offset.take(rows)
        n_left = n_left.take(rows)
        mixed = mixed.take(rows)


def hash_prefixes(
    ids: Ids,
    letters: bytes,
    start: Offsets,
    length: Offsets,
) -> Hashes:
    """Return a hash of the first five letters of each of n words, shape (n,).

    The hash of an English stop word is 0. For words that mix scripts, the prefix has the bytes of
    five characters of the first character's script.

    Args:
        ids: ids of the words, shape (n,).
        letters: folded text with at least `MAX_PREFIX_BYTES` bytes after the last word.
        start: offset of each word, shape (n,).
        length: bytes of each word, shape (n,).
    """
    lead = np.frombuffer(letters, np.uint8).take(start)
    bytes_per_letter = 1 + (lead >= 0xC0).astype(np.int64) + (lead >= 0xE0)
    n_bytes = np.minimum(length, _PREFIX_LETTERS * bytes_per_letter)
    words = eight_bytes(letters)
    first = words.take(start) & LOW_BYTES.take(n_bytes, mode="clip")
    hashed = first * _MULTIPLIERS[0]
    longer: Offsets = (n_bytes > 8).nonzero()[0]
    rest = words.take(start[longer] + 8) & LOW_BYTES.take(n_bytes[longer] - 8)
    hashed[longer] ^= rest * _MULTIPLIERS[2]
    hashed ^= hashed >> np.uint64(32)
    hashed = hashed * _MULTIPLIERS[1] >> np.uint64(32)
    hashes: Hashes = np.maximum(hashed.astype(np.uint32), np.uint32(1))
    hashes[find(_stop_word_ids(), ids) >= 0] = 0
    return hashes


@functools.cache
def _stop_word_ids() -> Ids:
    return np.array(sorted(map(hash_term, ENGLISH_STOP_WORDS)), np.uint64)
