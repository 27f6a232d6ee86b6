"""Several workers with one queue, on scripted models."""

import random
import threading
import time
from concurrent.futures import CancelledError

import pytest

from relevance_gen.errors import GenerationError, ModelLoadError, OverloadedError, RunnerClosedError
from relevance_gen.generation.runner import Runner, create_queue
from relevance_gen.generation.worker import Worker
from relevance_gen.llama.model_thread import ThreadState
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime import aborts
from relevance_gen.types import GenerationRequest, Stats
from tests.generation.scripted import ScriptedModel
from tests.generation.test_runner import until

LONG = GenerationRequest("a", max_tokens=10**9)
"""Runs until the context is full; with 100,000 tokens a scripted model needs longer than any
test."""


class ScriptedRunner(Runner):
    """A runner with several workers, each with a function that loads its model."""

    def __init__(self, loads, *, max_queue=256, prefix_cache_bytes=0, wait=True):
        queue = create_queue(max_queue, prefix_cache_bytes)
        workers = [Worker(queue, load, prefix_cache_bytes) for load in loads]
        self._start(queue, workers, wait=wait)


class Switch:
    """Makes a scripted model fail at a chosen time in a chosen way."""

    def __init__(self):
        self.error = None
        self.prompts = 0

    def __call__(self, name):
        """Count prompts, and call the chosen failure."""
        self.prompts += name == "prefill"
        if self.error is not None:
            self.error()


def fail():
    raise GenerationError("broken")


def end_thread():
    aborts._on_abort(b"GGML_ASSERT(it holds)")


def scripted(on_call=None, *, n_slots=2, n_ctx=100_000):
    """Return a function that loads a scripted model."""
    return lambda _: ScriptedModel(n_slots, n_ctx=n_ctx, on_call=on_call)


def unloadable(on_progress):
    raise ModelLoadError("damaged")


def wait_for_all(both):
    """Return a callback that waits at its first call for the callback of another worker."""
    met = []

    def step(_):
        if not met:
            met.append(both.wait(60))

    return step


def test_two_workers_share_requests_and_sum_counters():
    """Both workers of a queue serve requests, responses are complete, and counters are the sum of both."""
    request = GenerationRequest("a", max_tokens=20, num_samples=2)
    both = threading.Barrier(2)  # the first step of each worker waits for the other worker
    with ScriptedRunner([scripted(wait_for_all(both)) for _ in range(2)]) as runner:
        assert runner.stats() == Stats(backlog=0, num_total_runners=2)
        futures = [runner.submit(request) for _ in range(30)]
        assert all(future.result(timeout=60).num_samples == 2 for future in futures)
        assert all(worker.counters.generated_tokens >= 2 * 20 for worker in runner._workers)
        assert runner.counters().generated_tokens == 30 * 2 * 20
        assert runner.counters().requests_finished == 30
        assert "".join(piece.text for piece in runner.stream(GenerationRequest("a", max_tokens=3)))
    assert runner.stats() == Stats(0, 0)
    with pytest.raises(RunnerClosedError):
        runner.submit(request)


def test_submit_while_models_load_is_served_later():
    """Requests submitted before a worker is ready count as waiting and are served later."""
    go_on = threading.Event()

    def load(on_progress):
        go_on.wait()
        return ScriptedModel(2)

    with ScriptedRunner([load, load], wait=False) as runner:
        futures = [runner.submit(GenerationRequest("a", max_tokens=2)) for _ in range(5)]
        assert runner.stats() == Stats(backlog=5, num_total_runners=0)
        go_on.set()
        assert all(future.result(timeout=60).num_samples == 1 for future in futures)


@pytest.mark.parametrize("death", [fail, end_thread])
def test_worker_failure_requeues_requests_without_text(death, caplog):
    """Requests of the failed worker that have streamed text fail; the other requests get their normal results."""
    shown, switches = threading.Event(), [Switch(), Switch()]
    requests = [GenerationRequest("ab", max_tokens=300, seed=seed) for seed in range(3)]
    with ScriptedRunner([scripted(n_slots=4)]) as runner:
        expected = [runner.generate(request).responses[0].text for request in requests]
    with ScriptedRunner([scripted(switch, n_slots=4) for switch in switches]) as runner:
        seen = runner.submit(LONG, on_text=lambda *_: shown.set())
        assert shown.wait(60)
        worker = next(worker for worker in runner._workers if worker.counters.generated_tokens)
        unseen = [runner.submit(request) for request in requests]
        until(lambda: runner.stats().backlog == 0)
        switches[runner._workers.index(worker)].error = death
        assert isinstance(seen.exception(timeout=60), GenerationError)
        texts = [future.result(timeout=60).responses[0].text for future in unseen]
        assert texts == expected
        assert runner.stats().num_total_runners == 1
        assert runner.alive
        assert runner.error is None
        assert worker.state is (ThreadState.FAILED if death is fail else ThreadState.LOST)
        assert runner.counters().requests_failed == 1
        assert "a worker failed; 1 workers continue" in caplog.text


