"""Divide texts into blocks, each cut into terms at once, and long texts into pieces that have the same terms.

All arrays of one block then stay in the core's cache, and memory is bounded however long a single text is.
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
"""Characters of a block: with all temporary arrays about what a core's cache holds."""

_BETWEEN_TERMS: Final = (
    r"\x00-/:-@\[-^`{-\x7f"  # all ASCII but letters, digits and the underscore
    "\u060c\u0964\u0f0b\u0f0d\u1362\u3001\u3002\uff01\uff0c\uff1f"  # commas and full stops of other scripts
    "\U0001f300-\U0001f64f\U00020000-\U0002a6df"  # emoji and rare Han, each a term of its own
)
_CUT: Final = f"[{_BETWEEN_TERMS}]|(?<=[{PAIRED}]{{2}})(?=([{PAIRED}]))|(?<=[{TRIPLED}]{{3}})(?=([{TRIPLED}]))"
"""Where a text can be cut: behind a character that ends every term, or within a run of n-grams, of which the next piece
then repeats one character or two. Rarer places are left out."""
_LEAST_CHARS: Final = 4
"""Fewest characters of a piece, which must be longer than what the next one repeats."""


def pieces(text: str, n_chars: int) -> Iterator[str]:
    """Cut a text into pieces of at least so many characters, each ended where cutting changes no term.

    A text that has no such place, one endless word, stays whole.

    >>> list(pieces("one two three", 5))
    ['one two ', 'three']
    >>> list(pieces("我喜欢黑色的猫", 5))
    ['我喜欢黑色', '色的猫']
    """
    n_chars = max(n_chars, _LEAST_CHARS)
    start = 0
    while len(text) - start > n_chars and (cut := _next_cut(text, start + n_chars)):
        yield text[start : cut.end()]
        start = cut.end() - (1 if cut[1] else 2 if cut[2] else 0)
    yield text[start:]


def _next_cut(text: str, start: int) -> re.Match[str] | None:
    """Return the first cut from `start` on. The search goes in steps, so that other threads can run in between."""
    pattern = re.compile(_CUT)  # compiled when first needed, which takes 3 ms; `re` remembers it
    steps = range(start, len(text), BLOCK_CHARS)
    return next(filter(None, (pattern.search(text, low, low + BLOCK_CHARS) for low in steps)), None)


def lengths(texts: Sequence[str]) -> Offsets:
    """Return the number of characters of each text."""
    return np.fromiter(map(len, texts), np.int64, len(texts))


def batch_by_size(
    n_chars: Offsets, block_chars: int, most_texts: int = sys.maxsize
) -> Iterator[tuple[int, int]]:
    """Yield where runs of texts begin and end that have about so many characters together.

    A text that has more than that by itself is alone in its run.
    """
    ends = np.cumsum(n_chars + 1)
    start = 0
    while start < n_chars.size:
        before = int(ends[start - 1]) if start else 0
        end = int(ends.searchsorted(before + block_chars, "right"))
        end = min(max(end, start + 1), start + most_texts)
        yield start, end
        start = end


def blocks(texts: Sequence[str]) -> Iterator[list[str]]:
    """Yield texts, and the pieces of long ones, block by block and in their order."""
    for start, end in batch_by_size(lengths(texts), BLOCK_CHARS):
        if end - start > 1:
            yield list(texts[start:end])
        else:
            yield from ([piece] for piece in pieces(texts[start], BLOCK_CHARS))


def split_evenly(texts: Sequence[str], n_parts: int) -> Iterator[slice]:
    """Cut texts, none of them empty, into at most so many runs of about as many characters each; no run is empty."""
    ends = np.cumsum(lengths(texts))
    wanted = ends[-1:].sum() * np.arange(1, n_parts) // n_parts
    cuts = unique(
        np.concatenate(([0], np.searchsorted(ends, wanted) + 1, [len(texts)])).clip(max=len(texts))
    )
    yield from (slice(start, end) for start, end in itertools.pairwise(cuts.tolist()))
