"""Runners on the nodes of a cluster give the results of one local runner, and are replaced after failures."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import suppress
from typing import Any

import pytest

from relevance_gen import InvalidRequestError, Runner
from relevance_gen.cluster import ClusterRunner, actors
from relevance_gen.cluster.generation.runner import ClusterWorker
from relevance_gen.cluster.generation.runner_actor import RunnerSpec, limit_devices
from relevance_gen.errors import ClusterError, GenerationError, ModelLoadError, OverloadedError
from relevance_gen.generation.queue import request_queue
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.llama.model_thread import ThreadState
from relevance_gen.llama.options import ModelOptions
from relevance_gen.types import GenerationRequest
from small_models import BIGRAM, TINY
from tests.cluster.shared import OPTIONS, kill_process, process_of, until
from tests.conversations import tokens_of


def requests(n: int) -> list[GenerationRequest]:
    """Return requests with seeds, half of them for two samples."""
    return [
        GenerationRequest(
            f"once {number}",
            max_tokens=24,
            seed=number,
            temperature=1.0,
            num_samples=1 + number % 2,
        )
        for number in range(n)
    ]


def texts_of(response: Any) -> list[str]:
    return [completion.text for completion in response.responses]


@pytest.fixture(scope="module")
def runner(cluster: Any) -> Iterator[ClusterRunner]:
    """A cluster runner with two runners; tests may kill them, because they are replaced."""
    with ClusterRunner(TINY, n_runners=2, max_queue=10_000, **OPTIONS) as started:
        yield started


@pytest.fixture(autouse=True)
def wait_for_both(request: pytest.FixtureRequest) -> None:
    """Start each test with two ready runners."""
    if "runner" in request.fixturenames:
        runner = request.getfixturevalue("runner")
        until(lambda: runner.stats().num_total_runners == 2, "both runners live")


@pytest.fixture(scope="module")
def alone() -> Iterator[Runner]:
    """The same model in this process."""
    with Runner(TINY, **OPTIONS) as started:
        yield started


@pytest.fixture(scope="module")
def single(cluster: Any) -> Iterator[ClusterRunner]:
    """A cluster runner with one runner and a short queue."""
    with ClusterRunner(BIGRAM, n_runners=1, max_queue=3, **OPTIONS) as started:
        yield started


def test_submit_with_seed_equals_local_runner(runner: ClusterRunner, alone: Runner) -> None:
    """The samples of a request equal those of a local runner, regardless of the runner and of concurrent requests."""
    assert len({worker.node_id for worker in runner._workers}) == 2
    n_before = runner.counters().generated_tokens
    futures = [runner.submit(request) for request in requests(12)]
    for request, future in zip(requests(12), futures, strict=True):
        assert texts_of(future.result(60)) == texts_of(alone.generate(request))
    assert runner.stats().backlog == 0
    n_tokens = sum(24 * request.num_samples for request in requests(12))
    assert runner.counters().generated_tokens - n_before == n_tokens


def test_stream_pieces_arrive_during_generation(runner: ClusterRunner) -> None:
    """The pieces of a stream concatenate to the text, and the first piece arrives before the last token is computed."""
    with runner.stream({"text": "once", "max_tokens": 120, "seed": 5}) as stream:
        pieces = [(piece.text, runner.counters().generated_tokens) for piece in stream]
        assert stream.response is not None
        assert "".join(text for text, _ in pieces) == stream.response.responses[0].text
        assert len(pieces) > 5


def test_cancel_waiting_or_running_request_frees_slot(runner: ClusterRunner) -> None:
    """A cancelled request ends in the runner's process too."""
    n_before = runner.counters().generated_tokens
    long = [
        runner.submit({"text": "on and on", "max_tokens": 900, "num_samples": 4}) for _ in range(6)
    ]
    until(lambda: runner.stats().backlog < 24, "some have begun")
    for future in long:
        future.cancel()
    assert runner.generate({"text": "short", "max_tokens": 2}).responses
    assert runner.counters().generated_tokens - n_before < 24 * 900
    for future in long:
        with pytest.raises(CancelledError):
            future.result()
    until(lambda: all(not worker._forwarded for worker in runner._workers), "nothing is held")
    assert runner.stats().backlog == 0


def test_chat_and_token_counts_equal_local_runner(runner: ClusterRunner, alone: Runner) -> None:
    """Chat templates and token counts use the model in the runner's process."""
    assert runner.count_tokens("how many") == alone.count_tokens("how many")
    assert runner.chat_format == alone.chat_format