@pytest.mark.parametrize("death", [fail, end_thread])
def test_last_worker_failure_fails_all_requests(death):
    """After the last worker fails, running and waiting requests fail, and new requests are refused with the reason."""
    switch = Switch()
    runner = ScriptedRunner([scripted(switch, n_slots=1)])
    futures = [runner.submit(LONG) for _ in range(4)]
    until(lambda: runner.counters().generated_tokens > 0)
    switch.error = death
    assert {type(future.exception(timeout=60)) for future in futures} == {GenerationError}
    with pytest.raises(RunnerClosedError, match="broken" if death is fail else "GGML_ASSERT"):
        runner.submit(LONG)
    assert isinstance(runner.error, GenerationError)
    assert (runner.stats(), runner.counters().requests_failed) == (Stats(0, 0), 4)
    runner.close()


def test_request_that_ends_workers_is_requeued_once():
    """A request goes to a second worker once, so the third of three workers survives."""
    switches = [Switch() for _ in range(3)]

    class Poison(ScriptedModel):
        def tokenize(self, text, max_tokens):
            if text == "poison":
                raise ZeroDivisionError
            return super().tokenize(text, max_tokens)

    with ScriptedRunner([lambda _: Poison(2) for _ in switches]) as runner:
        assert isinstance(
            runner.submit(GenerationRequest("poison")).exception(timeout=60), GenerationError
        )
        until(lambda: runner.stats().num_total_runners == 1)
        assert runner.generate(GenerationRequest("a", max_tokens=1)).num_samples == 1


def test_worker_that_cannot_load_leaves_the_others():
    """A runner with a good and a broken model serves requests with the good model."""
    with ScriptedRunner([unloadable, scripted()]) as runner:
        assert runner.generate(GenerationRequest("a", max_tokens=2)).num_samples == 1
        assert runner.stats().num_total_runners == 1
        assert [worker.state for worker in runner._workers] == [
            ThreadState.FAILED,
            ThreadState.READY,
        ]


def test_init_without_loadable_model_raises():
    """If no model can be loaded, the constructor raises the reason."""
    with pytest.raises(ModelLoadError, match="damaged"):
        ScriptedRunner([unloadable, unloadable])


def test_max_queue_limits_waiting_samples_of_all_workers():
    """max_queue limits the samples that wait for all workers together."""
    runner = ScriptedRunner([scripted(n_slots=1), scripted(n_slots=1)], max_queue=2)
    for _ in range(2):
        runner.submit(LONG)
    until(lambda: runner.stats().backlog == 0)
    for _ in range(2):
        runner.submit(LONG)
    with pytest.raises(OverloadedError):
        runner.submit(LONG)
    runner.close(drain=False)


def test_close_with_drain_finishes_requests_of_all_workers():
    """`close` finishes running and waiting requests; then all threads have ended."""
    before = threading.enumerate()
    runner = ScriptedRunner([scripted(n_slots=1) for _ in range(3)])
    futures = [
        runner.submit(GenerationRequest("a", max_tokens=50, num_samples=2)) for _ in range(20)
    ]
    runner.close()
    assert all(future.result(timeout=0).num_samples == 2 for future in futures)
    assert [worker.state for worker in runner._workers] == [ThreadState.CLOSED] * 3
    assert threading.enumerate() == before


def test_close_without_drain_fails_requests_of_all_workers():
    """Running and waiting requests fail with `RunnerClosedError`, even if a callback hangs."""
    stuck, go_on = threading.Event(), threading.Event()

    def hang(sample, text):
        stuck.set()
        go_on.wait()

    runner = ScriptedRunner([scripted(n_slots=1), scripted(n_slots=1)])
    futures = [runner.submit(LONG, on_text=hang), *(runner.submit(LONG) for _ in range(5))]
    assert stuck.wait(60)
    closing = threading.Thread(target=runner.close, kwargs={"drain": False})
    closing.start()
    assert {type(future.exception(timeout=4)) for future in futures} == {RunnerClosedError}
    go_on.set()
    closing.join(60)
    assert [worker.state for worker in runner._workers] == [ThreadState.CLOSED] * 2


