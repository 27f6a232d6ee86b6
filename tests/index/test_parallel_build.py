"""Parallel: segments built in processes are those built here, and no process outlives the building."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from multiprocessing.process import BaseProcess

import pytest

from relevance_gen import ChunkIndex, IndexBuildError, InvalidRequestError
from relevance_gen.index import parallel_build as pool
from relevance_gen.index.chunks import Chunks
from relevance_gen.machine import usable_cpus
from tests import corpus

CHUNKS = [*corpus.prose(300, 30), "Größe столица 猫", {"text": "a cat", "metadata": {"page": 1}}]


@pytest.fixture(autouse=True)
def any_text_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let little text be worth a process."""
    monkeypatch.setattr(pool, "_CHARS_PER_FORK", 1)
    monkeypatch.setattr(pool, "_CHARS_PER_NEW_PROCESS", 1)


@pytest.fixture
def thread() -> Iterator[None]:
    """Let another thread run."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.parametrize("n_jobs", [3, -1])
def test_an_index_of_processes_answers_as_one_of_none(n_jobs: int) -> None:
    """However many processes build an index, its answers have the same bits, and it can be added to and saved."""
    alone, together = ChunkIndex(CHUNKS), ChunkIndex(CHUNKS, n_jobs=n_jobs)
    queries = [" ".join(chunk.split()[:4]) for chunk in CHUNKS[:40] if isinstance(chunk, str)] + [
        "Größe 猫",
        "cat",
    ]
    assert together.search(queries, 20) == alone.search(queries, 20)
    assert len(together._state.collection.segments) == min(
        4, usable_cpus() if n_jobs < 0 else n_jobs
    )
    for index in (alone, together):
        index.add(["one cat more"])
        index.remove([0, 150])
    assert together.search(queries) == alone.search(queries)
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("thread")
def test_beside_threads_processes_are_started_anew() -> None:
    """While another thread runs nothing is forked; texts that fill a pipe come over, and the answers are the same."""
    chunks = CHUNKS * 20
    together = ChunkIndex(chunks, n_jobs=2)
    assert together.search("cat") == ChunkIndex(chunks).search("cat")
    assert len(together._state.collection.segments) == 2
    assert multiprocessing.active_children() == []


def die(*_: object) -> None:
    os._exit(3)


@pytest.mark.usefixtures("thread")
def test_a_process_that_dies_before_it_has_its_texts_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A process that is started anew and ends before it has read its texts is an error as any other that ends."""
    monkeypatch.setattr(pool, "_work", die)
    with pytest.raises(IndexBuildError, match="ended with status 3"):
        ChunkIndex(CHUNKS * 200, n_jobs=2)
    assert multiprocessing.active_children() == []


def test_progress_counts_up_to_all_chunks() -> None:
    """Progress of all processes together never goes back and ends with all chunks done."""
    told: list[tuple[int, int]] = []
    ChunkIndex(CHUNKS, n_jobs=3, progress=lambda done, n_chunks: told.append((done, n_chunks)))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert told[-1] == (len(CHUNKS), len(CHUNKS))


def pause(*_: object) -> None:
    signal.pause()


def test_a_killed_process_is_an_error_and_leaves_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a process is killed the building ends with an error that says so, and the others are ended."""
    monkeypatch.setattr(pool, "_work", pause)  # it may not be done before it is killed
    with pool.start_building(Chunks.read(CHUNKS * 50), 3) as wait:
        victim = multiprocessing.active_children()[0]
        assert victim.pid is not None
        os.kill(victim.pid, signal.SIGKILL)
        with pytest.raises(IndexBuildError, match=r"ended with status -9; build with fewer n_jobs"):
            wait(None)
    assert multiprocessing.active_children() == []


def test_an_interrupt_ends_the_processes() -> None:
    """An exception while the processes work, a KeyboardInterrupt say, ends them all."""

    def stop(done: int, n_chunks: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ChunkIndex(CHUNKS, n_jobs=2, progress=stop)
    assert multiprocessing.active_children() == []


INTERRUPTED = """
import threading
from relevance_gen import ChunkIndex
from relevance_gen.index import parallel_build as pool
pool._CHARS_PER_FORK = pool._CHARS_PER_NEW_PROCESS = 1
chunks = [f"text number {number} of very many " * 20 for number in range(100_000)]
if BESIDE_A_THREAD:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
start = pool._start
def told(*args):
    start(*args)
    print("ready", flush=True)
