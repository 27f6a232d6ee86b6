"""Read the files of a folder: plain text in this process, documents in isolated processes.

A document that crashes its parser, or takes too much time or memory, affects only the process that
parses it. Documents do not delay the files that can be read without a parser. The result of a
document is retained until a snapshot contains it, also if the request that waits for the result is
cancelled.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from typing import Final

from attrs import define, evolve, field, frozen

from relevance_gen.documents import extraction, isolation
from relevance_gen.documents.charset import PROBED_BYTES
from relevance_gen.documents.extraction import Extracted
from relevance_gen.documents.walker import open_regular_file
from relevance_gen.errors import InvalidRequestError
from relevance_gen.folders import files as files_module
from relevance_gen.folders.cache import Fingerprint
from relevance_gen.folders.files import FileRecord, LineReader, ReadFile
from relevance_gen.request_scope import raise_if_cancelled, reserve

STILL_BEING_READ: Final = "is still being read"
"""The warning for a document whose text is not available yet."""

_POLL_S: Final = 0.05
"""Seconds between two checks whether the request was cancelled."""
_MAX_DOCUMENTS: Final = 128
"""Maximum number of documents that are held in memory at once, queued or being read."""
_MAX_DOCUMENT_BYTES: Final = 64 << 20
"""Maximum total size of these documents; a larger document is read alone."""
_BYTES_PER_UNIT: Final = 4
"""Bytes of a file for which one ``body_byte`` is reserved: a document takes about two bytes of
memory per byte of the file, and a ``body_byte`` is nine."""


@frozen
class _Document:
    """A document that is queued, is being read or was read, and the future of its text."""

    fingerprint: Fingerprint | None
    n_bytes: int
    extraction_future: Future[Extracted]


@define
class FolderReader:
    """Reads files of a folder and splits them into chunks. Not thread-safe.

    Args:
        root: the folder.
        follow: whether to follow symbolic links.
        max_chars: maximum characters of a chunk.
    """

    root: str
    follow: bool
    max_chars: int
    _documents: dict[str, _Document] = field(factory=dict, init=False)
    _unfinished: list[_Document] = field(factory=list, init=False)

    def renew_after_fork(self) -> None:
        """Discard all documents, because a forked process lacks the threads that read them."""
        self._documents.clear()
        self._unfinished.clear()

    def read(
        self,
        paths: Sequence[str],
        report: Callable[[str], object],
        is_due: Callable[[], bool],
    ) -> dict[str, ReadFile]:
        """Read files, and wait for the texts of documents until `is_due` returns true.

        Args:
            paths: the files, relative to the folder.
            report: called with each path before the file is read.
            is_due: called repeatedly while documents are being read. When it returns true, the
                remaining documents get the warning `STILL_BEING_READ`.

        Returns:
            The record and the chunks of each file, in the order of `paths`; an error is the warning
            of the record.

        Raises:
            RequestCancelledError: the request was cancelled.
        """
        for path in self._documents.keys() - set(paths):  # these need not be read any more
            self._documents.pop(path).extraction_future.cancel()
        results: dict[str, ReadFile] = {}
        pending: list[str] = []
        queue: deque[str] = deque()
        for path in paths:
            raise_if_cancelled()
            report(path)
            file = self._read_text(path)
            if file is not None:
                results[path] = file
            elif path in self._documents:
                pending.append(path)
            else:
                queue.append(path)
        pending = self._collect(pending, results)
        while (pending or queue) and not is_due():
            raise_if_cancelled()
            while queue and self._has_capacity():
                path = queue.popleft()
                report(path)
                file = self._read_text(path)
                if file is None:
                    pending.append(path)
                else:
                    results[path] = file
            futures = [self._documents[path].extraction_future for path in pending]
            if futures:
                wait(futures, timeout=_POLL_S, return_when=FIRST_COMPLETED)
            else:  # the parsers are still reading documents that were discarded
                time.sleep(_POLL_S)
            pending = self._collect(pending, results)
        for path in (*pending, *queue):
            results[path] = ReadFile(FileRecord(None, warning=STILL_BEING_READ))
        return {path: results[path] for path in paths}

    def release(self, paths: Iterable[str]) -> None:
        """Discard the documents at `paths`, because a snapshot now contains their texts."""
        for path in paths:
            self._documents.pop(path, None)

    def _read_text(self, path: str) -> ReadFile | None:
        """Read and return a file that needs no parser; give a document to the parsers.

        A document is given to the parsers only if `_has_capacity` is true and they do not have it
        yet.

        Returns:
            The file; None for a document, whose text arrives later, or which must be passed to this
            method again because there was no capacity.
        """
        file = files_module.read_file(os.path.join(self.root, path), follow=self.follow)
        content = file.content
        if content is None:
            return ReadFile(FileRecord(file.fingerprint, warning=file.warning))
        if not extraction.needs_parser(path, content):
            text = extraction.read(path, content)
            return ReadFile.from_text(text, file.fingerprint, self.max_chars)
        document = self._documents.get(path)
        if document is not None:
            if document.fingerprint is not None and document.fingerprint == file.fingerprint:
                return None
            document.extraction_future.cancel()
            del self._documents[path]
        if self._has_capacity():
            text_future = isolation.POOL.submit(path, content)
            document = _Document(file.fingerprint, len(content), text_future)
            self._documents[path] = document
            self._unfinished.append(document)
        return None

    def _has_capacity(self) -> bool:
        """Return whether another document may be given to the parsers.

        The documents that are being parsed are limited in number and total size; finished documents
        do not count.
        """
        self._unfinished = [
            document for document in self._unfinished if not document.extraction_future.done()
        ]
        n_bytes = sum(document.n_bytes for document in self._unfinished)
        return len(self._unfinished) < _MAX_DOCUMENTS and n_bytes < _MAX_DOCUMENT_BYTES

    def _collect(
        self,
        pending: list[str],
        results: dict[str, ReadFile],
    ) -> list[str]:
        """Add the finished documents of `pending` to `results`, and return the unfinished paths."""
        unfinished = []
        for path in pending:
            document = self._documents[path]
            if not document.extraction_future.done():
                unfinished.append(path)
                continue
            extracted = document.extraction_future.result()
            is_final = extracted.warning != isolation.UNAVAILABLE
            fingerprint = document.fingerprint if is_final else None
            results[path] = ReadFile.from_text(extracted, fingerprint, self.max_chars)
        return unfinished


def read_lines(path: str, requested: LineReader, *, follow: bool) -> LineReader:
    """Return a range of lines of a file; a document is parsed in an isolated process.

    Args:
        path: the file.
        requested: a reader of the range, which has read nothing; it is not changed.
        follow: whether to follow a symbolic link.

    Returns:
        A copy of `requested` that has read the file.

    Raises:
        InvalidRequestError: the file cannot be read.
        RequestCancelledError: the request was cancelled.
        TooLargeError: the request may not hold the file in memory.
    """
    try:
        with open(open_regular_file(path, follow=follow), "rb") as file:
            beginning = file.read(PROBED_BYTES)
            if extraction.may_need_parser(path, beginning):
                reserve("body_byte", os.fstat(file.fileno()).st_size // _BYTES_PER_UNIT)
                content = beginning + file.read(extraction.MAX_BYTES)
                if extraction.needs_parser(path, content):
                    return _document_lines(path, content, requested)
            file.seek(0)
            lines = files_module.read_lines(file, requested)
    except OSError as error:
        raise InvalidRequestError(error.strerror or str(error)) from None
    if lines is None:
        reason = extraction.read(path, beginning).warning
        raise InvalidRequestError(reason or "is binary, not text")
    return lines


def _document_lines(path: str, content: bytes, requested: LineReader) -> LineReader:
    future = isolation.POOL.submit(path, content)
    while not future.done():
        raise_if_cancelled()
        wait([future], timeout=_POLL_S)
    extracted = future.result()
    if extracted.warning is not None and not extracted.parts:
        raise InvalidRequestError(extracted.warning)
    lines = evolve(requested)
    lines.add("\n".join(text for _, text in extracted.parts))
    return lines
