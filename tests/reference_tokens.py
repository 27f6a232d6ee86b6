"""Slow reference implementation of byte-pair encoding, for token counts."""

from collections.abc import Mapping
from itertools import pairwise

import regex


def count_tokens(text: str, pattern: str, ranks: Mapping[bytes, int]) -> int:
    """Split `text` by `pattern`, and merge adjacent parts of the lowest rank in each piece until none can be merged."""
    return sum(_count_piece(piece.encode(), ranks) for piece in regex.findall(pattern, text))


def _count_piece(piece: bytes, ranks: Mapping[bytes, int]) -> int:
    if piece in ranks:
        return 1
    parts = [bytes([byte]) for byte in piece]
    while True:
        merges = [
            (ranks[left + right], index)
            for index, (left, right) in enumerate(pairwise(parts))
            if left + right in ranks
        ]
        if not merges:
            return len(parts)
        _, index = min(merges)
        parts[index : index + 2] = [parts[index] + parts[index + 1]]
