"""The searchers of a cluster: which searches which shard, and what happens if one does not respond.

Each shard has an order of searchers, by rendezvous hashing with bounded load: when a searcher joins
or leaves, few shards change their first searcher, and no searcher is first for much more than its
share. Every process computes the same order.
"""

from __future__ import annotations

import hashlib
import logging
import statistics
import threading
import time
import weakref
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import ray
from attrs import evolve, frozen
from ray.exceptions import (
    ActorDiedError,
    ActorUnschedulableError,
    RayError,
    RaySystemError,
    RayTaskError,
)

from relevance_gen.cluster.actors import START_TIMEOUT_S, check_versions, start
from relevance_gen.cluster.connection import NAMESPACE, check_connected, living_nodes
from relevance_gen.cluster.search.searcher import (
    IDLE_TIMEOUT_S,
    ShardGroup,
    ShardSearcher,
    join_response,
)
from relevance_gen.errors import ClusterError, IndexFormatError, RelevanceGenError, TimedOutError
from relevance_gen.shards.versions import ShardRecord

_log = logging.getLogger(__name__)

MIN_SEARCHER_TOKENS: Final = 8 << 20
"""Size of the shards of an index from which a further searcher searches a part of them: with
smaller parts, the messages take more processor time than the search."""
_ROUND_TIMEOUT_S: Final = 60.0
"""Time limit for the responses to one request."""
_FIRST_DURATION_S: Final = 0.3
_SLOW_FACTOR: Final = 3.0
"""After this multiple of the median duration of recent requests, the next searchers are asked,
too."""
_MIN_HEDGE_DELAY_S: Final = 0.05
_HEDGE_INTERVAL_S: Final = 2.0
_N_DURATIONS: Final = 65
_FAILURE_PENALTY_S: Final = 1.0
"""Time for which a searcher that failed comes last in every order."""
_SLOW_PENALTY_S: Final = 2.0
_RETRY_DELAY_S: Final = 0.1
_REFRESH_S: Final = 1.0
"""Seconds between two checks for nodes that joined or left."""
_PING_INTERVAL_S: Final = IDLE_TIMEOUT_S / 4
_START_TIMEOUT_S: Final = 20.0
"""Time to wait for all searchers when the first index is opened; later searchers are used when they
are ready."""
_MAX_BUILD_ATTEMPTS: Final = 5


class ShardError(Exception):
    """An error of a request: none of the searchers could read a shard.

    Attributes:
        shard_name: the name of the shard's file.
        cause: the last error of reading the shard.
    """

    def __init__(self, shard_name: str, cause: OSError) -> None:
        super().__init__(f"{shard_name}: {cause}")
        self.shard_name = shard_name
        self.cause = cause


@frozen(eq=False)
class SearcherHandle:
    """A searcher: its name, the id of its node, and Ray's handle of its actor."""

    name: str
    node_id: str
    actor: Any


@frozen(eq=False)
class _Attempt:
    """A request to a searcher that has not responded yet.

    Attributes:
        searcher: the searcher.
        names: the names of the shards that the request is about.
        parts: references of the parts of the response.
    """

    searcher: SearcherHandle
    names: frozenset[str]
    parts: Any


class LatencyTracker:
    """The durations of recent requests.

    They determine how long to wait before other searchers are asked for the same shards.
    """

    def __init__(self) -> None:
        self._durations_s = deque([_FIRST_DURATION_S], maxlen=_N_DURATIONS)

    def add(self, duration_s: float) -> None:
        """Record a duration: seconds from sending a request until all its shards have answered."""
        self._durations_s.append(duration_s)

    @property
    def hedge_delay_s(self) -> float:
        """Seconds from the beginning of a request until further searchers are asked.

        Then each shard without an answer is requested from the next searcher in its order, too.
        """
        median_s = statistics.median(self._durations_s.copy())
        return max(_SLOW_FACTOR * median_s, _MIN_HEDGE_DELAY_S)


