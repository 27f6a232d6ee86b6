"""A runner as its callers see it: futures, streams, limits, cancelling, closing, dying."""

import asyncio
import contextlib
import copy
import gc
import inspect
import multiprocessing
import os
import pickle
import struct
import subprocess
import sys
import threading
import time
import weakref
from concurrent.futures import CancelledError, as_completed, wait

import attrs
import pytest

from relevance_gen.errors import (
    GenerationError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RequestCancelledError,
    RunnerClosedError,
)
from relevance_gen.generation import runner as runner_module
from relevance_gen.generation.queue.request import ANONYMOUS, RequestContext
from relevance_gen.generation.runner import Runner
from relevance_gen.llama.options import ModelOptions
from relevance_gen.types import GenerationRequest, Stats
from small_models import BIGRAM, TINY

ENDLESS = GenerationRequest("a", max_tokens=10**9)
"""Runs until the context is full."""


def small_runner(**options):
    return Runner(TINY, **({"n_slots": 2, "n_ctx": 2048, "n_threads": 1} | options))


def engine_of(runner):
    """Return the engine of a runner's only worker."""
    (worker,) = runner._workers
    return worker._engine


def until(condition, timeout_s=60):
    """Wait until `condition` holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "it never came to be"
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("n_threads", "n_requests"), [(1, 12), (4, 4)], ids=["one thread", "four threads"]
)
def test_concurrent_greedy_text_is_what_each_gets_alone(n_threads, n_requests):
    """Different requests at once get, bit for bit, what each gets alone, cached prefixes and all."""
    prompts = [
        ("The same beginning of every prompt. " * 5)[: 20 + 13 * n] + str(n)
        for n in range(n_requests)
    ]
    requests = [
        GenerationRequest(
            prompt, max_tokens=2 * n_requests, temperature=0, return_tokens=True, logprobs=True
        )
        for prompt in prompts
    ]
    with small_runner(n_slots=5, n_ctx=512, n_threads=n_threads, prefix_cache_bytes=0) as runner:
        alone = [runner.generate(request).responses[0] for request in requests]
    with small_runner(n_slots=5, n_ctx=512, n_threads=n_threads) as runner:
        together = [
            future.result().responses[0]
            for future in [runner.submit(request) for request in requests]
        ]
    assert [(c.tokens, c.logprobs) for c in together] == [(c.tokens, c.logprobs) for c in alone]


def test_a_device_that_is_not_there_is_refused():
    """The error says which GPUs there are, also where others of the list are; on a CPU the numbers mean nothing."""
    with pytest.raises(
        InvalidRequestError,
        match=r"devices must be of GPUs that .* sees \(.*\), got 99; leave it out",
    ):
        small_runner(devices=[99])
    with small_runner(devices=[99], n_gpu_layers=0) as runner:
        assert runner.alive


def test_a_worker_for_each_device_gives_what_one_gives():
    """Two workers, each with the model, share requests; each gets, bit for bit, what it gets alone."""
    requests = [
        GenerationRequest("ABC" * n, max_tokens=100, seed=n, return_tokens=True)
        for n in range(1, 13)
    ]
    with small_runner() as runner:
        alone = [runner.generate(request).responses[0].tokens for request in requests]
    with small_runner(devices=[0, 1], n_gpu_layers=0) as runner:
        assert runner.stats().num_total_runners == 2
        futures = [runner.submit(request) for request in requests]
        assert [future.result().responses[0].tokens for future in futures] == alone
        assert all(worker.counters.generated_tokens for worker in runner._workers)


def test_a_stream_is_the_response_in_pieces(tiny):
    """The pieces of every sample, put together, are its text; whole characters come, whatever the tokens."""
    stream = tiny.stream(
        GenerationRequest("The", max_tokens=60, num_samples=5, stop=["e"], temperature=2)
    )
    texts = [""] * 5
    for piece in stream:
        assert piece.text
        texts[piece.sample] += piece.text
    assert texts == [completion.text for completion in stream.response.responses]
    assert list(stream) == []


def test_the_response_carries_times_and_counts(tiny):
    """Times are in order: created ≤ every sample's finished ≤ finished, which is the last one's."""
    before = time.time()
    response = tiny.generate(GenerationRequest("ABC", max_tokens=5, num_samples=3))
    assert before <= response.created <= min(c.finished for c in response.responses)
    assert response.finished == max(c.finished for c in response.responses) <= time.time()
    assert (response.num_samples, response.prompt, response.prompt_tokens) == (3, "ABC", 3)


def test_strangers_give_way_to_a_client_with_a_name():
    """Behind 256 samples of strangers it has its tokens while they run on, and they say what they say alone."""
    asked = {"text": "Once", "max_tokens": 200, "num_samples": 8, "temperature": 0}
    with small_runner(n_slots=2) as runner:
        alone = runner.generate({**asked, "num_samples": 1}).responses[0].text
        strangers = [
            runner.submit(asked, context=RequestContext(client=ANONYMOUS)) for _ in range(32)
        ]
        until(lambda: len(engine_of(runner)._running) == 2)
        assert runner.submit(
            {"text": "a", "max_tokens": 2}, context=RequestContext(client="me")
        ).result(60)
        assert not any(stranger.done() for stranger in strangers)
        for stranger in strangers[2:]:
            stranger.cancel()
        for stranger in strangers[:2]:
            assert {one.text for one in stranger.result(60).responses} == {alone}


def test_counters_count(tiny):
    """A request adds its tokens, once, and the time to its first."""
    before = tiny.counters()
    tiny.generate(GenerationRequest("ABCD", max_tokens=7, num_samples=2))
    after = tiny.counters()
    assert after.requests_finished - before.requests_finished == 1
    assert after.prompt_tokens - before.prompt_tokens == 4
    assert after.generated_tokens - before.generated_tokens == 14
    assert after.first_tokens - before.first_tokens == 1
    assert after.first_token_s > before.first_token_s


def test_a_full_queue_refuses_and_recovers():
    """While max_queue samples wait, `submit` raises `OverloadedError`; when they are gone, it accepts again."""
    with small_runner(n_slots=1, max_queue=3) as runner:
        running = runner.submit(ENDLESS)
        until(lambda: runner.stats().backlog == 0)
        waiting = [runner.submit(ENDLESS) for _ in range(3)]
        assert runner.stats() == Stats(backlog=3, num_total_runners=1)
        with pytest.raises(OverloadedError):
            runner.submit(ENDLESS)
        for future in (running, *waiting):
            future.cancel()
        until(lambda: runner.stats().backlog == 0)
        assert runner.generate(GenerationRequest("a", max_tokens=1)).num_samples == 1


def test_cancelling_a_running_request_frees_its_slots():
    """A cancelled future's waiter sees CancelledError, and the next request gets the slots."""
    with small_runner(n_slots=2) as runner:
        future = runner.submit(GenerationRequest("a", max_tokens=10**9, num_samples=2))
        until(lambda: runner.counters().generated_tokens > 4)
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result()
        runner.generate(GenerationRequest("b", max_tokens=2, num_samples=2))
        assert runner.counters().requests_cancelled == 1


