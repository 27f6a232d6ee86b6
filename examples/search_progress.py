"""Show how far the building of a large index has come, and search it with a token encoding of your choice."""

import sys

from relevance_gen import ChunkIndex


def show(done: int, total: int) -> None:
    """Rewrite one line of the terminal."""
    sys.stderr.write(f"\rindexing {done:,} of {total:,} chunks")


chunks = [
    f"Order {number} was sent to customer {number * 7919 % 1000}." for number in range(50_000)
]
index = ChunkIndex(chunks, progress=show)
sys.stderr.write("\n")
for result in index.search("order 4711").results:
    print(f"{result.chunk_score:.2f}  {result.chunk_txt}")
