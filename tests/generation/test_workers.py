"""Several workers behind one backlog, on scripted models: one queue, one sum, and no single point of failure."""

import random
import threading
import time
from concurrent.futures import CancelledError

import pytest

from relevance_gen.errors import GenerationError, ModelLoadError, OverloadedError, RunnerClosedError
from relevance_gen.generation.runner import Runner
from relevance_gen.generation.worker import Worker
from relevance_gen.llama.model_thread import ThreadState
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime import aborts
from relevance_gen.types import GenerationRequest, Stats
from tests.generation.scripted import ScriptedModel
from tests.generation.test_runner import until

LONG = GenerationRequest("a", max_tokens=10**9)
"""Runs until the context is full, which takes a scripted model of 100,000 tokens longer than any test."""


class ScriptedRunner(Runner):
    """A runner of several workers, each with a model that a function loads."""

    def __init__(self, loads, *, max_queue=256, prefix_cache_bytes=0, wait=True):
        def workers(backlog):
            return [Worker(backlog, load, prefix_cache_bytes) for load in loads]

        self._start(workers, max_queue, prefix_cache_bytes, wait=wait)


class Switch:
    """Decides when a scripted model fails, and how."""

    def __init__(self):
        self.error = None
        self.prompts = 0

    def __call__(self, name):
        """Count prompts, and do what was set."""
        self.prompts += name == "prefill"
        if self.error is not None:
            self.error()


def fail():
    raise GenerationError("broken")


def lose_the_thread():
    aborts._on_abort(b"GGML_ASSERT(it holds)")


def scripted(on_call=None, *, n_slots=2, n_ctx=100_000):
    """Return what loads a scripted model."""
    return lambda _: ScriptedModel(n_slots, n_ctx=n_ctx, on_call=on_call)


def unloadable(on_progress):
    raise ModelLoadError("damaged")


def meeting(both):
    """Return a step that waits the first time until another worker takes its own."""
    met = []

    def step(_):
        if not met:
            met.append(both.wait(60))

    return step


def test_work_is_shared_and_summed():
    """Two workers serve one queue: both take part, responses are whole, counters add up."""
    request = GenerationRequest("a", max_tokens=20, num_samples=2)
    both = threading.Barrier(2)  # each worker's first step waits for the other's
    with ScriptedRunner([scripted(meeting(both)) for _ in range(2)]) as runner:
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


def test_what_waited_while_models_loaded_is_served():
    """Requests may come before any worker is ready, and count as waiting."""
    go_on = threading.Event()

    def load(on_progress):
        go_on.wait()
        return ScriptedModel(2)

    with ScriptedRunner([load, load], wait=False) as runner:
        futures = [runner.submit(GenerationRequest("a", max_tokens=2)) for _ in range(5)]
        assert runner.stats() == Stats(backlog=5, num_total_runners=0)
        go_on.set()
        assert all(future.result(timeout=60).num_samples == 1 for future in futures)


@pytest.mark.parametrize("death", [fail, lose_the_thread])
def test_the_others_go_on_when_a_worker_dies(death, caplog):
    """Of what the dead worker had, only requests whose text was seen fail; the rest gets what it would have got."""
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
        assert "a worker failed, and 1 go on" in caplog.text


@pytest.mark.parametrize("death", [fail, lose_the_thread])
def test_the_last_workers_death_answers_everybody(death):
    """When none is left, running and waiting requests fail and new ones are refused with the reason."""
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


def test_a_request_that_kills_workers_kills_two_at_most():
    """A request goes to another worker once, so that the third worker of three lives."""
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


def test_a_worker_that_does_not_load_is_no_loss():
    """A runner of one good and one bad model serves with the good one, and says so."""
    with ScriptedRunner([unloadable, scripted()]) as runner:
        assert runner.generate(GenerationRequest("a", max_tokens=2)).num_samples == 1
        assert runner.stats().num_total_runners == 1
        assert [worker.state for worker in runner._workers] == [
            ThreadState.FAILED,
            ThreadState.READY,
        ]


def test_a_runner_of_which_no_model_loads_is_an_error():
    """Where none loads, the constructor raises the reason."""
    with pytest.raises(ModelLoadError, match="damaged"):
        ScriptedRunner([unloadable, unloadable])


def test_the_queue_of_all_workers_is_bounded():
    """max_queue counts what waits for all workers together."""
    runner = ScriptedRunner([scripted(n_slots=1), scripted(n_slots=1)], max_queue=2)
    for _ in range(2):
        runner.submit(LONG)
    until(lambda: runner.stats().backlog == 0)
    for _ in range(2):
        runner.submit(LONG)
    with pytest.raises(OverloadedError):
        runner.submit(LONG)
    runner.close(drain=False)


def test_closing_drains_whichever_worker_has_it():
    """`close` finishes what any worker has and what waits; then every thread has ended."""
    before = threading.enumerate()
    runner = ScriptedRunner([scripted(n_slots=1) for _ in range(3)])
    futures = [
        runner.submit(GenerationRequest("a", max_tokens=50, num_samples=2)) for _ in range(20)
    ]
    runner.close()
    assert all(future.result(timeout=0).num_samples == 2 for future in futures)
    assert [worker.state for worker in runner._workers] == [ThreadState.CLOSED] * 3
    assert threading.enumerate() == before


def test_closing_without_drain_answers_everybody_at_once():
    """Whatever the workers have and whatever waits sees `RunnerClosedError`, even where a callback hangs."""
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


def test_closing_while_a_model_loads_ends_the_loading():
    """The loader is told not to go on; that is no failure, and waiting requests see that the runner was closed."""
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


def test_a_cancelled_prompt_is_not_computed_to_its_end():
    """Cancelling while a prompt is computed interrupts it; the next request starts at once and unharmed."""
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


def test_every_request_of_many_threads_ends_one_way():
    """Submitted, cancelled, streamed and dropped by six threads at once, while a worker dies: the sums agree."""
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
                worker._engine.idle
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


def test_every_device_gets_a_worker_with_the_other_options_of_all():
    """`devices` sets main_gpu, one for each worker."""
    from relevance_gen.llama.options import on_devices

    options = ModelOptions(n_ctx=64, n_slots=3)
    assert on_devices(options, None) == [options]
    assert on_devices(options, (1, 0)) == [
        ModelOptions(n_ctx=64, n_slots=3, main_gpu=gpu) for gpu in (1, 0)
    ]


def test_a_worker_takes_no_more_prompts_than_it_may_keep():
    """On one slot, two requests of many samples take turns, a third waits in the backlog, and a single one passes."""
    with ScriptedRunner([scripted(n_slots=1)], max_queue=1000) as runner:
        many = [GenerationRequest("a" * n, max_tokens=20, num_samples=99) for n in (1, 2, 3)]
        futures = [runner.submit(request) for request in many]
        assert (
            runner.submit(GenerationRequest("b", max_tokens=1)).result(timeout=60).num_samples == 1
        )
        assert not any(future.done() for future in futures)
        assert len(runner._queue._waiting) == 1
        assert [future.result(timeout=60).num_samples for future in futures] == [99] * 3
