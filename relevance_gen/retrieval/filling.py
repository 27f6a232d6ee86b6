"""Fill results up to their maximum number with chunks that share nothing with the query."""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import evolve

from relevance_gen.arrays import Offsets, find
from relevance_gen.retrieval.ports import InventoryRequest, Segments
from relevance_gen.retrieval.query.filters import Filter
from relevance_gen.retrieval.ranking.stage import Ranking

_MAX_DISTANCE: Final = 2
"""Chunks at most this number of positions from a result are added in the order of the results;
chunks that are farther away in the order of their positions."""


def fill(
    ranking: Ranking,
    n: int,
    segments: Segments,
    chunk_filter: Filter | None,
    matching_positions: Offsets,
) -> Ranking:
    """Return a ranking with further chunks, up to n, which have score 0.

    Chunks next to the best chunk are first, then those next to the second, and so on; then chunks
    at distance 2 in the same order, then the other chunks in the order of their positions.

    Args:
        ranking: the ranking.
        n: maximum number of chunks of the result.
        segments: the chunks.
        chunk_filter: further chunks must pass this filter.
        matching_positions: positions of all chunks with a score above 0, best first; these are not
            added.
    """
    request = InventoryRequest(with_positions=True, filter=chunk_filter)
    positions = segments.inventory(request).positions
    rank_of = matching_positions.argsort()
    ascending = matching_positions[rank_of]
    others = positions[find(ascending, positions) < 0]
    order = np.full(others.size, _MAX_DISTANCE * matching_positions.size)
    for distance in range(_MAX_DISTANCE, 0, -1):
        for neighbors in (others - distance, others + distance):
            index = find(ascending, neighbors)
            is_near = index >= 0
            near_order = rank_of[index[is_near]] + (distance - 1) * matching_positions.size
            order[is_near] = np.minimum(order[is_near], near_order)
    n_added = max(n - ranking.positions.size, 0)
    added = others[order.argsort(kind="stable")[:n_added]]
    return evolve(
        ranking,
        positions=np.concatenate((ranking.positions, added)),
        scores=np.concatenate((ranking.scores, np.zeros(added.size))),
    )
