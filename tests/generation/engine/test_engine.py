"""The engine on a scripted model: each request gets the result that it gets alone, regardless of other requests."""

import itertools
import threading
import weakref
from concurrent.futures import wait

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.errors import GenerationError, InvalidRequestError
from relevance_gen.generation.constraints import token_constraint as constraints
from relevance_gen.generation.engine.engine import Engine
from relevance_gen.generation.engine.prefix_cache import PrefixCache
from relevance_gen.generation.engine.stop_strings import NO_STOPS
from relevance_gen.generation.queue.events import Failed, Finished, Started, TextDelta
from relevance_gen.generation.queue.request import (
    ANONYMOUS,
    QueuedRequest,
    RequestContext,
    RequestPriority,
)
from relevance_gen.generation.queue.request_queue import RequestQueue
from relevance_gen.types import GenerationRequest
from tests.generation.scripted import QueueWorker, ScriptedModel, next_logits
from tests.profiles import costly
from tests.reference_generation import greedy

requests = st.builds(
    GenerationRequest,
    text=st.text("abcdefgh", min_size=1, max_size=20),
    max_tokens=st.integers(1, 8),
    eos_token_ids=st.lists(st.integers(0, 15), max_size=1),
    max_input_tokens=st.sampled_from([0, 3]),
    num_samples=st.integers(1, 6),
    stop=st.lists(st.text("abcdefgh", min_size=1, max_size=2), max_size=2),
    temperature=st.sampled_from([0, 1]),
    presence_penalty=st.sampled_from([0, 1]),
    repetition_penalty=st.sampled_from([1, 1.5]),
    logit_bias=st.dictionaries(st.integers(0, 15), st.sampled_from([-100, 2]), max_size=2),
    min_tokens=st.integers(0, 1),
    regex=st.sampled_from([None] * 5 + ["[a-h]{2,5}"]),
    logprobs=st.booleans(),
    top_logprobs=st.sampled_from([0, 0, 3, 20]),
    prompt_logprobs=st.booleans(),
    return_tokens=st.just(True),
    seed=st.integers(0, 5),
)


class Recorder:
    """Collects the events of each request."""

    def __init__(self):
        self.queued, self.outcomes, self.texts, self.n_pending_samples = [], [], [], []

    def queue(self, request, client=None):
        """Return the next queued request."""
        self.queued.append(
            QueuedRequest(
                len(self.queued), request, request.seed or 0, 0.0, RequestContext(client=client)
            )
        )
        self.outcomes.append([])
        self.texts.append([""] * request.num_samples)
        self.n_pending_samples.append(request.num_samples)
        return self.queued[-1]

    def step(self, engine):
        """Run a step of the engine and record its events."""
        for event in engine.step():
            match event:
                case Started(request_id, n_samples):
                    self.n_pending_samples[request_id] -= n_samples
                case TextDelta(request_id, sample, text):
                    assert text
                    self.texts[request_id][sample] += text
                case Finished(request_id, outcome) | Failed(request_id, outcome):
                    self.outcomes[request_id].append(outcome)


def make_engine(model, n_bytes=0):
    """Return an engine with a constant clock, and a recorder of its events."""
    recorder = Recorder()
    return Engine(model, PrefixCache(n_bytes), clock=lambda: 0.0), recorder


def run(engine, recorder, queued_requests, gaps=()):
    """Run steps until the engine is idle; run `gaps[i]` steps before adding request i."""
    for queued, gap in zip(queued_requests, [*gaps, *[0] * len(queued_requests)], strict=False):
        for _ in range(gap):
            recorder.step(engine)
        engine.add(queued)
    for _ in range(5000):
        if engine.is_idle:
            return
        recorder.step(engine)
    raise AssertionError("the engine does not become idle")


def alone(request):
    """Return the result of a request without other requests."""
    engine, recorder = make_engine(ScriptedModel(1))
    run(engine, recorder, [recorder.queue(request)])
    return recorder.outcomes[0][0]


