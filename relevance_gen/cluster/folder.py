"""Keep an index of many shards in a folder: a file for each shard, and one that says which of them belong together.

The folder is a path that all nodes share, or an address that `fsspec` knows, such as ``s3://bucket/index``. The files
of an earlier index are removed when the new one is complete, so whoever opens the folder gets one or the other.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from relevance_gen import checks, wire
from relevance_gen.errors import IndexFormatError, InvalidRequestError
from relevance_gen.retrieval.index import ChunkIndex, opened
from relevance_gen.retrieval.question.weighting import weighting_named
from relevance_gen.retrieval.segment import storage
from relevance_gen.tokens import Encoding, counter_of_saved
from relevance_gen.types import WeightingName

_MANIFEST: Final = "index.json"
_FORMAT: Final = 2
_SHARD_FILE: Final = re.compile(r"[0-9a-f]{16}-[0-9]{5}\.shard")
_OURS: Final = re.compile(rf"{_SHARD_FILE.pattern}|.*\.[0-9a-f]{{16}}\.unfinished")
"""Files of shards, and what a process that was killed while it wrote one left behind."""


def _are_files(shards: Any) -> bool:
    """Tell whether these are names of shards' files, each with a number of tokens."""
    return (
        isinstance(shards, dict)
        and bool(shards)
        and all(
            _SHARD_FILE.fullmatch(name) and checks.is_integer(n_tokens) and n_tokens >= 0
            for name, n_tokens in shards.items()
        )
    )


@frozen
class Manifest:
    """What belongs together.

    Attributes:
        weighting: name of the weighting.
        encoding: name of the encoding that tokens are counted in.
        fingerprint: a hash of what that encoding is.
        n_positions: number of positions that were ever given.
        shards: the tokens in each shard, by the name of its file, in the order of the shards.
        format: version of this format.
    """

    weighting: WeightingName = field(validator=lambda _, __, value: weighting_named(value))
    encoding: str = field(validator=checks.string)
    fingerprint: str = field(validator=checks.string)
    n_positions: int = field(validator=checks.integer(0))
    shards: dict[str, int] = field(validator=checks.must_be("files of shards with their tokens", _are_files))
    format: int = _FORMAT


def as_address(folder: str | PathLike[str]) -> str:
    """Return what a caller calls a folder in the form that means the same on every node.

    Raises:
        InvalidRequestError: it is neither a path nor an address.
    """
    if not isinstance(folder, str | PathLike) or not os.fspath(folder):
        raise InvalidRequestError.must_be("folder", "a path that all nodes share, or an address as s3://…", folder)
    address = os.fspath(folder)
    return address if "://" in address else str(Path(address).absolute())


def new_files(n_shards: int) -> list[str]:
    """Return names for the files of shards that no other index has."""
    mark = secrets.token_hex(8)
    return [f"{mark}-{number:05}.shard" for number in range(n_shards)]


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_index(address: str, index: storage.SavedIndex) -> None:
    """Write a shard's file, whole or not at all.

    Raises:
        OSError: it cannot be written.
        InvalidRequestError: some metadata is not JSON.
    """
    if "://" in address:
        _write(address, storage.to_bytes(index))
    else:
        storage.write(address, index)


def read_index(address: str) -> storage.SavedIndex:
    """Open a shard's file: mapped into memory from a path, fetched whole from any other address.

    Raises:
        IndexFormatError: it is damaged or foreign.
        OSError: it cannot be read.
    """
    path = address.removeprefix("file://")
    return storage.from_bytes(_read(address)) if "://" in path else storage.read(path)


def open_index(folder: str, manifest: Manifest, encoding: Encoding | None = None) -> ChunkIndex:
    """Open all shards of a saved index in this process, without a cluster; `encoding` is as for `ChunkIndex.load`.

    Raises:
        IndexFormatError: it is damaged.
        InvalidRequestError: it was saved with another encoding.
        OSError: it cannot be read.
    """
    counter = counter_of_saved(manifest.encoding, manifest.fingerprint, encoding, folder)
    parts = [read_index(join(folder, name)) for name in manifest.shards]
    for name, part in zip(manifest.shards, parts, strict=True):
        if part.n_context_tokens != manifest.shards[name]:
            raise IndexFormatError(f"{name} is not the file that belongs to this index")
    return opened(parts, counter)


def holds(folder: str, names: Iterable[str]) -> bool:
    """Tell whether a folder has files of these names."""
    return set(names) <= set(_names(folder))


def remove(folder: str, names: Iterable[str]) -> None:
    """Remove those files of a folder that have one of these names.

    Raises:
        OSError: the folder cannot be changed.
    """
    files, root = file_system(folder)
    for name in set(names) & set(_names(folder)):
        files.rm_file(join(root, name))


def write_manifest(folder: str, manifest: Manifest) -> None:
    """Write which files belong together, and remove others of shards, and those that nobody finished.

    Raises:
        OSError: it cannot be written.
    """
    _write(join(folder, _MANIFEST), wire.serialize(manifest))
    remove(folder, [name for name in _names(folder) if _OURS.fullmatch(name) and name not in manifest.shards])


def read_manifest(folder: str) -> Manifest:
    """Read which files belong together.

    Raises:
        IndexFormatError: no index of a cluster was saved in this folder, or by another version.
        OSError: the folder cannot be read.
    """
    files, path = file_system(join(folder, _MANIFEST))
    try:
        content = wire.parse(files.cat_file(path))
        if isinstance(content, dict) and content.get("format") != _FORMAT:
            raise IndexFormatError(f"{folder} has format {content.get('format')!r}; this version reads {_FORMAT}")
        return wire.structure(Manifest, content)
    except FileNotFoundError:
        raise IndexFormatError(f"{folder} holds no saved index of a cluster: it has no {_MANIFEST}") from None
    except InvalidRequestError as error:
        raise IndexFormatError(f"{folder} holds no index that this library wrote: {error}") from None


def make_folder(folder: str) -> None:
    """Make the folder, if it is not there.

    Raises:
        OSError: it cannot be made.
    """
    files, root = file_system(folder)
    files.makedirs(root, exist_ok=True)


def join(folder: str, name: str) -> str:
    """Return the address of a file in a folder."""
    return f"{folder.rstrip('/')}/{name}"


def file_system(address: str) -> tuple[Any, str]:
    """Return the file system of an address, as `fsspec` has it, and the path there.

    Raises:
        InvalidRequestError: `fsspec` does not know such addresses, or lacks the package for them.
    """
    import fsspec

    try:
        files, path = fsspec.core.url_to_fs(address)
    except (ImportError, ValueError) as error:
        raise InvalidRequestError(f"must be an address that fsspec can open: {error}", address) from None
    return files, path


def _names(folder: str) -> list[str]:
    files, root = file_system(folder)
    files.invalidate_cache()
    return [path.rsplit("/", 1)[-1] for path in files.ls(root, detail=False)]


def _read(address: str) -> bytes:
    files, path = file_system(address)
    return bytes(files.cat_file(path))


def _write(address: str, content: bytes) -> None:
    """Write a file beside its place and move it there."""
    files, path = file_system(address)
    unfinished = f"{path}.{secrets.token_hex(8)}.unfinished"
    files.pipe_file(unfinished, content)
    files.mv(unfinished, path)
