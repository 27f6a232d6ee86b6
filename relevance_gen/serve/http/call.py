"""One admitted request, and the memory, threads and model that its handler reserves."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import AbstractContextManager, AsyncExitStack, asynccontextmanager
from typing import Any, Final, Generic, TypeVar

from aiohttp import web
from attrs import define, frozen

from relevance_gen import wire
from relevance_gen.request_scope import budget_scope
from relevance_gen.serve.http.bodies.body import Body, check_query, receive
from relevance_gen.serve.http.bodies.content_coding import encode, preferred_coding
from relevance_gen.serve.http.resources.costs import Cost
from relevance_gen.serve.http.resources.resource_pools import MemoryReservation, ResourcePool
from relevance_gen.serve.http.route import Route
from relevance_gen.serve.http.service import KEY_ID, POOL, WRITE_ERROR, Service
from relevance_gen.serve.services.generation import Backend

T = TypeVar("T")

LOOP_LIMIT_BYTES: Final = 64 << 10
"""A response of at most this cost in bytes is made on the event loop: a thread takes longer."""

_SMALL_BODY_PEAK_BYTES: Final = 4 << 20
"""Maximum memory that parsing a small body takes: see `Body.is_small`."""


@frozen
class Call:
    """One admitted request."""

    service: Service
    request: web.BaseRequest
    route: Route

    @property
    def client(self) -> str:
        """The id of the client's API key; empty for an anonymous client."""
        client: str = self.request.get(KEY_ID, "")
        return client

    @asynccontextmanager
    async def reserve(self, cost: Cost, *, threads: str = "") -> AsyncIterator[Reservation]:
        """Receive the body, and yield a reservation of resources for the work on it.

        Args:
            cost: the row of the table of costs for this operation.
            threads: the name of the pool whose threads do the work; "" for the request's own pool.

        Raises:
            RelevanceGenError: the exceptions of `receive`.
        """
        coding = preferred_coding(self.request.headers.get("Accept-Encoding", ""))
        body = await receive(self.service, self.request)
        pool = self.service.pools[threads] if threads else self.request[POOL]
        async with AsyncExitStack() as leases:
            yield Reservation(self, cost, body, pool, coding, leases)


@frozen
class Answer(Generic[T]):
    """The result of an operation, and the response made of it."""

    result: T
    response: web.Response


