"""Find the characters of a text that tokens were made from."""

from __future__ import annotations

import numpy as np

from relevance_gen.arrays import Offsets
from relevance_gen.text.normalization import folded_sizes
from relevance_gen.text.tokenization import Occurrences


def code_points(text: str, block: Occurrences, place: Offsets) -> tuple[Offsets, Offsets]:
    """Return where some occurrences stand in a text that is not folded, with all that folds to nothing behind them."""
    low, high = (
        block.start - 1,
        block.start + block.length - 1,
    )  # the folded bytes begin behind a line end
    behind = np.cumsum(folded_sizes(text))
    start = np.searchsorted(behind, low[place], "right")
    last = np.searchsorted(behind, high[place] - 1, "right")
    # A part of an identifier may begin or end inside what one character folds to: then the whole word is meant.
    inside = (np.where(start, behind[start - 1], 0) != low[place]) | (behind[last] != high[place])
    if inside.any():
        reach = np.maximum.accumulate(high)
        heads = np.flatnonzero(np.append(True, high[1:] > reach[:-1]))
        whole = heads[np.searchsorted(heads, place[inside], "right") - 1]
        start[inside] = np.searchsorted(behind, low[whole], "right")
        last[inside] = np.searchsorted(behind, high[whole] - 1, "right")
    return start, np.searchsorted(behind, behind[last], "right")
