"""Ask for all scores."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from relevance_gen import ChunkIndex, SearchResponse, search
from relevance_gen.types import WeightingName

WEIGHTINGS: Final[tuple[WeightingName, ...]] = ("pivoted", "cosine")
ALL: Final = 1 << 40


def scores(query: str, chunks: Sequence[str], weighting: WeightingName = "pivoted") -> list[float]:
    """Return the score of every chunk, 0 for a chunk that is not a result."""
    return spread(
        search(query, chunks, ALL, weighting=weighting, correct_spelling=False), len(chunks)
    )


def spread(response: SearchResponse, n_chunks: int) -> list[float]:
    """Return the scores by position."""
    found = {result.original_index: result.chunk_score for result in response.results}
    return [found.get(place, 0.0) for place in range(n_chunks)]


def ranking(
    query: str, chunks: Sequence[str] | ChunkIndex, weighting: WeightingName = "pivoted"
) -> list[int]:
    """Return the positions of all results, best first."""
    if isinstance(chunks, ChunkIndex):
        response = chunks.search(query, ALL, true_order=False)
    else:
        response = search(query, chunks, ALL, true_order=False, weighting=weighting)
    return [result.original_index for result in response.results]
