"""Request queue: each request is served in its turn and ends exactly once, regardless of worker failures."""

import gc
import pickle
import threading
from collections import Counter

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relevance_gen.errors import GenerationError, OverloadedError, RunnerClosedError
from relevance_gen.generation.engine.engine import Engine
from relevance_gen.generation.engine.prefix_cache import PrefixCache
from relevance_gen.generation.queue.request import QueuedRequest, RequestContext
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.quota import Quota
from relevance_gen.types import GenerationRequest
from tests.generation.scripted import QueueWorker, ScriptedModel, capacity

MAX_QUEUE = 12


def queued_request(number, num_samples=1, **options):
    regex = options.pop("regex", None)
    return QueuedRequest(
        number, GenerationRequest("a", num_samples=num_samples, regex=regex), 7, 0.0, **options
    )


def ignore(*_):
    pass


class QueueMachine(RuleBasedStateMachine):
    """A queue with three workers, compared with a list that is searched for everything."""

    def __init__(self):
        super().__init__()
        self.queue, self.dropped = RequestQueue(MAX_QUEUE), [[], [], []]
        self.workers = [QueueWorker(self.queue, dropped.append) for dropped in self.dropped]
        self.registered, self.closed = [0, 1, 2], False
        self.requests, self.futures, self.waiting = [], [], []
        self.holders, self.streamed, self.requeued = {}, set(), set()
        self.n_pending, self.ends, self.cancelled = {}, {}, [[], [], []]

    def end(self, number, how):
        """Record the end of a request, which must be its only end."""
        assert number not in self.ends
        self.ends[number] = how
        del self.n_pending[number]

    def held(self, which):
        """Return the id of a request that a worker has, and the worker."""
        number = sorted(self.holders)[which % len(self.holders)]
        return number, self.workers[self.holders[number]]

    def n_queued(self, client):
        """Return the samples of a client that wait for a slot or for a grammar."""
        wait = self.waiting + [
            number
            for number in self.holders
            if self.requests[number].request.regex
            and self.n_pending[number] == self.requests[number].request.num_samples
        ]
        waiting = [self.requests[number] for number in wait]
        return sum(
            queued.request.num_samples for queued in waiting if queued.context.client == client
        )

    @rule(
        num_samples=st.integers(1, 3),
        regex=st.sampled_from([None, None, "a"]),
        client=st.sampled_from([None, "", "b"]),
    )
    def put(self, num_samples, regex, client):
        """Put a request: refused if the queue is closed, every worker has left, or too many samples of the client wait."""
        queued = queued_request(
            len(self.requests), num_samples, regex=regex, context=RequestContext(client=client)
        )
        if self.closed or not self.registered:
            with pytest.raises(RunnerClosedError):
                self.queue.put(queued, ignore)
            return
        if self.n_queued(client) >= MAX_QUEUE:
            with pytest.raises(OverloadedError):
                self.queue.put(queued, ignore)
            return
        self.requests.append(queued)
        self.futures.append(self.queue.put(queued, ignore))
        self.waiting.append(queued.id)
        self.n_pending[queued.id] = num_samples

    @rule(
        which=st.integers(0, 2),
        n_requests=st.integers(1, 3),
        n_retained=st.just(99) | st.integers(0, 3),
    )
    def take(self, which, n_requests, n_retained):
        """Take requests: the next requests in turn, at most a share of the queue; an idle worker leaves a closed queue.

        Of the requests for several samples, a client's first request and requests within the limit
        are taken.
        """
        taken = self.workers[which].take(capacity(n_requests, n_retained), timeout_s=0)
        if (
            which in self.registered
            and self.closed
            and not self.waiting
            and which not in self.holders.values()
        ):
            self.registered.remove(which)
        if which not in self.registered:
            assert taken is None
            return
        served = Counter(self.requests[number].context.client for number in self.holders)
        turns = {}
        for number in self.waiting:
            client = self.requests[number].context.client
            served[client] += 1
            turns[number] = client == "", served[client]
        in_turn = sorted(
            self.waiting, key=turns.get
        )  # anonymous requests last, then by the number of earlier requests of the client
        requests = {number: self.requests[number].request for number in in_turn}
        large = [
            number
            for number, request in requests.items()
            if request.num_samples > 1 and not request.regex
        ]
        holding = {
            self.requests[number].context.client
            for number, holder in self.holders.items()
            if holder == which
            and self.n_pending[number]
            and self.requests[number].request.num_samples > 1
        }
        passed, n_held = [], Counter()
        for number in large:
            context = self.requests[number].context
            if n_held[context.priority] >= n_retained and context.client in holding:
                passed.append(number)
            else:
                n_held[context.priority] += 1
                holding.add(context.client)
        n = min(n_requests, -(-len(self.waiting) // len(self.registered)))
        expected = [number for number in in_turn if number not in passed][:n]
        assert [queued.id for queued in taken] == expected
        self.holders |= dict.fromkeys(expected, which)
        self.waiting = [number for number in self.waiting if number not in expected]

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 9))
    def start(self, which):
        """Report that a sample has started."""
        number, worker = self.held(which)
        if self.n_pending[number]:
            worker.start(self.requests[number], 1)
            self.n_pending[number] -= 1

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 9))
    def show(self, which):
        """Report text to the caller."""
        number, worker = self.held(which)
        worker.add_text(self.requests[number], 0, "b")
        self.streamed.add(number)

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 9))
    def finish(self, which):
        """Report a response, which the future then has."""
        number, worker = self.held(which)
        worker.finish(self.requests[number], response := object())
        assert self.futures[number].result(timeout=0) is response
        del self.holders[number]
        self.end(number, "finished")

    @precondition(lambda self: self.futures)
    @rule(which=st.integers(0, 9))
    def cancel(self, which):
        """Cancel a request: a waiting request is removed, and the worker of a running request is notified."""
        number = which % len(self.futures)
        if self.futures[number].cancel() and number not in self.ends:
            self.end(number, "cancelled")
            if number in self.holders:
                self.cancelled[self.holders.pop(number)].append(number)
            else:
                self.waiting.remove(number)

    @rule(which=st.integers(0, 2))
    def leave(self, which):
        """Remove a worker: its requests without text return to the front once; others fail, and all fail with the last worker."""
        self.workers[which].leave(GenerationError("it broke"))
        if which not in self.registered:
            return
        self.registered.remove(which)
        mine = [number for number, holder in self.holders.items() if holder == which]
        back = [
            number
            for number in mine
            if self.registered and number not in self.streamed | self.requeued
        ]
        for number in mine:
            del self.holders[number]
            if number not in back:
                self.end(number, "failed")
        self.waiting[:0] = back
        self.requeued |= set(back)
        self.n_pending |= {number: self.requests[number].request.num_samples for number in back}
        if not self.registered:
            for number in self.waiting:
                self.end(number, "failed")
            self.waiting.clear()

    @precondition(lambda self: len(self.requests) > 3)
    @rule()
    def close(self):
        """Close the queue, which then refuses requests."""
        self.queue.close()
        self.closed = True

    @invariant()
    def counts_match_model(self):
        """Counts, ends and cancellations equal those of the list."""
        assert self.queue.n_pending_samples == sum(self.n_pending.values())
        assert self.dropped == self.cancelled
        assert [future.done() for future in self.futures] == [
            number in self.ends for number in range(len(self.futures))
        ]
        for how in ("finished", "cancelled", "failed"):
            assert getattr(self.queue.counters, f"requests_{how}") == list(
                self.ends.values()
            ).count(how)
        for number, how in self.ends.items():
            if how == "failed":
                assert isinstance(self.futures[number].exception(timeout=0), GenerationError)


