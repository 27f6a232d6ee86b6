"""Interpreters and folders with packages of other projects: the tests' own, or from `make test-clients`."""

from __future__ import annotations

import importlib.util
import shutil
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def interpreter_with(package: str, environment: str = "") -> str:
    """Return an interpreter with `package`, or skip the test.

    Args:
        package: the package that must be importable.
        environment: its folder in ``.venv-clients``; empty for the tests' own interpreter.
    """
    if not environment:
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
        return sys.executable
    python = ROOT / ".venv-clients" / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{package} is in an environment of its own, which make test-clients makes")
    return str(python)


def file_in(environment: str, pattern: str) -> Path:
    """Return a file of a package in an environment of ``.venv-clients``, or skip the test.

    Args:
        environment: the folder in ``.venv-clients``.
        pattern: glob pattern in the folder of its packages.
    """
    folder = ROOT / ".venv-clients" / environment
    file = next(folder.glob(f"lib/python*/site-packages/{pattern}"), None)
    if file is None:
        pytest.skip(f"{pattern} is in an environment of its own, which make test-clients makes")
    return file


def node_folder_with(package: str) -> Path:
    """Return the folder whose ``node_modules`` has `package`, or skip the test."""
    folder = ROOT / ".venv-clients" / "node"
    if shutil.which("node") is None:
        pytest.skip("node is not installed")
    if not (folder / "node_modules" / package).exists():
        pytest.skip(f"{package} is not installed; make test-clients installs it")
    return folder