class SearcherPool:
    """The searchers of a cluster, a searcher for each processor.

    All indexes and all processes of the cluster share them.
    """

    def __init__(self) -> None:
        self.session = session_id()
        self.latency = LatencyTracker()
        self._lock = threading.Lock()
        self._searchers: dict[str, SearcherHandle] = {}
        self._starting: dict[str, _StartingSearcher] = {}
        self._refreshed_s = 0.0
        self._pinged_s = 0.0
        self._avoided_until_s: dict[str, float] = {}
        self.refresh()
        self._await_first()
        target = weakref.ref(self)
        threading.Thread(
            target=_keep_fresh, args=(target,), daemon=True, name="watch-nodes"
        ).start()

    @property
    def searchers(self) -> list[SearcherHandle]:
        """The searchers that are ready for requests, in the order of their names."""
        with self._lock:
            return [self._searchers[name] for name in sorted(self._searchers)]

    @property
    def generation(self) -> int:
        """A hash of the searchers' names, which changes when a searcher is added or removed."""
        with self._lock:
            return hash(frozenset(self._searchers))

    def orders(
        self, shards: Sequence[ShardRecord], index_id: str
    ) -> dict[str, list[SearcherHandle]]:
        """Return the order in which searchers are asked for each shard, by the name of its file.

        The number of different searchers that are first in an order is limited to one for each full
        `MIN_SEARCHER_TOKENS` tokens of all shards, at least 1, so that each of them searches about
        this number of tokens or more.

        Args:
            shards: the shards of a version of an index.
            index_id: the id of the index; different indexes have different first searchers.

        Raises:
            ClusterError: there is no searcher.
        """
        searchers = sorted(self.searchers, key=lambda searcher: _score(searcher.name, index_id))
        if not searchers:
            raise ClusterError("no node of the cluster can run a searcher")
        total = sum(_weight(shard) for shard in shards)
        largest = max((_weight(shard) for shard in shards), default=0)
        n_first = min(max(total // MIN_SEARCHER_TOKENS, 1), len(searchers))
        primary, others = searchers[:n_first], searchers[n_first:]
        limit = max(total / n_first, largest)
        loads = dict.fromkeys([searcher.name for searcher in primary], 0)
        orders = {}
        by_name = sorted(shards, key=lambda shard: shard.file.name)
        for shard in sorted(by_name, key=_weight, reverse=True):
            name, weight = shard.file.name, _weight(shard)
            ranked = sorted(primary, key=lambda searcher: _score(searcher.name, name))
            fitting = [searcher for searcher in ranked if loads[searcher.name] + weight <= limit]
            least_loaded = min(ranked, key=lambda searcher: loads[searcher.name])
            first = fitting[0] if fitting else least_loaded
            loads[first.name] += weight
            remaining = [searcher for searcher in ranked if searcher is not first]
            orders[name] = [first, *remaining, *others]
        return orders

    def ask(
        self, group: ShardGroup, orders: Mapping[str, Sequence[SearcherHandle]], request: bytes
    ) -> list[Any]:
        """Return the responses of searchers, which together cover each shard of a group once.

        Args:
            group: the shards.
            orders: the order of searchers for each shard, as `orders` returns it.
            request: as for `ShardSearcher.answer`.

        Raises:
            ShardError: a shard cannot be opened by any searcher.
            TimedOutError: a searcher did not respond in time.
            BusyError: a searcher has too many requests.
            ClusterError: the connection to the cluster was closed.
        """
        self.check_connected()
        try:
            return _Round(self, group, orders, request).responses()
        except RelevanceGenError:
            raise
        except (AttributeError, RaySystemError, SystemExit):  # what Ray raises after its shutdown
            self.check_connected()
            raise

    def check_connected(self) -> None:
        """Raise a `ClusterError` if this process is not connected to the cluster any more."""
        if session_id() != self.session:
            raise ClusterError("the connection to the cluster was closed; open the index again")

    def run(
        self,
        tasks: Sequence[Callable[[SearcherHandle], Any]],
        on_done: Callable[[Any], None],
    ) -> list[Any]:
        """Run tasks on searchers, at most one task per searcher; return their results in order.

        A task whose searcher dies is started again on another searcher.

        Args:
            tasks: functions that start a task on a searcher and return the reference of its result.
            on_done: called in this thread with the result of each task, when the task has ended.

        Raises:
            Exception: the exception that a task raised.
            ClusterError: the searchers of one task died repeatedly.
        """
        results: dict[int, Any] = {}
        waiting = deque((task_ord, 0) for task_ord in range(len(tasks)))
        running: dict[Any, tuple[int, int, SearcherHandle]] = {}
        while waiting or running:
            busy = {searcher.name for _, _, searcher in running.values()}
            idle = [
                searcher
                for searcher in self.by_preference(self.searchers)
                if searcher.name not in busy
            ]
            while waiting and idle:
                task_ord, n_attempts = waiting.popleft()
                searcher = idle.pop(0)
                running[tasks[task_ord](searcher)] = (task_ord, n_attempts, searcher)
            if not running:
                time.sleep(_RETRY_DELAY_S)
                self.refresh()
                continue
            ready, _ = ray.wait(list(running), timeout=_REFRESH_S)
            for reference in ready:
                task_ord, n_attempts, searcher = running.pop(reference)
                try:
                    results[task_ord] = ray.get(reference)
                except RayTaskError as error:
                    raise error.cause from None
                except RayError as error:
                    self.note_failure(searcher, error)
                    if n_attempts + 1 == _MAX_BUILD_ATTEMPTS:
                        message = f"processes of the cluster died repeatedly: {error}"
                        raise ClusterError(message) from None
                    waiting.append((task_ord, n_attempts + 1))
                else:
                    on_done(results[task_ord])
        return [results[task_ord] for task_ord in range(len(tasks))]

    def open_shards(
        self, group: ShardGroup, orders: Mapping[str, Sequence[SearcherHandle]]
    ) -> None:
        """Ask the first two searchers in each shard's order to open it; do not wait for them.

        Args:
            group: the shards' index and version.
            orders: the order of searchers for each shard to open, as `orders` returns it.
        """
        for rank in (0, 1):
            for searcher, names in group_by_searcher(orders, rank).items():
                searcher.actor.open.remote(evolve(group, shard_names=tuple(sorted(names))))

    def close_index(self, location: str) -> None:
        """Ask all searchers to close the shards of the index at `location`; do not wait for them.

        Does nothing if this process is not connected to the cluster any more.
        """
        if session_id() == self.session:
            for searcher in self.searchers:
                searcher.actor.close_index.remote(location)

    def by_preference(self, searchers: Sequence[SearcherHandle]) -> list[SearcherHandle]:
        """Return searchers in the same order, but avoided searchers last; see `avoid`."""
        now_s = time.monotonic()
        avoided = self._avoided_until_s.copy()
        if all(until_s <= now_s for until_s in avoided.values()):
            return list(searchers)
        return sorted(searchers, key=lambda searcher: avoided.get(searcher.name, 0.0) > now_s)

    def avoid(self, searcher: SearcherHandle, duration_s: float) -> None:
        """Ask other searchers before this searcher for `duration_s` seconds."""
        self._avoided_until_s[searcher.name] = time.monotonic() + duration_s

    def note_failure(self, searcher: SearcherHandle, error: RayError) -> None:
        """Put a searcher that failed at the end of every order for `_FAILURE_PENALTY_S` seconds.

        If its actor has ended, the searcher is removed from the pool.

        Args:
            searcher: the searcher that failed.
            error: its error; after an `ActorDiedError` or an `ActorUnschedulableError`, the
                searcher is removed.
        """
        self.avoid(searcher, _FAILURE_PENALTY_S)
        if isinstance(error, ActorDiedError | ActorUnschedulableError):
            with self._lock:
                if self._searchers.get(searcher.name) is searcher:
                    del self._searchers[searcher.name]

    def refresh(self) -> None:
        """Start searchers on nodes that joined, and remove the searchers of nodes that left.

        Also adds searchers that have started since the last call, and pings all searchers from time
        to time so that they do not end. Does nothing if the connection to the cluster was closed.
        """
        if session_id() != self.session:
            return
        nodes = {node.id: node for node in living_nodes()}
        with self._lock:
            self._refreshed_s = time.monotonic()
            self._searchers = {
                name: searcher
                for name, searcher in self._searchers.items()
                if searcher.node_id in nodes
            }
            self._starting = {
                name: searcher
                for name, searcher in self._starting.items()
                if searcher.node_id in nodes
            }
            for node in nodes.values():
                for ordinal in range(max(1, int(node.n_cpus))):
                    name = f"searcher {node.id} {ordinal}"
                    if name not in self._searchers and name not in self._starting:
                        self._starting[name] = _start_searcher(name, node.id)
            if self._refreshed_s > self._pinged_s + _PING_INTERVAL_S:
                self._pinged_s = self._refreshed_s
                for searcher in self._searchers.values():
                    searcher.actor.ping.remote()
        self._take_started(timeout_s=0.0)

    def _take_started(self, timeout_s: float) -> None:
        """Add the starting searchers that are ready to the pool, and drop those that failed.

        Args:
            timeout_s: maximum seconds to wait until all starting searchers are ready.

        Raises:
            ClusterError: a searcher has other versions than this process.
        """
        with self._lock:
            starting = {started.reference: started for started in self._starting.values()}
        if not starting:
            return
        ready, _ = ray.wait(list(starting), num_returns=len(starting), timeout=timeout_s)
        for reference in ready:
            started = starting[reference]
            try:
                check_versions(*ray.get(reference))
            except RayError:  # its process or node died; the next refresh starts another one
                ready_searcher = None
            else:
                ready_searcher = started.searcher
            with self._lock:
                self._starting.pop(started.searcher.name, None)
                if ready_searcher is not None:
                    self._searchers[ready_searcher.name] = ready_searcher

    def _await_first(self) -> None:
        """Wait until at least one searcher is ready.

        The method waits for all starting searchers together, at most `_START_TIMEOUT_S` seconds at
        a time, and repeats this until at least one searcher is ready.

        Raises:
            ClusterError: no searcher was ready after `START_TIMEOUT_S` seconds, or a searcher has
                other versions than this process. The time is checked only between two waits, so it
                can exceed the limit by one wait.
        """
        deadline_s = time.monotonic() + START_TIMEOUT_S
        while not self._searchers:
            if time.monotonic() > deadline_s:
                raise ClusterError("no node of the cluster can run relevance_gen")
            self._take_started(timeout_s=_START_TIMEOUT_S)
            self.refresh()


@frozen(eq=False)
class _StartingSearcher:
    searcher: SearcherHandle
    reference: Any  # of the response to `node_and_versions`

    @property
    def node_id(self) -> str:
        """Id of the searcher's node."""
        return self.searcher.node_id


def _start_searcher(name: str, node_id: str) -> _StartingSearcher:
    """Start the searcher with a name, or find its actor if another process has started it."""
    options = {"name": name, "namespace": NAMESPACE, "lifetime": "detached"}
    actor = start(ShardSearcher, node_id, get_if_exists=True, max_restarts=-1, **options)
    return _StartingSearcher(SearcherHandle(name, node_id, actor), actor.node_and_versions.remote())


def _keep_fresh(pool: weakref.ref[SearcherPool]) -> None:
    while True:
        time.sleep(_REFRESH_S)
        alive = pool()
        if alive is None or session_id() != alive.session:
            return
        try:
            alive.refresh()
        except Exception:  # the cluster's head may be away
            _log.warning("the nodes of the cluster cannot be listed", exc_info=True)
        del alive


class _Round:
    """One request to all shards: attempts of several searchers, until each shard is answered once.

    A searcher that is asked for several shards sends one response for all of them. The response is
    used only if no other used response covers one of these shards; otherwise it is discarded.
    """

    def __init__(
        self,
        pool: SearcherPool,
        group: ShardGroup,
        orders: Mapping[str, Sequence[SearcherHandle]],
        request: bytes,
    ) -> None:
        self._pool = pool
        self._group = group
        self._request = request
        names = group.shard_names
        self._orders = {name: pool.by_preference(orders[name]) for name in names}
        self._n_tried = dict.fromkeys(names, 0)
        self._errors: dict[str, list[OSError]] = {name: [] for name in names}
        self._unanswered = set(names)
        self._attempts: dict[Any, _Attempt] = {}
        self._responses: list[Any] = []

    def responses(self) -> list[Any]:
        """Send the request, and wait for responses that together cover each shard once.

        Raises what `SearcherPool.ask` raises. The caller must call this method only once.
        """
        begun_s = time.monotonic()
        hedge_s = begun_s + self._pool.latency.hedge_delay_s
        is_hedged = False
        self._send(self._unanswered)
        while self._unanswered:
            check_connected()
            now_s = time.monotonic()
            if now_s > begun_s + _ROUND_TIMEOUT_S:
                raise self._timeout()
            if now_s >= hedge_s:
                self._hedge()
                is_hedged = True
                hedge_s = now_s + _HEDGE_INTERVAL_S
            if not self._attempts:
                time.sleep(_RETRY_DELAY_S)
                self._send(self._unanswered)
                continue
            timeout_s = max(0.0, hedge_s - time.monotonic())
            # Waiting for all responses at once takes less processor time; after the first hedge
            # delay, a searcher that hangs must not delay the others.
            n_awaited = 1 if is_hedged else len(self._attempts)
            ready, _ = ray.wait(list(self._attempts), num_returns=n_awaited, timeout=timeout_s)
            for reference in ready:
                self._receive(self._attempts.pop(reference))
        self._pool.latency.add(time.monotonic() - begun_s)
        return self._responses

    def _send(self, names: Iterable[str]) -> None:
        """Send the request for the shards `names`, with one message to each searcher.

        Each shard is requested from the next searcher in its order that this object has not asked
        for it yet. After the last searcher of an order, the order begins again.
        """
        by_searcher: defaultdict[SearcherHandle, set[str]] = defaultdict(set)
        for name in names:
            order = self._orders[name]
            by_searcher[order[self._n_tried[name] % len(order)]].add(name)
            self._n_tried[name] += 1
        for searcher, of_searcher in by_searcher.items():
            group = evolve(self._group, shard_names=tuple(sorted(of_searcher)))
            try:
                parts = searcher.actor.answer.remote(group, self._request)
            except RayError as error:
                self._pool.note_failure(searcher, error)
                continue
            self._attempts[parts[0]] = _Attempt(searcher, frozenset(of_searcher), parts)

    def _receive(self, attempt: _Attempt) -> None:
        """Process the response or the failure of the searcher of an attempt.

        If the response does not count or the searcher failed, some shards of the attempt can remain
        unanswered. Each of these that no other attempt in progress asks for is requested from the
        next searcher in its order.
        """
        try:
            response = join_response(ray.get(attempt.parts))
        except RayTaskError as error:
            if not isinstance(error.cause, OSError) or isinstance(error.cause, IndexFormatError):
                raise error.cause from None
            self._note_error(attempt, error.cause)
        except RayError as error:
            self._pool.note_failure(attempt.searcher, error)
        else:
            if attempt.names <= self._unanswered:
                self._responses.append(response)
                self._unanswered -= attempt.names
                return
        asked = {name for other in self._attempts.values() for name in other.names}
        remaining = (attempt.names & self._unanswered) - asked
        if remaining:
            if max(self._n_tried[name] for name in remaining) >= len(self._pool.searchers):
                time.sleep(_RETRY_DELAY_S)  # all have failed: some may be restarting
            self._send(remaining)

    def _note_error(self, attempt: _Attempt, error: OSError) -> None:
        """Record that the searcher of an attempt could not read a shard.

        The shards whose names are in the message of `error` count as unread; if there are none,
        all unanswered shards of the attempt do.

        Raises:
            ShardError: for a shard, as many errors are recorded as its order has searchers.
        """
        unanswered = attempt.names & self._unanswered
        unread = {name for name in unanswered if name in str(error)} or unanswered
        for name in sorted(unread):
            self._errors[name].append(error)
            if len(self._errors[name]) >= len(self._orders[name]):
                raise ShardError(name, error)

    def _hedge(self) -> None:
        """Request all unanswered shards of running attempts from the next searchers, too.

        The searchers of the running attempts count as slow: later requests ask them last for
        `_SLOW_PENALTY_S`.
        """
        slow = {name for attempt in self._attempts.values() for name in attempt.names}
        for attempt in self._attempts.values():
            self._pool.avoid(attempt.searcher, _SLOW_PENALTY_S)
        self._send(slow & self._unanswered)

    def _timeout(self) -> TimedOutError:
        nodes = sorted({attempt.searcher.node_id for attempt in self._attempts.values()})
        message = f"shards did not answer within {_ROUND_TIMEOUT_S:g} seconds"
        return TimedOutError(f"{message}, on nodes {', '.join(nodes)}")


def group_by_searcher(
    orders: Mapping[str, Sequence[SearcherHandle]], rank: int
) -> dict[SearcherHandle, set[str]]:
    """Return, for each searcher, the names of the shards whose order has it at the index `rank`.

    Args:
        orders: the order of searchers for each shard, by the name of the shard.
        rank: index in an order, from 0. Shards with shorter orders are left out.
    """
    groups: defaultdict[SearcherHandle, set[str]] = defaultdict(set)
    for name, order in orders.items():
        if rank < len(order):
            groups[order[rank]].add(name)
    return groups


def _weight(shard: ShardRecord) -> int:
    return shard.n_tokens + 1


def _score(searcher_name: str, shard_name: str) -> bytes:
    content = f"{searcher_name} {shard_name}".encode()
    return hashlib.blake2b(content, digest_size=8).digest()


def session_id() -> str:
    """Return the address and job id of this process's connection to a cluster; "" without one."""
    if not ray.is_initialized():
        return ""
    context = ray.get_runtime_context()
    return f"{context.gcs_address} {context.get_job_id()}"


_pools: Final[list[SearcherPool]] = []
_pools_lock: Final = threading.Lock()


def searcher_pool() -> SearcherPool:
    """Return the pool of the cluster that this process is connected to.

    The pool is created by the first call after a connection, which waits for searchers to start.
    """
    with _pools_lock:
        if not _pools or _pools[0].session != session_id():
            _pools[:] = [SearcherPool()]
        return _pools[0]
