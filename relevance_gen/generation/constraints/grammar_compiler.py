"""Compile the grammars of requests, so that whoever sends slow ones waits for them alone.

Clients with a name and those without have a lane each: a thread, and the process that tries a grammar first. What takes
too much time, memory or stack is an error of its request. Within a lane grammars are compiled one after another, and a
client may have only so many different ones of them compiled for only so long; this process's own requests are not
counted. A grammar that was compiled before is at hand at once, for its own client alone: its time tells nobody of it.
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

_TRIAL_S = 3.0
_MOST_WAITING = 32
"""Different grammars of one client that may wait."""
_MOST_S = 5.0
_REGAINED = 0.2
"""A client may use the lane for so many seconds of the processor, and gets back so many in each second."""
_KNOWN_BYTES = 160 << 20
"""Of the compiled grammars that a lane remembers."""
_GRAMMAR_BYTES = 10 << 20
_KNOWN_S = 0.25
"""A grammar that took the processor longer is not remembered, because it may hold more than `_GRAMMAR_BYTES`."""


def _trial() -> Sandbox:
    sandbox = Sandbox(
        Path(__file__).with_name("llguidance_backend.py"),
        timeout_s=_TRIAL_S,
        memory_bytes=512 << 20,
    )
    atexit.register(sandbox.close)
    return sandbox


_TRIALS = {is_anonymous: _trial() for is_anonymous in (True, False)}
"""Where the grammars of either lane are tried, for all models of this process."""


class Grammars:
    """Compiles grammars for one model, told what each token of its vocabulary prints."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._lanes = {
            is_anonymous: _Lane(trial, len(pieces)) for is_anonymous, trial in _TRIALS.items()
        }
        # Nothing is before it in its lane.
        tokenizer = self._lanes[False].thread.submit(guidance_module().tokenizer_of, pieces)
        for lane in self._lanes.values():
            lane.tokenizer = tokenizer

    def compile(self, source: GrammarSource, client: str | None = None) -> Future[Grammar]:
        """Return the future of a compiled grammar; it fails with `InvalidRequestError` where that cannot be done.

        It raises an `OverloadedError` where this client, named as in a `RequestContext`, has too many that wait, or has had too
        slow ones.
        """
        return self._lanes[client == ANONYMOUS].compile(source, client)

    def give_up(self, source: GrammarSource, client: str | None, seconds: float) -> None:
        """Forget a grammar that took so much time to follow, and count that as if it had been compiled so long."""
        self._lanes[client == ANONYMOUS].give_up(source, client, seconds)

    def close(self) -> None:
        """End the threads with what they are doing."""
        for lane in self._lanes.values():
            lane.thread.shutdown(wait=False, cancel_futures=True)


class _Lane:
    """Compiles the grammars of some clients, one after another, in its `thread`, by one `tokenizer`."""

    tokenizer: Future[LLTokenizer]

    def __init__(self, trial: Sandbox, n_vocab: int) -> None:
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="relevance_gen-grammars")
        with guidance_module().deep_stack():
            self.thread.submit(int)  # starts it
        self._trial = trial
        self._n_vocab = n_vocab
        self._lock = threading.Lock()
        self._known: SharedCache[Grammar] = SharedCache(_KNOWN_BYTES, lambda _: _GRAMMAR_BYTES)
        self._places = Quota(client_limit=_MOST_WAITING)
        self._seconds = Quota(client_limit=_MOST_S, refill_per_s=_REGAINED)
        self._waiting: Counter[tuple[str | None, GrammarSource]] = Counter()

    def compile(self, source: GrammarSource, client: str | None) -> Future[Grammar]:
        if (grammar := self._known.get((client, source))) is not None:
            at_hand: Future[Grammar] = Future()
            at_hand.set_result(grammar)
            return at_hand
        self._check_time(client)
        with self._lock:
            if (
                client is not None
                and (client, source) not in self._waiting
                and not self._places.acquire(1, client)
            ):
                raise OverloadedError(
                    f"{_MOST_WAITING} grammars of this client wait to be compiled already"
                )
            self._waiting[client, source] += 1
        future: Future[Grammar] = Future()

        def leave(_: Future[None]) -> None:
            future.cancel()  # if the thread ends before its turn
            self._leave(source, client)

        # Not that future itself: one that is cancelled leaves its place in the thread's queue, and its client's, later.
        self.thread.submit(self._settle, future, source, client).add_done_callback(leave)
        return future

    def _settle(self, future: Future[Grammar], source: GrammarSource, client: str | None) -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            future.set_result(self._compile(source, client))
        except BaseException as error:
            future.set_exception(error)

    def give_up(self, source: GrammarSource, client: str | None, seconds: float) -> None:
        self._known.drop((client, source))
        if client is not None:
            self._seconds.charge(seconds, client)

    def _leave(self, source: GrammarSource, client: str | None) -> None:
        with self._lock:
            self._waiting -= Counter([(client, source)])  # which forgets what is waited for no more
            if client is not None and (client, source) not in self._waiting:
                self._places.release(1, client)

    def _check_time(self, client: str | None) -> None:
        """Refuse a client that has used the lane for too long."""
        if client is not None and (wait_s := self._seconds.seconds_until_available(client)):
            raise OverloadedError(
                "the grammars of this client took too long to compile or to follow",
                retry_after_s=math.ceil(wait_s),
            )

    def _compile(self, source: GrammarSource, client: str | None) -> Grammar:
        if (grammar := self._known.get((client, source))) is not None:  # since this was asked for
            return grammar
        self._check_time(client)
        lark, why, seconds = self._try(source.lark())
        if not why:
            guidance, began_s = guidance_module(), time.thread_time()
            matcher = guidance.compiled(self.tokenizer.result(), lark)
            compiled_s = time.thread_time() - began_s
            seconds += compiled_s
            why = guidance.reason(matcher)
        blamed = source
        for part in source.parts() if why else ():
            if blamed is source and seconds < _TRIAL_S:
                _, why_not, more_s = self._try(part.lark())
                seconds += more_s
                blamed, why = (part, why_not) if why_not else (blamed, why)
        if client is not None:
            self._seconds.charge(seconds, client)
        if why:
            raise blamed.uncompilable(why)
        grammar = Grammar(source, matcher, self._n_vocab, guidance)
        if compiled_s <= _KNOWN_S:
            self._known.put((client, source), grammar)
        return grammar

    def _try(self, grammar: str) -> tuple[str, str, float]:
        """Return a grammar in Lark, what a trial finds wrong with it, if anything, and the time that took."""
        try:
            found = self._trial.call({"grammar": grammar})
        except EOFError:
            return grammar, "that takes too much memory or nests too deeply", _TRIAL_S
        except TimeoutError:
            return grammar, f"that takes more than {_TRIAL_S:g} seconds", _TRIAL_S
        return found["lark"], found["error"], found["seconds"]
