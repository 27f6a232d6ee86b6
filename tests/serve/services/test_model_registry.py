"""The registry of models: loaded once for all who ask, unloaded when idle, within the room, never while in use."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from attrs import define, field
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from relevance_gen.errors import ModelLoadError, OverloadedError, ShuttingDownError
from relevance_gen.serve.metrics import Layout, Metrics
from relevance_gen.serve.services.generation import Generator
from relevance_gen.serve.services.model_registry import ModelRegistry, UnknownModelError
from relevance_gen.serve.settings import NamedModel, Settings
from tests.serve.harness import eventually

SIZES = {"a": 1, "b": 2, "c": 3, "d": 2}
ROOM = 4
IDLE_S = 100.0
PAUSE_S = 5.0
MAX_DEFER_S = 0.25
KEPT_S = 60.0
LOAD_TIMEOUT_S = 30.0


@define(eq=False)
class Model:
    """A model that records whether it was closed or has failed."""

    name: str
    closed: bool = False

    def close(self) -> None:
        """Note it."""
        assert not self.closed, "it was closed twice, or while somebody had it"
        self.closed = True


@define(eq=False, slots=False)
class Shop:
    """Some model files, what loads them, and a clock."""

    folder: Path
    now_s: float = 0.0
    fails: set[str] = field(factory=set)
    loaded: list[Model] = field(factory=list)
    held: threading.Event | None = None

    def load(self, source: NamedModel) -> Model:
        """Load a model, or fail."""
        if self.held is not None:
            self.held.wait(60)
        if source.name in self.fails:
            raise ModelLoadError(f"{source.file} is damaged")
        self.loaded.append(Model(source.name))
        return self.loaded[-1]

    def settings(self, names: Sequence[str] = tuple(SIZES), **given: Any) -> Settings:
        """Name the files."""
        models = []
        for name in names:
            path = self.folder / f"{name}.gguf"
            path.write_bytes(b"x" * SIZES[name])
            models.append(NamedModel(name, str(path)))
        return Settings(model=tuple(models), **given)


def metrics_of(settings: Settings) -> Metrics:
    return Metrics.for_one_process(
        Layout(models=[(task, one.name) for task, all_ in settings.models.items() for one in all_])
    )


class Stepwise(ModelRegistry):
    """A registry whose threads run in sequence, when the test calls them."""

    def __init__(self, shop: Shop, settings: Settings) -> None:
        self.pending: list[tuple[Callable[[Any], None], Any]] = []
        self.shop = shop
        super().__init__(
            settings, {"generate": shop.load}, metrics_of(settings), lambda: shop.now_s
        )

    def _start(self, work: Callable[[Any], None], entry: Any, state: Any) -> None:
        self._set_state(entry, state)
        self.pending.append((work, entry))

    def step(self, place: int = 0) -> None:
        """Run the work of a thread."""
        work, entry = self.pending.pop(place)
        work(entry)

    def pass_time(self, seconds: float = MAX_DEFER_S) -> None:
        """Advance the clock; by default, long enough for a waiting request to evict models."""
        self.shop.now_s += seconds
        self.update()

    @property
    def leaving(self) -> list[str]:
        """Names of the models that are being unloaded."""
        return [entry.source.name for _, entry in self.pending if entry.state == "unloading"]


@define(eq=False)
class Borrower:
    """A client with a lease."""

    name: str
    future: Future[Model]
    leave: Callable[[], None]


def test_lease_without_eviction_fails_without_memory(tmp_path: Path) -> None:
    """Without free memory, a request that cannot wait is rejected at once; with memory, the model is loaded."""
    shop = Shop(tmp_path)
    registry = Stepwise(shop, shop.settings(("b", "c", "a"), model_bytes=ROOM))
    with registry.lease("generate", "c"):
        registry.step()
    with (
        pytest.raises(ModelLoadError, match="the loaded models use the memory"),
        registry.lease("generate", "b", may_evict=False),
    ):
        pass
    assert not registry.pending
    with registry.lease("generate", "c") as here:
        assert here.done()
    with registry.lease("generate", "a", may_evict=False):
        registry.step()
    assert [model.name for model in shop.loaded] == ["c", "a"]


def test_dead_model_memory_rejects_models_that_do_not_fit(tmp_path: Path) -> None:
    """It is refused, and the others go on: nothing is unloaded for it."""
    shop = Shop(tmp_path)
    registry = Stepwise(shop, shop.settings(("c", "b", "a"), model_bytes=ROOM))
    for name in ("c", "a"):
        with registry.lease("generate", name):
            registry.step()
    shop.loaded[0].closed = True  # it died
    with registry.lease("generate", "b") as refused:
        with pytest.raises(ModelLoadError, match="a failed model still uses the memory"):
            refused.result(0)
        with registry.lease("generate", "a") as here:
            assert here.done()


class Borrowing(RuleBasedStateMachine):
    """Clients request, release, load, fail and wait in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = ExitStack()
        self.shop = Shop(Path(self.stack.enter_context(tempfile.TemporaryDirectory())))
        self.registry = Stepwise(
            self.shop, self.shop.settings(model_bytes=ROOM, model_idle_s=IDLE_S)
        )
        self.borrowers: list[Borrower] = []

    def teardown(self) -> None:
        """Every waiting client is answered once the others release their models, in any order of events."""
        self.shop.fails.clear()
        self.shop.now_s += PAUSE_S
        self.registry.update()
        for _ in range(100):
            while self.registry.pending:
                self.registry.step()
            self.registry.pass_time(KEPT_S)
            for borrower in [one for one in self.borrowers if one.future.done()]:
                self._leave(borrower)
            if not self.borrowers and not self.registry.pending:
                break
        assert not self.borrowers, "somebody waits for ever"
        self.shop.now_s += IDLE_S
        self.registry.update()
        while self.registry.pending:
            self.registry.step()
        assert {model.name for model in self.registry.loaded("generate") if model} == self._dead()
        self.stack.close()

    def _dead(self) -> set[str]:
        return {
            entry.source.name
            for entry in self.registry._entries
            if entry.model and entry.model.closed
        }

    def _leave(self, borrower: Borrower) -> None:
        self.borrowers.remove(borrower)
        borrower.leave()

    @rule(name=st.sampled_from([*SIZES, None]), client=st.sampled_from(["", "key"]))
    def ask(self, name: str | None, client: str) -> None:
        """Request a model; after a recent failure or a long load the request is rejected at once."""
        stack = ExitStack()
        try:
            future = stack.enter_context(self.registry.lease("generate", name, client=client))
        except ModelLoadError as error:
            is_slow = str(error) == "the model has been loading for more than 300 seconds"
            assert is_slow or str(error) == f"the model cannot be loaded: {name or 'a'} is damaged"
            return
        self.borrowers.append(Borrower(name or "a", future, stack.close))

    @precondition(lambda self: self.borrowers)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        """Leave, whether the model came or not."""
        self._leave(data.draw(st.sampled_from(self.borrowers)))

    @precondition(lambda self: self.borrowers)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        """Cancel, as a coroutine does a moment before it leaves."""
        data.draw(st.sampled_from(self.borrowers)).future.cancel()

    @precondition(lambda self: self.registry.pending)
    @rule(data=st.data())
    def step(self, data: st.DataObject) -> None:
        """Have a thread done."""
        self.registry.step(data.draw(st.integers(0, len(self.registry.pending) - 1)))

    @rule(name=st.sampled_from([*SIZES]))
    def break_or_mend(self, name: str) -> None:
        """Damage a file, or mend it."""
        self.shop.fails ^= {name}

    @precondition(lambda self: any(self.registry.loaded("generate")))
    @rule()
    def die(self) -> None:
        """The thread of a model fails: a model of one byte, so that the other models still fit."""
        for entry in self.registry._entries:
            if entry.source.name == "a" and entry.state == "loaded":
                entry.model.closed = True

    @rule(seconds=st.sampled_from([MAX_DEFER_S / 2, MAX_DEFER_S, 1.0, PAUSE_S, KEPT_S, IDLE_S]))
    def wait(self, seconds: float) -> None:
        """Let time pass."""
        self.shop.now_s += seconds
        self.registry.update()

    @invariant()
    def no_more_is_in_memory_than_there_is_room_for(self) -> None:
        """Also while models come and go."""
        here = [
            entry
            for entry in self.registry._entries
            if entry.state in ("loading", "loaded", "unloading")
        ]
        assert sum(entry.n_bytes for entry in here) <= ROOM

    @invariant()
    def whoever_has_a_model_can_use_it(self) -> None:
        """A leased model is the requested model, and is open unless it failed."""
        for borrower in self.borrowers:
            if (
                borrower.future.done()
                and not borrower.future.cancelled()
                and not borrower.future.exception()
            ):
                model = borrower.future.result()
                assert model.name == borrower.name
                assert not model.closed or model.name in self._dead()

    @invariant()
    def a_model_is_in_memory_once(self) -> None:
        """At most one thread works on a model, and an unloaded model was closed."""
        busy = [id(entry) for _, entry in self.registry.pending]
        assert len(set(busy)) == len(busy)
        for name in SIZES:
            assert sum(not model.closed for model in self.shop.loaded if model.name == name) <= 1

    @invariant()
    def nobody_waits_for_what_is_there(self) -> None:
        """If no request waits for memory, loaded models are leased at once."""
        if not self.registry._queue:
            loaded = {
                entry.source.name for entry in self.registry._entries if entry.state == "loaded"
            }
            assert all(
                borrower.future.done() for borrower in self.borrowers if borrower.name in loaded
            )


