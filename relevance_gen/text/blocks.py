"""Divide texts into blocks that are tokenized at once, and long texts into pieces.

A text and its pieces have the same terms.
All arrays of a block fit in the cache of a CPU core, and memory is bounded for texts of any length.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from relevance_gen.arrays import Offsets, bounds_of, unique
from relevance_gen.text.scripts import PAIRED, TRIPLED

BLOCK_CHARS: Final = 1 << 18
"""Approximate number of characters in a block: its text and all temporary arrays fit in the cache
of a CPU core."""

_SEPARATORS: Final = (
    r"\x00-/:-@\[-^`{-\x7f"  # all ASCII except letters, digits and the underscore
    # commas and full stops of other scripts
    "\u060c\u0964\u0f0b\u0f0d\u1362\u3001\u3002\uff01\uff0c\uff1f"
    "\U0001f300-\U0001f64f\U00020000-\U0002a6df"  # emoji and rare Han, each a term of its own
)
_SPLIT: Final = (
    f"[{_SEPARATORS}]|(?<=[{PAIRED}]{{2}})(?=([{PAIRED}]))|(?<=[{TRIPLED}]{{3}})(?=([{TRIPLED}]))"
)
"""Matches the positions where a text can be split: after a character that ends every term, or
within a run of characters that are tokenized as n-grams; then the next piece repeats one character
or two. Rare characters are left out."""
_MIN_PIECE_CHARS: Final = 4
"""Minimum characters of a piece, which must be longer than the repeated characters."""


def pieces(text: str, n_chars: int) -> Iterator[str]:
    """Yield pieces of a text that have the same terms as the text.

    Each piece has at least `n_chars` characters, except the last, and ends at the first possible
    position after these. If a piece ends within a run of characters that are tokenized as n-grams,
    the next piece repeats its last character, or its last two. A text without a possible position,
    one very long word, is not split.

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
        n_repeated = match.lastindex or 0  # group 1 matches within pairs, group 2 within triples
        start = match.end() - n_repeated
    yield text[start:]


def _find_split(
    text: str,
    start: int,
) -> re.Match[str] | None:
    """Return the first match of `_SPLIT` at `start` or later; None if there is none.

    The end of the match is a position at which `text` can be divided into pieces. The text is
    searched block by block, so that other threads can run in between.
    """
    pattern = re.compile(_SPLIT)  # compiled on first use, which takes 3 ms, and cached by `re`
    for low in range(start, len(text), BLOCK_CHARS):
        match = pattern.search(text, low, low + BLOCK_CHARS)
        if match is not None:
            return match
    return None


def lengths(texts: Sequence[str]) -> Offsets:
    """Return the number of characters of each of n texts, shape (n,)."""
    return np.fromiter(map(len, texts), np.int64, len(texts))


def batch_by_size(
    n_chars: Offsets,
    batch_chars: int,
    max_texts: int = sys.maxsize,
) -> Iterator[tuple[int, int]]:
    """Yield the index of the first text, and the index after the last, of each batch of texts.

    The texts of a batch are consecutive and have at most `batch_chars` characters together, one
    separator per text included. A text with more characters is a batch of its own.

    Args:
        n_chars: number of characters of each of n texts, shape (n,).
        batch_chars: maximum number of characters of a batch of several texts.
        max_texts: maximum number of texts in a batch.
    """
    bounds = bounds_of(n_chars + 1)
    start = 0
    while start < n_chars.size:
        end = int(bounds.searchsorted(bounds[start] + batch_chars, "right")) - 1
        end = min(max(end, start + 1), start + max_texts)
        yield start, end
        start = end


def blocks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts of each block, in order.

    A block has texts of at most `BLOCK_CHARS` characters together. A longer text is divided by
    `pieces`, and each of its pieces is a block of its own.
    """
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
    """Yield slices that divide texts into at most `n_parts` runs of about equal size in characters.

    No run is empty. The texts must not be empty strings.
    """
    ends = np.cumsum(lengths(texts))
    n_chars = ends[-1:].sum()
    targets = n_chars * np.arange(1, n_parts) // n_parts
    inner_bounds = ends.searchsorted(targets) + 1
    bounds = np.concatenate(([0], inner_bounds, [len(texts)]))
    bounds = unique(bounds.clip(max=len(texts)))
    for start, end in itertools.pairwise(bounds.tolist()):
        yield slice(start, end)
