"""Runners on the nodes of a cluster serve as one on this machine does, and what dies is made good."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor, wait
from contextlib import nullcontext, suppress
from typing import Any

import pytest

from relevance_gen import InvalidRequestError, Runner
from relevance_gen.cluster import ClusterRunner, actors
from relevance_gen.cluster.generation.worker import ClusterWorker, RunnerSpec
from relevance_gen.errors import ClusterError, GenerationError, ModelLoadError, OverloadedError
from relevance_gen.generation.queue import request_queue as backlog
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.llama.model_thread import ThreadState
from relevance_gen.types import GenerationRequest
from small_models import BIGRAM, TINY
from tests.cluster.shared import OPTIONS, kill_process, process_of, until
from tests.conversations import tokens_of


def requests(n: int) -> list[GenerationRequest]:
    """Return requests with seeds, some for several samples."""
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
    """Two runners, which tests may kill: others come in their place."""
    with ClusterRunner(TINY, n_runners=2, max_queue=10_000, **OPTIONS) as started:
        yield started


@pytest.fixture(autouse=True)
def both_live(request: pytest.FixtureRequest) -> None:
    """Begin each test with two runners."""
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
    """One runner with a short backlog."""
    with ClusterRunner(BIGRAM, n_runners=1, max_queue=3, **OPTIONS) as started:
        yield started


def test_seeds_give_the_same_bits(runner: ClusterRunner, alone: Runner) -> None:
    """Whichever runner serves a request, and beside whatever else, its samples are those of one runner alone."""
    assert len({worker.node_id for worker in runner._workers}) == 2
    n_before = runner.counters().generated_tokens
    futures = [runner.submit(request) for request in requests(12)]
    for request, future in zip(requests(12), futures, strict=True):
        assert texts_of(future.result(60)) == texts_of(alone.generate(request))
    assert runner.stats().backlog == 0
    n_tokens = sum(24 * request.num_samples for request in requests(12))
    assert runner.counters().generated_tokens - n_before == n_tokens


def test_streams_come_piece_by_piece(runner: ClusterRunner) -> None:
    """The pieces of a stream are the text of its response, and the first comes before the last token is computed."""
    with runner.stream({"text": "once", "max_tokens": 120, "seed": 5}) as stream:
        pieces = [(piece.text, runner.counters().generated_tokens) for piece in stream]
        assert stream.response is not None
        assert "".join(text for text, _ in pieces) == stream.response.responses[0].text
        assert len(pieces) > 5


def test_a_cancelled_request_frees_its_slot(runner: ClusterRunner) -> None:
    """A request that is cancelled ends over there too, waiting or running."""
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


def test_conversations_and_counts(runner: ClusterRunner, alone: Runner) -> None:
    """What needs the model's own tokens or its template is asked over there."""
    assert runner.count_tokens("how many") == alone.count_tokens("how many")
    assert runner.chat_format == alone.chat_format


