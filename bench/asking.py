"""Measure answers and citations of `ask`: ``python -m bench.asking DIR… [--model FILE]…``.

Each DIR is a collection as `bench.layouts` reads it. The questions are those of
``bench/answers.json``: for each question, a person has read the relevant chunk and marked words of
the correct sentence, and shorter words of answers that are not copied. An answer is right if it
contains the words of one alternative, silent if `ask` finds none or the model states that the
sources do not answer, and otherwise wrong. Further questions, of all other collections, have no
answer in a collection: for these silence is right.

A citation is right if its span in the sources contains the marked words. Reported are the fractions
of right answers with a right citation, and of wrong answers with any citation.

The rows are: the best sentence of the best chunk, without a model; the best passage, the default
of `ask` without a chat model; the embedded model generating freely; and, with ``--model``, the
answers of that model. Answers are stored in ``--answers``, so that a stopped run continues.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from attrs import asdict, frozen

from bench import layouts
from bench.recording import Record, add_quick
from relevance_gen import ChunkIndex, Runner, ask, cite, search
from relevance_gen.text.chunking import sentences
from relevance_gen.types import MIN_CONFIDENCE

MARKED = Path(__file__).with_name("answers.json")
N_FOREIGN = 50
"""Questions of other collections that are asked of a collection."""

_STATES_NONE = re.compile(
    r"\b(?:sources?|texts?|passages?)\b[^.]*\b(?:not|n't|no)\b|\b(?:not|no)\b[^.]*\bsources?\b",
    re.IGNORECASE,
)


@frozen
class MeasuredAnswer:
    """An answer as it is stored.

    Attributes:
        text: the answer; empty if none was found.
        cited: the texts of the spans that its citations name.
        seconds: the CPU time of the call, of all threads.
    """

    text: str
    cited: list[str]
    seconds: float


@frozen
class Questions:
    """The questions to a collection.

    Attributes:
        name: the name of the collection.
        index: the index of its chunks.
        marked: alternatives of marked words for each question.
        foreign: questions without an answer in the collection.
    """

    name: str
    index: ChunkIndex
    marked: dict[str, list[str]]
    foreign: list[str]


Method: TypeAlias = Callable[[str, ChunkIndex], MeasuredAnswer]


def best_sentence(question: str, index: ChunkIndex) -> MeasuredAnswer:
    """Return the best sentence of the best chunk, without a model."""
    started = time.process_time()
    response = index.search(question, 1)
    if response.confidence < MIN_CONFIDENCE:
        return MeasuredAnswer("", [], time.process_time() - started)
    chunk = response[0].chunk_txt
    parts = [chunk[start:end] for start, end in sentences(chunk)]
    found = search(question, parts, 1)
    text = found[0].chunk_txt if found else parts[0]
    spans = [span for sentence in cite(text, [chunk]) for span in sentence.spans]
    cited = [chunk[span.start : span.end] for span in spans]
    return MeasuredAnswer(text, cited, time.process_time() - started)


def method_of(runner: Runner | None, copy: bool | None = None) -> Method:
    """Return the function that asks with a runner."""

    def answer(question: str, index: ChunkIndex) -> MeasuredAnswer:
        started = time.process_time()
        answered = ask(question, index, runner=runner, copy=copy)
        seconds = time.process_time() - started
        if not answered.found:
            return MeasuredAnswer("", [], seconds)
        spans = [span for sentence in answered.citations for span in sentence.spans]
        chunks = [source.result.chunk_txt for source in answered.sources]
        cited = [chunks[span.source][span.start : span.end] for span in spans]
        return MeasuredAnswer(answered.text, cited, seconds)

    return answer


def contains(text: str, alternatives: list[str]) -> bool:
    text = " ".join(text.split()).casefold()
    return any(words.casefold() in text for words in alternatives)


class Answers:
    """Answers in a file of JSON lines, each computed once."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._known: dict[str, dict[str, Any]] = {}
        if path is not None and path.exists():
            for line in path.read_text(encoding="utf-8").splitlines():
                stored = json.loads(line)
                self._known[stored.pop("key")] = stored

    def answer(self, row: str, method: Method, question: str, index: ChunkIndex) -> MeasuredAnswer:
        """Return the answer to a question; `row` names the collection and the method."""
        key = f"{row}: {question}"
        if key not in self._known:
            answer = asdict(method(question, index))
            self._known[key] = answer
            if self._path is not None:
                with self._path.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"key": key, **answer}, ensure_ascii=False) + "\n")
        return MeasuredAnswer(**self._known[key])


