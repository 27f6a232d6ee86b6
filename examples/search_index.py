"""Ask the same chunks many questions: build an index once, keep it in a file, see why a chunk was found."""

import tempfile
from pathlib import Path

from relevance_gen import ChunkIndex

chunks = [
    {"text": "Apples ripen in September and are picked by hand.", "metadata": {"page": 1}},
    {"text": "Pears are harvested before they are ripe.", "metadata": {"page": 1}},
    {"text": "Juice is pressed from apples that cannot be sold.", "metadata": {"page": 2}},
]
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "orchard.index"
    ChunkIndex(chunks).save(path)
    index = ChunkIndex.load(path)

questions = ["When are apples picked?", "What is made from apples?"]
for question, response in zip(questions, index.search(questions, top_n=1), strict=True):
    (best,) = response.results
    print(f"{question}\n  {best.chunk_score:.2f}  page {best.metadata['page']}: {best.chunk_txt}")
    for term in index.explain(question, best.original_index).terms:
        if term.contribution:
            print(
                f"        {term.term}: in {term.df} of {len(index)} chunks, gave {term.contribution:.2f}"
            )
