"""Search and generate with `requests`. SERVER_URL is the server, SERVER_KEY the API key."""

import gzip
import json
import os

import requests

URL = os.environ.get("SERVER_URL", "http://127.0.0.1:8000")

session = requests.Session()
session.headers["X-API-Key"] = os.environ["SERVER_KEY"]

# Search: strings and objects can be mixed, and metadata is returned unchanged.
chunks = [
    "Machine learning lets computers learn from data.",
    {"text": "The weather is sunny today.", "metadata": {"source": "diary", "page": 3}},
    {
        "text": "Deep learning is machine learning with many layers.",
        "metadata": {"source": "book", "page": 12},
    },
]
answer = session.post(
    f"{URL}/search", json={"query": "What is machine learning?", "chunk_txts": chunks, "top_n": 2}
)
answer.raise_for_status()
for result in answer.json()["results"]:
    print(f"{result['chunk_score']:.3f}  {result['chunk_txt']}  {result['metadata']}")

# Large bodies travel faster compressed; requests expands compressed answers by itself.
body = gzip.compress(json.dumps({"query": "sunny", "chunk_txts": chunks}).encode())
answer = session.post(
    f"{URL}/search",
    data=body,
    headers={"Content-Type": "application/json", "Content-Encoding": "gzip"},
)
print(answer.json()["metadata"])

# Errors have a message and the path of the invalid field.
answer = session.post(f"{URL}/search", json={"query": "x", "chunk_txts": ["a", " "]})
print(answer.status_code, answer.json()["error"])

# Generate. The Content-Type must be exactly application/json, which is what json= sends.
answer = session.post(
    f"{URL}/generate",
    json={"text": "Once upon a time", "max_tokens": 16, "num_samples": 2, "seed": 1},
)
answer.raise_for_status()
for completion in answer.json()["responses"]:
    print(completion["finish_reason"], repr(completion["text"]))