TestBorrowing = Borrowing.TestCase


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    """Files and a clock."""
    return Shop(tmp_path)


def test_concurrent_leases_share_one_load(shop: Shop) -> None:
    """A model that is being loaded is loaded once, and those who wait get it together."""
    registry = Stepwise(shop, shop.settings())
    with ExitStack() as stack:
        futures = [stack.enter_context(registry.lease("generate", "b")) for _ in range(10)]
        assert len(registry.pending) == 1
        registry.step()
        assert {future.result() for future in futures} == {shop.loaded[0]}
    assert registry.loaded("generate") == shop.loaded


def test_least_recently_used_model_is_evicted(shop: Shop) -> None:
    """Idle models are evicted; a model in use stays, and gets no new requests while a request waits for its memory."""
    registry = Stepwise(shop, shop.settings(model_bytes=ROOM))

    def use(name: str) -> None:
        with registry.lease("generate", name) as future:
            while not future.done():
                registry.pass_time()
                registry.step()
        shop.now_s += 1

    for name in ("a", "b", "a", "d"):  # 1 and 2 fit; another 2 need the room of b
        use(name)
    assert [model.name for model in shop.loaded if not model.closed] == ["a", "d"]
    with registry.lease("generate", "d"), registry.lease("generate", "c") as wanted:
        registry.pass_time()
        assert [entry.source.name for _, entry in registry.pending] == ["a"]  # idle, and not enough
        registry.step()
        with registry.lease("generate", "d") as later:
            assert not registry.pending
            assert not later.done()
            shop.now_s += 1
    assert wanted.cancelled()


