"""Indexes in object storage: what writers leave at any moment, and what searchers make of it."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import re
import resource
import signal
import subprocess
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import fsspec
import pytest
from attrs import evolve
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex
from relevance_gen.errors import (
    IndexConflictError,
    IndexFormatError,
    IndexUnavailableError,
    InvalidRequestError,
    TimedOutError,
)
from relevance_gen.index import storage
from relevance_gen.serve.services.indexes.index_registry import IndexRegistry
from relevance_gen.serve.services.indexes.served_index import ServedIndex
from relevance_gen.serve.settings import Settings
from relevance_gen.shards import folder, shard_cache
from relevance_gen.shards.object_store import Store
from relevance_gen.shards.shard_cache import ShardCache
from tests.serve.harness import eventually
from tests.serve.objects import object_store
from tests.serve.shards import save_shards

pytest.importorskip("moto", reason="the group objects is not installed")
pytest.importorskip("s3fs", reason="the group objects is not installed")


@pytest.fixture(scope="module")
def store() -> Iterator[subprocess.Popen[str]]:
    """An object store."""
    with object_store() as server:
        yield server


@pytest.fixture(params=["s3", "file", "memory"])
def place(request: pytest.FixtureRequest, store: Any, tmp_path: Path) -> str:
    """An empty folder in each kind of store."""
    within = {
        "s3": f"s3://corpora/{tmp_path.name}",
        "file": f"file://{tmp_path}",
        "memory": f"memory://{tmp_path.name}",
    }
    return within[request.param]


def state(number: int, n_chunks: int = 4) -> list[str]:
    """Return the chunks of a state that can be told from every other."""
    return [f"A cat of state {number} sleeps, number {place}." for place in range(n_chunks)]


def states(index: Any) -> set[str]:
    """Return which states an index is of: one, and all of it."""
    found = [result.chunk_txt for result in index.search("sleeping cat", 50)]
    assert len(found) == len(index)
    return {text.split(" sleeps")[0].rpartition(" ")[2] for text in found}


def read(place: str) -> set[str]:
    """Return the state that a reader finds."""
    manifest = folder.read_manifest(place)
    return states(
        folder.open_index(
            place, manifest, [folder.read_index(place, name) for name in manifest.shards]
        )
    )


# ── Writers ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_of_two_writers_one_is_refused(place: str) -> None:
    """The second of two that began with the same state changes nothing, leaves nothing, and is told what to do."""
    save_shards(place, state(0), 2)
    before = folder.begin(place)
    save_shards(place, state(1), 2)
    left = set(Store(place).names())
    with pytest.raises(
        IndexConflictError, match="load it, make this change again and save it, or save to another"
    ):
        save_shards(place, state(2), 2, before)
    assert read(place) == {"1"}
    assert set(Store(place).names()) == left
    save_shards(place, state(2), 2)
    assert read(place) == {"2"}


def test_one_that_comes_in_the_middle_of_another_is_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing compares and writes in one step, a writer whose unfinished manifest was removed is refused."""
    place, call = f"memory://{tmp_path.name}", Store._call
    save_shards(place, state(0), 1)

    def interrupted(self: Store, verb: str, *args: Any, **kwargs: Any) -> Any:
        if verb == "mv":
            monkeypatch.undo()
            save_shards(place, state(1), 1)
        return call(self, verb, *args, **kwargs)

    monkeypatch.setattr(Store, "_call", interrupted)
    with pytest.raises(IndexConflictError):
        save_shards(place, state(2), 1)
    assert read(place) == {"1"}
    assert not [name for name in Store(place).names() if name.endswith("unfinished")]


def test_changes_of_many_are_all_there(store: Any, tmp_path: Path) -> None:
    """Of writers that count one number up at the same time none loses another's count, in S3 as in a folder."""
    for address in (f"s3://corpora/{tmp_path.name}", str(tmp_path)):

        def count_up(who: int, address: str = address) -> None:
            mine, n_done = Store(address), 0
            while n_done < 3:
                before = content, _ = mine.look("number")
                n_before = int((content or b"0").split()[0])
                n_done += mine.replace("number", b"%d by %d" % (n_before + 1, who), before)

        with ThreadPoolExecutor(3) as pool:
            list(pool.map(count_up, range(3)))
        content, _ = Store(address).look("number")
        assert content is not None
        assert content.startswith(b"9 ")


