"""The files in examples/deploy are as restrictive as documented."""

from __future__ import annotations

import re
import shutil
import subprocess

import pytest

from tests.serve.harness import ROOT


def test_systemd_unit_has_documented_exposure() -> None:
    """The exposure score of systemd equals the documented value, and is below 2.0."""
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    unit = ROOT / "examples" / "deploy" / "relevance_gen.service"
    done = subprocess.run(
        [program, "security", "--offline=true", "--no-pager", str(unit)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    match = re.search(r"exposure level for relevance_gen.service: ([0-9.]+)", done.stdout)
    if match is None:
        pytest.skip(f"this systemd-analyze rates no files: {done.stderr[-200:]}")
    assert float(match[1]) < 2.0
    assert f"puts at {match[1]} of 10" in (ROOT / "docs" / "operations.md").read_text()


def test_image_context_contains_listed_files_only() -> None:
    """The context of the image contains only the listed files."""
    kept = [
        line[1:]
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    ]
    assert "*" in (ROOT / ".dockerignore").read_text().splitlines()
    assert set(kept) == {"relevance_gen", "pyproject.toml", "README.md", "CHANGELOG.md", "LICENSE"}
    assert all((ROOT / name).exists() for name in kept)
