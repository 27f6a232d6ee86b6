"""Search a sentence hidden in a long text of few authors: ``python -m bench.needle [--books FILE]``.

The query has the words of the sentence, which is inserted in turn at evenly spread positions; the
result is its rank at each position.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from bench.recording import Record, add_quick
from bench.texts import cut, read_text
from relevance_gen import ChunkIndex

NEEDLES = (
    (
        "The best thing to do in the town is to eat a sandwich and sit in the old park on a sunny day.",
        "What is the best thing to do in the town on a sunny day?",
    ),
    (
        "The old man sold the white house on the hill to his sister.",
        "Who sold the white house on the hill?",
    ),
    (
        "He said that the time had come for her to go and see the man.",
        "When had the time come to go and see the man?",
    ),
    (
        "My uncle keeps the key of the house under the third stone from the door.",
        "Where is the key of the house?",
    ),
)
N_PLACES = 20


def ranks(text: str, needle: str, query: str) -> list[int]:
    """Return the needle's rank at each place; 0 where it is not among the first hundred."""
    chunks = cut(text, 1024)
    found = []
    for number in range(N_PLACES):
        place = number * len(chunks) // N_PLACES
        host = chunks[place]
        hidden = f"{host[:512]} {needle} {host[512:]}"
        results = ChunkIndex([*chunks[:place], hidden, *chunks[place + 1 :]]).search(
            query, 100, true_order=False
        )
        positions = [result.original_index for result in results.results]
        found.append(positions.index(place) + 1 if place in positions else 0)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--books", type=Path, help="a text of 2 MB or more, gzipped or not")
    parser.add_argument("--characters", type=int, default=2_600_000)
    add_quick(parser)
    args = parser.parse_args()
    text = read_text(args.books)[: 200_000 if args.quick else args.characters]
    with Record("needle", args) as record:
        group = f"A sentence in {len(text):,} characters, at {N_PLACES} places in turn"
        for needle, query in NEEDLES:
            found = ranks(text, needle, query)
            record.add(
                group, query, sum(rank == 1 for rank in found), "times first of all", places=0
            )
            record.add(
                group, query, sum(0 < rank <= 10 for rank in found), "times among ten", places=0
            )


if __name__ == "__main__":
    main()
