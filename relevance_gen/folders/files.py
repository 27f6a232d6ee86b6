"""What is known of the files of a folder: how each was when it was read, and where its chunks stand."""

from __future__ import annotations

import os
import stat
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import accumulate
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from relevance_gen.documents.extraction import BINARY, MAX_BYTES, Extracted, read
from relevance_gen.documents.office import Place
from relevance_gen.documents.reading import ChunkLocation, cuts, metadata_of
from relevance_gen.errors import pluralize
from relevance_gen.folders.cache import Fingerprint, fingerprint
from relevance_gen.types import Metadata

Cuts = npt.NDArray[np.int32]

_NO_CUTS: Final[Cuts] = np.zeros((0, 5), np.int32)
_TICK_NS: Final = 50_000_000
_COARSE_TICK_NS: Final = 2_000_000_000
"""How long a file system may give changes the same time: a few ticks of the kernel's clock, two seconds on FAT."""
_COARSE_NS: Final = 1_000_000
"""A time that is a whole multiple of this comes from a coarse clock, or by a chance of one in a million."""


class File(NamedTuple):
    """What is known of a file.

    Attributes:
        seen: its fingerprint when it was read; None where that does not tell whether it has changed since.
        cuts: where each of its chunks stands, shape (n, 5).
        places: the page, slide or sheet that each part of it is.
        warning: why it was not read, or not whole; None if it was.
        kind: what kind of file it is, where that kind is not read at all.
    """

    seen: Fingerprint | None
    cuts: Cuts = _NO_CUTS
    places: tuple[Place, ...] = ()
    warning: str | None = None
    kind: str | None = None

    @classmethod
    def read(cls, path: str, max_chars: int, *, follow: bool) -> tuple[File, list[tuple[str, str]]]:
        """Read a file; return what is known of it, and the text and the headings of each of its chunks."""
        found, seen = read_file(path, follow=follow)
        chunks = list(cuts(found, max_chars))
        rows = np.array([cut for *_, cut in chunks], np.int32).reshape(-1, 5)
        places = tuple(place for place, _ in found.parts)
        return cls(seen, rows, places, found.warning, found.skipped_kind), [
            (text, title) for text, title, _ in chunks
        ]

    def metadata(self, path: str, number: int) -> Metadata:
        """Return what is said of one of its chunks to those who find it."""
        cut = ChunkLocation(*self.cuts[number].tolist())
        return metadata_of(path, self.places[cut.part], cut, self.warning)


def open_file(path: str, *, follow: bool) -> int:
    """Open what must be a file, behind a link only if these are followed, and return its descriptor."""
    # A pipe that has taken the file's place would block.
    descriptor = os.open(
        path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | (0 if follow else os.O_NOFOLLOW)
    )
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "is no file")
    return descriptor


def read_file(path: str, *, follow: bool) -> tuple[Extracted, Fingerprint | None]:
    """Read a file, and return what it says, with its fingerprint, or None where that does not tell enough.

    Its second time is that of the kernel's clock and cannot be set. A change within a tick of an earlier one does not
    show in it, and a change while the file is read may be in what was read or not.
    """
    now = time.time_ns()
    try:
        with open(open_file(path, follow=follow), "rb") as file:
            before = os.fstat(file.fileno())
            if before.st_size > MAX_BYTES:
                return Extracted(warning=f"is larger than {MAX_BYTES >> 20} MiB"), fingerprint(
                    before
                )
            content = file.read()
            after = os.fstat(file.fileno())
    except OSError as error:
        return Extracted(warning=error.strerror or str(error)), None
    tick_ns = _TICK_NS if after.st_ctime_ns % _COARSE_NS else _COARSE_TICK_NS
    is_settled = fingerprint(before) == fingerprint(after) and after.st_ctime_ns + tick_ns < now
    return read(path, content), fingerprint(after) if is_settled else None


@frozen
class Skipped:
    """What of a folder is not searched.

    Attributes:
        failed: why a file or a folder could not be read, or a file not whole, by its path.
        skipped_kind: number of files by their kind and why that kind is not read.
        n_links: number of symbolic links that were not followed.
    """

    failed: dict[str, str] = field(factory=dict)
    skipped_kind: Counter[tuple[str, str]] = field(factory=Counter)
    n_links: int = 0

    def in_words(self) -> Iterator[str]:
        """Yield sentences that say it."""
        yield from (f"{path}: {why}" for path, why in self.failed.items())
        yield from in_words(self.skipped_kind, self.n_links)


def in_words(skipped_kind: Mapping[tuple[str, str], int], n_links: int) -> Iterator[str]:
    """Say what of a folder is not searched: files by their kind and why that is not read, and symbolic links.

    >>> list(in_words({("binary", "is binary, not text"): 2}, 1))
    ['skipped 2 binary files', 'skipped 1 symbolic link; --follow follows them']
    """
    for (kind, why), number in skipped_kind.items():
        yield f"skipped {pluralize(number, f'{kind} file')}" + (
            "" if kind == BINARY else f": each {why}"
        )
    if n_links:
        yield f"skipped {pluralize(n_links, 'symbolic link')}; --follow follows them"


def as_records(files: Mapping[str, File]) -> tuple[list[Any], Cuts]:
    """Return what is known of files as JSON, and where their chunks stand, one after the other."""
    records = [[path, file.seen, len(file.cuts), *file[2:]] for path, file in files.items()]
    return records, np.concatenate([_NO_CUTS, *(file.cuts for file in files.values())])


def from_records(records: list[Any], cuts: npt.NDArray[np.int32]) -> dict[str, File]:
    """Return the files of which `as_records` made these; others raise a `LookupError`, `TypeError` or `ValueError`."""
    ends = accumulate(n for _, _, n, *_ in records)
    cuts = cuts.reshape(-1, 5)
    return {
        path: File(tuple(seen) if seen else None, cuts[end - n : end], tuple(places), warning, kind)
        for (path, seen, n, places, warning, kind), end in zip(records, ends, strict=True)
    }