@costly
@given(
    requests=st.lists(requests, max_size=6),
    gaps=st.lists(st.integers(0, 6), max_size=6),
    n_slots=st.integers(1, 5),
    n_bytes=st.sampled_from([0, 1000, 10_000]),
    clients=st.lists(st.sampled_from([None, ANONYMOUS, ANONYMOUS, "a"]), min_size=6, max_size=6),
)
def test_step_batched_requests_equal_single_requests(requests, gaps, n_slots, n_bytes, clients):
    """Any requests of any clients, in any order of arrival, on any number of slots, cached or not, get their results once.

    Preempted samples of anonymous clients resume without a change.
    """
    model = ScriptedModel(n_slots)
    engine, recorder = make_engine(model, n_bytes)
    run(engine, recorder, list(map(recorder.queue, requests, clients)), gaps)
    for request, outcomes, texts in zip(requests, recorder.outcomes, recorder.texts, strict=True):
        assert outcomes == [alone(request)]
        assert texts == [completion.text for completion in outcomes[0].responses]
    assert model.slots == [[]] * n_slots
    assert recorder.n_pending_samples == [0] * len(requests)


@costly
@given(
    requests=st.lists(requests, min_size=1, max_size=6),
    cancels=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=6),
    interrupt=st.booleans(),
)
def test_drop_request_frees_it_and_leaves_others_unchanged(requests, cancels, interrupt):
    """A dropped request causes no event, and all other requests get the results that they get alone."""
    model = ScriptedModel(3)
    engine, recorder = make_engine(model, 1000)
    prompts = weakref.WeakSet()
    for number, request in enumerate(requests):
        engine.add(recorder.queue(request, ANONYMOUS if number % 2 else None))
        prompts.update([*engine._queue, *engine._compilations.futures])
    dropped = set()
    step = 0
    while not engine.is_idle:
        for which, when in cancels:
            if when == step and which < len(requests) and not recorder.outcomes[which]:
                dropped.add(which)
                engine.drop(which)
                model.interrupted = interrupt
        recorder.step(engine)
        step += 1
        assert step < 2000
    for which, request in enumerate(requests):
        assert recorder.outcomes[which] == ([] if which in dropped else [alone(request)])
    assert model.slots == [[]] * 3
    assert not prompts


def test_greedy_text_follows_argmax_of_logits():
    """Temperature 0 yields the most likely token after each history."""
    request = GenerationRequest("hello", max_tokens=10, temperature=0, return_tokens=True)
    tokens = [ord(c) % 16 for c in "hello"]
    assert list(alone(request).responses[0].tokens) == greedy(next_logits, tokens, 10)


def test_prompt_is_computed_once_for_all_samples():
    """Eight samples of a 12-token prompt compute 12 prompt tokens, not 96."""
    model = ScriptedModel(8)
    engine, recorder = make_engine(model)
    run(
        engine,
        recorder,
        [recorder.queue(GenerationRequest("a" * 12, max_tokens=1, num_samples=8))],
    )
    assert model.n_computed == 12


def test_long_prompt_delays_running_samples_by_one_chunk_per_step():
    """While a 36-token prompt is computed, a running sample gets a token in each step."""
    engine, recorder = make_engine(ScriptedModel(2))
    engine.add(recorder.queue(GenerationRequest("a", max_tokens=30, num_samples=1)))
    recorder.step(engine)
    before = len(recorder.texts[0][0])
    engine.add(recorder.queue(GenerationRequest("b" * 36, max_tokens=1)))
    for steps in range(1, 9):
        recorder.step(engine)
        assert len(recorder.texts[0][0]) == before + steps
        assert not recorder.outcomes[1]
    recorder.step(engine)
    assert recorder.outcomes[1]


def test_long_refused_texts_delay_running_samples_by_one_text_per_step():
    """One long text is tokenized per step, regardless of how many wait; short texts are tokenized at once."""
    engine, recorder = make_engine(ScriptedModel(2))
    engine.add(recorder.queue(GenerationRequest("a", max_tokens=30)))
    for n_characters in [100_000] * 5 + [100] * 5:
        engine.add(recorder.queue(GenerationRequest("b" * n_characters)))
    for steps in range(1, 6):
        recorder.step(engine)
        assert len(recorder.texts[0][0]) == steps + 1  # the first token comes from the prompt
        assert sum(map(len, recorder.outcomes[1:6])) == steps
    recorder.step(engine)
    assert all(recorder.outcomes[6:])


def test_short_prompts_are_computed_in_batches():
    """Eight prompts of one to eight tokens that arrive together are computed in two batches, of five and of three."""
    model = ScriptedModel(8, n_batch=32)
    engine, recorder = make_engine(model)
    for n_tokens in range(1, 9):
        engine.add(recorder.queue(GenerationRequest("a" * n_tokens, max_tokens=1)))
    recorder.step(engine)
    assert model.n_together == 5
    recorder.step(engine)
    assert all(recorder.outcomes)
    assert model.n_computed == sum(range(1, 9))