def test_busy_model_is_evicted_after_its_leases_end(shop: Shop) -> None:
    """Requests for the evicted model are answered after the other model was used: neither starves."""
    registry = Stepwise(shop, shop.settings(model_bytes=ROOM))
    order: list[str] = []
    stacks = [ExitStack() for _ in range(6)]
    futures = [
        stack.enter_context(registry.lease("generate", name))
        for stack, name in zip(stacks, "cdcdcd", strict=True)
    ]
    for _ in range(20):
        registry.pass_time()
        while registry.pending:
            registry.step()
        for place, future in enumerate(futures):
            if future.done() and not future.cancelled():
                order.append(future.result().name)
                stacks[place].close()
                futures[place] = Future()
    assert order == ["c", "c", "c", "d", "d", "d"]
    assert len(shop.loaded) == 2


def loaded_for(registry: Stepwise, *names: str, client: str = "key") -> None:
    """Use models in sequence as one client."""
    for name in names:
        with registry.lease("generate", name, client=client) as future:
            while registry.pending:
                registry.step()
            assert future.done()


def test_short_lease_evicts_nothing(shop: Shop) -> None:
    """A request that has waited for `_MIN_WAIT_S` and still waits causes evictions, regardless of other requests."""
    registry = Stepwise(shop, shop.settings(model_bytes=ROOM))
    loaded_for(registry, "c", client="")
    for _ in range(10):
        with registry.lease("generate", "b", client=""):
            registry.pass_time(MAX_DEFER_S / 2)
    with (
        registry.lease("generate", "b", client=""),
        registry.lease("generate", "b", client="") as wanted,
    ):
        registry.pass_time(MAX_DEFER_S / 2)
        assert not registry.pending
        registry.pass_time(MAX_DEFER_S / 2)
        assert registry.leaving == ["c"]
        registry.step()
        registry.step()
        assert wanted.done()


