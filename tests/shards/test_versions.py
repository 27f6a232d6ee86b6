"""Tests of publishing versions: atomic for readers, safe with several writers and when writers are killed."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from relevance_gen.errors import (
    IndexConflictError,
    IndexFormatError,
    InvalidRequestError,
    TimedOutError,
)
from relevance_gen.index import storage
from relevance_gen.shards import versions as versions_module
from relevance_gen.shards.object_store import ObjectStore, as_address
from relevance_gen.shards.sharded_index import ShardedIndex
from relevance_gen.shards.versions import IndexVersion, VersionStore
from tests.serve.shards import save_shards, write_shards
from tests.shards.states import read_states, state


def names_at(location: str) -> set[str]:
    return set(ObjectStore(location).list_names())


def test_publish_after_another_writer_raises_conflict(location: str) -> None:
    """The second of two writers that began with the same version changes nothing."""
    save_shards(location, state(0), 2)
    versions = VersionStore(as_address(location))
    newest = versions.begin()
    save_shards(location, state(1), 2)
    assert newest.version is not None
    shards = tuple(write_shards(location, state(2), 2))
    names = names_at(location)
    with pytest.raises(IndexConflictError, match="was changed by another writer"):
        versions.publish(evolve(newest.version, number=2, shards=shards), newest)
    assert read_states(location) == {"1"}
    assert names_at(location) == names


def test_publish_during_another_publish_raises_conflict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a store without conditional writes, the writer whose temporary file was removed fails."""
    location, call = f"memory://{tmp_path.name}", ObjectStore._call
    first = save_shards(location, state(0), 1)
    versions = VersionStore(location)
    newest = versions.begin()

    def interrupted(self: ObjectStore, method: str, *args: Any, **kwargs: Any) -> Any:
        if method == "mv":
            monkeypatch.undo()
            ObjectStore(location).remove([args[0].rpartition("/")[2]])
        return call(self, method, *args, **kwargs)

    monkeypatch.setattr(ObjectStore, "_call", interrupted)
    with pytest.raises(IndexConflictError):
        versions.publish(evolve(first, number=2), newest)
    assert read_states(location) == {"0"}


def test_replace_by_several_writers_loses_no_update(store: Any, tmp_path: Path) -> None:
    """Three threads that increment one number do not lose an increment, in S3 and in a folder."""
    for address in (f"s3://corpora/{tmp_path.name}", str(tmp_path)):

        def increment(writer: int, address: str = address) -> None:
            files, n_done = ObjectStore(address), 0
            while n_done < 3:
                before = files.read_state("number")
                number = int((before.content or b"0").split()[0])
                n_done += files.replace("number", b"%d by %d" % (number + 1, writer), before)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(increment, range(3)))
        content = ObjectStore(address).read_state("number").content
        assert content is not None
        assert content.startswith(b"9 ")


class Killed(BaseException):
    """Ends a writer as SIGKILL does: it does nothing after that."""


