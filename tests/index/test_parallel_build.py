"""Building an index in several processes: results, errors, interrupts, and the number of processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from multiprocessing.process import BaseProcess

import pytest

from relevance_gen import ChunkIndex, IndexBuildError, InvalidRequestError
from relevance_gen.index import parallel_build
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.machine import usable_cpus
from relevance_gen.text import blocks
from tests import corpus

CHUNKS = [*corpus.prose(300, 30), "Größe столица 猫", {"text": "a cat", "metadata": {"page": 1}}]


@pytest.fixture(autouse=True)
def use_processes_for_any_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use processes for any amount of text."""
    monkeypatch.setattr(parallel_build, "_MIN_CHARS_PER_FORK", 1)
    monkeypatch.setattr(parallel_build, "_MIN_CHARS_PER_SPAWN", 1)


@pytest.fixture
def thread() -> Iterator[None]:
    """Run another thread during the test."""
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    yield
    done.set()
    thread.join()


@pytest.mark.parametrize("n_jobs", [3, -1])
def test_index_built_by_processes_gives_equal_answers(n_jobs: int) -> None:
    """An index built by any number of processes gives bit-identical answers, before and after chunks are added."""
    sequential, parallel = ChunkIndex(CHUNKS), ChunkIndex(CHUNKS, n_jobs=n_jobs)
    texts = [chunk for chunk in CHUNKS[:40] if isinstance(chunk, str)]
    queries = [" ".join(text.split()[:4]) for text in texts] + ["Größe 猫", "cat"]
    assert parallel.search(queries, 20) == sequential.search(queries, 20)
    n_segments = min(4, usable_cpus() if n_jobs < 0 else n_jobs)
    assert len(parallel._state.segments.segments) == n_segments
    for index in (sequential, parallel):
        index.add(["one cat more"])
        index.remove([0, 150])
    assert parallel.search(queries) == sequential.search(queries)
    assert multiprocessing.active_children() == []


@pytest.mark.usefixtures("thread")
def test_processes_are_spawned_while_another_thread_runs() -> None:
    """Spawned processes receive texts that are longer than a pipe's buffer, and the answers are the same."""
    chunks = CHUNKS * 20
    parallel = ChunkIndex(chunks, n_jobs=2)
    assert parallel.search("cat") == ChunkIndex(chunks).search("cat")
    assert len(parallel._state.segments.segments) == 2
    assert multiprocessing.active_children() == []


def exit_process(*_: object) -> None:
    os._exit(3)


@pytest.mark.usefixtures("thread")
def test_spawned_process_that_exits_at_once_raises_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A spawned process that exits before it reads its texts raises an IndexBuildError."""
    monkeypatch.setattr(parallel_build, "_start_worker", exit_process)
    with pytest.raises(IndexBuildError, match="ended unexpectedly"):
        ChunkIndex(CHUNKS * 200, n_jobs=2)
    assert multiprocessing.active_children() == []


def test_progress_increases_up_to_the_number_of_chunks() -> None:
    """The progress of all processes together increases strictly and ends with all chunks done."""
    calls: list[tuple[int, int]] = []
    ChunkIndex(CHUNKS, n_jobs=3, progress=lambda done, n_chunks: calls.append((done, n_chunks)))
    assert [done for done, _ in calls] == sorted({done for done, _ in calls})
    assert calls[-1] == (len(CHUNKS), len(CHUNKS))


def kill_process(*_: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_killed_process_raises_an_error_and_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If a process is killed, the build raises an IndexBuildError and no other process is left."""
    monkeypatch.setattr(parallel_build, "_build_part", kill_process)
    with pytest.raises(IndexBuildError, match=r"ended unexpectedly; build with fewer n_jobs"):
        ChunkIndex(CHUNKS * 50, n_jobs=3)
    assert multiprocessing.active_children() == []


def fail(*_: object) -> None:
    raise ValueError("a failed build")


def test_error_in_a_process_is_raised_by_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in a process is raised to the caller, and no process is left."""
    monkeypatch.setattr(parallel_build, "_build_part", fail)
    with pytest.raises(ValueError, match="a failed build"):
        ChunkIndex(CHUNKS * 50, n_jobs=3)
    assert multiprocessing.active_children() == []


def test_interrupt_ends_the_processes() -> None:
    """A KeyboardInterrupt while processes work ends all of them."""

    def interrupt(done: int, n_chunks: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ChunkIndex(CHUNKS, n_jobs=2, progress=interrupt)
    assert multiprocessing.active_children() == []


def test_second_interrupt_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A second KeyboardInterrupt while the first waits for the processes leaves no process at work."""

    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(blocks, "BLOCK_CHARS", 1 << 12)  # workers report often
    texts = [f"word{n} is one of many words" for n in range(200_000)]
    processes: list[BaseProcess] = []

    def interrupt_twice(done: int, n_chunks: int) -> None:
        processes.extend(multiprocessing.active_children())
        monkeypatch.setattr(ProcessPoolExecutor, "__exit__", interrupt)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ChunkIndex(texts, n_jobs=2, progress=interrupt_twice)
    monkeypatch.undo()
    for process in processes:
        process.join()
    assert len(processes) == 2


