"""Watch over the replicas of an index: take note of those that die or fall silent, and have them made again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import ray

from relevance_gen.cluster.actors import SILENT_S
from relevance_gen.cluster.replicas import KeptShard, Replica, Replicas

_log = logging.getLogger(__name__)

_WATCH_S: Final = 0.2
_PING_S: Final = 0.5
"""How often a replica is pinged, where they are few."""
_PINGS_PER_S: Final = 100


class Watch:
    """A thread that watches until the replicas are closed.

    Args:
        replicas: what is watched.
        restore: called in a thread of its own when shards lack replicas.
    """

    def __init__(self, replicas: Replicas, restore: Callable[[], None]) -> None:
        self._replicas = replicas
        self._restore = restore
        self._listened_s = 0.0
        self._thread = threading.Thread(target=self._run, name="watch-shards", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended, if it was started and is not this one, as when the collector runs in it."""
        if self._thread.ident not in (None, threading.get_ident()):
            self._thread.join(2 * _WATCH_S)

    def _run(self) -> None:
        restoring: threading.Thread | None = None
        while ray.is_initialized() and not self._replicas.closed.is_set():
            ends = {one.end: (shard, one) for shard, one in self._living()}
            dead, _ = ray.wait(list(ends), timeout=_WATCH_S) if ends else ([], self._replicas.closed.wait(_WATCH_S))
            if self._replicas.closed.is_set():
                return
            for end in dead:
                self._lose(*ends[end], "died")
            self._listen()
            if self._replicas.lacking() and not (restoring is not None and restoring.is_alive()):
                restoring = threading.Thread(target=self._restore, name="restore-shards", daemon=True)
                restoring.start()

    def _living(self) -> list[tuple[KeptShard, Replica]]:
        with self._replicas.changed:
            return [(shard, one) for shard in self._replicas.shards for one in shard.replicas]

    def _lose(self, shard: KeptShard, replica: Replica, how: str) -> None:
        n_chunks = shard.statistics.n_chunks
        _log.warning("a replica of a shard of %d chunks on node %s %s", n_chunks, replica.node_id, how)
        self._replicas.strike(shard, replica)

    def _listen(self) -> None:
        """Ping replicas, and note for how long each has not answered.

        One that is silent is not told to callers any more. It is ended: soon if another one of its shard answers, and
        later if it is the only one. Time is counted in waits, because this process may have been stopped itself.
        """
        now_s = time.monotonic()
        waited_s = min(now_s - self._listened_s, 2 * _WATCH_S)
        self._listened_s = now_s
        living = self._living()
        pings = [one.ping for _, one in living if one.ping is not None]
        answered = set(ray.wait(pings, num_returns=len(pings), timeout=0)[0] if pings else ())
        for shard, replica in living:
            was_silent = replica.is_silent
            if replica.ping in answered:
                replica.ping, replica.silent_s = None, 0.0
                replica.next_ping_s = now_s + max(_PING_S, len(living) / _PINGS_PER_S)
            elif replica.ping is not None:
                replica.silent_s += waited_s
            elif now_s >= replica.next_ping_s:
                replica.ping = replica.handle.ping.remote()
            has_twin = any(one.has_adopted and not one.silent_s for one in shard.replicas)
            if replica.is_silent and (has_twin or replica.silent_s > SILENT_S):
                self._lose(shard, replica, f"has not answered for {replica.silent_s:.1f} seconds")
            elif replica.is_silent != was_silent:
                with self._replicas.changed:
                    self._replicas.on_change()
