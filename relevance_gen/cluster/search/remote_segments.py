"""Implements the protocol `Segments` for the shards of one version of an index in a cluster.

The requests of a search (see `relevance_gen.retrieval.ports`) are sent to the searchers of the
cluster. If a searcher does not respond, other searchers are asked for its shards.
"""

from __future__ import annotations

import math
import pickle
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, Final

import numpy as np
import ray
from attrs import evolve, frozen
from ray import cloudpickle
from ray.exceptions import RayError, RaySystemError, RayTaskError

from relevance_gen.arrays import Offsets, find
from relevance_gen.cluster.search.searchers import (
    RETRY_DELAY_S,
    SearcherHandle,
    SearcherPool,
    ShardGroup,
    by_preference,
    group_by_searcher,
    ignore_errors,
    join_response,
)
from relevance_gen.errors import BusyError, IndexFormatError, TimedOutError
from relevance_gen.forks import LazyAttribute
from relevance_gen.lru import LruCache
from relevance_gen.retrieval.local_segments import LocalSegments, ranking_cache
from relevance_gen.retrieval.ports import (
    CandidateRequest,
    Candidates,
    ExtractedFeatures,
    FeatureRequest,
    Inventory,
    InventoryRequest,
    MatchRequest,
    MatchResponse,
    compute_sample,
)
from relevance_gen.retrieval.query.term_matching import Match, QueryTerm
from relevance_gen.retrieval.ranking.sparse_vectors import Sample
from relevance_gen.retrieval.ranking.stage import STORED_FIELDS, FeatureSpec
from relevance_gen.retrieval.ranking.top_n import best_rows
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.shards.versions import IndexVersion, ShardRecord

_MAX_PREFETCHED: Final = 100
"""A searcher sends later features only with at most this number of candidates; there are more
candidates only if many have equal scores."""
_MAX_PREFETCHED_CHARS: Final = 1 << 16
"""A searcher sends later features only if its candidates' texts have at most this number of
characters."""
_DEVIATIONS: Final = 3.0
"""Standard deviations above its share of the best chunks for which a searcher sends features with
its candidates."""
_TERM_CACHE_BYTES: Final = 8 << 20
"""Size of the cache of term matches, about 10,000 words."""
_ROUND_TIMEOUT_S: Final = 60.0
"""Time limit for the responses to one request."""
_HEDGE_INTERVAL_S: Final = 2.0
_SLOW_PENALTY_S: Final = 2.0


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


