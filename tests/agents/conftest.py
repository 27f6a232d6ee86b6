"""Fixtures: a project folder with links, and a cache folder for each test."""

from pathlib import Path

import pytest

collect_ignore_glob = ["*_client.py"]
"""Scripts that a separate interpreter with the client's package runs."""

PARSER = """import re


def parse_request(text):
    # A request begins with a line that names the method.
    method, _, rest = text.partition(" ")
    return method, rest
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a temporary cache folder."""
    monkeypatch.setenv("RELEVANCE_GEN_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A small project; a file with a secret is next to it, outside of the folder."""
    root = tmp_path / "project"
    (root / "src").mkdir(parents=True)
    (root / "src" / "parser.py").write_text(PARSER)
    (root / "README.md").write_text("# Zebra\n\nThe zebra server answers requests about zebras.\n")
    (root / "notes.txt").write_text("Bananas ripen in the dark.\n" * 3)
    (tmp_path / "secret.txt").write_text("the password is swordfish\n")
    (root / "link.txt").symlink_to(tmp_path / "secret.txt")
    (root / "up").symlink_to(tmp_path)
    return root
