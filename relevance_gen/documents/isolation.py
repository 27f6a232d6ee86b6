"""Extract the text of untrusted documents in child processes."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final

from attrs import field, frozen

from relevance_gen import forks
from relevance_gen.documents.extraction import Extracted
from relevance_gen.errors import GenerationError
from relevance_gen.machine import usable_cpus
from relevance_gen.sandbox import Sandbox

TIMEOUT_S: Final = 20.0
"""CPU seconds that one document may take."""
MEMORY_BYTES: Final = 1 << 30
"""Maximum address space of one child process."""
PROGRAM: Final = Path(__file__).with_name("extraction_program.py")
UNAVAILABLE: Final = "cannot be read now, no process can be started"
"""The warning for a document that was not read because its process could not start or was killed
from outside; the next attempt may succeed.
"""

_MAX_PROCESSES: Final = 4
_BATCH_BYTES: Final = 1 << 20
"""Small documents are sent together until they have this size: each call takes about 1 ms."""
_MAX_BATCH: Final = 32
"""Maximum number of documents that are sent together."""
_IDLE_S: Final = 30.0
"""Seconds without work after which a thread and its child process end."""


class DocumentPool:
    """Threads that extract texts of documents, each in a child process of its own. Thread-safe.

    Threads start on demand, and end after `_IDLE_S` without work.

    Args:
        n_processes: maximum number of threads, and so of child processes.
        timeout_s: maximum CPU seconds for one document.
        memory_bytes: maximum address space of a child process.
    """

    def __init__(
        self, n_processes: int, timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self.n_processes = n_processes
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._failures = (
            f"took more than {timeout_s:g} s of processor time to read",
            "cannot be read within the memory allowed",
        )
        self.renew_after_fork()
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Discard threads and jobs, because a forked process lacks the threads of its parent."""
        self._jobs: queue.SimpleQueue[_ExtractionJob] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._n_threads = 0
        self._n_unfinished = 0

    def submit(self, name: str, content: bytes) -> Future[Extracted]:
        """Queue a document for extraction, and return the future of its `Extracted`.

        An error of the extraction becomes the warning of the `Extracted`.

        Args:
            name: the name of the file, or its suffix, which can decide the format.
            content: the bytes of the file.
        """
        job = _ExtractionJob(name, content)
        with self._lock:
            self._n_unfinished += 1
            starts = self._n_threads < min(self._n_unfinished, self.n_processes)
            self._n_threads += starts
        self._jobs.put(job)
        if starts:
            threading.Thread(target=self._work, daemon=True).start()
        return job.future

    def _work(self) -> None:
        """Process queued jobs in this thread until no job arrives for `_IDLE_S`."""
        sandbox = Sandbox(PROGRAM, timeout_s=self._timeout_s, memory_bytes=self._memory_bytes)
        while True:
            try:
                batch = [self._jobs.get(timeout=_IDLE_S)]
            except queue.Empty:
                with self._lock:
                    # `submit` may have counted a job that it has not put into the queue yet.
                    if self._n_unfinished >= self._n_threads:
                        continue
                    self._n_threads -= 1
                sandbox.close()
                return
            self._extend(batch)
            self._process(sandbox, batch)
            with self._lock:
                self._n_unfinished -= len(batch)

    def _extend(self, batch: list[_ExtractionJob]) -> None:
        """Add queued jobs to a batch until it has `_BATCH_BYTES` or `_MAX_BATCH` documents.

        Does not wait for further jobs.
        """
        n_bytes = len(batch[0].content)
        while n_bytes < _BATCH_BYTES and len(batch) < _MAX_BATCH:
            try:
                job = self._jobs.get_nowait()
            except queue.Empty:
                return
            batch.append(job)
            n_bytes += len(job.content)

    def _process(self, sandbox: Sandbox, batch: list[_ExtractionJob]) -> None:
        """Extract the documents of a batch, and set the results of the futures of its jobs.

        Cancelled jobs are skipped. The documents are extracted in one call of the sandbox; if that
        call exceeds a limit of the sandbox, in one call for each document.
        """
        active = [job for job in batch if job.future.set_running_or_notify_cancel()]
        texts = self._extract(sandbox, active) if active else []
        if len(active) > 1 and texts[0].warning in self._failures:
            texts = [self._extract(sandbox, [job])[0] for job in active]
        for job, text in zip(active, texts, strict=True):
            job.future.set_result(text)

    def _extract(self, sandbox: Sandbox, batch: list[_ExtractionJob]) -> list[Extracted]:
        """Return the text of each document, extracted in one call of the sandbox.

        If the call fails, each document has the same warning and no text.
        """
        files = [[job.name, len(job.content)] for job in batch]
        content = b"".join(job.content for job in batch)
        try:
            answer = sandbox.call({"files": files}, content)
            return list(map(_to_extracted, answer["documents"]))
        except TimeoutError:
            warning = self._failures[0]
        except EOFError:
            warning = self._failures[1]
        except GenerationError:
            warning = UNAVAILABLE
        except Exception as error:  # without a result the caller would wait forever
            warning = f"cannot be read ({type(error).__name__})"
        return [Extracted(warning=warning) for _ in batch]


def _to_extracted(fields: dict[str, Any]) -> Extracted:
    parts = [(location, text) for location, text in fields.pop("parts")]
    return Extracted(parts, **fields)


@frozen
class _ExtractionJob:
    """A queued document, and the future of its text."""

    name: str
    content: bytes
    future: Future[Extracted] = field(factory=Future)


POOL: Final = DocumentPool(min(_MAX_PROCESSES, usable_cpus()))
"""The pool that all indexes of folders in this process share."""
