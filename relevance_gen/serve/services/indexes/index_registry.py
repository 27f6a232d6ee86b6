"""Indexes that clients select by name: server indexes, cluster indexes and cached indexes."""

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
from relevance_gen.wire import JsonObject

if TYPE_CHECKING:
    from relevance_gen.cluster import ClusterIndex

_log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_RESULTS: Final = 1000
"""Results of one search in a named index: all their texts are loaded into this process."""
_MAX_NAME_CHARS: Final = 256
CACHED_PREFIX: Final = "cache:"
"""Prefix of the names of cached indexes; a digest of their chunks follows."""
_MAX_CLUSTER_INDEXES: Final = 64
"""Indexes of a cluster that can be used without looking them up there."""

_name = checks.Rule(
    f"a string of 1 to {_MAX_NAME_CHARS} characters",
    lambda v: isinstance(v, str) and 1 <= len(v) <= _MAX_NAME_CHARS and v.isprintable(),
)


@frozen
class IndexRef:
    """A reference to an index by name.

    Attributes:
        index: the name of the index. The attribute has the name of the field in the request body,
            because errors name it.
        allow_partial: whether an index of a cluster may answer without the chunks of its parts that
            are lost.
    """

    index: str = field(validator=_name)
    allow_partial: bool = field(default=False, validator=checks.flag)

    @property
    def name(self) -> str:
        """The name of the index."""
        return self.index

    @property
    def digest(self) -> str | None:
        """The digest of chunks if the name is that of a cached index; otherwise None."""
        if not self.index.startswith(CACHED_PREFIX):
            return None
        return self.index.removeprefix(CACHED_PREFIX)


