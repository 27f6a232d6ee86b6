"""Add to a chunk's score a share of the scores of the chunks before and after it.

For chunks that form a running text. The best 50 chunks by lexical score (and ties) increase the
scores of the chunks at adjacent positions, with the scores r before this stage::

    neighbors(d) = 0.2 · (r(d − 1) + r(d + 1)) + 0.1 · (r(d − 2) + r(d + 2))

With ``neighbors=1`` the second sum is left out. A chunk is not a neighbor of a chunk of another
document, if the bounds of documents are known, or of a position whose chunk was removed. The score
becomes r(d) + neighbors(d), bounded below 1 as in normalization, except that a chunk with the score
1 keeps it. A chunk that shares no word with the query is a result if it has a good neighbor.

Source: the formula is ours.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Flags, Offsets, find
from relevance_gen.index.formulas import soft_clip_to_one
from relevance_gen.retrieval.ranking.stage import (
    N_STAGE_CANDIDATES,
    CandidateTable,
    FeatureSource,
    RerankStage,
)

_WEIGHTS: Final = (0.2, 0.1)
"""Share of a chunk's score that is added to the scores of chunks at distance 1 and distance 2."""
MAX_NEIGHBORS: Final = len(_WEIGHTS)
"""Maximum distance of a neighbor, in positions."""


@frozen(eq=False)
class Neighborhood:
    """Determines which chunks are neighbors.

    Attributes:
        distance: maximum distance of a neighbor in positions, 1 or 2.
        bounds: position of the first chunk of each document, ascending; None if all chunks are one
            document.
    """

    distance: int
    bounds: Offsets | None = None

    def has_same_document(self, positions: Offsets, others: Offsets) -> Flags:
        """Return whether each position is in the same document as its element of `others`, (n,)."""
        if self.bounds is None:
            return np.ones(positions.size, bool)
        document = self.bounds.searchsorted(positions, "right")
        return np.asarray(document == self.bounds.searchsorted(others, "right"))


@frozen(eq=False)
class NeighborLending(RerankStage):
    """A stage that raises the scores of chunks that are next to chunks with high scores."""

    neighborhood: Neighborhood

    parts = ("neighbors",)
    n_candidates = N_STAGE_CANDIDATES
    includes_unmatched = True

    def score(self, table: CandidateTable, segments: FeatureSource) -> None:
        """Add to each chunk's score the shares of the scores of its neighbors."""
        del segments
        before = table.scores
        lenders = table.top_rows
        if not lenders.size:  # the weighting has no stages with candidates
            all_rows = np.arange(before.size)
            lenders = table.best_of(all_rows, N_STAGE_CANDIDATES, before.size)
        lenders = lenders[before[lenders] > 0.0]
        positions = table.positions[lenders]
        lent = np.zeros(before.size)
        for i, weight in enumerate(_WEIGHTS[: self.neighborhood.distance]):
            for step in (-i - 1, i + 1):
                neighbors = positions + step
                rows = find(table.positions, neighbors)
                is_near = self.neighborhood.has_same_document(positions, neighbors)
                is_near &= rows >= 0
                lent[rows[is_near]] += weight * before[lenders[is_near]]
        raised = soft_clip_to_one(before + lent)
        table.scores = np.where((lent > 0.0) & (before < 1.0), raised, before)

    def explain(
        self, table: CandidateTable, row: int, before: float, after: float
    ) -> dict[str, Any]:
        """Return the increase of a chunk's score by its neighbors, under the key ``neighbors``."""
        del table, row
        return {"neighbors": after - before}
