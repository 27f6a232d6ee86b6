"""Measure how well confidence detects answers: ``python -m bench.answerable DIR… [--fit]``.

Each DIR is a judged collection as `bench.quality` reads it. Each collection gets its own questions
and the questions of all other families. The family is the part of a DIR's name before the hyphen,
since collections of one family share questions. The measure is the area under the ROC curve: the
probability that an own question has a higher confidence than a foreign question. ``--fit`` fits the
scale of `relevance_gen.retrieval.ranking.confidence` to the measured values.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from bench.quality import read_collection
from bench.recording import Record, add_quick
from relevance_gen import ChunkIndex
from relevance_gen.types import MIN_CONFIDENCE

MAX_QUESTIONS = 250
"""Maximum questions of a collection; a larger collection is sampled evenly."""


def family(folder: Path) -> str:
    return folder.name.partition("-")[0]


def questions(folder: Path) -> list[str]:
    found = list(read_collection(folder).queries.values())
    return (
        [found[place * len(found) // MAX_QUESTIONS] for place in range(MAX_QUESTIONS)]
        if len(found) > MAX_QUESTIONS
        else found
    )


def confidences(folder: Path, asked: list[str]) -> list[float]:
    index = ChunkIndex(read_collection(folder).titled.values())
    return [index.search(query, 1).confidence for query in asked]


def report(record: Record, name: str, own: np.ndarray, foreign: np.ndarray) -> float:
    auc = float(
        roc_auc_score(np.repeat([1, 0], [own.size, foreign.size]), np.concatenate((own, foreign)))
    )
    bound = np.quantile(own, 0.05)
    figures = {
        "AUC": auc,
        "own at ½ or more": np.mean(own >= 0.5),
        "foreign at ½ or more": np.mean(foreign >= 0.5),
        "own at min_confidence": np.mean(own >= MIN_CONFIDENCE),
        "foreign at min_confidence": np.mean(foreign >= MIN_CONFIDENCE),
        "turned away where 95 % are kept": np.mean(foreign < bound),
        "median own": np.median(own),
        "median foreign": np.median(foreign),
    }
    for column, value in figures.items():
        record.add("Own questions against foreign ones", name, value, column, places=3)
    return auc


def fit(measured: dict[str, tuple[np.ndarray, np.ndarray]]) -> None:
    """Print the scale on which own and foreign questions, every collection and either side weighed alike, part at ½."""
    from relevance_gen.retrieval.ranking.confidence import MIDDLE, STEEPNESS

    logs, own, weight = [], [], []
    for sides in measured.values():
        for is_own, values in zip((True, False), sides, strict=True):
            some = values[(values > 0.0) & (values < 1.0)]
            logs.append(np.log(MIDDLE) + np.log(some / (1.0 - some)) / STEEPNESS)
            own.append(np.full(some.size, is_own))
            weight.append(np.full(some.size, 1000.0 / values.size))
    model = LogisticRegression(C=1e9)
    model.fit(
        np.concatenate(logs)[:, np.newaxis],
        np.concatenate(own),
        sample_weight=np.concatenate(weight),
    )
    steepness = float(model.coef_[0, 0])
    print(
        f"fitted: middle {np.exp(-model.intercept_[0] / steepness):.3f}, steepness {steepness:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("--fit", action="store_true", help="fit the scale, too")
    add_quick(parser)
    args = parser.parse_args()
    asked = {folder: questions(folder) for folder in args.folders}
    measured = {}
    for folder in args.folders:
        others = [
            query
            for other in args.folders
            if family(other) != family(folder)
            for query in asked[other]
        ]
        values = np.array(confidences(folder, [*asked[folder], *others]))
        measured[folder.name] = values[: len(asked[folder])], values[len(asked[folder]) :]
    with Record("answerable", args) as record:
        aucs = [report(record, name, *sides) for name, sides in measured.items()]
        record.add("All collections", "mean", float(np.mean(aucs)), "AUC", places=3)
        record.add("All collections", "worst", min(aucs), "AUC", places=3)
        own, foreign = (
            np.concatenate([sides[number] for sides in measured.values()]) for number in (0, 1)
        )
        report(record, "all together", own, foreign)
    if args.fit:
        fit(measured)


if __name__ == "__main__":
    main()
