"""Bring scores onto their scale: as multiples of what the query itself would score, into [0, 1].

1.0 then means "as good as a chunk that says exactly this", for every query and collection.
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from relevance_gen.retrieval.arrays import Floats
from relevance_gen.retrieval.question.stage import Stage, Table


@frozen(eq=False)
class Scale(Stage):
    """Divides by the query's own score.

    Attributes:
        bound: brings what is above 1 into [0, 1].
    """

    bound: Callable[[Floats], Floats]

    def score(self, table: Table) -> None:
        """Bring all scores onto the scale; a chunk that says exactly what the query says has 1."""
        table.scores = self.bound(table.scores / table.plan.reference)
        table.scores[table.is_verbatim] = 1.0
