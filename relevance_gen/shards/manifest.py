"""Describe a version of a sharded index.

A version has shards, their statistics, and a record of the removed chunks. It is a JSON file that
is never changed. `index.json` names the file of the newest version. The last field of each of these
files is the SHA-256 of all bytes before that field, so a damaged or edited file is detected.
"""

from __future__ import annotations

import base64
import hashlib
import re
import secrets
import zlib
from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final

import numpy as np
from attrs import asdict, evolve, field, frozen

from relevance_gen import checks, wire
from relevance_gen.arrays import Offsets
from relevance_gen.errors import IndexFormatError, InvalidRequestError, describe, shorten
from relevance_gen.index.segment import Statistics
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.types import WeightingName

POINTER_FILE: Final = "index.json"
_FORMAT: Final = 4
SHARD_FILE: Final = re.compile(r"[0-9a-f]{16}\.(shard|statistics)")
_VERSION_FILE: Final = re.compile(r"[0-9]{8,19}-[0-9a-f]{16}\.version")
_UNFINISHED_FILE: Final = re.compile(rf"{re.escape(POINTER_FILE)}\.[0-9a-f]{{16}}\.unfinished")
_SEAL: Final = re.compile(rb',"sha256":"([0-9a-f]{64})"}')
_SEAL_BYTES: Final = len(',"sha256":""}') + 64


def new_name(extension: str) -> str:
    """Return a unique name for a new shard file or statistics file."""
    return f"{secrets.token_hex(8)}.{extension}"


def is_index_file(name: str) -> bool:
    """Return whether a name has the form of an index's files; False for `index.json`."""
    patterns = (SHARD_FILE, _VERSION_FILE, _UNFINISHED_FILE)
    return any(pattern.fullmatch(name) for pattern in patterns)


def _matches(pattern: re.Pattern[str] | str) -> Any:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


_is_hash = checks.Rule("a SHA-256 hash", _matches("[0-9a-f]{64}"))
_is_hexadecimal = checks.Rule("a hexadecimal number", _matches("[0-9a-f]+"))
_is_integer = checks.Rule("an integer", checks.is_integer)