class IndexRegistry:
    """The indexes of the server and of a cluster, by name. Thread-safe.

    The setting ``--index-key`` restricts an index to the API keys with certain ids. Every client
    may use an index that has no such setting.

    Raises:
        InvalidRequestError: two indexes of the server have one name; or, without a cluster, an
            ``--index-key`` has a name that no index has. If a misspelled name were accepted, the
            index with the correct name would be open to every client.
    """

    def __init__(self, settings: Settings) -> None:
        self._served_indexes = {
            name: ServedIndex(name, location, settings) for name, location in settings.index
        }
        if len(self._served_indexes) < len(settings.index):
            names = [name for name, _ in settings.index]
            raise errors.InvalidRequestError.must_be(
                "--index", "given once for each name", max(names, key=names.count)
            )
        self._key_ids: dict[str, list[str]] = {}
        for name, key_id in settings.index_key:
            if name not in self._served_indexes and settings.cluster is None:
                raise errors.InvalidRequestError.must_be(
                    "--index-key", "the name of an --index, with a key's id", name
                )
            self._key_ids.setdefault(name, []).append(key_id)
        self._timeout_s = settings.queue_timeout_s
        self._cluster_address = settings.cluster
        self._cluster_indexes: OrderedDict[str, ClusterIndex] = OrderedDict()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Join the cluster and open the indexes of the server, in background threads."""
        if self._cluster_address is not None:
            threading.Thread(
                target=_join_cluster,
                args=(self._cluster_address,),
                name="join-cluster",
                daemon=True,
            ).start()
        for index in self._served_indexes.values():
            index.refresh()

    async def refresh(self, name: str, client: str) -> None:
        """Check an index for changes, and wait for the result.

        If an older version of the index can be searched, this waits for at most `MAX_DEFER_S`. It
        does not wait if the object store of the index does not answer, or if the server has no
        index with this name that the client may use.

        Args:
            name: the name of the index.
            client: the id of the client's API key.

        Raises:
            BusyError: no version of the index was read within the setting ``queue_timeout_s``.
        """
        wait = self.start_refresh(name, client)
        if wait is not None:
            await wait()

    def start_refresh(
        self, name: str, client: str
    ) -> Callable[[], Coroutine[Any, Any, None]] | None:
        """Start to check an index for changes; return a function that waits for the result.

        None means that there is nothing to wait for: the server has no index with this name that
        the client may use, the index was checked just now, or its object store does not answer.

        The function returns a coroutine, which raises a `BusyError` if the check takes too long and
        no older version of the index can be searched.
        """
        index = self._served_indexes.get(name) if self._may_search(client, name) else None
        if index is None or index.is_fresh:
            return None
        refreshed = index.refresh()
        # Do not wait for an object store that does not answer.
        if index.is_stale or index.is_store_unreachable:
            return None
        return partial(self._wait, index, refreshed)

    async def _wait(self, index: ServedIndex, refreshed: Future[None]) -> None:
        refresh_future = asyncio.wrap_future(refreshed)
        for timeout_s in (MAX_DEFER_S, max(self._timeout_s - MAX_DEFER_S, 0.0)):
            await asyncio.wait([refresh_future], timeout=timeout_s)
            if (
                refresh_future.done()
                or isinstance(index.current, BaseIndex)
                or index.is_store_unreachable
            ):
                return
        raise errors.BusyError("the index is still being read", retry_after_s=5)

    def query(
        self,
        name: str,
        client: str,
        work: Callable[[BaseIndex, bool], T],
    ) -> T:
        """Return the result of `work` on an index.

        Args:
            name: the name of the index.
            client: the id of the client's API key.
            work: called with the index and whether the encoder can be used with it.

        Raises:
            InvalidRequestError: the server was started without named indexes.
            UnknownIndexError: no index has that name, or the client may not use it.
            IndexUnavailableError: the index cannot be searched now.
            ClusterError: the index of a cluster does not answer, or not completely.
        """
        may_search = self._may_search(client, name)
        if may_search and name in self._served_indexes:
            return work(self._served_indexes[name].searchable(), True)
        if self._cluster_address is not None:
            with suppress(errors.UnknownIndexError):
                # The cluster is queried also for clients without access: otherwise the response
                # time would reveal that the index exists.
                return self._query_cluster(name, work if may_search else _reject)
        elif not self._served_indexes:
            raise errors.InvalidRequestError(
                "cannot be used: this server has no named indexes; "
                "start it with --index or --cluster",
                "index",
            )
        remedy = errors.did_you_mean(name, self.names(client), "GET /indexes lists them")
        raise errors.UnknownIndexError(
            f"index: none has the name {errors.describe(name)}; {remedy}", field="index"
        )

    def _query_cluster(self, name: str, work: Callable[[BaseIndex, bool], T]) -> T:
        """Return the result of `work` on the index `name` of the cluster.

        `work` is called with the index and False, because the encoder cannot be used with it. If
        the index was closed and replaced under the same name, the new index is queried.
        """
        with self._lock:
            known = self._cluster_indexes.get(name)
        if known is not None:
            try:
                return work(known, False)
            except errors.ChunksMissingError:
                raise
            except errors.ClusterError:
                with self._lock:
                    self._cluster_indexes.pop(name, None)
        from relevance_gen.cluster import ClusterIndex  # imports Ray

        index = ClusterIndex.named(name, address=self._cluster_address)
        with self._lock:
            self._cluster_indexes[name] = index
            if len(self._cluster_indexes) > _MAX_CLUSTER_INDEXES:
                self._cluster_indexes.popitem(last=False)
        return work(index, False)

    def _may_search(self, client: str, name: str) -> bool:
        """Return whether the client with the key id `client` may use the index `name`.

        The id is compared with all key ids that may use the index, each in constant time.
        """
        allowed_key_ids = self._key_ids.get(name)
        matches = [hmac.compare_digest(client, key_id) for key_id in allowed_key_ids or ()]
        return allowed_key_ids is None or any(matches)

    def names(self, client: str) -> list[str]:
        """Return the names of the server's indexes that a client may use."""
        return [name for name in self._served_indexes if self._may_search(client, name)]

    async def describe(self, client: str) -> list[JsonObject]:
        """Return the description of each of the server's indexes that a client may use.

        For the keys of a description see `ServedIndex.describe`. Before that, each index is checked
        for changes; the checks are awaited for at most `MAX_DEFER_S`. Indexes of a cluster are not
        described.
        """
        indexes = [self._served_indexes[name] for name in self.names(client)]
        refreshes = [asyncio.wrap_future(index.refresh()) for index in indexes]
        if refreshes:
            await asyncio.wait(refreshes, timeout=MAX_DEFER_S)
        return [index.describe() for index in indexes]


def _join_cluster(address: str) -> None:
    from relevance_gen.cluster.connection import connect  # imports Ray

    try:
        connect(address)
    except errors.RelevanceGenError as error:
        _log.error("searches that name an index will fail: %s", error)
    else:
        _log.info("connected to the cluster; searches of named indexes run there")


def _reject(*_: object) -> NoReturn:
    raise errors.UnknownIndexError("it is not for this key")
