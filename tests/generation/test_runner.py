"""Runner: futures, streams, limits, cancellation, closing and failures."""

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
"""A request that runs until the context is full."""


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
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.001)


@pytest.mark.parametrize(
    ("n_threads", "n_requests"), [(1, 12), (4, 4)], ids=["one thread", "four threads"]
)
def test_submit_concurrent_requests_equal_single_requests(n_threads, n_requests):
    """Concurrent requests get the same bits as single requests, also with cached prefixes."""
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


def test_init_missing_device_raises():
    """The error lists the existing GPUs; without GPU layers the device numbers are ignored."""
    with pytest.raises(
        InvalidRequestError,
        match=r"devices must be the number of a GPU of .* \(.*\), got 99; omit it",
    ):
        small_runner(devices=[99])
    with small_runner(devices=[99], n_gpu_layers=0) as runner:
        assert runner.alive


def test_init_two_devices_gives_the_results_of_one():
    """Two workers share the requests, and each request gets the same bits as with one worker."""
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


def test_stream_pieces_concatenate_to_response(tiny):
    """The concatenated pieces of each sample equal its text; no piece is empty."""
    stream = tiny.stream(
        GenerationRequest("The", max_tokens=60, num_samples=5, stop=["e"], temperature=2)
    )
    texts = [""] * 5
    for piece in stream:
        assert piece.text
        texts[piece.sample] += piece.text
    assert texts == [completion.text for completion in stream.response.responses]
    assert list(stream) == []


def test_generate_response_has_times_and_counts(tiny):
    """Times are ordered: created ≤ finished of each sample ≤ finished of the response, which is the last sample's."""
    before = time.time()
    response = tiny.generate(GenerationRequest("ABC", max_tokens=5, num_samples=3))
    assert before <= response.created <= min(c.finished for c in response.responses)
    assert response.finished == max(c.finished for c in response.responses) <= time.time()
    assert (response.num_samples, response.prompt, response.prompt_tokens) == (3, "ABC", 3)


def test_submit_authenticated_request_preempts_anonymous_slot():
    """With 256 anonymous samples ahead an authenticated request finishes first, and preempted samples keep their text."""
    asked = {"text": "Once", "max_tokens": 200, "num_samples": 8, "temperature": 0}
    with small_runner(n_slots=2) as runner:
        alone = runner.generate({**asked, "num_samples": 1}).responses[0].text
        anonymous = [
            runner.submit(asked, context=RequestContext(client=ANONYMOUS)) for _ in range(32)
        ]
        until(lambda: len(engine_of(runner)._running) == 2)
        assert runner.submit(
            {"text": "a", "max_tokens": 2}, context=RequestContext(client="me")
        ).result(60)
        assert not any(future.done() for future in anonymous)
        for future in anonymous[2:]:
            future.cancel()
        for future in anonymous[:2]:
            assert {sample.text for sample in future.result(60).responses} == {alone}


def test_counters_after_request_increase(tiny):
    """A request adds its tokens and the time to its first token."""
    before = tiny.counters()
    tiny.generate(GenerationRequest("ABCD", max_tokens=7, num_samples=2))
    after = tiny.counters()
    assert after.requests_finished - before.requests_finished == 1
    assert after.prompt_tokens - before.prompt_tokens == 4
    assert after.generated_tokens - before.generated_tokens == 14
    assert after.first_tokens - before.first_tokens == 1
    assert after.first_token_s > before.first_token_s


def test_submit_full_queue_raises_until_requests_leave():
    """While max_queue samples wait, `submit` raises `OverloadedError`; afterwards it accepts requests again."""
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


def test_cancel_running_request_frees_slots():
    """Waiting for a cancelled future raises CancelledError, and the next request gets the slots."""
    with small_runner(n_slots=2) as runner:
        future = runner.submit(GenerationRequest("a", max_tokens=10**9, num_samples=2))
        until(lambda: runner.counters().generated_tokens > 4)
        assert future.cancel()
        with pytest.raises(CancelledError):
            future.result()
        runner.generate(GenerationRequest("b", max_tokens=2, num_samples=2))
        assert runner.counters().requests_cancelled == 1


def test_cancel_futures_ends_wait_and_as_completed(tiny):
    """`concurrent.futures.wait` and `as_completed` return futures that were cancelled before or after the call."""
    early, late = (tiny.submit(GenerationRequest("a", max_tokens=400)) for _ in range(2))
    early.cancel()
    threading.Timer(0.01, late.cancel).start()
    assert wait([early, late], timeout=60).not_done == set()
    assert set(as_completed([early, late], timeout=60)) == {early, late}