def test_waiting_for_several_futures_ends_when_they_are_cancelled(tiny):
    """`concurrent.futures.wait` and `as_completed` see that a request was cancelled, before it and after."""
    early, late = (tiny.submit(GenerationRequest("a", max_tokens=400)) for _ in range(2))
    early.cancel()
    threading.Timer(0.01, late.cancel).start()
    assert wait([early, late], timeout=60).not_done == set()
    assert set(as_completed([early, late], timeout=60)) == {early, late}


def test_cancelling_a_waiting_request_takes_it_off_the_backlog():
    """What waits and is cancelled is gone at once, and never runs."""
    with small_runner(n_slots=1) as runner:
        running, waiting = runner.submit(ENDLESS), runner.submit(ENDLESS)
        waiting.cancel()
        until(lambda: runner.stats().backlog == 0)
        running.cancel()
        runner.generate(GenerationRequest("a", max_tokens=1))
        assert runner.counters().requests_cancelled == 2


def test_cancelling_in_the_runners_thread_while_it_takes_requests(monkeypatch):
    """A dropped stream may be collected, and so cancelled, wherever the runner's thread is: it goes on."""
    with small_runner(n_slots=3) as runner:
        engine, futures = engine_of(runner), []
        add = engine.add

        def add_and_cancel(ticket):
            add(ticket)
            for future in futures[1:]:
                future.cancel()

        monkeypatch.setattr(engine, "add", add_and_cancel)
        with runner._queue._changed:  # all are there when the first is taken
            futures += [runner.submit(GenerationRequest("a", max_tokens=2)) for _ in range(3)]
        assert futures[0].result(timeout=60).num_samples == 1
        assert runner.alive


