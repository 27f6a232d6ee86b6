"""Read the texts of files and folders for the command line, and warn of unreadable files."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from attrs import define, field

from relevance_gen.cli.arguments import STDIN
from relevance_gen.documents.extraction import Extracted, needs_parser, read
from relevance_gen.documents.isolation import POOL
from relevance_gen.documents.reading import document_chunks
from relevance_gen.documents.walker import Walker
from relevance_gen.errors import pluralize
from relevance_gen.folders.files import Skipped
from relevance_gen.types import Chunk


@define
class FileReader:
    """Reads files and splits them into chunks.

    Args:
        walker: finds the files of folders.
        warn: called with a message for each file that cannot be read, or not completely.
        max_chars: maximum characters of a chunk.

    Attributes:
        has_failed: whether a file was not read, or not completely; files of folders that are
            skipped by their kind do not count.
        n_files: the number of files that were read so far.
        n_bytes: the total size of these files.
        path: the file that is being read.
    """

    walker: Walker
    warn: Callable[[str], None]
    max_chars: int
    has_failed: bool = field(default=False, init=False)
    n_files: int = field(default=0, init=False)
    n_bytes: int = field(default=0, init=False)
    path: str = field(default="", init=False)
    _n_skipped: Counter[tuple[str, str]] = field(factory=Counter, init=False)
    _read_paths: set[str] = field(factory=set, init=False)  # real paths of the files that were read

    @property
    def progress(self) -> str:
        """A description of the progress, with the number of files that were read so far."""
        return f"reading {pluralize(self.n_files, 'file')}, {self.n_bytes >> 20:,} MiB  {self.path}"

    def read(self, paths: Iterable[str]) -> Iterator[Chunk]:
        """Yield the chunks of files, and of the files that the walker finds in folders.

        A file that several paths select is read once. At the end, `warn` receives the numbers of
        skipped files.
        """
        for path in paths:
            if path != STDIN and os.path.isdir(path):
                for file_path in self.walker.files(path):
                    yield from self._read(file_path, is_named=False)
            else:
                yield from self._read(path, is_named=True)
        self.has_failed |= self.walker.has_failed
        skipped = Skipped(by_kind=self._n_skipped, n_links=self.walker.n_links)
        for message in skipped.messages():
            self.warn(message)

    def _read(self, path: str, *, is_named: bool) -> Iterator[Chunk]:
        self.path = path
        real_path = path if path == STDIN else os.path.realpath(path)
        if real_path in self._read_paths:
            return
        self._read_paths.add(real_path)
        try:
            content = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        except (OSError, ValueError) as error:
            self._fail(path, getattr(error, "strerror", None) or str(error))
            return
        self.n_files += 1
        self.n_bytes += len(content)
        extracted = _extract(path, content, is_named=is_named)
        if extracted.skipped_kind is not None and not is_named:
            self._n_skipped[extracted.skipped_kind, str(extracted.warning)] += 1
        elif extracted.warning is not None:
            self._fail(path, extracted.warning)
        name = "" if path == STDIN else None
        yield from document_chunks(path, extracted, self.max_chars, name=name)

    def _fail(self, path: str, reason: str) -> None:
        self.has_failed = True
        self.warn(f"{'(standard input)' if path == STDIN else path}: {reason}")


def _extract(path: str, content: bytes, *, is_named: bool) -> Extracted:
    """Extract the text of a file.

    A document is parsed in an isolated process, unless the user named it (`is_named`).
    """
    if is_named or not needs_parser(path, content):
        return read(path, content)
    return POOL.submit(path, content).result()