INTERRUPTED = """
import threading
from relevance_gen import ChunkIndex
from relevance_gen.index import parallel_build
parallel_build._MIN_CHARS_PER_FORK = parallel_build._MIN_CHARS_PER_SPAWN = 1
chunks = [f"text number {number} of very many " * 20 for number in range(100_000)]
if HAS_THREAD:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
wait = parallel_build._wait
def wait_and_print(*args):
    print("ready", flush=True)
    wait(*args)
parallel_build._wait = wait_and_print
try:
    ChunkIndex(chunks, n_jobs=2)
except KeyboardInterrupt:
    print("interrupted", flush=True)
    raise SystemExit(130)
"""


@pytest.mark.parametrize("delay_s", [0.0, 0.3])
@pytest.mark.parametrize("has_thread", [False, True])
def test_control_c_ends_with_130_and_without_a_traceback(has_thread: bool, delay_s: float) -> None:
    """^C in a terminal reaches all processes; only the parent process prints, even while spawned ones import."""
    with subprocess.Popen(
        [sys.executable, "-c", f"HAS_THREAD = {has_thread}\n{INTERRUPTED}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        time.sleep(delay_s)
        os.killpg(process.pid, signal.SIGINT)
        try:
            out, err = process.communicate(timeout=60)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert (process.returncode, out, err) == (130, "interrupted\n", "")


KILLED = """
import time
from relevance_gen import ChunkIndex
from relevance_gen.index import parallel_build
from relevance_gen.text import blocks
parallel_build._MIN_CHARS_PER_FORK = parallel_build._MIN_CHARS_PER_SPAWN = 1
blocks.BLOCK_CHARS = 200
chunks = [f"text number {number} of very many " * 10 for number in range(6000)]
def pause(done, n_chunks):
    print("building", flush=True)
    time.sleep(1000)
ChunkIndex(chunks, n_jobs=3, progress=pause)
"""


def test_processes_exit_when_the_parent_is_killed() -> None:
    """The worker processes exit after the process that started them is killed."""
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


def test_daemonic_process_builds_without_other_processes() -> None:
    """A process of a `multiprocessing.Pool`, which must not start processes, builds an index itself for any n_jobs."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        assert pool.map(build_in_a_pool, [2]) == [len(CHUNKS)]


def test_n_processes_is_limited_by_n_jobs_and_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of processes is at most n_jobs, and at most the characters divided by the minimum for each."""
    monkeypatch.setattr(
        parallel_build, "_can_fork", lambda: True
    )  # regardless of threads that other tests left
    monkeypatch.setattr(parallel_build, "_MIN_CHARS_PER_FORK", 100)
    chunks = read_chunks(["x" * 50] * 6)
    assert [parallel_build.n_processes(n_jobs, chunks) for n_jobs in (None, 1, 2, 4, 100)] == [
        1,
        1,
        2,
        3,
        3,
    ]
    assert parallel_build.n_processes(-1, read_chunks([])) == 1


@pytest.mark.usefixtures("thread")
def test_n_processes_is_lower_for_spawned_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """While another thread runs, fewer processes build the same text, because spawning takes longer than forking."""
    monkeypatch.setattr(parallel_build, "_MIN_CHARS_PER_FORK", 100)
    monkeypatch.setattr(parallel_build, "_MIN_CHARS_PER_SPAWN", 150)
    chunks = read_chunks(["x" * 50] * 6)
    assert [parallel_build.n_processes(n_jobs, chunks) for n_jobs in (None, 1, 2, 4)] == [
        1,
        1,
        2,
        2,
    ]


@pytest.mark.parametrize("n_jobs", [0, -2, True, 1.0, "2"])
def test_invalid_n_jobs_raises_an_error(n_jobs: object) -> None:
    """n_jobs must be a positive integer, -1 or None."""
    with pytest.raises(
        InvalidRequestError, match="n_jobs must be an integer of at least 1, -1 or None, got"
    ):
        ChunkIndex(["a cat"], n_jobs=n_jobs)  # type: ignore[arg-type]
