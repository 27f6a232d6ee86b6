"""Choose the number of shards of an index."""

from __future__ import annotations

from typing import Final

MIN_SHARD_CHARS: Final = 256 << 20
"""Minimum size of the shards into which an index is divided by default: with smaller shards, the
messages between processes take more time than they save."""
MAX_SHARD_CHARS: Final = 1 << 30
"""Maximum size of a shard by default: larger shards take long to fetch and to merge."""


def default_shard_count(n_chars: int, n_cpus: int) -> int:
    """Return the default number of shards of an index, at least 1.

    The number is the largest number of shards that have at least `MIN_SHARD_CHARS` characters each,
    but at most `n_cpus`. If shards would then have more than `MAX_SHARD_CHARS` characters, it is
    the smallest number of shards that do not.

    Args:
        n_chars: number of characters of all texts.
        n_cpus: number of processors of the cluster.
    """
    n_min = -(-n_chars // MAX_SHARD_CHARS)
    return max(1, min(n_cpus, n_chars // MIN_SHARD_CHARS), n_min)