TestRequestsAreServedInTurnAndEndOnce = QueueMachine.TestCase


def test_unregister_requeues_requests_in_front():
    """Requests return to the front in order, with all samples pending; requests with streamed text fail."""
    queue = RequestQueue(99)
    failing, other = QueueWorker(queue, ignore), QueueWorker(queue, ignore)
    futures = [queue.put(queued_request(number, 2), ignore) for number in range(6)]
    first, second, third = failing.take(capacity(3))
    failing.start(first, 2)
    failing.start(third, 1)
    failing.add_text(second, 0, "b")
    assert queue.n_pending_samples == 9
    failing.leave(GenerationError("it broke"))
    assert queue.n_pending_samples == 10
    assert isinstance(futures[1].exception(timeout=0), GenerationError)
    assert [queued.id for queued in other.take(capacity(9))] == [0, 2, 3, 4, 5]


def test_callback_raising_fails_request_and_notifies_worker():
    """The future has the exception, and the worker is asked to drop the request."""

    def explode(*_):
        raise KeyboardInterrupt

    queue, dropped = RequestQueue(9), []
    worker = QueueWorker(queue, dropped.append)
    future = queue.put(queued_request(7), explode)
    worker.add_text(*worker.take(capacity(1)), 0, "b")
    assert isinstance(future.exception(timeout=0), KeyboardInterrupt)
    assert dropped == [7]
    assert queue.n_pending_samples == 0


def test_deliver_event_of_ended_request_is_ignored():
    """After the end of a request, or after it went to a second worker, events of its first worker have no effect."""
    queue, texts = RequestQueue(9), []
    first, second = QueueWorker(queue, ignore), QueueWorker(queue, ignore)
    future = queue.put(queued_request(1), lambda _, text: texts.append(text))
    (taken,) = first.take(capacity(1))
    first.leave(GenerationError("it broke"))
    first.start(taken, 1)
    first.add_text(taken, 0, "old")
    first.finish(taken, "old")
    assert not future.done()
    (taken,) = second.take(capacity(1))
    second.add_text(taken, 0, "new")
    second.finish(taken, "new")
    second.finish(taken, "newer")
    second.add_text(taken, 0, "newest")
    assert (texts, future.result(timeout=0)) == (["new"], "new")
    assert queue.counters.requests_finished == 1


