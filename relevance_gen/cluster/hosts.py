"""The hosts of an index, and the replicas of its shards in them: start what is lacking, call it, and end what fails."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any, Final, NamedTuple

import ray
from ray.exceptions import RayActorError

from relevance_gen.cluster.actors import START_S, SilentError, check, get_from, start
from relevance_gen.cluster.balance import Balance
from relevance_gen.cluster.host import Host
from relevance_gen.cluster.kept import NOT_MADE, KeptHost, KeptShard
from relevance_gen.cluster.placing import Node, least_loaded, living_nodes
from relevance_gen.cluster.shard import Contribution
from relevance_gen.cluster.state import HostState
from relevance_gen.errors import ClusterError
from relevance_gen.text.token_counting import TokenCounter
from relevance_gen.types import WeightingName

_log = logging.getLogger(__name__)

_ATTEMPTS: Final = 3
"""How often a replica is made before a shard counts as lost: a node may die while it is chosen."""
_LONGEST_PAUSE_S: Final = 30.0
"""Between two attempts to restore a shard that cannot be restored."""
_AT_ONCE: Final = 1 << 12
"""Replicas that are made at once; each waits for its turn in its host."""
_CALLS: Final = 16
"""Calls of shards that a host works at together, but for questions."""
BUILD_SILENT_S: Final = 30.0
"""An actor that unpickles gigabytes leaves a ping unanswered for so long at most."""
_FILL_S: Final = 30.0
"""How long further shards are restored together with others, before changes have their turn."""
_LOOK_S: Final = 0.2


class _Call(NamedTuple):
    """What one replica is asked for, and the list that its answer goes to."""

    answers: list[Any]
    shard: KeptShard
    args: tuple[Any, ...]
    host: KeptHost


class Hosts:
    """All hosts of an index, and the replicas of all shards in them.

    Each shard shall have `n_wanted` hosts, each on a node of its own as far as there are nodes. When a host was struck
    out, falls silent or is heard of again, `on_change` is called with `changed` held.
    """

    def __init__(
        self,
        weighting: WeightingName,
        counter: TokenCounter,
        n_wanted: int,
        on_change: Callable[[], None],
    ) -> None:
        self.shards: list[KeptShard] = []
        self.all: list[KeptHost] = []
        self.changed = (
            threading.Condition()
        )  # held for a moment while hosts and replicas come and go
        self._made_with = weighting, counter
        self._numbers = itertools.count()
        self.n_wanted = n_wanted
        self.on_change = on_change
        self.adopted: tuple[int, Any] | None = (
            None  # what was adopted last, as `Shard.adopt` takes it
        )
        self.closed = threading.Event()

    def of(self, host: KeptHost) -> list[KeptShard]:
        """Return the shards that a host has."""
        return [shard for shard in self.shards if host in shard.replicas]

    def lacking(self) -> list[KeptShard]:
        """Return the shards that lack replicas, and for which it is time to try again."""
        now_s = time.monotonic()
        if self.closed.is_set():
            return []
        return [
            one
            for one in self.shards
            if len(one.replicas) < self.n_wanted and one.next_try_s <= now_s
        ]

    def adopt(self, epoch: int, statistics: Any) -> None:
        """Have all shards adopt their last changes, and from now on all that are made adopt this state."""
        self.adopted = epoch, statistics
        numbers: dict[KeptHost, list[int]] = {}
        for shard in self.shards:
            for host in shard.replicas:
                numbers.setdefault(host, []).append(shard.number)
        self._answers(
            [
                (host, host.handle.adopt.remote(some, epoch, statistics))
                for host, some in numbers.items()
            ]
        )

    def call(
        self, shards: Sequence[KeptShard], verb: str, arguments: Sequence[tuple[Any, ...]]
    ) -> list[list[Any]]:
        """Call a method of all replicas of some shards at once, and return what the replicas of each answered.

        Those that turn out to be dead or silent are struck out. What one raised is raised when all have answered.
        """
        answers: list[list[Any]] = [[] for _ in shards]
        calls = zip(answers, shards, arguments, strict=True)
        self._call(
            verb, [_Call(*call, replica) for call in calls for replica in list(call[1].replicas)]
        )
        return answers

    def call_one(
        self, shards: Sequence[KeptShard], verb: str, arguments: Sequence[tuple[Any, ...]]
    ) -> list[Any]:
        """Do so with one replica of each shard, and with others where these turn out to be dead or silent.

        The list of a shard is empty where no replica lives.
        """
        answers: list[list[Any]] = [[] for _ in shards]
        owed = list(zip(answers, shards, arguments, strict=True))
        while owed:
            calls = [
                _Call(found, shard, args, replica)
                for found, shard, args in owed
                if (replica := min(shard.replicas, key=lambda one: one.silent_s, default=None))
                is not None
            ]
            owed = [(call.answers, call.shard, call.args) for call in self._call(verb, calls)]
        return answers

    def _call(self, verb: str, calls: Sequence[_Call]) -> list[_Call]:
        """Call replicas, all at once; return the calls of hosts that were dead or silent, and are struck out now."""
        told = self._answers(
            [
                (call.host, call.host.handle.call.remote(call.shard.number, verb, *call.args))
                for call in calls
            ]
        )
        for call, answer in zip(calls, told, strict=True):
            call.answers.extend(answer)
        return [call for call, answer in zip(calls, told, strict=True) if not answer]

    def _answers(self, sent: Sequence[tuple[KeptHost, Any]]) -> list[list[Any]]:
        """Return what hosts answer, in a list each; it is empty for one that is dead or silent, and struck out now.

        What one raised is raised when all have answered.
        """
        answers: list[list[Any]] = []
        failure: Exception | None = None
        for host, answer in sent:
            answers.append([])
            try:
                answers[-1].append(get_from(host.handle, answer))
            except (RayActorError, SilentError):
                self.strike(host)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return answers

    def cut(
        self, cuts: Sequence[tuple[KeptShard, int, KeptShard]]
    ) -> list[list[tuple[Contribution, Contribution]]]:
        """Have all replicas of shards cut them, all at once: each at a position, from where on another shard has it.

        Return what the replicas of each tell of both; those that turn out to be dead or silent are struck out.
        """
        calls = [
            [
                (host, host.handle.cut.remote(shard.number, at, rest.number))
                for host in list(shard.replicas)
            ]
            for shard, at, rest in cuts
        ]
        told = iter(self._answers([*itertools.chain.from_iterable(calls)]))
        return [
            [one for answer in itertools.islice(told, len(some)) for one in answer]
            for some in calls
        ]

    def strike(self, host: KeptHost) -> None:
        """End a host, if it still lives, and strike it and its replicas out."""
        ray.kill(host.handle)
        with self.changed:
            if host in self.all:
                self.all.remove(host)
                for shard in self.shards:
                    shard.replicas = [one for one in shard.replicas if one is not host]
                self.on_change()

    def drop(self, shard: KeptShard, host: KeptHost) -> None:
        """Have a host drop a shard."""
        with self.changed:
            shard.replicas = [one for one in shard.replicas if one is not host]
            self.on_change()
        host.handle.drop.remote(shard.number)

    # ── Starting ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def fill(self) -> None:
        """Make the replicas that shards lack, all at once, and those that they come to lack for a while from now."""
        end_s = time.monotonic() + _FILL_S
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            making: dict[Future[bool], KeptShard] = {}
            while True:
                for shard in self.lacking() if time.monotonic() < end_s else ():
                    n_coming = sum(one is shard for one in making.values())
                    for _ in range(self.n_wanted - len(shard.replicas) - n_coming):
                        making[pool.submit(self.make, shard)] = shard
                if not making:
                    break
                for ended in wait(making, _LOOK_S, FIRST_COMPLETED).done:
                    del making[ended]
                    ended.result()
        self.end_idle()

    def end_idle(self) -> None:
        """End the hosts that have no shard."""
        with self.changed:
            busy = {host for shard in self.shards for host in (*shard.replicas, *shard.coming)}
            idle = [host for host in self.all if host not in busy]
            self.all = [host for host in self.all if host in busy]
        for host in idle:
            ray.kill(host.handle)

    def make(self, shard: KeptShard, node: Node | None = None) -> bool:
        """Make a replica, on a node with room unless one is named; tell whether that was done, or note why not."""
        for _ in range(_ATTEMPTS):
            if self.closed.is_set():
                return False
            with self.changed:
                host = self._place(shard, node)
                shard.coming.append(host)
            try:
                self._make(shard, host)
            except (RayActorError, SilentError) as error:
                self.strike(host)
                shard.error = f"the actor died: {str(error).splitlines()[0]}"
                continue
            except Exception as error:
                host.handle.drop.remote(shard.number)
                shard.error = f"{type(error).__name__}: {error}"
                break
            finally:
                with self.changed:
                    shard.coming.remove(host)
            with self.changed:
                shard.replicas.append(host)
                shard.error, shard.n_failures = None, 0
                self.on_change()
            return True
        with self.changed:
            shard.n_failures += 1
            shard.next_try_s = time.monotonic() + min(2.0**shard.n_failures - 1.0, _LONGEST_PAUSE_S)
            self.on_change()
        if not self.closed.is_set():
            _log.warning("a replica of a shard could not be made: %s", shard.error)
        return False

    def _make(self, shard: KeptShard, host: KeptHost) -> None:
        """Have a host make a shard, and adopt what the others have adopted."""
        self._welcome(host)
        made: Contribution = self._made(shard, host)
        with self.changed:
            if shard.contribution is NOT_MADE:
                shard.contribution = made
        if made.digest != shard.contribution.digest:
            raise ClusterError("its source has changed since the index was built")
        if self.adopted is not None:
            get_from(host.handle, host.handle.adopt.remote([shard.number], *self.adopted))
        if self.closed.is_set():
            raise ClusterError("the index was closed")

    def _welcome(self, host: KeptHost) -> None:
        """Wait until a host has started, and let all hosts of its node know each other."""
        check(host.handle, START_S)
        with self.changed:
            if host.is_up:
                return
            host.is_up = True
            there = [one for one in self.all if one.is_up and one.node_id == host.node_id]
        hosts = {one.state.number: one.handle for one in there}
        for one, answer in [
            (one, one.handle.meet.remote(hosts)) for one in there if len(there) > 1
        ]:
            with suppress(RayActorError, SilentError):  # whoever calls it next is told
                get_from(one.handle, answer)

    def _made(self, shard: KeptShard, host: KeptHost) -> Any:
        """Let a host copy a replica that lives; where there is none, make the shard by its recipe.

        A saved file comes first, because it is mapped, and lies in memory once for all who read it.
        """

        def make_from(twin: KeptHost | None) -> Any:
            build, take = host.handle.build, host.handle.take
            made = (
                build.remote(shard.number, shard.recipe)
                if twin is None
                else take.remote(shard.number, twin.handle)
            )
            return get_from(host.handle, made, BUILD_SILENT_S)

        twins = (
            [one for one in shard.replicas if not one.is_silent] if self.adopted is not None else []
        )
        *ways, last = [None, *twins] if shard.recipe.is_file else [*twins, None]
        for way in ways:
            with suppress(Exception):  # there is another way
                return make_from(way)
        return make_from(last)

    def _place(self, shard: KeptShard, node: Node | None) -> KeptHost:
        """Return the host that a shard is to be made in, on the node with most room unless one is named."""
        balance = Balance(self.shards, self.all)
        having = [one.node_id for one in (*shard.replicas, *shard.coming)]
        node = node or least_loaded(living_nodes(), balance.of_nodes, having)
        host, _ = balance.fitting(shard, node)
        return host or self._new(node)

    def _new(self, node: Node) -> KeptHost:
        """Start a host on a node."""
        number = next(self._numbers)
        handle = start(Host, node.id, number, *self._made_with, max_concurrency=_CALLS)
        self.all.append(KeptHost(HostState(number, handle, node.id), handle.end.remote()))
        return self.all[-1]

    def close(self) -> None:
        """End all hosts, and start no more."""
        self.closed.set()
        with self.changed:
            handles = [host.handle for host in self.all]
        for handle in (
            handles if ray.is_initialized() else []
        ):  # Ray would start a cluster of its own
            with suppress(Exception):  # the cluster may be gone
                ray.kill(handle)