class RemoteSegments:
    """The shards of one version of an index; implements `relevance_gen.retrieval.ports.Segments`.

    If all words of a query were searched before, a search sends a single request to each searcher:
    `match_terms` uses cached matches, and the response to `top_candidates` also contains the
    features of the best candidates that `extract_features` returns later, including their texts.
    If these texts are long, they are not in that response, and `extract_features` sends a second
    request.

    Every method that sends a request raises:

    - `ShardError`: a shard cannot be opened by any searcher.
    - `TimedOutError`: a searcher did not respond in time.
    - `BusyError`: all searchers of a shard have too many requests.
    - `ClusterError`: the connection to the cluster was closed, or there is no searcher.

    Args:
        pool: the searchers.
        location: the location of the index.
        version: the version of the index.
        excluded: names of shards that are not searched.
    """

    def __init__(
        self,
        pool: SearcherPool,
        location: str,
        version: IndexVersion,
        excluded: Collection[str] = (),
    ) -> None:
        self.weighting = weighting_named(version.weighting)
        self.statistics = version.statistics
        self.version = version
        self.rankings = ranking_cache()
        self._pool = pool
        self._location = location
        self._shards = [shard for shard in version.shards if shard.file.name not in excluded]
        self._orders: dict[str, list[SearcherHandle]] = {}
        self._searchers: list[SearcherHandle] = []
        self._opened_orders = self._orders
        self._prefetched = _Prefetched()
        self._terms: LruCache[Match] = LruCache(_TERM_CACHE_BYTES, attrgetter("nbytes"))

    @LazyAttribute
    def sample(self) -> Sample:
        """Term statistics of a fixed sample of the chunks, computed on first use."""
        return compute_sample(self)

    @property
    def n_missing_chunks(self) -> int:
        """Number of chunks in the excluded shards."""
        return self.version.n_chunks - sum(shard.n_chunks for shard in self._shards)

    @property
    def orders(self) -> dict[str, list[SearcherHandle]]:
        """The order of searchers for each shard, by the name of its file.

        It is computed again after a searcher was added or removed.
        """
        searchers = self._pool.searchers
        if searchers != self._searchers or not searchers:
            self._orders = self._pool.orders(self.version.shards, self.version.index_id)
            self._searchers = searchers
        return self._orders

    def without(self, excluded: Collection[str]) -> RemoteSegments:
        """Return the segments of the same version without the shards whose names are `excluded`."""
        if not excluded:
            return self
        return RemoteSegments(self._pool, self._location, self.version, excluded)

    def open_shards(self) -> None:
        """Ask the first two searchers in each shard's order to open it; do not wait for them.

        Does nothing if the orders have not changed since the last call.
        """
        orders = self.orders
        if orders is self._opened_orders:
            return
        self._opened_orders = orders
        for rank in (0, 1):
            searchers = {}
            for name, order in orders.items():
                searchers[name] = order[min(rank, len(order) - 1)]
            for searcher, names in group_by_searcher(searchers).items():
                searcher.actor.open.remote(self._group(names))

    # ── The search port ───────────────────────────────────────────────────────────────────────────

    def match_terms(self, request: MatchRequest) -> MatchResponse:
        """Return the terms of the index that the words of the query match.

        Cached matches are used; the others are requested from the searchers and cached.
        """
        terms = {_key(term): term for term in request.terms}
        matches = self._terms.get_all([*terms])
        missing = [key for key in terms if key not in matches]
        response = MatchResponse()
        if missing or request.misspelled or request.term_ids:
            sent = evolve(request, terms=tuple([terms[key] for key in missing]))
            parts = self._request(self._shards, LocalSegments.match_terms, sent)
            response = MatchResponse.merge(parts, sent)
            for key, match in zip(missing, response.matches, strict=True):
                self._terms.put(key, match)
                matches[key] = match
        in_order = [matches[_key(term)] for term in request.terms]
        return evolve(response, matches=tuple(in_order))

    def top_candidates(self, request: CandidateRequest) -> Candidates:
        """Return the chunks with the highest lexical scores, and features of the best of them.

        Each searcher returns the features of its own best chunks, from which the features of the
        best chunks overall are selected.
        """
        n_sent = min(request.n_features, self._n_expected_best(request.n_features))
        sent = evolve(request, n_features=n_sent)
        parts = self._request(self._shards, _prefetch, sent)
        candidates = Candidates.merge(parts, request)
        if not candidates.feature_positions.size:
            return candidates
        self._prefetched.positions = candidates.feature_positions
        self._prefetched.specs = (*request.features, *request.later_features)
        self._prefetched.features = candidates.features
        best = best_rows(candidates.scores, candidates.is_allowed, request.n_features)
        positions = candidates.positions[best]
        features = []
        for spec in request.features:
            is_few = spec.max_chunks is None or positions.size <= spec.max_chunks
            spec_request = FeatureRequest(positions, (spec,))
            features.append(self.extract_features(spec_request)[0] if is_few else None)
        return evolve(candidates, feature_positions=positions, features=tuple(features))

    def _n_expected_best(self, n: int) -> int:
        """Return an upper estimate of how many of the n best chunks overall one searcher has.

        A searcher's share is n divided by the number of searchers that are first for a shard. The
        result is `_DEVIATIONS` standard deviations above this share, so few searchers have more
        if the chunks are distributed at random.
        """
        share = 1.0 / len({order[0].name for order in self.orders.values()})
        deviation = math.sqrt(n * share * (1.0 - share))
        return 1 + math.ceil(n * share + _DEVIATIONS * deviation)

    def extract_features(self, request: FeatureRequest) -> tuple[Any, ...]:
        """Return, for each spec of the request, the features of the requested chunks.

        The last call of `top_candidates` in this thread stored features of the best candidates. If
        these include all requested features, they are returned; otherwise the features are
        requested from the searchers of the shards that have the chunks.

        Raises:
            LookupError: a position is in no segment.
        """
        prefetched = self._prefetched.find(request)
        if prefetched is not None:
            return prefetched
        parts: list[ExtractedFeatures] = []
        if shards := self._shards_with(request.positions):
            parts = self._request(shards, LocalSegments.extract_present_features, request)
        extracted = ExtractedFeatures.merge(parts)
        if extracted.rows.size < request.positions.size:
            raise LookupError("no segment has a chunk at one of the positions")
        return extracted.features

    def inventory(self, request: InventoryRequest) -> Inventory:
        """Return the requested facts of the stored chunks, which do not depend on a query."""
        parts = self._request(self._shards, LocalSegments.inventory, request)
        return Inventory.merge(parts, request)

    def _shards_with(self, positions: Offsets) -> list[ShardRecord]:
        """Return all shards of every searcher that has a chunk at one of the positions.

        All shards of a searcher are returned because a searcher caches the segments of complete
        groups.
        """
        ascending = np.sort(positions)
        orders = self.orders
        searchers = set()
        for shard in self._shards:
            start, stop = ascending.searchsorted((shard.first, shard.stop))
            if start < stop:
                searchers.add(orders[shard.file.name][0])
        return [shard for shard in self._shards if orders[shard.file.name][0] in searchers]

    def _request(
        self, shards: Sequence[ShardRecord], function: Callable[..., Any], request: Any
    ) -> list[Any]:
        """Call a function of `LocalSegments` on the searchers of shards, and return the responses.

        Args:
            shards: the shards.
            function: called with a searcher's segments of these shards and the request.
            request: the argument of the function.
        """
        # Only cloudpickle sends the code of a caller's filter; everything else is pickled faster by
        # name.
        has_filter = getattr(request, "filter", None) is not None
        message = (cloudpickle if has_filter else pickle).dumps((function, request))
        group = self._group(shard.file.name for shard in shards)
        try:
            return _Round(self._pool, group, self.orders, message).responses()
        except (AttributeError, RaySystemError, SystemExit):
            self._pool.check_connected()  # Ray raises these types during and after its shutdown
            raise

    def _group(self, shard_names: Iterable[str]) -> ShardGroup:
        return ShardGroup(self._location, self.version.name, tuple(sorted(shard_names)))


