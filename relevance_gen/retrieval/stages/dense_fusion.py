"""Lift the best chunks by what they mean, beside the words: an encoder's part in a score.

With the score w that the words give, and the cosine c of the question with the chunk's nearest passage::

    f = 1 − (1 − L)(1 − max(0, c)²)            L = w^(5/7)

A chunk misses the question if both its words and its meaning do. f lies in [w, 1], and only a chunk that scores 1 by
its words scores 1. Nothing is normalised over the results. L is w on a scale on which good scores are as high as good
cosines are, the root of what stands under the power in `relevance_gen.retrieval.stages.score_regularization`. On the
scale of w itself the meaning drowned the words in one collection of seven.

Only the best chunks by their words, the candidates, are lifted. So their order beside all others stays sensible, a
chunk that shares no word with the question stays out, and a question costs one encoding and a few dozen products,
however many chunks there are.

Without that bound, every chunk is compared, and one without a shared word scores c². Function words, such as "the", do
not count as shared words there, unless the question has no other words. Where no chunk has any other word of the
question, ranking by words alone falls back on its function words; with vectors, meaning is the better guide.

Source: the formula is ours, a probabilistic sum of two signals of which neither is a probability; measured in
docs/measurements.md.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Floats, Halves, Offsets
from relevance_gen.index.passages import Passages, TextEncoder, query_vector
from relevance_gen.retrieval.ranking.old_features import ChunkBatch, NumericFeatures, contents
from relevance_gen.retrieval.ranking.stage import Reranking, Table
from relevance_gen.types import Passage

_SCALE: Final = 5 / 7
_NEARLY_ONE: Final = float(np.nextafter(1.0, 0.0))


def fuse(words: Floats, cosines: Floats) -> Floats:
    """Return the scores of chunks from those that their words give, in [0, 1], and their cosines, shape (n,)."""
    scaled = words**_SCALE
    meaning = np.clip(cosines, 0.0, 1.0) ** 2
    return np.where(words < 1.0, np.minimum(scaled + (1.0 - scaled) * meaning, _NEARLY_ONE), 1.0)


@frozen(eq=False)
class DenseFusion(Reranking):
    """Lifts chunks that say in other words what the query asks, as the encoder tells."""

    encoder: TextEncoder
    n_candidates: int | None

    parts = ("semantic",)

    def score(self, table: Table) -> None:
        """Lift the candidates among the results. If every chunk is compared, function words alone do not count."""
        if self.n_candidates is None and table.plan.by_function_words:
            table.scores = np.zeros(table.scores.size)
        before = table.columns["words_beside_meaning"] = table.scores
        some = self.candidates(table)
        nearest = self._nearest(table, some)
        table.scores = before.copy()
        table.scores[some] = fuse(before[some], nearest[0])
        table.nearest = some, nearest

    def explain(self, table: Table, place: int, before: float, after: float) -> dict[str, Any]:
        """Return what the meaning gave, and the nearest passage of a candidate."""
        del before
        told: dict[str, Any] = {
            "semantic": after - float(table.columns["words_beside_meaning"][place])
        }
        if table.nearest is not None:
            candidates, nearest = table.nearest
            for cosine, start, end in nearest[:, candidates == place].T.tolist():
                told["passage"] = Passage(int(start), int(end), cosine)
        return told

    def _nearest(self, table: Table, places: Offsets) -> Floats:
        """Return what `Passages.nearest` does of some chunks, encoding what no segment keeps vectors of."""
        if not places.size:
            return np.zeros((3, 0))
        question = query_vector(table.plan.terms.query.text, self.encoder)
        found = table.tell(_NearestPassage(question), places).values
        unknown = np.flatnonzero(np.isnan(found[0]))
        if unknown.size:
            rows = table.tell(contents, places[unknown]).rows
            titles = {place: title for place, (*_, title) in enumerate(rows)}
            passages = Passages.encode([text for text, *_ in rows], self.encoder, titles=titles)
            found[:, unknown] = passages.nearest(np.arange(unknown.size), question)
        return found


@frozen(eq=False)
class _NearestPassage:
    """Asks which passages of chunks are nearest to a question, told by its vector, shape (d,)."""

    question: Halves

    def __call__(self, excerpt: ChunkBatch) -> NumericFeatures:
        """Return what `Passages.nearest` does of each chunk, or NaN where no vectors are kept."""
        passages = excerpt.segment.passages
        if passages is None:
            return NumericFeatures(np.full((3, excerpt.numbers.size), np.nan))
        return NumericFeatures(passages.nearest(excerpt.numbers, self.question))
