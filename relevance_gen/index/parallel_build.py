"""Build segments in several processes.

Several threads over numpy are slower than one: its many small calls wait for the interpreter's lock. Processes are
faster where there is enough text. On Linux, while no other thread runs, they are forked and inherit the texts;
otherwise they are started anew, all at once, and are sent them. Each writes the arrays of its segment into memory that
it hands back as a file descriptor, so that nothing is copied and nothing is left behind if a process dies.
"""

from __future__ import annotations

import mmap
import multiprocessing
import os
import signal
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import recv_handle, send_handle
from typing import Any, BinaryIO, Final

import numpy as np
from attrs import define

from relevance_gen.arrays import Offsets
from relevance_gen.checks import is_integer, plain
from relevance_gen.errors import IndexBuildError, InvalidRequestError
from relevance_gen.index import storage
from relevance_gen.index.builder import build
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment
from relevance_gen.machine import usable_cpus
from relevance_gen.progress import Progress
from relevance_gen.text.blocks import split_evenly

_CHARS_PER_FORK: Final = 8 << 20
_CHARS_PER_NEW_PROCESS: Final = 32 << 20
"""With less text for each, starting processes takes longer than they save: see bench/RESULTS.md. One that is started
anew first imports numpy, this package and the caller's script: without the script as long as some twelve million
characters take to build."""
_MAX_PROCESSES: Final = 4
"""Each process makes a segment, and a question takes longer the more segments there are."""


def n_processes(n_jobs: int | None, chunks: Chunks) -> int:
    """Return how many processes build an index of some chunks: at most `n_jobs`, where there is text enough.

    None means 1, and -1 as many as there are cores that this process may use. It is 1 in a daemonic process, one of a
    `multiprocessing.Pool` say, which must not start others.

    Raises:
        InvalidRequestError: `n_jobs` is no integer of at least 1, nor -1 nor None.
    """
    if n_jobs is None:
        return 1
    n_jobs = plain(n_jobs)
    if not is_integer(n_jobs) or (n_jobs < 1 and n_jobs != -1):
        raise InvalidRequestError.must_be("n_jobs", "an integer of at least 1, -1 or None", n_jobs)
    if multiprocessing.current_process().daemon:
        return 1
    wanted = usable_cpus() if n_jobs == -1 else n_jobs
    if wanted == 1:
        return 1
    worth_it = sum(map(len, chunks.texts)) // (
        _CHARS_PER_FORK if _can_fork() else _CHARS_PER_NEW_PROCESS
    )
    return max(1, min(wanted, _MAX_PROCESSES, worth_it))


def _can_fork() -> bool:
    """Tell whether this process can be forked: a fork lacks all other threads, and the locks they hold stay locked."""
    return sys.platform == "linux" and threading.active_count() == 1


@define
class _Builder:
    """A process that builds the segment of a part of the chunks; its connection tells of progress, and of the end."""

    part: slice
    process: BaseProcess
    connection: Connection
    n_done: int = 0
    segment: Segment | None = None


@contextmanager
def start_building(
    chunks: Chunks, n_parts: int
) -> Iterator[Callable[[Progress | None], list[Segment]]]:
    """Start to make so many segments of chunks, each in a process of its own; yield the function that waits for them.

    No process is left at the end, whatever happens. Positions count from 0.

    Raises:
        IndexBuildError: a process died; raised by the function.
    """
    builders: list[_Builder] = []
    try:
        can_fork = _can_fork()
        for part in split_evenly(chunks.texts, n_parts):
            _start(part, _taken(chunks, part) if can_fork else None, builders)
        for builder in builders if not can_fork else ():
            with suppress(ConnectionError):  # the process died; `_wait` will find out and raise
                builder.connection.send(_taken(chunks, builder.part))
        yield lambda progress: _wait(builders, chunks, progress)
    finally:
        for (
            builder
        ) in builders:  # kill all before waiting for any: another ^C may come during the wait
            builder.process.kill()
        for builder in builders:
            builder.process.join()
            builder.connection.close()