def test_refused_prompt_leaves_batched_prompts_unchanged():
    """A prompt that fills the context and a prompt without tokens fail; the other two prompts are computed together."""
    model = ScriptedModel(4, n_batch=16)
    engine, recorder = make_engine(model)
    requests = [
        GenerationRequest(text, max_tokens=2, seed=1) for text in ("ab", "", "a" * 40, "abc")
    ]
    run(engine, recorder, [recorder.queue(request) for request in requests])
    assert [outcome for (outcome,) in recorder.outcomes[::3]] == [
        alone(request) for request in requests[::3]
    ]
    assert all(isinstance(outcome, InvalidRequestError) for (outcome,) in recorder.outcomes[1:3])
    assert model.n_together == 2


def test_interrupt_one_of_several_prompts_continues_the_batch():
    """Interrupting a request whose prompt is in a batch has no effect; a single prompt is interrupted."""
    model = ScriptedModel(2, on_call=lambda _: engine.interrupt(0))
    engine, recorder = make_engine(model)
    for text in ("ab", "cd"):
        engine.add(recorder.queue(GenerationRequest(text, max_tokens=1)))
    recorder.step(engine)
    assert model.n_together == 2
    assert all(recorder.outcomes)
    engine.add(QueuedRequest(0, GenerationRequest("ab", max_tokens=1), 0, 0.0))
    recorder.step(engine)
    assert not engine.is_idle


def test_known_prefix_is_not_computed_again():
    """A repeated prompt computes only its last tokens; a prompt with a common prefix computes the rest."""
    model = ScriptedModel(1)
    engine, recorder = make_engine(model, 1000)
    for text, computed in (
        ("a" * 18, 18),
        ("a" * 18, 2),
        ("a" * 17 + "b", 2),
        ("a" * 9 + "b" * 9, 10),
        ("a" * 16, 2),
    ):
        before = model.n_computed
        queued = recorder.queue(GenerationRequest(text, max_tokens=1))
        run(engine, recorder, [queued])
        assert model.n_computed - before == computed
        assert recorder.outcomes[-1][0].reused_tokens == len(text) - computed
    assert engine.counters.prefix_cache_hits == 4


@pytest.mark.parametrize(("n_bytes", "n_saved"), [(0, 0), (89, 0), (90, 1)])
def test_prompt_larger_than_cache_is_not_saved(n_bytes, n_saved):
    """18 tokens of four bytes and a state of 18 bytes are saved if the cache holds 90 bytes, otherwise not."""
    model = ScriptedModel(1)
    engine, recorder = make_engine(model, n_bytes)
    run(engine, recorder, [recorder.queue(GenerationRequest("a" * 18, max_tokens=1))])
    assert model.n_saved == n_saved


@pytest.mark.parametrize("n_tokens", [40, 41])
def test_prompt_that_fills_context_is_refused(n_tokens):
    """A prompt of n_ctx tokens or more fails with an error that names the field; the next request is served."""
    engine, recorder = make_engine(ScriptedModel(1))
    run(
        engine,
        recorder,
        [recorder.queue(GenerationRequest("a" * n, max_tokens=1)) for n in (n_tokens, 1)],
    )
    ((refused,), (served,)) = recorder.outcomes
    assert isinstance(refused, InvalidRequestError)
    assert refused.field == "text"
    assert served.prompt_tokens == 1


def test_prompt_without_tokens_is_refused():
    """If the model has no token to start from, an empty text fails with an error that names the field."""
    assert alone(GenerationRequest("")).field == "text"


def test_stop_strings_are_compiled_when_request_gets_slot():
    """A waiting request has no automaton, which takes hundreds of bytes per character of the stop strings."""
    engine, recorder = make_engine(ScriptedModel(1))
    for _ in range(3):
        engine.add(recorder.queue(GenerationRequest("a", max_tokens=3, stop=["stop" * 1000])))
    running, _, waiting = engine._queue
    recorder.step(engine)
    assert len(running.stops.depth) == 4001
    assert waiting.stops is NO_STOPS
    run(engine, recorder, [])
    assert len(waiting.stops.depth) == 4001


def test_full_context_ends_sample_with_length():
    """Prompt and generated tokens fill n_ctx completely, then the reason is "length"."""
    completion = alone(GenerationRequest("a" * 35, max_tokens=100)).responses[0]
    assert (completion.generated_tokens, completion.finish_reason) == (5, "length")


