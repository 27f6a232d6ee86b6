"""Read text files: whole folders, any encoding, and never a binary by mistake."""

from __future__ import annotations

import codecs
import os
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attrs import define, field, frozen

STDIN = "-"

_PROBED_BYTES = 8192
"""A NUL among so many first bytes makes a file binary: git's rule."""

_BYTE_ORDER_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}


@frozen
class Document:
    """A text and where it came from: a path, or ``-`` for the standard input."""

    source: str
    text: str


@define
class Reader:
    """Read documents, and remember what could not be read.

    Args:
        warn: told of every file that cannot be read.

    Attributes:
        failed: whether anything named could not be read.
        n_binary: files skipped because they are no text.
    """

    warn: Callable[[str], None]
    failed: bool = field(default=False, init=False)
    n_binary: int = field(default=0, init=False)

    def read(self, paths: Iterable[str]) -> Iterator[Document]:
        """Yield the document at each path; of a folder, all files below it that are not hidden, by name."""
        for path in paths:
            if path == STDIN:
                yield from self._decoded(path, sys.stdin.buffer.read())
            elif Path(path).is_dir():
                for found in _files_below(path):
                    yield from self._read_file(found)
            else:
                yield from self._read_file(path)

    def _read_file(self, path: str) -> Iterator[Document]:
        try:
            content = Path(path).read_bytes()
        except (OSError, ValueError) as error:
            self.failed = True
            self.warn(f"{path}: {getattr(error, 'strerror', None) or error}")
            return
        yield from self._decoded(path, content)

    def _decoded(self, source: str, content: bytes) -> Iterator[Document]:
        text = decode(content)
        if text is None:
            self.n_binary += 1
        else:
            yield Document(source, text)


def decode(content: bytes) -> str | None:
    """Decode the content of a text file; ``None`` if it is binary.

    By its byte-order mark, else as UTF-8, else as Windows-1252, the most frequent of the older encodings: words in it
    come out right, and words in another are unreadable with either.
    """
    for mark, encoding in _BYTE_ORDER_MARKS.items():
        if content.startswith(mark):
            return content.decode(encoding, "replace")
    if b"\0" in content[:_PROBED_BYTES]:
        return None
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError:
        return content.decode("cp1252", "replace")


def _files_below(folder: str) -> Iterator[str]:
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(names):
            path = Path(parent, name)
            if not name.startswith(".") and path.is_file():
                yield str(path)
