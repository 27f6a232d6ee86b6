"""LlamaIndex' rerankers for Cohere, Jina and TEI; run against the server at SERVER_URL."""

import os

from llama_index.core.schema import NodeWithScore, TextNode
from llama_index.postprocessor.cohere_rerank import CohereRerank
from llama_index.postprocessor.jinaai_rerank import JinaRerank
from llama_index.postprocessor.tei_rerank import TextEmbeddingInference

URL, KEY = os.environ["SERVER_URL"], os.environ["SERVER_KEY"]
TEXTS = ["Dogs bark.", "Cats purr.", "The weather."]

for postprocessor in (
    CohereRerank(api_key=KEY, base_url=URL, model="any", top_n=2, max_retries=1),
    JinaRerank(api_key=KEY, base_url=f"{URL}/v1", top_n=2),
    TextEmbeddingInference(base_url=URL, auth_token=f"Bearer {KEY}", top_n=2),
):
    nodes = [NodeWithScore(node=TextNode(text=text), score=0.5) for text in TEXTS]
    found = postprocessor.postprocess_nodes(nodes, query_str="What do cats do?")
    assert [one.node.text for one in found] == ["Cats purr.", "Dogs bark."], found
    assert 0 < found[0].score <= 1
    assert found[1].score == 0

try:
    nodes = [NodeWithScore(node=TextNode(text="x"), score=0.5)]
    JinaRerank(api_key="wrong", base_url=f"{URL}/v1").postprocess_nodes(nodes, query_str="cats")
except RuntimeError as error:
    assert "wrong" in str(error)
else:
    raise AssertionError("a wrong key was taken")
