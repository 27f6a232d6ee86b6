"""Read and publish the versions of an index in a folder or an object store.

A version has shards, their statistics, and a record of the removed chunks. It is a JSON file that
is never changed. `index.json` names the file of the newest version. The last field of each of these
files is the SHA-256 of all bytes before that field, so a damaged or edited file is detected.

A change writes new files first, then a new version file, and finally replaces `index.json` if it
still names the version that the change began with. A reader therefore finds the version before or
the version after a change.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import secrets
import time
import zlib
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
from attrs import asdict, evolve, field, frozen
from attrs.validators import matches_re

from relevance_gen import checks, wire
from relevance_gen.arrays import Offsets
from relevance_gen.errors import (
    IndexConflictError,
    IndexFormatError,
    InvalidRequestError,
    describe,
    shorten,
)
from relevance_gen.index.segment import Statistics
from relevance_gen.shards.object_store import MAX_SMALL_BYTES, FileState, ObjectStore
from relevance_gen.types import WeightingName

_FORMAT: Final = 4
_POINTER: Final = "index.json"
_SHARD_FILE: Final = r"[0-9a-f]{16}\.(shard|statistics)"
_VERSION_FILE: Final = r"[0-9]{8,19}-[0-9a-f]{16}\.version"
_UNFINISHED_FILE: Final = r"index\.json\.[0-9a-f]{16}\.unfinished"
_INDEX_FILE: Final = re.compile(f"{_SHARD_FILE}|{_VERSION_FILE}|{_UNFINISHED_FILE}")
"""Matches the name of each file of an index except `index.json`."""
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


def new_name(extension: str) -> str:
    """Return a unique name for a new shard file or statistics file."""
    return f"{secrets.token_hex(8)}.{extension}"


_count: Final = checks.integer(0)


@frozen
class StoredFile:
    """A shard file or statistics file of an index, which is never changed: name, size and hash."""

    name: str = field(validator=matches_re(_SHARD_FILE))
    n_bytes: int = field(validator=_count)
    sha256: str

    @classmethod
    def of(cls, name: str, content: bytes | memoryview) -> StoredFile:
        """Return the record of a file with this content."""
        return cls(name, len(content), hashlib.sha256(content).hexdigest())

    def read_from(self, store: ObjectStore) -> bytes:
        """Return the content of this file; an `IndexFormatError` if it has another hash."""
        content = store.read_all(self.name)
        self.check(content)
        return content

    def check(self, content: bytes | memoryview) -> None:
        """Raise an `IndexFormatError` if `content` does not have the hash of this file."""
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise IndexFormatError(f"{self.name} is damaged: its checksum does not match")


@frozen
class ShardRecord:
    """A shard in one version of an index.

    Attributes:
        file: the shard's file.
        first: position in the index of the shard's first chunk.
        stop: position in the index after the shard's last chunk.
        n_tokens: number of tokens of the chunks that were not removed.
        n_chunks: number of chunks that were not removed, without blank chunks.
        norm_sum: exact sum of the norms of these chunks as a hexadecimal integer, in units of
            2⁻¹¹²⁶; see `exact_sum`.
        english_margin: as in `Statistics`, for these chunks.
        n_chunks_with_title: number of these chunks that have a title.
        statistics_file: the arrays of the statistics (terms and titles); None if there are none.
        removed: the removed chunks, as `encode_removed` returns them; "" for none.
    """

    file: StoredFile
    first: int = field(validator=_count)
    stop: int = field(validator=_count)
    n_tokens: int = field(validator=_count)
    n_chunks: int = field(validator=_count)
    norm_sum: str = field(validator=matches_re("[0-9a-f]+"))
    english_margin: int
    n_chunks_with_title: int = field(validator=_count)
    statistics_file: StoredFile | None = None
    removed: str = ""

    @property
    def scalars(self) -> Statistics:
        """The statistics of the shard without the arrays, which are in `statistics_file`."""
        return Statistics(
            n_chunks=self.n_chunks,
            norm_sum=int(self.norm_sum, 16),
            english_margin=self.english_margin,
            n_chunks_with_title=self.n_chunks_with_title,
        )

    def at(self, first: int) -> ShardRecord:
        """Return the record of this shard at the positions from `first`."""
        return evolve(self, first=first, stop=first + self.n_positions)

    @property
    def n_positions(self) -> int:
        """Number of positions of the shard, including removed and blank chunks."""
        return self.stop - self.first

    @property
    def removed_positions(self) -> Offsets:
        """Positions in the index of the shard's removed chunks, ascending."""
        if not self.removed:
            return np.zeros(0, np.int64)
        compressed = base64.b64decode(self.removed)
        bits = zlib.decompressobj().decompress(compressed, max_length=self.n_positions)
        flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=self.n_positions)
        return np.flatnonzero(flags) + self.first

    def encode_removed(self, positions: Offsets) -> str:
        """Return the value of `removed` if the chunks at these positions are removed, too.

        It has one bit for each position of the shard, compressed, as base64.
        """
        flags = np.zeros(self.n_positions, bool)
        flags[self.removed_positions - self.first] = True
        flags[positions - self.first] = True
        compressed = zlib.compress(np.packbits(flags).tobytes(), 9)
        return base64.b64encode(compressed).decode()


