"""The registry of models: loads each when it is requested, leases it, and unloads it when idle."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, Literal, TypeAlias

from attrs import define, field, frozen

from relevance_gen import errors
from relevance_gen.llama.model_files.resolve import files_of
from relevance_gen.quota import Quota
from relevance_gen.serve.metrics import STATES, Metrics
from relevance_gen.serve.settings import DEFAULT_NAME, ModelTask, NamedModel, Settings

_log = logging.getLogger(__name__)

_RETRY_S: Final = 5
"""Pause after a failed load; also the Retry-After of the response."""
_MIN_WAIT_S: Final = 0.25
"""Minimum seconds that a request waits before other models are unloaded for it.

A client that disconnects at once therefore unloads no model.
"""
_AUTHENTICATED_RETENTION_S: Final = 60.0
"""Seconds after the last use of a model by an authenticated client in which no model is loaded for
anonymous clients in its place.
"""

State: TypeAlias = Literal["unloaded", "loading", "loaded", "unloading", "failed"]


class UnknownModelError(errors.InvalidRequestError):
    """The client selects a model by a name that no model of this kind has."""


@frozen
class _Lease:
    """One client's request for a model; it lasts until the client no longer uses the model.

    Attributes:
        requested_s: when the model was requested, in seconds of the registry's clock.
        has_key: whether the client is authenticated, or is the server itself.
    """

    requested_s: float
    has_key: bool


@define(eq=False)
class _Entry:
    """A model, loaded or not.

    All times are in seconds of the registry's clock; -inf means never.

    Attributes:
        task: the purpose of the model.
        source: the name and the file of the model.
        files: size in bytes and modification time in nanoseconds of each of its files.
        state: the current state.
        model: the loaded model; None if it is not loaded.
        leases: pending requests for the model (future not done) and active users (future done).
        used_s: when it was last in use, or was loaded.
        used_with_key_s: when it was last in use by an authenticated client.
        state_since_s: when it entered its state.
        retry_at_s: when it may be loaded again after a failure.
        failure: why it could not be loaded; "" if it has not failed.
    """

    task: ModelTask
    source: NamedModel
    files: list[tuple[int, int]]
    state: State = "unloaded"
    model: Any = None
    leases: dict[Future[Any], _Lease] = field(factory=dict)
    used_s: float = -math.inf
    used_with_key_s: float = -math.inf
    state_since_s: float = -math.inf
    retry_at_s: float = -math.inf
    failure: str = ""

    @property
    def n_bytes(self) -> int:
        """The size of the model's files in bytes, which approximates its memory."""
        return sum(n_bytes for n_bytes, _ in self.files)

    @property
    def is_requested(self) -> bool:
        """Whether a request waits for the model."""
        return not all(future.done() for future in self.leases)

    @property
    def is_in_use(self) -> bool:
        """Whether the model is loaded and a request uses it."""
        return self.state == "loaded" and any(future.done() for future in self.leases)

    @property
    def occupies_memory(self) -> bool:
        """Whether the model is loaded, or is being loaded or unloaded, and so occupies memory."""
        return self.state in ("loading", "loaded", "unloading")

    @property
    def has_key(self) -> bool:
        """Whether an authenticated client, or the server itself, waits for the model or uses it."""
        return any(lease.has_key for lease in self.leases.values())

    @property
    def is_dead(self) -> bool:
        """Whether the loaded model has failed and accepts no more work.

        It is never unloaded, because llama.cpp may keep its memory.
        """
        return self.state == "loaded" and bool(self.model.closed)

    @property
    def is_evictable(self) -> bool:
        """Whether the model can be unloaded now: it is loaded, not in use, and has not failed."""
        return self.state == "loaded" and not self.is_in_use and not self.is_dead

    def resolve(self) -> None:
        """Give the loaded model to all requests that wait for it.

        The caller must hold the lock of the registry.
        """
        for future in self._start_waiting():
            future.set_result(self.model)

    def reject(self, make_error: Callable[[], Exception]) -> None:
        """Reject each request that waits for the model, with a new error of `make_error` each.

        The caller must hold the lock of the registry.
        """
        for future in self._start_waiting():
            future.set_exception(make_error())

    def _start_waiting(self) -> Iterator[Future[Any]]:
        """Yield the future of each request that waits for the model and was not cancelled."""
        for future in list(self.leases):
            if not future.done() and future.set_running_or_notify_cancel():
                yield future


