"""Workers on other machines: an actor that has the model, and a thread here that pulls tickets for it."""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

import ray
from attrs import evolve
from ray.exceptions import RayActorError

from relevance_gen.cluster.actors import START_S, Actor, SilentError, check, get_from, start
from relevance_gen.cluster.connection import NAMESPACE
from relevance_gen.cluster.generation.mailbox import Delivery, Mailbox
from relevance_gen.cluster.placing import Node
from relevance_gen.errors import ClusterError, GenerationError
from relevance_gen.generation.queue.request import QueuedRequest
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.generation.worker import Worker
from relevance_gen.llama.language_model import ChatFormat, LanguageModel
from relevance_gen.llama.model_thread import Load, ThreadState

_CLIENTS: Final = 64
"""Calls that an actor serves at once: one waiting for each client, and those that cancel."""
_UNUSED_S: Final = 60.0
"""A runner that is shared ends when nobody was heard of for so long."""
_ROUND_S: Final = 0.02
"""How long a step's report is waited for before new tickets, and cancelled ones, are handed over."""
_IDLE_S: Final = 1.0
"""How often an idle runner is asked whether it lives."""
_FIRST_PAUSE_S: Final = 0.05
_LONGEST_PAUSE_S: Final = 30.0
"""Between two attempts to start a runner."""


class RunnerActor(Actor):
    """A model and its worker, in a process of its own, which ends by itself, if shared, when nobody is heard of.

    It is `made_of` model and options in words, to be compared with what others want.
    """

    def __init__(
        self, load: Load[LanguageModel], prefix_cache_bytes: int, made_of: str, is_shared: bool
    ) -> None:
        self._made_of = made_of
        self._mailbox = Mailbox()
        self._worker = Worker(self._mailbox, load, prefix_cache_bytes)
        self._worker.start()
        if is_shared:
            threading.Thread(target=self._end_unused, daemon=True).start()

    def loaded(self) -> tuple[ChatFormat | None, str]:
        """Wait until the model is loaded; return what its file says of conversations, and what this was made of."""
        self._worker.wait_loaded()
        if self._worker.error is not None:
            raise self._worker.error
        return self._worker.chat_format, self._made_of

    def exchange(
        self,
        client: str,
        tickets: Sequence[QueuedRequest],
        cancelled: Sequence[int],
        timeout_s: float,
    ) -> Delivery:
        """Take a client's tickets, and tell it what became of those before; see `Mailbox.exchange`."""
        told = self._mailbox.exchange(client, tickets, cancelled, timeout_s)
        return evolve(told, counters=self._worker.counters)

    def _end_unused(self) -> None:
        while self._mailbox.silent_s < _UNUSED_S:
            time.sleep(1.0)
        os._exit(0)


class ClusterWorker(Worker):
    """A thread that pulls tickets for a runner in another process, and hands on what becomes of them.

    To `choose` is to say on which node the runner is to be, None if it is not needed; that is asked again where the
    node has died, which `n_deaths` counts. When a runner that was ready has died, `on_death` is called before its
    tickets go back. Other processes find the runner by `shared_name`; without one it is of this process alone. The
    `key` says which one of several it is.
    """

    def __init__(
        self,
        backlog: RequestQueue,
        load: Load[LanguageModel],
        prefix_cache_bytes: int,
        made_of: str,
        choose: Callable[[ClusterWorker], Node | None],
        on_death: Callable[[ClusterWorker], None],
        key: str = "",
        shared_name: str | None = None,
    ) -> None:
        super().__init__(backlog, load, prefix_cache_bytes)
        self.key = key
        self.node_id: str | None = None
        self.n_deaths = 0
        self._made_of = made_of
        self._choose = choose
        self._on_death = on_death
        self._shared_name = shared_name
        self._client = secrets.token_hex(8)
        self._handle: Any = None
        self._held: dict[int, QueuedRequest] = {}
        self._has_room = False

    def _end(self, state: ThreadState, error: BaseException | None = None) -> None:
        """End, and have another runner ready to take what goes back into the backlog."""
        if state is ThreadState.FAILED and self.state is ThreadState.READY:
            self._on_death(self)
        super()._end(state, error)

    def _serve(self) -> None:
        if not self._begin():
            return
        try:
            told = self._exchange(())
            self._become(ThreadState.READY)
            while self.state is ThreadState.READY:
                tickets = self._puller.take(told.rooms, timeout_s=0 if self._held else _IDLE_S)
                if tickets is None:
                    return
                self._held |= {ticket.id: ticket for ticket in tickets}
                told = self._exchange(tickets)
        except SilentError:
            ray.kill(self._handle)
            raise GenerationError(
                f"a runner on node {self.node_id} does not answer any more"
            ) from None
        except RayActorError:
            raise GenerationError(f"a runner on node {self.node_id} died") from None
        finally:
            if self._shared_name is None:
                ray.kill(self._handle)
            else:
                self._handle.exchange.remote(self._client, (), list(self._held), 0.0)

    def _begin(self) -> bool:
        """Start the runner, or find the one that is shared; where it dies meanwhile, start another after a pause."""
        name = self._shared_name
        while self.state is ThreadState.LOADING and (node := self._choose(self)) is not None:
            options: dict[str, Any] = {
                "max_concurrency": _CLIENTS,
                "num_gpus": int(node.n_gpus > 0),
            }
            if name is not None:
                options |= {
                    "name": name,
                    "namespace": NAMESPACE,
                    "lifetime": "detached",
                    "get_if_exists": True,
                }
            args = self._load, self._prefix_cache_bytes, self._made_of, name is not None
            try:
                self._handle = start(RunnerActor, node.id, *args, **options)
                self.node_id = check(self._handle, START_S)
                self.chat_format, made_of = get_from(self._handle, self._handle.loaded.remote())
            except (RayActorError, SilentError):
                ray.kill(self._handle)
                self.n_deaths += 1
                self.wait_loaded(min(_FIRST_PAUSE_S * 2**self.n_deaths, _LONGEST_PAUSE_S))
                continue
            if made_of != self._made_of:
                raise ClusterError(
                    "the runner of this name has another model or other options; choose another name"
                )
            return True
        return False

    def _exchange(self, tickets: Sequence[QueuedRequest]) -> Delivery:
        """Hand over tickets, and hand on what is told of those before."""
        cancelled = [self._cancelled.popleft() for _ in range(len(self._cancelled))]
        for ticket_id in cancelled:
            self._held.pop(ticket_id, None)
        # Where it is idle, `take` waits.
        wait_s = _ROUND_S if self._held or not self._has_room else 0.0
        answer = self._handle.exchange.remote(self._client, list(tickets), cancelled, wait_s)
        told: Delivery = get_from(self._handle, answer)
        self._has_room = any(room.n_tickets > 0 for room in told.rooms.values())
        self.counters = told.counters
        for kind, ticket_id, first, second in told.events:
            ticket = self._held.get(ticket_id)
            if ticket is None:
                continue
            if kind == "text":
                self._puller.text(ticket, first, second)
            elif kind == "started":
                self._puller.started(ticket, first)
            else:
                del self._held[ticket_id]
                self._puller.done(ticket, first)
        return told
