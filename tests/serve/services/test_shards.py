"""Tests of sharded indexes that the server offers: whole versions, outages of the store, and damaged files."""

from __future__ import annotations

import asyncio
import random
import resource
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from relevance_gen import ChunkIndex
from relevance_gen.errors import IndexUnavailableError
from relevance_gen.serve.services.indexes.index_registry import IndexRegistry
from relevance_gen.serve.services.indexes.served_index import ServedIndex
from relevance_gen.serve.settings import Settings
from relevance_gen.shards import shard_cache
from relevance_gen.shards.object_store import ObjectStore
from relevance_gen.shards.sharded_index import ShardedIndex
from tests.serve.harness import eventually
from tests.serve.objects import object_store
from tests.serve.shards import save_shards
from tests.shards.states import state, states

pytest.importorskip("moto", reason="the group objects is not installed")
pytest.importorskip("s3fs", reason="the group objects is not installed")


@pytest.fixture(scope="module")
def store() -> Iterator[subprocess.Popen[bytes]]:
    """Run a server with the interface of S3."""
    with object_store() as server:
        yield server


@pytest.fixture
def searcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ServedIndex]:
    """Creates the served indexes of a process."""
    monkeypatch.setenv("RELEVANCE_GEN_CACHE", str(tmp_path / "of-this-machine"))
    return lambda place: ServedIndex("cats", place, Settings())


def looked(one: ServedIndex) -> ServedIndex:
    one.refresh().result(60)
    return one


def test_searches_see_complete_versions(store: Any, searcher: Callable[[str], ServedIndex]) -> None:
    """While versions replace each other, every result is from a single version, and finally from the last."""
    place, ended = "s3://corpora/whole", threading.Event()
    save_shards(place, state(0), 3)

    def ask() -> int:
        one, seen = searcher(place), set[str]()
        while not ended.is_set():
            (found,) = states(looked(one).searchable())
            seen.add(found)
        assert states(looked(one).searchable()) == {"5"}
        return len(seen)

    with ThreadPoolExecutor(2) as pool:
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            for number in range(1, 6):
                save_shards(place, state(number), 3)
        finally:
            ended.set()
        assert all(future.result() for future in asking)


def test_full_disk_keeps_the_opened_version(
    searcher: Callable[[str], ServedIndex], tmp_path: Path
) -> None:
    """If the cache cannot be written, the opened version is searched, and the new version when it can."""
    place = f"memory://{tmp_path.name}"
    save_shards(place, state(0), 2)
    one = looked(searcher(place))
    save_shards(place, state(1), 2)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, limits[1]))
    try:
        assert states(looked(one).searchable()) == {"0"}
        assert one.is_stale
        assert "File too large" in str(one.describe()["reason"])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert states(looked(one).searchable()) == {"1"}
    assert not one.is_stale


class FailingStore:
    """Lets a third of all calls of a store fail in one of several ways.

    Attributes:
        n_failures: the number of failures, by kind.
    """

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.n_failures: Counter[str] = Counter()
        self._call = ObjectStore._call
        self._draw = random.Random(0)  # noqa: S311
        patch.setattr(ObjectStore, "_call", lambda store, *args, **kw: self._fail(store, args, kw))

    def _fail(self, store: ObjectStore, args: Any, kwargs: Any) -> Any:
        kinds = ["refused", "lost response", "cut", "changed"]
        kind = self._draw.choice(kinds) if self._draw.random() < 1 / 3 else None
        if kind == "refused":
            self.n_failures[kind] += 1
            raise ConnectionRefusedError(111, "Connection refused")
        result = self._call(store, *args, **kwargs)
        if kind == "lost response":
            self.n_failures[kind] += 1
            raise ConnectionResetError(104, "Connection reset by peer")
        if kind is None or not isinstance(result, bytes) or not result:
            return result
        self.n_failures[kind] += 1
        middle = self._draw.randrange(len(result))
        if kind == "cut":
            return result[:middle]
        return result[:middle] + bytes([result[middle] ^ 1]) + result[middle + 1 :]