class ModelRegistry:
    """The models of one process. Thread-safe.

    One thread loads a model, regardless of the number of requests for it. If there is not enough
    memory for it, unused models are unloaded, the least recently used first. If that is not enough,
    models in use receive no more requests until they can be unloaded; their requests wait until
    they are loaded again, and are then answered together. Requests of authenticated clients come
    before anonymous requests. An anonymous request cannot unload a model that an authenticated
    client used recently. Waiting requests of one client hold at most a quarter of the bytes that
    all requests may hold.

    Args:
        settings: the settings of the server.
        loaders: for each kind of model, the function that loads it. A model has ``close()``, and
            ``closed``, which is true if it accepts no more work.
        metrics: receives the states of the models.
        clock: returns the time in seconds.
    """

    def __init__(
        self,
        settings: Settings,
        loaders: Mapping[ModelTask, Callable[[NamedModel], Any]],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = [
            _Entry(task, source, _stat_files(source))
            for task in loaders
            for source in settings.models[task]
        ]
        self._loaders = loaders
        self._max_bytes = settings.model_bytes or math.inf
        self._idle_s = settings.model_idle_s or math.inf
        self._load_timeout_s = settings.model_load_timeout_s
        self._waiting = Quota(client_limit=settings.max_buffered_bytes // 4)
        self._metrics = metrics
        self._clock = clock
        # The lock is re-entrant: garbage collection inside it can end a lease.
        self._lock = threading.RLock()
        self._queue: list[_Entry] = []
        self._is_closed = False

    def name_of(self, task: ModelTask, name: str | None) -> str:
        """Return the name of the model that a client selects.

        None and `DEFAULT_NAME` select the first model. If there is a single model, any name selects
        it. Clients of Ollama can add ":latest" to a name.

        Raises:
            UnknownModelError: there are several models, and none has that name.
            ModelLoadError: the server has zero models of this kind.
        """
        names = [entry.source.name for entry in self._entries if entry.task == task]
        if not names:
            kind = {"generate": "model", "embed": "encoder", "rerank": "reranker"}[task]
            raise errors.ModelLoadError(f"this server has no {kind}; start it with --{kind}")
        if name in names:
            return name
        untagged = (name or "").removesuffix(":latest")
        if name is not None and untagged in names:
            return untagged
        if name is None or name == DEFAULT_NAME or len(names) == 1:
            return names[0]
        remedy = errors.did_you_mean(name, names, "GET /v1/models lists those that it has")
        raise UnknownModelError(
            "must be a model that this server has", "model", errors.describe(name), remedy
        )

    @contextmanager
    def lease(
        self,
        task: ModelTask,
        name: str | None,
        *,
        client: str | None = None,
        n_bytes: int = 0,
        may_evict: bool = True,
    ) -> Iterator[Future[Any]]:
        """Yield a future of a model, which is not unloaded before the context ends.

        The future of a loaded model is done. If the context ends while the model loads, loading
        continues; if it still waits for memory, the request for it is withdrawn.

        Args:
            task: the kind of the model.
            name: its name, or None for the first.
            client: the id of the client's API key, empty for an anonymous client; None for the
                server itself.
            n_bytes: bytes that the request holds while it waits.
            may_evict: whether other models may be unloaded for it; false if the caller can continue
                without the model.

        Raises:
            UnknownModelError: the name is unknown.
            ModelLoadError: the server has no model of this kind; the model failed to load a moment
                ago; or `may_evict` is false and memory is insufficient. If loading fails later, the
                future has a `ModelLoadError`.
            OverloadedError: waiting requests of this client hold too many bytes.
            ShuttingDownError: the registry was closed. If it is closed while the request waits, the
                future has this error.
        """
        name = self.name_of(task, name)
        key = (task, name)
        entry = next(entry for entry in self._entries if (entry.task, entry.source.name) == key)
        future: Future[Any] = Future()
        has_key = client != ""
        with self._lock:
            self._check_available(entry, may_evict)
            self._metrics.add("model_requests_total", 1, task, name)
            entry.leases[future] = _Lease(self._clock(), has_key)
        try:
            self.update()
            if not future.done():
                # A request larger than the limit may wait alone.
                n_bytes = min(n_bytes, int(self._waiting.client_limit))
                if not self._waiting.acquire(n_bytes, client):
                    raise errors.OverloadedError(
                        "too many large requests wait for models", retry_after_s=_RETRY_S
                    )
                future.add_done_callback(lambda _: self._waiting.release(n_bytes, client))
            yield future
        finally:
            with self._lock:
                if entry.is_in_use:
                    entry.used_s = self._clock()
                    if has_key:
                        entry.used_with_key_s = entry.used_s
                del entry.leases[future]
            future.cancel()
            self.update()

    def _check_available(self, entry: _Entry, may_evict: bool) -> None:
        if self._is_closed:
            raise errors.ShuttingDownError
        if self._clock() < entry.retry_at_s:
            raise errors.ModelLoadError(entry.failure)
        if not may_evict and not entry.occupies_memory and self._missing_bytes(entry) > 0:
            raise errors.ModelLoadError("the loaded models use the memory that this model needs")

    def preload(self) -> None:
        """Begin to load the first model of each kind, unless there is not enough memory for it."""
        for task in dict.fromkeys(entry.task for entry in self._entries):
            with self.lease(task, None):
                pass

    @property
    def is_loading(self) -> bool:
        """Whether a model is being loaded or unloaded."""
        return any(entry.state in ("loading", "unloading") for entry in self._entries)

    def loaded(self, task: ModelTask) -> list[Any]:
        """Return the models of a kind that were loaded at least once.

        A model that is unloaded or being unloaded is None in the list. Models that are being
        loaded, or that failed to load, are not in the list.
        """
        models = []
        for entry in self._entries:
            was_used = entry.task == task and entry.used_s > -math.inf
            if was_used and entry.state in ("unloaded", "loaded", "unloading"):
                models.append(entry.model if entry.state == "loaded" else None)
        return models

    async def update_periodically(self) -> None:
        """Call `update` regularly to apply its time limits, until this coroutine is cancelled."""
        interval_s = _MIN_WAIT_S if self._max_bytes < math.inf else 1.0
        while True:
            await asyncio.sleep(min(interval_s, self._idle_s / 10))
            self.update()

    def close(self) -> None:
        """Reject the requests that wait for a model, and close the loaded models.

        Models that are being loaded are not closed.
        """
        with self._lock:
            self._is_closed = True
            for entry in self._entries:
                entry.reject(errors.ShuttingDownError)
        for entry in self._entries:
            if entry.state == "loaded":
                entry.model.close()

    def update(self) -> None:
        """Begin to load and unload models, and give loaded models to the requests that wait.

        It must be called after each change of requests and models, and regularly for time limits.
        After `close`, it does nothing.
        """
        with self._lock:
            if self._is_closed:
                return
            self._queue = [entry for entry in self._queue if entry.is_requested]
            for entry in self._entries:
                self._update_entry(entry)
            self._reject_unloadable()
            entries_in_use = self._load_next()
            for entry in self._entries:
                if entry.state == "loaded" and entry not in entries_in_use:
                    entry.resolve()

    def _update_entry(self, entry: _Entry) -> None:
        """Queue a model that is requested and not loaded, or apply a time limit to it.

        A model that has been loading for too long rejects its requests; an idle model is unloaded.
        The caller must hold the lock.
        """
        now_s = self._clock()
        is_idle = now_s - entry.used_s >= self._idle_s
        if entry.is_requested and not entry.occupies_memory and entry not in self._queue:
            self._queue.append(entry)
        elif entry.state == "loading" and now_s - entry.state_since_s > self._load_timeout_s:
            self._reject(
                entry, f"the model has been loading for more than {self._load_timeout_s:g} seconds"
            )
        elif is_idle and not entry.is_requested and entry.is_evictable:
            self._start(self._unload, entry, "unloading")

    def _reject_unloadable(self) -> None:
        """Reject requests for models that cannot be loaded; dead models keep their memory."""
        dead_bytes = sum(entry.n_bytes for entry in self._entries if entry.is_dead)
        for entry in list(self._queue):
            if entry.n_bytes + dead_bytes > self._max_bytes:
                self._queue.remove(entry)
                self._reject(entry, "a failed model still uses the memory that this model needs")

    def _load_next(self) -> list[_Entry]:
        """Begin to load the queued models for which there is memory.

        Models that authenticated clients request come first. The caller must hold the lock.

        Returns:
            The models in use that get no more requests, because they must be unloaded before the
            next model can be loaded.
        """
        for entry in sorted(self._queue, key=lambda queued: not queued.has_key):
            if self._missing_bytes(entry) <= 0:
                self._queue.remove(entry)
                self._start(self._load, entry, "loading")
            elif self._may_evict_for(entry):
                return self._evict_for(entry)
        return []

    def _missing_bytes(self, entry: _Entry) -> float:
        """Return the bytes that must be freed before `entry` can be loaded; 0 or less if none."""
        used_bytes = sum(other.n_bytes for other in self._entries if other.occupies_memory)
        return used_bytes + entry.n_bytes - self._max_bytes

    def _may_evict_for(self, entry: _Entry) -> bool:
        """Return whether other models may be unloaded to load `entry`.

        That is so if a request has waited for `entry` for `_MIN_WAIT_S` or longer, and `entry` fits
        into the memory together with the models that `_is_retained` keeps.
        """
        requested_s = min(
            (lease.requested_s for future, lease in entry.leases.items() if not future.done()),
            default=math.inf,
        )
        retained_bytes = sum(
            other.n_bytes for other in self._entries if self._is_retained(other, entry)
        )
        if self._clock() - requested_s < _MIN_WAIT_S:
            return False
        return retained_bytes + entry.n_bytes <= self._max_bytes

    def _is_retained(self, other: _Entry, entry: _Entry) -> bool:
        """Return whether `other` must not be unloaded for `entry`.

        That is so if only anonymous clients request `entry`, and an authenticated client waits for
        `other`, uses it, or used it within the last `_AUTHENTICATED_RETENTION_S`.
        """
        since_use_s = self._clock() - other.used_with_key_s
        is_protected = other.has_key or since_use_s < _AUTHENTICATED_RETENTION_S
        return is_protected and not entry.has_key and other.state in ("loading", "loaded")

    def _evict_for(self, entry: _Entry) -> list[_Entry]:
        """Begin to unload models that are not in use until `entry` fits into the memory.

        The least recently used are unloaded first. The caller must hold the lock.

        Returns:
            The models in use that must also be unloaded, if the others do not suffice.
        """
        missing_bytes = self._missing_bytes(entry)
        for other in self._entries:
            if other.state == "unloading":
                missing_bytes -= other.n_bytes
        entries_in_use: list[_Entry] = []
        for other in sorted(
            self._entries, key=lambda candidate: (candidate.is_in_use, candidate.used_s)
        ):
            if missing_bytes <= 0:
                break
            is_candidate = other.is_evictable or other.is_in_use
            if not is_candidate or self._is_retained(other, entry):
                continue
            missing_bytes -= other.n_bytes
            if other.is_in_use:
                entries_in_use.append(other)
            else:
                self._start(self._unload, other, "unloading")
        return entries_in_use

    def _reject(self, entry: _Entry, reason: str) -> None:
        """Reject the waiting requests for a model, and new requests for the next `_RETRY_S`."""
        entry.failure = reason
        entry.retry_at_s = self._clock() + _RETRY_S
        entry.reject(lambda: errors.ModelLoadError(reason))

    def _start(
        self,
        work: Callable[[_Entry], None],
        entry: _Entry,
        state: State,
    ) -> None:
        """Set the state of a model, and start `work` in a thread.

        If no thread can be started, the state is unchanged, and a model that should be loaded
        rejects its requests. The caller must hold the lock.
        """
        previous = entry.state
        self._set_state(entry, state)
        try:
            threading.Thread(
                target=work, args=(entry,), name=f"{state} {entry.source.name}", daemon=True
            ).start()
        except RuntimeError:  # the system has no more threads
            self._set_state(entry, previous)
            if state == "loading":
                self._reject(entry, "the server has no thread to load it with")

    def _set_state(self, entry: _Entry, state: State) -> None:
        entry.state = state
        entry.state_since_s = self._clock()
        for reported in STATES:
            is_current = int(state == reported)
            self._metrics.put("models", is_current, entry.task, entry.source.name, reported)

    def _load(self, entry: _Entry) -> None:
        name = entry.source.name
        started_s = time.perf_counter()
        try:
            files = _stat_files(entry.source)
            if entry.used_s > -math.inf and files != entry.files:
                raise errors.ModelLoadError(
                    "the model file has changed since it was loaded: "
                    "restart the server to use the new file"
                )
            entry.files = files
            model = self._loaders[entry.task](entry.source)
        except Exception as error:
            self._note_load_failure(entry, error)
        else:
            with self._lock:
                entry.model = model
                entry.used_s = self._clock()
                entry.retry_at_s = -math.inf
                self._set_state(entry, "loaded")
                seconds = time.perf_counter() - started_s
                self._metrics.observe("model_load_seconds", seconds, entry.task, name)
                if not self._is_closed:
                    entry.resolve()  # before it can be evicted again
        self.update()

    def _note_load_failure(self, entry: _Entry, error: Exception) -> None:
        name = entry.source.name
        is_expected = isinstance(error, errors.RelevanceGenError)
        _log.error("the model %s could not be loaded: %s", name, error, exc_info=not is_expected)
        reason = str(error) if is_expected else "the server's log says why"
        # Do not reveal file paths to clients.
        for path in (entry.source.file, *files_of(entry.source.file)):
            reason = reason.replace(str(path), name)
        with self._lock:
            self._set_state(entry, "failed")
            self._reject(entry, f"the model cannot be loaded: {reason}")

    def _unload(self, entry: _Entry) -> None:
        entry.model.close()
        with self._lock:
            entry.model = None
            self._set_state(entry, "unloaded")
        self.update()


def _stat_files(source: NamedModel) -> list[tuple[int, int]]:
    """Return size in bytes and modification time in nanoseconds of each file of a model."""
    stats = [path.stat() for path in files_of(source.file)]
    return [(stat.st_size, stat.st_mtime_ns) for stat in stats]
