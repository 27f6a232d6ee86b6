"""Divide texts into blocks that are tokenized at once, and long texts into pieces with the same terms.

All arrays of a block fit in the cache of a CPU core, and memory is bounded for texts of any length.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from relevance_gen.arrays import Offsets, unique
from relevance_gen.text.scripts import PAIRED, TRIPLED

BLOCK_CHARS: Final = 1 << 18
"""Characters of a block: with all temporary arrays about the size of a core's cache."""

_SEPARATORS: Final = (
    r"\x00-/:-@\[-^`{-\x7f"  # all ASCII except letters, digits and the underscore
    "\u060c\u0964\u0f0b\u0f0d\u1362\u3001\u3002\uff01\uff0c\uff1f"  # commas and full stops of other scripts
    "\U0001f300-\U0001f64f\U00020000-\U0002a6df"  # emoji and rare Han, each a term of its own
)
_SPLIT: Final = (
    f"[{_SEPARATORS}]|(?<=[{PAIRED}]{{2}})(?=([{PAIRED}]))|(?<=[{TRIPLED}]{{3}})(?=([{TRIPLED}]))"
)
"""Positions to split a text: after a character that ends every term, or within a run of n-grams; in the second case the
next piece repeats one character or two. Rare characters are omitted."""
_MIN_PIECE_CHARS: Final = 4
"""Minimum characters of a piece, which must be longer than the repeated characters."""


def pieces(text: str, n_chars: int) -> Iterator[str]:
    """Split a text into pieces of at least `n_chars` characters, at positions that change no term.

    A text without such a position, one very long word, is not split.

    >>> list(pieces("one two three", 5))
    ['one two ', 'three']
    >>> list(pieces("我喜欢黑色的猫", 5))
    ['我喜欢黑色', '色的猫']
    """
    n_chars = max(n_chars, _MIN_PIECE_CHARS)
    start = 0
    while len(text) - start > n_chars:
        match = _find_split(text, start + n_chars)
        if match is None:
            break
        yield text[start : match.end()]
        n_repeated = 0
        if match[1]:  # within pairs
            n_repeated = 1
        elif match[2]:  # within triples
            n_repeated = 2
        start = match.end() - n_repeated
    yield text[start:]


def _find_split(
    text: str,
    start: int,
) -> re.Match[str] | None:
    """Return the first split at `start` or later. Searches block by block, so that other threads can run in between."""
    pattern = re.compile(_SPLIT)  # compiled on first use, which takes 3 ms, and cached by `re`
    for low in range(start, len(text), BLOCK_CHARS):
        match = pattern.search(text, low, low + BLOCK_CHARS)
        if match is not None:
            return match
    return None


def lengths(texts: Sequence[str]) -> Offsets:
    """Return the number of characters of each text."""
    return np.fromiter(map(len, texts), np.int64, len(texts))


def batch_by_size(
    n_chars: Offsets,
    batch_chars: int,
    max_texts: int = sys.maxsize,
) -> Iterator[tuple[int, int]]:
    """Yield start and end of batches of consecutive texts with about `batch_chars` characters together.

    A text with more characters is a batch of its own.

    Args:
        n_chars: characters of each text.
        batch_chars: characters of a batch.
        max_texts: maximum number of texts in a batch.
    """
    ends = np.cumsum(n_chars + 1)
    start = 0
    while start < n_chars.size:
        n_before = int(ends[start - 1]) if start else 0
        end = int(ends.searchsorted(n_before + batch_chars, "right"))
        end = min(max(end, start + 1), start + max_texts)
        yield start, end
        start = end


def blocks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield texts, and the pieces of long texts, block by block and in order."""
    for start, end in batch_by_size(lengths(texts), BLOCK_CHARS):
        if end - start > 1:
            yield list(texts[start:end])
        else:
            for piece in pieces(texts[start], BLOCK_CHARS):
                yield [piece]


def split_evenly(
    texts: Sequence[str],
    n_parts: int,
) -> Iterator[slice]:
    """Divide texts, none of them empty, into at most `n_parts` non-empty runs of about equal numbers of characters."""
    ends = np.cumsum(lengths(texts))
    n_chars = ends[-1:].sum()
    targets = n_chars * np.arange(1, n_parts) // n_parts
    inner_bounds = ends.searchsorted(targets) + 1
    bounds = np.concatenate(([0], inner_bounds, [len(texts)]))
    bounds = unique(bounds.clip(max=len(texts)))
    for start, end in itertools.pairwise(bounds.tolist()):
        yield slice(start, end)
