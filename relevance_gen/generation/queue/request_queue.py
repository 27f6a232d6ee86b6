"""The queue between callers and workers.

A caller puts a request and holds its future. A worker registers, takes as many requests as its
capacity allows, and delivers the events of these requests. Clients take turns; anonymous requests
come last; the requests of one client are served in order of arrival, unless a worker defers a
request (see `relevance_gen.generation.queue.prefix_routing`). A worker may be a thread of this
process, or a thread that forwards to another process: only requests and events are exchanged.

A thread can acquire the lock of the queue a second time while it holds the lock: during this time
Python's garbage collector may delete a `TextStream`, which cancels its request in the same thread.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial

from attrs import define, field

from relevance_gen.errors import OverloadedError, RunnerClosedError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.queue.events import (
    EngineEvent,
    Failed,
    Finished,
    Started,
    TextDelta,
)
from relevance_gen.generation.queue.pending_request import OnText, PendingRequest
from relevance_gen.generation.queue.prefix_routing import (
    MAX_DEFER_S,
    PrefixTable,
    WorkerLoad,
    blocks_of,
    should_defer,
)
from relevance_gen.generation.queue.request import (
    NO_CAPACITY,
    Capacity,
    QueuedRequest,
    RequestPriority,
    has_grammar,
)
from relevance_gen.quota import Quota
from relevance_gen.types import GenerationResponse

_log = logging.getLogger(__name__)


@define(eq=False)
class _RegisteredWorker:
    """State of a worker in the queue.

    Attributes:
        on_cancel: called with the id of a request that the worker has and must drop.
        capacity: capacity at the last call of `take`, less the requests taken then.
        requests: requests that the worker has, by id.
        prefixes: prompts that the worker took.
    """

    on_cancel: Callable[[int], None]
    capacity: Capacity = NO_CAPACITY
    requests: dict[int, PendingRequest] = field(factory=dict)
    prefixes: PrefixTable = field(factory=PrefixTable)

    def load(self, pending: PendingRequest) -> WorkerLoad:
        """Return the worker's load with regard to a request."""
        return WorkerLoad(
            n_known_blocks=self.prefixes.n_known_blocks(pending.blocks),
            n_requests=len(self.requests),
            has_capacity=self.capacity.accepts(pending.queued.context.priority),
        )