def _are_ordered(shards: tuple[ShardRecord, ...]) -> bool:
    names = {shard.file.name for shard in shards}
    bounds = [bound for shard in shards for bound in (shard.first, shard.stop)]
    return len(names) == len(shards) > 0 and bounds == sorted(bounds)


@frozen
class IndexVersion:
    """An immutable version of an index: its settings and its shards.

    Attributes:
        number: the number of the version, 1 more than that of the version before.
        index_id: an identifier that all versions of one index have in common.
        weighting: the name of the weighting.
        encoding: the name of the encoding by which tokens were counted.
        fingerprint: a hash of the definition of this encoding.
        n_positions: number of positions assigned so far, removed and blank chunks included.
        shards: the shards, in the order of their positions.
        replaced: maps the name of each file that only earlier versions need, and that remains for
            their readers, to the time when it was replaced, in seconds since 1970.
        name: the name of the version's file; "" before it is published.
    """

    number: int = field(validator=checks.integer(1))
    index_id: str
    weighting: WeightingName
    encoding: str
    fingerprint: str
    n_positions: int = field(validator=_count)
    shards: tuple[ShardRecord, ...] = field(
        validator=checks.Rule("distinct shards in order of their positions", _are_ordered)
    )
    replaced: dict[str, float] = field(factory=dict, hash=False)
    name: str = field(default="", eq=False)

    @property
    def n_chunks(self) -> int:
        """Number of chunks that were not removed."""
        return sum(shard.n_chunks for shard in self.shards)

    @cached_property
    def statistics(self) -> Statistics:
        """Statistics of the chunks of all shards, without the arrays in the statistics files."""
        return sum((shard.scalars for shard in self.shards), Statistics())

    @property
    def n_tokens(self) -> int:
        """Number of tokens in all chunks that were not removed."""
        return sum(shard.n_tokens for shard in self.shards)

    @cached_property
    def files(self) -> dict[str, StoredFile]:
        """The shard files and statistics files of this version, by name."""
        files = [file for shard in self.shards for file in (shard.file, shard.statistics_file)]
        return {file.name: file for file in files if file is not None}

    def replaces(self, other: IndexVersion) -> bool:
        """Return whether this version is newer than the other, or of a different index."""
        return self.index_id != other.index_id or self.number > other.number


def serialize_version(version: IndexVersion) -> bytes:
    """Return the content of a version's file: sealed JSON, which `parse_version` reads."""
    content = asdict(version)
    del content["name"]
    return _seal(content)


def parse_version(content: bytes, name: str, location: str) -> IndexVersion:
    """Return the version that the content of a version's file describes.

    Args:
        content: the content of the file.
        name: the name of the file, which begins with the number of the version.
        location: the location of the index, for errors.

    Raises:
        IndexFormatError: the content is damaged, of another program or format, or of a version with
            another number; the error names the location.
    """
    parsed = _parse(content, name, location)
    try:
        version = wire.structure_nested(IndexVersion, parsed | {"name": name})
    except Exception as error:  # errors of many types
        raise _foreign(f"{name} is damaged: {error}", location) from None
    if serialize_version(version) != content:
        raise _foreign(f"{name} is damaged: its checksum does not match", location)
    if not name.startswith(f"{version.number:08}-"):
        raise _foreign(f"{name} has the version number {version.number}", location)
    if version.shards[-1].stop > version.n_positions:
        raise _foreign("n_positions is too small", location)
    return version


def _seal(content: dict[str, Any]) -> bytes:
    """Return an object as JSON, with a first field ``format`` and a last field ``sha256``.

    The last field has the SHA-256 of all bytes before it, in hexadecimal.
    """
    unsealed = wire.serialize({"format": _FORMAT, **content})[:-1]
    return unsealed + b',"sha256":"%b"}' % hashlib.sha256(unsealed).hexdigest().encode()


