"""Tests of the cache for shards of remote indexes: complete, bounded, and safe for several processes."""

from __future__ import annotations

import hashlib
import os
import re
import resource
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex
from relevance_gen.errors import IndexFormatError, IndexUnavailableError
from relevance_gen.shards import shard_cache, shard_files
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.shards.sharded_index import VersionReader
from tests.serve.shards import save_shards
from tests.shards.states import state, states


def open_cached(cache: ShardCache, address: str) -> ChunkIndex:
    reader = VersionReader(address, cache=cache)
    return reader.open(reader.versions.read())


def texts_of(cache: ShardCache, address: str) -> list[str]:
    return [chunk.text for chunk in open_cached(cache, address)]


def hashes_in(cache: ShardCache) -> set[str]:
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in cache.folder.glob("*.shard")}


def test_shard_is_fetched_once(store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several readers that open an index at once fetch each block once; later readers do not even hash the files."""
    monkeypatch.setattr(shard_cache, "_BLOCK_BYTES", 1000)
    location, requested, read = "s3://corpora/once", [], ObjectStore.read
    version = save_shards(location, state(0, 20), 2)

    def counting(self: ObjectStore, name: str, *args: Any) -> bytes:
        requested.append(name)
        return read(self, name, *args)

    monkeypatch.setattr(ObjectStore, "read", counting)
    caches = [ShardCache(tmp_path / "cache", 1 << 20) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(texts_of, caches, [location] * 4)) == [state(0, 20)] * 4
    for shard in version.shards:
        assert requested.count(shard.file.name) == -(-shard.file.n_bytes // 1000)
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert texts_of(caches[0], location) == state(0, 20)


@pytest.mark.parametrize("damage", ["cut", "changed", "removed", "incomplete"])
def test_damaged_cached_file_is_fetched_again(tmp_path: Path, damage: str) -> None:
    """A cached file that was truncated, changed, removed or only partly fetched is replaced."""
    location, cache = f"memory://{tmp_path.name}", ShardCache(tmp_path / "cache", 1 << 20)
    save_shards(location, state(0), 1)
    texts_of(cache, location)
    (path,) = cache.folder.glob("*.shard")
    content = path.read_bytes()
    half = len(content) // 2
    match damage:
        case "cut":
            os.truncate(path, half)
        case "changed":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "removed":
            path.unlink()
        case "incomplete":
            path.write_bytes(content[:half] + bytes(len(content) - half))
            os.utime(path, ns=(0, shard_cache._INCOMPLETE_NS))
    assert texts_of(cache, location) == state(0)
    assert path.read_bytes() == content


def test_damaged_shard_in_the_store_is_refused(tmp_path: Path) -> None:
    """A shard whose content has another hash is refused each time; bytes after its end are not fetched."""
    location, cache = f"memory://{tmp_path.name}", ShardCache(tmp_path / "cache", 1 << 20)
    (shard,) = save_shards(location, state(0), 1).shards
    name = shard.file.name
    content = ObjectStore(location).read_all(name)
    ObjectStore(location).write(name, content + b"x")
    assert texts_of(cache, location) == state(0)
    next(cache.folder.glob("*.shard")).unlink()
    for damaged in (content[:100], bytes(len(content))):
        ObjectStore(location).write(name, damaged)
        for _ in range(2):
            with pytest.raises(IndexFormatError, match="checksum does not match"):
                texts_of(cache, location)


@pytest.mark.parametrize("difference", ["size", "store", "name"])
def test_file_in_use_is_not_changed_by_another_manifest(tmp_path: Path, difference: str) -> None:
    """A manifest with another size, store or file name for the same hash does not touch a file that is in use."""
    location, other = f"memory://{tmp_path.name}/one", f"memory://{tmp_path.name}/other"
    cache = ShardCache(tmp_path / "cache", 1 << 20)
    (shard,) = save_shards(location, state(0), 1).shards
    used = open_cached(cache, location)
    before = {path: path.read_bytes() for path in cache.folder.glob("*.shard")}
    address, file = location, shard.file
    if difference == "size":
        file = evolve(file, n_bytes=1)
    else:
        address = other if difference == "store" else location
        file = file if difference == "store" else evolve(file, name=f"{7:016x}.shard")
        ObjectStore(address).write(file.name, bytes(file.n_bytes))
        for path in before:  # another process began to fetch it before it was complete
            os.utime(path, ns=(0, shard_cache._INCOMPLETE_NS))
    with pytest.raises(IndexFormatError, match="checksum does not match"):
        cache.fetch(address, [file])
    assert {path: path.read_bytes() for path in before} == before
    assert states(used) == {"0"}


def test_shard_of_another_index_is_refused(tmp_path: Path) -> None:
    """A shard with another number of positions or another weighting than in the version is refused."""
    location, cache = f"memory://{tmp_path.name}", ShardCache(tmp_path / "cache", 1 << 20)
    version = save_shards(location, state(0), 2)
    first, second = version.shards
    longer = evolve(version, n_positions=9, shards=(first, evolve(second, stop=9)))
    for wrong in (longer, evolve(version, weighting="cosine")):
        with pytest.raises(IndexFormatError, match="is not the file that belongs to this index"):
            VersionReader(location, cache=cache).open(wrong)


def test_last_version_is_known_while_its_files_are_cached(tmp_path: Path) -> None:
    """The version that was opened last is returned until any of its files is removed."""
    location, cache = f"memory://{tmp_path.name}", ShardCache(tmp_path / "cache", 1 << 20)
    version = save_shards(location, state(0), 2)
    assert cache.last_version(location) is None
    texts_of(cache, location)
    cache.remember(location, version)
    cached = cache.last_version(location)
    assert cached is not None
    assert cached.version == version
    assert states(VersionReader(location, cache=cache).open(cached.version)) == {"0"}
    next(cache.folder.glob("*.shard")).unlink()
    assert cache.last_version(location) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_cache_never_exceeds_its_limit(steps: list[tuple[int, bool]]) -> None:
    """In any order of opening and releasing, files in use remain, and indexes that do not fit are refused."""
    locations = [f"memory://limit/{number}" for number in range(4)]
    for number, location in enumerate(locations):
        if not ObjectStore(location).list_names():
            save_shards(location, state(number), 1)
    shards = [VersionReader(location).versions.read().shards[0] for location in locations]
    max_bytes = max(shard.file.n_bytes for shard in shards) * 2
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        cache, held = ShardCache(Path(name), max_bytes), dict[int, ChunkIndex]()
        for number, is_held in steps:
            if sum(shards[one].file.n_bytes for one in {*held, number}) > max_bytes:
                with pytest.raises(IndexUnavailableError, match="--shard-cache-bytes"):
                    open_cached(cache, locations[number])
            else:
                held[number] = open_cached(cache, locations[number])
                assert [chunk.text for chunk in held[number]] == state(number)
                if not is_held:
                    del held[number]
            assert sum(path.stat().st_size for path in cache.folder.glob("*.shard")) <= max_bytes
            assert hashes_in(cache) >= {shards[one].file.sha256 for one in held}


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_too_many_shards_open_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """An index with more shards than this process may open files is refused before any file is opened."""
    location = f"{scheme}://{tmp_path}/saved"
    version = save_shards(location, state(0), 2)
    first = version.shards[0]
    monkeypatch.setattr(resource, "getrlimit", lambda _: (4096, 4096))
    many = []
    for number in range(5_000):
        file = evolve(first.file, name=f"{number:016x}.shard", n_bytes=1)
        many.append(evolve(first, file=file, first=2 * number, stop=2 * number + 1))
    wide = evolve(version, n_positions=10_000, shards=tuple(many))
    cache = ShardCache(tmp_path / "cache", 1 << 20)
    n_free = []
    for n_opened in (0, 3):
        with ExitStack() as files:
            for _ in range(n_opened):
                files.enter_context((tmp_path / "any").open("wb"))
            with pytest.raises(IndexUnavailableError) as refused:
                VersionReader(location, cache=cache).open(wide)
        message = str(refused.value)
        assert re.search("5,000 shards take an open file each.*ulimit -n", message)
        n_free.append(int(re.findall(r"may open ([\d,]+) more", message)[0].replace(",", "")))
    assert n_free[0] - n_free[1] == 3
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10**6, 10**6))
    if scheme == "memory":
        small = ShardCache(tmp_path / "small", 4_999)
        with pytest.raises(IndexUnavailableError, match="there is room for 4,999 bytes"):
            VersionReader(location, cache=small).open(wide)
        assert not [*small.folder.glob("*.shard")]


def test_least_recently_used_file_is_removed(tmp_path: Path) -> None:
    """The unused file that was opened last remains; a folder that others may change is refused."""
    locations = [f"memory://{tmp_path.name}/{number}" for number in range(3)]
    shards = [
        save_shards(location, state(number), 1).shards[0]
        for number, location in enumerate(locations)
    ]
    n_bytes = max(shard.file.n_bytes for shard in shards)
    cache = ShardCache(tmp_path / "cache", 2 * n_bytes)
    for number in (0, 1, 0, 2):
        texts_of(cache, locations[number])
    hashes = hashes_in(cache)
    assert [shard.file.sha256 in hashes for shard in shards] == [True, False, True]
    cache.folder.chmod(0o777)
    with pytest.raises(PermissionError, match="must not be writable by other users"):
        texts_of(cache, locations[2])


def test_open_files_are_not_limited_without_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a limit on open files, any number of shards is allowed."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    monkeypatch.setattr(resource, "getrlimit", lambda _: unlimited)
    shard_files.check_open_files(10**9)
