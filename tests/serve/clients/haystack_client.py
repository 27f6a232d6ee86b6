"""Haystack's rankers for Cohere, Jina and TEI; run against the server at SERVER_URL."""

import os

from haystack import Document
from haystack.utils import Secret
from haystack_integrations.components.rankers.cohere import CohereRanker
from haystack_integrations.components.rankers.huggingface_api import HuggingFaceTEIRanker
from haystack_integrations.components.rankers.jina import JinaRanker

URL, KEY = os.environ["SERVER_URL"], Secret.from_token(os.environ["SERVER_KEY"])
TEI = HuggingFaceTEIRanker(url=URL, token=KEY, top_k=2, max_retries=1)
DOCUMENTS = [Document(content="Dogs bark."), Document(content="Cats purr."), Document(content="")]

for ranker in (
    CohereRanker(model="any", api_key=KEY, api_base_url=URL, top_k=2),
    JinaRanker(model="any", api_key=KEY, base_url=f"{URL}/v1/rerank", top_k=2),
    TEI,
):
    found = ranker.run(query="What do cats do?", documents=DOCUMENTS)["documents"]
    assert [document.content for document in found] == ["Cats purr.", "Dogs bark."], found
    assert 0 < found[0].score <= 1
    assert found[1].score == 0

without_text = [Document(content=None, meta={"x": 1}), Document(content="Cats purr.")]
ranked = JinaRanker(model="any", api_key=KEY, base_url=f"{URL}/v1/rerank").run(
    query="cats", documents=without_text
)
assert [document.content for document in ranked["documents"]] == ["Cats purr.", None]

try:
    TEI.run(query=" ", documents=DOCUMENTS)
except RuntimeError as error:
    assert "query must be a string that is not blank" in str(error)
    assert '"error_type":"Validation"' in str(error)
else:
    raise AssertionError("a blank query was taken")