def test_cancel_waiting_request_removes_it_from_queue():
    """A cancelled waiting request leaves the queue at once and never runs."""
    with small_runner(n_slots=1) as runner:
        running, waiting = runner.submit(ENDLESS), runner.submit(ENDLESS)
        waiting.cancel()
        until(lambda: runner.stats().backlog == 0)
        running.cancel()
        runner.generate(GenerationRequest("a", max_tokens=1))
        assert runner.counters().requests_cancelled == 2


def test_cancel_in_worker_thread_while_it_takes_requests(monkeypatch):
    """A stream that is garbage-collected in the worker's thread cancels its request without harm to the worker."""
    with small_runner(n_slots=3) as runner:
        engine, futures = engine_of(runner), []
        add = engine.add

        def add_and_cancel(queued):
            add(queued)
            for future in futures[1:]:
                future.cancel()

        monkeypatch.setattr(engine, "add", add_and_cancel)
        with runner._queue._condition:  # all are queued when the first is taken
            futures += [runner.submit(GenerationRequest("a", max_tokens=2)) for _ in range(3)]
        assert futures[0].result(timeout=60).num_samples == 1
        assert runner.alive


def test_cancel_during_prefill_interrupts_it():
    """Canceling a request with a long prompt in one chunk takes effect before the prompt is computed."""
    with small_runner(n_batch=2000, prefix_cache_bytes=0) as runner:
        for _ in range(20):
            future = runner.submit(GenerationRequest("ab " * 600, max_tokens=1))
            time.sleep(0.003)
            future.cancel()
        assert (
            runner.generate(GenerationRequest("b", max_tokens=2)).responses[0].generated_tokens == 2
        )


def test_stream_after_cancel_raises(tiny):
    """Iterating a stream after `cancel` raises `RequestCancelledError` once the pieces are read."""
    stream = tiny.stream(GenerationRequest("a", max_tokens=400))
    next(stream)
    stream.cancel()
    with pytest.raises(RequestCancelledError):
        list(stream)


def test_stream_dropped_is_cancelled():
    """Leaving a loop over a stream frees its slots."""
    with small_runner(n_slots=1) as runner:
        for _ in runner.stream(ENDLESS):
            break
        gc.collect()
        until(lambda: runner.counters().requests_cancelled == 1)


class Text(str):
    """A string that supports weak references."""


@pytest.mark.parametrize("fate", ["answered", "refused", "cancelled", "failed"])
def test_finished_request_is_freed_without_garbage_collection(tiny, fate):
    """After its caller releases it, a request is freed without the help of the garbage collector."""
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
        tiny.generate(GenerationRequest("a", max_tokens=1))  # the worker's thread has a new request
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
"""Exceptions of a callback: errors, and exceptions that end threads, tasks and processes."""


