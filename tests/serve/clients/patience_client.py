"""OpenAI's and Cohere's clients above the rate limit: they wait for Retry-After and succeed."""

import os
import time

import cohere
import openai

URL, KEY = os.environ["SERVER_URL"], os.environ["SERVER_KEY"]
talker = openai.OpenAI(api_key=KEY, base_url=f"{URL}/v1", max_retries=3)
ranker = cohere.ClientV2(KEY, base_url=URL)
started_s = time.monotonic()
for _ in range(3):
    answer = talker.chat.completions.create(
        model="m", messages=[{"role": "user", "content": "x"}], max_tokens=2
    )
    assert answer.choices[0].finish_reason == "length"
    found = ranker.rerank(model="m", query="x", documents=["x"], request_options={"max_retries": 3})
    assert found.results[0].index == 0
assert time.monotonic() - started_s < 60