def test_anonymous_lease_does_not_evict_recent_authenticated_model(shop: Shop) -> None:
    """Anonymous requests wait until no authenticated client used the model for a minute, without delaying other requests."""
    registry = Stepwise(shop, shop.settings(model_bytes=ROOM))
    loaded_for(registry, "b")
    with registry.lease("generate", "c", client="") as wanted:
        registry.pass_time(KEPT_S - 1)
        loaded_for(registry, "a", "b", client="")
        assert not registry.pending
        registry.pass_time(1)
        assert registry.leaving == ["a", "b"]
        for _ in range(3):
            registry.step()
        assert wanted.done()


def test_those_with_a_key_are_first(shop: Shop) -> None:
    """Authenticated requests come first, even if an anonymous client has waited longer."""
    registry = Stepwise(shop, shop.settings(model_bytes=ROOM))
    loaded_for(registry, "c", client="")
    with (
        registry.lease("generate", "b", client=""),
        registry.lease("generate", "d", client="key") as keyed,
    ):
        registry.pass_time()
        registry.step()
        registry.step()
        assert keyed.done()


def test_hanging_load_times_out(shop: Shop) -> None:
    """Waiting requests are rejected after the load timeout, later requests at once; a late model is leased."""
    registry = Stepwise(shop, shop.settings(model_load_timeout_s=LOAD_TIMEOUT_S))
    says = "the model has been loading for more than 30 seconds"
    with registry.lease("generate", "b", client="") as future:
        registry.pass_time(LOAD_TIMEOUT_S)
        assert not future.done()
        registry.pass_time(1)
        with pytest.raises(ModelLoadError, match=says):
            future.result(0)
    for _ in range(3):
        registry.pass_time(PAUSE_S - 1)
        with pytest.raises(ModelLoadError, match=says), registry.lease("generate", "b"):
            pass
    registry.step()
    with registry.lease("generate", "b", client="") as future:
        assert future.done()


def test_waiting_leases_hold_a_quarter_of_the_memory(shop: Shop) -> None:
    """Each client may hold a quarter of the bytes, for all models together, while it waits; a larger request may wait alone."""
    registry = Stepwise(shop, shop.settings(max_buffered_bytes=400))
    loaded_for(registry, "a")
    with (
        registry.lease("generate", "b", client="x", n_bytes=60),
        registry.lease("generate", "c", client="y", n_bytes=999),
    ):
        for client, n_bytes in (("x", 41), ("y", 1)):
            with (
                pytest.raises(OverloadedError, match="too many large requests wait for models"),
                registry.lease("generate", "d", client=client, n_bytes=n_bytes),
            ):
                pass
            with registry.lease("generate", "a", client=client, n_bytes=n_bytes) as here:
                assert here.done()
        with registry.lease("generate", "d", client="x", n_bytes=40):
            pass
        registry.step()
        with registry.lease("generate", "d", client="x", n_bytes=100):
            pass