@pytest.mark.parametrize("call", ["prefill", "decode"])
def test_failing_model_ends_step_and_clear_removes_requests(call):
    """The model's error leaves `step`, and `clear` removes all requests and prompts without using the model."""

    def fail(name):
        if name == call and len(recorder.texts[0][0]) >= (name == "decode"):
            raise GenerationError("broken")

    engine, recorder = make_engine(ScriptedModel(2, on_call=fail), 1000)
    with pytest.raises(GenerationError):
        run(
            engine,
            recorder,
            [recorder.queue(GenerationRequest("a", max_tokens=9, num_samples=2)) for _ in range(3)],
        )
    engine.clear()
    assert engine.is_idle
    assert len(engine._cache) == 0
    assert recorder.outcomes == [[]] * 3


def test_more_samples_than_slots_are_all_generated():
    """Twenty samples on three slots are generated once each, in order, with different random numbers."""
    request = GenerationRequest("a", max_tokens=6, num_samples=20, return_tokens=True, seed=3)
    engine, recorder = make_engine(ScriptedModel(3))
    run(engine, recorder, [recorder.queue(request)])
    tokens = [completion.tokens for completion in recorder.outcomes[0][0].responses]
    assert len(tokens) == 20
    assert len(set(tokens)) > 15


@costly
@given(requests=st.lists(requests, min_size=2, max_size=12), n_slots=st.integers(1, 4))
def test_retained_prompts_are_limited(requests, n_slots):
    """Regardless of the number of requests for several samples, few prompts have states and logits in memory."""
    engine, recorder = make_engine(ScriptedModel(n_slots))
    for request in requests:
        engine.add(recorder.queue(request))
    while not engine.is_idle:
        recorder.step(engine)
        held = [prompt for prompt in engine._queue if len(prompt.logits) or len(prompt.state)]
        assert len(held) <= max(2, n_slots)


def test_interrupted_prompt_costs_running_sample_no_token():
    """While one prompt per step is interrupted and dropped, a running sample gets a token in each step."""
    model = ScriptedModel(2)
    engine, recorder = make_engine(model)
    engine.add(recorder.queue(GenerationRequest("a", max_tokens=30)))
    recorder.step(engine)
    before = len(recorder.texts[0][0])
    for steps in range(1, 9):
        engine.add(queued := recorder.queue(GenerationRequest("b" * 36)))
        model.interrupted = True
        recorder.step(engine)
        engine.drop(queued.id)
        assert len(recorder.texts[0][0]) == before + steps


def test_short_requests_wait_for_one_sample_of_large_request():
    """After 256 samples of 100 tokens on 16 slots, eight requests get their first tokens within 100 steps.

    The chunks of their prompts take further steps. The requests arrive through a queue while all
    slots are taken; the large request finishes completely.
    """
    queue, first_tokens, n_steps = RequestQueue(256), {}, itertools.count()
    engine, worker = Engine(ScriptedModel(16, n_ctx=200), PrefixCache(0)), QueueWorker(queue)

    def step():
        for queued in worker.take(engine.capacity, timeout_s=0):
            engine.add(queued)
        for event in engine.step():
            worker.deliver(event)
        return next(n_steps)

    large = queue.put(
        QueuedRequest(0, GenerationRequest("a", max_tokens=100, num_samples=256), 0, 0.0)
    )
    before = [step() for _ in range(3)][-1]
    for n_tokens in range(1, 9):
        request = GenerationRequest("b" * n_tokens, max_tokens=5)
        queue.put(
            QueuedRequest(n_tokens, request, 0, 0.0),
            lambda *_, number=n_tokens: first_tokens.setdefault(number, len(first_tokens)),
        )
    while len(first_tokens) < 8:
        after = step()
    assert after - before <= 100 + 4 * 1 + 4 * 2
    while not engine.is_idle:
        step()
    assert large.result(timeout=0).num_samples == 256
    assert queue.n_pending_samples == 0


