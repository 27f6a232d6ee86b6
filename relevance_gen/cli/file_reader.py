"""Read the texts of files and folders, and say of every file that was named why it could not be read."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attrs import define, field

from relevance_gen.cli.arguments import STDIN
from relevance_gen.documents.extraction import read
from relevance_gen.documents.reading import chunks_of
from relevance_gen.documents.walker import Walker
from relevance_gen.errors import pluralize
from relevance_gen.folders.files import in_words
from relevance_gen.types import Chunk


@define
class FileReader:
    """Read files and cut them into chunks, and remember what could not be read.

    The walker finds the files below folders, and `warn` is told of every file that cannot be read. It has `failed`
    where anything named, or found in a folder and not left out, could not be read. So far `n_files` were read, of
    `n_bytes`, and now it reads `path`.
    """

    walker: Walker
    warn: Callable[[str], None]
    max_chars: int
    failed: bool = field(default=False, init=False)
    n_files: int = field(default=0, init=False)
    n_bytes: int = field(default=0, init=False)
    path: str = field(default="", init=False)
    _left_out: Counter[tuple[str, str]] = field(factory=Counter, init=False)

    @property
    def progress(self) -> str:
        """How far it has come, in words."""
        return f"reading {pluralize(self.n_files, 'file')}, {self.n_bytes >> 20:,} MiB  {self.path}"

    def read(self, paths: Iterable[str]) -> Iterator[Chunk]:
        """Yield the chunks at each path; of a folder, those of the files below it that are wanted."""
        for path in paths:
            if path != STDIN and os.path.isdir(path):
                for found in self.walker.files(path):
                    yield from self._read(found, named=False)
            else:
                yield from self._read(path, named=True)
        self.failed |= self.walker.failed
        for message in in_words(self._left_out, self.walker.n_links):
            self.warn(message)

    def _read(self, path: str, *, named: bool) -> Iterator[Chunk]:
        self.path = path
        try:
            content = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        except (OSError, ValueError) as error:
            self._fail(path, getattr(error, "strerror", None) or str(error))
            return
        self.n_files += 1
        self.n_bytes += len(content)
        found = read(path, content)
        if (
            found.skipped_kind is not None and not named
        ):  # those that were only found in a folder are counted
            self._left_out[found.skipped_kind, str(found.warning)] += 1
        elif found.warning is not None:
            self._fail(path, found.warning)
        yield from chunks_of(path, found, self.max_chars, name="" if path == STDIN else None)

    def _fail(self, path: str, why: str) -> None:
        self.failed = True
        self.warn(f"{'(standard input)' if path == STDIN else path}: {why}")
