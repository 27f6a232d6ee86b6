"""The registry of models: each is loaded when it is asked for, lent to those who ask, and unloaded when idle."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Final, Literal

from attrs import define, field

from relevance_gen import errors
from relevance_gen.llama.model_files.resolve import files_of
from relevance_gen.quota import Quota
from relevance_gen.serve.metrics import STATES, Metrics
from relevance_gen.serve.settings import DEFAULT_NAME, NamedModel, Settings, Task

_log = logging.getLogger(__name__)

_PAUSE_S: Final = 5
"""After a load that failed, until another is tried: clients are told to come again after as long."""
_PATIENCE_S: Final = 0.25
"""So long a request has waited before others are unloaded for it: one whose client leaves at once moves nothing."""
_KEPT_S: Final = 60.0
"""So long no model that a key had is unloaded for clients without a key."""


class UnknownModelError(errors.InvalidRequestError):
    """Refuse a name that no model of the server has."""


@define(eq=False)
class _Entry:
    """A model, loaded or not.

    Attributes:
        borrowers: those who wait for it or have it, whose futures are done: since when, and whether with a key.
        files: size in bytes and time of each of its files.
        used_s: when somebody had it last.
        keyed_s: when somebody with a key had it last.
        begun_s: when it came into its state.
        retry_s: when it may be loaded again after a failure, of which `reason` tells.
    """

    task: Task
    source: NamedModel
    files: list[tuple[int, int]]
    state: Literal["unloaded", "loading", "loaded", "unloading", "failed"] = "unloaded"
    model: Any = None
    borrowers: dict[Future[Any], tuple[float, bool]] = field(factory=dict)
    used_s: float = -math.inf
    keyed_s: float = -math.inf
    begun_s: float = -math.inf
    retry_s: float = -math.inf
    reason: str = ""

    @property
    def n_bytes(self) -> int:
        """What its files take."""
        return sum(n_bytes for n_bytes, _ in self.files)

    @property
    def is_asked_for(self) -> bool:
        """Whether somebody waits for it."""
        return not all(future.done() for future in self.borrowers)

    @property
    def is_in_use(self) -> bool:
        """Whether somebody has it."""
        return self.state == "loaded" and any(future.done() for future in self.borrowers)

    @property
    def is_keyed(self) -> bool:
        """Whether somebody with a key waits for it or has it."""
        return any(is_keyed for _, is_keyed in self.borrowers.values())

    @property
    def can_go(self) -> bool:
        """Whether it can be unloaded; of a model that has died llama.cpp may keep the memory, so it stays."""
        return self.state == "loaded" and not self.is_in_use and not self.model.closed

    def answer(self, fail: Callable[[], Exception] | None = None) -> None:
        """Give it to all who wait for it, or an error of their own to each."""
        for future in list(self.borrowers):
            if not future.done() and future.set_running_or_notify_cancel():
                if fail is None:
                    future.set_result(self.model)
                else:
                    future.set_exception(fail())


class ModelRegistry:
    """The models of one process. Safe to use from several threads.

    However many ask for a model, one thread loads it. Where there is no room for it, those that nobody has go, the one
    that was not used for longest first. If that is not enough, others get no more requests until they have made room:
    those wait, behind the ones that were there before, and are answered together when their model is back. Who has a
    key comes before strangers, for whom nothing goes that a key had a short while ago. Of the bytes that requests may
    hold, those of one client hold at most a quarter while they wait.

    What `loads` a model of each kind returns has ``close()``, and tells by ``closed`` whether it takes work.
    """

    def __init__(
        self,
        settings: Settings,
        loads: Mapping[Task, Callable[[NamedModel], Any]],
        metrics: Metrics,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._entries = [
            _Entry(task, source, _files(source))
            for task in loads
            for source in settings.models[task]
        ]
        self._loads = loads
        self._max_bytes, self._idle_s = (
            settings.model_bytes or math.inf,
            settings.model_idle_s or math.inf,
        )
        self._load_timeout_s = settings.model_load_timeout_s
        self._waiting = Quota(client_limit=settings.max_buffered_bytes // 4)
        self._metrics = metrics
        self._clock = clock
        self._lock = threading.RLock()  # re-entrant: collecting garbage inside it may end a context
        self._queue: list[_Entry] = []
        self._is_closed = False

    def name_of(self, task: Task, name: str | None) -> str:
        """Return which model is meant by a name: by none, or `DEFAULT_NAME`, the first; by any, if it is the only one.

        Raises:
            UnknownModelError: there are several, and none of that name.
            ModelLoadError: there is none.
        """
        names = [entry.source.name for entry in self._entries if entry.task == task]
        if not names:
            what = {"generate": "model", "embed": "encoder", "rerank": "reranker"}[task]
            raise errors.ModelLoadError(f"this server has no {what}; start it with --{what}")
        if name in names:
            return name
        if name is None or name == DEFAULT_NAME or len(names) == 1:
            return names[0]
        remedy = errors.did_you_mean(name, names, "GET /v1/models lists those that it has")
        raise UnknownModelError(
            "must be a model that this server has", "model", errors.describe(name), remedy
        )

    @contextmanager
    def lent(
        self,
        task: Task,
        name: str | None,
        *,
        client: str | None = None,
        n_bytes: int = 0,
        makes_room: bool = True,
    ) -> Iterator[Future[Any]]:
        """Give a future of a model, which is not unloaded before the context ends; of one that is loaded it is done.

        Where that ends before, loading goes on, but what still waits for room is given up.

        Args:
            task: the kind of the model.
            name: its name, or None for the first.
            client: the id of the key that asks, empty without one; None for the server itself.
            n_bytes: what the request holds while it waits.
            makes_room: whether others may be unloaded for it: not for somebody who goes on without it.

        Raises:
            UnknownModelError: there is none of that name.
            ModelLoadError: it could not be loaded a moment ago, is loading for too long, or there is no room for it;
                where it cannot be now, the future raises that.
            OverloadedError: what waits for this client holds too many bytes.
        """
        name = self.name_of(task, name)
        entry = next(one for one in self._entries if (one.task, one.source.name) == (task, name))
        future: Future[Any] = Future()
        n_bytes = min(n_bytes, int(self._waiting.client_limit))  # a large one may wait alone
        with self._lock:
            now_s = self._clock()
            if self._is_closed:
                raise errors.ShuttingDownError
            if now_s < entry.retry_s:
                raise errors.ModelLoadError(entry.reason)
            if (
                not makes_room
                and entry.state in ("unloaded", "failed")
                and self._missing_bytes(entry) > 0
            ):
                raise errors.ModelLoadError(
                    "there is no room for it beside the models that are loaded"
                )
            self._metrics.add("model_requests_total", 1, task, name)
            entry.borrowers[future] = now_s, client != ""
        try:
            self.look()
            if not future.done():
                if not self._waiting.acquire(n_bytes, client):
                    raise errors.OverloadedError(
                        "too many large requests wait for models", retry_after_s=_PAUSE_S
                    )
                future.add_done_callback(lambda _: self._waiting.release(n_bytes, client))
            yield future
        finally:
            with self._lock:
                entry.used_s = self._clock() if entry.is_in_use else entry.used_s
                entry.keyed_s = entry.used_s if entry.is_in_use and client != "" else entry.keyed_s
                del entry.borrowers[future]
            future.cancel()
            self.look()

    def preload(self) -> None:
        """Have the first model of each kind loaded, as far as there is room."""
        for task in dict.fromkeys(entry.task for entry in self._entries):
            with self.lent(task, None):
                pass

    @property
    def is_loading(self) -> bool:
        """Whether a model is being loaded or unloaded."""
        return any(entry.state in ("loading", "unloading") for entry in self._entries)

    def loaded(self, task: Task) -> list[Any]:
        """Return the models of a kind that are loaded; None for each that was, and will be when it is asked for."""
        known = ("unloaded", "loaded", "unloading")
        were_used = (
            one
            for one in self._entries
            if one.task == task and one.used_s > -math.inf and one.state in known
        )
        return [entry.model if entry.state == "loaded" else None for entry in were_used]

    async def keep_looking(self) -> None:
        """Do what is due after some time, until this is cancelled."""
        while True:
            await asyncio.sleep(
                min(_PATIENCE_S if self._max_bytes < math.inf else 1.0, self._idle_s / 10)
            )
            self.look()

    def close(self) -> None:
        """Refuse whoever waits, and close what is loaded."""
        with self._lock:
            self._is_closed = True
            for entry in self._entries:
                entry.answer(errors.ShuttingDownError)
        for entry in self._entries:
            if entry.state == "loaded":
                entry.model.close()

    def look(self) -> None:
        """Load, lend and unload what is to be loaded, lent and unloaded now."""
        with self._lock:
            if self._is_closed:
                return
            now_s = self._clock()
            self._queue = [entry for entry in self._queue if entry.is_asked_for]
            for entry in self._entries:
                is_idle = now_s - entry.used_s >= self._idle_s
                if (
                    entry.is_asked_for
                    and entry.state in ("unloaded", "failed")
                    and entry not in self._queue
                ):
                    self._queue.append(entry)
                elif entry.state == "loading" and now_s - entry.begun_s > self._load_timeout_s:
                    self._refuse(
                        entry,
                        f"the model has been loading for more than {self._load_timeout_s:g} seconds",
                    )
                elif is_idle and not entry.is_asked_for and entry.can_go:
                    self._start(self._unload, entry, "unloading")
            # Of what has died nothing can be unloaded.
            lost_bytes = sum(
                one.n_bytes for one in self._entries if one.state == "loaded" and one.model.closed
            )
            for entry in [one for one in self._queue if one.n_bytes + lost_bytes > self._max_bytes]:
                self._queue.remove(entry)
                self._refuse(entry, "there is no room for it: a model that died keeps its memory")
            held = self._load_next()
            for entry in self._entries:
                if entry.state == "loaded" and entry not in held:
                    entry.answer()

    def _load_next(self) -> list[_Entry]:
        """Load what there is room for, what a key asks for first; return what has to go for the next and is in use."""
        for entry in sorted(self._queue, key=lambda one: not one.is_keyed):
            if self._missing_bytes(entry) <= 0:
                self._queue.remove(entry)
                self._start(self._load, entry, "loading")
            elif self._may_make_room(entry):
                return self._make_room(entry)
        return []

    def _missing_bytes(self, entry: _Entry) -> float:
        """Return by how much there is too little room for what is in memory, comes or goes, and one more."""
        here = (
            one.n_bytes for one in self._entries if one.state in ("loading", "loaded", "unloading")
        )
        return sum(here) + entry.n_bytes - self._max_bytes

    def _may_make_room(self, entry: _Entry) -> bool:
        """Tell whether others are to go for one: somebody has waited for it, and it fits beside those that stay."""
        asked_s = min(
            (at_s for future, (at_s, _) in entry.borrowers.items() if not future.done()),
            default=math.inf,
        )
        kept_bytes = sum(one.n_bytes for one in self._entries if self._is_kept_from(entry, one))
        return (
            self._clock() - asked_s >= _PATIENCE_S and kept_bytes + entry.n_bytes <= self._max_bytes
        )

    def _is_kept_from(self, entry: _Entry, other: _Entry) -> bool:
        """Tell whether another stays because a key has it, or had it lately, and only strangers want this one."""
        is_kept = other.is_keyed or self._clock() - other.keyed_s < _KEPT_S
        return is_kept and not entry.is_keyed and other.state in ("loading", "loaded")

    def _make_room(self, entry: _Entry) -> list[_Entry]:
        """Unload what has to go for one, and return what has to go and is in use."""
        missing_bytes = self._missing_bytes(entry) - sum(
            e.n_bytes for e in self._entries if e.state == "unloading"
        )
        held: list[_Entry] = []
        for other in sorted(self._entries, key=lambda one: (one.is_in_use, one.used_s)):
            if (
                missing_bytes > 0
                and (other.can_go or other.is_in_use)
                and not self._is_kept_from(entry, other)
            ):
                missing_bytes -= other.n_bytes
                if other.is_in_use:
                    held.append(other)
                else:
                    self._start(self._unload, other, "unloading")
        return held

    def _refuse(self, entry: _Entry, reason: str) -> None:
        """Tell whoever waits for a model, or soon comes for it, why there is none."""
        entry.reason, entry.retry_s = reason, self._clock() + _PAUSE_S
        entry.answer(lambda: errors.ModelLoadError(reason))

    def _start(self, work: Callable[[_Entry], None], entry: _Entry, state: Any) -> None:
        before = entry.state
        self._become(entry, state)
        try:
            threading.Thread(
                target=work, args=(entry,), name=f"{state} {entry.source.name}", daemon=True
            ).start()
        except RuntimeError:  # the system gives no more threads
            self._become(entry, before)
            if state == "loading":
                self._refuse(entry, "the server has no thread to load it with")

    def _become(self, entry: _Entry, state: Any) -> None:
        entry.state, entry.begun_s = state, self._clock()
        for shown in STATES:
            self._metrics.put("models", int(state == shown), entry.task, entry.source.name, shown)

    def _load(self, entry: _Entry) -> None:
        name, started_s = entry.source.name, time.perf_counter()
        try:
            files = _files(entry.source)
            if entry.used_s > -math.inf and files != entry.files:
                raise errors.ModelLoadError(
                    "its file is not what was loaded before: start the server again to use what is there"
                )
            entry.files = files
            model = self._loads[entry.task](entry.source)
        except Exception as error:
            is_ours = isinstance(error, errors.RelevanceGenError)
            _log.error("the model %s could not be loaded: %s", name, error, exc_info=not is_ours)
            reason = str(error) if is_ours else "the server's log says why"
            for path in (
                entry.source.file,
                *files_of(entry.source.file),
            ):  # where they are concerns nobody who asks
                reason = reason.replace(str(path), name)
            with self._lock:
                self._become(entry, "failed")
                self._refuse(entry, f"the model cannot be loaded: {reason}")
        else:
            with self._lock:
                entry.model, entry.used_s, entry.retry_s = model, self._clock(), -math.inf
                self._become(entry, "loaded")
                self._metrics.observe(
                    "model_load_seconds", time.perf_counter() - started_s, entry.task, name
                )
                if not self._is_closed:
                    entry.answer()  # before it could be told to make room
        self.look()

    def _unload(self, entry: _Entry) -> None:
        entry.model.close()
        with self._lock:
            entry.model = None
            self._become(entry, "unloaded")
        self.look()


def _files(source: NamedModel) -> list[tuple[int, int]]:
    return [(path.stat().st_size, path.stat().st_mtime_ns) for path in files_of(source.file)]
