"""Indexes that clients name instead of sending chunks: those offered, those of a cluster, and those kept of chunks."""

from __future__ import annotations

import asyncio
import hmac
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final, NoReturn, TypeVar

from attrs import field, frozen

from relevance_gen import checks, errors
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.serve.services.indexes.served_index import MAX_DEFER_S, ServedIndex
from relevance_gen.serve.settings import Settings

if TYPE_CHECKING:
    from relevance_gen.cluster import ClusterIndex

_log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_FOUND: Final = 1000
"""Most results of one search: the texts of all of them come to this process."""
_MAX_NAME_CHARS: Final = 256
KEPT: Final = "cache:"
"""What the names of indexes that are kept begin with; a digest of their chunks follows."""
_MAX_KNOWN: Final = 64
"""Indexes that are found again without asking the cluster for them."""

_name = checks.must_be(
    f"a string of 1 to {_MAX_NAME_CHARS} characters",
    lambda v: isinstance(v, str) and 1 <= len(v) <= _MAX_NAME_CHARS and v.isprintable(),
)


@frozen
class IndexRef:
    """Which index is asked, by its name; `allow_partial` has it answer while a part of it is lost."""

    index: str = field(validator=_name)
    allow_partial: bool = field(default=False, validator=checks.flag)

    @property
    def digest(self) -> str | None:
        """The digest of chunks that came before, where the name is that of the index that is kept of them."""
        return self.index.removeprefix(KEPT) if self.index.startswith(KEPT) else None


class IndexRegistry:
    """The indexes that are offered and those of a cluster, by name. Safe to use from several threads.

    Raises:
        InvalidRequestError: two indexes have one name; or a key is for no index: with its name misspelt, every key
            might ask the one that is meant.
    """

    def __init__(self, settings: Settings) -> None:
        self._offered = {name: ServedIndex(name, place, settings) for name, place in settings.index}
        if len(self._offered) < len(settings.index):
            names = [name for name, _ in settings.index]
            raise errors.InvalidRequestError.must_be(
                "--index", "given once for each name", max(names, key=names.count)
            )
        self._key_ids: dict[str, list[str]] = {name: [] for name, _ in settings.index_key}
        for name, key_id in settings.index_key:
            if name not in self._offered and settings.cluster is None:
                raise errors.InvalidRequestError.must_be(
                    "--index-key", "the name of an --index, with a key's id", name
                )
            self._key_ids[name].append(key_id)
        self._timeout_s = settings.queue_timeout_s
        self._address = settings.cluster
        self._known: OrderedDict[str, ClusterIndex] = OrderedDict()
        self._lock = threading.Lock()

    def begin(self) -> None:
        """Join the cluster and open what is offered, in threads, so that no client waits for that; the log says how."""
        if self._address is not None:
            threading.Thread(
                target=self._join, args=(self._address,), name="join-cluster", daemon=True
            ).start()
        for one in self._offered.values():
            one.look()

    @staticmethod
    def _join(address: str) -> None:
        from relevance_gen.cluster.connection import connect  # loads Ray

        try:
            connect(address)
        except errors.RelevanceGenError as error:
            _log.error("searches that name an index will fail: %s", error)
        else:
            _log.info("the cluster is joined; searches that name an index are asked there")

    def look(self, name: str, client: str) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Begin to look what has changed in an index that a client names, and return what waits for that, if need be.

        What is to be awaited raises a `BusyError` if it takes too long and there is nothing older to answer from.
        """
        one = self._offered.get(name) if self._may_ask(client, name) else None
        if one is None or one.is_fresh:
            return None
        look = one.look()
        if one.is_behind or one.is_unanswered:  # nobody waits for a store that does not answer
            return None
        return partial(self._wait, one, look)

    async def _wait(self, one: ServedIndex, look: Future[None]) -> None:
        done = asyncio.wrap_future(look)
        for timeout_s in (MAX_DEFER_S, max(self._timeout_s - MAX_DEFER_S, 0.0)):
            await asyncio.wait([done], timeout=timeout_s)
            if done.done() or isinstance(one.found, BaseIndex) or one.is_unanswered:
                return
        raise errors.BusyError("the index is still being read", retry_after_s=5)

    def ask(self, name: str, client: str, work: Callable[[BaseIndex, bool], T]) -> T:
        """Return what `work` makes of an index, given it as it is now, and whether an encoder may have a part.

        Raises:
            InvalidRequestError: there is no index that could be named.
            UnknownIndexError: no index has that name, or none that this client may ask.
            IndexUnavailableError: it cannot be searched now.
            ClusterError: it is one of a cluster, which does not answer, or not with all of it.
        """
        may_ask = self._may_ask(client, name)
        if may_ask and name in self._offered:
            return work(self._offered[name].now(), True)
        if self._address is not None:
            with suppress(errors.UnknownIndexError):
                # Also for those who may not ask it, so that the time does not tell them that it is there.
                return self._ask_cluster(name, work if may_ask else _refuse)
        elif not self._offered:
            raise errors.InvalidRequestError(
                "names none here; start it with --index or --cluster", "index"
            )
        remedy = errors.did_you_mean(name, self.names(client), "GET /indexes lists them")
        raise errors.UnknownIndexError(
            f"index: none has the name {errors.describe(name)}; {remedy}", field="index"
        )

    def _ask_cluster(self, name: str, work: Callable[[BaseIndex, bool], T]) -> T:
        """Ask an index of the cluster; if it was closed, and there is another of the same name now, ask that."""
        with self._lock:
            known = self._known.get(name)
        if known is not None:
            try:
                return work(known, False)
            except errors.ChunksMissingError:
                raise
            except errors.ClusterError:
                with self._lock:
                    self._known.pop(name, None)
        from relevance_gen.cluster import ClusterIndex  # loads Ray

        found = ClusterIndex.named(name, address=self._address)
        with self._lock:
            self._known[name] = found
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return work(found, False)

    def _may_ask(self, client: str, name: str) -> bool:
        """Tell whether a key may ask an index; all ids are compared, so that the time does not tell which is near."""
        allowed = self._key_ids.get(name)
        matches = [hmac.compare_digest(client, key_id) for key_id in allowed or ()]
        return allowed is None or any(matches)

    def names(self, client: str) -> list[str]:
        """Return the names of the indexes that are offered to a client."""
        return [name for name in self._offered if self._may_ask(client, name)]

    async def described(self, client: str) -> list[dict[str, object]]:
        """Return what is to be said of the indexes that are offered to a client, after a short look at each."""
        mine = [self._offered[name] for name in self.names(client)]
        if mine:
            await asyncio.wait(
                [asyncio.wrap_future(one.look()) for one in mine], timeout=MAX_DEFER_S
            )
        return [one.described() for one in mine]


def _refuse(*_: object) -> NoReturn:
    raise errors.UnknownIndexError("it is not for this key")