class Killed(BaseException):
    """What ends a writer as SIGKILL does: nothing of it is done after that."""


def test_a_writer_is_killed_at_each_step(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers find the state before or the one after, whole, and the next change removes what was left."""
    call, n_left = Store._call, 0

    def failing(self: Store, verb: str, *args: Any, **kwargs: Any) -> Any:
        nonlocal n_left
        n_left -= 1
        if n_left < 0:
            raise Killed
        return call(self, verb, *args, **kwargs)

    monkeypatch.setattr(folder, "_KEPT_S", 0)
    save_shards(place, state(0), 2)
    expected, step, is_done = {"0"}, 0, False
    while not is_done:
        step += 1
        with monkeypatch.context() as patch:
            patch.setattr(Store, "_call", failing)
            n_left = step
            try:
                save_shards(place, state(step), 2)
                is_done = True
            except Killed:
                pass
        found = read(place)
        assert found in (expected, {str(step)})
        expected = found
    assert step > 8
    assert expected == {str(step)}
    save_shards(place, state(99), 2)
    assert set(Store(place).names()) <= {"index.json", ".lock", *folder.read_manifest(place).shards}


def test_files_stay_while_readers_may_need_them(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The files of a replaced state are there until their time is over and a change comes."""
    save_shards(place, state(0), 1)
    (first,) = folder.read_manifest(place).shards
    for number in (1, 2):
        save_shards(place, state(number), 1)
        assert first in Store(place).names()
    monkeypatch.setattr(folder, "_KEPT_S", 0)
    save_shards(place, state(3), 1)
    assert len([name for name in Store(place).names() if name.endswith(".shard")]) == 1


def test_an_answer_that_is_lost_and_a_store_without_conditions(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A manifest that was written counts as written, and a store that cannot compare is written to all the same."""
    call = Store._call

    def losing(self: Store, verb: str, *args: Any, **kwargs: Any) -> Any:
        if "IfMatch" in kwargs:
            call(self, verb, *args, **kwargs)
            raise TimedOutError("lost")
        return call(self, verb, *args, **kwargs)

    def lacking(self: Store, verb: str, *args: Any, **kwargs: Any) -> Any:
        if "IfMatch" in kwargs:
            raise OSError(38, "Function not implemented")
        return call(self, verb, *args, **kwargs)

    place = "s3://corpora/lost"
    save_shards(place, state(0), 1)
    for number, way in enumerate((losing, lacking), 1):
        monkeypatch.setattr(Store, "_call", way)
        save_shards(place, state(number), 1)
        assert read(place) == {str(number)}


def test_what_another_program_or_version_wrote(tmp_path: Path) -> None:
    """An `index.json` that this version cannot read is neither an index nor replaced."""
    address, path = f"file://{tmp_path}", tmp_path / "index.json"
    save_shards(address, state(0), 2)
    manifest = json.loads(path.read_bytes())
    outside = {name: one | {"sha256": "../../outside"} for name, one in manifest["shards"].items()}
    others = [manifest | {"format": "x" * 9999}, manifest | {"shards": {"x" * 9999: {}}}]
    others += [
        manifest | {"replaced": replaced} for replaced in ([], 5, None, {"a": "b"}, {"a": None})
    ]
    for wrong in (
        {"architectures": []},
        [],
        manifest | {"format": 4},
        manifest | {"shards": outside},
        *others,
    ):
        path.write_text(json.dumps(wrong))
        for call in (folder.read_manifest, lambda address: save_shards(address, state(2), 2)):
            with pytest.raises(IndexFormatError) as refused:
                call(address)
            assert len(str(refused.value)) < 1000
        assert json.loads(path.read_bytes()) == wrong


@pytest.mark.parametrize("how", ["key", "content"])
def test_a_shard_that_is_named_twice_is_refused(tmp_path: Path, how: str) -> None:
    """Its chunks would be found twice, or what another shard has would be missing."""
    address, path = f"file://{tmp_path}", tmp_path / "index.json"
    save_shards(address, state(0), 2)
    names, text = list(folder.read_manifest(address).shards), path.read_text()
    if how == "key":
        path.write_text(text.replace(names[1], names[0]))
    else:
        manifest = json.loads(text)
        manifest["shards"][names[1]] = manifest["shards"][names[0]]
        path.write_text(json.dumps(manifest))
    with pytest.raises(
        IndexFormatError, match="name each file once" if how == "key" else "none of them twice"
    ):
        folder.read_manifest(address)


def test_shards_without_a_chunk_may_be_alike(tmp_path: Path) -> None:
    """An index of fewer chunks than shards is one."""
    save_shards(f"file://{tmp_path}", state(0, 2), 4)
    assert read(f"file://{tmp_path}") == {"0"}


def test_what_could_not_be_read_is_not_published(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused with what to do, and the state before it stays, alone."""
    save_shards(place, state(0), 2)
    left = set(Store(place).names())
    monkeypatch.setattr(folder, "MAX_SMALL_BYTES", 1000)
    with pytest.raises(InvalidRequestError, match=r"name 9 shards and 2 files .* fewer shards"):
        save_shards(place, state(1, 9), 9)
    assert set(Store(place).names()) == left
    assert read(place) == {"0"}


def test_what_is_being_saved_beside_an_index_stays(tmp_path: Path) -> None:
    """A file of another save is its own, while that runs."""
    with storage.replacing(tmp_path / "dogs.index") as file:
        file.write(b"dogs")
        save_shards(str(tmp_path), state(0), 2)
        save_shards(f"file://{tmp_path}", state(1), 2)
    assert (tmp_path / "dogs.index").read_bytes() == b"dogs"


# ── A cache of shards ────────────────────────────────────────────────────────────────────────────────────────────────


def fetched(cache: ShardCache, address: str) -> list[str]:
    """Open an index by a cache; return its texts."""
    return [chunk.text for chunk in cache.open(address, folder.read_manifest(address))]


def hashes_in(cache: ShardCache) -> set[str]:
    """Return the hashes of what a cache holds."""
    return {hashlib.sha256(path.read_bytes()).hexdigest() for path in cache.folder.glob("*.shard")}


def test_a_shard_is_fetched_once(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By all who open an index at the same time, in blocks; later by nobody, not even for its hash."""
    monkeypatch.setattr(shard_cache, "_BLOCK_BYTES", 1000)
    place, asked, read = "s3://corpora/once", [], Store.read
    save_shards(place, state(0, 20), 2)
    sizes = {name: one.n_bytes for name, one in folder.read_manifest(place).shards.items()}

    def counting(self: Store, name: str, *args: Any) -> bytes:
        asked.append(name)
        return read(self, name, *args)

    monkeypatch.setattr(Store, "read", counting)
    caches = [ShardCache(tmp_path / "cache", 1 << 20) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(fetched, caches, [place] * 4)) == [state(0, 20)] * 4
    assert {name: asked.count(name) for name in sizes} == {
        name: -(-size // 1000) for name, size in sizes.items()
    }
    monkeypatch.setattr(hashlib, "file_digest", None)
    assert fetched(caches[0], place) == state(0, 20)


@pytest.mark.parametrize("how", ["cut", "changed", "gone", "half"])
def test_what_is_not_as_it_was_written_is_fetched_again(tmp_path: Path, how: str) -> None:
    """A shard that was cut, changed or removed, and what a killed process had fetched a half of."""
    place, cache = f"memory://{tmp_path.name}", ShardCache(tmp_path / "cache", 1 << 20)
    save_shards(place, state(0), 1)
    fetched(cache, place)
    (path,) = cache.folder.glob("*.shard")
    content = path.read_bytes()
    match how:
        case "cut":
            os.truncate(path, len(content) // 2)
        case "changed":
            path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        case "gone":
            path.unlink()
        case "half":
            path.write_bytes(content[: len(content) // 2] + bytes(len(content) - len(content) // 2))
            os.utime(path, ns=(0, shard_cache._EMPTY_NS))
    assert fetched(cache, place) == state(0)
    assert path.read_bytes() == content


def test_a_shard_that_is_not_as_it_was_written_is_refused(tmp_path: Path) -> None:
    """It is asked for again each time."""
    place, cache = f"memory://{tmp_path.name}", ShardCache(tmp_path / "cache", 1 << 20)
    save_shards(place, state(0), 1)
    (name,) = folder.read_manifest(place).shards
    content = Store(place).read_all(name)
    for wrong in (content[:100], content + b"x", bytes(len(content))):
        Store(place).write(name, wrong)
        if wrong.startswith(content):
            assert fetched(cache, place) == state(0)  # what follows is not fetched
            next(cache.folder.glob("*.shard")).unlink()
            continue
        for _ in range(2):
            with pytest.raises(IndexFormatError, match="is not as it was written"):
                fetched(cache, place)


@pytest.mark.parametrize("how", ["size", "store", "twice"])
def test_what_is_searched_stays_whatever_else_tells_of_its_shards(tmp_path: Path, how: str) -> None:
    """Another size would cut the file that is mapped; the bytes of another store or file would change it."""
    place, other = f"memory://{tmp_path.name}/one", f"memory://{tmp_path.name}/other"
    cache = ShardCache(tmp_path / "cache", 1 << 20)
    save_shards(place, state(0), 1)
    manifest = folder.read_manifest(place)
    ((name, shard),) = manifest.shards.items()
    used = cache.open(place, manifest)
    before = {path: path.read_bytes() for path in cache.folder.glob("*.shard")}
    if how == "size":
        wrong, where = {name: evolve(shard, n_bytes=1)}, place
    else:
        where = other if how == "store" else place
        wrong = {name: shard} if how == "store" else {folder.new_files(1)[0]: shard}
        Store(where).write(next(iter(wrong)), bytes(shard.n_bytes))
        for path in before:  # another began to fetch it before it was whole
            os.utime(path, ns=(0, shard_cache._EMPTY_NS))
    with pytest.raises(IndexFormatError, match="is not as it was written"):
        cache.open(where, evolve(manifest, shards=wrong))
    assert {path: path.read_bytes() for path in before} == before
    assert states(used) == {"0"}


def test_shards_of_another_index_are_refused(tmp_path: Path) -> None:
    """Though their hashes are those that the manifest tells; and what was opened last is still known."""
    place, cache = f"memory://{tmp_path.name}", ShardCache(tmp_path / "cache", 1 << 20)
    save_shards(place, state(0), 2)
    manifest = folder.read_manifest(place)
    fetched(cache, place)
    for wrong in (evolve(manifest, n_positions=3), evolve(manifest, weighting="cosine")):
        with pytest.raises(IndexFormatError, match="is not the file that belongs to this index"):
            cache.open(place, wrong)
    found = cache.open_last(place)
    assert found is not None
    last, index, opened_s = found
    assert last == manifest
    assert states(index) == {"0"}
    assert cache.open_last(place) is not None
    assert cache._copy(place).stat().st_mtime == opened_s < time.time()
    next(cache.folder.glob("*.shard")).unlink()
    assert cache.open_last(place) is None


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=12))
def test_there_is_never_more_than_there_is_room_for(steps: list[tuple[int, bool]]) -> None:
    """Whatever is opened and let go of, in whatever order: what is used stays, and what does not fit is refused."""
    places = [f"memory://room/{number}" for number in range(4)]
    for number, place in enumerate(places):
        if not Store(place).names():
            save_shards(place, state(number), 1)
    sizes = [
        sum(one.n_bytes for one in folder.read_manifest(place).shards.values()) for place in places
    ]
    max_bytes = max(sizes) * 2
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        cache, held = ShardCache(Path(name), max_bytes), dict[int, ChunkIndex]()
        for number, stays in steps:
            manifest = folder.read_manifest(places[number])
            if sum(sizes[one] for one in {*held, number}) > max_bytes:
                with pytest.raises(IndexUnavailableError, match="--shard-cache-bytes"):
                    cache.open(places[number], manifest)
            else:
                held[number] = cache.open(places[number], manifest)
                assert [chunk.text for chunk in held[number]] == state(number)
                if not stays:
                    del held[number]
            assert sum(path.stat().st_size for path in cache.folder.glob("*.shard")) <= max_bytes
            hashes = hashes_in(cache)
            for one in held:
                assert hashes >= {
                    shard.sha256 for shard in folder.read_manifest(places[one]).shards.values()
                }


@pytest.mark.parametrize("scheme", ["memory", "file"])
def test_what_has_no_room_opens_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scheme: str
) -> None:
    """An index of very many shards is refused by its name, before it takes what the process needs for others."""
    monkeypatch.setenv("RELEVANCE_GEN_CACHE", str(tmp_path / "cache"))
    place, opened, open_file = f"{scheme}://{tmp_path}/saved", list[Any](), os.open
    save_shards(place, state(0), 2)
    one = looked(ServedIndex("cats", place, Settings()))
    manifest = folder.read_manifest(place)
    names = [f"{number:016x}-00000.shard" for number in range(100_000)]
    many = {name: folder.SavedShard(1, 1, f"{number:064x}") for number, name in enumerate(names)}
    folder.publish(place, evolve(manifest, shards=many), folder.begin(place))

    def counting(path: Any, *args: Any, **kwargs: Any) -> int:
        opened.append(path)
        return open_file(path, *args, **kwargs)

    n_left = []
    for n_opened in (0, 3):
        with ExitStack() as files:
            for _ in range(n_opened):
                files.enter_context((tmp_path / "any").open("wb"))
            with pytest.raises(IndexUnavailableError) as refused:
                shard_cache.check_files(evolve(manifest, shards=many))
        n_left.append(
            int(re.findall(r"may open ([\d,]+) more", str(refused.value))[0].replace(",", ""))
        )
    assert n_left[0] - n_left[1] == 3
    monkeypatch.setattr(os, "open", counting)
    assert states(looked(one).now()) == {"0"}
    assert re.search(
        "100,000 shards take 2 open files each.*ulimit -n", str(one.described()["reason"])
    )
    monkeypatch.setattr(resource, "getrlimit", lambda _: (10**6, 10**6))
    with pytest.raises(IndexUnavailableError, match="there is room for 99,999 bytes"):
        ShardCache(tmp_path / "small", 99_999).open(place, evolve(manifest, shards=many))
    assert len(opened) < 100
    assert not [*(tmp_path / "small").glob("*.shard")]


def test_what_was_used_last_stays(tmp_path: Path) -> None:
    """Of what nobody uses, that which was opened last; and a folder that others may change is not used."""
    places = [f"memory://{tmp_path.name}/{number}" for number in range(3)]
    for number, place in enumerate(places):
        save_shards(place, state(number), 1)
    n_bytes = max(
        one.n_bytes for place in places for one in folder.read_manifest(place).shards.values()
    )
    cache = ShardCache(tmp_path / "cache", 2 * n_bytes)
    for number in (0, 1, 0, 2):
        fetched(cache, places[number])
    left = hashes_in(cache)
    hashes = [one.sha256 for place in places for one in folder.read_manifest(place).shards.values()]
    assert [one in left for one in hashes] == [True, False, True]
    cache.folder.chmod(0o777)
    with pytest.raises(PermissionError, match="others may write"):
        fetched(cache, places[2])


# ── Searchers ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def searcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ServedIndex]:
    """Makes what a process of this machine offers."""
    monkeypatch.setenv("RELEVANCE_GEN_CACHE", str(tmp_path / "of-this-machine"))
    return lambda place: ServedIndex("cats", place, Settings())


def looked(one: ServedIndex) -> ServedIndex:
    one.look().result(60)
    return one


def test_readers_see_whole_states(store: Any, searcher: Callable[[str], ServedIndex]) -> None:
    """While states replace each other, every answer of every searcher is of one of them, and in the end of the last."""
    place, ended = "s3://corpora/whole", threading.Event()
    save_shards(place, state(0), 3)

    def ask() -> int:
        one, seen = searcher(place), set[str]()
        while not ended.is_set():
            (found,) = states(looked(one).now())
            seen.add(found)
        assert states(looked(one).now()) == {"5"}
        return len(seen)

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            for number in range(1, 6):
                save_shards(place, state(number), 3)
        finally:
            ended.set()
        assert all(one.result() for one in asking)


def test_a_store_that_is_away(
    searcher: Callable[[str], ServedIndex], tmp_path: Path, caplog: Any
) -> None:
    """What was opened is searched, by a new process too; it is told since when; what was never opened is refused."""
    place, away = f"memory://{tmp_path.name}", pytest.MonkeyPatch()
    save_shards(place, state(0), 2)
    one = looked(searcher(place))
    assert one.described() == {"name": "cats", "kind": "shards", "state": "ready", "num_chunks": 4}

    def lost(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    away.setattr(Store, "_call", lost)
    try:
        for again in (looked(looked(one)), looked(searcher(place))):
            assert states(again.now()) == {"0"}
            told = again.described()
            assert (told["state"], told["reason"]) == ("ready", "Connection refused")
            assert str(told["store_unreachable_since"]).endswith("+00:00")
            assert again.is_behind
        assert caplog.text.count("stays as it was") == 2
        with pytest.raises(IndexUnavailableError, match="Connection refused"):
            looked(searcher(f"{place}/other")).now()
    finally:
        away.undo()
    save_shards(place, state(1), 2)
    assert states(looked(one).now()) == {"1"}
    assert not one.is_behind
    Store(place).remove(["index.json"])
    looked(one)
    opened: list[Any] = []
    away.setattr(shard_cache.ShardCache, "open_last", lambda *args: opened.append(args))
    try:
        with pytest.raises(IndexUnavailableError, match="holds no saved index"):
            looked(one).now()
        assert not opened, "what was withdrawn is not opened again"
    finally:
        away.undo()


def test_a_change_that_cannot_be_had(
    searcher: Callable[[str], ServedIndex], tmp_path: Path
) -> None:
    """If a file is missing, or there is no room, the state before it is searched, and why is told."""
    place = f"memory://{tmp_path.name}"
    save_shards(place, state(0), 2)
    one = looked(searcher(place))
    save_shards(place, state(1), 2)
    (name, *_) = folder.read_manifest(place).shards
    content = Store(place).read_all(name)
    Store(place).remove([name])
    assert states(looked(one).now()) == {"0"}
    assert one.is_behind
    Store(place).write(name, content)
    assert states(looked(one).now()) == {"1"}
    small = ServedIndex("cats", place, Settings(shard_cache_bytes=1000))
    with pytest.raises(IndexUnavailableError, match="there is room for 1,000 bytes"):
        looked(small).now()
    none = ServedIndex("cats", place, Settings(shard_cache_bytes=0))
    assert states(looked(none).now()) == {"1"}


@pytest.mark.parametrize("room", [1 << 20, 0])
def test_a_damaged_shard_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, room: int
) -> None:
    """It is not fetched at each look, but after a pause that grows, until it is repaired."""
    place, n_read, call, now = (
        f"memory://{tmp_path.name}/{room}",
        Counter[str](),
        Store._call,
        [0.0],
    )
    monkeypatch.setenv("RELEVANCE_GEN_CACHE", str(tmp_path / "cache"))
    save_shards(place, state(0), 2)
    one = looked(ServedIndex("cats", place, Settings(shard_cache_bytes=room)))
    save_shards(place, state(1), 2)
    whole, name = folder.read_manifest(place).shards
    content = Store(place).read_all(name)
    Store(place).write(name, content[:-1] + bytes([content[-1] ^ 1]))

    def counting(self: Store, verb: str, path: str, *args: Any, **kwargs: Any) -> Any:
        n_read[path.rpartition("/")[2]] += verb == "cat_file"
        return call(self, verb, path, *args, **kwargs)

    monkeypatch.setattr(Store, "_call", counting)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    for at_s, n_wanted in (
        (1, 1),
        (2, 1),
        (60, 1),
        (62, 2),
        (180, 2),
        (183, 3),
        (90_000, 4),
        (90_479, 4),
    ):
        now[0] = at_s
        assert states(looked(one).now()) == {"0"}
        assert n_read[name] == n_wanted
        assert name in str(one.described()["reason"])
    assert caplog.text.count("stays as it was") == 1
    assert n_read[whole] == (1 if room else 4)
    Store(place).write(name, content)
    now[0] = 200_000
    assert states(looked(one).now()) == {"1"}


def test_a_damaged_file_is_left_alone_for_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read once, until it is another."""
    path, loads, load = tmp_path / "cats.index", list[Any](), ChunkIndex.load

    def counting(*args: Any, **kwargs: Any) -> ChunkIndex:
        loads.append(args)
        return load(*args, **kwargs)

    monkeypatch.setattr(ChunkIndex, "load", counting)
    ChunkIndex(state(0)).save(path)
    content = path.read_bytes()
    path.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    one = ServedIndex("cats", str(path), Settings())
    for _ in range(3):
        with pytest.raises(IndexUnavailableError, match="checksum does not match"):
            looked(one).now()
    assert len(loads) == 1
    path.write_bytes(content)
    assert states(looked(one).now()) == {"0"}


def test_a_store_that_hangs(
    store: subprocess.Popen[str],
    searcher: Callable[[str], ServedIndex],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look ends within its limit, and nobody waits for the next one."""
    place = "s3://corpora/hangs"
    save_shards(place, state(0), 1)
    one = looked(searcher(place))
    monkeypatch.setattr("relevance_gen.shards.object_store._LIMIT_S", 0.5)
    store.send_signal(signal.SIGSTOP)
    try:
        assert "did not answer within" in str(looked(one).described()["reason"])
        assert states(one.now()) == {"0"}
    finally:
        store.send_signal(signal.SIGCONT)


def test_whoever_starts_while_a_store_hangs(
    store: subprocess.Popen[str],
    searcher: Callable[[str], ServedIndex],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is on this machine is searched at once; of what is not, questions learn soon that nobody answers."""
    place, settings = (
        "s3://corpora/starts",
        Settings(index=(("cats", "s3://corpora/starts/other"),)),
    )
    save_shards(place, state(0), 1)
    looked(searcher(place))
    monkeypatch.setattr("relevance_gen.serve.services.indexes.served_index.PATIENCE_S", 0.1)
    monkeypatch.setattr("relevance_gen.serve.services.indexes.index_registry.PATIENCE_S", 0.1)
    store.send_signal(signal.SIGSTOP)
    try:
        one, cold = searcher(place), IndexRegistry(settings)
        look = one.look()
        assert eventually(lambda: isinstance(one.found, ChunkIndex))
        assert not look.done()
        assert states(one.now()) == {"0"}
        assert eventually(lambda: one.is_behind)
        assert one.described()["state"] == "ready"
        cold.begin()
        for _ in range(2):
            waiting = cold.look("cats", "")
            if waiting is not None:
                asyncio.run(waiting())
            with pytest.raises(IndexUnavailableError, match="its store has not answered yet"):
                cold.ask("cats", "", lambda index, _: len(index))  # type: ignore[arg-type]
        assert waiting is None
    finally:
        store.send_signal(signal.SIGCONT)


def test_a_bucket_is_not_made(store: Any) -> None:
    """Saving where there is no bucket fails, as whoever has misspelt its name will want."""
    with pytest.raises(OSError, match="bucket"):
        save_shards("s3://corpra/typo", state(0), 1)
    assert "corpra" not in Store("s3://corpora")._files.ls("")


class Hanging(MemoryFileSystem):
    """A store whose package never gives up."""

    protocol = "hanging"
    released = threading.Event()
    """While it is not set, every call hangs."""

    def __init__(self, **options: Any) -> None:
        self.released.wait()
        super().__init__(**options)

    def cat_file(self, *args: Any, **kwargs: Any) -> bytes:
        """Return what is in a file, some day."""
        self.released.wait()
        return bytes(super().cat_file(*args, **kwargs))


@pytest.mark.parametrize("is_known", [False, True])
def test_a_store_that_hangs_for_ever(
    searcher: Callable[[str], ServedIndex], monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Each look ends within its limit though the store's package has none, and few threads are left behind."""
    place = f"hanging://{is_known}"
    fsspec.register_implementation("hanging", Hanging, clobber=True)
    monkeypatch.setattr("relevance_gen.shards.object_store._LIMIT_S", 0.05)
    Hanging.released.set()
    save_shards(place, state(0), 2)
    one = looked(searcher(place)) if is_known else searcher(place)
    monkeypatch.setattr(Hanging, "cachable", is_known)
    Hanging.released.clear()
    n_threads = threading.active_count()
    try:
        for _ in range(30):
            looked(one)
        assert threading.active_count() <= n_threads + 16
        assert "did not answer within" in str(one.described()["reason"])
        assert isinstance(one.found, ChunkIndex) == is_known
    finally:
        Hanging.released.set()
    assert eventually(lambda: threading.active_count() <= n_threads)
    assert states(looked(one).now()) == {"0"}
    assert not one.is_behind


def test_an_address_that_nothing_can_open() -> None:
    """The error names it."""
    with pytest.raises(InvalidRequestError, match="must be an address that fsspec can open"):
        folder.read_manifest("nothing://there")
    with pytest.raises(InvalidRequestError, match="it names no place"):
        folder.read_manifest("s3://")
