"""Fixtures: a folder of texts to search."""

import os
import sys
from pathlib import Path

import pytest

FRUIT = "Apples are red or green.\n\nBananas are yellow, and ripen in the dark.\n"

ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
"""For a process that runs the command of this tree."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "fruit.txt").write_text(FRUIT)
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "café.md").write_text(
        "# Drinks\n\nCoffee is bitter. Apple juice is sweet.\n"
    )
    return tmp_path