@pytest.mark.parametrize("n_samples", [1, 256])
def test_authenticated_request_preempts_anonymous_slots_within_a_step(n_samples):
    """Two tokens for an authenticated client take two steps; anonymous requests still get complete results."""
    queue = RequestQueue(256)
    engine, worker = Engine(ScriptedModel(4, n_ctx=200), PrefixCache(0)), QueueWorker(queue)

    def step():
        for queued in worker.take(engine.capacity, timeout_s=0):
            engine.add(queued)
        for event in engine.step():
            worker.deliver(event)

    request = GenerationRequest("a", max_tokens=40, num_samples=n_samples, seed=1)
    anonymous = [
        queue.put(QueuedRequest(number, request, 1, 0.0, RequestContext(client=ANONYMOUS)))
        for number in range(256 // n_samples)
    ]
    for _ in range(5):
        step()
    for number in range(1000, 1003):
        authenticated = queue.put(
            QueuedRequest(
                number,
                GenerationRequest("b", max_tokens=2),
                0,
                0.0,
                RequestContext(client=f"{number}"),
            )
        )
        step()
        step()
        assert authenticated.result(timeout=0).responses[0].generated_tokens == 2
    while not engine.is_idle:
        step()
    expected = alone(attrs.evolve(request, max_tokens=30, num_samples=min(n_samples, 4))).responses
    for future in anonymous:
        for sample, prefix in zip(future.result(timeout=0).responses, expected, strict=False):
            assert sample.text.startswith(prefix.text)


def test_slow_masks_of_anonymous_request_delay_no_other_request(monkeypatch):
    """While a slow mask is computed, other requests get their tokens; the masked samples are unchanged."""
    monkeypatch.setattr(constraints, "_MASK_BUDGET_PER_TOKEN_S", 0.0)  # all masks count as slow
    engine, recorder = make_engine(ScriptedModel(5))
    gate = threading.Event()
    engine._mask_threads[RequestPriority.ANONYMOUS].submit(gate.wait, 60)
    masked = GenerationRequest("a", regex="[a-p]{9}", max_tokens=9, num_samples=2, seed=1)
    engine.add(recorder.queue(masked, ANONYMOUS))
    wait(engine._compilations.futures.values(), 60)
    for client in ("me", ANONYMOUS, None):
        engine.add(recorder.queue(GenerationRequest("b", max_tokens=20), client))
    while not all(recorder.outcomes[1:]):
        recorder.step(engine)
    assert [len(text) for text in recorder.texts[0]] == [
        1,
        1,
    ]  # the logits of this token come from the prompt
    gate.set()
    run(engine, recorder, [])
    texts = [
        [sample.text for sample in response.responses]
        for response in (recorder.outcomes[0][0], alone(masked))
    ]
    assert texts[0] == texts[1]


def step(worker, engine):
    """Run a step of the engine and deliver its events."""
    for event in engine.step():
        worker.deliver(event)


def fill(worker, engine):
    """Pass further requests to the engine; return whether there were any."""
    queued_requests = worker.take(engine.capacity, timeout_s=0)
    for queued in queued_requests:
        engine.add(queued)
    return bool(queued_requests)


def test_many_grammars_of_one_client_do_not_block_another():
    """Regardless of how many grammars are compiled, a request of a second client gets one of the next slots."""
    queue = RequestQueue(256)
    engine, worker = Engine(ScriptedModel(2), PrefixCache(0)), QueueWorker(queue)
    request = GenerationRequest("a", max_tokens=9, regex="[a-p]{30}")
    many = [
        queue.put(QueuedRequest(number, request, 1, 0.0, RequestContext(client="a")))
        for number in range(20)
    ]
    while fill(worker, engine):
        pass
    wait(engine._compilations.futures.values(), 60)
    step(worker, engine)
    assert not engine._compilations.futures
    second = queue.put(
        QueuedRequest(99, GenerationRequest("b", max_tokens=3), 1, 0.0, RequestContext(client="b"))
    )
    while not second.done():
        fill(worker, engine)
        step(worker, engine)
    assert sum(future.done() for future in many) <= 2
    engine.clear()


@pytest.mark.parametrize("regex", [None, "[a-p]{30}"])
def test_multi_sample_requests_of_one_client_do_not_block_another(regex):
    """Regardless of how many requests of one client retain prompts, the first request of a second client is served."""
    queue = RequestQueue(10**6)
    engine, worker = Engine(ScriptedModel(2), PrefixCache(0)), QueueWorker(queue)
    large = GenerationRequest("a", max_tokens=9, num_samples=60, regex=regex)
    many = [
        queue.put(QueuedRequest(number, large, 1, 0.0, RequestContext(client="a")))
        for number in range(4)
    ]
    while fill(worker, engine) or engine._compilations.futures:
        wait(engine._compilations.futures.values(), 60)
        step(worker, engine)
    for number in range(3):
        small = QueuedRequest(
            90 + number,
            attrs.evolve(large, num_samples=2, regex=None),
            1,
            0.0,
            RequestContext(client=f"{number}"),
        )
        second = queue.put(small)
        while not second.done():
            fill(worker, engine)
            step(worker, engine)
    assert not any(future.done() for future in many)
    engine.clear()
