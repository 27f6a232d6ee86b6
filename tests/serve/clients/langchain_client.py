"""LangChain's rerankers for Cohere and for Jina; run against the server at SERVER_URL."""

import os

from langchain_cohere import CohereRerank
from langchain_community.document_compressors import jina_rerank
from langchain_core.documents import Document

URL, KEY = os.environ["SERVER_URL"], os.environ["SERVER_KEY"]
jina_rerank.JINA_API_URL = f"{URL}/v1/rerank"  # the only way to set it
DOCUMENTS = [Document("Dogs bark."), Document("Cats purr.", metadata={"page": 2}), Document("")]

for compressor in (
    CohereRerank(cohere_api_key=KEY, base_url=URL, model="any", top_n=2),
    jina_rerank.JinaRerank(jina_api_key=KEY, top_n=2),
):
    found = compressor.compress_documents(DOCUMENTS, "What do cats do?")
    assert [document.page_content for document in found] == ["Cats purr.", "Dogs bark."], found
    assert found[0].metadata["page"] == 2
    assert 0 < found[0].metadata["relevance_score"] <= 1
    assert found[1].metadata["relevance_score"] == 0
    every = compressor.rerank([{"text": "Cats purr."}, "Dogs."], "cats", top_n=None)
    assert [one["index"] for one in every] == [0, 1]

try:
    jina_rerank.JinaRerank(jina_api_key=KEY).rerank(["x"], " ")
except RuntimeError as error:
    assert "query must be a string that is not blank" in str(error)
else:
    raise AssertionError("a blank query was taken")
