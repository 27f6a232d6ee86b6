"""Tests of the adapters for other frameworks: each runs and returns the results of `search`."""

from __future__ import annotations

import importlib.util
import os
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from relevance_gen import search
from tests.environments import ROOT, interpreter_with

EXAMPLES = ROOT / "examples"
TEXTS = ["Cats purr.", "Dogs bark.", "Cats and dogs sleep."]
QUESTION = "What do cats do?"


def output_of(program: str, package: str, environment: str) -> str:
    """Run an adapter and return its output."""
    python = interpreter_with(package, environment)
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PYTHONPATH": str(ROOT)
    }
    done = subprocess.run(
        [python, EXAMPLES / program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def load_module(path: Path) -> Any:
    """Import an example."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("program", "package", "environment"),
    [
        ("llamaindex_adapter.py", "llama_index.core", "llamaindex"),
        ("haystack_adapter.py", "haystack", "haystack"),
    ],
)
def test_rankers_equal_search(program: str, package: str, environment: str) -> None:
    """The output has the two best chunks with the scores of `search`."""
    best = search(QUESTION, TEXTS, 2).best
    expected = [f"{result.chunk_score:.3f} {result.chunk_txt}" for result in best]
    assert output_of(program, package, environment).splitlines() == expected


def test_langchain_adapter_equals_search() -> None:
    """Retriever and compressor return documents, best first, with scores in the metadata."""
    printed = output_of("langchain_adapter.py", "langchain_core", "langchain")
    retrieved, of_folder, compressed, sentences = printed.splitlines()
    assert "'path': 'dogs.md', 'first_line': 1, 'last_line': 1" in of_folder
    assert of_folder.count("page_content") == 1
    first, second = search(QUESTION, TEXTS, 2).best
    assert retrieved.index(
        f"{{'page': 1, 'relevance_score': {first.chunk_score!r}}}"
    ) < retrieved.index(f"{{'relevance_score': {second.chunk_score!r}}}")
    assert "Dogs bark." in compressed
    assert compressed.count("relevance_score") == 1
    assert "page_content='Cats purr.'" in sentences
    assert "sleep" not in sentences


def test_sklearn_transformer_scores_all_texts() -> None:
    """Rows are the scores of `search`, 0 without a result; the transformer can be cloned."""
    interpreter_with("sklearn")
    from sklearn.base import clone

    scorer = load_module(EXAMPLES / "sklearn_adapter.py").ChunkScorer(weighting="cosine")
    texts = [*TEXTS, " "]
    questions = [QUESTION, "", "Who barks?"]
    scores = clone(scorer).fit(texts).transform(questions)
    assert scores.shape == (3, 4)
    expected = np.zeros((3, 4))
    for row in (0, 2):
        for one in search(questions[row], texts, blank="skip", weighting="cosine"):
            expected[row, one.original_index] = one.chunk_score
    assert np.array_equal(scores, expected)
    assert scorer.get_params() == {"weighting": "cosine"}
    output_of("sklearn_adapter.py", "sklearn", "")


def test_beir_adapter_returns_scores_by_id() -> None:
    """The adapter maps ids to scores, and nDCG is 1 for the best order and lower otherwise."""
    module = load_module(EXAMPLES / "beir_adapter.py")
    corpus = {f"d{n}": {"title": "", "text": text} for n, text in enumerate(TEXTS)}
    response = module.ChunkSearch().search(corpus, {"q": QUESTION}, 10, "cos_sim")
    assert response == {
        "q": {f"d{result.original_index}": result.chunk_score for result in search(QUESTION, TEXTS)}
    }
    assert module.ndcg(response, {"q": {"d0": 2, "d2": 1}}) == 1
    assert 0 < module.ndcg(response, {"q": {"d0": 1, "d2": 2}}) < 1
    assert module.ndcg(response, {"q": {"d1": 1}}) == 0
    assert "nDCG@10 1.000" in output_of("beir_adapter.py", "relevance_gen", "")


def test_adapters_are_short() -> None:
    """An adapter is one file of fewer than 100 lines."""
    adapters = sorted(EXAMPLES.glob("*_adapter.py"))
    assert len(adapters) == 5
    assert all(len(path.read_text().splitlines()) < 100 for path in adapters)
