"""Extract the text of untrusted documents in child processes."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from pathlib import Path
from typing import Final

from relevance_gen.documents.extraction import Extracted
from relevance_gen.errors import GenerationError
from relevance_gen.machine import usable_cpus
from relevance_gen.sandbox import Sandbox

TIMEOUT_S: Final = 20.0
"""CPU seconds that one document may take."""
MEMORY_BYTES: Final = 1 << 30
"""Address space of one process."""
PROGRAM: Final = Path(__file__).with_name("extraction_program.py")
UNAVAILABLE: Final = "cannot be read now, no process can be started"
"""The warning for a document that was not tried; the next attempt may succeed."""

_MAX_PROCESSES: Final = 4
_IDLE_S: Final = 30.0
"""Seconds after which a process without work ends."""


class DocumentPool:
    """Threads with a sandbox each, which start on demand and end when they are idle. Thread-safe.

    Args:
        n_processes: maximum number of processes.
        timeout_s: CPU seconds of one document.
        memory_bytes: maximum address space of a process.
    """

    def __init__(
        self, n_processes: int, timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES
    ) -> None:
        self.n_processes = n_processes
        self._timeout_s = timeout_s
        self._memory_bytes = memory_bytes
        self._jobs: queue.SimpleQueue[_Job] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._n_threads = 0
        self._n_unfinished = 0

    def submit(self, name: str, content: bytes) -> Future[Extracted]:
        """Begin to extract the text of a document; errors become warnings of the result."""
        job = _Job(name, content)
        with self._lock:
            self._n_unfinished += 1
            starts = self._n_threads < min(self._n_unfinished, self.n_processes)
            self._n_threads += starts
        self._jobs.put(job)
        if starts:
            threading.Thread(target=self._work, daemon=True).start()
        return job.future

    def _work(self) -> None:
        """Process jobs until none comes for `_IDLE_S`."""
        sandbox = Sandbox(PROGRAM, timeout_s=self._timeout_s, memory_bytes=self._memory_bytes)
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE_S)
            except queue.Empty:
                with self._lock:
                    if self._n_unfinished >= self._n_threads:  # a job is on its way
                        continue
                    self._n_threads -= 1
                sandbox.close()
                return
            if job.future.set_running_or_notify_cancel():
                job.future.set_result(self._extract(sandbox, job))
            with self._lock:
                self._n_unfinished -= 1

    def _extract(self, sandbox: Sandbox, job: _Job) -> Extracted:
        try:
            answer = sandbox.call({"name": job.name}, job.content)
            parts = [(place, text) for place, text in answer.pop("parts")]
            return Extracted(parts, **answer)
        except TimeoutError:
            seconds = f"{self._timeout_s:g} s of processor time"
            return Extracted(warning=f"took more than {seconds} to read")
        except EOFError:
            return Extracted(warning="cannot be read within the memory allowed")
        except GenerationError:
            return Extracted(warning=UNAVAILABLE)
        except Exception as error:  # without a result the caller would wait forever
            return Extracted(warning=f"cannot be read ({type(error).__name__})")


class _Job:
    """A document to extract, and the future of its text."""

    def __init__(self, name: str, content: bytes) -> None:
        self.name = name
        self.content = content
        self.future: Future[Extracted] = Future()


POOL: Final = DocumentPool(min(_MAX_PROCESSES, usable_cpus()))
"""The processes that the folders of this process share."""
