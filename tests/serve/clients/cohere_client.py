"""Cohere's own client, both versions of its interface; run against the server at SERVER_URL."""

import asyncio
import os

import cohere

URL, KEY = os.environ["SERVER_URL"], os.environ["SERVER_KEY"]
ONCE = {"max_retries": 0}
QUERY, DOCUMENTS = "What do cats do?", ["Dogs bark at night.", "", "Cats purr, and cats sleep."]


def check(found) -> None:
    assert [result.index for result in found.results] == [2, 0, 1], found
    scores = [result.relevance_score for result in found.results]
    assert 0 < scores[0] <= 1, scores
    assert scores[1:] == [0, 0], scores
    assert found.id
    assert found.meta.billed_units.search_units == 1


def refused(call, error, says: str, status: int) -> None:
    try:
        call()
    except error as caught:
        assert caught.status_code == status, caught
        assert says in caught.body["message"], caught.body
    else:
        raise AssertionError(f"{error} was not raised")


new = cohere.ClientV2(KEY, base_url=URL)
old = cohere.Client(KEY, base_url=URL)
check(new.rerank(model="rerank-v4", query=QUERY, documents=DOCUMENTS))
check(old.rerank(model="rerank-v4", query=QUERY, documents=DOCUMENTS))
(best,) = new.rerank(
    model="m", query=QUERY, documents=DOCUMENTS, top_n=1, max_tokens_per_doc=4096
).results
assert best.index == 2

shown = old.rerank(
    query=QUERY, documents=[{"text": DOCUMENTS[2], "title": "x"}, "Dogs."], return_documents=True
)
assert [result.document.text for result in shown.results] == [DOCUMENTS[2], "Dogs."]

if int(cohere.__version__.split(".")[0]) >= 7:
    wanted = {"mode": "enabled", "threshold": 0.1, "max_spans": 2}
    spanned = new.rerank(
        model="m", query=QUERY, documents=["😀 " + DOCUMENTS[2], "Dogs."], relevant_spans=wanted
    )
    spans = spanned.results[0].relevant_spans
    assert 1 <= len(spans) <= 2
    assert "Cats" in ("😀 " + DOCUMENTS[2])[spans[0].start : spans[0].end]
    assert not spanned.results[1].relevant_spans

refused(
    lambda: new.rerank(model="m", query=QUERY, documents=DOCUMENTS, top_n=0, request_options=ONCE),
    cohere.BadRequestError,
    "top_n must be an integer of at least 1, got 0",
    400,
)
refused(
    lambda: cohere.ClientV2("wrong", base_url=URL).rerank(
        model="m", query=QUERY, documents=DOCUMENTS
    ),
    cohere.UnauthorizedError,
    "wrong",
    401,
)


async def run_concurrently() -> None:
    client = cohere.AsyncClientV2(KEY, base_url=URL)
    for found in await asyncio.gather(
        *(client.rerank(model="m", query=QUERY, documents=DOCUMENTS) for _ in range(4))
    ):
        check(found)


asyncio.run(run_concurrently())
