"""Indexes of a cluster, which clients name instead of sending chunks."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, TypeVar

from attrs import field, frozen

from relevance_gen import checks
from relevance_gen.errors import (
    ChunksMissingError,
    ClusterError,
    InvalidRequestError,
    RelevanceGenError,
    UnknownIndexError,
)
from relevance_gen.retrieval.question.query import Question
from relevance_gen.types import Explanation, SearchResponse

if TYPE_CHECKING:
    from relevance_gen.cluster import ClusterIndex

_log = logging.getLogger(__name__)

T = TypeVar("T")

MAX_FOUND: Final = 1000
"""Most results of one search: the texts of all of them come to this process."""
_MAX_NAME_CHARS: Final = 256
_MAX_KNOWN: Final = 64
"""Indexes that are found again without asking the cluster for them."""

_name = checks.must_be(
    f"a string of 1 to {_MAX_NAME_CHARS} characters",
    lambda v: isinstance(v, str) and 1 <= len(v) <= _MAX_NAME_CHARS and v.isprintable(),
)


@frozen
class Named:
    """Which index is asked.

    Args:
        index: its name.
        allow_partial: answer from what can be searched while a part of it is lost.
    """

    index: str = field(validator=_name)
    allow_partial: bool = field(default=False, validator=checks.flag)


class NamedIndexes:
    """The indexes that live in a cluster with a name. Safe to use from several threads.

    Args:
        address: of the cluster; None where there is none.
    """

    def __init__(self, address: str | None) -> None:
        self._address = address
        self._known: OrderedDict[str, ClusterIndex] = OrderedDict()
        self._lock = threading.Lock()

    def join(self) -> None:
        """Join the cluster in a thread, so that no client waits for that; the log says whether it answers."""
        if self._address is not None:
            threading.Thread(target=self._join, args=(self._address,), name="join-cluster", daemon=True).start()

    @staticmethod
    def _join(address: str) -> None:
        from relevance_gen.cluster.connection import connect  # loads Ray

        try:
            connect(address)
        except RelevanceGenError as error:
            _log.error("searches that name an index will fail: %s", error)
        else:
            _log.info("the cluster is joined; searches that name an index are asked there")

    def search(self, named: Named, question: Question) -> SearchResponse:
        """Rank the chunks of an index.

        Raises:
            InvalidRequestError: there is no cluster, or too many results are asked for.
            UnknownIndexError: no index has that name.
            ChunksMissingError: a part of it is lost, and not restored yet.
            ClusterError: the cluster does not answer.
        """
        checks.check_integer("top_n", question.top_n, 1, MAX_FOUND)
        return self._ask(named.index, lambda index: index.answer_all([question], allow_partial=named.allow_partial)[0])

    def explain(self, named: Named, question: Question, position: int, position_path: str) -> Explanation:
        """Show where the score of one chunk of an index comes from; errors call its position `position_path`.

        Raises:
            InvalidRequestError: there is no cluster, or no chunk at the position.
            UnknownIndexError: no index has that name.
            ChunksMissingError: a part of it is lost, and not restored yet.
            ClusterError: the cluster does not answer.
        """
        try:
            return self._ask(named.index, lambda index: index.explain_one(question, position))
        except InvalidRequestError as error:
            raise error.at(position_path if error.field == "chunk" else error.field) from None

    def _ask(self, name: str, work: Callable[[ClusterIndex], T]) -> T:
        """Ask an index; if it was closed, and there is another of the same name now, ask that."""
        with self._lock:
            known = self._known.get(name)
        if known is not None:
            try:
                return work(known)
            except ChunksMissingError:
                raise
            except ClusterError:
                with self._lock:
                    self._known.pop(name, None)
        return work(self._find(name))

    def _find(self, name: str) -> ClusterIndex:
        if self._address is None:
            raise InvalidRequestError(
                "cannot be asked: this server has no cluster",
                field="index",
                remedy="start it with --cluster, or send the chunks as chunk_txts",
            )
        from relevance_gen.cluster import ClusterIndex  # loads Ray

        try:
            found = ClusterIndex.named(name, address=self._address)
        except UnknownIndexError as error:
            raise UnknownIndexError(f"index: {error}", field="index") from None
        with self._lock:
            self._known[name] = found
            if len(self._known) > _MAX_KNOWN:
                self._known.popitem(last=False)
        return found
