"""The rerankers library, for Cohere, Jina and TEI; run against the server at SERVER_URL."""

import os

from rerankers.models.api_rankers import APIRanker

URL, KEY = os.environ["SERVER_URL"], os.environ["SERVER_KEY"]
DOCUMENTS = ["Dogs bark.", "Cats purr.", ""]

for provider, path in (
    ("cohere", "/v1/rerank"),
    ("jina", "/v1/rerank"),
    ("text-embeddings-inference", "/rerank"),
):
    ranker = APIRanker("any", KEY, provider, verbose=0, url=URL + path)
    found = ranker.rank("What do cats do?", DOCUMENTS)
    assert [result.document.text for result in found.results] == ["Cats purr.", "Dogs bark.", ""], (
        found
    )
    assert 0 < found.results[0].score <= 1
    assert [result.score for result in found.results[1:]] == [0, 0]