def test_submit_common_prefix_goes_to_one_runner(
    runner: ClusterRunner, alone: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two idle runners, one gets all requests with a common prefix and computes the prefix once; results are equal."""
    monkeypatch.setattr(
        request_queue, "MAX_DEFER_S", 60.0
    )  # a busy machine may need longer than the default
    beginning = "all that was message before " * 24
    asked = [
        {"text": f"{beginning}{number}", "max_tokens": 4, "seed": number} for number in range(8)
    ]
    before = [(worker, worker.counters.prefix_cache_hits) for worker in runner._workers]
    assert [texts_of(runner.generate(request)) for request in asked] == [
        texts_of(alone.generate(one)) for one in asked
    ]
    assert sorted(worker.counters.prefix_cache_hits - n_hits for worker, n_hits in before) == [
        0,
        len(asked) - 1,
    ]


def test_submit_full_queue_raises(single: ClusterRunner) -> None:
    """Waiting samples are limited by the queue of this process only."""
    accepted: list[Any] = []
    with pytest.raises(OverloadedError):
        accepted.extend(single.submit({"text": "a", "max_tokens": 200}) for _ in range(200))
    wait(accepted, 60)


def test_only_runner_dies_and_is_replaced(single: ClusterRunner) -> None:
    """If the only runner dies, requests wait for the next runner."""
    kill_process(single._workers[0]._actor)
    assert single.generate({"text": "a", "max_tokens": 5}).responses


def test_runner_dies_requests_without_text_are_requeued(
    runner: ClusterRunner, alone: Runner
) -> None:
    """If a runner's process dies, its streams with text fail with the reason; all other requests are answered once."""
    shown = [threading.Event() for _ in range(4)]
    streams = [
        runner.submit({"text": "tell", "max_tokens": 900}, on_text=lambda *_, one=one: one.set())
        for one in shown
    ]
    for one in shown:
        assert one.wait(60)
    quiet = [runner.submit(request) for request in requests(8)]
    dead = next(worker for worker in runner._workers if worker._forwarded)
    kill_process(dead._actor)
    for request, future in zip(requests(8), quiet, strict=True):
        assert texts_of(future.result(60)) == texts_of(alone.generate(request))
    failed = [error for future in streams if (error := future.exception(60)) is not None]
    assert failed
    assert all(
        isinstance(error, GenerationError) and f"node {dead.node_id} died" in str(error)
        for error in failed
    )
    until(lambda: runner.stats().num_total_runners == 2, "the runner is replaced")


def test_runner_dies_while_starting_and_is_replaced(single: ClusterRunner) -> None:
    """If a runner repeatedly dies before it is ready, another runner is started and requests wait for it."""
    killed: set[Any] = set()

    def kill_next() -> bool:
        handle = single._workers[0]._actor
        if handle is not None and handle not in killed:
            killed.add(handle)
            actors.ray.kill(handle)
        return len(killed) > 3

    until(kill_next, "runners were killed")
    assert single.generate({"text": "a", "max_tokens": 5}).responses


def test_unresponsive_runner_is_replaced(
    single: ClusterRunner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A runner with a stopped process is replaced, and its requests with streamed text fail."""
    monkeypatch.setattr(actors, "SILENCE_TIMEOUT_S", 2.0)
    shown = threading.Event()
    stream = single.submit({"text": "tell", "max_tokens": 900}, on_text=lambda *_: shown.set())
    assert shown.wait(60)
    os.kill(process_of(single._workers[0]._actor), signal.SIGSTOP)
    quiet = single.submit({"text": "a", "max_tokens": 5})
    assert quiet.result(120).responses
    with pytest.raises(GenerationError, match="does not answer any more"):
        stream.result(120)


def test_named_runner_is_shared_by_two_queues(cluster: Any) -> None:
    """Two queues use the same runners without mixing request ids, and other options are refused."""
    with (
        ClusterRunner(TINY, n_runners=1, name="shared", **OPTIONS) as one,
        ClusterRunner(TINY, n_runners=1, name="shared", **OPTIONS) as other,
    ):
        futures = [runner.submit(request) for request in requests(8) for runner in (one, other)]
        found = [texts_of(future.result(60)) for future in futures]
        assert found[::2] == found[1::2]
        with pytest.raises(ClusterError, match="another model or other options"):
            ClusterRunner(BIGRAM, n_runners=1, name="shared", **OPTIONS)
        one.close()
        assert other.generate("a").responses


def test_unneeded_worker_ends() -> None:
    """A worker whose node has left before its runner was ready ends, so that `wait_ready` returns."""
    queue = RequestQueue(1)
    spec = RunnerSpec(TINY, ModelOptions(), prefix_cache_bytes=0)
    worker = ClusterWorker(queue, spec, lambda: None, (None, 0))
    worker.start()
    assert worker.join(60)
    assert worker.state is ThreadState.CLOSED


def test_close_without_drain_fails_requests_and_ends_actors(cluster: Any) -> None:
    """Closing fails all waiting requests and leaves no actor."""
    runner = ClusterRunner(TINY, n_runners=1, **OPTIONS)
    futures = [runner.submit({"text": "a", "max_tokens": 250, "num_samples": 4}) for _ in range(3)]
    runner.close(drain=False)
    assert all(future.exception(10) is not None for future in futures)
    assert runner._workers[0].state is ThreadState.CLOSED
    assert runner.stats().num_total_runners == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": 3}, "model must be"),
        ({"n_runners": 0}, "n_runners must be"),
        ({"name": ""}, "name must be"),
        ({"max_queue": 0}, "max_queue must be"),
        ({"n_slots": 0}, "n_slots must be"),
        ({"address": ""}, "address must be"),
    ],
)
def test_init_invalid_option_raises(options: Any, message: str) -> None:
    """An invalid option raises an error with the name that the caller used."""
    with pytest.raises(InvalidRequestError, match=message):
        ClusterRunner(**({"model": BIGRAM} | options))


def test_init_missing_model_raises(cluster: Any) -> None:
    """A model that no node can load raises the same error as a local runner."""
    with pytest.raises(ModelLoadError, match="nowhere"):
        ClusterRunner("/nowhere/model.gguf", n_runners=1)


@pytest.mark.parametrize(
    ("n_requests", "n_kills"),
    [(60, 2), pytest.param(10_000, 10**6, marks=pytest.mark.soak)],
    ids=["small", "soak"],
)
def test_killed_runners_lose_no_request(
    runner: ClusterRunner, alone: Runner, n_requests: int, n_kills: int
) -> None:
    """While runners are killed, each request ends once: with its samples, or with an error that has the reason."""
    asked = [
        GenerationRequest(f"number {number}", max_tokens=8, seed=number, temperature=1.0)
        for number in range(40)
    ]
    expected = [texts_of(alone.generate(request)) for request in asked]
    answered: Counter[int] = Counter()
    futures = [runner.submit(asked[number % len(asked)]) for number in range(n_requests)]
    for number, future in enumerate(futures):
        future.add_done_callback(lambda _, number=number: answered.update([number]))
    while n_kills and not all(future.done() for future in futures):
        ready = [
            worker
            for worker in runner._workers
            if worker.state is ThreadState.READY and worker._forwarded
        ]
        if ready:
            with suppress(actors.RayActorError):  # the runner has not ended since the last kill
                kill_process(random.choice(ready)._actor)  # noqa: S311
            n_kills -= 1
        time.sleep(1.0 if n_requests > 1000 else 0.3)
    failed = [error for future in futures if (error := future.exception(120)) is not None]
    assert all(isinstance(error, GenerationError) for error in failed)
    assert len(failed) <= n_requests // 10
    for number, future in enumerate(futures):
        if future.exception() is None:
            assert texts_of(future.result()) == expected[number % len(asked)]
    assert set(answered.values()) == {1}
    assert len(answered) == n_requests


def test_chat_turn_goes_to_runner_with_earlier_turns(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A turn goes to the runner that has computed the earlier turns, also with several conversations."""
    monkeypatch.setattr(
        request_queue, "MAX_DEFER_S", 60.0
    )  # a busy machine may need longer than the default
    options = {**OPTIONS, "n_ctx": 8192}
    with ClusterRunner(TINY, n_runners=2, **options) as runner, ThreadPoolExecutor(3) as threads:
        reported = list(threads.map(lambda number: tokens_of(runner, number), range(3)))
    assert all(n_computed <= 1.1 * n_once for n_computed, n_once in reported), reported


@pytest.mark.parametrize(
    ("gpu_ids", "set_before", "expected"),
    [([0, 2], None, "0,2"), ([1], "3", "3"), ([], None, None)],
)
def test_devices_of_a_runner_are_those_that_ray_assigned(
    gpu_ids: list[int],
    set_before: str | None,
    expected: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A Vulkan build sees the assigned GPUs, unless the variable is set already."""
    monkeypatch.setenv("GGML_VK_VISIBLE_DEVICES", set_before or "")
    if set_before is None:
        monkeypatch.delenv("GGML_VK_VISIBLE_DEVICES")
    limit_devices(gpu_ids)
    assert os.environ.get("GGML_VK_VISIBLE_DEVICES") == expected