class _Prefetched(threading.local):
    """The features that the last call of `top_candidates` in each thread received."""

    positions: Offsets = np.zeros(0, np.int64)  # positions of the chunks, ascending
    specs: tuple[FeatureSpec, ...] = ()
    features: tuple[Any, ...] = ()  # the features of the chunks for each spec, or None

    def find(self, request: FeatureRequest) -> tuple[Any, ...] | None:
        """Return the features for each spec of the request; None if any is missing."""
        rows = find(self.positions, request.positions)
        if (rows < 0).any():
            return None
        found = []
        for spec in request.specs:
            features = self.features[self.specs.index(spec)] if spec in self.specs else None
            if features is None:
                return None
            found.append(features.take(rows))
        return tuple(found)


def _key(term: QueryTerm) -> tuple[int, str, bool, bool]:
    return term.term_id, term.word, term.is_inflected, term.is_prefix


def _prefetch(segments: LocalSegments, request: CandidateRequest) -> Candidates:
    """Return the candidates in a searcher's segments, and features that may be requested later.

    Runs on the searcher. The features for `request.later_features` follow those for
    `request.features`. They are None if there are more than `_MAX_PREFETCHED` candidates with
    features, or if their texts have together more than `_MAX_PREFETCHED_CHARS` characters.
    """
    candidates = segments.top_candidates(request)
    positions = candidates.feature_positions
    later: tuple[Any, ...] = (None,) * len(request.later_features)
    if 0 < positions.size <= _MAX_PREFETCHED:
        fields = segments.extract_features(FeatureRequest(positions, (STORED_FIELDS,)))[0]
        if sum(len(chunk.text) for chunk in fields.rows) <= _MAX_PREFETCHED_CHARS:
            later = segments.extract_features(FeatureRequest(positions, request.later_features))
    return evolve(candidates, features=(*candidates.features, *later))


# ── Requests ──────────────────────────────────────────────────────────────────────────────────────


@frozen(eq=False)
class _Attempt:
    """A request to a searcher that has not responded yet.

    Attributes:
        searcher: the searcher.
        shard_names: the names of the shards that the request is about.
        parts: references of the parts of the response.
    """

    searcher: SearcherHandle
    shard_names: frozenset[str]
    parts: Sequence[Any]


