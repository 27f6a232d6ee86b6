"""Documents of clients to text, in a sandbox: a process of its own with limits of time and memory."""

from __future__ import annotations

import base64
import binascii
import queue
from pathlib import Path

from attrs import frozen

import relevance_gen.documents
from relevance_gen.errors import BusyError, GenerationError, InvalidRequestError
from relevance_gen.sandbox import Sandbox
from relevance_gen.types import DocumentPart, ExtractionResponse

TIMEOUT_S = 20.0
MEMORY_BYTES = 1 << 30
AT_ONCE = 4
_PROGRAM = Path(relevance_gen.documents.__file__).with_name("extraction_program.py")


@frozen
class ExtractionTask:
    """A document whose text is to be extracted: its bytes as base64, and its file name, which may be empty."""

    content: str
    name: str = ""


class Extractor:
    """Takes the text out of documents, `AT_ONCE` of them at a time. A process starts when it is first needed."""

    def __init__(self, timeout_s: float = TIMEOUT_S, memory_bytes: int = MEMORY_BYTES) -> None:
        self._timeout_s = timeout_s
        self._sandboxes = [
            Sandbox(_PROGRAM, timeout_s=timeout_s, memory_bytes=memory_bytes)
            for _ in range(AT_ONCE)
        ]
        self._free: queue.LifoQueue[Sandbox] = (
            queue.LifoQueue()
        )  # the one used last, which runs already, comes first
        for sandbox in self._sandboxes:
            self._free.put(sandbox)

    def close(self) -> None:
        """End the processes."""
        for sandbox in self._sandboxes:
            sandbox.close()

    def extract(self, task: ExtractionTask) -> ExtractionResponse:
        """Return the text of a document, or of as much of it as can be read.

        Raises:
            InvalidRequestError: nothing of it can be read.
            BusyError: no process can be started now, or it was killed from outside.
        """
        try:
            content = base64.b64decode(task.content, validate=True)
        except (binascii.Error, ValueError):
            raise InvalidRequestError("must be base64", "content") from None
        sandbox = self._free.get()
        try:
            found = sandbox.call({"name": task.name}, content)
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
        warning = found["warning"]
        if warning is not None and warning.startswith("needs "):
            warning += " on the server"
        if not any(text for _, text in found["parts"]):
            raise InvalidRequestError(warning or "holds no text", "content")
        parts = tuple(DocumentPart(place, text) for place, text in found["parts"])
        return ExtractionResponse(parts, warning)
