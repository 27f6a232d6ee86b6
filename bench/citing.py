"""Measure how well sentences are attributed to their source: ``python -m bench.citing DIR…``.

Each DIR is a collection as `bench.layouts` reads it. Sentences of one of ten chunks are cited from
these chunks: unchanged, with words removed, with words replaced by words of a different document,
and with halves of two sentences joined. Sentences of different documents should not be cited, and
neither should sentences with an added negation, another number or another name. The
minimum score of `relevance_gen.asking.citations` is the midpoint of the two thresholds that
separate both groups best. Reported for each collection is the threshold that all remaining
collections would choose.
"""

from __future__ import annotations

import argparse
import random
import re
import time
from pathlib import Path

import numpy as np
from attrs import field, frozen

from bench import layouts
from bench.recording import Record, add_quick
from relevance_gen import cite
from relevance_gen.asking import citations as citing
from relevance_gen.text.chunking import sentences

N_SOURCES = 10
MIN_WORDS = 8
"""Minimum words of a changed sentence; in Chinese, without spaces, four characters count as a
word."""
MIN_CONTRADICTIONS = 30
"""Minimum number of changed sentences for a figure."""
CHANGES = ("1 word left out", "1 word replaced", "3 words replaced", "half of the words replaced")

_AUXILIARY = re.compile(
    r"\b(is|are|was|were|has|have|had|can|could|will|would|may|must|ist|sind|war|waren|wird|hat|был|была|были)\b"
)
_GERMAN = {"ist", "sind", "war", "waren", "wird", "hat"}
_RUSSIAN = {"был", "была", "были"}
_NUMBER = re.compile(r"(?<![\w\[.,])\d+")
_NAME = re.compile(r"(?<=[a-zа-я] )[A-ZА-Я]\w{3,}")


@frozen
class Case:
    """A sentence in its sources: their texts, its location, a second and a foreign sentence."""

    sources: list[str]
    place: tuple[int, int, int]
    sentence: str
    other: tuple[int, int, int]
    foreign: str


@frozen
class Shares:
    """The scores of the best spans: of foreign sentences and of changed sentences."""

    foreign: list[float] = field(factory=list)
    changed: list[float] = field(factory=list)

    def threshold(self) -> float:
        """Return the middle of the least shares that part the two best."""
        tried = np.arange(0.05, 1.0, 0.01)
        parted = [
            np.mean(np.array(self.changed) >= one) + np.mean(np.array(self.foreign) < one)
            for one in tried
        ]
        return float(tried[np.isclose(parted, max(parted))].mean())


def cases(folder: Path, n: int) -> list[Case]:
    """Return cases whose foreign sentences are of other documents than the sources: none of its words in a row."""
    documents: dict[str, list[str]] = {}
    for record in layouts.read(folder).chunks:
        if record["text"].strip():
            documents.setdefault(
                record["title"] or record["_id"].rpartition("-")[0] or record["_id"], []
            ).append(record["text"])
    draw, made, names = random.Random(0), [], list(documents)
    while len(made) < n:
        inside = draw.sample(names, min(N_SOURCES, len(names) - 1))
        sources = [draw.choice(documents[name]) for name in inside]
        outside = draw.choice(
            documents[draw.choice([name for name in names if name not in inside])]
        )
        of_all = [
            (source, *place) for source, text in enumerate(sources) for place in sentences(text)
        ]
        foreign = [outside[start:end] for start, end in sentences(outside)]
        long = [one for one in of_all if len(words(at(sources, one))) >= MIN_WORDS]
        if len(long) > 1 and (foreign := [one for one in foreign if len(words(one)) >= MIN_WORDS]):
            place, other = draw.sample(long, 2)
            made.append(Case(sources, place, at(sources, place), other, draw.choice(foreign)))
    return made


def at(sources: list[str], place: tuple[int, int, int]) -> str:
    source, start, end = place
    return sources[source][start:end]


def words(text: str) -> list[str]:
    parts = text.split()
    return (
        parts
        if 16 * len(parts) > len(text)
        else [text[start : start + 4] for start in range(0, len(text), 4)]
    )


def joined(parts: list[str], like: str) -> str:
    return (" " if words(like) == like.split() else "").join(parts)


def changed(case: Case, change: str, draw: random.Random) -> str:
    parts, others = words(case.sentence), words(case.foreign)
    n = len(parts) // 2 if change.startswith("half") else int(change[0])
    for place in draw.sample(range(len(parts)), n):
        parts[place] = draw.choice(others) if "replaced" in change else ""
    return joined(parts, case.sentence)


def named(text: str, sources: list[str]) -> list[list[str]]:
    """Return the texts of the supporting spans for each sentence of a text."""
    cited = [one.spans for one in cite(text, sources)]
    return [
        [at(sources, (place.source, place.start, place.end)) for place in places]
        for places in cited
    ]


def negated(sentence: str) -> str | None:
    """Return a sentence with a negation after its first auxiliary verb; None without such a verb."""
    if "是" in sentence:
        return sentence.replace("是", "不是", 1)
    match = _AUXILIARY.search(sentence)
    if match is None:
        return None
    verb = match[0].casefold()
    negation = "nicht" if verb in _GERMAN else "не" if verb in _RUSSIAN else "not"
    return f"{sentence[: match.end()]} {negation}{sentence[match.end() :]}"


