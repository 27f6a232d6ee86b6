"""Text extraction: clients' documents to text, in sandbox processes with time and memory limits."""

from __future__ import annotations

import base64
import queue
from pathlib import Path
from typing import Final

from attrs import frozen

import relevance_gen.documents
from relevance_gen.errors import BusyError, GenerationError, InvalidRequestError
from relevance_gen.sandbox import Sandbox
from relevance_gen.types import DocumentPart, ExtractionResponse

TIMEOUT_S: Final = 20.0
MEMORY_BYTES: Final = 1 << 30
MAX_CONCURRENCY: Final = 4
_PROGRAM = Path(relevance_gen.documents.__file__).with_name("extraction_program.py")


@frozen
class ExtractionTask:
    """A document whose text is extracted.

    Attributes:
        content: the bytes of the document as base64.
        name: the file name, which may be empty.
    """

    content: str
    name: str = ""


class Extractor:
    """Extracts the text of documents, `MAX_CONCURRENCY` at a time.

    A sandbox process starts when it is first needed.

    Args:
        timeout_s: maximum CPU seconds for one document.
        memory_bytes: maximum address space of a sandbox process.
    """

    def __init__(self, timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._timeout_s = timeout_s
        self._sandboxes = [
            Sandbox(_PROGRAM, timeout_s=timeout_s, memory_bytes=memory_bytes)
            for _ in range(MAX_CONCURRENCY)
        ]
        # Last in, first out: a sandbox whose process is running is used first.
        self._free: queue.LifoQueue[Sandbox] = queue.LifoQueue()
        for sandbox in self._sandboxes:
            self._free.put(sandbox)

    def close(self) -> None:
        """End the sandbox processes, each after its current document."""
        for sandbox in self._sandboxes:
            sandbox.close()

    def extract(self, task: ExtractionTask) -> ExtractionResponse:
        """Return the text of a document.

        If a part of the document cannot be read, return the text of the other parts and a warning.

        Raises:
            InvalidRequestError: the document is not base64, exceeds a limit of the sandbox, or has
                no text that can be extracted.
            BusyError: no process can be started now, or the sandbox process was killed by another
                process or by the system.
        """
        try:
            content = base64.b64decode(task.content, validate=True)
        except ValueError:
            raise InvalidRequestError("must be base64", "content") from None
        sandbox = self._free.get()
        try:
            answer = sandbox.call({"files": [[task.name, len(content)]]}, content)
            extracted = answer["documents"][0]
        except TimeoutError:
            raise InvalidRequestError(
                f"takes longer than {self._timeout_s:g} seconds to read", "content"
            ) from None
        except EOFError:
            raise InvalidRequestError(
                "cannot be read within the memory allowed", "content"
            ) from None
        except GenerationError:
            raise BusyError("no process can read documents now", retry_after_s=5) from None
        finally:
            self._free.put(sandbox)
        warning = extracted["warning"]
        if warning is not None and warning.startswith("needs "):
            warning += " on the server"
        parts = [DocumentPart(location, text) for location, text in extracted["parts"]]
        if not any(part.text for part in parts):
            raise InvalidRequestError(warning or "holds no text", "content")
        return ExtractionResponse(tuple(parts), warning)
