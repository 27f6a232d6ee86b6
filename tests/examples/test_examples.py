"""Every example runs by itself, without a warning, and prints something."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize(
    "example",
    sorted([*EXAMPLES.glob("search*.py"), *EXAMPLES.glob("ask*.py")]),
    ids=lambda path: path.stem,
)
def test_example_runs(example: Path) -> None:
    """The example ends well and has something to show."""
    command = [sys.executable, "-W", "error", str(example)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