def outcome(answer: MeasuredAnswer, alternatives: list[str]) -> str:
    if contains(answer.text, alternatives):
        return "right"
    is_silent = not answer.text or _STATES_NONE.search(answer.text)
    return "silent" if is_silent else "wrong"


def measure(
    record: Record, name: str, method: Method, asked: list[Questions], answers: Answers
) -> None:
    """Measure a method on the questions of all collections."""
    counts: Counter[str] = Counter()
    n_right_cited = n_wrong_cited = n_foreign_silent = 0
    seconds = []
    for questions in asked:
        row = f"{questions.name}, {name}"
        for question, alternatives in questions.marked.items():
            answer = answers.answer(row, method, question, questions.index)
            kind = outcome(answer, alternatives)
            counts[kind] += 1
            is_cited = any(contains(span, alternatives) for span in answer.cited)
            n_right_cited += kind == "right" and is_cited
            n_wrong_cited += kind == "wrong" and bool(answer.cited)
            seconds.append(answer.seconds)
        for question in questions.foreign:
            answer = answers.answer(row, method, question, questions.index)
            n_foreign_silent += outcome(answer, []) == "silent"
    group = f"{counts.total()} questions with a marked answer"
    for kind in ("right", "wrong", "silent"):
        record.add(group, name, counts[kind] / counts.total(), kind)
    record.add(group, name, n_right_cited / max(counts["right"], 1), "right, cited rightly")
    record.add(group, name, n_wrong_cited / max(counts["wrong"], 1), "wrong, and cited")
    n_foreign = sum(len(questions.foreign) for questions in asked)
    if n_foreign:
        share = n_foreign_silent / n_foreign
        record.add(group, name, share, f"silent, {n_foreign} without answer")
    record.add(group, name, float(np.median(seconds)), "CPU seconds, median", places=3)


def read_questions(folders: list[Path], n_marked: int | None) -> Iterator[Questions]:
    """Yield the questions of each collection, at most `n_marked` with a marked answer."""
    all_marked: dict[str, dict[str, list[str]]] = json.loads(MARKED.read_text(encoding="utf-8"))
    collections = {folder.name: layouts.read(folder) for folder in folders}
    marked: dict[str, dict[str, list[str]]] = {name: {} for name in collections}
    for group, words in all_marked.items():
        name = group.partition(",")[0]
        if name in collections:
            queries = collections[name].queries
            for query_id, alternatives in words.items():
                marked[name].setdefault(queries[query_id], []).extend(alternatives)
    for name, collection in collections.items():
        chunks = [chunk["text"] for chunk in collection.chunks]
        foreign = [
            question
            for other in marked
            if other != name
            for question in [*marked[other]][:N_FOREIGN]
        ]
        own = dict(list(marked[name].items())[:n_marked])
        yield Questions(name, ChunkIndex(chunks), own, foreign[: n_marked or N_FOREIGN])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--model", type=Path, action="append", metavar="FILE", default=[])
    parser.add_argument("--n-threads", type=int, help="threads of the models")
    parser.add_argument("--answers", type=Path, metavar="FILE", help="stored answers")
    add_quick(parser)
    args = parser.parse_args()
    asked = list(read_questions(args.folders, 5 if args.quick else None))
    answers = Answers(args.answers)
    with Record("asking", args) as record, Runner(n_slots=1) as embedded:
        measure(record, "best sentence, no model", best_sentence, asked, answers)
        measure(record, "best passage, no model (default)", method_of(None), asked, answers)
        measure(record, "embedded model, copy=False", method_of(embedded, False), asked, answers)
        for model in args.model:
            with Runner(model, n_slots=1, n_threads=args.n_threads) as runner:
                measure(record, model.stem, method_of(runner), asked, answers)


if __name__ == "__main__":
    main()
