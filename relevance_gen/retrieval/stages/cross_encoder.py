"""Have a reranker read the best chunks: a model that sees the question and a chunk together.

It says how relevant a chunk is, r in (0, 1). It reads the best 20 by the scores s that they have so far, for their
words and, with an encoder, for their meaning; of equal ones the earlier. Then a chunk scores::

    f = 1      where s = 1: it says exactly what the question says, and need not be read
    f = r      where it was read
    f = ρ s    where it was not: ρ is the least r of those that were

A reranker judges far better than words do, but only what it has read. So r decides alone among these, and on its own
scale: scores compare across questions as the reranker's do. Of any other chunk it is known only that words put it
behind all that were read. That is where it stays, and these keep their order.

Without a bound every chunk is read, also one without a shared word.

Source: Nogueira and Cho, "Passage Re-ranking with BERT", 2019. That scores stay in one order is ours.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Protocol

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import Floats, Offsets
from relevance_gen.errors import RerankerError
from relevance_gen.retrieval.ranking.old_features import contents
from relevance_gen.retrieval.ranking.stage import Reranking, Table

_LEAST: Final = float(np.finfo(np.float32).smallest_subnormal)
_MOST: Final = float(np.nextafter(1.0, 0.0))


class TextReranker(Protocol):
    """What search needs of `relevance_gen.Reranker`."""

    def score(self, query: str, texts: Sequence[str]) -> npt.NDArray[np.float32] | None:
        """Return how relevant each text is to a query, in [0, 1], shape (n,); None to leave them all as they are."""


@frozen(eq=False)
class CrossEncoderRerank(Reranking):
    """Puts the best `n_candidates` chunks in a reranker's order, or all where that is None."""

    reranker: TextReranker
    n_candidates: int | None

    parts = ("reranker",)

    def candidates(self, table: Table) -> Offsets:
        """Return the places of the best results below 1; of those that tie for the last place only the first."""
        results = table.results[table.scores.take(table.results) < 1.0]
        if self.n_candidates is None:
            return results
        found = results[table.scores.take(results) > 0.0]
        return np.sort(
            found.take((-table.scores.take(found)).argsort(kind="stable")[: self.n_candidates])
        )

    def score(self, table: Table) -> None:
        """Give the candidates the reranker's scores, and put all others below them."""
        some = self.candidates(table)
        noted = table.columns["relevance"] = np.full(table.scores.size, np.nan)
        told = self._read(table, some) if some.size else None
        if told is None:
            return
        noted[some] = told
        scores = table.scores * told.min()
        scores[some] = told
        table.scores = np.where(table.scores < 1.0, scores, 1.0)

    def explain(self, table: Table, place: int, before: float, after: float) -> dict[str, Any]:
        """Return what the reranker gave, or took where that is below 0, and what it said of a chunk that it read."""
        relevance = float(table.columns["relevance"][place])
        return {
            "reranker": after - before,
            "relevance": None if np.isnan(relevance) else relevance,
        }

    def _read(self, table: Table, places: Offsets) -> Floats | None:
        """Return how relevant some chunks are, shape (n,); None where the reranker leaves them as they are.

        Raises:
            RerankerError: the reranker, which may be anybody's, gave something else.
        """
        rows = table.tell(contents, places).rows
        texts = [f"{title}\n{text}" if title else text for text, _, title in rows]
        unique = list(dict.fromkeys(texts))
        given = self.reranker.score(table.plan.terms.query.text, unique)
        if given is None:
            return None
        try:
            scores = np.asarray(given)
        except (TypeError, ValueError):  # rows of several lengths, for one
            scores = np.empty(0, np.float32)
        if (
            scores.shape != (len(unique),)
            or scores.dtype.kind != "f"
            or not ((scores >= 0) & (scores <= 1)).all()
        ):
            raise RerankerError(
                f"the reranker must return {len(unique)} floats in [0, 1] for as many texts"
            )
        of_text = dict(
            zip(unique, scores.astype(np.float64).clip(_LEAST, _MOST).tolist(), strict=True)
        )
        return np.array([of_text[text] for text in texts])
