"""Read the texts of files and folders, and say of every file that was named why it could not be read."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Final

from attrs import define, field, frozen

from relevance_gen.cli.arguments import STDIN
from relevance_gen.cli.walker import Walker
from relevance_gen.documents.charset import decode
from relevance_gen.documents.extraction import extract, format_of, why_not
from relevance_gen.documents.office import Place
from relevance_gen.documents.reading import cut
from relevance_gen.errors import counted
from relevance_gen.types import Chunk

_BINARY: Final = "binary"


@frozen
class Document:
    """A text and where it came from.

    Attributes:
        source: a path, or ``-`` for the standard input.
        text: what it says.
        place: which page, slide or sheet of the source it is; empty for a whole file.
        trouble: why the source was not read whole; None if it was.
    """

    source: str
    text: str
    place: Place = field(factory=dict)
    trouble: str | None = None

    def chunks(self, max_chars: int) -> Iterator[Chunk]:
        """Yield its chunks of at most so many characters."""
        return cut(self.source, self.place, self.text, self.trouble, max_chars)


@define
class Reader:
    """Read documents, and remember what could not be read.

    Args:
        walker: finds the files below folders.
        warn: told of every file that cannot be read.

    Attributes:
        failed: whether anything named, or found in a folder and not left out, could not be read.
        n_files: files that were read.
        n_bytes: their size.
        path: the file that is being read.
    """

    walker: Walker
    warn: Callable[[str], None]
    failed: bool = field(default=False, init=False)
    n_files: int = field(default=0, init=False)
    n_bytes: int = field(default=0, init=False)
    path: str = field(default="", init=False)
    _left_out: Counter[tuple[str, str]] = field(factory=Counter, init=False)

    @property
    def progress(self) -> str:
        """How far it has come, in words."""
        return f"reading {counted(self.n_files, 'file')}, {self.n_bytes >> 20:,} MiB  {self.path}"

    def read(self, paths: Iterable[str]) -> Iterator[Document]:
        """Yield the texts at each path; of a folder, those of the files below it that are wanted."""
        for path in paths:
            if path != STDIN and os.path.isdir(path):
                for found in self.walker.files(path):
                    yield from self._read(found, named=False)
            else:
                yield from self._read(path, named=True)
        self.failed |= self.walker.failed
        self._say_what_was_left_out()

    def _read(self, path: str, *, named: bool) -> Iterator[Document]:
        self.path = path
        try:
            content = sys.stdin.buffer.read() if path == STDIN else Path(path).read_bytes()
        except (OSError, ValueError) as error:
            self._fail(path, getattr(error, "strerror", None) or str(error))
            return
        self.n_files += 1
        self.n_bytes += len(content)
        kind = format_of(path, content)
        if kind is not None and (why := why_not(kind)):
            self._leave_out(path, kind, why, named=named)
        elif kind is not None:
            extracted = extract(content, kind)
            if extracted.trouble is not None:
                self._fail(path, extracted.trouble)
            yield from (Document(path, text, place, extracted.trouble) for place, text in extracted.parts)
        elif (text := decode(content)) is not None:
            yield Document(path, text)
        else:
            self._leave_out(path, _BINARY, "is binary, not text", named=named)

    def _leave_out(self, path: str, kind: str, why: str, *, named: bool) -> None:
        """Say at once why a file that was named is not searched; count those that were only found in a folder."""
        if named:
            self._fail(path, why)
        else:
            self._left_out[kind, why] += 1

    def _fail(self, path: str, why: str) -> None:
        self.failed = True
        self.warn(f"{'(standard input)' if path == STDIN else path}: {why}")

    def _say_what_was_left_out(self) -> None:
        for (kind, why), number in self._left_out.items():
            remedy = "" if kind == _BINARY else f": each {why}"
            self.warn(f"skipped {counted(number, f'{kind} file')}{remedy}")
        if self.walker.n_links:
            self.warn(f"skipped {counted(self.walker.n_links, 'symbolic link')}; --follow follows them")
