#!/usr/bin/env bash
# The paths of the server, with curl. SERVER_URL and SERVER_KEY say where, and with which key.
set -euo pipefail
url=${SERVER_URL:-http://127.0.0.1:8000}
key=${SERVER_KEY:?set it to one of the server\'s keys}

echo "── search ──"
curl --silent --show-error --fail-with-body "$url/search" \
  --header "X-API-Key: $key" --header "Content-Type: application/json" \
  --data '{
    "query": "What is machine learning?",
    "chunk_txts": [
      "Machine learning lets computers learn from data.",
      {"text": "The weather is sunny today.", "metadata": {"source": "diary", "page": 3}}
    ],
    "top_n": 1
  }'
echo

echo "── a compressed request, a compressed response ──"
printf '{"query": "red fruit", "chunk_txts": ["Apples are red fruit.", "Bananas are yellow."]}' | gzip \
  | curl --silent --show-error --fail-with-body "$url/search" --compressed --data-binary @- \
      --header "X-API-Key: $key" --header "Content-Type: application/json" --header "Content-Encoding: gzip"
echo

echo "── rerank, as Cohere and Jina have it ──"
curl --silent --show-error --fail-with-body "$url/v2/rerank" \
  --header "Authorization: Bearer $key" --header "Content-Type: application/json" \
  --data '{"query": "red fruit", "documents": ["Bananas are yellow.", "Apples are red fruit."], "top_n": 1}'
echo

echo "── health and stats ──"
curl --silent --output /dev/null --write-out "health: %{http_code}\n" "$url/health"
curl --silent --show-error --fail-with-body "$url/stats"
echo

echo "── generate ──"
curl --silent --show-error --fail-with-body "$url/generate" --header "Content-Type: application/json" \
  --data '{"text": "Once upon a time", "max_tokens": 16, "temperature": 0.7, "seed": 1}'
echo

echo "── generate, text as it comes ──"
curl --silent --show-error --fail-with-body --no-buffer "$url/generate_stream" --header "Content-Type: application/json" \
  --data '{"text": "Once upon a time", "max_tokens": 16, "temperature": 0.7, "seed": 1}'

echo "── a chat, as OpenAI has it ──"
curl --silent --show-error --fail-with-body "$url/v1/chat/completions" --header "Content-Type: application/json" \
  --data '{"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 16}'
echo
