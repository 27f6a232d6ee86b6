"""An index of the server: a saved index, a folder, or saved shards, reloaded when it changes."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Final, Literal

from attrs import frozen

from relevance_gen.errors import (
    IndexFormatError,
    IndexUnavailableError,
    RelevanceGenError,
    pluralize,
)
from relevance_gen.folders.cache import default_folder, fingerprint
from relevance_gen.folders.folder_index import FolderIndex
from relevance_gen.folders.snapshot import FolderSnapshot
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.chunk_index import ChunkIndex
from relevance_gen.serve.settings import Settings
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.shards.sharded_index import VersionReader
from relevance_gen.shards.versions import IndexVersion, holds_index
from relevance_gen.wire import JsonObject

_log = logging.getLogger(__name__)

_FRESH_S: Final = 1.0
"""How long a check of a file counts: requests to an object store are slow and cost money."""
MAX_DEFER_S: Final = 2.0
"""How long a search waits for a check before the previous version of the index is searched, and how
long a list of indexes waits for all checks."""
_NO_ANSWER: Final = "its store has not answered yet"
_BACKOFF_S: Final = (60.0, 3600.0)
"""First and longest pause before a damaged state is loaded again: loading is expensive."""
_MAX_DAMAGED_STATES: Final = 2
"""Number of damaged states to store: the current state and the state that was opened last."""


@frozen
class _Damage:
    """Information about a version of the index's files that could not be loaded.

    Attributes:
        pause_s: seconds from the last failure until the version may be loaded again.
        until_s: the end of this pause, as a time of `time.monotonic`.
        reason: why the version could not be loaded, for clients.
    """

    pause_s: float
    until_s: float
    reason: str


class ServedIndex:
    """Loads an index in a thread, and again whenever it has changed. Thread-safe.

    All callers that request a refresh while a refresh runs share the next refresh, which sees
    every change before their request.

    Args:
        name: the name of the index.
        location: a file that `ChunkIndex.save` wrote, a folder of documents, or the folder or
            address to which `ClusterIndex.save` wrote.
        settings: the settings of the server.

    Attributes:
        current: the version that can be searched, or why none can; None until the first refresh has
            opened a version that is cached on this machine, or has ended.
    """

    def __init__(self, name: str, location: str, settings: Settings) -> None:
        self.name = name
        self.current: ChunkIndex | FolderSnapshot | str | None = None
        self._location = location if "://" in location else str(Path(location).absolute())
        self._settings = settings
        self._kind: Literal["file", "folder", "shards"] | None = None
        self._folder: FolderIndex | None = None
        self._reader: VersionReader | None = None
        self._failure: str | None = None
        """Why the last refresh failed while an older version is still searched."""
        self._loaded_state: Hashable = None
        """The fingerprint or the manifest of the version that was loaded last."""
        self._checked_s = -math.inf
        self._started_s = -math.inf
        self._confirmed_at = 0.0
        """When the store last confirmed the shards of `current`, in seconds since the epoch."""
        self._has_manifest = False
        """Whether the store has returned the manifest during the running refresh."""
        self._damaged: dict[Hashable, _Damage] = {}
        self._shard_cache: ShardCache | None = None
        folder = default_folder() if settings.shard_cache_bytes else None
        if folder is not None:
            self._shard_cache = ShardCache(folder / "shards", settings.shard_cache_bytes)
        self._request_lock = threading.Lock()
        self._refresh_lock = threading.Lock()
        self._next_refresh: Future[None] | None = None

    def searchable(self) -> BaseIndex:
        """Return the version that can be searched.

        Raises:
            IndexUnavailableError: there is none.
        """
        current = self.current  # read once: a refresh may end at any time
        if isinstance(current, BaseIndex):
            return current
        reason = current or "it is being read"
        if current is None and self.is_store_unreachable:
            reason = _NO_ANSWER
        raise IndexUnavailableError(f"index {self.name} cannot be searched now: {reason}")

    def describe(self) -> JsonObject:
        """Return the description of the index for ``GET /indexes``.

        The keys are ``name``; ``kind``: "file", "folder", "shards", or None if it is not known yet;
        and ``state``: "ready", "reading" or "unavailable". If the state is "ready", ``num_chunks``
        is added. In the other states, ``reason`` is why the index cannot be searched; None while
        it is read. If the index is ready but `is_stale`, ``store_unreachable_since`` (ISO 8601, in
        UTC) and ``reason`` are added.
        """
        current = self.current
        if current is None and self.is_store_unreachable:
            current = _NO_ANSWER
        described: JsonObject = {"name": self.name, "kind": self._kind}
        if not isinstance(current, BaseIndex):
            described["state"] = "reading" if current is None else "unavailable"
            described["reason"] = current
            return described
        described["state"] = "ready"
        described["num_chunks"] = len(current)
        if self.is_stale:
            confirmed = datetime.fromtimestamp(self._confirmed_at, UTC)
            described["store_unreachable_since"] = confirmed.isoformat(timespec="seconds")
            described["reason"] = self._failure or "what is there now is still being read"
        return described

    @property
    def is_fresh(self) -> bool:
        """Whether the last check for changes began less than `_FRESH_S` ago; False for a folder."""
        return self._folder is None and time.monotonic() < self._checked_s + _FRESH_S

    @property
    def is_stale(self) -> bool:
        """Whether the searched shards may be outdated; always false for a file or a folder.

        That is so if the last check for changes failed, or if the running check has taken longer
        than `MAX_DEFER_S`.
        """
        has_problem = self._timed_out or self._failure is not None
        return self._kind == "shards" and isinstance(self.current, BaseIndex) and has_problem

    @property
    def is_store_unreachable(self) -> bool:
        """Whether the object store has not returned the manifest within `MAX_DEFER_S`."""
        return self._kind == "shards" and self._timed_out and not self._has_manifest

    @property
    def _timed_out(self) -> bool:
        """Whether the running refresh takes longer than `MAX_DEFER_S`."""
        is_running = self._refresh_lock.locked()
        return is_running and time.monotonic() > self._started_s + MAX_DEFER_S

    def refresh(self) -> Future[None]:
        """Start a check for changes, and return a future that is done when the check has ended.

        The check begins after this call, so it finds every change that was made before the call. If
        a check is already running, the new check begins when that one has ended.
        """
        with self._request_lock:
            pending = self._next_refresh
            if pending is None or pending.running() or pending.done():
                pending = Future[None]()
                threading.Thread(
                    target=self._refresh,
                    args=(pending,),
                    name=f"refresh-{self.name}",
                    daemon=True,
                ).start()
                # If no thread can be started, the next caller tries again.
                self._next_refresh = pending
            return pending

    def _refresh(self, refreshed: Future[None]) -> None:
        with self._refresh_lock:  # one refresh at a time; at most one thread waits
            refreshed.set_running_or_notify_cancel()
            previous = self.current
            self._started_s = time.monotonic()
            self._has_manifest = False
            try:
                self.current = self._load()
                is_folder_update = self._kind == "folder" and isinstance(previous, BaseIndex)
                if self.current is not previous and not is_folder_update:
                    n_chunks = pluralize(len(self.current), "chunk")
                    _log.info("index %s: %s in %s", self.name, n_chunks, self._location)
            except BaseException as error:  # otherwise an exception of this thread would be lost
                self.current = self._reason(error)
                self._failure = None
                if self.current != previous:
                    _log.error("index %s cannot be searched: %s", self.name, self._log_text(error))
            self._checked_s = self._started_s
        refreshed.set_result(None)

    def _load(self) -> ChunkIndex | FolderSnapshot:
        path = Path(self._location)
        if holds_index(path):
            self._location = f"file://{path}"
        if "://" in self._location:
            self._kind = "shards"
            return self._load_newest_shards()
        status = path.stat()  # raises if the file is missing, before the kind changes
        if path.is_dir():
            self._kind = "folder"
            return self._load_folder(path)
        self._kind = "file"
        state = fingerprint(status)
        if state == self._loaded_state and isinstance(self.current, ChunkIndex):
            return self.current
        self._loaded_state = state
        return self._load_with_backoff(
            state, lambda: ChunkIndex.load(path, encoding=self._settings.encoding)
        )

    def _load_folder(self, path: Path) -> FolderSnapshot:
        if self._folder is None:
            self._folder = FolderIndex(
                path, weighting=self._settings.weighting, encoding=self._settings.encoding
            )
        return self._folder.snapshot()

    def _load_newest_shards(self) -> ChunkIndex:
        """Return the newest version of a sharded index; if that fails, the version that is open.

        Before the store is read for the first time, which may take long, the version that was
        opened last on this machine is opened and stored in `current`.

        Raises:
            IndexFormatError: `index.json` is missing or damaged, even if a version is open; the
                index cannot be searched then.
            Exception: the newest version cannot be opened, and no other version is open.
        """
        if self._reader is None:
            encoding = self._settings.encoding
            self._reader = VersionReader(self._location, encoding, self._shard_cache)
        reader = self._reader
        if self.current is None:
            with suppress(Exception):  # then the shards are fetched
                self._open_cached(reader)
        started_at = time.time()
        version = None
        index = self.current if isinstance(self.current, ChunkIndex) else None
        try:
            version = reader.versions.read()
            self._has_manifest = True
            index = self._open_if_newer(reader, version, index)
        except Exception as error:
            if version is None and isinstance(error, IndexFormatError):
                raise
            with suppress(OSError):
                if version is not None and reader.versions.read() != version:
                    # It was replaced meanwhile, and its shard files were removed.
                    return self._load_newest_shards()
            if index is None:
                raise
            if self._failure is None:
                _log.warning(
                    "index %s: the loaded version stays in use, the newest cannot be read: %s",
                    self.name,
                    self._log_text(error),
                )
            self._failure = self._reason(error)
        else:
            self._confirmed_at = started_at
            self._failure = None
        return index

    def _open_cached(self, reader: VersionReader) -> None:
        """Open the version that was opened last on this machine, if its shards are still cached."""
        if self._shard_cache is None:
            return
        cached = self._shard_cache.last_version(reader.location)
        if cached is not None:
            self.current = reader.open(cached.version)
            self._loaded_state = cached.version
            self._confirmed_at = cached.opened_s

    def _open_if_newer(
        self, reader: VersionReader, version: IndexVersion, index: ChunkIndex | None
    ) -> ChunkIndex:
        loaded = self._loaded_state if isinstance(self._loaded_state, IndexVersion) else None
        if index is not None and loaded is not None and not version.replaces(loaded):
            return index
        index = self._load_with_backoff(version.shards, lambda: reader.open(version))
        self._loaded_state = version
        if self._shard_cache is not None and "://" in reader.location:
            self._shard_cache.remember(reader.location, version)
        return index

    def _load_with_backoff(self, state: Hashable, load: Callable[[], ChunkIndex]) -> ChunkIndex:
        """Return the result of `load`; a damaged state is loaded again only after a pause.

        The pause doubles with each failure: damage is rarely repaired without a new state.

        Args:
            state: identifies the version that `load` reads.
            load: loads the index.

        Raises:
            IndexFormatError, ValueError: the state is damaged, or has another encoding.
            IndexUnavailableError: it was damaged the last time, and the pause has not ended.
        """
        damage = self._damaged.get(state, _Damage(0.0, -math.inf, ""))
        if time.monotonic() < damage.until_s:
            raise IndexUnavailableError(damage.reason)
        try:
            return load()
        except (IndexFormatError, ValueError) as error:
            first_s, longest_s = _BACKOFF_S
            pause_s = min(max(first_s, 2 * damage.pause_s), longest_s)
            until_s = time.monotonic() + pause_s
            self._damaged[state] = _Damage(pause_s, until_s, self._reason(error))
            if len(self._damaged) > _MAX_DAMAGED_STATES:
                del self._damaged[next(iter(self._damaged))]
            raise

    def _log_text(self, error: BaseException) -> str:
        text = str(error)
        return text if self._location in text else f"{self._location}: {text}"

    def _reason(self, error: BaseException) -> str:
        """Return the message of an error for clients, without the location of files."""
        reason = getattr(error, "rule", None) or getattr(error, "strerror", None)
        if not reason and isinstance(error, RelevanceGenError):
            reason = str(error)
        reason = reason or f"it cannot be read ({type(error).__name__})"
        return str(reason).replace(self._location, "what is there")