pool._start = told
try:
    ChunkIndex(chunks, n_jobs=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(130)
"""


def test_a_second_interrupt_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever presses ^C again, while the first is waited for, leaves no process at work."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    texts = [f"word{n} is one of many words" for n in range(400_000)]
    processes: list[BaseProcess] = []

    def build() -> None:
        with pool.start_building(Chunks(texts, {}), 2):
            processes.extend(multiprocessing.active_children())
            monkeypatch.setattr(BaseProcess, "join", interrupted)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build()
    monkeypatch.undo()
    for process in processes:
        process.join()
    assert {process.exitcode for process in processes} == {-signal.SIGKILL}


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
@pytest.mark.parametrize("beside_a_thread", [False, True])
def test_control_c_ends_with_130_and_without_a_traceback(
    beside_a_thread: bool, delay_s: float
) -> None:
    """^C in a terminal reaches all processes: the one that asked says so once, and the others are silent.

    Those that are started anew beside a thread are, too, while they still import.
    """
    with subprocess.Popen(
        [sys.executable, "-c", f"BESIDE_A_THREAD = {beside_a_thread}\n{INTERRUPTED}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay_s)
        os.killpg(process.pid, signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (130, "interrupted\n", "")


KILLED = """
import time
from relevance_gen import ChunkIndex
from relevance_gen.index import parallel_build as pool
from relevance_gen.text import blocks as portions
pool._CHARS_PER_FORK = pool._CHARS_PER_NEW_PROCESS = 1
portions.BLOCK_CHARS = 200  # so much progress to tell that it fills the pipe
chunks = [f"text number {number} of very many " * 10 for number in range(6000)]
def stay(done, n_chunks):
    print("building", flush=True)
    time.sleep(1000)
ChunkIndex(chunks, n_jobs=3, progress=stay)
"""


def test_processes_end_when_the_one_that_asked_is_killed() -> None:
    """A process that is killed while it builds leaves none behind, not even one that waits for room in its pipe."""
    with subprocess.Popen(
        [sys.executable, "-c", KILLED], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"building\n"
        time.sleep(0.5)
        process.kill()
        # Both streams end when the last process that holds them does.
        assert process.communicate(timeout=60) == (b"", b"")


def build_in_a_pool(n_jobs: int) -> int:
    return len(ChunkIndex(CHUNKS, n_jobs=n_jobs))


def test_a_daemonic_process_builds_alone() -> None:
    """A process of a pool must not start others, and so builds an index itself, however many were asked for."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(build_in_a_pool, [2]) == [len(CHUNKS)]


def test_little_text_is_built_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many processes work as there is text enough for, and never more than asked for."""
    monkeypatch.setattr(pool, "_can_fork", lambda: True)  # whatever threads other tests have left
    monkeypatch.setattr(pool, "_CHARS_PER_FORK", 100)
    chunks = Chunks.read(["x" * 50] * 6)
    assert [pool.n_processes(n_jobs, chunks) for n_jobs in (None, 1, 2, 4, 100)] == [1, 1, 2, 3, 3]
    assert pool.n_processes(-1, Chunks.read([])) == 1


@pytest.mark.usefixtures("thread")
def test_processes_started_anew_want_more_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside a thread, where processes take longer to start, there are fewer of them for the same text."""
    monkeypatch.setattr(pool, "_CHARS_PER_FORK", 100)
    monkeypatch.setattr(pool, "_CHARS_PER_NEW_PROCESS", 150)
    chunks = Chunks.read(["x" * 50] * 6)
    assert [pool.n_processes(n_jobs, chunks) for n_jobs in (None, 1, 2, 4)] == [1, 1, 2, 2]


@pytest.mark.parametrize("n_jobs", [0, -2, True, 1.0, "2"])
def test_only_numbers_of_processes_are_allowed(n_jobs: object) -> None:
    """A number of processes is a positive integer, or -1."""
    with pytest.raises(
        InvalidRequestError, match="n_jobs must be an integer of at least 1, -1 or None, got"
    ):
        ChunkIndex(["a cat"], n_jobs=n_jobs)  # type: ignore[arg-type]
