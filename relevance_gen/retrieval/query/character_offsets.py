"""Find the characters of a text that tokens were made from."""

from __future__ import annotations

import numpy as np

from relevance_gen.arrays import Offsets
from relevance_gen.text.normalization import folded_sizes
from relevance_gen.text.tokenization import Occurrences


def find_characters(text: str, tokens: Occurrences, selected: Offsets) -> tuple[Offsets, Offsets]:
    """Return the start and the end of selected tokens in a text, in code points.

    A token's range includes the following characters that normalize to nothing, such as combining
    marks. For a part of an identifier that starts or ends inside of the normalization of one
    character, the range of the whole identifier is returned.

    Args:
        text: the text.
        tokens: all tokens of this text alone.
        selected: indices of the tokens to find, shape (n,).

    Returns:
        The index of the first character of each selected token, and the index after its last
        character, shape (n,) each.
    """
    # The normalized bytes of the text follow a line end.
    low, high = tokens.start - 1, tokens.start + tokens.length - 1
    n_bytes_to = np.cumsum(folded_sizes(text))  # normalized bytes up to the end of each character
    start = np.searchsorted(n_bytes_to, low[selected], "right")
    last = np.searchsorted(n_bytes_to, high[selected] - 1, "right")
    # A part of an identifier can start or end inside of the bytes of one character: then the whole
    # identifier is used.
    start_bytes = np.where(start, n_bytes_to[start - 1], 0)
    is_inside = (start_bytes != low[selected]) | (n_bytes_to[last] != high[selected])
    if is_inside.any():
        reach = np.maximum.accumulate(high)
        is_first = np.append(True, high[1:] > reach[:-1])
        first_tokens = np.flatnonzero(is_first)
        identifier = np.searchsorted(first_tokens, selected[is_inside], "right") - 1
        whole = first_tokens[identifier]
        start[is_inside] = np.searchsorted(n_bytes_to, low[whole], "right")
        last[is_inside] = np.searchsorted(n_bytes_to, high[whole] - 1, "right")
    return start, np.searchsorted(n_bytes_to, n_bytes_to[last], "right")
