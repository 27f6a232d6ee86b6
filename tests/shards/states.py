"""Chunks of numbered states: a search shows which state of an index it found, and whether it found all of it."""

from __future__ import annotations

from typing import Any

from relevance_gen.shards.sharded_index import ShardedIndex


def state(number: int, n_chunks: int = 4) -> list[str]:
    """Return the chunks of a state, whose number is in each of them."""
    return [f"A cat of state {number} sleeps, number {ordinal}." for ordinal in range(n_chunks)]


def states(index: Any) -> set[str]:
    """Return the states that the chunks of an index belong to; all chunks must be found."""
    found = [result.chunk_txt for result in index.search("sleeping cat", 50)]
    assert len(found) == len(index)
    return {text.split(" sleeps")[0].rpartition(" ")[2] for text in found}


def read_states(location: str) -> set[str]:
    """Return the states that a new reader finds at a location."""
    return states(ShardedIndex.open(location))