def with_number(sentence: str, draw: random.Random) -> str | None:
    """Return a sentence whose first number is increased by 1 to 9; None without a number."""
    match = _NUMBER.search(sentence)
    if match is None:
        return None
    return (
        f"{sentence[: match.start()]}{int(match[0]) + draw.randint(1, 9)}{sentence[match.end() :]}"
    )


def with_name(sentence: str, names: list[str], draw: random.Random) -> str | None:
    """Return a sentence with another name instead of its first; None without a name."""
    match = _NAME.search(sentence)
    if match is None or not names:
        return None
    return f"{sentence[: match.start()]}{draw.choice(names)}{sentence[match.end() :]}"


def measure_contradictions(record: Record, name: str, made: list[Case]) -> None:
    """Record the fraction of sentences that contradict their source and have no citation."""
    draw = random.Random(0)
    names = [found for case in made for found in _NAME.findall(case.foreign)]
    texts = {
        "negation added": [negated(case.sentence) for case in made],
        "number replaced": [with_number(case.sentence, draw) for case in made],
        "name replaced": [with_name(case.sentence, names, draw) for case in made],
    }
    for change, sentences_of_change in texts.items():
        uncited = [
            not all(named(text, case.sources))
            for case, text in zip(made, sentences_of_change, strict=True)
            if text is not None
        ]
        if len(uncited) >= MIN_CONTRADICTIONS:
            row = f"{len(made)} sentences of {name}"
            record.add("Contradictions without a citation", row, np.mean(uncited), change, places=3)


def is_right(case: Case, text: str) -> bool:
    """Return whether the first supporting span of each sentence is the correct span."""
    right = at(case.sources, case.place)
    return all(places[:1] == [right] for places in named(text, case.sources))


def best_share(text: str, sources: list[str]) -> float:
    """Return the share of the best place of a text, whether it is enough or not."""
    least, citing._MIN_SHARE = citing._MIN_SHARE, 0.0
    shares = [span.score for one in cite(text, sources) for span in one.spans[:1]]
    citing._MIN_SHARE = least
    return max(shares, default=0.0)


def measure(record: Record, name: str, made: list[Case]) -> Shares:
    draw, shares, row = random.Random(0), Shares(), f"{len(made)} sentences of {name}"

    def add(group: str, what: str, holds: list[bool], at_least: float | None = None) -> None:
        record.add(group, row, np.mean(holds), what, at_least=at_least, places=3)

    add(
        "Right place named", "word for word", [is_right(case, case.sentence) for case in made], 0.95
    )
    for change in CHANGES:
        texts = [changed(case, change, draw) for case in made]
        add(
            "Right place named",
            change,
            [is_right(case, text) for case, text in zip(made, texts, strict=True)],
        )
        shares.changed.extend(
            best_share(text, case.sources) for case, text in zip(made, texts, strict=True)
        )
    both, more = [], []
    for case in made:
        other = at(case.sources, case.other)
        first, second = words(case.sentence), words(other)
        halves = joined(first[: len(first) // 2] + second[len(second) // 2 :], case.sentence)
        both.append(
            {case.sentence, other}
            <= {place for places in named(halves, case.sources) for place in places}
        )
        more.append(len(named(changed(case, "3 words replaced", draw), case.sources)[0]) > 1)
    add("Two halves", "both places named", both)
    add("Two halves", "more than one named where 3 words were replaced", more)
    silent = [not any(named(case.foreign, case.sources)) for case in made]
    add("From another document", "marked as not found", silent, 0.95)
    shares.foreign.extend(best_share(case.foreign, case.sources) for case in made)
    measure_contradictions(record, name, made)
    return shares


def choose(record: Record, name: str, own: Shares, others: list[Shares]) -> None:
    """Report the threshold that the remaining collections choose, and its result."""
    foreign = [share for one in others for share in one.foreign]
    least = Shares(foreign, [share for one in others for share in one.changed]).threshold()
    group = "Least share, chosen on the others"
    record.add(group, name, least, "share")
    record.add(
        group, name, np.mean(np.array(own.foreign) < least), "foreign ones below it", places=3
    )
    record.add(
        group, name, np.mean(np.array(own.changed) >= least), "changed ones above it", places=3
    )


def seconds(text: str, sources: list[str]) -> float:
    started = time.perf_counter()
    cite(text, sources)
    return time.perf_counter() - started


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    add_quick(parser)
    args = parser.parse_args()
    with Record("citing", args) as record:
        made = {folder.name: cases(folder, 30 if args.quick else 500) for folder in args.folders}
        shares = {name: measure(record, name, some) for name, some in made.items()}
        for name, own in shares.items():
            choose(
                record, name, own, [one for other, one in shares.items() if other != name] or [own]
            )
        taken = []
        for some in made.values():
            for ten in (some[first : first + 10] for first in range(0, len(some), 10)):
                answer, sources = (
                    " ".join(case.sentence for case in ten[:5]),
                    [(10 * case.foreign)[:1000] for case in ten],
                )
                taken.append(seconds(answer, sources))
        ms = 1000 * float(np.median(taken))
        record.add(
            "Time",
            "5 sentences, 10 sources of 1,000 characters",
            ms,
            "ms, the median",
            at_most=10,
            places=1,
        )


if __name__ == "__main__":
    main()