@pytest.mark.parametrize("kind", ANY_KIND, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_on_text_raising_fails_only_its_request(tiny, kind):
    """The future has the same exception, the slots are free, and a concurrent request gets its response."""

    def explode(sample, text):
        raise error

    error, before = kind(), tiny.counters()
    concurrent = tiny.submit(GenerationRequest("a", max_tokens=50))
    failed = tiny.submit(GenerationRequest("a", max_tokens=400, num_samples=8), on_text=explode)
    assert failed.exception(timeout=60) is error
    assert concurrent.result(timeout=60).num_samples == 1
    assert tiny.generate(GenerationRequest("a", max_tokens=2, num_samples=8)).num_samples == 8
    assert tiny.counters().requests_failed - before.requests_failed == 1
    assert tiny.counters().requests_cancelled == before.requests_cancelled
    assert tiny.alive


@pytest.mark.parametrize("kind", ANY_KIND, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
@pytest.mark.parametrize("max_tokens", [50, 10**9], ids=["answered", "closed"])
def test_done_callback_raising_harms_no_other_request(kind, max_tokens):
    """The future keeps its result, and the runner serves concurrent and later requests, and closes."""

    def explode(future):
        called.set()
        raise kind

    called = threading.Event()
    with small_runner() as runner:
        future, concurrent = (
            runner.submit(GenerationRequest("a", max_tokens=max_tokens)) for _ in range(2)
        )
        future.add_done_callback(explode)
        if max_tokens == 50:
            assert (
                future.result(timeout=60).num_samples
                == concurrent.result(timeout=60).num_samples
                == 1
            )
            assert called.wait(60)
            assert runner.generate(GenerationRequest("a", max_tokens=1)).num_samples == 1
            assert runner.alive
        else:
            runner.close(drain=False)
            assert called.is_set()
            assert {type(request.exception(timeout=0)) for request in (future, concurrent)} == {
                RunnerClosedError
            }


@pytest.mark.parametrize("kind", ANY_KIND, ids=lambda kind: f"{kind.__module__}.{kind.__name__}")
def test_stream_loop_raising_cancels_only_its_request(tiny, kind):
    """The caller gets the same exception, the request is cancelled, and a concurrent request gets its response."""
    error, before = kind(), tiny.counters()
    concurrent = tiny.stream(GenerationRequest("a", max_tokens=50))

    def read():
        with tiny.stream(GenerationRequest("a", max_tokens=400, num_samples=8)) as stream:
            next(stream)
            raise error

    with pytest.raises(kind) as caught:
        read()
    assert caught.value is error
    assert "".join(piece.text for piece in concurrent) == concurrent.response.responses[0].text
    assert tiny.counters().requests_cancelled - before.requests_cancelled == 1
    assert tiny.alive


def test_on_text_cancels_its_own_request(tiny):
    """Canceling inside on_text, in the worker's thread, ends the request without a deadlock."""
    ready, futures = threading.Event(), []

    def enough(sample, text):
        ready.wait()
        futures[0].cancel()

    futures.append(tiny.submit(GenerationRequest("a", max_tokens=500), on_text=enough))
    ready.set()
    with pytest.raises(CancelledError):
        futures[0].result(timeout=60)


def test_close_with_drain_finishes_all_requests():
    """Requests accepted before `close` get their responses; later requests are refused."""
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


def test_close_frees_prefix_cache():
    """A closed runner has no computed prompts, even while it is referenced."""
    runner = small_runner(n_batch=16)
    runner.generate(GenerationRequest("a" * 100, max_tokens=1))
    cache = engine_of(runner)._cache
    assert cache.size_bytes > 0
    runner.close()
    assert (len(cache), cache.size_bytes) == (0, 0)


def test_close_without_drain_fails_all_requests():
    """Running and waiting requests fail with `RunnerClosedError` at once."""
    runner = small_runner()
    futures = [runner.submit(ENDLESS) for _ in range(6)]
    runner.close(drain=False)
    assert wait(futures, timeout=0).not_done == set()
    assert {type(future.exception()) for future in futures} == {RunnerClosedError}


def test_close_with_timeout_fails_unfinished_requests():
    """`close(timeout_s)` finishes requests for that time, then aborts the others."""
    runner = small_runner(n_ctx=2048)
    futures = [runner.submit(ENDLESS) for _ in range(40)]
    runner.close(timeout_s=0.05)
    assert isinstance(futures[-1].exception(timeout=0), RunnerClosedError)


def test_close_with_hanging_callback_returns(monkeypatch):
    """`close(timeout_s)` returns even if a callback hangs."""
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


def test_generate_inside_callback_raises(tiny):
    """`generate` in the worker's thread would block forever: the request of the callback fails with the reason."""
    future = tiny.submit(
        GenerationRequest("a"), on_text=lambda *_: tiny.generate(GenerationRequest("b"))
    )
    with pytest.raises(InvalidRequestError, match="call submit"):
        future.result(timeout=60)
    assert tiny.generate(GenerationRequest("a", max_tokens=1)).num_samples == 1


def test_init_interrupted_ends_threads():
    """Ctrl-C while the model loads ends the loading thread."""

    class Interrupted(Runner):
        def wait_ready(self, *_):
            raise KeyboardInterrupt

    before = threading.enumerate()
    with pytest.raises(KeyboardInterrupt):
        Interrupted(TINY)
    assert threading.enumerate() == before


def test_submit_accepts_mapping_or_text(tiny):
    """`submit`, `generate` and `stream` accept a mapping of the documented fields or a text, and validate them."""
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


def test_generate_keyword_fields_override_request(tiny):
    """All methods that generate accept keyword fields, which override the fields of the request."""
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


def test_exit_with_exception_aborts_requests():
    """An exception in a with block aborts running requests."""
    with pytest.raises(KeyError), small_runner() as runner:  # noqa: PT012 - the block is what is tested
        future = runner.submit(ENDLESS)
        raise KeyError
    assert isinstance(future.exception(timeout=0), RunnerClosedError)


def test_broken_model_is_reported_by_all_methods(tmp_path):
    """With `wait` the constructor raises; otherwise wait_ready and submit raise, and no runner is counted as ready."""
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


def test_init_model_of_wrong_type_raises():
    """A model that is neither a path nor a string is refused before a worker starts."""
    with pytest.raises(
        InvalidRequestError, match=r"^model must be the path of a GGUF file .*, got 3$"
    ):
        Runner(3)


def test_flag_that_is_not_a_boolean_raises():
    """Flags of a conversation and of `close` must be True or False."""
    messages = [{"role": "user", "content": "a"}]
    with Runner(BIGRAM, n_threads=1) as runner:
        for name in ("parallel_tool_calls", "continues"):
            with pytest.raises(
                InvalidRequestError, match=f"{name} must be True or False, got 'no'"
            ):
                runner.submit_chat(messages, **{name: "no"})
        with pytest.raises(InvalidRequestError, match="drain must be True or False, got 'no'"):
            runner.close("no")


def test_submit_while_model_loads_is_served_later():
    """A loading runner accepts requests and serves them when it is ready."""
    runner = Runner(BIGRAM, n_threads=1, wait=False)
    future = runner.submit(GenerationRequest("a", max_tokens=3))
    assert future.result(timeout=60).responses[0].generated_tokens == 3
    runner.wait_ready(timeout_s=0)
    assert runner.stats().num_total_runners == 1
    runner.close()


def test_exception_in_worker_thread_fails_all_requests():
    """Running and waiting requests fail with a GenerationError, and the runner reports its failure."""
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


def test_failing_llama_decode_raises_generation_error():
    """A batch that llama.cpp refuses ends the runner with the reason, not the process."""
    runner = small_runner(n_slots=1)
    future = runner.submit(ENDLESS)
    until(lambda: runner.counters().generated_tokens > 3)
    batch = engine_of(runner)._model._batch
    llama_sequence, batch.sequence = batch.sequence, batch.sequence.copy()
    llama_sequence.fill(99)  # a sequence that does not exist
    assert "llama_decode failed" in str(future.exception(timeout=60))
    runner.close()


def test_failed_assertion_in_llama_cpp_ends_only_its_thread(tmp_path):
    """A file that makes llama.cpp abort raises a ModelLoadError; other runners and the exit of the process are not affected."""
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


def test_submit_too_long_stop_strings_raises(tiny):
    """More than 65,536 characters of stop strings raise an error that names the field."""
    with pytest.raises(InvalidRequestError) as caught:
        tiny.submit(GenerationRequest("a", stop=["x" * 10_000] * 7))
    assert caught.value.field == "stop"


def test_submit_too_many_eos_tokens_raises(tiny):
    """4,096 EOS tokens are accepted; more raise an error that names the field."""
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
        {"wait": "no"},
    ],
)
def test_init_option_out_of_range_raises(options):
    """A wrong option raises an InvalidRequestError that names it, before a model is loaded."""
    with pytest.raises(InvalidRequestError, match=next(iter(options))):
        Runner(TINY, **options)