@frozen
class StoredFile:
    """A shard file or statistics file of an index, which is never changed: name, size and hash."""

    name: str = field(validator=checks.Rule("the name of a file", _matches(SHARD_FILE)))
    n_bytes: int = field(validator=checks.integer(0))
    sha256: str = field(validator=_is_hash)

    @classmethod
    def of(cls, name: str, content: bytes | memoryview) -> StoredFile:
        """Return the record of a file with this content."""
        return cls(name, len(content), hashlib.sha256(content).hexdigest())

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
    first: int = field(validator=checks.integer(0))  # position of the first chunk
    stop: int = field(validator=checks.integer(0))  # position after the last chunk
    n_tokens: int = field(validator=checks.integer(0))
    n_chunks: int = field(validator=checks.integer(0))
    norm_sum: str = field(validator=_is_hexadecimal)  # exact sum of the norms, see `exact_sum`
    english_margin: int = field(validator=_is_integer)
    n_chunks_with_title: int = field(validator=checks.integer(0))
    # arrays of the statistics (terms and titles), if there are any
    statistics_file: StoredFile | None = None
    # the removed chunks: a bit for each position of the shard, compressed, as base64; "" for none
    removed: str = field(default="", validator=checks.string)

    @property
    def scalars(self) -> Statistics:
        """The statistics of the shard without the arrays, which are in `statistics_file`."""
        norm_sum = int(self.norm_sum, 16)
        return Statistics(
            n_chunks=self.n_chunks,
            norm_sum=norm_sum,
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
        n_bytes = -(-self.n_positions // 8)
        bits = zlib.decompressobj().decompress(base64.b64decode(self.removed), n_bytes)
        flags = np.unpackbits(np.frombuffer(bits, np.uint8), count=self.n_positions)
        return np.flatnonzero(flags) + self.first

    def encode_removed(self, positions: Offsets) -> str:
        """Return the value of `removed` for a record of this shard.

        It has one bit for each position of the shard, compressed, as base64; "" for no positions.

        Args:
            positions: positions in the index of all removed chunks of the shard.
        """
        if not positions.size:
            return ""
        flags = np.zeros(self.n_positions, bool)
        flags[positions - self.first] = True
        compressed = zlib.compress(np.packbits(flags).tobytes(), 9)
        return base64.b64encode(compressed).decode()


def _are_ordered(shards: Any) -> bool:
    names = {shard.file.name for shard in shards}
    ends = [0, *(shard.stop for shard in shards)]
    is_ordered = all(
        end <= shard.first <= shard.stop for end, shard in zip(ends, shards, strict=False)
    )
    return len(names) == len(shards) > 0 and is_ordered


def _are_times(files: Any) -> bool:
    if not isinstance(files, dict):
        return False
    return all(isinstance(time, int | float) for time in files.values())


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

    number: int = field(validator=checks.integer(1))  # 1 more than that of the version before
    index_id: str = field(validator=checks.string)  # the same in all versions of one index
    weighting: WeightingName = field(validator=lambda _, __, value: weighting_named(value))
    encoding: str = field(validator=checks.string)
    fingerprint: str = field(validator=checks.string)  # hash of the encoding's definition
    n_positions: int = field(validator=checks.integer(0))  # positions assigned so far
    shards: tuple[ShardRecord, ...] = field(
        validator=checks.Rule("distinct shards in order of their positions", _are_ordered)
    )
    # files that remain for readers of earlier versions, and when they were replaced (seconds since
    # 1970)
    replaced: dict[str, float] = field(
        factory=dict, hash=False, validator=checks.Rule("times by file", _are_times)
    )
    name: str = field(default="", eq=False)  # name of the version's file

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
        shard_files = [shard.file for shard in self.shards]
        statistics_files = [shard.statistics_file for shard in self.shards]
        return {file.name: file for file in (*shard_files, *statistics_files) if file is not None}

    def replaces(self, other: IndexVersion) -> bool:
        """Return whether this version is newer than the other, or of a different index."""
        return self.index_id != other.index_id or self.number > other.number


def new_version_name(number: int) -> str:
    """Return a unique name for the file of a version; `number` is the number of the version."""
    return f"{number:08}-{secrets.token_hex(8)}.version"


def serialize_version(version: IndexVersion) -> bytes:
    """Return the content of a version's file: sealed JSON, which `parse_version` reads."""
    content = asdict(version)
    del content["name"]
    return _seal(content)


def serialize_pointer(version_name: str) -> bytes:
    """Return the content of `index.json` that names the file of a version."""
    return _seal({"version": version_name})


def parse_pointer(content: bytes, location: str) -> str:
    """Return the name of the newest version's file, given the content of `index.json`.

    Raises:
        IndexFormatError: the content is damaged, or of another program or format; the error names
            the location.
    """
    parsed = _unseal(content, POINTER_FILE, location)
    name = parsed.get("version")
    if not isinstance(name, str) or _VERSION_FILE.fullmatch(name) is None:
        raise _foreign(f"{POINTER_FILE} names no version", location)
    return name


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
    parsed = _unseal(content, name, location)
    del parsed["format"]
    try:
        shards = tuple(
            _parse_shard(shard, f"shards[{shard_ord}]")
            for shard_ord, shard in enumerate(parsed.get("shards", ()))
        )
        version = wire.structure(IndexVersion, {**parsed, "shards": shards, "name": name})
    except (InvalidRequestError, TypeError) as error:
        raise _foreign(str(error), location) from None
    if int(name.partition("-")[0]) != version.number:
        raise _foreign(f"{name} has the version number {version.number}", location)
    if version.shards[-1].stop > version.n_positions:
        raise _foreign("n_positions is too small", location)
    return version


def _parse_shard(value: Any, path: str) -> ShardRecord:
    files = {
        key: wire.structure(StoredFile, value[key], path=f"{path}.{key}")
        for key in ("file", "statistics_file")
        if isinstance(value, Mapping) and value.get(key) is not None
    }
    return wire.structure(ShardRecord, {**value, **files}, path=path)


def _seal(content: dict[str, Any]) -> bytes:
    """Return an object as JSON, with a first field ``format`` and a last field ``sha256``.

    The last field has the SHA-256 of all bytes before it, in hexadecimal.
    """
    unsealed = wire.serialize({"format": _FORMAT, **content})[:-1]
    return unsealed + b',"sha256":"%b"}' % hashlib.sha256(unsealed).hexdigest().encode()


def _unseal(content: bytes, name: str, location: str) -> dict[str, Any]:
    """Check the hash and the format of a file; return all its fields except the hash.

    Args:
        content: the content of the file, as `_seal` returns it.
        name: the name of the file, for errors.
        location: the location of the index, for errors.

    Raises:
        IndexFormatError: the content is damaged, or of another program or format.
    """
    unsealed, seal = content[:-_SEAL_BYTES], _SEAL.fullmatch(content[-_SEAL_BYTES:])
    sha256 = hashlib.sha256(unsealed).hexdigest().encode()
    is_intact = seal is not None and seal[1] == sha256
    try:
        parsed = wire.parse(unsealed + b"}" if is_intact else content)
    except InvalidRequestError as error:
        raise _foreign(str(error).replace("the body", name), location) from None
    if not isinstance(parsed, dict):
        raise _foreign(f"{name} must be an object", location)
    if parsed.get("format") != _FORMAT:
        found = shorten(describe(parsed.get("format")))
        message = f"{location} has format {found}; this version reads format {_FORMAT}"
        remedy = f"delete {POINTER_FILE}, and build the index again"
        raise IndexFormatError(f"{message}; {remedy}")
    if not is_intact:
        raise _foreign(f"{name} is damaged: its checksum does not match", location)
    return parsed


def _foreign(reason: str, location: str) -> IndexFormatError:
    return IndexFormatError(f"{location} holds no index that this library wrote: {reason}")