@define(eq=False)
class Reservation:
    """Memory, threads and a model that one request holds.

    The model is released when the context of `Call.reserve` ends. The memory is held longer: after
    the response is made, only memory for its bytes is held, until the client has received them.

    Attributes:
        seconds: time spent in parsing the body and in `run`, without waiting for a thread.
    """

    _call: Call
    _cost: Cost
    _body: Body
    _pool: ResourcePool
    _coding: str
    _leases: AsyncExitStack
    seconds: float = 0.0

    @property
    def memory(self) -> MemoryReservation:
        """The reservation of the memory that the request holds in its pool."""
        return self._body.memory

    async def read_body(self, *extra: object) -> tuple[Any, Any]:
        """Parse the body, and return the task and the response writer of the route's adapter.

        A small body is parsed on the event loop, which is faster than passing it to a thread, if at
        least half of the pool's memory is free. Any other body is parsed in a thread of the pool.
        So the bodies that are parsed early, while their requests wait for a thread of the pool,
        leave memory for the running requests.

        Args:
            extra: arguments for the adapter's function after the parsed body.
        """
        memory = self._body.pool.memory
        margin_bytes = max(memory.limit / 2, _SMALL_BODY_PEAK_BYTES)
        if self._body.is_small and memory.has_capacity(margin_bytes, self._call.client):
            return self._read_body(0.0, extra)
        return await self._run(lambda: self._read_body(self._pool.memory_timeout_s, extra))

    def _read_body(self, memory_timeout_s: float, extra: Iterable[object]) -> tuple[Any, Any]:
        started_s = time.perf_counter()
        route = self._call.route
        value = self._body.parse(work_factor=self._cost.body_byte, timeout_s=memory_timeout_s)
        check_query(value, self._call.service.settings.max_query_bytes)
        read = route.read
        alternate = route.alternate
        if alternate is not None and isinstance(value, dict) and alternate.field in value:
            self._call.request[WRITE_ERROR] = alternate.write_error
            read = alternate.read
        operation = read(value, *extra)
        self.seconds += time.perf_counter() - started_s
        return operation

    async def run(self, work: Callable[[], T], n_bytes: int = 0) -> T:
        """Run `work` in a thread of the pool, and return its result.

        The thread first acquires `n_bytes` of memory; it waits for them at most as long as
        `ResourcePool.memory_timeout_s`. In `work`, each `request_scope.reserve` acquires further
        memory.

        Raises:
            RelevanceGenError: the exceptions of `work`, `BoundedExecutor.run` and
                `MemoryReservation.acquire`.
        """

        def work_within_budget() -> T:
            started_s = time.perf_counter()
            self.memory.acquire(n_bytes, self._pool.memory_timeout_s)
            with self.budget():
                result = work()
            self.seconds += time.perf_counter() - started_s
            return result

        return await self._run(work_within_budget)

    async def _run(self, work: Callable[[], T]) -> T:
        def work_holding_memory() -> T:
            with self.memory:
                return work()

        return await self._pool.executor.run(work_holding_memory, self._call.client)

    async def answer(
        self,
        work: Callable[[], T],
        write_body: Callable[[T], object],
        n_bytes: int = 0,
        bytes_of_result: Callable[[T], int] = lambda _: 0,
    ) -> Answer[T]:
        """Run `work` in a thread, and make the response from its result in the same thread.

        Args:
            work: the operation.
            write_body: returns the body of the response for a result: bytes, or a value for JSON.
            n_bytes: memory to acquire before `work`; see `run`.
            bytes_of_result: returns the memory to acquire before the response is made.
        """

        def work_and_write() -> Answer[T]:
            result = work()
            self.memory.acquire(bytes_of_result(result), self._pool.memory_timeout_s)
            return Answer(result, self._make_response(result, write_body))

        return await self.run(work_and_write, n_bytes)

    async def respond(
        self, result: T, write_body: Callable[[T], object], n_bytes: int
    ) -> web.Response:
        """Make the response to the request from the result of an operation.

        Args:
            result: the result.
            write_body: returns the body of the response: bytes, or a value for JSON.
            n_bytes: memory that is acquired to make the response. If it exceeds `LOOP_LIMIT_BYTES`,
                the response is made in a thread of asyncio, otherwise on the event loop.
        """

        def make_response() -> web.Response:
            with self.memory:
                self.memory.acquire(n_bytes)
                return self._make_response(result, write_body)

        return await run_off_loop(make_response, n_bytes)

    def _make_response(self, result: T, write_body: Callable[[T], object]) -> web.Response:
        content = write_body(result)
        body = content if isinstance(content, bytes) else wire.serialize(content)
        encoded, headers = encode(body, self._coding)
        self.memory.resize(len(encoded))
        return web.Response(body=encoded, content_type="application/json", headers=headers)

    async def lease_model(self, name: str | None) -> Backend:
        """Wait until a generation model is loaded, and return its backend.

        The model stays loaded until the reservation ends. `name` is the name of the model; None for
        the default model.
        """
        generator = self._call.service.generator
        lease = generator.lease(name, self._call.client, self.memory.held_bytes)
        return await self._leases.enter_async_context(lease)

    def budget(self) -> AbstractContextManager[None]:
        """Return a context in which each `request_scope.reserve` acquires memory for this request.

        Functions that `asyncio.to_thread` runs from the context are in it, too.
        """

        def reserve_units(unit: str, count: int) -> None:
            n_bytes = self._cost.of(**{unit: count})
            self.memory.acquire(n_bytes, self._pool.memory_timeout_s)

        return budget_scope(reserve_units)


async def run_off_loop(work: Callable[[], T], n_bytes: int) -> T:
    """Run `work`, and return its result.

    It runs in a thread of asyncio if its memory, `n_bytes`, exceeds `LOOP_LIMIT_BYTES`, otherwise
    on the event loop.
    """
    if n_bytes <= LOOP_LIMIT_BYTES:
        return work()
    return await asyncio.to_thread(work)
