"""Measure the embedded model's answers: ``python -m bench.asking DIR [--model FILE]``.

DIR is a judged collection as `bench.quality` reads it, preferably of short plain paragraphs, such
as XQuAD in English. The correct sentence is the sentence of the relevant chunk that shares most
content words with the question. An answer counts as closest to it if no other sentence in the
prompt is more similar to the answer.

For the questions of XQuAD and COVID-QA in ``bench/answers.json``, a person has read the relevant
chunk and marked words that occur only in its correct sentence. The number of answers with these
words is measured too, for copied and for freely generated answers.
"""

from __future__ import annotations

import argparse
import json
import random
import re
from difflib import SequenceMatcher
from pathlib import Path

from bench.quality import Collection, read_collection
from bench.recording import Record, add_quick
from relevance_gen import ChunkIndex, Runner, ask
from relevance_gen.text.chunking import sentences

_MARKED = Path(__file__).with_name("answers.json")
_CONTENT = re.compile(r"\w{4,}")


def words(text: str) -> set[str]:
    return set(_CONTENT.findall(text.lower()))


def in_sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


def right_sentence(chunk: str, question: str) -> str:
    return max(in_sentences(chunk), key=lambda sentence: len(words(sentence) & words(question)))


def is_close(answer: str, right: str, shown: list[str]) -> bool:
    """Return whether the correct sentence is the most similar to an answer."""
    similarities = {
        text: SequenceMatcher(None, answer, text, False).ratio() for text in {right, *shown}
    }
    return max(similarities, key=lambda text: similarities[text]) == right


def measure_marked(
    record: Record, folder: Path, collection: Collection, index: ChunkIndex, runner: Runner
) -> None:
    """Measure how many answers hold the words that were marked by hand."""
    marked: dict[str, list[str]] = json.loads(_MARKED.read_text()).get(folder.name, {})
    ids = list(collection.chunks)
    for column, copy in (("copied", None), ("written freely", False)):
        found = {
            "the right chunk came first": 0,
            "an answer was given": 0,
            "it holds the right words": 0,
        }
        found["it does, and the right chunk came first"] = 0
        for query_id, right in marked.items():
            answer = ask(collection.queries[query_id], index, runner=runner, copy=copy)
            text = " ".join(answer.text.split()).lower()
            is_right = answer.found and any(each.lower() in text for each in right)
            first = ids[answer.sources[0].result.original_index] if answer.sources else None
            is_first = first in collection.qrels[query_id]
            for what, holds in zip(
                found, (is_first, answer.found, is_right, is_right and is_first), strict=True
            ):
                found[what] += holds
        for what, number in found.items():
            record.add(
                f"{len(marked)} marked questions of {folder.name}",
                column,
                number / len(marked),
                what,
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--model", help="GGUF file (default: the embedded model)")
    parser.add_argument("--questions", type=int, default=200)
    add_quick(parser)
    args = parser.parse_args()
    collection = read_collection(args.folder)
    index = ChunkIndex(list(collection.chunks.values()))
    asked = random.Random(0).sample(list(collection.queries), 20 if args.quick else args.questions)
    with (
        Record("asking", args, is_whole=args.model is None) as record,
        Runner(args.model, n_slots=1) as runner,
    ):
        measure_marked(record, args.folder, collection, index, runner)
        for top_n in (1, 2, 5):
            found = {
                "the right chunk was shown": 0,
                "closest to the right sentence": 0,
                "word for word": 0,
            }
            found["ended by itself"] = 0
            for query_id in asked:
                question, judged = collection.queries[query_id], collection.qrels[query_id]
                relevant = collection.chunks[max(judged, key=lambda chunk_id: judged[chunk_id])]
                answer = ask(question, index, top_n=top_n, runner=runner)
                right = right_sentence(relevant, question)
                shown = [
                    sentence for source in answer.sources for sentence in in_sentences(source.text)
                ]
                found["the right chunk was shown"] += any(
                    s.result.chunk_txt == relevant for s in answer.sources
                )
                found["closest to the right sentence"] += is_close(answer.text, right, shown)
                found["word for word"] += answer.text == right
                found["ended by itself"] += answer.finish_reason == "eos"
            for what, number in found.items():
                record.add(
                    f"{len(asked)} questions of {args.folder.name}",
                    f"top_n={top_n}",
                    number / len(asked),
                    what,
                )


if __name__ == "__main__":
    main()
