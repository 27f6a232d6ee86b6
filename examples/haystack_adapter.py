"""Search as a Haystack component: a ranker for pipelines, without a model and without a server.

pip install relevance_gen haystack-ai
python examples/haystack_adapter.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from haystack import Document, Pipeline, component, default_to_dict

from relevance_gen import search


@component
class ChunkRanker:
    """Ranks documents by lexical score; documents that share no word with the question are dropped."""

    def __init__(self, top_k: int = 10) -> None:
        self.top_k = top_k

    def to_dict(self) -> dict[str, Any]:
        return default_to_dict(self, top_k=self.top_k)

    @component.output_types(documents=list[Document])
    def run(
        self, query: str, documents: list[Document], top_k: int | None = None
    ) -> dict[str, list[Document]]:
        texts = [document.content or "" for document in documents]
        response = search(query, texts, top_k or self.top_k, blank="skip")
        return {
            "documents": [
                replace(documents[one.original_index], score=one.chunk_score)
                for one in response.best
            ]
        }


if __name__ == "__main__":
    pipeline = Pipeline()
    pipeline.add_component("ranker", ChunkRanker(top_k=2))
    pages = [
        Document(content=text) for text in ("Cats purr.", "Dogs bark.", "Cats and dogs sleep.")
    ]
    answer = pipeline.run({"ranker": {"query": "What do cats do?", "documents": pages}})
    for document in answer["ranker"]["documents"]:
        print(f"{document.score:.3f} {document.content}")