def test_writer_killed_at_each_step_leaves_a_complete_version(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Readers find the version before or after, and its files are swept later."""
    call, write, n_left = ObjectStore._call, ObjectStore.write, 0

    def count_down() -> None:
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            raise Killed

    def failing_call(self: ObjectStore, method: str, *args: Any, **kwargs: Any) -> Any:
        count_down()
        return call(self, method, *args, **kwargs)

    def failing_write(self: ObjectStore, *args: Any, **kwargs: Any) -> None:
        count_down()
        write(self, *args, **kwargs)

    monkeypatch.setattr(versions_module, "_RETENTION_S", 0)
    monkeypatch.setattr(versions_module, "_UNKNOWN_RETENTION_S", 0)
    monkeypatch.setattr(versions_module, "_SWEEP_INTERVAL", 1)
    save_shards(location, state(0), 2)
    expected, step, is_done = {"0"}, 0, False
    while not is_done:
        step += 1
        with monkeypatch.context() as patch:
            patch.setattr(ObjectStore, "_call", failing_call)
            patch.setattr(ObjectStore, "write", failing_write)
            n_left = step
            try:
                save_shards(location, state(step), 2)
                is_done = True
            except Killed:
                pass
        found = read_states(location)
        assert found in (expected, {str(step)})
        expected = found
    assert step > 5
    assert expected == {str(step)}
    for _ in range(2):  # the first one finds the files, the second one removes them
        version = save_shards(location, state(99), 2)
    needed = {"index.json", ".lock", version.name, *version.files}
    assert {name for name in names_at(location) if not name.startswith("index.json.")} <= needed


def test_replaced_files_remain_for_readers(location: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files of a replaced version are removed by a change after the retention time."""
    first = save_shards(location, state(0), 1)
    for number in (1, 2):
        save_shards(location, state(number), 1)
        assert names_at(location) >= {first.name, *first.files}
    monkeypatch.setattr(versions_module, "_RETENTION_S", 0)
    save_shards(location, state(3), 1)
    assert len([name for name in names_at(location) if name.endswith(".shard")]) == 1


def test_unpublished_files_of_others_are_not_removed(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that another writer is about to publish survives the sweep."""
    monkeypatch.setattr(versions_module, "_SWEEP_INTERVAL", 1)
    monkeypatch.setattr(versions_module, "_RETENTION_S", 0)
    index = ShardedIndex.build(state(0), location)
    append, other = ShardedIndex.add, ShardedIndex.open(location)
    build = index._shard_writer.build

    def build_slowly(*args: Any) -> Any:
        shard = build(*args)
        for number in range(3):
            append(other, [f"cat {number}"])
        return shard

    monkeypatch.setattr(type(index._shard_writer), "build", lambda _, *args: build_slowly(*args))
    monkeypatch.setattr(other, "_shard_writer", _Plain(build))
    assert index.add(["late cat"]) == range(7, 8)
    assert index[7].text == "late cat"
    assert ShardedIndex.open(location)[7].text == "late cat"


class _Plain:
    def __init__(self, build: Any) -> None:
        self.build = build


def test_lost_response_and_missing_conditions(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pointer whose response was lost counts as written; a store without conditional writes works."""
    call = ObjectStore._call

    def losing(self: ObjectStore, method: str, *args: Any, **kwargs: Any) -> Any:
        result = call(self, method, *args, **kwargs)
        if "IfMatch" in kwargs:
            raise TimedOutError("lost")
        return result

    def lacking(self: ObjectStore, method: str, *args: Any, **kwargs: Any) -> Any:
        if "IfMatch" in kwargs:
            raise OSError(38, "Function not implemented")
        return call(self, method, *args, **kwargs)

    location = "s3://corpora/lost"
    save_shards(location, state(0), 1)
    for number, failing in enumerate((losing, lacking), 1):
        monkeypatch.setattr(ObjectStore, "_call", failing)
        save_shards(location, state(number), 1)
        assert read_states(location) == {str(number)}


def resealed(content: bytes, changes: dict[str, Any]) -> bytes:
    """Return a manifest with other values and a correct hash."""
    parsed = json.loads(content)
    del parsed["sha256"], parsed["format"]
    return versions_module._seal(parsed | changes)


def test_foreign_manifests_are_neither_read_nor_replaced(tmp_path: Path) -> None:
    """An `index.json` of another program or format is refused, and a change leaves it as it is."""
    path = tmp_path / "index.json"
    save_shards(str(tmp_path), state(0), 2)
    pointer = path.read_bytes()
    wrong_values = {"format": "x" * 9999}, {"version": "../../outside.version"}, {"version": 7}
    foreign = [b"no JSON", b"[]", b'{"architectures": []}', b'{"format": 3, "shards": {}}']
    foreign += [resealed(pointer, changes) for changes in wrong_values]
    foreign.append(resealed(pointer, {"version": f"{2:08}-{7:016x}.version"}))
    for content in foreign:
        path.write_bytes(content)
        for call in (ShardedIndex.open, lambda location: save_shards(location, state(2), 2)):
            with pytest.raises(IndexFormatError) as refused:
                call(str(tmp_path))
            assert len(str(refused.value)) < 1000
        assert path.read_bytes() == content


def shard_changes(version: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield values of a version that contradict each other."""
    first, second = version["shards"]
    yield {"shards": []}
    yield {"shards": [first, first]}
    yield {"shards": [second, first]}
    yield {"shards": [first | {"first": 3}, second]}
    yield {"shards": [first, second | {"file": first["file"]}]}
    yield {"shards": [first, second | {"file": second["file"] | {"name": "../outside"}}]}
    yield {"shards": [first, second | {"norm_sum": "0x1"}]}
    yield {"shards": 7}
    yield {"n_positions": 3}
    yield {"number": 7}
    yield {"weighting": "bm25"}
    yield {"replaced": []}


def test_inconsistent_versions_are_refused(tmp_path: Path) -> None:
    """A version with a correct hash whose values contradict each other is refused."""
    version = save_shards(str(tmp_path), state(0), 2)
    path = tmp_path / version.name
    content = path.read_bytes()
    for changes in shard_changes(json.loads(content)):
        path.write_bytes(resealed(content, changes))
        with pytest.raises(IndexFormatError):
            ShardedIndex.open(tmp_path)
    path.write_bytes(content)
    assert read_states(str(tmp_path)) == {"0"}


@pytest.mark.parametrize("n_damages", [100, pytest.param(750, marks=pytest.mark.soak)])
def test_damaged_manifests_are_refused(tmp_path: Path, n_damages: int) -> None:
    """No flipped bit, truncation or exchange of bytes in a manifest is accepted."""
    version = save_shards(str(tmp_path), [{"text": "a cat", "title": "b"}, "cats"], 2)
    draw = random.Random(0)  # noqa: S311
    for path in (tmp_path / "index.json", tmp_path / version.name):
        content = path.read_bytes()
        for _ in range(n_damages):
            damaged = bytearray(content)
            kind = draw.choice(["bit", "cut", "swap"])
            start, stop = sorted(draw.sample(range(len(content)), 2))
            if kind == "bit":
                damaged[start] ^= 1 << draw.randrange(8)
            elif kind == "cut":
                del damaged[start:stop]
            else:
                damaged[start], damaged[stop] = damaged[stop], damaged[start]
            if damaged == content:
                continue
            path.write_bytes(damaged)
            with pytest.raises(IndexFormatError):
                ShardedIndex.open(tmp_path)
        path.write_bytes(content)
    assert len(ShardedIndex.open(tmp_path)) == 2


def test_version_with_too_many_shards_is_not_published(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version file that readers would not accept is refused with a remedy; the version before remains."""
    save_shards(location, state(0), 2)
    monkeypatch.setattr(versions_module, "MAX_SMALL_BYTES", 1000)
    with pytest.raises(InvalidRequestError, match=r"to name 9 shards.*compact the index"):
        save_shards(location, state(1, 9), 9)
    assert read_states(location) == {"0"}


def test_files_of_other_programs_remain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Other files in the folder, and files that other programs are writing, are not removed."""
    monkeypatch.setattr(versions_module, "_SWEEP_INTERVAL", 1)
    monkeypatch.setattr(versions_module, "_UNKNOWN_RETENTION_S", 0)
    (tmp_path / "notes.txt").touch()
    with storage.replacing(tmp_path / "dogs.index") as file:
        file.write(b"dogs")
        for number in range(3):
            save_shards(str(tmp_path), state(number), 2)
    assert (tmp_path / "dogs.index").read_bytes() == b"dogs"
    assert (tmp_path / "notes.txt").exists()


def test_reader_never_returns_to_an_older_version(tmp_path: Path) -> None:
    """If the store shows an older `index.json`, a reader keeps the newer version; another index is accepted."""
    index = ShardedIndex.build(state(0), tmp_path)
    reader = ShardedIndex.open(tmp_path)
    old = (tmp_path / "index.json").read_bytes()
    index.add(["a newer cat"])
    assert reader.refresh()
    (tmp_path / "index.json").write_bytes(old)
    assert not reader.refresh()
    assert len(reader) == 5
    (tmp_path / "index.json").unlink()
    ShardedIndex.build(state(1), tmp_path)
    assert reader.refresh()
    assert len(reader) == 4


def test_missing_bucket_is_not_created(store: Any) -> None:
    """Building in a bucket that does not exist fails."""
    with pytest.raises(OSError, match="bucket"):
        save_shards("s3://corpra/typo", state(0), 1)
    assert "corpra" not in ObjectStore("s3://corpora")._file_system.ls("")


def test_unknown_address_is_refused() -> None:
    """The error names the address that cannot be opened."""
    with pytest.raises(InvalidRequestError, match="must be an address that fsspec can open"):
        ShardedIndex.open("nothing://there")
    with pytest.raises(InvalidRequestError, match="with a path after"):
        ShardedIndex.open("s3://")
    with pytest.raises(InvalidRequestError, match="location must be the path of a folder"):
        ShardedIndex.open("")


def test_version_describes_all_files(tmp_path: Path) -> None:
    """A version names every file that it needs and no other."""
    index = ShardedIndex.build([{"text": "cats", "title": "pets"}, "dogs"], tmp_path)
    version: IndexVersion = index._version
    names = names_at(str(tmp_path))
    assert names == {"index.json", ".lock", version.name, *version.files}
