"""The backlog: whatever its pullers do, every ticket comes in its turn and ends once."""

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

MOST = 12


def ticket(number, num_samples=1, **options):
    regex = options.pop("regex", None)
    return QueuedRequest(
        number, GenerationRequest("a", num_samples=num_samples, regex=regex), 7, 0.0, **options
    )


def ignore(*_):
    pass


class Law(RuleBasedStateMachine):
    """A backlog of three pullers beside a list that is searched for everything."""

    def __init__(self):
        super().__init__()
        self.backlog, self.dropped = RequestQueue(MOST), [[], [], []]
        self.pullers = [QueueWorker(self.backlog, dropped.append) for dropped in self.dropped]
        self.joined, self.closed = [0, 1, 2], False
        self.tickets, self.futures, self.waiting = [], [], []
        self.holders, self.shown, self.lost = {}, set(), set()
        self.unstarted, self.ends, self.cancelled = {}, {}, [[], [], []]

    def end(self, number, how):
        """Note that a ticket ended; none does twice."""
        assert number not in self.ends
        self.ends[number] = how
        del self.unstarted[number]

    def held(self, which):
        """Return a ticket that some puller has, and that puller."""
        number = sorted(self.holders)[which % len(self.holders)]
        return number, self.pullers[self.holders[number]]

    def n_queued(self, client):
        """Return the samples of a client that wait for a slot or for a grammar."""
        wait = self.waiting + [
            number
            for number in self.holders
            if self.tickets[number].request.regex
            and self.unstarted[number] == self.tickets[number].request.num_samples
        ]
        tickets = [self.tickets[number] for number in wait]
        return sum(one.request.num_samples for one in tickets if one.context.client == client)

    @rule(
        num_samples=st.integers(1, 3),
        regex=st.sampled_from([None, None, "a"]),
        client=st.sampled_from([None, "", "b"]),
    )
    def put(self, num_samples, regex, client):
        """Accepted until it is closed or nobody is left, and while not too much waits."""
        one = ticket(
            len(self.tickets), num_samples, regex=regex, context=RequestContext(client=client)
        )
        if self.closed or not self.joined:
            with pytest.raises(RunnerClosedError):
                self.backlog.put(one, ignore)
            return
        if self.n_queued(client) >= MOST:
            with pytest.raises(OverloadedError):
                self.backlog.put(one, ignore)
            return
        self.tickets.append(one)
        self.futures.append(self.backlog.put(one, ignore))
        self.waiting.append(one.id)
        self.unstarted[one.id] = num_samples

    @rule(
        which=st.integers(0, 2),
        n_most=st.integers(1, 3),
        n_most_to_hold=st.none() | st.integers(0, 3),
    )
    def take(self, which, n_most, n_most_to_hold):
        """Those come that may in their turn, no more than a share; with nothing left it leaves a closed backlog.

        Of several samples, one of each client may, and others as far as there is room to hold them.
        """
        taken = self.pullers[which].take(capacity(n_most, n_most_to_hold), timeout_s=0)
        if (
            which in self.joined
            and self.closed
            and not self.waiting
            and which not in self.holders.values()
        ):
            self.joined.remove(which)
        if which not in self.joined:
            assert taken is None
            return
        served = Counter(self.tickets[number].context.client for number in self.holders)
        places = {}
        for number in self.waiting:
            client = self.tickets[number].context.client
            served[client] += 1
            places[number] = client == "", served[client]
        in_turn = sorted(
            self.waiting, key=places.get
        )  # strangers last, then by how many of a client come before
        requests = {number: self.tickets[number].request for number in in_turn}
        large = [
            number for number, one in requests.items() if one.num_samples > 1 and not one.regex
        ]
        holding = {
            self.tickets[number].context.client
            for number, holder in self.holders.items()
            if holder == which
            and self.unstarted[number]
            and self.tickets[number].request.num_samples > 1
        }
        passed, n_held = [], Counter()
        for number in large:
            context = self.tickets[number].context
            if (
                n_most_to_hold is not None
                and n_held[context.priority] >= n_most_to_hold
                and context.client in holding
            ):
                passed.append(number)
            else:
                n_held[context.priority] += 1
                holding.add(context.client)
        n = min(n_most, -(-len(self.waiting) // len(self.joined)))
        expected = [number for number in in_turn if number not in passed][:n]
        assert [each.id for each in taken] == expected
        self.holders |= dict.fromkeys(expected, which)
        self.waiting = [number for number in self.waiting if number not in expected]

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 9))
    def start(self, which):
        """One more sample has started."""
        number, puller = self.held(which)
        if self.unstarted[number]:
            puller.start(self.tickets[number], 1)
            self.unstarted[number] -= 1

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 9))
    def show(self, which):
        """The caller has seen text."""
        number, puller = self.held(which)
        puller.add_text(self.tickets[number], 0, "b")
        self.shown.add(number)

    @precondition(lambda self: self.holders)
    @rule(which=st.integers(0, 9))
    def finish(self, which):
        """The future has the response."""
        number, puller = self.held(which)
        puller.finish(self.tickets[number], response := object())
        assert self.futures[number].result(timeout=0) is response
        del self.holders[number]
        self.end(number, "finished")

    @precondition(lambda self: self.futures)
    @rule(which=st.integers(0, 9))
    def cancel(self, which):
        """What waits is gone; who has it is told."""
        number = which % len(self.futures)
        if self.futures[number].cancel() and number not in self.ends:
            self.end(number, "cancelled")
            if number in self.holders:
                self.cancelled[self.holders.pop(number)].append(number)
            else:
                self.waiting.remove(number)

    @rule(which=st.integers(0, 2))
    def leave(self, which):
        """What showed no text goes back to the front, once; the rest fails, and everything with the last puller."""
        self.pullers[which].leave(GenerationError("it broke"))
        if which not in self.joined:
            return
        self.joined.remove(which)
        mine = [number for number, holder in self.holders.items() if holder == which]
        back = [number for number in mine if self.joined and number not in self.shown | self.lost]
        for number in mine:
            del self.holders[number]
            if number not in back:
                self.end(number, "failed")
        self.waiting[:0] = back
        self.lost |= set(back)
        self.unstarted |= {number: self.tickets[number].request.num_samples for number in back}
        if not self.joined:
            for number in self.waiting:
                self.end(number, "failed")
            self.waiting.clear()

    @precondition(lambda self: len(self.tickets) > 3)
    @rule()
    def close(self):
        """Nothing more is accepted."""
        self.backlog.close()
        self.closed = True

    @invariant()
    def what_is_said_is_so(self):
        """Counts, ends and cancellations are those of the list."""
        assert self.backlog.n_pending_samples == sum(self.unstarted.values())
        assert self.dropped == self.cancelled
        assert [future.done() for future in self.futures] == [
            number in self.ends for number in range(len(self.futures))
        ]
        for how in ("finished", "cancelled", "failed"):
            assert getattr(self.backlog.counters, f"requests_{how}") == list(
                self.ends.values()
            ).count(how)
        for number, how in self.ends.items():
            if how == "failed":
                assert isinstance(self.futures[number].exception(timeout=0), GenerationError)