def test_close_while_model_loads_stops_loading():
    """The loader is asked to stop; the worker counts as closed, not as failed, and waiting requests fail as closed."""
    asked = threading.Event()

    def load(on_progress):
        while on_progress(0.5):
            asked.set()
        raise ModelLoadError("given up")

    runner = ScriptedRunner([load], wait=False)
    future = runner.submit(LONG)
    assert asked.wait(60)
    with pytest.raises(TimeoutError):
        runner.wait_ready(timeout_s=0.001)
    runner.close(drain=False)
    assert isinstance(future.exception(timeout=0), RunnerClosedError)
    assert (runner.error, runner._workers[0].state) == (None, ThreadState.CLOSED)


def test_cancel_during_prefill_interrupts_it():
    """Canceling during a prefill interrupts it; the next request starts at once and gets its normal result."""
    switch, inside, go_on = Switch(), threading.Event(), threading.Event()

    def wait_inside():
        inside.set()
        go_on.wait()

    model = ScriptedModel(1, n_ctx=1000, on_call=switch)
    with ScriptedRunner([lambda _: model]) as runner:
        switch.error = wait_inside
        future = runner.submit(GenerationRequest("ab" * 400, max_tokens=1))
        assert inside.wait(60)
        future.cancel()
        assert model.interrupted
        go_on.set()
        assert (
            runner.generate(GenerationRequest("a", max_tokens=2)).responses[0].generated_tokens == 2
        )
        assert switch.prompts == 2


def test_requests_of_many_threads_end_exactly_once():
    """Six threads submit, cancel, stream and drop requests while a worker fails: the counts add up."""
    switches, n_requests = [Switch() for _ in range(3)], 100

    def client(number):
        chance = random.Random(number)  # noqa: S311 - no secret
        for _ in range(n_requests):
            request = GenerationRequest(
                "ab" * chance.randint(1, 9), max_tokens=chance.randint(1, 9), num_samples=2
            )
            if chance.random() < 0.3:
                next(runner.stream(request), None)  # dropped
                ends.append("dropped")
                continue
            future = runner.submit(
                request, on_text=(lambda *_: None) if chance.random() < 0.2 else None
            )
            if chance.random() < 0.3:
                time.sleep(chance.random() / 1000)
                future.cancel()
            try:
                assert future.result(timeout=60).num_samples == 2
                ends.append("finished")
            except CancelledError:
                ends.append("cancelled")
            except GenerationError:
                ends.append("failed")

    ends = []
    with ScriptedRunner(
        [scripted(switch, n_slots=3) for switch in switches], max_queue=10**6
    ) as runner:
        threads = [threading.Thread(target=client, args=(number,)) for number in range(6)]
        for thread in threads:
            thread.start()
        until(lambda: len(ends) > n_requests)
        switches[1].error = fail
        for thread in threads:
            thread.join()
        until(lambda: runner.stats() == Stats(backlog=0, num_total_runners=2))
        until(
            lambda: all(
                worker._engine.is_idle
                for worker in runner._workers
                if worker.state is ThreadState.READY
            )
        )
        counters = runner.counters()
    assert len(ends) == 6 * n_requests
    assert (
        counters.requests_finished + counters.requests_cancelled + counters.requests_failed
        == len(ends)
    )
    assert counters.requests_cancelled >= ends.count("cancelled") > 10
    assert counters.requests_failed <= 3


def test_on_devices_sets_main_gpu_per_worker():
    """`devices` gives each worker its `main_gpu` and the other options unchanged."""
    from relevance_gen.llama.options import on_devices

    options = ModelOptions(n_ctx=64, n_slots=3)
    assert on_devices(options, None) == [options]
    assert on_devices(options, (1, 0)) == [
        ModelOptions(n_ctx=64, n_slots=3, main_gpu=gpu) for gpu in (1, 0)
    ]


def test_worker_takes_at_most_max_retained_prompts():
    """On one slot, two requests for many samples take turns, a third request waits in the queue, and a single sample is served."""
    with ScriptedRunner([scripted(n_slots=1)], max_queue=1000) as runner:
        many = [GenerationRequest("a" * n, max_tokens=20, num_samples=99) for n in (1, 2, 3)]
        futures = [runner.submit(request) for request in many]
        assert (
            runner.submit(GenerationRequest("b", max_tokens=1)).result(timeout=60).num_samples == 1
        )
        assert not any(future.done() for future in futures)
        assert len(runner._queue._waiting) == 1
        assert [future.result(timeout=60).num_samples for future in futures] == [99] * 3
