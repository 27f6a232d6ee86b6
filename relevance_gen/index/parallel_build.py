"""Build the segments of an index in several processes.

Threads do not help: the many short numpy calls of a build wait for the interpreter's lock. Each
process builds the segment of a run of chunks and writes its arrays to a temporary file, which the
parent process maps.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from ctypes import Array, c_int64
from multiprocessing import resource_tracker
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory
from typing import Final

import numpy as np

from relevance_gen.checks import is_integer, to_python_scalar
from relevance_gen.errors import IndexBuildError, InvalidRequestError
from relevance_gen.index import storage
from relevance_gen.index.builder import build
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment
from relevance_gen.machine import usable_cpus
from relevance_gen.progress import Progress
from relevance_gen.text.blocks import split_evenly

_MIN_CHARS_PER_FORK: Final = 8 << 20
_MIN_CHARS_PER_SPAWN: Final = 32 << 20
"""With fewer characters for each process, starting the processes takes longer than they save: see
bench/RESULTS.md. A spawned process first imports numpy, this package and the caller's script:
without the script this takes as long as building about twelve million characters."""
_MAX_PROCESSES: Final = 4
"""Each process makes a segment, and a query takes longer with more segments."""
_REPORT_INTERVAL_S: Final = 0.05


class _CancelledBuildError(Exception):
    """Ends a worker whose result is not needed any more."""


_progress_counts: Array[c_int64]
"""In a worker: the number of chunks that each worker has built so far. The last element is a flag;
1 cancels the build."""


def n_processes(n_jobs: int | None, chunks: Chunks) -> int:
    """Return the number of processes that build an index: at most `n_jobs`, and at most 4.

    `n_jobs` None means 1, and -1 the number of cores that this process may use. The number is
    smaller if the text is short: each process must get at least 8 Mi characters if this process can
    be forked, otherwise 32 Mi. The result is 1 in a daemonic process (of a `multiprocessing.Pool`,
    for example), which must not start other processes.

    Raises:
        InvalidRequestError: `n_jobs` is not an integer of at least 1, -1 or None.
    """
    if n_jobs is None:
        return 1
    n_jobs = to_python_scalar(n_jobs)
    if not is_integer(n_jobs) or (n_jobs < 1 and n_jobs != -1):
        raise InvalidRequestError.must_be("n_jobs", "an integer of at least 1, -1 or None", n_jobs)
    requested = usable_cpus() if n_jobs == -1 else n_jobs
    if requested == 1 or multiprocessing.current_process().daemon:
        return 1
    min_chars = _MIN_CHARS_PER_FORK if _can_fork() else _MIN_CHARS_PER_SPAWN
    n_worthwhile = sum(map(len, chunks.texts)) // min_chars
    return max(1, min(requested, _MAX_PROCESSES, n_worthwhile))


def build_segments(
    chunks: Chunks,
    n_parts: int,
    progress: Progress | None,
) -> list[Segment]:
    """Build at most `n_parts` segments of consecutive chunks, each in its own process.

    The position of a chunk is its index in `chunks`. No process is left when this returns or
    raises. After an exception, a KeyboardInterrupt for example, the workers stop when they have
    counted the current block of text.

    Args:
        chunks: the chunks.
        n_parts: maximum number of segments.
        progress: called with the number of chunks done and the number of all chunks; None for no
            reports.

    Raises:
        IndexBuildError: a process ended unexpectedly.
    """
    slices = list(split_evenly(chunks.texts, n_parts))
    parts = [chunks.take(range(part.start, part.stop)) for part in slices]
    context = multiprocessing.get_context("fork" if _can_fork() else "spawn")
    progress_counts = context.RawArray(c_int64, len(parts) + 1)
    with (
        TemporaryDirectory() as folder,
        ProcessPoolExecutor(len(parts), context, _start_worker, (progress_counts,)) as executor,
    ):
        paths = [Path(folder) / str(part_index) for part_index in range(len(parts))]
        try:
            finished: SimpleQueue[Future[None]] = SimpleQueue()
            with _starting_workers():
                for part_index, path in enumerate(paths):
                    future = executor.submit(
                        _build_part,
                        part_index,
                        slices[part_index].start,
                        parts[part_index].without_metadata(),
                        path,
                    )
                    future.add_done_callback(finished.put)
            _wait(finished, progress_counts, len(chunks.texts), progress)
        except BrokenProcessPool:
            raise IndexBuildError(
                "a process that built a part of the index ended unexpectedly; build with fewer n_jobs if memory ran out"
            ) from None
        finally:
            progress_counts[-1] = 1
        return [
            storage.read_arrays(np.memmap(path, np.uint8, "r"), part)
            for part, path in zip(parts, paths, strict=True)
        ]


def _can_fork() -> bool:
    """Return whether this process can be forked: on Linux, if it has a single thread.

    A forked process does not contain the other threads, and locks that they held stay acquired.
    """
    return sys.platform == "linux" and threading.active_count() == 1


@contextmanager
def _starting_workers() -> Iterator[None]:
    """Block SIGINT in this context, in which worker processes are started.

    Otherwise ^C in a terminal would print tracebacks of workers that are starting. Python's warning
    about threads during a fork is suppressed, too: the threads of numpy do no harm.
    """
    if not hasattr(signal, "pthread_sigmask"):  # on Windows
        yield
        return
    resource_tracker.ensure_running()  # its start would unblock SIGINT
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _wait(
    finished: SimpleQueue[Future[None]],
    progress_counts: Array[c_int64],
    n_chunks: int,
    progress: Progress | None,
) -> None:
    """Wait until all workers are done, and report progress; raise the first error of a worker.

    `concurrent.futures.wait` is not used: a KeyboardInterrupt during that function can leave the
    internal locks of the futures acquired.

    Args:
        finished: a queue that receives the future of each worker when the worker is done.
        progress_counts: number of chunks that each worker has built so far; the last element, which
            is 1 to cancel the build, is not read.
        n_chunks: number of all chunks, for `progress`.
        progress: called with the number of chunks done and `n_chunks`; None for no reports.
    """
    n_reported = 0
    n_running = len(progress_counts) - 1
    timeout_s = _REPORT_INTERVAL_S if progress is not None else None
    while n_running:
        try:
            future = finished.get(timeout=timeout_s)
        except Empty:
            pass
        else:
            future.result()
            n_running -= 1
        n_done = sum(progress_counts[:-1])
        if progress is not None and n_done > n_reported:
            progress(n_done, n_chunks)
            n_reported = n_done


# ── In the worker processes ───────────────────────────────────────────────────────────────────────


def _start_worker(progress_counts: Array[c_int64]) -> None:
    """Prepare a worker process.

    It stores `progress_counts`, the array of `_wait`, in a global variable. It ignores ^C, which
    the parent process handles, and exits if the parent process is killed.
    """
    global _progress_counts
    _progress_counts = progress_counts
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _build_part(
    part_index: int,
    first_position: int,
    chunks: Chunks,
    path: Path,
) -> None:
    """Build the segment of a part of the chunks in a worker, and write its arrays to a file.

    Args:
        part_index: index of the part, and of the element of `_progress_counts` to which the number
            of finished chunks is written.
        first_position: position of the first chunk.
        chunks: the chunks.
        path: the file to create.

    Raises:
        _CancelledBuildError: the parent process has cancelled the build.
    """

    def report(n_done: int, _: int) -> None:
        if _progress_counts[-1]:
            raise _CancelledBuildError
        _progress_counts[part_index] = n_done

    positions = np.arange(first_position, first_position + len(chunks.texts))
    segment = build(chunks, positions, progress=report)
    with path.open("w+b") as file:
        storage.write_arrays(file, segment)