def test_cancelling_interrupts_the_prompt_being_computed():
    """A long prompt in one large slice does not have to be finished before its cancelling takes effect."""
    with small_runner(n_batch=2000, prefix_cache_bytes=0) as runner:
        for _ in range(20):
            future = runner.submit(GenerationRequest("ab " * 600, max_tokens=1))
            time.sleep(0.003)
            future.cancel()
        assert (
            runner.generate(GenerationRequest("b", max_tokens=2)).responses[0].generated_tokens == 2
        )


def test_a_cancelled_stream_says_so(tiny):
    """Iterating a stream after `cancel` raises `RequestCancelledError` once the pieces are read."""
    stream = tiny.stream(GenerationRequest("a", max_tokens=400))
    next(stream)
    stream.cancel()
    with pytest.raises(RequestCancelledError):
        list(stream)


def test_a_dropped_stream_is_cancelled():
    """Leaving a loop over a stream frees its slots."""
    with small_runner(n_slots=1) as runner:
        for _ in runner.stream(ENDLESS):
            break
        gc.collect()
        until(lambda: runner.counters().requests_cancelled == 1)


class Text(str):
    """A string that can be watched."""


@pytest.mark.parametrize("fate", ["answered", "refused", "cancelled", "failed"])
def test_what_is_over_is_not_kept(tiny, fate):
    """Once its caller lets go of it, nothing of a request is left, without the help of the garbage collector."""
    text = Text("a" * (1000 if fate == "refused" else 3))
    reference = weakref.ref(text)
    request = GenerationRequest(text, max_tokens=400 if fate == "cancelled" else 2)

    def explode(sample, text):
        raise ZeroDivisionError

    gc.collect()
    gc.disable()
    try:
        future = tiny.submit(request, on_text=explode if fate == "failed" else None)
        if fate == "cancelled":
            future.cancel()
        wait([future])
        with contextlib.suppress(InvalidRequestError, RequestCancelledError):
            if fate in ("answered", "refused"):
                tiny.generate(request)
        del text, request, future
        tiny.generate(
            GenerationRequest("a", max_tokens=1)
        )  # the runner's thread has gone on to something else
        until(lambda: reference() is None, 2)
    finally:
        gc.enable()


ANY_KIND = [
    ZeroDivisionError,
    CancelledError,
    asyncio.CancelledError,
    KeyboardInterrupt,
    SystemExit,
    GeneratorExit,
]
"""What a callback may raise: errors, and what the interpreter uses to end threads, tasks and processes."""