@pytest.mark.parametrize("n_rewrites", [8, pytest.param(150, marks=pytest.mark.soak)])
def test_rewrites_in_a_failing_store_give_whole_versions_in_order(
    store: Any, searcher: Callable[[str], ServedIndex], n_rewrites: int
) -> None:
    """If a third of all calls of the store fail, each result is from one version, and never from an earlier one.

    While a damaged manifest is read, searches are refused.
    """
    place, ended = f"s3://corpora/failing-{n_rewrites}", threading.Event()
    save_shards(place, state(0), 3)
    one = looked(searcher(place))

    def ask() -> int:
        numbers = [0]
        while not ended.is_set():
            with suppress(IndexUnavailableError):  # while a damaged manifest was read
                (found,) = states(looked(one).searchable())
                assert int(found) >= numbers[-1]
                numbers.append(int(found))
        return len(numbers)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        failing = FailingStore(patch)
        asking = [pool.submit(ask) for _ in range(2)]
        try:
            for number in range(1, n_rewrites + 1):
                with suppress(OSError):
                    save_shards(place, state(number), 3)
        finally:
            ended.set()
        assert all(future.result() > 2 for future in asking)
    assert len(failing.n_failures) == 4
    save_shards(place, state(n_rewrites + 1), 3)
    assert states(looked(one).searchable()) == {str(n_rewrites + 1)}


def test_unavailable_store_serves_opened_version(
    searcher: Callable[[str], ServedIndex], tmp_path: Path, caplog: Any
) -> None:
    """An opened version is searched, by a new process too since the last contact; an index that was never opened is unavailable."""
    place, away = f"memory://{tmp_path.name}", pytest.MonkeyPatch()
    save_shards(place, state(0), 2)
    one = looked(searcher(place))
    assert one.describe() == {"name": "cats", "kind": "shards", "state": "ready", "num_chunks": 4}

    def lost(*_: Any, **__: Any) -> Any:
        raise ConnectionRefusedError(111, "Connection refused")

    away.setattr(ObjectStore, "_call", lost)
    try:
        for again in (looked(looked(one)), looked(searcher(place))):
            assert states(again.searchable()) == {"0"}
            description = again.describe()
            assert (description["state"], description["reason"]) == ("ready", "Connection refused")
            assert str(description["store_unreachable_since"]).endswith("+00:00")
            assert again.is_stale
        assert caplog.text.count("the loaded version stays in use") == 2
        with pytest.raises(IndexUnavailableError, match="Connection refused"):
            looked(searcher(f"{place}/other")).searchable()
    finally:
        away.undo()
    save_shards(place, state(1), 2)
    assert states(looked(one).searchable()) == {"1"}
    assert not one.is_stale
    ObjectStore(place).remove(["index.json"])
    looked(one)
    opened: list[Any] = []
    away.setattr(shard_cache.ShardCache, "last_version", lambda *args: opened.append(args))
    try:
        with pytest.raises(IndexUnavailableError, match="holds no saved index"):
            looked(one).searchable()
        assert not opened, "what was withdrawn is not opened again"
    finally:
        away.undo()


def test_unreadable_change_keeps_previous_version(
    searcher: Callable[[str], ServedIndex], tmp_path: Path
) -> None:
    """If a file is missing or the cache is full, the previous version is searched, and the reason is reported."""
    place = f"memory://{tmp_path.name}"
    save_shards(place, state(0), 2)
    one = looked(searcher(place))
    save_shards(place, state(1), 2)
    name = ShardedIndex.open(place)._version.shards[0].file.name
    content = ObjectStore(place).read_all(name)
    ObjectStore(place).remove([name])
    assert states(looked(one).searchable()) == {"0"}
    assert one.is_stale
    ObjectStore(place).write(name, content)
    assert states(looked(one).searchable()) == {"1"}
    small = ServedIndex("cats", place, Settings(shard_cache_bytes=1000))
    with pytest.raises(IndexUnavailableError, match="there is room for 1,000 bytes"):
        looked(small).searchable()
    none = ServedIndex("cats", place, Settings(shard_cache_bytes=0))
    assert states(looked(none).searchable()) == {"1"}


