"""Interpreters that have other people's packages: the tests' own, or one of those that `make test-clients` makes."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def interpreter_with(package: str, environment: str = "") -> str:
    """Return the interpreter that has `package`, or skip.

    Args:
        package: what must be there to import.
        environment: the folder in ``.venv-clients`` where it is installed, if not with the tests.
    """
    if not environment:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        return sys.executable
    python = ROOT / ".venv-clients" / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{package} is in an environment of its own, which make test-clients makes")
    return str(python)
