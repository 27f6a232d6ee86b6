"""Byte-pair encoding, slow and obvious: the oracle for token counts."""

from collections.abc import Mapping
from itertools import pairwise

import regex


def count_tokens(text: str, pattern: str, ranks: Mapping[bytes, int]) -> int:
    """Split `text` by `pattern`; in each piece merge the neighbours of lowest rank until none can be merged."""
    return sum(_count_piece(piece.encode(), ranks) for piece in regex.findall(pattern, text))


def _count_piece(piece: bytes, ranks: Mapping[bytes, int]) -> int:
    if piece in ranks:
        return 1
    parts = [bytes([byte]) for byte in piece]
    while True:
        merges = [(ranks[a + b], at) for at, (a, b) in enumerate(pairwise(parts)) if a + b in ranks]
        if not merges:
            return len(parts)
        _, at = min(merges)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