TestEveryTicketComesInItsTurnAndEndsOnce = Law.TestCase


def test_what_a_puller_lost_comes_first_and_from_the_start():
    """Tickets go back in front of what waits, in order, all samples to start anew; those whose text was seen fail."""
    backlog = RequestQueue(99)
    failing, other = QueueWorker(backlog, ignore), QueueWorker(backlog, ignore)
    futures = [backlog.put(ticket(number, 2), ignore) for number in range(6)]
    first, second, third = failing.take(capacity(3))
    failing.start(first, 2)
    failing.start(third, 1)
    failing.add_text(second, 0, "b")
    assert backlog.n_pending_samples == 9
    failing.leave(GenerationError("it broke"))
    assert backlog.n_pending_samples == 10
    assert isinstance(futures[1].exception(timeout=0), GenerationError)
    assert [each.id for each in other.take(capacity(9))] == [0, 2, 3, 4, 5]


def test_a_callback_that_raises_stops_its_ticket():
    """The future has what was raised, and the puller is told to serve the ticket no longer."""

    def explode(*_):
        raise KeyboardInterrupt

    backlog, dropped = RequestQueue(9), []
    puller = QueueWorker(backlog, dropped.append)
    future = backlog.put(ticket(7), explode)
    puller.add_text(*puller.take(capacity(1)), 0, "b")
    assert isinstance(future.exception(timeout=0), KeyboardInterrupt)
    assert dropped == [7]
    assert backlog.n_pending_samples == 0


def test_what_is_reported_of_a_ticket_that_is_over_is_ignored():
    """After its end, or after it went to another puller, a ticket's old holder changes nothing."""
    backlog, texts = RequestQueue(9), []
    first, second = QueueWorker(backlog, ignore), QueueWorker(backlog, ignore)
    future = backlog.put(ticket(1), lambda _, text: texts.append(text))
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
    assert backlog.counters.requests_finished == 1