class _Round:
    """One request to all shards: attempts of several searchers, until each shard is answered once.

    A searcher that is asked for several shards sends one response for all of them. The response is
    used only if no other used response covers one of these shards; otherwise it is discarded.

    Args:
        pool: the searchers.
        group: the shards.
        orders: the order of searchers for each shard.
        message: as for `ShardSearcher.answer`.
    """

    def __init__(
        self,
        pool: SearcherPool,
        group: ShardGroup,
        orders: Mapping[str, Sequence[SearcherHandle]],
        message: bytes,
    ) -> None:
        self._pool = pool
        self._group = group
        self._message = message
        self._orders = {name: by_preference(orders[name]) for name in group.shard_names}
        self._n_tried = Counter[str]()
        self._n_errors = Counter[str]()
        self._unanswered = set(group.shard_names)
        self._attempts: dict[Any, _Attempt] = {}
        self._responses: list[Any] = []

    def responses(self) -> list[Any]:
        """Send the request, and wait for responses that together cover each shard once.

        Raises what methods of `RemoteSegments` raise. The caller must call this method only once.
        """
        begun_s = time.monotonic()
        hedge_s = begun_s + self._pool.hedge_delay_s
        n_hedges = 0
        try:
            while self._unanswered:
                self._pool.check_connected()
                now_s = time.monotonic()
                if now_s > begun_s + _ROUND_TIMEOUT_S:
                    raise self._timeout()
                requested = [attempt.shard_names for attempt in self._attempts.values()]
                if now_s < hedge_s:
                    self._send(self._unanswered.difference(*requested))
                else:
                    self._hedge()
                    n_hedges += 1
                    hedge_s = now_s + _HEDGE_INTERVAL_S
                timeout_s = max(0.0, hedge_s - time.monotonic())
                # Waiting for all responses at once takes less processor time; after the first hedge
                # delay, a searcher that hangs must not delay the others.
                n_awaited = 1 if n_hedges else len(self._attempts)
                ready, _ = ray.wait(list(self._attempts), num_returns=n_awaited, timeout=timeout_s)
                for reference in ready:
                    self._receive(self._attempts.pop(reference))
        finally:
            for attempt in self._attempts.values():
                ignore_errors(attempt.parts)
        self._pool.durations_s.append(time.monotonic() - begun_s)
        return self._responses

    def _send(self, names: Collection[str]) -> None:
        """Send the request for the shards `names`, with one message to each searcher.

        Each shard is requested from the next searcher in its order that this object has not asked
        for it yet. After the last searcher of an order, the order begins again.
        """
        if any(self._n_tried[name] >= len(self._orders[name]) for name in names):
            time.sleep(RETRY_DELAY_S)  # all have failed: some may be restarting
        searchers = {}
        for name in names:
            order = self._orders[name]
            searchers[name] = order[self._n_tried[name] % len(order)]
            self._n_tried[name] += 1
        for searcher, shard_names in group_by_searcher(searchers).items():
            group = evolve(self._group, shard_names=tuple(shard_names))
            try:
                parts = searcher.actor.answer.remote(group, self._message)
            except RayError as error:
                self._pool.note_failure(searcher, error)
            else:
                self._attempts[parts[0]] = _Attempt(searcher, frozenset(shard_names), parts)

    def _receive(self, attempt: _Attempt) -> None:
        """Process the response or the failure of the searcher of an attempt.

        If the response does not count or the searcher failed, some shards of the attempt remain
        unanswered.
        """
        try:
            response = join_response(ray.get(attempt.parts))
        except RayTaskError as error:
            ignore_errors(attempt.parts)  # each part has the error, and one of them was read
            cause = error.cause
            if isinstance(cause, IndexFormatError) or not isinstance(cause, OSError | BusyError):
                raise cause from None
            self._note_error(attempt, cause)
        except RayError as error:
            self._pool.note_failure(attempt.searcher, error)
        else:
            if attempt.shard_names <= self._unanswered:
                self._responses.append(response)
                self._unanswered -= attempt.shard_names

    def _note_error(self, attempt: _Attempt, error: OSError | BusyError) -> None:
        """Record that the searcher of an attempt could not read a shard, or refused the request.

        The shards whose names are in the message of `error` count as unread; if there are none,
        all unanswered shards of the attempt do.

        Raises:
            ShardError: for a shard, as many errors are recorded as its order has searchers, and the
                last one is an `OSError`.
            BusyError: the same, and the last error is a `BusyError`.
        """
        unanswered = attempt.shard_names & self._unanswered
        unread = {name for name in unanswered if name in str(error)} or unanswered
        for name in sorted(unread):
            self._n_errors[name] += 1
            if self._n_errors[name] >= len(self._orders[name]):
                raise error if isinstance(error, BusyError) else ShardError(name, error)

    def _hedge(self) -> None:
        """Request all unanswered shards from the next searchers, too.

        The searchers of the running attempts count as slow: later requests ask them last for
        `_SLOW_PENALTY_S`.
        """
        for attempt in self._attempts.values():
            attempt.searcher.avoided_until_s = time.monotonic() + _SLOW_PENALTY_S
        self._send(self._unanswered)

    def _timeout(self) -> TimedOutError:
        nodes = sorted({attempt.searcher.node_id for attempt in self._attempts.values()})
        message = f"shards did not answer within {_ROUND_TIMEOUT_S:g} seconds"
        return TimedOutError(f"{message}, on nodes {', '.join(nodes)}")
