"""Answer a question from a document, print the answer piece by piece, then its sources."""

from pydoc_data.topics import topics  # the Python language reference, which comes with every Python

from relevance_gen import Chunk, ChunkIndex, ask_stream, split

index = ChunkIndex(
    [
        Chunk(text, {"topic": topic})
        for topic, whole in topics.items()
        for text in split(whole, max_chars=800)
    ]
)
with ask_stream(
    "When is the else clause of a loop executed?", index, top_n=3
) as stream:  # runner=Runner("model.gguf") for a real model
    for piece in stream:
        print(piece, end="", flush=True)
print("\n")
for number, source in enumerate(stream.sources, 1):
    print(
        f"[{number}] {source.result.chunk_score:.2f}  {source.result.metadata['topic']}: {source.text[:80]!r}"
    )
