"""Texts to measure on."""

from __future__ import annotations

import gzip
import sysconfig
from pathlib import Path


def read_text(path: Path | None) -> str:
    """Return the text of a file, gzipped or not; without a path, 8 MB of Python's standard library."""
    if path is None:
        sources = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        sources += sorted(Path(sysconfig.get_path("stdlib")).glob("[a-t]*/*.py"))
        return "".join(source.read_text(encoding="utf-8", errors="replace") for source in sources)[
            :8_000_000
        ]
    if path.suffix == ".gz":
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return file.read()
    return path.read_text(encoding="utf-8")


def cut(text: str, size: int = 1000) -> list[str]:
    """Cut a text into chunks of `size` characters, without the blank ones."""
    chunks = (text[start : start + size] for start in range(0, len(text), size))
    return [chunk for chunk in chunks if not chunk.isspace()]
