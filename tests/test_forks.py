"""Processes that are forked while other threads use the objects of the library."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from relevance_gen import ChunkIndex, FolderIndex, wire
from relevance_gen.documents.isolation import DocumentPool
from relevance_gen.forks import LazyAttribute
from relevance_gen.lru import LruCache
from relevance_gen.retrieval import chunk_index, local_segments

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")

_CHILD_LIMIT_S = 40


def succeeds_in_child(job: Callable[[], object]) -> bool:
    """Return whether `job` returns a true value in a forked process; a process that hangs is killed."""
    pid = os.fork()
    if not pid:
        signal.alarm(_CHILD_LIMIT_S)
        status = 1
        try:
            status = 0 if job() else 1
        finally:
            os._exit(status)
    return os.waitpid(pid, 0)[1] == 0


@contextmanager
def running(job: Callable[[Callable[[], object]], object]) -> Iterator[None]:
    """Run `job` in another thread, which is blocked in the function that it gets, in this context."""
    is_blocked, can_continue = threading.Event(), threading.Event()

    def block() -> None:
        is_blocked.set()
        can_continue.wait()

    thread = threading.Thread(target=job, args=[block])
    thread.start()
    is_blocked.wait()
    try:
        yield
    finally:
        can_continue.set()
        thread.join()


def test_add_in_child_works_while_another_thread_adds(monkeypatch: pytest.MonkeyPatch) -> None:
    """A child adds to an index to which a thread of its parent was adding."""
    index = ChunkIndex(["cats purr"])
    merge = chunk_index.merge_tiered

    def add(block: Callable[[], object]) -> None:
        monkeypatch.setattr(chunk_index, "merge_tiered", lambda segments: block() or segments)
        index.add(["dogs bark"])

    with running(add):
        monkeypatch.setattr(chunk_index, "merge_tiered", merge)
        assert succeeds_in_child(lambda: index.add(["birds sing"]) == range(1, 2))
    assert len(index) == 2


def test_search_in_child_works_while_another_thread_searches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A child computes an attribute that a thread of its parent computes for another index."""
    compute_sample = local_segments.compute_sample

    def search(block: Callable[[], object]) -> None:
        monkeypatch.setattr(local_segments, "compute_sample", lambda _: block())
        _ = ChunkIndex(["dogs bark"])._state.segments.sample

    with running(search):
        monkeypatch.setattr(local_segments, "compute_sample", compute_sample)
        index = ChunkIndex(["cats purr"])
        assert succeeds_in_child(lambda: index._state.segments.sample is not None)


def test_folder_in_child_is_searched_while_another_thread_reads(tmp_path: Path) -> None:
    """A child updates an index of a folder, also its documents, that a thread of its parent was reading."""
    (tmp_path / "cats.txt").write_text("cats purr")
    index = FolderIndex(tmp_path, cache=False)
    index.snapshot()
    (tmp_path / "dogs.html").write_text("<html><body>dogs bark</body></html>")

    def read(block: Callable[[], object]) -> None:
        with index._lock:
            block()

    with running(read):
        assert succeeds_in_child(lambda: index.files() == ["cats.txt", "dogs.html"])


def test_document_pool_in_child_has_its_own_threads() -> None:
    """A child reads a document with a pool whose threads its parent has."""
    pool = DocumentPool(1)
    assert pool.submit("a.html", b"<html>cats purr").result().parts
    assert succeeds_in_child(lambda: pool.submit("b.html", b"<html>dogs").result().parts)


def test_cache_in_child_works_while_another_thread_stores() -> None:
    """A child stores a value while a thread of its parent held the lock, and counts all bytes."""
    cache: LruCache[str] = LruCache(10_000, len)
    cache.put("a", "value")
    n_bytes = cache.nbytes

    def store(block: Callable[[], object]) -> None:
        with cache._lock:
            cache.nbytes += 1000
            block()
            cache.nbytes -= 1000

    def put() -> bool:
        cache.put("b", "value")
        return cache.nbytes == 2 * n_bytes

    with running(store):
        assert succeeds_in_child(put)


def test_garbage_collector_in_child_is_enabled_while_another_thread_parses() -> None:
    """Parsing pauses the collector; a child of a process that parses has no such pause."""
    import gc

    def parse(block: Callable[[], object]) -> None:
        with wire._collector_paused():
            block()

    with running(parse):
        assert not gc.isenabled()
        assert succeeds_in_child(gc.isenabled)


def test_lazy_attribute_is_computed_once_per_object() -> None:
    """Each object computes its value on first use and then has it."""

    class Squared:
        def __init__(self, number: int) -> None:
            self.number = number
            self.n_computed = 0

        @LazyAttribute
        def square(self) -> int:
            self.n_computed += 1
            return self.number**2

    objects = [Squared(2), Squared(3)]
    assert (
        [each.square for each in objects] * 2 == [each.square for each in objects * 2] == [4, 9] * 2
    )
    assert [each.n_computed for each in objects] == [1, 1]
    assert isinstance(Squared.square, LazyAttribute)