@pytest.mark.parametrize("kind", ANY_KIND, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_whatever_on_text_raises_fails_its_request_alone(tiny, kind):
    """The future has that very exception, the slots are free, a request beside it gets its response, counters agree."""

    def explode(sample, text):
        raise error

    error, before = kind(), tiny.counters()
    beside = tiny.submit(GenerationRequest("a", max_tokens=50))
    failed = tiny.submit(GenerationRequest("a", max_tokens=400, num_samples=8), on_text=explode)
    assert failed.exception(timeout=60) is error
    assert beside.result(timeout=60).num_samples == 1
    assert tiny.generate(GenerationRequest("a", max_tokens=2, num_samples=8)).num_samples == 8
    assert tiny.counters().requests_failed - before.requests_failed == 1
    assert tiny.counters().requests_cancelled == before.requests_cancelled
    assert tiny.alive


@pytest.mark.parametrize("kind", ANY_KIND, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
@pytest.mark.parametrize("max_tokens", [50, 10**9], ids=["answered", "closed"])
def test_whatever_a_futures_callback_raises_stays_with_its_request(kind, max_tokens):
    """The future keeps its outcome, and the runner serves those beside it and after it, and closes."""

    def explode(future):
        called.set()
        raise kind

    called = threading.Event()
    with small_runner() as runner:
        future, beside = (
            runner.submit(GenerationRequest("a", max_tokens=max_tokens)) for _ in range(2)
        )
        future.add_done_callback(explode)
        if max_tokens == 50:
            assert (
                future.result(timeout=60).num_samples == beside.result(timeout=60).num_samples == 1
            )
            assert called.wait(60)
            assert runner.generate(GenerationRequest("a", max_tokens=1)).num_samples == 1
            assert runner.alive
        else:
            runner.close(drain=False)
            assert called.is_set()
            assert {type(each.exception(timeout=0)) for each in (future, beside)} == {
                RunnerClosedError
            }


@pytest.mark.parametrize("kind", ANY_KIND, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_whatever_a_loop_over_a_stream_raises_ends_its_request_alone(tiny, kind):
    """The caller sees that very exception, the request is cancelled, and the one beside it gets its response."""
    error, before = kind(), tiny.counters()
    beside = tiny.stream(GenerationRequest("a", max_tokens=50))

    def read():
        with tiny.stream(GenerationRequest("a", max_tokens=400, num_samples=8)) as stream:
            next(stream)
            raise error

    with pytest.raises(kind) as caught:
        read()
    assert caught.value is error
    assert "".join(piece.text for piece in beside) == beside.response.responses[0].text
    assert tiny.counters().requests_cancelled - before.requests_cancelled == 1
    assert tiny.alive


def test_a_callback_may_cancel_its_own_request(tiny):
    """Cancelling from within on_text, in the runner's own thread, ends the request without a deadlock."""
    ready, futures = threading.Event(), []

    def enough(sample, text):
        ready.wait()
        futures[0].cancel()

    futures.append(tiny.submit(GenerationRequest("a", max_tokens=500), on_text=enough))
    ready.set()
    with pytest.raises(CancelledError):
        futures[0].result(timeout=60)


def test_closing_with_drain_finishes_everything():
    """Requests accepted before `close` all get their responses; later ones are refused."""
    runner = small_runner()
    futures = [
        runner.submit(GenerationRequest("a", max_tokens=5, num_samples=3)) for _ in range(10)
    ]
    runner.close()
    assert all(future.result().num_samples == 3 for future in futures)
    with pytest.raises(RunnerClosedError):
        runner.submit(ENDLESS)
    assert (runner.alive, runner.error, runner.stats()) == (False, None, Stats(0, 0))
    runner.close()


def test_closing_frees_the_prefix_cache():
    """A closed runner that somebody still holds keeps no computed prompts."""
    runner = small_runner(n_batch=16)
    runner.generate(GenerationRequest("a" * 100, max_tokens=1))
    cache = engine_of(runner)._cache
    assert cache.size_bytes > 0
    runner.close()
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_closing_without_drain_answers_every_waiter():
    """Running and waiting requests see `RunnerClosedError` at once."""
    runner = small_runner()
    futures = [runner.submit(ENDLESS) for _ in range(6)]
    runner.close(drain=False)
    assert wait(futures, timeout=0).not_done == set()
    assert {type(future.exception()) for future in futures} == {RunnerClosedError}


def test_closing_with_a_timeout_gives_up_what_takes_longer():
    """`close(timeout_s)` drains for so long, then aborts."""
    runner = small_runner(n_ctx=2048)
    futures = [runner.submit(ENDLESS) for _ in range(40)]
    runner.close(timeout_s=0.05)
    assert isinstance(futures[-1].exception(timeout=0), RunnerClosedError)


def test_closing_leaves_behind_a_thread_that_never_returns(monkeypatch):
    """`close(timeout_s)` comes back, also where a callback hangs."""
    monkeypatch.setattr(runner_module, "GRACE_S", 0.1)
    runner, stuck, go_on = small_runner(), threading.Event(), threading.Event()

    def hang(sample, text):
        stuck.set()
        go_on.wait()

    runner.submit(ENDLESS, on_text=hang)
    stuck.wait()
    runner.close(drain=False, timeout_s=0.05)
    assert not runner.alive
    go_on.set()
    runner.close(drain=False)


def test_waiting_inside_a_callback_is_refused(tiny):
    """`generate` in the runner's own thread could never end: the request whose callback it is fails with the reason."""
    future = tiny.submit(
        GenerationRequest("a"), on_text=lambda *_: tiny.generate(GenerationRequest("b"))
    )
    with pytest.raises(InvalidRequestError, match="call submit"):
        future.result(timeout=60)
    assert tiny.generate(GenerationRequest("a", max_tokens=1)).num_samples == 1


def test_an_interrupted_constructor_leaves_no_thread():
    """Ctrl-C while the model loads ends the thread that loads it."""

    class Interrupted(Runner):
        def wait_ready(self, *_):
            raise KeyboardInterrupt

    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        Interrupted(TINY)
    assert threading.enumerate() == before


def test_a_mapping_is_a_request(tiny):
    """`submit`, `generate` and `stream` take the documented fields as a mapping, or a text alone, and check them."""
    fields = {"text": "a", "max_tokens": 3, "temperature": 0}
    response = tiny.generate(fields)
    assert (
        response.responses[0].text == tiny.generate(GenerationRequest(**fields)).responses[0].text
    )
    assert "".join(piece.text for piece in tiny.stream(fields)) == response.responses[0].text
    assert tiny.generate("a").prompt == "a"
    for wrong in ({"txt": "a"}, ["a"], None):
        with pytest.raises(InvalidRequestError):
            tiny.submit(wrong)


def test_fields_may_stand_beside_a_request(tiny):
    """Every way to generate takes them; they go before the request's own."""
    asked = GenerationRequest("Once", max_tokens=3, temperature=0)
    expected = tiny.generate(asked).responses[0].text
    assert tiny.generate("Once", max_tokens=3, temperature=0).responses[0].text == expected
    assert tiny.generate(text="Once", max_tokens=3, temperature=0).responses[0].text == expected
    assert tiny.submit(asked, max_tokens=1).result().responses[0].generated_tokens == 1
    assert "".join(
        piece.text
        for piece in tiny.stream({"text": "Once", "max_tokens": 9}, max_tokens=3, temperature=0)
    )
    with pytest.raises(
        InvalidRequestError, match="max_token is not a known field; did you mean max_tokens"
    ):
        tiny.generate("Once", max_token=3)


def test_leaving_the_context_by_an_exception_does_not_wait():
    """An exception in a with block aborts what runs."""
    with pytest.raises(KeyError), small_runner() as runner:  # noqa: PT012 - the block is what is tested
        future = runner.submit(ENDLESS)
        raise KeyError
    assert isinstance(future.exception(timeout=0), RunnerClosedError)


def test_a_model_that_does_not_load_is_reported_everywhere(tmp_path):
    """With wait the constructor raises; without, wait_ready does, submit refuses, and the runner counts for nothing."""
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(TINY.read_bytes()[:50_000])
    with pytest.raises(ModelLoadError):
        Runner(broken)
    runner = Runner(broken, wait=False)
    with pytest.raises(ModelLoadError):
        runner.wait_ready()
    with pytest.raises(RunnerClosedError, match="cannot be loaded"):
        runner.submit(ENDLESS)
    assert isinstance(runner.error, ModelLoadError)
    assert runner.stats() == Stats(0, 0)
    runner.close()


def test_what_is_no_name_of_a_model_is_refused():
    """A model is named by a path or a string; anything else is refused before a worker starts."""
    with pytest.raises(
        InvalidRequestError, match=r"^model must be the path of a GGUF file .*, got 3$"
    ):
        Runner(3)


def test_requests_may_come_while_the_model_loads():
    """A loading runner counts for nothing, accepts requests, and serves them when it is ready."""
    runner = Runner(BIGRAM, n_threads=1, wait=False)
    future = runner.submit(GenerationRequest("a", max_tokens=3))
    assert future.result(timeout=60).responses[0].generated_tokens == 3
    runner.wait_ready(timeout_s=0)
    assert runner.stats().num_total_runners == 1
    runner.close()


def test_an_exception_in_the_thread_reaches_every_waiter_and_kills_the_runner():
    """Whatever breaks inside, running and waiting requests get a GenerationError, and the runner says it is dead."""
    runner = small_runner(n_slots=1)
    futures = [runner.submit(ENDLESS) for _ in range(3)]
    until(lambda: runner.counters().generated_tokens > 3)
    engine_of(runner)._model.piece = None
    for future in futures:
        assert isinstance(future.exception(timeout=60), GenerationError)
    until(lambda: runner.error is not None)
    assert (runner.alive, runner.stats()) == (False, Stats(0, 0))
    with pytest.raises(RunnerClosedError, match="the runner's thread failed"):
        runner.submit(ENDLESS)
    runner.close()


def test_a_failing_llama_decode_is_a_generation_error():
    """A batch that llama.cpp refuses kills the runner with its reason, not the process."""
    runner = small_runner(n_slots=1)
    future = runner.submit(ENDLESS)
    until(lambda: runner.counters().generated_tokens > 3)
    batch = engine_of(runner)._model._batch
    what_llama_sees, batch.sequence = batch.sequence, batch.sequence.copy()
    what_llama_sees.fill(99)  # a sequence that does not exist
    assert "llama_decode failed" in str(future.exception(timeout=60))
    runner.close()


def test_a_failed_assertion_in_llama_cpp_costs_a_thread_not_the_process(tmp_path):
    """A file that makes llama.cpp abort is a ModelLoadError; other runners and the end of the process are fine."""
    twice = tmp_path / "the same token twice.gguf"
    twice.write_bytes(
        TINY.read_bytes().replace(struct.pack("<Q", 2) + b"th", struct.pack("<Q", 2) + b"an", 1)
    )
    code = f"""
from relevance_gen import ModelLoadError, GenerationRequest, Runner
good = Runner({str(TINY)!r}, n_threads=1)
bad = Runner({str(twice)!r}, wait=False)
try:
    bad.wait_ready(20)
except ModelLoadError as error:
    print(error)
bad.close()
print(bad.alive, good.generate(GenerationRequest("a", max_tokens=3)).responses[0].generated_tokens)
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 0, ended.stderr
    assert "GGML_ASSERT" in ended.stdout
    assert ended.stdout.endswith("False 3\n")


def test_stop_strings_without_bound_are_refused(tiny):
    """More than 65,536 characters of stop strings are an error that names the field."""
    with pytest.raises(InvalidRequestError) as caught:
        tiny.submit(GenerationRequest("a", stop=["x" * 10_000] * 7))
    assert caught.value.field == "stop"


def test_end_tokens_without_bound_are_refused(tiny):
    """4,096 end tokens are accepted; more are an error that names the field."""
    assert (
        tiny.generate(
            GenerationRequest("a", max_tokens=1, eos_token_ids=tuple(range(4096)))
        ).num_samples
        == 1
    )
    with pytest.raises(
        InvalidRequestError, match="at most 4,096 tokens, got a list of 4,097 items"
    ) as caught:
        tiny.submit(GenerationRequest("a", eos_token_ids=tuple(range(4097))))
    assert caught.value.field == "eos_token_ids"


@pytest.mark.parametrize(
    "options",
    [
        *(
            {"n_slots": 0},
            {"n_slots": 256},
            {"n_slots": 2.5},
            {"n_ctx": 0},
            {"n_ctx": "512"},
            {"n_batch": -1},
        ),
        *({"n_threads": 0}, {"n_threads": 513}, {"n_gpu_layers": -2}, {"main_gpu": True}),
        *({"max_queue": 0}, {"max_queue": -1}, {"prefix_cache_bytes": None}),
        *({"devices": value} for value in ([], [0, 0], [-1], [True], 2, "01")),
        {"main_gpu": 0, "devices": [0, 1]},
    ],
)
def test_options_out_of_range_are_refused(options):
    """A wrong option is an InvalidRequestError, a ValueError, that names it, before anything is loaded."""
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        Runner(TINY, **options)


def test_an_unknown_option_is_refused_with_the_nearest():
    """A misspelt option is a TypeError, as any unexpected argument, that names it and the one that is meant."""
    with pytest.raises(TypeError, match=r"n_slot is no option of a model; did you mean n_slots\?"):
        Runner(TINY, n_slot=2)


def test_every_option_is_shown_where_users_look():
    """The signature and the docstring of `Runner` have every option with its default and its meaning."""
    parameters = inspect.signature(Runner).parameters
    for option in attrs.fields(ModelOptions):
        assert parameters[option.name].default == option.default
        assert f"    {option.name}: {option.metadata['help']}.\n" in Runner.__doc__


def test_a_runner_that_nobody_holds_finishes_what_it_has_and_ends():
    """Dropped with requests under way, it serves them; then its threads end, without the garbage collector."""
    before = set(threading.enumerate())
    gc.collect()
    gc.disable()
    try:
        future = small_runner().submit(GenerationRequest("a", max_tokens=50))
        assert future.result(timeout=60).num_samples == 1
        until(lambda: set(threading.enumerate()) <= before)
    finally:
        gc.enable()


def test_a_runner_that_is_pickled_or_copied_says_why_not(tiny):
    """The error says what to do in place of it, and the runner goes on."""
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(
            TypeError, match=r"a Runner cannot be pickled or copied: .* make one in the process"
        ):
            attempt(tiny)
    assert tiny.alive


def use_after_fork(runner, answer):
    try:
        runner.submit(ENDLESS)
    except RunnerClosedError as error:
        answer.send((str(error), runner.stats(), runner.alive))
    runner.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_process_is_told_that_the_runner_is_not_its_own(tiny):
    """After a fork, the child's use of the parent's runner is refused with the remedy, and nothing hangs."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=use_after_fork, args=(tiny, sender))
    child.start()
    assert receiver.poll(20)
    message, stats, alive = receiver.recv()
    child.join(60)
    assert "forked" in message
    assert "spawn" in message
    assert (stats, alive, child.exitcode) == (Stats(0, 0), False, 0)
    assert tiny.generate(GenerationRequest("a", max_tokens=1)).num_samples == 1
