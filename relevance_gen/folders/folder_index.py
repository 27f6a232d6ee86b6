"""An index of a folder that is updated before each search.

Before a search, the folder is walked, and files whose fingerprint has changed are read again. A
change without a new fingerprint is not detected: a write into mapped memory until the system has
written it to the file, a change while the clock is set back, and a change that a network file
system does not report yet.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from os import PathLike
from typing import Final

from attrs import asdict, evolve

import relevance_gen
from relevance_gen import checks, forks
from relevance_gen.documents.extraction import unavailable_reason
from relevance_gen.documents.globs import paths_matching
from relevance_gen.documents.reading import chunk_title
from relevance_gen.documents.walker import Selection, Walker
from relevance_gen.errors import InvalidRequestError, pluralize
from relevance_gen.folders.cache import CachedIndex, Fingerprint, cache_for, fingerprint
from relevance_gen.folders.files import (
    ReadFile,
    Skipped,
    concat_locations,
    from_json,
    to_json,
)
from relevance_gen.folders.reader import STILL_BEING_READ, FolderReader
from relevance_gen.folders.root import check_root
from relevance_gen.folders.snapshot import FolderSnapshot, Lines
from relevance_gen.index.chunks import Chunks
from relevance_gen.progress import draw_bar
from relevance_gen.request_scope import raise_if_cancelled
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.chunk_index import ChunkIndex
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.stages.neighbors import MAX_NEIGHBORS
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.text.token_counting import Encoding, token_counter
from relevance_gen.types import Explanation, SearchResponse, WeightingName

_FORMAT: Final = 3
"""The version of cached indexes: raised when files are read or split differently."""
_MIN_CHANGED_RATIO: Final = 1 / 50
"""A cached index is replaced if a larger fraction of its files or chunks had to be read."""
_MAX_WAIT_S: Final = 1.0
"""Seconds that a thread waits while another thread reads files, until it uses the last snapshot."""
_PUBLISH_INTERVAL_S: Final = 2.0
"""Seconds of reading after which a snapshot is published if threads wait; doubled each time."""
_POLL_S: Final = 0.05
"""Seconds between two checks whether the request was cancelled."""


class FolderIndex(BaseIndex):
    """A searchable index of the files of a folder, updated before each search. Thread-safe.

    Files are selected as by ``relevance-gen search``. Before each search, the index reads files
    that were added or changed. Results are bit-identical to the results of a new index. The
    metadata of a result has its ``path``, relative to the folder, with ``first_line`` and
    ``last_line``, from 1, or the ``page``, ``slide``, ``sheet`` or ``chapter``, and ``start`` and
    ``end``, characters of that text, from 0.

    Files are read at the first search. The index is cached in the user's cache folder for the next
    process; see `relevance_gen.folders.cache`. Documents, such as PDF and HTML, are parsed in
    separate processes; a document whose parser exceeds 20 s of CPU time or 1 GiB of memory is
    skipped. While one thread reads files for more than a second, other threads use the last
    snapshot of the folder.

    Args:
        root: the folder.
        glob: patterns as in an ignore file, relative to the folder. The last pattern that matches a
            file decides: the file is included, or excluded if the pattern begins with ``!``. A file
            without a matching pattern is excluded, unless all patterns begin with ``!``. Patterns
            also include hidden and ignored files.
        types: names of the types of the files to include, as in
            ``relevance-gen search --type-list``; empty for all types.
        hidden: whether to include names that begin with a dot.
        no_ignore: whether to include files that ignore files exclude.
        follow: whether to follow symbolic links, also to files outside the folder.
        max_chars: maximum characters of a chunk.
        max_files: maximum number of files; a folder with more is refused before any is read.
        by_file: whether to rank files, with the best passage of each as its result; see
            `relevance_gen.folders.file_ranking`. False ranks passages, as `ChunkIndex` does.
        weighting: as for `ChunkIndex`.
        encoding: as for `ChunkIndex`.
        n_jobs: as for `ChunkIndex`.
        cache: the folder of cached indexes, which is created unless it exists; None for the user's
            cache folder, which is not used if it cannot be written; False for no cache.
        shown_as: a path that precedes the paths in results.

    Attributes:
        root: the folder, without links.
        activity: a description of the current work, for progress displays.

    Raises:
        InvalidRequestError: an argument is invalid, the folder does not exist, or `cache` cannot be
            written.

    >>> index = FolderIndex("relevance_gen/sandbox", cache=False)
    >>> index.search("a program in a child process", top_n=1)[0].metadata["path"]
    '__init__.py'
    """

    default_neighbors = MAX_NEIGHBORS

    def __init__(
        self,
        root: str | PathLike[str],
        *,
        glob: str | Sequence[str] = (),
        types: str | Sequence[str] = (),
        hidden: bool = False,
        no_ignore: bool = False,
        follow: bool = False,
        max_chars: int = 1000,
        max_files: int = 200_000,
        by_file: bool = True,
        weighting: WeightingName = "pivoted",
        encoding: Encoding | None = None,
        n_jobs: int | None = 1,
        cache: str | PathLike[str] | bool | None = None,
        shown_as: str = "",
    ) -> None:
        is_path = isinstance(root, str | PathLike) and os.fspath(root) not in ("", b"")
        if not is_path:
            raise InvalidRequestError.must_be("root", "the path of a folder", root)
        checks.check_path_characters("root", str(root))
        self.root = os.path.realpath(root)
        check_root(self.root)
        checks.flag.check("by_file", by_file)
        checks.string.check("shown_as", shown_as)
        max_chars = checks.check_integer("max_chars", max_chars, 1)
        self._max_files = checks.check_integer("max_files", max_files, 1)
        self._selection = Selection(hidden, no_ignore, follow, glob, types)
        self._walk_errors: dict[str, str] = {}
        self._walker = Walker(self._selection, self._walk_errors.__setitem__)
        self._reader = FolderReader(self.root, follow, max_chars)
        weighting_named(weighting)
        self._build = partial(ChunkIndex, weighting=weighting, encoding=encoding, n_jobs=n_jobs)
        self._encoding = encoding
        counter = token_counter(encoding)
        cache_key = [
            self.root,
            _FORMAT,
            relevance_gen.__version__,
            unavailable_reason("PDF") is None,
            asdict(self._selection),
            max_chars,
            weighting,
            counter.name,
            counter.fingerprint,
        ]
        self._cache = cache_for(cache, cache_key)
        self._new_snapshot = partial(
            FolderSnapshot,
            root=self.root,
            follow=follow,
            shown_as=os.path.join(shown_as, ""),
            by_file=by_file,
        )
        self._lock = threading.Lock()  # held by the thread that walks and reads
        self._waiting_threads: set[int] = set()
        self._last: FolderSnapshot | None = None
        self._n_changed_files = 0
        self._n_changed_chunks = 0
        self._is_saved = False
        self.activity = ""
        forks.register(self)

    def renew_after_fork(self) -> None:
        """Create the lock again, and discard the documents that threads of the parent read."""
        self._lock = threading.Lock()
        self._waiting_threads.clear()
        self._reader.renew_after_fork()

    def __len__(self) -> int:
        return len(self._last_or_first)

    def __repr__(self) -> str:
        return f"<FolderIndex of {self.root}>"

    @property
    def nbytes(self) -> int:
        """Memory of the texts, of the index and of its caches, in bytes."""
        return self._last_or_first.nbytes

    @property
    def skipped(self) -> Skipped:
        """The files that the last snapshot does not contain, or only in part, with the reasons."""
        return self._last_or_first.skipped

    @property
    def _last_or_first(self) -> FolderSnapshot:
        return self._last or self.snapshot()

    # ── Searching ────────────────────────────────────────────────────────────────────────────────

    def answer_all(
        self,
        searches: Sequence[SearchParams],
        models: SearchModels = NO_MODELS,
        *,
        allow_partial: bool = False,
    ) -> list[SearchResponse]:
        """Update the index, and return the response to each search of the new snapshot.

        An encoder encodes the best lexical candidates during the search: no vectors are stored.
        """
        return self.snapshot().answer_all(searches, models, allow_partial=allow_partial)

    def explain_one(
        self, params: SearchParams, chunk: int, models: SearchModels = NO_MODELS
    ) -> Explanation:
        """Explain the score of a chunk of the last snapshot for one search, without an update.

        `chunk` is the index of the chunk in the snapshot, as in a result's ``original_index``.
        """
        return self._last_or_first.explain_one(params, chunk, models)

    def files(self, glob: str | Sequence[str] = ()) -> list[str]:
        """Update the index, and return the paths of its files, files of a folder before subfolders.

        Args:
            glob: patterns, as for the class, that select files; by default all.

        Raises:
            InvalidRequestError: a pattern is invalid.
        """
        return list(paths_matching(Selection(glob=glob).glob, self.snapshot().files))

    def read(
        self,
        path: str,
        first_line: int = 1,
        last_line: int | None = None,
    ) -> Lines:
        """Update the index, and return lines of a file; for a document, of its extracted text.

        Files that `files` does not return, such as hidden and ignored files, cannot be read.

        Args:
            path: a path that `files` returns.
            first_line: number of the first line to return, from 1.
            last_line: number of the last line to return; None, or a number after the end of the
                file, means the last line of the file.

        Raises:
            InvalidRequestError: `files` does not return the path, the file cannot be read, a line
                number is invalid, or the file has fewer than `first_line` lines; an empty file
                accepts `first_line` 1.
        """
        return self.snapshot().read(path, first_line, last_line)

    # ── Updating ─────────────────────────────────────────────────────────────────────────────────

    def snapshot(self, max_wait_s: float | None = None) -> FolderSnapshot:
        """Update the index, as every search does, and return an immutable snapshot of the folder.

        Args:
            max_wait_s: seconds after which the snapshot is returned without the documents that are
                still being read, which its `skipped` lists; None waits for all documents.

        Raises:
            InvalidRequestError: the folder does not exist, or has too many files.
            RequestCancelledError: the request was cancelled.
        """
        last = self._acquire_lock()
        if last is not None:
            return last
        try:
            return self._refresh(max_wait_s)
        finally:
            self._lock.release()

    def _acquire_lock(self) -> FolderSnapshot | None:
        """Acquire the lock and return None; if that takes too long, return the latest snapshot.

        The snapshot is returned, and the lock is not acquired, if this call has waited for the lock
        for `_MAX_WAIT_S`. If no snapshot exists yet, the call waits until it has the lock.
        """
        thread = threading.get_ident()
        deadline_s = time.monotonic() + _MAX_WAIT_S
        self._waiting_threads.add(thread)
        try:
            while not self._lock.acquire(timeout=_POLL_S):
                raise_if_cancelled()
                if self._last is not None and time.monotonic() > deadline_s:
                    return self._last
            return None
        finally:
            self._waiting_threads.discard(thread)

    def _refresh(self, max_wait_s: float | None) -> FolderSnapshot:
        """Update the index until all documents are read or `max_wait_s` is over; return a snapshot.

        The caller must hold the lock.
        """
        schedule = _PublishSchedule(self._waiting_threads, max_wait_s)
        while True:
            state = self._update(schedule.is_due)
            self._last = state
            if STILL_BEING_READ not in state.skipped.failures.values():
                self._save(state)
                return state
            if schedule.is_over:
                return state
            schedule.postpone()

    def _update(self, is_due: Callable[[], bool]) -> FolderSnapshot:
        """Walk the folder, read changed files, and return the new snapshot.

        When `is_due` returns true, documents that are still being read are left for the next call.
        The caller must hold the lock.
        """
        check_root(self.root)
        previous = self._last or self._first_snapshot()
        known = {path: file.fingerprint for path, file in previous.files.items()}
        fingerprints = self._walk()
        changed = {
            path
            for path, current in fingerprints.items()
            if not current or known.get(path) != current
        }
        n_changed = len(changed) + len(known.keys() - fingerprints.keys())
        state = self._read(previous, fingerprints, changed, is_due) if n_changed else previous
        self._reader.release(
            path for path in changed if state.files[path].warning != STILL_BEING_READ
        )
        self._n_changed_files += n_changed
        self._n_changed_chunks += state.positions(changed).size
        return evolve(state, skipped=self._skipped(state))

    def _walk(self) -> dict[str, Fingerprint | None]:
        """Walk the folder, and return the fingerprint of each file by path.

        The fingerprint is None if the status of the file cannot be read.

        Raises:
            InvalidRequestError: there are more than `max_files` files.
        """
        self._walker.n_links = 0
        self._walk_errors.clear()
        fingerprints: dict[str, Fingerprint | None] = {}
        for path, entry in self._walker.entries(self.root):
            if len(fingerprints) == self._max_files:
                limit = pluralize(self._max_files, "file")
                remedy = "choose with glob or types, name a folder in it, or raise max_files"
                raise InvalidRequestError(f"holds more than {limit}", "root", remedy=remedy)
            try:
                status = entry.stat(follow_symlinks=self._selection.follow)
                fingerprints[path] = fingerprint(status)
            except FileNotFoundError:  # removed since it was listed
                continue
            except OSError:
                fingerprints[path] = None
        return fingerprints

    def _read(
        self,
        previous: FolderSnapshot,
        paths: Iterable[str],
        changed: set[str],
        is_due: Callable[[], bool],
    ) -> FolderSnapshot:
        """Read changed files, and return a snapshot in which they replace the old records.

        Args:
            previous: the last snapshot.
            paths: all files of the folder, in the order of the walk.
            changed: the files to read.
            is_due: returns whether to leave unfinished documents for the next call.
        """
        read = self._reader.read(
            [path for path in paths if path in changed], self._report_reading, is_due
        )
        files = {
            path: read[path].record if path in read else previous.files[path] for path in paths
        }
        chunks = _concat_chunks(read)
        state = evolve(previous, files=files)
        removed = previous.positions(
            path for path in previous.paths if path in changed or path not in files
        )
        added = state.positions(path for path in state.paths if path in changed)
        if added.size == state.bounds[-1]:
            return evolve(state, index=self._build(chunks, progress=self._report_indexing))
        if not removed.size and not added.size:
            return state
        return evolve(state, index=previous.index.with_changes(removed, chunks, added))

    def _report_reading(self, path: str) -> None:
        self.activity = f"reading {path}"

    def _report_indexing(self, n_done: int, n_total: int) -> None:
        self.activity = f"indexing {draw_bar(n_done, n_total)}"

    def _skipped(self, state: FolderSnapshot) -> Skipped:
        prefix = state.shown_as
        failures = {prefix + path: reason for path, reason in self._walk_errors.items()}
        by_kind: Counter[tuple[str, str]] = Counter()
        for path, file in state.files.items():
            if file.warning is None:
                continue
            if file.skipped_kind is None:
                failures[prefix + path] = file.warning
            else:
                by_kind[file.skipped_kind, file.warning] += 1
        return Skipped(failures, by_kind, self._walker.n_links)

    def _first_snapshot(self) -> FolderSnapshot:
        """Return the snapshot that an earlier process cached; without it, one of no files.

        A damaged cached snapshot is ignored.
        """
        cached = None if self._cache is None else self._cache.load(self._encoding)
        if cached is not None:
            with suppress(LookupError, TypeError, ValueError):
                files = from_json(cached.records, cached.locations)
                state = self._new_snapshot(cached.index, files)
                if state.bounds[-1] == len(cached.index):
                    return state
        return self._new_snapshot(self._build(()), {})

    def _save(self, state: FolderSnapshot) -> None:
        """Save the first complete snapshot in the cache; do nothing for later snapshots.

        The snapshot is not saved if the cached index is almost up to date: if the fraction of files
        and of chunks that had to be read is at most `_MIN_CHANGED_RATIO`.
        """
        if self._is_saved or self._cache is None:
            return
        self._is_saved = True
        files_changed = self._n_changed_files > _MIN_CHANGED_RATIO * len(state.files)
        chunks_changed = self._n_changed_chunks > _MIN_CHANGED_RATIO * len(state)
        if files_changed or chunks_changed:
            locations = concat_locations(state.files)
            self._cache.save(CachedIndex(state.index, to_json(state.files), locations))


def _concat_chunks(files: Mapping[str, ReadFile]) -> Chunks:
    """Return the chunks of all files in order, with their titles and without metadata."""
    texts: list[str] = []
    titles: list[str] = []
    for path, file in files.items():
        texts += file.texts
        titles += [chunk_title(path, headings) for headings in file.headings]
    return Chunks(texts, {}, dict(enumerate(titles)))


class _PublishSchedule:
    """Decides when a snapshot is published although documents are still being read.

    While other threads wait for a snapshot, a snapshot is published after each interval. The first
    interval is `_PUBLISH_INTERVAL_S` seconds.

    Args:
        waiting_threads: identifiers of the threads that wait for a snapshot; other threads may
            change this set at any time.
        max_wait_s: seconds that the thread that reads the files waits for documents; None means
            until all documents are read.
    """

    def __init__(self, waiting_threads: set[int], max_wait_s: float | None) -> None:
        now_s = time.monotonic()
        self._waiting_threads = waiting_threads
        self._deadline_s = None if max_wait_s is None else now_s + max_wait_s
        self._interval_s = _PUBLISH_INTERVAL_S
        self._publish_s = now_s + self._interval_s

    @property
    def is_over(self) -> bool:
        """Whether `max_wait_s` seconds have passed since this schedule was created."""
        return self._deadline_s is not None and time.monotonic() >= self._deadline_s

    def is_due(self) -> bool:
        """Return whether a snapshot must be published now.

        This is true if `is_over`, or if other threads wait and the interval has passed.
        """
        has_waiting = bool(self._waiting_threads)
        return self.is_over or (has_waiting and time.monotonic() >= self._publish_s)

    def postpone(self) -> None:
        """Double the interval and restart it: each publication costs an update of the index."""
        self._interval_s *= 2
        self._publish_s = time.monotonic() + self._interval_s
