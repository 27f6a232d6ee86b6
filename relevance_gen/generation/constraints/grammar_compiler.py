"""Compile the grammars of requests in the background.

Authenticated and anonymous clients have a queue each, with a thread and a trial process that
compiles each grammar first. A grammar that takes too much time, memory or stack is an error of its
request. A queue compiles its grammars sequentially; the number of grammars that a client has
waiting, and the CPU time that it uses, are limited, so that a client with slow grammars delays the
other clients of its queue only briefly. This process's own requests (no client) are not limited.
Compiled grammars are cached for their own client only, so that the timing does not reveal the
grammars of other clients.
"""

from __future__ import annotations

import atexit
import math
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from attrs import frozen

from relevance_gen.errors import OverloadedError
from relevance_gen.generation.constraints.token_constraint import (
    Grammar,
    GrammarSource,
    guidance_module,
)
from relevance_gen.generation.queue.request import ANONYMOUS
from relevance_gen.lru import SharedCache
from relevance_gen.quota import Quota
from relevance_gen.sandbox import Sandbox

if TYPE_CHECKING:
    from relevance_gen.generation.constraints.llguidance_backend import LLTokenizer

_TRIAL_TIMEOUT_S = 3.0
_TRIAL_MEMORY_BYTES = 512 << 20
_MAX_WAITING_PER_CLIENT = 32
"""Distinct grammars of one client that may wait."""
_MAX_CLIENT_S = 5.0
"""CPU seconds that a client may use at once; `_REFILL_PER_S` of them are refilled each second."""
_REFILL_PER_S = 0.2
_CACHE_BYTES = 160 << 20
"""Size of the cache of compiled grammars of each queue."""
_GRAMMAR_BYTES = 10 << 20
"""Estimated size of a compiled grammar."""
_MAX_CACHED_COMPILE_S = 0.25
"""A grammar that took more CPU time is not cached, because it may be larger than
`_GRAMMAR_BYTES`."""


def _trial_sandbox() -> Sandbox:
    sandbox = Sandbox(
        Path(__file__).with_name("llguidance_backend.py"),
        timeout_s=_TRIAL_TIMEOUT_S,
        memory_bytes=_TRIAL_MEMORY_BYTES,
    )
    atexit.register(sandbox.close)
    return sandbox


# The trial processes, shared by all models of this process.
_AUTHENTICATED_TRIAL = _trial_sandbox()
_ANONYMOUS_TRIAL = _trial_sandbox()


class Grammars:
    """Compiles grammars for one model, given the bytes that each token of its vocabulary prints."""

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self._authenticated = _CompilerQueue(_AUTHENTICATED_TRIAL, len(token_bytes))
        self._anonymous = _CompilerQueue(_ANONYMOUS_TRIAL, len(token_bytes))
        # The first job of this thread, before any grammar.
        create_tokenizer = guidance_module().create_tokenizer
        tokenizer = self._authenticated.thread.submit(create_tokenizer, token_bytes)
        self._authenticated.tokenizer = tokenizer
        self._anonymous.tokenizer = tokenizer

    def compile(self, source: GrammarSource, client: str | None = None) -> Future[Grammar]:
        """Return the future of a compiled grammar.

        The future fails with `InvalidRequestError` if compilation fails, and with `OverloadedError`
        if the client has used too much CPU time when the grammar's turn comes.

        Args:
            source: the grammar.
            client: the client, as in `RequestContext`.

        Raises:
            OverloadedError: the client has too many grammars waiting, or used too much CPU time.
        """
        return self._queue_of(client).compile(source, client)

    def discard(self, source: GrammarSource, client: str | None, seconds: float) -> None:
        """Remove a grammar with too slow masks from the cache; charge their time to the client.

        Args:
            source: the grammar.
            client: the client, as in `RequestContext`; nothing is charged to ``None``.
            seconds: the CPU seconds that the masks took.
        """
        self._queue_of(client).discard(source, client, seconds)

    def close(self) -> None:
        """Cancel the waiting grammars; each thread ends after the grammar that it compiles now.

        Does not wait for the threads.
        """
        for queue in (self._authenticated, self._anonymous):
            queue.thread.shutdown(wait=False, cancel_futures=True)

    def _queue_of(self, client: str | None) -> _CompilerQueue:
        return self._anonymous if client == ANONYMOUS else self._authenticated


@frozen
class _Trial:
    """The result of compiling a grammar in the trial process.

    Attributes:
        lark: the grammar in Lark; the given grammar if the trial ran out of memory or time.
        error: the error of the compilation; "" if it succeeded.
        seconds: the CPU seconds that the compilation took.
    """

    lark: str
    error: str
    seconds: float


