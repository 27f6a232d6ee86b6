"""Keep an index of many shards in a folder: a file for each shard, and one that says which of them belong together.

The folder is a path that all nodes share, or an address that `fsspec` knows, such as ``s3://bucket/index``. A file of a
shard is never written twice. A change writes new files first and then replaces the manifest, if that is still what it
was when the change began; so whoever opens the folder gets the state before or the one after. Files of the state before
are removed by a later change, when nobody can be opening them any more.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import numpy as np
from attrs import asdict, evolve, field, frozen

from relevance_gen import checks, wire
from relevance_gen.errors import (
    IndexConflictError,
    IndexFormatError,
    InvalidRequestError,
    describe,
    shorten,
)
from relevance_gen.index import storage
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.object_store import MAX_SMALL_BYTES, FileState, ObjectStore
from relevance_gen.shards.object_store import as_address as as_address
from relevance_gen.text.token_counting import Encoding, counter_of_saved
from relevance_gen.types import WeightingName

if TYPE_CHECKING:
    from relevance_gen.retrieval.chunk_index import ChunkIndex

_MANIFEST: Final = "index.json"
_FORMAT: Final = 3
_KEPT_S: Final = 3600
"""How long files stay that a change has replaced: a reader may be fetching them."""
_HEAD_CHARS: Final = 4096
"""How much of a manifest is read to see that it names shards."""
_SHARD_FILE: Final = re.compile(r"[0-9a-f]{16}-[0-9]{5}\.shard")
_OURS: Final = re.compile(
    rf"{_SHARD_FILE.pattern}|{re.escape(_MANIFEST)}\.[0-9a-f]{{16}}\.unfinished"
)
"""Files of shards, and what a process left behind that was killed while it replaced the manifest. Files that are being
saved beside them may be anybody's: who saves the next in a folder removes those of which nobody holds the lock."""