def test_waiting_ends_with_a_ticket_a_leave_a_close_or_in_time():
    """`take` comes back when there is something to take or nothing to come, and after `timeout_s` at the latest."""
    backlog = RequestQueue(9)
    puller, other = QueueWorker(backlog, ignore), QueueWorker(backlog, ignore)
    assert puller.take(capacity(1), timeout_s=0.001) == []
    for act, answer in (
        (lambda: backlog.put(ticket(1)), [ticket(1)]),
        (lambda: other.leave(RunnerClosedError("")), []),
        (lambda: puller.finish(ticket(1), "x"), []),
        (backlog.close, None),
    ):
        timer = threading.Timer(0.02, act)
        timer.start()
        assert puller.take(capacity(1), timeout_s=60) == answer
        timer.join()
    assert puller.take(capacity(1)) is None


def test_a_full_queue_refuses():
    """While as many samples wait as may, further ones are refused; those that were taken do not count."""
    backlog = RequestQueue(3)
    puller = QueueWorker(backlog, ignore)
    backlog.put(ticket(1, 3))
    with pytest.raises(OverloadedError, match="3 samples wait already"):
        backlog.put(ticket(2))
    puller.take(capacity(1))
    backlog.put(ticket(2))


def test_collecting_garbage_inside_the_lock_may_cancel():
    """A dropped stream cancels in whatever thread collects it: in one that holds the backlog's lock, too."""

    class Stream:
        """Cancels its future when it is collected."""

        def __init__(self, future):
            self.future, self.itself = future, self

        def __del__(self):
            self.future.cancel()

    backlog = RequestQueue(9)
    puller = QueueWorker(backlog, ignore)
    futures = [backlog.put(ticket(number)) for number in range(4)]
    puller.take(capacity(2))
    for future in futures[1:3]:
        Stream(future)
    with backlog._changed:
        gc.collect()
    assert [future.cancelled() for future in futures] == [False, True, True, False]
    assert [each.id for each in puller.take(capacity(9), timeout_s=0)] == [3]
    assert backlog.n_pending_samples == 2


def test_collecting_garbage_may_cancel_while_the_last_puller_leaves():
    """What is cancelled then ends as cancelled, and all others fail."""
    backlog = RequestQueue(9)
    puller = QueueWorker(backlog, ignore)
    futures = [backlog.put(ticket(number)) for number in range(3)]

    class Cancelling(Quota):
        """Cancels, as a stream does that is collected while something is given back."""

        def release(self, amount=1, client=None):
            futures[2].cancel()
            super().release(amount, client)

    backlog._queued_samples = Cancelling()
    puller.leave(GenerationError("it broke"))
    assert futures[2].cancelled()
    assert all(isinstance(future.exception(timeout=0), GenerationError) for future in futures[:2])


def test_a_puller_may_stand_in_for_a_worker_elsewhere():
    """Tickets travel as pickles, and text, ends and cancellations as messages in batches, to the same responses."""
    requests = [
        GenerationRequest("abc", max_tokens=6, num_samples=3, seed=seed) for seed in range(4)
    ]
    backlog, texts = RequestQueue(99), {}
    sent, received = [], []
    puller = QueueWorker(backlog, received.append)
    futures = []
    for number, request in enumerate(requests):
        each = texts[number] = [""] * 3

        def collect(sample, text, each=each):
            each[sample] += text

        futures.append(backlog.put(QueuedRequest(number, request, request.seed, 0.0), collect))

    elsewhere = Engine(ScriptedModel(2), PrefixCache(0), clock=lambda: 0.0)
    taken = puller.take(capacity(9))
    for packed in map(pickle.dumps, taken):
        elsewhere.add(pickle.loads(packed))
    futures[3].cancel()
    for number in received:
        elsewhere.drop(number)
    while not elsewhere.idle:
        sent.extend(map(pickle.dumps, elsewhere.step()))
    for packed in sent:
        puller.deliver(pickle.loads(packed))
    for number, future in enumerate(futures[:3]):
        assert [each.text for each in future.result(timeout=0).responses] == texts[number]
    assert futures[3].cancelled()
    assert backlog.n_pending_samples == 0


def test_a_ticket_can_be_pickled():
    """All of it travels: request, seed, time and number."""
    one = QueuedRequest(3, GenerationRequest("é", stop=["."], seed=1), 1, 12.5)
    other = pickle.loads(pickle.dumps(one))
    assert (other, other.request, other.seed, other.created) == (one, one.request, 1, 12.5)
