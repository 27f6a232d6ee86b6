"""Hash terms: to ids, and to stumps, which terms of one beginning share.

A term's id is its identity everywhere: the same in every text, process and version of a saved index. Its top 8 bits
hash the first letters alone, so that terms with one beginning stand together when ids are sorted; the other 56 hash
the whole term. The chance that any two of V different terms share an id is below V² / 2^57: one in 10^5 for a
million terms.
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

LOW_BYTES: Final = np.array([(1 << 8 * n) - 1 for n in range(9)], np.uint64)
"""Masks that keep the first n of 8 bytes (little-endian)."""
_MIX: Final = np.array([0x9E3779B97F4A7C15, 0xD6E8FEB86659FD93, 0xC2B2AE3D27D4EB4F], np.uint64)
"""Odd multipliers that spread bits over the whole word (golden ratio; Pelle Evensen's rrmxmx; xxHash)."""
_ALL_BITS: Final = (1 << 64) - 1
_BEGINNING_BITS: Final = np.uint64(56)
_ASCII_BEGINNING: Final = np.uint64(0xE3EFFF)
"""The first three bytes; of the second one bit less and of the third three, so that y, i and e are one: fly and flies,
dying and die, using and use."""
_OTHER_BEGINNING: Final = np.uint64(0xFFFFFFFFFFFF)
"""The first six bytes: three letters of a two-byte alphabet."""
LONG_BYTES: Final = 64
"""Longer terms are hashed one by one: a loop over 8-byte words would be quadratic in a text without a space."""
MAX_SPELLING_BYTES: Final = 64
"""A term is shown by this much of its spelling, and no longer one has inflections."""
N_PREFIX_BUCKETS: Final = 256
"""Number of different beginnings, the ids' top 8 bits."""
_STUMP_LETTERS: Final = 5
MAX_PREFIX_BYTES: Final = 16
"""Most bytes that a stump is made of."""


def prefix_buckets(ids: Ids) -> npt.NDArray[np.uint8]:
    """Return the beginning, in [0, BEGINNINGS), that each id's term has."""
    return (ids >> _BEGINNING_BITS).astype(np.uint8)


def prefix_bucket_bounds() -> Ids:
    """Return the least id of each beginning, shape (BEGINNINGS,)."""
    return np.arange(N_PREFIX_BUCKETS, dtype=np.uint64) << _BEGINNING_BITS


def buckets(ids: Ids) -> npt.NDArray[np.uint16]:
    """Return the ids' top 16 bits: the beginning, and eight bits of the whole term."""
    return (ids >> np.uint64(48)).astype(np.uint16)


def eight_bytes(lowered: bytes) -> Ids:
    """Return a view of the eight bytes from each offset on, as one number."""
    return np.ndarray((len(lowered) - 7,), "<u8", lowered, strides=(1,))


def hash_term(word: str) -> int:
    """Return the id of one ASCII word of lower-case letters and digits, shorter than `MAX_SPELLING_BYTES`."""
    spelling = word.encode()
    first = int.from_bytes(spelling[:8], "little")
    one, two, three = map(int, _MIX)
    hashed = first * one & _ALL_BITS
    hashed ^= hashed >> 32
    for offset in range(8, len(spelling), 8):
        hashed = (
            hashed ^ int.from_bytes(spelling[offset : offset + 8], "little")
        ) * two & _ALL_BITS
        hashed ^= hashed >> 29
    hashed = (hashed * two & _ALL_BITS) >> 8
    beginning = (first & int(_ASCII_BEGINNING)) * three & _ALL_BITS
    return beginning >> 56 << 56 | hashed


def hash_terms(lowered: bytes, start: Offsets, length: Offsets) -> Ids:
    """Hash each occurrence to its term's id."""
    words = eight_bytes(lowered)
    long = length > 8
    if TRIPLE_LEAD in lowered:
        # A triple has nine bytes. Its first is the same in all of them, so the other eight tell triples apart.
        triples = long & (np.frombuffer(lowered, np.uint8).take(start) == TRIPLE_LEAD)
        long &= ~triples
        start = start + triples
    first = words[start]  # `take` would copy all words first
    first &= LOW_BYTES.take(length, mode="clip")
    hashed: Ids = first * _MIX[0]
    hashed ^= hashed >> np.uint64(32)
    rest = np.flatnonzero(long)
    if rest.size:
        _mix_rest(hashed, rest, words, lowered, start, length)
    hashed *= _MIX[1]
    hashed >>= np.uint64(8)
    beginning = first  # in its place: it is not needed any more
    if lowered.isascii():
        beginning &= _ASCII_BEGINNING
    else:
        beginning &= np.where(first & np.uint64(0x80), _OTHER_BEGINNING, _ASCII_BEGINNING)
    beginning *= _MIX[2]
    beginning &= ~LOW_BYTES[7]
    hashed |= beginning
    return hashed


def _mix_rest(
    hashed: Ids, rest: Offsets, words: Ids, lowered: bytes, start: Offsets, length: Offsets
) -> None:
    """Mix the bytes behind the eighth into the hashes of the occurrences numbered `rest`."""
    is_long = length.take(rest) > LONG_BYTES
    for occurrence in rest[is_long]:
        spelling = lowered[start[occurrence] : start[occurrence] + length[occurrence]]
        hashed[occurrence] = int.from_bytes(
            hashlib.blake2b(spelling, digest_size=8).digest(), "little"
        )
    rest = rest[~is_long]
    offset, n_left, mixed = start.take(rest), length.take(rest), hashed.take(rest)
    while rest.size:
        offset += 8
        n_left -= 8
        mixed ^= words[offset] & LOW_BYTES.take(n_left, mode="clip")
        mixed *= _MIX[1]
        mixed ^= mixed >> np.uint64(29)
        hashed[rest] = mixed
        some = np.flatnonzero(n_left > 8)
        rest, offset, n_left, mixed = (
            rest.take(some),
            offset.take(some),
            n_left.take(some),
            mixed.take(some),
        )


def hash_prefixes(ids: Ids, letters: bytes, start: Offsets, length: Offsets) -> Hashes:
    """Return a hash of the first five letters of words in folded text, shape (n,); 0 for English function words.

    Of a word of several scripts it is as many bytes as five letters like the first have. Behind the last word the text
    has 16 bytes or more.
    """
    lead = np.frombuffer(letters, np.uint8).take(start)
    n_bytes = np.minimum(length, _STUMP_LETTERS + np.where(lead >= 0xC0, _STUMP_LETTERS, 0))
    n_bytes += np.where(lead >= 0xE0, np.minimum(length - n_bytes, _STUMP_LETTERS), 0)
    eight = eight_bytes(letters)
    prefixes = (eight.take(start) & LOW_BYTES.take(n_bytes, mode="clip")) * _MIX[0]
    longer: Offsets = (n_bytes > 8).nonzero()[0]
    rest = eight.take(start[longer] + 8) & LOW_BYTES.take(n_bytes[longer] - 8)
    prefixes[longer] ^= rest * _MIX[2]
    prefixes ^= prefixes >> np.uint64(32)
    hashed: Hashes = np.maximum(
        (prefixes * _MIX[1] >> np.uint64(32)).astype(np.uint32), np.uint32(1)
    )
    hashed[find(_function_words(), ids) >= 0] = 0
    return hashed


@functools.cache
def _function_words() -> Ids:
    return np.array(sorted(map(hash_term, ENGLISH_STOP_WORDS)), np.uint64)