class RequestQueue:
    """Requests that wait or that workers serve. Thread-safe.

    Args:
        max_queue: samples of one client that may wait; at this limit, further requests of the
            client are refused. Samples whose grammar is being compiled count. All requests without
            a client count as one client.
        routes_by_prefix: whether workers are faster with prompts whose prefix they have computed
            before.

    Attributes:
        counters: numbers of requests that finished, were cancelled, and failed.
    """

    def __init__(self, max_queue: int, *, routes_by_prefix: bool = True) -> None:
        self.counters = Counters()
        self._routes_by_prefix = routes_by_prefix
        self._condition = threading.Condition()
        self._waiting: OrderedDict[int, PendingRequest] = OrderedDict()
        self._queued_samples = Quota(client_limit=max_queue)
        self._workers: dict[int, _RegisteredWorker] = {}
        self._worker_ids = itertools.count()
        self._close_reason: BaseException | None = None
        self._pid = os.getpid()

    # ── Callers ──────────────────────────────────────────────────────────────────────────────────

    @property
    def is_closed(self) -> bool:
        """Whether the queue refuses further requests."""
        return self._close_reason is not None

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the process that created the queue.

        The threads of the workers exist only in that process, so requests are refused here.
        """
        return self._pid != os.getpid()

    @property
    def n_pending_samples(self) -> int:
        """The number of samples that do not have their first token yet.

        Counts the samples of waiting requests and of requests that a worker has taken.
        """
        with self._condition:
            n_taken = sum(
                pending.n_pending_samples
                for worker in self._workers.values()
                for pending in list(worker.requests.values())
                if not pending.is_queued
            )
            return int(self._queued_samples.held) + n_taken

    def put(
        self, queued: QueuedRequest, on_text: OnText | None = None
    ) -> Future[GenerationResponse]:
        """Append a request, and return the future of its response.

        The future can be cancelled until it has a result.

        Args:
            queued: the request.
            on_text: called with the sample index and the new text or `ContentPart` of a sample.

        Raises:
            OverloadedError: too many samples of this client are queued, see `max_queue`.
            RunnerClosedError: the queue is closed, or every worker has left.
        """
        client = queued.context.client
        future: Future[GenerationResponse] = Future()
        is_routed = self._routes_by_prefix and len(self._workers) > 1
        is_routed = is_routed and not queued.context.count_only
        blocks = blocks_of(queued.request.text, client) if is_routed else ()
        with self._condition:
            if self._close_reason is not None:
                message = f"the runner takes no more requests: {self._close_reason}"
                raise RunnerClosedError(message) from self._close_reason
            if not self._queued_samples.has_capacity(1, client):
                n_waiting = self._queued_samples.held_by(client)
                limit = self._queued_samples.client_limit
                raise OverloadedError(
                    f"{n_waiting} samples are queued; at most {limit} may be queued"
                )
            self._enqueue(PendingRequest(queued, on_text, future, blocks=blocks))
        # The callback holds the id only: a future that held the request would hold its texts.
        future.add_done_callback(partial(self._drop_cancelled, queued.id))
        return future

    def close(self) -> None:
        """Refuse new requests; waiting requests are still served.

        Does nothing in a forked process.
        """
        if self.is_forked:
            return  # Another thread may have held the lock at the time of the fork.
        with self._condition:
            self._close_reason = self._close_reason or RunnerClosedError("the runner is closed")
            self._condition.notify_all()

    # ── Workers ──────────────────────────────────────────────────────────────────────────────────

    def register(self, on_cancel: Callable[[int], None]) -> int:
        """Add a worker; return its id.

        `on_cancel` is called from any thread with the id of a request that the worker has and must
        drop.
        """
        with self._condition:
            worker_id = next(self._worker_ids)
            self._workers[worker_id] = _RegisteredWorker(on_cancel)
        return worker_id

    def take(
        self, worker_id: int, capacity: Capacity, timeout_s: float | None = None
    ) -> list[QueuedRequest] | None:
        """Remove and return the next requests for a worker.

        At most as many requests are returned as the capacity allows, and at most the number of
        waiting requests divided by the number of workers, rounded up. The list is empty if the
        capacity is 0.

        If no request is available for the worker, wait once for a change: at most `timeout_s`
        seconds (``None``: no limit), and at most `MAX_DEFER_S` while any request waits. The list
        may be empty after that.

        Return ``None`` if no request can follow: the worker was removed, or the queue is closed and
        empty and the worker has no request; then this call removes the worker.
        """
        with self._condition:
            worker = self._workers.get(worker_id)
            if worker is not None:
                worker.capacity = capacity
            if capacity.is_empty:
                return []
            if worker is None or self._is_done(worker_id):
                return None
            requests = self._choose(worker)
            if requests or timeout_s == 0:
                return requests
            if self._waiting and (timeout_s is None or timeout_s > MAX_DEFER_S):
                timeout_s = MAX_DEFER_S
            self._condition.wait(timeout_s)
            return None if self._is_done(worker_id) else self._choose(worker)

    def deliver(self, worker_id: int, event: EngineEvent) -> None:
        """Pass an event to the caller of its request.

        Events of requests that the worker does not have are ignored.
        """
        worker = self._workers.get(worker_id)
        pending = None if worker is None else worker.requests.get(event.request_id)
        if worker is None or pending is None:
            return
        match event:
            case Started(n_samples=n_samples):
                with self._condition:
                    self._stop_queueing(pending)
                pending.n_pending_samples -= n_samples
            case TextDelta(sample=sample, text=text):
                self._stream_text(worker, pending, sample, text)
            case Finished(response=response):
                self._finish(worker, pending, response)
            case Failed(error=error):
                self._finish(worker, pending, error)

    def unregister(self, worker_id: int, error: BaseException) -> None:
        """Remove a worker. Idempotent and thread-safe.

        Its requests that have streamed no text return to the front of the queue for the other
        workers, but only once, because a request may be the cause of the worker's failure. Its
        other requests fail with `error`. If no worker is left, all waiting requests fail with it
        too.
        """
        with self._condition:
            worker = self._workers.pop(worker_id, None)
            if worker is None:
                return
            failed_requests = self._requeue(worker)
            if not self._workers:
                self._close_reason = error
                # Detach the requests first: a garbage collection may cancel a request in the
                # meantime.
                waiting, self._waiting = self._waiting, OrderedDict()
                for pending in waiting.values():
                    self._stop_queueing(pending)
                failed_requests.extend(waiting.values())
            self.counters.requests_failed += len(failed_requests)
            n_left = len(self._workers)
            self._condition.notify_all()
        if n_left and not isinstance(error, RunnerClosedError):
            _log.warning("a worker failed; %d workers continue: %s", n_left, error)
        for pending in failed_requests:
            pending.settle(error)

    # ── Choosing requests ────────────────────────────────────────────────────────────────────────

    def _choose(self, worker: _RegisteredWorker) -> list[QueuedRequest]:
        """Remove and return the next requests for a worker. The caller must hold the lock."""
        in_turn = self._in_turn()
        max_requests = -(-len(in_turn) // len(self._workers))
        retaining_clients = {
            pending.queued.context.client
            for pending in list(worker.requests.values())
            if pending.queued.request.num_samples > 1 and pending.n_pending_samples
        }
        n_retained: Counter[RequestPriority] = Counter()
        chosen_requests: list[QueuedRequest] = []
        for pending in in_turn:
            if len(chosen_requests) == max_requests:
                break
            queued = pending.queued
            client, priority = queued.context.client, queued.context.priority
            needs_compilation = has_grammar(queued.request)
            is_retained = queued.request.num_samples > 1 and not needs_compilation
            max_retained = worker.capacity.n_retained_prompts[priority]
            is_limited = n_retained[priority] >= max_retained
            if is_retained and is_limited and client in retaining_clients:
                continue
            if not worker.capacity.accepts(priority) or self._should_defer(worker, pending):
                continue
            worker.requests[queued.id] = pending
            if self._waiting.pop(queued.id, None) is None:
                # A garbage collection has cancelled the request in the meantime.
                worker.requests.pop(queued.id, None)
                continue
            if not needs_compilation:
                self._stop_queueing(pending)
            if is_retained:
                n_retained[priority] += 1
                retaining_clients.add(client)
            worker.capacity = worker.capacity.after([queued])
            worker.prefixes.add(pending.blocks)
            chosen_requests.append(queued)
        return chosen_requests

    def _in_turn(self) -> list[PendingRequest]:
        """Return the waiting requests in the order in which they are served.

        Requests of authenticated clients come before anonymous requests. Within a priority,
        requests are sorted by the number of requests of the same client that workers have or that
        are older and still wait, lowest number first. Requests with equal numbers are sorted by
        their order in the queue.
        """
        n_ahead = Counter(
            pending.queued.context.client
            for worker in self._workers.values()
            for pending in list(worker.requests.values())
        )

        def turn(pending: PendingRequest) -> tuple[RequestPriority, int]:
            context = pending.queued.context
            n_ahead[context.client] += 1
            return context.priority, n_ahead[context.client]

        return sorted(self._waiting.values(), key=turn)

    def _should_defer(self, worker: _RegisteredWorker, pending: PendingRequest) -> bool:
        """Return whether `worker` leaves a request to another worker, see `should_defer`.

        Stores the time of the first such result in the request; `MAX_DEFER_S` later, the result is
        always False.
        """
        if not pending.blocks:
            return False
        now_s = time.monotonic()
        since_s = pending.deferred_since_s
        if since_s is not None and now_s >= since_s + MAX_DEFER_S:
            return False
        other_loads = (
            other.load(pending) for other in self._workers.values() if other is not worker
        )
        if not should_defer(worker.load(pending), other_loads):
            return False
        pending.deferred_since_s = since_s or now_s
        return True

    # ── State of requests ────────────────────────────────────────────────────────────────────────

    def _enqueue(self, pending: PendingRequest, *, is_first: bool = False) -> None:
        queued = pending.queued
        pending.n_pending_samples = queued.request.num_samples
        pending.is_queued = True
        self._queued_samples.charge(pending.n_pending_samples, queued.context.client)
        self._waiting[queued.id] = pending
        if is_first:
            # A garbage collection may have cancelled the request just now.
            with suppress(KeyError):
                self._waiting.move_to_end(queued.id, last=False)
        self._condition.notify_all()

    def _stop_queueing(self, pending: PendingRequest) -> None:
        """Stop counting the samples of a request as waiting. The caller must hold the lock."""
        if pending.is_queued:
            pending.is_queued = False
            queued = pending.queued
            self._queued_samples.release(queued.request.num_samples, queued.context.client)

    def _stream_text(
        self, worker: _RegisteredWorker, pending: PendingRequest, sample: int, text: str
    ) -> None:
        if pending.on_text is None:
            return
        pending.has_streamed = True
        try:
            pending.stream_text(sample, text)
        except BaseException as error:  # Even SystemExit concerns this request only.
            worker.on_cancel(pending.queued.id)
            self._finish(worker, pending, error)

    def _finish(
        self,
        worker: _RegisteredWorker,
        pending: PendingRequest,
        outcome: GenerationResponse | BaseException,
    ) -> None:
        """Set the result or error of a request's future; count the request as finished or failed.

        Does nothing if the worker no longer has the request, because it was cancelled.

        Args:
            worker: the worker that has the request.
            pending: the request.
            outcome: the response; or an exception, which becomes the error of the future.
        """
        with self._condition:
            if worker.requests.pop(pending.queued.id, None) is None:
                return
            self._stop_queueing(pending)
            if isinstance(outcome, BaseException):
                self.counters.requests_failed += 1
            else:
                self.counters.requests_finished += 1
            self._condition.notify_all()
        try:
            if not isinstance(outcome, BaseException):
                outcome = pending.parse_response(outcome)
        except BaseException as error:
            # The callback raised while it received the rest of the text.
            outcome = error
        pending.settle(outcome)

    def _requeue(self, worker: _RegisteredWorker) -> list[PendingRequest]:
        """Put the requests of a removed worker back to the front of the queue.

        Returns:
            The requests that cannot be repeated, because they have streamed text, were put back
            before, or no other worker is left; the caller lets them fail.
        """
        failed_requests: list[PendingRequest] = []
        requests, worker.requests = worker.requests, {}
        for pending in reversed(requests.values()):
            self._stop_queueing(pending)
            if pending.has_streamed or pending.was_requeued or not self._workers:
                failed_requests.insert(0, pending)
            else:
                pending.was_requeued = True
                self._enqueue(pending, is_first=True)
        return failed_requests

    def _drop_cancelled(self, request_id: int, future: Future[GenerationResponse]) -> None:
        """Drop the request of a cancelled future, and notify the worker that has it."""
        if not future.cancelled():
            return
        future.set_running_or_notify_cancel()  # `concurrent.futures.wait` waits for this.
        with self._condition:
            pending = self._waiting.pop(request_id, None)
            holders = [worker for worker in self._workers.values() if request_id in worker.requests]
            for worker in holders:
                pending = worker.requests.pop(request_id)
            if pending is None:
                return  # The request ended a moment ago.
            self._stop_queueing(pending)
            self.counters.requests_cancelled += 1
            self._condition.notify_all()
        for worker in holders:
            worker.on_cancel(request_id)

    def _is_done(self, worker_id: int) -> bool:
        """Return whether a worker can end, and remove it in that case.

        It can if the queue is closed and empty and the worker has no request. Also true if the
        worker was removed before.
        """
        worker = self._workers.get(worker_id)
        if worker is None:
            return True
        if self.is_closed and not self._waiting and not worker.requests:
            del self._workers[worker_id]
            return True
        return False
