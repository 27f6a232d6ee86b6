"""Find what answers a question in a text."""

from pathlib import Path

from relevance_gen import search, split

text = Path(__file__).parents[1].joinpath("LICENSE").read_text(encoding="utf-8")
response = search(
    "Who is liable for damages?", split(text, max_chars=500), top_n=2, true_order=False
)
for result in response.results:
    print(f"{result.chunk_score:.2f}  chunk {result.original_index}:")
    print(result.chunk_txt, end="\n\n")
print(f"{response.metadata.num_context_tokens} tokens searched")
