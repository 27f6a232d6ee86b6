"""Measure whether compressed context still has the answer: ``python -m bench.compress DIR…``.

The ten best chunks for each question are compressed to a quarter and to an eighth of their tokens.
For the questions in ``bench/answers.json`` a person has read the relevant chunk and marked words
that occur only in its correct sentence. The result is the fraction of questions, with the relevant
chunk among the ten, for which a sentence with these words is kept. The baseline keeps complete
chunks, best first, until the next chunk does not fit. The constants of
`relevance_gen.asking.compression` were chosen on the first questions; the held-out questions were
marked later.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from bench.quality import read_collection
from bench.recording import Record, add_quick
from relevance_gen import ChunkIndex, compress, token_counter

ANSWERS = Path(__file__).with_name("answers.json")
N_CHUNKS = 10
GROUP = "Answers still inside"


def holds(text: str, right: list[str]) -> bool:
    return any(words in " ".join(text.split()) for words in right)


def whole_chunks(texts: list[str], max_tokens: int) -> list[int]:
    """Return the numbers of the first chunks that have room together."""
    kept, counter = [], token_counter()
    for number in range(len(texts)):
        if counter.count("\n\n".join(texts[: number + 1])) > max_tokens:
            break
        kept.append(number)
    return kept


def measure(record: Record, folder: Path, marked: dict[str, list[str]], what: str) -> None:
    collection = read_collection(folder)
    ids = list(collection.titled)
    index = ChunkIndex(list(collection.titled.values()))
    found = []
    for query_id, right in marked.items():
        results = index.search(collection.queries[query_id], N_CHUNKS, true_order=False).results
        judged = [ids[one.original_index] in collection.qrels[query_id] for one in results]
        relevant = [n for n, one in enumerate(results) if judged[n] and holds(one.chunk_txt, right)]
        if relevant:
            found.append(
                (collection.queries[query_id], [one.chunk_txt for one in results], relevant, right)
            )
    for name, share in (("a quarter", 1 / 4), ("an eighth", 1 / 8)):
        n_kept = n_whole = 0
        for question, texts, relevant, right in found:
            max_tokens = int(share * token_counter().count_all(texts))
            kept = compress(question, texts, max_tokens=max_tokens)
            n_kept += any(one.original_index in relevant and holds(one.text, right) for one in kept)
            n_whole += not set(relevant).isdisjoint(whole_chunks(texts, max_tokens))
        row = f"{len(found)} of {folder.name}{what}"
        record.add(GROUP, row, n_kept / len(found), f"compress, {name}", places=3)
        record.add(GROUP, row, n_whole / len(found), f"whole chunks, {name}", places=3)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    add_quick(parser)
    args = parser.parse_args()
    answers = json.loads(ANSWERS.read_text(encoding="utf-8"))
    with Record("compress", args) as record:
        for folder in args.folders:
            for what in ("", ", held out"):
                if folder.name + what in answers:
                    measure(record, folder, answers[folder.name + what], what)


if __name__ == "__main__":
    main()