def _parse(content: bytes, name: str, location: str) -> dict[str, Any]:
    """Return the object in a file, whose hash the caller must compare.

    Args:
        content: the content of the file, as `_seal` returns it.
        name: the name of the file, for errors.
        location: the location of the index, for errors.

    Raises:
        IndexFormatError: the content is of another program or format.
    """
    try:
        parsed = wire.parse(content)
    except InvalidRequestError as error:
        raise _foreign(str(error).replace("the body", name), location) from None
    if not isinstance(parsed, dict):
        raise _foreign(f"{name} must be an object", location)
    if parsed.get("format") != _FORMAT:
        found = shorten(describe(parsed.get("format")))
        message = f"{location} has format {found}; this version reads format {_FORMAT}"
        raise IndexFormatError(f"{message}; delete {_POINTER}, and build the index again")
    return parsed


def _foreign(reason: str, location: str) -> IndexFormatError:
    return IndexFormatError(f"{location} holds no index that this library wrote: {reason}")


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
            pointer = self.files.read(_POINTER)
        except NotADirectoryError:
            message = f"{self.location} is a file and not the folder of an index"
            raise IndexFormatError(f"{message}; ChunkIndex.load opens files") from None
        except FileNotFoundError:
            message = f"{self.location} holds no saved index: it has no {_POINTER}"
            raise IndexFormatError(message) from None
        return self._version_of(pointer)

    def read_named(self, name: str) -> IndexVersion:
        """Return the version in the file with this name.

        Raises:
            FileNotFoundError: the version is not retained any more.
            IndexFormatError: the file is damaged or of another format.
        """
        return parse_version(self.files.read(name), name, self.location)

    def begin(self) -> Newest:
        """Begin a change: return the newest version and the state of `index.json`, for `publish`.

        The attribute `version` of the result is None if the location has no `index.json`.

        Raises:
            IndexFormatError: `index.json` is of another program, or the index is damaged or of
                another format.
            OSError: the store does not answer.
        """
        pointer = self.files.read_state(_POINTER)
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
        replaced: dict[str, float] = {}
        if before is not None:
            number = before.number + 1
            version = evolve(version, index_id=before.index_id)
            replaced = dict.fromkeys([before.name, *before.files], now_s) | before.replaced
        for needed in replaced.keys() & version.files.keys():
            del replaced[needed]
        is_many = len(replaced) > _MAX_REPLACED_FILES
        oldest_s = now_s - (_SHORT_RETENTION_S if is_many else _RETENTION_S)
        retained = {name: time_s for name, time_s in replaced.items() if time_s > oldest_s}
        if number % _SWEEP_INTERVAL == 0:
            retained |= self._unknown_files({*version.files, *replaced}, now_s)
        name = f"{number:08}-{secrets.token_hex(8)}.version"
        version = evolve(version, number=number, name=name, replaced=retained)
        content = serialize_version(version)
        if len(content) > MAX_SMALL_BYTES:
            size = f"would have {len(content):,} bytes to name {len(version.shards):,} shards"
            rule = f"{size}, and readers accept {MAX_SMALL_BYTES:,}"
            remedy = "compact the index, or build it with fewer shards"
            raise InvalidRequestError(rule, "the version file", remedy=remedy)
        self.files.write(name, content)
        if not self.files.replace(_POINTER, _seal({"version": name}), newest.pointer):
            self.files.remove([name])
            raise IndexConflictError(f"{self.location} was changed by another writer")
        self._last = version
        with suppress(OSError):  # a later change removes the remaining files
            self.files.remove(replaced.keys() - retained.keys())
        return version

    def _version_of(self, pointer: bytes) -> IndexVersion:
        """Return the version that `index.json` names; read its file unless it was read last.

        Args:
            pointer: the content of `index.json`.
        """
        name = str(_parse(pointer, _POINTER, self.location).get("version"))
        if pointer != _seal({"version": name}) or not re.fullmatch(_VERSION_FILE, name):
            reason = f"{_POINTER} is damaged, or names no version"
            raise _foreign(reason, self.location)
        last = self._last
        if last is not None and last.name == name:
            return last
        try:
            self._last = self.read_named(name)
        except FileNotFoundError:
            if self.files.read(_POINTER) != pointer:  # it was replaced meanwhile
                return self.read()
            raise IndexFormatError(f"{self.location} is incomplete: {name} is missing") from None
        return self._last

    def _unknown_files(self, known: set[str], now_s: float) -> dict[str, float]:
        """Return the files of the index that are not in `known`, with a replacement time each.

        The times are chosen so that the files remain for `_UNKNOWN_RETENTION_S`.
        """
        names = filter(_INDEX_FILE.fullmatch, self.files.list_names())
        expires_s = now_s + _UNKNOWN_RETENTION_S - _RETENTION_S
        return {name: expires_s for name in names if name not in known}


def holds_index(folder: Path) -> bool:
    """Return whether a local folder has a file of an index."""
    with suppress(OSError), os.scandir(folder) as entries:
        return any(_INDEX_FILE.fullmatch(entry.name) for entry in entries)
    return False
