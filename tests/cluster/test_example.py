"""Test that the example of the documentation runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).parents[2] / "examples" / "cluster.py"


def test_example_prints_results(cluster: Any) -> None:
    """The example runs without a warning and prints its results."""
    done = subprocess.run(
        [sys.executable, "-W", "error", str(EXAMPLE)],
        env=os.environ | {"RAY_ADDRESS": cluster.address},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "3 shards of 4 chunks\nDogs bark at strangers.\nCows chew the cud.\n" in done.stdout