def test_init_unknown_option_suggests_similar_name():
    """A misspelled option raises a TypeError that names it and suggests the correct option."""
    with pytest.raises(TypeError, match=r"n_slot is not a model option; did you mean n_slots\?"):
        Runner(TINY, n_slot=2)


def test_signature_and_docstring_have_all_options():
    """The signature and the docstring of `Runner` contain each option with its default and its description."""
    parameters = inspect.signature(Runner).parameters
    for option in attrs.fields(ModelOptions):
        assert parameters[option.name].default == option.default
        assert f"    {option.name}: {option.metadata['help']}.\n" in Runner.__doc__


def test_unreferenced_runner_finishes_requests_and_ends():
    """An unreferenced runner finishes its requests; then its threads end without the garbage collector."""
    before = set(threading.enumerate())
    gc.collect()
    gc.disable()
    try:
        future = small_runner().submit(GenerationRequest("a", max_tokens=50))
        assert future.result(timeout=60).num_samples == 1
        until(lambda: set(threading.enumerate()) <= before)
    finally:
        gc.enable()


def test_pickle_or_copy_raises_with_remedy(tiny):
    """The error names an alternative, and the runner continues to work."""
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(
            TypeError,
            match=r"a Runner cannot be pickled or copied: .* create a runner in the process",
        ):
            attempt(tiny)
    assert tiny.alive


def use_after_fork(runner, answer):
    try:
        runner.submit(ENDLESS)
    except RunnerClosedError as error:
        answer.send((str(error), runner.stats(), runner.alive))
    runner.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the platform has no fork")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_submit_in_forked_process_raises(tiny):
    """After a fork the child's use of the parent's runner raises with a remedy and does not hang."""
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