def _is_hash(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


@frozen
class SavedShard:
    """The file of a shard."""

    n_tokens: int = field(validator=checks.integer(0))  # tokens in all of its chunks
    n_bytes: int = field(validator=checks.integer(0))
    sha256: str = field(
        validator=checks.must_be("a hash", _is_hash)
    )  # the hash of its content, in hexadecimal


def _are_shards(files: Any) -> bool:
    if not (isinstance(files, dict) and files and all(map(_SHARD_FILE.fullmatch, files))):
        return False
    contents = [
        one.sha256 for one in files.values() if one.n_tokens
    ]  # those of shards without a chunk are the same
    return len(set(contents)) == len(contents)


def _are_times(files: Any) -> bool:
    return isinstance(files, dict) and all(isinstance(then, int | float) for then in files.values())


@frozen
class Manifest:
    """What belongs together."""

    weighting: WeightingName = field(validator=lambda _, __, value: weighting_named(value))
    encoding: str = field(validator=checks.string)
    fingerprint: str = field(validator=checks.string)  # a hash of what that encoding is
    n_positions: int = field(
        validator=checks.integer(0)
    )  # number of positions that were ever given
    # the files of the shards, by name, in the order of the shards
    shards: dict[str, SavedShard] = field(
        validator=checks.must_be("files of shards, none of them twice", _are_shards)
    )
    # files that stay for readers of earlier states, and when they were replaced, in seconds since 1970
    replaced: dict[str, float] = field(
        factory=dict, validator=checks.must_be("times by file", _are_times)
    )
    format: int = _FORMAT


Before: TypeAlias = tuple[FileState, Manifest | None]
"""The manifest's file in a folder when a change began, and what it says; None where no index was saved there."""


def new_files(n_shards: int) -> list[str]:
    """Return names for the files of shards that no other index has."""
    mark = secrets.token_hex(8)
    return [f"{mark}-{number:05}.shard" for number in range(n_shards)]


# ── Writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def write_index(folder: str, name: str, index: storage.SavedIndex) -> SavedShard:
    """Write a shard's file, and return what is to be said of it; metadata that is not JSON is refused."""
    if "://" in folder:
        written = storage.to_bytes(index)
        ObjectStore(folder).write(name, written)
        content = memoryview(written)
    else:
        storage.write(Path(folder, name), index)
        content = np.memmap(Path(folder, name), np.uint8, "r").data
    return SavedShard(index.n_context_tokens, len(content), hashlib.sha256(content).hexdigest())


def begin(folder: str) -> Before:
    """Return what a folder, which is made if need be, holds before a change; refuse another program's `index.json`."""
    store = ObjectStore(folder)
    store.make_folder()
    state = store.read_state(_MANIFEST)
    return state, None if state.content is None else parse_manifest(state.content, folder)


def publish(folder: str, manifest: Manifest, before: Before) -> None:
    """Say which files belong together from now on, and remove those that nobody needs.

    Files that are there, and belong to no state since `before`, are of writers that were killed, or will be refused.

    Raises:
        IndexConflictError: another writer has changed the index since `before`; the new files are removed.
        InvalidRequestError: there is more to say than readers read; the new files are removed.
        OSError: the store does not answer, so that the change may have been made or not.
    """
    store, now, (version, manifest_before) = ObjectStore(folder), time.time(), before
    old = (
        {}
        if manifest_before is None
        else manifest_before.replaced | dict.fromkeys(manifest_before.shards, now)
    )
    replaced = {
        file: then
        for file, then in old.items()
        if now - then < _KEPT_S and file not in manifest.shards
    }
    present = (
        store.list_names()
    )  # before the manifest is replaced: later there may be files of the next change
    content = wire.serialize(asdict(evolve(manifest, replaced=replaced)))
    is_small = len(content) <= MAX_SMALL_BYTES
    if not (is_small and store.replace(_MANIFEST, content, version)):
        store.remove(manifest.shards.keys() - old.keys())
        if is_small:
            raise conflict(folder)
        named = (
            f"{len(manifest.shards):,} shards and {len(replaced):,} files replaced within an hour"
        )
        rule = f"would have {len(content):,} bytes, to name {named}, and at most {MAX_SMALL_BYTES:,} are read"
        raise InvalidRequestError(
            f"{rule}; save an index of fewer shards (n_shards=), or save less often", _MANIFEST
        )
    with suppress(OSError):  # the next change does it
        store.remove(
            file
            for file in present
            if _OURS.fullmatch(file) and file not in {*manifest.shards, *replaced}
        )


def conflict(folder: str) -> IndexConflictError:
    """Return the error of a change that is not made, since another writer was first."""
    return IndexConflictError(
        f"{folder} was changed by another writer meanwhile, and stays as that one left it; load it, make this change "
        "again and save it, or save to another folder"
    )


# ── Reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def read_index(folder: str, name: str) -> storage.SavedIndex:
    """Open a shard's file: mapped into memory from a path, fetched whole from any other address."""
    folder = folder.removeprefix("file://")
    if "://" in folder:
        return storage.from_bytes(ObjectStore(folder).read_all(name), name)
    return storage.read(Path(folder, name))


def open_index(
    folder: str,
    manifest: Manifest,
    parts: Sequence[storage.SavedIndex],
    encoding: Encoding | None = None,
) -> ChunkIndex:
    """Return the index of a saved index's shards, without a cluster; `encoding` is as for `ChunkIndex.load`.

    Raises:
        IndexFormatError: a shard is another's.
        InvalidRequestError: it was saved with another encoding.
    """
    from relevance_gen.retrieval.chunk_index import (
        opened,
    )  # with all that reads documents, which hosts do without

    counter = counter_of_saved(manifest.encoding, manifest.fingerprint, encoding, folder)
    for (name, shard), part in zip(manifest.shards.items(), parts, strict=True):
        is_ours = part.n_context_tokens == shard.n_tokens and part.weighting == manifest.weighting
        if not is_ours or part.n_positions > manifest.n_positions:
            raise IndexFormatError(f"{name} is not the file that belongs to this index")
    return opened([evolve(part, n_positions=manifest.n_positions) for part in parts], counter)


def holds_shards(folder: Path) -> bool:
    """Tell whether a folder of this machine holds an index of shards, or what is left of one."""
    with suppress(OSError):
        with os.scandir(folder) as entries:  # of a folder of texts this comes before each question
            if any(_SHARD_FILE.fullmatch(one.name) for one in entries):
                return True
        with (folder / _MANIFEST).open(errors="replace") as file:
            return _SHARD_FILE.search(file.read(_HEAD_CHARS)) is not None
    return False


def read_manifest(folder: str) -> Manifest:
    """Read which files belong together.

    Raises:
        IndexFormatError: no index of a cluster was saved in this folder, or by another version.
        OSError: the folder cannot be read.
    """
    try:
        return parse_manifest(ObjectStore(folder).read(_MANIFEST), folder)
    except NotADirectoryError:
        raise IndexFormatError(
            f"{folder} is a file, and not where a cluster saved; ChunkIndex.load opens files"
        ) from None
    except FileNotFoundError:
        raise IndexFormatError(
            f"{folder} holds no saved index of a cluster: it has no {_MANIFEST}"
        ) from None


def parse_manifest(content: bytes, folder: str) -> Manifest:
    """Return what a manifest says; an `IndexFormatError`, for what is none or another version's, names its folder."""
    try:
        parsed = wire.parse(content)
        if not isinstance(parsed, dict) or not isinstance(shards := parsed.get("shards"), dict):
            raise InvalidRequestError("must be an object with shards", _MANIFEST)
        if parsed.get("format") != _FORMAT:
            raise IndexFormatError(
                f"{folder} has format {describe(parsed.get('format'))}; this version reads {_FORMAT}"
            )
        named = _SHARD_FILE.findall(content.decode())
        if len(set(named)) < len(named):
            raise InvalidRequestError("must name each file once", _MANIFEST)
        shards = {
            name: wire.structure(SavedShard, one, path=f"shards.{shorten(name)}")
            for name, one in shards.items()
        }
        return wire.structure(Manifest, parsed | {"shards": shards})
    except InvalidRequestError as error:
        wrong = str(error).replace(
            "the body", _MANIFEST
        )  # as errors of JSON call what a client sends
        raise IndexFormatError(
            f"{folder} holds no index that this library wrote: {wrong}"
        ) from None