def _taken(chunks: Chunks, part: slice) -> Chunks:
    """Return a run of chunks; no process needs metadata."""
    return chunks.without_metadata().take(range(part.start, part.stop))


def _start(part: slice, chunks: Chunks | None, builders: list[_Builder]) -> None:
    """Start a process, and add it to those before: forked with its chunks, or without them anew, to be sent them."""
    forks = chunks is not None
    context: Any = multiprocessing.get_context("fork" if forks else "spawn")
    ours, theirs = context.Pipe()
    held = [ours, *(builder.connection for builder in builders)] if forks else []
    process = context.Process(target=_work, args=(theirs, part.start, chunks, held), daemon=True)
    # A ^C during a fork would be swallowed by the hooks of `logging`, and leave its lock taken. A process that is
    # started anew inherits the mask, so that a ^C while it imports prints nothing.
    if not forks:
        resource_tracker.ensure_running()  # starting it later would lift the mask
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with (
            warnings.catch_warnings()
        ):  # Python warns of any thread beside a fork; those of numpy do no harm.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
        builders.append(_Builder(part, process, ours))
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    theirs.close()


def _wait(builders: Sequence[_Builder], chunks: Chunks, progress: Progress | None) -> list[Segment]:
    while waiting := {
        builder.connection: builder for builder in builders if builder.segment is None
    }:
        for ready in wait(list(waiting)):
            builder = waiting[ready]  # type: ignore[index]
            n_before = builder.n_done
            _hear(builder, chunks)
            if progress is not None and builder.n_done > n_before:
                progress(sum(one.n_done for one in builders), len(chunks.texts))
    return [builder.segment for builder in builders if builder.segment is not None]


def _hear(builder: _Builder, chunks: Chunks) -> None:
    """Receive one message from a process: its progress, its arrays or its error."""
    try:
        told = builder.connection.recv()
        if isinstance(told, int):
            builder.n_done = told
            return
        if isinstance(told, BaseException):
            raise told
        own = chunks.take(range(builder.part.start, builder.part.stop))
        builder.segment = storage.read_arrays(_mapped(recv_handle(builder.connection)), own)
    except (EOFError, ConnectionError):
        builder.process.join()
        raise IndexBuildError(
            f"a process that built a part of the index ended with status {builder.process.exitcode}; "
            "build with fewer n_jobs if it was memory that ran out"
        ) from None


def _mapped(descriptor: int) -> np.ndarray[tuple[int], np.dtype[np.uint8]]:
    try:
        return np.frombuffer(mmap.mmap(descriptor, 0, access=mmap.ACCESS_READ), np.uint8)
    finally:
        os.close(descriptor)


# ── In the processes ─────────────────────────────────────────────────────────────────────────────────────────────────


def _work(
    connection: Connection, first: int, chunks: Chunks | None, held: Sequence[Connection]
) -> None:
    """Build a segment of chunks, inherited or still to come, and hand it back to the process that asked.

    A ^C is ignored here: that process handles it, and ends this one.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # The other process's ends of connections, which a fork has, too. As long as it did, it could not tell that the
    # other is gone, and would wait for ever for room to write in.
    for end in held:
        end.close()
    try:
        if chunks is None:
            chunks = connection.recv()
        positions: Offsets = np.arange(first, first + len(chunks.texts))
        segment = build(chunks, positions, progress=lambda done, _: connection.send(done))
        with _shared_file() as file:
            storage.write_arrays(file, segment)
            file.flush()
            connection.send("built")
            send_handle(connection, file.fileno(), os.getppid())
    except (ConnectionError, EOFError):
        pass  # the process that asked is gone
    except Exception as error:
        connection.send(error)


def _shared_file() -> BinaryIO:
    """Open a file in memory; on a system that has none, a file without a name."""
    has_memory = hasattr(os, "memfd_create")
    return (
        os.fdopen(os.memfd_create("relevance_gen segment"), "w+b")
        if has_memory
        else tempfile.TemporaryFile()
    )
