"""Measure the accuracy of highlighted passages: ``python -m bench.passages DIR…``.

A DIR holds a judged collection whose chunks are consecutive parts of documents, named
``DOCUMENT-NUMBER``. Four parts are joined to one chunk, and the result is the fraction of passages
that lie in the part that was judged relevant. By chance the middle of a passage does so in one of
four cases.
"""

from __future__ import annotations

import argparse
from itertools import groupby
from pathlib import Path

from bench.quality import Collection, read_collection
from bench.recording import Record, add_quick
from relevance_gen import ChunkIndex

N_PARTS = 4


def joined(collection: Collection) -> tuple[list[str], dict[str, tuple[int, int, int]]]:
    """Return the joined chunks, and for each part its chunk number, start and end."""
    chunks: list[str] = []
    place = {}
    for _, parts in groupby(collection.chunks.items(), key=lambda part: part[0].rpartition("-")[0]):
        for number, (part_id, text) in enumerate(parts):
            if number % N_PARTS == 0:
                chunks.append("")
            place[part_id] = (len(chunks) - 1, len(chunks[-1]), len(chunks[-1]) + len(text))
            chunks[-1] += text
    return chunks, place


def measure(record: Record, folder: Path) -> None:
    collection = read_collection(folder)
    chunks, place = joined(collection)
    index = ChunkIndex(chunks)
    n = inside = middle = n_first = first_inside = n_chars = 0
    for query_id, query in collection.queries.items():
        relevant = {place[part] for part, score in collection.qrels[query_id].items() if score > 0}
        best = index.search(query, 1).results
        for number, start, end in relevant:
            if sum(one[0] == number for one in relevant) > 1:
                continue
            for result in index.search(query, where=[number], spans=True).results:
                passage = result.passage
                hit = start <= passage.start and passage.end <= end
                n, inside = n + 1, inside + hit
                middle += start <= (passage.start + passage.end) / 2 < end
                n_chars += passage.end - passage.start
                if best[0].original_index == number:
                    n_first, first_inside = n_first + 1, first_inside + hit
    group = f"{folder.name}: passages of {n_chars / n:.0f} characters in {n:,} chunks of {N_PARTS} parts"
    record.add(group, "wholly inside the relevant part", inside / n, "share", places=3)
    record.add(group, "its middle inside", middle / n, "share", places=3)
    record.add(
        group, "wholly inside, in chunks ranked first", first_inside / n_first, "share", places=3
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    add_quick(parser)
    args = parser.parse_args()
    with Record("passages", args) as record:
        for folder in args.folders:
            measure(record, folder)


if __name__ == "__main__":
    main()