class _CompilerQueue:
    """Compiles grammars sequentially in its own thread.

    `tokenizer` must be set before the first grammar.
    """

    tokenizer: Future[LLTokenizer]

    def __init__(self, trial_sandbox: Sandbox, n_vocab: int) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="relevance_gen-grammars")
        with guidance_module().deep_stack():
            self.thread.submit(int)  # starts the thread
        self._trial_sandbox = trial_sandbox
        self._n_vocab = n_vocab
        self._lock = threading.Lock()
        self._cache: SharedCache[Grammar] = SharedCache(_CACHE_BYTES, lambda _: _GRAMMAR_BYTES)
        self._slots = Quota(client_limit=_MAX_WAITING_PER_CLIENT)
        self._cpu_seconds = Quota(client_limit=_MAX_CLIENT_S, refill_per_s=_REFILL_PER_S)
        self._waiting: Counter[tuple[str | None, GrammarSource]] = Counter()

    def compile(self, source: GrammarSource, client: str | None) -> Future[Grammar]:
        future: Future[Grammar] = Future()
        cached = self._cache.get((client, source))
        if cached is not None:
            future.set_result(cached)
            return future
        self._check_cpu_time(client)
        self._acquire_slot(source, client)

        def on_done(_: Future[None]) -> None:
            future.cancel()  # if the thread ended before it compiled this grammar
            self._release_slot(source, client)

        # A cancelled future stays in the thread's queue, so the slot is released when the thread
        # reaches it.
        self.thread.submit(self._settle, future, source, client).add_done_callback(on_done)
        return future

    def discard(self, source: GrammarSource, client: str | None, seconds: float) -> None:
        self._cache.drop((client, source))
        if client is not None:
            self._cpu_seconds.charge(seconds, client)

    def _acquire_slot(self, source: GrammarSource, client: str | None) -> None:
        """Count a request that waits for a grammar.

        Requests of a client for the same grammar count once towards the number of grammars that the
        client may have waiting.

        Raises:
            OverloadedError: the client has too many grammars waiting.
        """
        with self._lock:
            is_new = client is not None and (client, source) not in self._waiting
            if is_new and not self._slots.acquire(1, client):
                raise OverloadedError(
                    f"this client has {_MAX_WAITING_PER_CLIENT} grammars waiting to be compiled"
                )
            self._waiting[client, source] += 1

    def _release_slot(self, source: GrammarSource, client: str | None) -> None:
        with self._lock:
            self._waiting -= Counter([(client, source)])  # removes counts of 0
            if client is not None and (client, source) not in self._waiting:
                self._slots.release(1, client)

    def _settle(self, future: Future[Grammar], source: GrammarSource, client: str | None) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._compile(source, client))
        except BaseException as error:
            future.set_exception(error)

    def _check_cpu_time(self, client: str | None) -> None:
        wait_s = 0.0 if client is None else self._cpu_seconds.seconds_until_available(client)
        if wait_s:
            raise OverloadedError(
                "the grammars of this client took too long to compile or to follow",
                retry_after_s=math.ceil(wait_s),
            )

    def _compile(self, source: GrammarSource, client: str | None) -> Grammar:
        cached = self._cache.get((client, source))
        if cached is not None:  # compiled while this request waited
            return cached
        self._check_cpu_time(client)
        guidance = guidance_module()
        trial = self._try(source.to_lark())
        error = trial.error
        seconds = trial.seconds
        if not error:
            started_s = time.thread_time()
            matcher = guidance.compile_grammar(self.tokenizer.result(), trial.lark)
            compile_s = time.thread_time() - started_s
            seconds += compile_s
            error = guidance.error_of(matcher)
        failed_source = source
        if error:
            for schema in source.schemas():
                if seconds >= _TRIAL_TIMEOUT_S:
                    break
                schema_trial = self._try(schema.to_lark())
                seconds += schema_trial.seconds
                if schema_trial.error:
                    failed_source = schema
                    error = schema_trial.error
                    break
        if client is not None:
            self._cpu_seconds.charge(seconds, client)
        if error:
            raise failed_source.compile_error(error)
        grammar = Grammar(source, matcher, self._n_vocab)
        if compile_s <= _MAX_CACHED_COMPILE_S:
            self._cache.put((client, source), grammar)
        return grammar

    def _try(self, grammar: str) -> _Trial:
        """Compile a grammar in the trial process, and return its result.

        A trial that runs out of memory or time is a result with an error, not an exception.
        """
        try:
            result = self._trial_sandbox.call({"grammar": grammar})
        except EOFError:
            error = "it takes too much memory or nests too deeply"
            return _Trial(grammar, error, _TRIAL_TIMEOUT_S)
        except TimeoutError:
            error = f"it takes more than {_TRIAL_TIMEOUT_S:g} seconds"
            return _Trial(grammar, error, _TRIAL_TIMEOUT_S)
        return _Trial(result["lark"], result["error"], result["seconds"])
