"""The whole story on one screen: chunk a real document, search it, generate from the best chunk. No network is used."""

import os
import sys
import textwrap
import time
from pathlib import Path
from pydoc_data.topics import topics  # the Python language reference, which comes with every Python

from relevance_gen import Chunk, ChunkIndex, generate, split

QUESTION = "How is an exception raised?"
END_TOKEN = 1  # of the embedded model
PROMPT = "Context: {context}\nQuestion: {question}\nAnswer:"


def show(label: str, text: str) -> None:
    """Print a label and a text, wrapped to the width of the screen."""
    first, rest = f"{label:>10}  ", " " * 12
    print(
        textwrap.fill(
            text, 100, initial_indent=first, subsequent_indent=rest, max_lines=5, placeholder=" …"
        )
    )


def milliseconds(started: float) -> str:
    """Return the time since `started` as text, in ms."""
    return f"{1000 * (time.perf_counter() - started):.1f} ms"


def find_chunk() -> str:
    """Search the document, show the best chunks, and return the first."""
    started = time.perf_counter()
    chunks = {
        text: topic
        for topic, topic_text in topics.items()
        for text in split(topic_text, max_chars=600)
    }
    elapsed = milliseconds(started)
    show(
        "document", f"the Python language reference, {sum(map(len, topics.values())):,} characters"
    )
    show("split", f"into {len(chunks):,} chunks in {elapsed}")

    started = time.perf_counter()
    index = ChunkIndex([Chunk(text, {"topic": topic}) for text, topic in chunks.items()])
    indexed = milliseconds(started)
    started = time.perf_counter()
    response = index.search(QUESTION, top_n=2, true_order=False)
    searched = milliseconds(started)
    show("index", f"{response.metadata.num_context_tokens:,} tokens in {indexed}")
    show("question", f"{QUESTION} ({response.metadata.num_query_tokens} tokens)")
    show("search", f"in {searched}")
    for result in response.results:
        print()
        show(f"{result.chunk_score:.2f}", f"[{result.metadata['topic']}] {result.chunk_txt}")
    return response.results[0].chunk_txt


def answer_from(chunk: str) -> None:
    """Generate an answer from a chunk and print it."""
    prompt = PROMPT.format(context=" ".join(chunk.split()), question=QUESTION)
    generate({"text": QUESTION, "max_tokens": 1})  # loads the model
    started = time.perf_counter()
    response = generate(
        {
            "text": prompt,
            "max_tokens": 100,
            "temperature": 0,
            "eos_token_ids": [END_TOKEN],
            "stop": ["\n"],
        }
    )
    (sample,) = response.responses
    elapsed = milliseconds(started)
    print()
    show(
        "generate",
        f"{response.prompt_tokens} tokens read and {sample.generated_tokens} written in {elapsed}",
    )
    show("answer", sample.text.strip())


def print_next_steps() -> None:
    """Print the next two commands to try."""
    program = os.path.relpath(Path(sys.executable).with_name("relevance-gen"))
    print(f"""
      next  make serve, and http://127.0.0.1:8000/ is a page to ask your own documents, with the key it shows

            {program} ask "Your question" FILES --model ggml-org/Qwen3-1.7B-GGUF
            answers with a real model (1.3 GB, downloaded once)""")


if __name__ == "__main__":
    answer_from(find_chunk())
    print_next_steps()
