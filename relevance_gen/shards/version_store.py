"""Read and publish the versions of an index in a folder or an object store.

A change writes new files first, then a new version file, and finally replaces `index.json` if it
still names the version that the change began with. A reader therefore finds the version before or
the version after a change.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import evolve, frozen

from relevance_gen.errors import IndexConflictError, IndexFormatError, InvalidRequestError
from relevance_gen.shards.manifest import (
    POINTER_FILE,
    SHARD_FILE,
    IndexVersion,
    is_index_file,
    new_version_name,
    parse_pointer,
    parse_version,
    serialize_pointer,
    serialize_version,
)
from relevance_gen.shards.object_store import MAX_SMALL_BYTES, FileState, ObjectStore

_RETENTION_S: Final = 3600.0
"""Seconds for which replaced files remain, because a reader may be fetching them. A reader for
which a file is missing reads the newest version."""
_UNKNOWN_RETENTION_S: Final = 24 * 3600.0
"""Seconds for which files that belong to no version remain: a writer may publish them later."""
_SHORT_RETENTION_S: Final = 60.0
_MAX_REPLACED_FILES: Final = 1 << 10
"""If more files are replaced, they remain for `_SHORT_RETENTION_S` only: the version file must stay
small."""
_SWEEP_INTERVAL: Final = 64
"""Number of versions between two searches for files that killed writers left."""
_PROBE_CHARS: Final = 4096


@frozen(eq=False)
class Newest:
    """The newest version when a change begins.

    Attributes:
        version: the version; None if the index does not exist.
        pointer: the state of `index.json`, which must be the same when the change is published.
    """

    version: IndexVersion | None
    pointer: FileState


class VersionStore:
    """The versions of the index at one location.

    Args:
        location: a path or an address, as `as_address` returns it.
    """

    def __init__(self, location: str) -> None:
        self.location = location
        self.files = ObjectStore(location)
        self._last: IndexVersion | None = None

    def read(self) -> IndexVersion:
        """Return the newest version.

        Raises:
            IndexFormatError: the index is missing, damaged or of another format.
            OSError: the store does not answer.
        """
        try:
            pointer = self.files.read(POINTER_FILE)
        except NotADirectoryError:
            message = f"{self.location} is a file and not the folder of an index"
            raise IndexFormatError(f"{message}; ChunkIndex.load opens files") from None
        except FileNotFoundError:
            message = f"{self.location} holds no saved index: it has no {POINTER_FILE}"
            raise IndexFormatError(message) from None
        return self._version_of(pointer)

    def read_named(self, name: str) -> IndexVersion:
        """Return the version in the file with this name.

        Raises:
            FileNotFoundError: the version is not retained any more.
            IndexFormatError: the file is damaged or of another format.
        """
        content = self.files.read(name)
        return parse_version(content, name, self.location)

    def begin(self) -> Newest:
        """Begin a change: return the newest version and the state of `index.json`, for `publish`.

        The attribute `version` of the result is None if the location has no `index.json`.

        Raises:
            IndexFormatError: `index.json` is of another program, or the index is damaged or of
                another format.
            OSError: the store does not answer.
        """
        pointer = self.files.read_state(POINTER_FILE)
        if pointer.content is None:
            return Newest(None, pointer)
        return Newest(self._version_of(pointer.content), pointer)

    def publish(self, version: IndexVersion, newest: Newest) -> IndexVersion:
        """Publish a version as the newest, and remove files that are no longer needed.

        Args:
            version: the new version; its `number`, `replaced` and `name` are ignored, and so is
                `index_id` if it replaces a version.
            newest: the result of `begin` when the change began.

        Returns:
            `version` with the next number, the name of its file in `name`, and the files that
            remain for readers of earlier versions in `replaced`.

        Raises:
            IndexConflictError: another writer has published a version since `newest` was read.
            InvalidRequestError: the version names more shards than readers accept.
            OSError: the store does not answer; the version may have been published.
        """
        now_s = time.time()
        before = newest.version
        number = 1
        expected: dict[str, float] = {}
        if before is not None:
            number = before.number + 1
            version = evolve(version, index_id=before.index_id)
            newly_replaced = dict.fromkeys([before.name, *before.files], now_s)
            expected = newly_replaced | before.replaced
        for needed in expected.keys() & version.files.keys():
            del expected[needed]
        retained = _retained(expected, now_s)
        if number % _SWEEP_INTERVAL == 0:
            retained |= self._unknown_files({*version.files, *expected}, now_s)
        name = new_version_name(number)
        version = evolve(version, number=number, name=name, replaced=retained)
        content = serialize_version(version)
        if len(content) > MAX_SMALL_BYTES:
            rule = f"would have {len(content):,} bytes to name {len(version.shards):,} shards"
            remedy = "compact the index, or build it with fewer shards"
            rule = f"{rule}, and readers accept {MAX_SMALL_BYTES:,}"
            raise InvalidRequestError(rule, "the version file", remedy=remedy)
        self.files.write(name, content)
        if not self.files.replace(POINTER_FILE, serialize_pointer(name), newest.pointer):
            self.files.remove([name])
            raise IndexConflictError(f"{self.location} was changed by another writer")
        self._last = version
        with suppress(OSError):  # a later change removes the remaining files
            self.files.remove(expected.keys() - retained.keys())
        return version

    def _version_of(self, pointer: bytes) -> IndexVersion:
        """Return the version that `index.json` names; read its file unless it was read last.

        Args:
            pointer: the content of `index.json`.
        """
        name = parse_pointer(pointer, self.location)
        last = self._last
        if last is not None and last.name == name:
            return last
        try:
            self._last = self.read_named(name)
        except FileNotFoundError:
            if self.files.read(POINTER_FILE) != pointer:  # it was replaced meanwhile
                return self.read()
            raise IndexFormatError(f"{self.location} is incomplete: {name} is missing") from None
        return self._last

    def _unknown_files(self, known: set[str], now_s: float) -> dict[str, float]:
        """Return the files of the index that are not in `known`, with a replacement time each.

        The times are chosen so that the files remain for `_UNKNOWN_RETENTION_S`.
        """
        names = [name for name in self.files.list_names() if is_index_file(name)]
        expires_s = now_s + _UNKNOWN_RETENTION_S - _RETENTION_S
        return {name: expires_s for name in names if name not in known}


def _retained(replaced: dict[str, float], now_s: float) -> dict[str, float]:
    """Return the replaced files that are retained for readers of earlier versions.

    A file is retained for `_RETENTION_S` after it was replaced, or for `_SHORT_RETENTION_S` if
    there are more than `_MAX_REPLACED_FILES` files.

    Args:
        replaced: maps the name of a file to the time when it was replaced, in seconds since 1970;
            the result is a part of this mapping.
        now_s: the current time in seconds since 1970.
    """
    is_many = len(replaced) > _MAX_REPLACED_FILES
    retention_s = _SHORT_RETENTION_S if is_many else _RETENTION_S
    return {name: time_s for name, time_s in replaced.items() if now_s - time_s < retention_s}


def holds_index(folder: Path) -> bool:
    """Return whether a local folder has an `index.json` or a shard of a sharded index."""
    with suppress(OSError):
        with os.scandir(folder) as entries:
            if any(SHARD_FILE.fullmatch(entry.name) for entry in entries):
                return True
        with (folder / POINTER_FILE).open(errors="replace") as file:
            return '.version"' in file.read(_PROBE_CHARS)
    return False
