"""What the server offers by a name: a saved index, a folder, or the saved shards of a cluster, as it is now."""

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
from relevance_gen.shards.manifest import IndexVersion
from relevance_gen.shards.shard_cache import ShardCache
from relevance_gen.shards.sharded_index import VersionReader
from relevance_gen.shards.version_store import holds_index

_log = logging.getLogger(__name__)

_FRESH_S: Final = 1.0
"""How old may be what is known of a file: to ask an object store takes long, and costs money."""
MAX_DEFER_S: Final = 2.0
"""How long a question waits for a look before what was there at the look before answers, and a list for all looks."""
_UNANSWERED: Final = "its store has not answered yet"
_PAUSES_S: Final = (60.0, 3600.0)
"""How long a state that is not as it was written is left alone, at first and at most: reading it again costs much."""


class ServedIndex:
    """Opens an index in a thread, and again whenever what it is of has changed. Safe to use from several threads.

    Whoever asks for a look while one runs shares the next one, with all others: no change is missed that came before.

    Args:
        name: its name.
        place: a file that `ChunkIndex.save` wrote, a folder of files, or the folder or address where
            `ClusterIndex.save` wrote.

    Attributes:
        found: what can be searched, as of one moment, or why nothing can; None before the first look is over.
    """

    def __init__(self, name: str, place: str, settings: Settings) -> None:
        self.name = name
        self.found: ChunkIndex | FolderSnapshot | str | None = None
        self._place = place if "://" in place else str(Path(place).absolute())
        self._settings = settings
        self._kind: Literal["file", "folder", "shards"] | None = None
        self._folder: FolderIndex | None = None
        self._reader: VersionReader | None = None
        self._failure: str | None = None
        """Why the last look saw nothing, where what was seen before it is still searched."""
        self._seen: Hashable = None
        self._seen_s = self._began_s = -math.inf
        self._seen_at = 0.0
        self._is_answered = False
        """Whether the store has said, in the look that runs, which shards there are."""
        self._wrong: dict[Hashable, tuple[float, float, str]] = {}
        """The last states that are not as they were written: how long to pause, until when, and what is wrong."""
        folder = default_folder() if settings.shard_cache_bytes else None
        self._cache = (
            None if folder is None else ShardCache(folder / "shards", settings.shard_cache_bytes)
        )
        self._asking, self._looking = threading.Lock(), threading.Lock()
        self._next: Future[None] | None = None

    def now(self) -> BaseIndex:
        """Return what can be searched; where nothing can, raise an `IndexUnavailableError`."""
        if isinstance(found := self.found, BaseIndex):  # read once: a look may end meanwhile
            return found
        why = found or (_UNANSWERED if self.is_unanswered else "it is being read")
        raise IndexUnavailableError(f"index {self.name} cannot be searched now: {why}")

    def described(self) -> dict[str, object]:
        """Return what is told of it."""
        found = self.found or (_UNANSWERED if self.is_unanswered else None)
        state = "reading" if found is None else "unavailable" if isinstance(found, str) else "ready"
        told: dict[str, object] = {"name": self.name, "kind": self._kind, "state": state}
        if not isinstance(found, BaseIndex):
            return told | {"reason": found}
        told["num_chunks"] = len(found)
        if self.is_behind:
            told["store_unreachable_since"] = datetime.fromtimestamp(self._seen_at, UTC).isoformat(
                timespec="seconds"
            )
            told["reason"] = self._failure or "what is there now is still being read"
        return told

    @property
    def is_fresh(self) -> bool:
        """Whether it was looked at just now; for a folder that is never so."""
        return self._folder is None and time.monotonic() < self._seen_s + _FRESH_S

    @property
    def is_behind(self) -> bool:
        """Whether what is searched are shards that were seen some time ago, and nobody knows what is there now."""
        is_behind = self._is_late or self._failure is not None
        return self._kind == "shards" and isinstance(self.found, BaseIndex) and is_behind

    @property
    def is_unanswered(self) -> bool:
        """Whether its store has not even told for a while which shards there are."""
        return self._kind == "shards" and self._is_late and not self._is_answered

    @property
    def _is_late(self) -> bool:
        return self._looking.locked() and time.monotonic() > self._began_s + MAX_DEFER_S

    def look(self) -> Future[None]:
        """Begin to look what is there; what is returned is done when a look is over that began after this."""
        with self._asking:
            if self._next is None or self._next.running() or self._next.done():
                asked = Future[None]()
                threading.Thread(
                    target=self._look, args=(asked,), name=f"look-{self.name}", daemon=True
                ).start()
                self._next = asked  # where no thread is to be had, the next who asks tries again
            return self._next

    def _look(self, asked: Future[None]) -> None:
        with self._looking:  # one at a time, while at most one other waits
            asked.set_running_or_notify_cancel()
            before, self._began_s, self._is_answered = self.found, time.monotonic(), False
            try:
                self.found = self._open()
                if self.found is not before and not (
                    self._kind == "folder" and isinstance(before, BaseIndex)
                ):
                    _log.info(
                        "index %s: %s in %s",
                        self.name,
                        pluralize(len(self.found), "chunk"),
                        self._place,
                    )
            except BaseException as error:  # of this thread, which nobody else would hear of
                self.found, self._failure = self._reason(error), None
                if self.found != before:
                    _log.error("index %s cannot be searched: %s", self.name, self._logged(error))
            self._seen_s = self._began_s
        asked.set_result(None)

    def _open(self) -> ChunkIndex | FolderSnapshot:
        place, encoding = Path(self._place), self._settings.encoding
        if holds_index(place):
            self._place = f"file://{place}"
        if "://" in self._place:
            self._kind = "shards"
            return self._open_shards()
        status = place.stat()  # where nothing is there, it stays what it was
        self._kind = "folder" if place.is_dir() else "file"
        if self._kind == "folder":
            self._folder = self._folder or FolderIndex(
                place, weighting=self._settings.weighting, encoding=encoding
            )
            return self._folder.snapshot()
        seen = fingerprint(status)
        if seen == self._seen and isinstance(self.found, ChunkIndex):
            return self.found
        self._seen = seen
        return self._unless_wrong(seen, lambda: ChunkIndex.load(place, encoding=encoding))

    def _open_shards(self) -> ChunkIndex:
        """Open the newest version of a sharded index; if that fails, keep the version that is open.

        Before the store is read for the first time, which may take long, the version that was opened last on this
        machine is opened. A missing or damaged `index.json` withdraws the index.
        """
        if self._reader is None:
            self._reader = VersionReader(self._place, self._settings.encoding, self._cache)
        reader = self._reader
        if self.found is None:
            with suppress(Exception):  # it is fetched instead
                self._open_cached(reader)
        seen_at, version = time.time(), None
        index = self.found if isinstance(self.found, ChunkIndex) else None
        try:
            version = reader.versions.read()
            self._is_answered = True
            before = self._seen if isinstance(self._seen, IndexVersion) else None
            if before is None or index is None or version.replaces(before):
                index = self._open_version(reader, version)
        except Exception as error:
            if version is None and isinstance(error, IndexFormatError):
                raise
            with suppress(OSError):
                if version is not None and reader.versions.read() != version:
                    return self._open_shards()  # it was replaced meanwhile, and its files removed
            if index is None:
                raise
            if self._failure is None:
                _log.warning("index %s stays as it was: %s", self.name, self._logged(error))
            self._failure = self._reason(error)
        else:
            self._seen_at, self._failure = seen_at, None
        return index

    def _open_cached(self, reader: VersionReader) -> None:
        """Open the version that was opened last on this machine, if its shards are still cached."""
        cached = None if self._cache is None else self._cache.last_version(reader.place)
        if cached is not None:
            self.found = reader.open(cached.version)
            self._seen, self._seen_at = cached.version, cached.opened_s

    def _open_version(self, reader: VersionReader, version: IndexVersion) -> ChunkIndex:
        index = self._unless_wrong(version.shards, lambda: reader.open(version))
        self._seen = version
        if self._cache is not None and "://" in reader.place:
            self._cache.remember(reader.place, version)
        return index

    def _unless_wrong(self, state: Hashable, load: Callable[[], ChunkIndex]) -> ChunkIndex:
        """Return what `load` reads of a state, but if that was not as it was written, not again before a pause.

        Each failure doubles the pause: what is damaged is seldom repaired without becoming another state.

        Raises:
            IndexFormatError, ValueError: it is not as it was written, or was saved with another encoding.
            IndexUnavailableError: it was so a short while ago.
        """
        pause_s, until_s, reason = self._wrong.get(state, (0.0, -math.inf, ""))
        if time.monotonic() < until_s:
            raise IndexUnavailableError(reason)
        try:
            return load()
        except (IndexFormatError, ValueError) as error:
            pause_s = min(max(_PAUSES_S[0], 2 * pause_s), _PAUSES_S[1])
            self._wrong[state] = pause_s, time.monotonic() + pause_s, self._reason(error)
            if len(self._wrong) > 2:  # what is there now, and what was opened last
                del self._wrong[next(iter(self._wrong))]
            raise

    def _logged(self, error: BaseException) -> str:
        return str(error) if self._place in str(error) else f"{self._place}: {error}"

    def _reason(self, error: BaseException) -> str:
        """Return what clients are told of an error: not where files lie."""
        own = (
            str(error)
            if isinstance(error, RelevanceGenError)
            else f"it cannot be read ({type(error).__name__})"
        )
        said = getattr(error, "rule", None) or getattr(error, "strerror", None) or own
        return str(said).replace(self._place, "what is there")