def test_failed_load_is_reported_and_retried_after_pause(shop: Shop) -> None:
    """Waiting requests get the reason without the path, and so do requests soon afterwards; other models are unaffected."""
    registry = Stepwise(shop, shop.settings())
    shop.fails.add("b")
    with registry.lease("generate", "b") as future:
        registry.step()
        with pytest.raises(ModelLoadError, match=r"^the model cannot be loaded: b is damaged$"):
            future.result()
    with pytest.raises(ModelLoadError, match="b is damaged"), registry.lease("generate", "b"):
        pass
    with registry.lease("generate", "a") as future:
        registry.step()
        assert future.result().name == "a"
    shop.fails.clear()
    shop.now_s += PAUSE_S
    with registry.lease("generate", "b") as future:
        registry.step()
        assert future.result().name == "b"


def test_load_is_retried_if_no_thread_starts(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting requests are rejected, and the model does not count as loading."""

    def fail(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    settings = shop.settings()
    registry = ModelRegistry(
        settings, {"generate": shop.load}, metrics_of(settings), lambda: shop.now_s
    )
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", fail)
        with (
            registry.lease("generate", "a") as future,
            pytest.raises(ModelLoadError, match="has no thread"),
        ):
            future.result(0)
    shop.now_s += PAUSE_S
    with registry.lease("generate", "a") as future:
        assert future.result(60).name == "a"


def test_unexpected_load_error_is_hidden_from_clients(
    shop: Shop, caplog: pytest.LogCaptureFixture
) -> None:
    """The message of an unexpected exception is only in the log."""

    def load(_: NamedModel) -> Model:
        raise ZeroDivisionError("secret internals")

    shop.load = load  # type: ignore[method-assign]
    registry = Stepwise(shop, shop.settings())
    with registry.lease("generate", "a") as future:
        registry.step()
        with pytest.raises(ModelLoadError, match=r"the server's log says why$"):
            future.result()
    assert "secret internals" in caplog.text


@pytest.mark.parametrize("change", [lambda path: path.write_bytes(b"another"), Path.unlink])
def test_changed_model_file_is_not_reloaded(shop: Shop, change: Callable[[Path], object]) -> None:
    """A loaded model is unaffected; after it was unloaded, requests are rejected because its file has changed."""
    registry = Stepwise(shop, shop.settings(model_idle_s=IDLE_S))
    with registry.lease("generate", "a"):
        registry.step()
        change(shop.folder / "a.gguf")
        with registry.lease("generate", "a") as future:
            assert future.result() is shop.loaded[0]
    shop.now_s += IDLE_S
    registry.update()
    registry.step()
    with registry.lease("generate", "a") as future:
        registry.step()
        with pytest.raises(
            ModelLoadError,
            match="the model file has changed since it was loaded: restart the server",
        ):
            future.result()


@given(
    st.lists(st.text(max_size=3), min_size=1, max_size=4, unique=True),
    st.none() | st.text(max_size=3),
)
def test_model_name_selects_model(names: list[str], asked: str | None) -> None:
    """A known name selects its model; None selects the first, and so does any name of a single model; other names are rejected."""
    settings = Settings(model=tuple(NamedModel(name, name) for name in names))
    registry = ModelRegistry(settings, {"generate": Model}, metrics_of(settings))
    if asked in names:
        assert registry.name_of("generate", asked) == asked
    elif asked is None or len(names) == 1:
        assert registry.name_of("generate", asked) == names[0]
    else:
        with pytest.raises(
            UnknownModelError, match=r"^model must be a model that this server has, got"
        ):
            registry.name_of("generate", asked)
    assert registry.name_of("generate", "relevance_gen") == names[0]
    with pytest.raises(ModelLoadError):
        registry.name_of("embed", asked)


def test_disconnect_does_not_end_a_load(shop: Shop) -> None:
    """Cancelling a coroutine that waits harms neither the load nor who else waits for it."""
    settings = shop.settings()
    shop.held = threading.Event()

    async def live() -> None:
        metrics = metrics_of(settings)
        registry = ModelRegistry(settings, {"generate": shop.load}, metrics)
        generator = Generator(registry, settings, metrics)

        async def ask() -> str:
            async with generator.lease("b", "a-key") as model:
                return str(model.name)  # type: ignore[attr-defined]

        first, second = asyncio.create_task(ask()), asyncio.create_task(ask())
        while metrics.total("models", "generate", "b", "loading") == 0:
            await asyncio.sleep(0.001)
        first.cancel()
        await asyncio.wait([first])
        assert first.cancelled()
        shop.held.set()  # type: ignore[union-attr]
        assert await second == "b"
        assert len(shop.loaded) == 1
        registry.close()
        assert shop.loaded[0].closed

    asyncio.run(live())


def test_request_limit_is_per_client_and_model(shop: Shop) -> None:
    """A client may have a limited number of requests for a model; other clients and other models have their own limits."""
    settings = shop.settings()
    shop.held = threading.Event()

    async def live() -> None:
        registry = ModelRegistry(settings, {"generate": shop.load}, metrics_of(settings))
        generator = Generator(registry, settings, metrics_of(settings))

        async def ask(name: str, client: str) -> str:
            async with generator.lease(name, client) as model:
                return str(model.name)  # type: ignore[attr-defined]

        burst = [asyncio.create_task(ask("b", "eager")) for _ in range(1024)]
        await asyncio.sleep(0)
        with pytest.raises(OverloadedError, match="too many requests for this model"):
            await ask("b", "eager")
        rest = [asyncio.create_task(ask(*asked)) for asked in (("b", "other"), ("a", "eager"))]
        shop.held.set()  # type: ignore[union-attr]
        assert await asyncio.gather(*rest) == ["b", "a"]
        assert set(await asyncio.gather(*burst)) == {"b"}
        assert await ask("b", "eager") == "b"
        registry.close()

    asyncio.run(live())


def test_close_rejects_waiting_leases(shop: Shop) -> None:
    """Closing rejects waiting requests, and closes loaded models; afterwards leases are rejected."""
    registry = Stepwise(shop, shop.settings())
    with registry.lease("generate", "a"):
        registry.step()
    with registry.lease("generate", "b") as future:
        registry.close()
        with pytest.raises(ShuttingDownError):
            future.result()
    assert [model.closed for model in shop.loaded] == [True]
    with pytest.raises(ShuttingDownError), registry.lease("generate", "a"):
        pass


def test_threads_and_tasks_may_ask_at_once(shop: Shop) -> None:
    """Many threads that request models that do not fit together all get the right model."""
    settings = shop.settings(model_bytes=ROOM)
    clock = itertools.count()  # who waits is patient at the next look
    registry = ModelRegistry(
        settings, {"generate": shop.load}, metrics_of(settings), lambda: float(next(clock))
    )
    wrong: list[object] = []
    names: Any = itertools.cycle("abcd")

    def work(asked: list[str]) -> None:
        for name in asked:
            with registry.lease("generate", name) as future:
                model = future.result(60)
                if model.name != name or model.closed:
                    wrong.append(model)

    threads = [
        threading.Thread(target=work, args=([next(names) for _ in range(20)],)) for _ in range(7)
    ]
    for thread in threads:
        thread.start()

    def are_done() -> bool:
        registry.update()
        return not any(thread.is_alive() for thread in threads)

    assert eventually(are_done)
    assert not wrong
    assert eventually(lambda: not registry.is_loading)
    registry.close()
