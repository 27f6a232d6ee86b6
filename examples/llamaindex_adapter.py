"""Search as a LlamaIndex node postprocessor: the best retrieved nodes, with new scores.

pip install relevance_gen llama-index-core
python examples/llamaindex_adapter.py
"""

from __future__ import annotations

from llama_index.core.postprocessor.types import BaseNodePostprocessor
from llama_index.core.schema import MetadataMode, NodeWithScore, QueryBundle, TextNode

from relevance_gen import search


class ChunkPostprocessor(BaseNodePostprocessor):
    """Keeps the `top_n` best nodes; nodes that share no word with the question are dropped."""

    top_n: int = 3

    @classmethod
    def class_name(cls) -> str:
        return "ChunkPostprocessor"

    def _postprocess_nodes(
        self, nodes: list[NodeWithScore], query_bundle: QueryBundle | None = None
    ) -> list[NodeWithScore]:
        if query_bundle is None:
            raise ValueError(
                "a postprocessor that ranks needs the question: pass query_bundle or query_str"
            )
        texts = [one.node.get_content(metadata_mode=MetadataMode.EMBED) for one in nodes]
        response = search(query_bundle.query_str, texts, self.top_n, blank="skip")
        return [
            NodeWithScore(node=nodes[one.original_index].node, score=one.chunk_score)
            for one in response.best
        ]


if __name__ == "__main__":
    texts = ["Cats purr.", "Dogs bark.", "Cats and dogs sleep."]
    retrieved = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in texts]
    for one in ChunkPostprocessor(top_n=2).postprocess_nodes(
        retrieved, query_str="What do cats do?"
    ):
        print(f"{one.score:.3f} {one.node.get_content()}")
