"""Places for sharded indexes: folders, memory, and a server with the interface of S3."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("moto", reason="the group objects is not installed")
pytest.importorskip("s3fs", reason="the group objects is not installed")

from tests.serve.objects import object_store


@pytest.fixture(scope="module")
def store() -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with the interface of S3, with the bucket `corpora`."""
    with object_store() as server:
        yield server


@pytest.fixture(params=["s3", "file", "memory"])
def location(request: pytest.FixtureRequest, store: Any, tmp_path: Path) -> str:
    """Return an empty location in each kind of store."""
    locations = {
        "s3": f"s3://corpora/{tmp_path.name}",
        "file": f"file://{tmp_path}",
        "memory": f"memory://{tmp_path.name}",
    }
    return locations[request.param]
