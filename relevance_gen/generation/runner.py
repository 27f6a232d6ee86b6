"""Runners: a model in a thread of its own, and the calls that reach it from every other thread."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections.abc import Callable

import attrs

from relevance_gen.checks import check_integer
from relevance_gen.errors import (
    GenerationError,
    ModelLoadError,
    RelevanceGenError,
    RunnerClosedError,
)
from relevance_gen.generation import aborts, source
from relevance_gen.generation.cache import PrefixCache
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.engine import Engine
from relevance_gen.generation.front import DEFAULT_MAX_QUEUE, Front
from relevance_gen.generation.jobs import JobQueue
from relevance_gen.llama.options import ModelOptions
from relevance_gen.types import Stats

DEFAULT_PREFIX_CACHE_BYTES = 512 << 20
_GRACE_S = 5.0
"""How long giving up may take."""


class Runner(Front):
    """One model in one thread, generating for many callers at once.

    Args:
        model: a GGUF file; or a hub repository, ``"owner/name"`` or ``"owner/name/file.gguf"``, where `huggingface_hub`
            is installed; by default the model that `relevance_gen.generation.source.resolve` names.
        max_queue: samples that may wait; while as many do, `submit` raises `OverloadedError`.
        prefix_cache_bytes: memory for the computed prompts of recent requests; 0 turns the prefix cache off.
        wait: wait until the model is loaded; otherwise return at once and load meanwhile.
        n_ctx: most tokens of one sequence, prompt and generated; by default 4,096, what the model was trained on, or
            what 2 GiB hold, whichever is least.
        n_slots: sequences at once, in [1, 255]; memory grows with n_slots × n_ctx.
        n_batch: most prompt tokens computed between two steps of the running sequences; 128 on a CPU, 512 on a GPU.
        n_threads: CPU threads, in [1, 512]; by default the physical cores that this process may use.
        n_gpu_layers: layers to keep on the GPU; by default all where the build has one.
        main_gpu: the one GPU to use, from 0; by default a model is spread over all.
        flash_attention: compute attention in one pass. On a CPU, many sequences at once are then about a fifth faster;
            but beyond 512 tokens one alone rounds differently than beside others, and so now and then takes another
            token. By default off on a CPU, and what llama.cpp finds best on a GPU.
        use_extra_bufts: repack weights for this CPU; by default wherever that is safe.

    Raises:
        ModelLoadError: the model cannot be loaded (where `wait`).
        InvalidRequestError: an option is out of range.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | None = None,
        *,
        max_queue: int = DEFAULT_MAX_QUEUE,
        prefix_cache_bytes: int = DEFAULT_PREFIX_CACHE_BYTES,
        wait: bool = True,
        n_ctx: int | None = None,
        n_slots: int = ModelOptions().n_slots,
        n_batch: int | None = None,
        n_threads: int | None = None,
        n_gpu_layers: int | None = None,
        main_gpu: int | None = None,
        flash_attention: bool | None = None,
        use_extra_bufts: bool | None = None,
    ) -> None:
        check_integer("max_queue", max_queue, 0)
        check_integer("prefix_cache_bytes", prefix_cache_bytes, 0)
        self._options = ModelOptions(
            n_ctx=n_ctx,
            n_slots=n_slots,
            n_batch=n_batch,
            n_threads=n_threads,
            n_gpu_layers=n_gpu_layers,
            main_gpu=main_gpu,
            flash_attention=flash_attention,
            use_extra_bufts=use_extra_bufts,
        )
        super().__init__(max_queue)
        self._source = model
        self._prefix_cache_bytes = prefix_cache_bytes
        self._engine: Engine | None = None
        self._interrupt: Callable[[], None] = _do_nothing
        self._error: BaseException | None = None
        self._draining = False
        self._aborting = False
        self._ended = False
        self._lost = False
        self._finished = threading.Event()
        self._ready = threading.Event()
        self._queue.join(self)
        self._thread = threading.Thread(target=self._run, name="relevance_gen-runner", daemon=True)
        self._thread.start()
        atexit.register(_close_at_exit, weakref.ref(self))
        if wait:
            try:
                self.wait_ready()
            except BaseException:  # an interrupt too: nobody would have the runner to close it
                self.close(drain=False)
                raise

    @property
    def alive(self) -> bool:
        """Whether the model is loaded and takes requests."""
        return (
            self._ready.is_set()
            and self._error is None
            and not (self._draining or self._aborting)
            and self._pid == os.getpid()
        )

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests, because it was closed or has died."""
        return self._draining or self._ended

    @property
    def error(self) -> BaseException | None:
        """What the runner died of; ``None`` while it lives or loads, and after `close`."""
        return self._error

    def wait_ready(self, timeout_s: float | None = None) -> None:
        """Wait until the model is loaded.

        Raises:
            ModelLoadError: it cannot be loaded.
            TimeoutError: it is still loading after `timeout_s` seconds.
        """
        if not self._ready.wait(timeout_s):
            raise TimeoutError(f"the model is still loading after {timeout_s} s")
        if self._error is not None:
            raise self._error

    def stats(self) -> Stats:
        """Return the samples that wait, and 1 if this runner is ready, else 0."""
        return Stats(backlog=self._backlog(), num_total_runners=int(self.alive))

    def counters(self) -> Counters:
        """Return what was done so far; a copy."""
        counters = self.served()
        counters.requests_cancelled += self._queue.n_cancelled
        return counters

    def served(self) -> Counters:
        """Return what became of the requests that this runner took off its queue; a copy."""
        return Counters() if self._engine is None else attrs.evolve(self._engine.counters)

    def close(self, drain: bool = True, timeout_s: float | None = None) -> None:
        """Take no more requests, end the thread and free the model; safe to call twice.

        Args:
            drain: finish what was accepted; otherwise every waiter sees `RunnerClosedError`.
            timeout_s: longest time to spend on that, in seconds; what is not done by then is given up. A thread that
                does not get out of a callback is left behind 5 seconds later.
        """
        if self._pid != os.getpid():
            return
        self._leave(drain)
        if self._runs_here():
            return
        if not self._finished.wait(timeout_s):
            self._leave(drain=False)
            if not self._finished.wait(_GRACE_S):
                return
        if not self._lost:
            self._thread.join()

    def adopt(self, queue: JobQueue) -> None:
        """Take jobs from `queue` from now on, and bring along those that wait here."""
        own = self._queue
        queue.join(self)
        with own.changed:
            self._queue = queue
        if self._ended:  # perhaps a moment ago, before it could know of the new queue
            queue.leave(self, self._error)
        own.hand_over(queue)

    # ── The calling threads ──────────────────────────────────────────────────────────────────────────────────────────

    def _backlog(self) -> int:
        if self._pid != os.getpid():
            return 0
        return self._queue.n_waiting + self.n_seated

    @property
    def n_seated(self) -> int:
        """Samples that this runner took off the queue and has not started."""
        return 0 if self._engine is None else self._engine.n_waiting

    def _runs_here(self) -> bool:
        return threading.current_thread() is self._thread

    def _leave(self, drain: bool) -> None:
        queue = self._queue
        if queue.is_last(self):
            queue.close()
        with queue.changed:
            self._draining = True
            self._aborting = self._aborting or not drain
            queue.changed.notify_all()
        if self._aborting:
            self._interrupt()

    # ── The runner's own thread ──────────────────────────────────────────────────────────────────────────────────────

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            with aborts.guard(self._lose_thread):
                self._load_and_serve()
        except BaseException as failure:
            error = failure if isinstance(failure, RelevanceGenError) else _as_generation_error(failure)
        self._end(None if self._aborting else error)  # closing interrupts loading too, which is no error then

    def _lose_thread(self, reason: str) -> None:
        """Give up this thread, which is inside llama.cpp and will stay there."""
        self._lost = True
        kind = GenerationError if self._ready.is_set() else ModelLoadError
        self._end(kind(f"llama.cpp gave up, and keeps the memory it held until this process ends: {reason}"))

    def _end(self, error: BaseException | None) -> None:
        """Answer everybody who waits."""
        self._error = error
        self._ended = True
        self._ready.set()
        answer = error or RunnerClosedError("the runner was closed before this request was finished")
        if self._engine is not None:
            self._engine.abort(answer)
        self._queue.leave(self, answer)
        self._finished.set()

    def _load_and_serve(self) -> None:
        from relevance_gen.generation.llama import Model

        path = source.resolve(self._source)
        cache = PrefixCache(self._prefix_cache_bytes)
        with Model(path, self._options, on_progress=lambda _: not self._aborting) as model:
            self._interrupt = model.interrupt
            engine = self._engine = Engine(model, cache)
            self._ready.set()
            try:
                while self._take_jobs(engine):
                    engine.step()
            finally:
                cache.clear()  # the engine outlives this, for its counters

    def _take_jobs(self, engine: Engine) -> bool:
        """Take in what there is room for; wait while there is nothing to do. Return whether there is work."""
        while True:
            queue = self._queue
            with queue.changed:
                if self._aborting:
                    return False
                engine.drop_cancelled()
                alone = queue.is_last(self)
                if not self._draining or alone:
                    n_most = min(queue.fair_share, engine.room)
                    while n_most > 0 and len(queue):  # collecting garbage here may cancel what waits
                        engine.add(queue.take())
                        n_most -= 1
                if not engine.idle:
                    return True
                if self._draining and (not alone or not len(queue)):
                    return False
                if queue is self._queue:
                    queue.changed.wait()


def _as_generation_error(failure: BaseException) -> GenerationError:
    error = GenerationError(f"the runner's thread failed: {type(failure).__name__}: {failure}")
    error.__cause__ = failure
    return error


def _close_at_exit(reference: weakref.ref[Runner]) -> None:
    """End the thread before the interpreter does: it may be inside llama.cpp."""
    runner = reference()
    if runner is not None:
        runner.close(drain=False, timeout_s=_GRACE_S)


def _do_nothing() -> None:
    pass
