"""Search as a retriever for BEIR's evaluation.

    from beir.retrieval.evaluation import EvaluateRetrieval
    found = EvaluateRetrieval(ChunkSearch(), k_values=[10]).retrieve(corpus, queries)

Without BEIR, this file computes nDCG@10 by itself: python examples/beir_adapter.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from relevance_gen import ChunkIndex

Scores = dict[str, dict[str, float]]


class ChunkSearch:
    """Searches a corpus for many questions: ids to ids to scores, as BEIR's searchers return them."""

    def search(
        self,
        corpus: Mapping[str, Mapping[str, str]],
        queries: Mapping[str, str],
        top_k: int,
        score_function: Any = None,  # BEIR's; there is one here
        **_: Any,
    ) -> Scores:
        ids = list(corpus)
        texts = [f"{corpus[name].get('title', '')} {corpus[name]['text']}".strip() for name in ids]
        index = ChunkIndex(texts, blank="skip")
        return {
            name: {
                ids[one.original_index]: one.chunk_score for one in index.search(question, top_k)
            }
            for name, question in queries.items()
        }


def ndcg(found: Scores, judged: Mapping[str, Mapping[str, int]], k: int = 10) -> float:
    """Return the mean nDCG@k of the results; `judged` has a grade per question and document."""
    gains = []
    for name, grades in judged.items():
        best = sorted(found.get(name, {}).items(), key=lambda item: -item[1])[:k]
        got = sum(grades.get(one, 0) / math.log2(place + 2) for place, (one, _) in enumerate(best))
        ideal = sum(
            g / math.log2(place + 2)
            for place, g in enumerate(sorted(grades.values(), reverse=True)[:k])
        )
        gains.append(got / ideal if ideal else 0.0)
    return sum(gains) / len(gains)


if __name__ == "__main__":
    corpus = {
        "a": {"title": "Cats", "text": "They purr."},
        "b": {"title": "Dogs", "text": "They bark."},
    }
    found = ChunkSearch().search(corpus, {"1": "Do cats purr?", "2": "Who barks?"}, top_k=10)
    print(found, f"nDCG@10 {ndcg(found, {'1': {'a': 1}, '2': {'b': 1}}):.3f}")