@pytest.mark.parametrize("room", [1 << 20, 0])
def test_damaged_shard_is_loaded_with_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: Any, room: int
) -> None:
    """It is not fetched at each look, but after a pause that grows, until it is repaired."""
    place, n_read, call, now = (
        f"memory://{tmp_path.name}/{room}",
        Counter[str](),
        ObjectStore._call,
        [0.0],
    )
    monkeypatch.setenv("RELEVANCE_GEN_CACHE", str(tmp_path / "cache"))
    save_shards(place, state(0), 2)
    one = looked(ServedIndex("cats", place, Settings(shard_cache_bytes=room)))
    save_shards(place, state(1), 2)
    shards = ShardedIndex.open(place)._version.shards
    whole, name = [shard.file.name for shard in shards]
    content = ObjectStore(place).read_all(name)
    ObjectStore(place).write(name, content[:-1] + bytes([content[-1] ^ 1]))

    def counting(self: ObjectStore, verb: str, path: str, *args: Any, **kwargs: Any) -> Any:
        n_read[path.rpartition("/")[2]] += verb == "cat_file"
        return call(self, verb, path, *args, **kwargs)

    monkeypatch.setattr(ObjectStore, "_call", counting)
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
        assert states(looked(one).searchable()) == {"0"}
        assert n_read[name] == n_wanted
        assert name in str(one.describe()["reason"])
    assert caplog.text.count("the loaded version stays in use") == 1
    assert n_read[whole] == 1
    ObjectStore(place).write(name, content)
    now[0] = 200_000
    assert states(looked(one).searchable()) == {"1"}


def test_damaged_file_is_loaded_with_backoff(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A damaged file is read once until it changes."""
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
            looked(one).searchable()
    assert len(loads) == 1
    path.write_bytes(content)
    assert states(looked(one).searchable()) == {"0"}


def test_hanging_store_does_not_delay_searches(
    store: subprocess.Popen[bytes],
    searcher: Callable[[str], ServedIndex],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A refresh ends within its limit, and later searches do not wait for the next refresh."""
    place = "s3://corpora/hangs"
    save_shards(place, state(0), 1)
    one = looked(searcher(place))
    monkeypatch.setattr("relevance_gen.shards.object_store._CALL_TIMEOUT_S", 0.5)
    store.send_signal(signal.SIGSTOP)
    try:
        assert "did not answer within" in str(looked(one).describe()["reason"])
        assert states(one.searchable()) == {"0"}
    finally:
        store.send_signal(signal.SIGCONT)


def test_start_while_store_hangs(
    store: subprocess.Popen[bytes],
    searcher: Callable[[str], ServedIndex],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The cached version is searched at once; without a cached version, searches soon report that the store does not answer."""
    place, settings = (
        "s3://corpora/starts",
        Settings(index=(("cats", "s3://corpora/starts/other"),)),
    )
    save_shards(place, state(0), 1)
    looked(searcher(place))
    monkeypatch.setattr("relevance_gen.serve.services.indexes.served_index.MAX_DEFER_S", 0.1)
    monkeypatch.setattr("relevance_gen.serve.services.indexes.index_registry.MAX_DEFER_S", 0.1)
    store.send_signal(signal.SIGSTOP)
    try:
        one, cold = searcher(place), IndexRegistry(settings)
        look = one.refresh()
        assert eventually(lambda: isinstance(one.current, ChunkIndex))
        assert not look.done()
        assert states(one.searchable()) == {"0"}
        assert eventually(lambda: one.is_stale)
        assert one.describe()["state"] == "ready"
        cold.start()
        for _ in range(2):
            waiting = cold.start_refresh("cats", "")
            if waiting is not None:
                asyncio.run(waiting())
            with pytest.raises(IndexUnavailableError, match="its store has not answered yet"):
                cold.query("cats", "", lambda index, _: len(index))  # type: ignore[arg-type]
        assert waiting is None
    finally:
        store.send_signal(signal.SIGCONT)


class Hanging(MemoryFileSystem):
    """A store whose client never times out."""

    protocol = "hanging"
    released = threading.Event()
    """While it is not set, every call hangs."""

    def __init__(self, **options: Any) -> None:
        self.released.wait()
        super().__init__(**options)

    def cat_file(self, *args: Any, **kwargs: Any) -> bytes:
        """Return the content of a file after the release."""
        self.released.wait()
        return bytes(super().cat_file(*args, **kwargs))


@pytest.mark.parametrize("is_known", [False, True])
def test_refresh_of_hanging_store_times_out(
    searcher: Callable[[str], ServedIndex], monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """Each refresh ends within its limit although the store's client has none, and few threads remain."""
    place = f"hanging://{is_known}"
    fsspec.register_implementation("hanging", Hanging, clobber=True)
    monkeypatch.setattr("relevance_gen.shards.object_store._CALL_TIMEOUT_S", 0.05)
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
        assert "did not answer within" in str(one.describe()["reason"])
        assert isinstance(one.current, ChunkIndex) == is_known
    finally:
        Hanging.released.set()
    assert eventually(lambda: threading.active_count() <= n_threads)
    assert states(looked(one).searchable()) == {"0"}
    assert not one.is_stale