def test_a_prompt_goes_where_its_beginning_was_computed(
    runner: ClusterRunner, alone: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two idle runners, one gets all requests that begin alike, and computes the beginning once; same bits."""
    monkeypatch.setattr(backlog, "MAX_DEFER_S", 60.0)  # on a busy machine it may come late
    beginning = "all that was said before " * 24
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


def test_a_full_backlog_refuses(single: ClusterRunner) -> None:
    """The one bound on what waits is that of the backlog here."""
    accepted: list[Any] = []
    with pytest.raises(OverloadedError):
        accepted.extend(single.submit({"text": "a", "max_tokens": 200}) for _ in range(200))
    wait(accepted, 60)


def test_the_only_runner_is_replaced(single: ClusterRunner) -> None:
    """Where the only runner dies, requests wait for the next one."""
    kill_process(single._workers[0]._actor)
    assert single.generate({"text": "a", "max_tokens": 5}).responses


def test_what_showed_nothing_is_done_elsewhere(runner: ClusterRunner, alone: Runner) -> None:
    """When a runner's process dies, its streams that have begun fail and say why; all else is answered, once."""
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
    assert dead not in runner._workers


def test_runners_that_die_while_they_start(single: ClusterRunner) -> None:
    """However often the next runner dies before it is ready, another one is started, and requests wait for it."""
    killed: set[Any] = set()

    def kill_next() -> bool:
        handle = single._workers[0]._actor
        if handle is not None and handle not in killed:
            killed.add(handle)
            actors.ray.kill(handle)
        return len(killed) > 3

    until(kill_next, "runners were killed")
    assert single.generate({"text": "a", "max_tokens": 5}).responses


def test_a_runner_that_is_stopped_is_replaced(single: ClusterRunner) -> None:
    """A runner whose process is stopped is given up, with those of its requests of which text was shown."""
    shown = threading.Event()
    stream = single.submit({"text": "tell", "max_tokens": 900}, on_text=lambda *_: shown.set())
    assert shown.wait(60)
    os.kill(process_of(single._workers[0]._actor), signal.SIGSTOP)
    quiet = single.submit({"text": "a", "max_tokens": 5})
    assert quiet.result(120).responses
    with pytest.raises(GenerationError, match="does not answer any more"):
        stream.result(120)


def test_processes_share_runners_of_a_name(cluster: Any) -> None:
    """Two backlogs pull for the same runners, numbers of their tickets do not mix, and other options are refused."""
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


def test_a_worker_that_is_not_needed_ends() -> None:
    """A worker whose node is gone before its runner was there ends, so that nobody waits for it for ever."""
    backlog = RequestQueue(1)
    worker = ClusterWorker(backlog, RunnerSpec(nullcontext, 0, ""), lambda _: None, lambda _: None)
    worker.start()
    assert worker.join(60)
    assert worker.state is ThreadState.CLOSED


def test_closing_without_draining(cluster: Any) -> None:
    """A closed runner answers everybody who waits, and leaves no actor."""
    runner = ClusterRunner(TINY, n_runners=1, **OPTIONS)
    futures = [runner.submit({"text": "a", "max_tokens": 250, "num_samples": 4}) for _ in range(3)]
    runner.close(drain=False)
    assert all(future.exception(10) is not None for future in futures)
    assert runner._workers[0].state is ThreadState.CLOSED
    assert runner.stats().num_total_runners == 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"model": 3}, "model must be"),
        ({"n_runners": 0}, "n_runners must be"),
        ({"name": ""}, "name must be"),
        ({"max_queue": 0}, "max_queue must be"),
        ({"n_slots": 0}, "n_slots must be"),
        ({"address": ""}, "address must be"),
    ],
)
def test_bad_input_is_named(options: Any, said: str) -> None:
    """What is not allowed is named as the caller knows it."""
    with pytest.raises(InvalidRequestError, match=said):
        ClusterRunner(**({"model": BIGRAM} | options))


def test_a_model_that_is_not_there(cluster: Any) -> None:
    """A model that no node can load is told as on one machine."""
    with pytest.raises(ModelLoadError, match="nowhere"):
        ClusterRunner("/nowhere/model.gguf", n_runners=1)


@pytest.mark.parametrize(
    ("n_requests", "n_kills"),
    [(60, 2), pytest.param(10_000, 10**6, marks=pytest.mark.soak)],
    ids=["small", "soak"],
)
def test_nothing_is_lost_or_answered_twice(
    runner: ClusterRunner, alone: Runner, n_requests: int, n_kills: int
) -> None:
    """While runners are killed, every request is answered once: with its own samples, or an error with the reason."""
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
            one for one in runner._workers if one.state is ThreadState.READY and one._forwarded
        ]
        if ready:
            with suppress(actors.RayActorError):  # it is dying from the last time
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


def test_a_turn_of_a_conversation_computes_only_what_is_new(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It goes to the runner that has computed the turns before it, also where several conversations are held."""
    monkeypatch.setattr(backlog, "MAX_DEFER_S", 60.0)  # on a busy machine it may come late
    options = {**OPTIONS, "n_ctx": 8192}
    with ClusterRunner(TINY, n_runners=2, **options) as runner, ThreadPoolExecutor(3) as threads:
        told = list(threads.map(lambda number: tokens_of(runner, number), range(3)))
    assert all(n_computed <= 1.1 * n_once for n_computed, n_once in told), told
