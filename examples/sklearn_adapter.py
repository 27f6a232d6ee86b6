"""Search as a scikit-learn transformer: questions become rows of scores of the fitted texts.

pip install relevance_gen scikit-learn
python examples/sklearn_adapter.py
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import Binarizer

from relevance_gen import ChunkIndex


class ChunkScorer(TransformerMixin, BaseEstimator):
    """Scores texts against each of the texts seen in `fit`: float64 of shape (n_questions, n_texts), in [0, 1].

    Args:
        weighting: ``"pivoted"`` to answer questions, ``"cosine"`` for the textbook's TF-IDF.
    """

    def __init__(self, weighting: str = "pivoted") -> None:
        self.weighting = weighting

    def fit(self, X: Iterable[str], y: Any = None) -> Self:  # noqa: N803 - scikit-learn's names
        texts = list(X)
        self.index_, self.n_texts_ = (
            ChunkIndex(texts, weighting=self.weighting, blank="skip"),
            len(texts),
        )
        return self

    def transform(self, X: Iterable[str]) -> np.ndarray:  # noqa: N803
        questions = list(X)
        scores = np.zeros((len(questions), self.n_texts_))
        for row, question in zip(scores, questions, strict=True):
            if question.strip():
                for one in self.index_.search(question, max(1, self.n_texts_)):
                    row[one.original_index] = one.chunk_score
        return scores


if __name__ == "__main__":
    texts = ["Cats purr.", "Dogs bark.", "Cats and dogs sleep."]
    scorer = ChunkScorer().fit(texts)
    print(scorer.transform(["What do cats do?", "Who barks?"]).round(3))
    print(
        make_pipeline(ChunkScorer(), Binarizer(threshold=0.3)).fit(texts).transform(["Who barks?"])
    )
