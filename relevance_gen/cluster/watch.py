"""Watch over the hosts of an index: take note of those that die or fall silent, and have their shards made again."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import ray

from relevance_gen.cluster.actors import SILENT_S
from relevance_gen.cluster.hosts import BUILD_SILENT_S, Hosts
from relevance_gen.cluster.kept import KeptHost

_log = logging.getLogger(__name__)

_WATCH_S: Final = 0.2
_PING_S: Final = 0.5
"""How often a host is pinged, where they are few."""
_PINGS_PER_S: Final = 100


class Watch:
    """A thread that watches until the hosts are closed; in another it has shards restored that lack replicas."""

    def __init__(self, hosts: Hosts, restore: Callable[[], None]) -> None:
        self._hosts = hosts
        self._restore = restore
        self._listened_s = 0.0
        self._thread = threading.Thread(target=self._run, name="watch-hosts", daemon=True)

    def start(self) -> None:
        """Begin to watch."""
        self._thread.start()

    def join(self) -> None:
        """Wait until the thread has ended, if it was started and is not this one, as when the collector runs in it."""
        if self._thread.ident not in (None, threading.get_ident()):
            self._thread.join(2 * _WATCH_S)

    def _run(self) -> None:
        restoring: threading.Thread | None = None
        while ray.is_initialized() and not self._hosts.closed.is_set():
            ends = {one.end: one for one in self._living()}
            dead, _ = (
                ray.wait(list(ends), timeout=_WATCH_S)
                if ends
                else ([], self._hosts.closed.wait(_WATCH_S))
            )
            if self._hosts.closed.is_set():
                return
            for end in dead:
                self._lose(ends[end], "died")
            self._listen()
            if self._hosts.lacking() and not (restoring is not None and restoring.is_alive()):
                restoring = threading.Thread(
                    target=self._restore, name="restore-shards", daemon=True
                )
                restoring.start()

    def _living(self) -> list[KeptHost]:
        with self._hosts.changed:
            return [one for one in self._hosts.all if one.is_up]

    def _lose(self, host: KeptHost, how: str) -> None:
        shards = self._hosts.of(host)
        n_chunks = sum(shard.statistics.n_chunks for shard in shards)
        _log.warning(
            "a host of %d shards, %d chunks, on node %s %s",
            len(shards),
            n_chunks,
            host.node_id,
            how,
        )
        self._hosts.strike(host)

    def _listen(self) -> None:
        """Ping hosts, and note for how long each has not answered.

        One that is silent is not told to callers any more. It is ended: soon if others have all of its shards, and
        later if not, or while it makes one. Time is counted in waits: this process may have been stopped itself.
        """
        now_s = time.monotonic()
        waited_s = min(now_s - self._listened_s, 2 * _WATCH_S)
        self._listened_s = now_s
        living = self._living()
        pings = [one.ping for one in living if one.ping is not None]
        answered = set(ray.wait(pings, num_returns=len(pings), timeout=0)[0] if pings else ())
        for host in living:
            was_silent = host.is_silent
            if host.ping in answered:
                host.ping, host.silent_s = None, 0.0
                host.next_ping_s = now_s + max(_PING_S, len(living) / _PINGS_PER_S)
            elif host.ping is not None:
                host.silent_s += waited_s
            elif now_s >= host.next_ping_s:
                host.ping = host.handle.ping.remote()
            if host.is_silent and host.silent_s > self._longest_silence_s(host):
                self._lose(host, f"has not answered for {host.silent_s:.1f} seconds")
            elif host.is_silent != was_silent:
                with self._hosts.changed:
                    self._hosts.on_change()

    def _longest_silence_s(self, host: KeptHost) -> float:
        if any(host in shard.coming for shard in self._hosts.shards):
            return BUILD_SILENT_S
        has_twins = all(
            any(not one.silent_s for one in shard.replicas) for shard in self._hosts.of(host)
        )
        return 0.0 if has_twins else SILENT_S
