"""Measure what the embedded model answers to people's questions: ``python -m bench.asking DIR [--model FILE]``.

DIR is a judged collection as `bench.quality` reads it, best one of short plain paragraphs, such as XQuAD in English.
The right sentence is the one of the relevant chunk that shares most content words with the question. An answer is
closest to it if no sentence that the model was shown is as similar to the answer.
"""

from __future__ import annotations

import argparse
import random
import re
from difflib import SequenceMatcher
from pathlib import Path

from bench.quality import read_collection
from bench.recording import Record, add_quick
from relevance_gen import ChunkIndex, Runner, ask
from relevance_gen.chunking import sentences

_CONTENT = re.compile(r"\w{4,}")


def words(text: str) -> set[str]:
    return set(_CONTENT.findall(text.lower()))


def in_sentences(text: str) -> list[str]:
    return [text[start:end] for start, end in sentences(text)]


def right_sentence(chunk: str, question: str) -> str:
    return max(in_sentences(chunk), key=lambda sentence: len(words(sentence) & words(question)))


def is_close(answer: str, right: str, shown: list[str]) -> bool:
    """Tell whether no sentence is as similar to an answer as the right one."""
    similarities = {text: SequenceMatcher(None, answer, text, False).ratio() for text in {right, *shown}}
    return max(similarities, key=lambda text: similarities[text]) == right


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--model", help="GGUF file (default: the embedded model)")
    parser.add_argument("--questions", type=int, default=200)
    add_quick(parser)
    args = parser.parse_args()
    collection = read_collection(args.folder)
    index = ChunkIndex(list(collection.chunks.values()))
    asked = random.Random(0).sample(list(collection.queries), 20 if args.quick else args.questions)
    with Record("asking", args, is_whole=args.model is None) as record, Runner(args.model, n_slots=1) as runner:
        for top_n in (1, 2, 5):
            found = {"the right chunk was shown": 0, "closest to the right sentence": 0, "word for word": 0}
            found["ended by itself"] = 0
            for query_id in asked:
                question, judged = collection.queries[query_id], collection.qrels[query_id]
                relevant = collection.chunks[max(judged, key=lambda chunk_id: judged[chunk_id])]
                answer = ask(question, index, top_n=top_n, runner=runner)
                right = right_sentence(relevant, question)
                shown = [sentence for source in answer.sources for sentence in in_sentences(source.text)]
                found["the right chunk was shown"] += any(s.result.chunk_txt == relevant for s in answer.sources)
                found["closest to the right sentence"] += is_close(answer.text, right, shown)
                found["word for word"] += answer.text == right
                found["ended by itself"] += answer.finish_reason == "eos"
            for what, number in found.items():
                record.add(f"{len(asked)} questions of {args.folder.name}", f"top_n={top_n}", number / len(asked), what)


if __name__ == "__main__":
    main()