def test_take_waits_for_request_leave_close_or_timeout():
    """`take` returns when a request can be taken or none can follow, and after `timeout_s` at the latest."""
    queue = RequestQueue(9)
    worker, other = QueueWorker(queue, ignore), QueueWorker(queue, ignore)
    assert worker.take(capacity(1), timeout_s=0.001) == []
    for act, answer in (
        (lambda: queue.put(queued_request(1)), [queued_request(1)]),
        (lambda: other.leave(RunnerClosedError("")), []),
        (lambda: worker.finish(queued_request(1), "x"), []),
        (queue.close, None),
    ):
        timer = threading.Timer(0.02, act)
        timer.start()
        assert worker.take(capacity(1), timeout_s=60) == answer
        timer.join()
    assert worker.take(capacity(1)) is None


def test_put_full_queue_raises():
    """While the maximum of samples waits, further requests are refused; taken requests do not count."""
    queue = RequestQueue(3)
    worker = QueueWorker(queue, ignore)
    queue.put(queued_request(1, 3))
    with pytest.raises(OverloadedError, match="3 samples are queued"):
        queue.put(queued_request(2))
    worker.take(capacity(1))
    queue.put(queued_request(2))


def test_garbage_collection_inside_lock_may_cancel():
    """A dropped stream cancels its request in the thread that collects it, even while that thread holds the queue's lock."""

    class Stream:
        """Cancels its future when it is garbage-collected."""

        def __init__(self, future):
            self.future, self.itself = future, self

        def __del__(self):
            self.future.cancel()

    queue = RequestQueue(9)
    worker = QueueWorker(queue, ignore)
    futures = [queue.put(queued_request(number)) for number in range(4)]
    worker.take(capacity(2))
    for future in futures[1:3]:
        Stream(future)
    with queue._condition:
        gc.collect()
    assert [future.cancelled() for future in futures] == [False, True, True, False]
    assert [queued.id for queued in worker.take(capacity(9), timeout_s=0)] == [3]
    assert queue.n_pending_samples == 2


def test_garbage_collection_may_cancel_while_last_worker_leaves():
    """A request that is cancelled meanwhile ends as cancelled, and all other requests fail."""
    queue = RequestQueue(9)
    worker = QueueWorker(queue, ignore)
    futures = [queue.put(queued_request(number)) for number in range(3)]

    class Cancelling(Quota):
        """Cancels a future inside `release`, like a stream that is garbage-collected."""

        def release(self, amount=1, client=None):
            futures[2].cancel()
            super().release(amount, client)

    queue._queued_samples = Cancelling()
    worker.leave(GenerationError("it broke"))
    assert futures[2].cancelled()
    assert all(isinstance(future.exception(timeout=0), GenerationError) for future in futures[:2])


def test_worker_may_forward_to_another_process():
    """Requests and events travel as pickles in batches, with the same responses."""
    requests = [
        GenerationRequest("abc", max_tokens=6, num_samples=3, seed=seed) for seed in range(4)
    ]
    queue, texts = RequestQueue(99), {}
    sent, received = [], []
    worker = QueueWorker(queue, received.append)
    futures = []
    for number, request in enumerate(requests):
        each = texts[number] = [""] * 3

        def collect(sample, text, each=each):
            each[sample] += text

        futures.append(queue.put(QueuedRequest(number, request, request.seed, 0.0), collect))

    elsewhere = Engine(ScriptedModel(2), PrefixCache(0), clock=lambda: 0.0)
    taken = worker.take(capacity(9))
    for packed in map(pickle.dumps, taken):
        elsewhere.add(pickle.loads(packed))
    futures[3].cancel()
    for number in received:
        elsewhere.drop(number)
    while not elsewhere.is_idle:
        sent.extend(map(pickle.dumps, elsewhere.step()))
    for packed in sent:
        worker.deliver(pickle.loads(packed))
    for number, future in enumerate(futures[:3]):
        assert [response.text for response in future.result(timeout=0).responses] == texts[number]
    assert futures[3].cancelled()
    assert queue.n_pending_samples == 0


def test_queued_request_can_be_pickled():
    """The pickle has the request, seed, time and id."""
    queued = QueuedRequest(3, GenerationRequest("é", stop=["."], seed=1), 1, 12.5)
    copied = pickle.loads(pickle.dumps(queued))
    assert (copied, copied.request, copied.seed, copied.created) == (
        queued,
        queued.request,
        1,
        12.5,
    )
