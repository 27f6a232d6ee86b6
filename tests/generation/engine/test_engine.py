"""The engine on a scripted model: whatever comes when, each request gets what it would get alone."""

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
        self.tickets, self.outcomes, self.texts, self.n_pending_samples = [], [], [], []

    def ticket(self, request, client=None):
        """Make the next ticket."""
        self.tickets.append(
            QueuedRequest(
                len(self.tickets), request, request.seed or 0, 0.0, RequestContext(client=client)
            )
        )
        self.outcomes.append([])
        self.texts.append([""] * request.num_samples)
        self.n_pending_samples.append(request.num_samples)
        return self.tickets[-1]

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
    """Return an engine whose clock stands still, and what it tells."""
    recorder = Recorder()
    return Engine(model, PrefixCache(n_bytes), clock=lambda: 0.0), recorder


def run(engine, recorder, tickets, gaps=()):
    """Step until idle; let `gaps[i]` steps pass before ticket i arrives."""
    for ticket, gap in zip(tickets, [*gaps, *[0] * len(tickets)], strict=False):
        for _ in range(gap):
            recorder.step(engine)
        engine.add(ticket)
    for _ in range(5000):
        if engine.idle:
            return
        recorder.step(engine)
    raise AssertionError("the engine does not come to an end")


def alone(request):
    """Return what a request gets by itself."""
    engine, recorder = make_engine(ScriptedModel(1))
    run(engine, recorder, [recorder.ticket(request)])
    return recorder.outcomes[0][0]


@costly
@given(
    requests=st.lists(requests, max_size=6),
    gaps=st.lists(st.integers(0, 6), max_size=6),
    n_slots=st.integers(1, 5),
    n_bytes=st.sampled_from([0, 1000, 10_000]),
    who=st.lists(st.sampled_from([None, ANONYMOUS, ANONYMOUS, "a"]), min_size=6, max_size=6),
)
def test_batched_is_the_same_as_alone(requests, gaps, n_slots, n_bytes, who):
    """Any requests of anybody, in any order of arrival, on any number of slots, cached or not: each gets its own, once.

    Samples of strangers give way to others and go on as if nothing had been.
    """
    model = ScriptedModel(n_slots)
    engine, recorder = make_engine(model, n_bytes)
    run(engine, recorder, list(map(recorder.ticket, requests, who)), gaps)
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
def test_cancelling_frees_everything_and_changes_nobody_else(requests, cancels, interrupt):
    """A cancelled request is never heard of again, and all others get what they would get alone."""
    model = ScriptedModel(3)
    engine, recorder = make_engine(model, 1000)
    prompts = weakref.WeakSet()
    for number, request in enumerate(requests):
        engine.add(recorder.ticket(request, ANONYMOUS if number % 2 else None))
        prompts.update([*engine._queue, *engine._compilations.futures])
    dropped = set()
    step = 0
    while not engine.idle:
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


def test_greedy_text_is_what_asking_for_one_token_after_another_gives():
    """Temperature 0 yields the likeliest token after each history."""
    request = GenerationRequest("hello", max_tokens=10, temperature=0, return_tokens=True)
    tokens = [ord(c) % 16 for c in "hello"]
    assert list(alone(request).responses[0].tokens) == greedy(next_logits, tokens, 10)


def test_the_prompt_is_computed_once_for_all_samples():
    """Eight samples of a 12-token prompt compute 12 prompt tokens, not 96."""
    model = ScriptedModel(8)
    engine, recorder = make_engine(model)
    run(
        engine,
        recorder,
        [recorder.ticket(GenerationRequest("a" * 12, max_tokens=1, num_samples=8))],
    )
    assert model.n_computed == 12


def test_a_long_prompt_delays_the_others_by_one_slice_a_step():
    """While a 36-token prompt is computed, a running sequence gets a token in every step."""
    engine, recorder = make_engine(ScriptedModel(2))
    engine.add(recorder.ticket(GenerationRequest("a", max_tokens=30, num_samples=1)))
    recorder.step(engine)
    before = len(recorder.texts[0][0])
    engine.add(recorder.ticket(GenerationRequest("b" * 36, max_tokens=1)))
    for steps in range(1, 9):
        recorder.step(engine)
        assert len(recorder.texts[0][0]) == before + steps
        assert not recorder.outcomes[1]
    recorder.step(engine)
    assert recorder.outcomes[1]


def test_long_texts_that_are_refused_delay_the_others_by_one_text_a_step():
    """Reading long texts takes turns with the running sequences, however many wait; short ones are read at once."""
    engine, recorder = make_engine(ScriptedModel(2))
    engine.add(recorder.ticket(GenerationRequest("a", max_tokens=30)))
    for n_characters in [100_000] * 5 + [100] * 5:
        engine.add(recorder.ticket(GenerationRequest("b" * n_characters)))
    for steps in range(1, 6):
        recorder.step(engine)
        assert len(recorder.texts[0][0]) == steps + 1  # it has the first from its prompt
        assert sum(map(len, recorder.outcomes[1:6])) == steps
    recorder.step(engine)
    assert all(recorder.outcomes[6:])


def test_short_prompts_get_their_first_tokens_together():
    """Eight prompts of one to eight tokens that arrive at once are computed in two batches, of five and of three."""
    model = ScriptedModel(8, n_batch=32)
    engine, recorder = make_engine(model)
    for n_tokens in range(1, 9):
        engine.add(recorder.ticket(GenerationRequest("a" * n_tokens, max_tokens=1)))
    recorder.step(engine)
    assert model.n_together == 5
    recorder.step(engine)
    assert all(recorder.outcomes)
    assert model.n_computed == sum(range(1, 9))


def test_a_prompt_that_is_refused_does_not_disturb_those_beside_it():
    """One without room for a token, and one of no tokens, fail alone; the others are computed together."""
    model = ScriptedModel(4, n_batch=16)
    engine, recorder = make_engine(model)
    requests = [
        GenerationRequest(text, max_tokens=2, seed=1) for text in ("ab", "", "a" * 40, "abc")
    ]
    run(engine, recorder, [recorder.ticket(request) for request in requests])
    assert [outcome for (outcome,) in recorder.outcomes[::3]] == [
        alone(request) for request in requests[::3]
    ]
    assert all(isinstance(outcome, InvalidRequestError) for (outcome,) in recorder.outcomes[1:3])
    assert model.n_together == 2


def test_cancelling_one_of_several_prompts_lets_the_others_be_computed():
    """While prompts are computed together, cancelling one interrupts nothing; alone it does."""
    model = ScriptedModel(2, on_call=lambda _: engine.interrupt(0))
    engine, recorder = make_engine(model)
    for text in ("ab", "cd"):
        engine.add(recorder.ticket(GenerationRequest(text, max_tokens=1)))
    recorder.step(engine)
    assert model.n_together == 2
    assert all(recorder.outcomes)
    engine.add(QueuedRequest(0, GenerationRequest("ab", max_tokens=1), 0, 0.0))
    recorder.step(engine)
    assert not engine.idle


def test_a_known_prefix_is_not_computed_again():
    """A repeated prompt computes only its last tokens; one with the same beginning, what differs."""
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
        ticket = recorder.ticket(GenerationRequest(text, max_tokens=1))
        run(engine, recorder, [ticket])
        assert model.n_computed - before == computed
        assert recorder.outcomes[-1][0].reused_tokens == len(text) - computed
    assert engine.counters.prefix_cache_hits == 4


@pytest.mark.parametrize(("n_bytes", "n_saved"), [(0, 0), (89, 0), (90, 1)])
def test_a_prompt_that_the_cache_cannot_hold_is_not_saved(n_bytes, n_saved):
    """18 tokens of four bytes and a state of 18 are saved where 90 bytes may be held, and not copied otherwise."""
    model = ScriptedModel(1)
    engine, recorder = make_engine(model, n_bytes)
    run(engine, recorder, [recorder.ticket(GenerationRequest("a" * 18, max_tokens=1))])
    assert model.n_saved == n_saved


@pytest.mark.parametrize("n_tokens", [40, 41])
def test_a_prompt_without_room_for_a_token_is_refused(n_tokens):
    """n_ctx tokens of prompt or more are an error that names the field; the next request is served."""
    engine, recorder = make_engine(ScriptedModel(1))
    run(
        engine,
        recorder,
        [recorder.ticket(GenerationRequest("a" * n, max_tokens=1)) for n in (n_tokens, 1)],
    )
    ((refused,), (served,)) = recorder.outcomes
    assert isinstance(refused, InvalidRequestError)
    assert refused.field == "text"
    assert served.prompt_tokens == 1


def test_a_prompt_of_no_tokens_is_refused():
    """Where the model gives nothing to start from, an empty text is an error that names the field."""
    assert alone(GenerationRequest("")).field == "text"


def test_stop_strings_are_compiled_when_their_turn_comes():
    """A request that waits holds no automaton: one takes hundreds of bytes for every character of its stop strings."""
    engine, recorder = make_engine(ScriptedModel(1))
    for _ in range(3):
        engine.add(recorder.ticket(GenerationRequest("a", max_tokens=3, stop=["stop" * 1000])))
    running, _, waiting = engine._queue
    recorder.step(engine)
    assert len(running.stops.depth) == 4001
    assert waiting.stops is NO_STOPS
    run(engine, recorder, [])
    assert len(waiting.stops.depth) == 4001


def test_a_full_context_ends_a_sample():
    """Prompt and generated tokens fill n_ctx to the last one, then the reason is "length"."""
    completion = alone(GenerationRequest("a" * 35, max_tokens=100)).responses[0]
    assert (completion.generated_tokens, completion.finish_reason) == (5, "length")


@pytest.mark.parametrize("call", ["prefill", "decode"])
def test_a_failing_model_ends_the_step_and_leaves_nothing_behind(call):
    """The model's error leaves `step`, and `clear` forgets every request and prompt without asking the model."""

    def fail(name):
        if name == call and len(recorder.texts[0][0]) >= (name == "decode"):
            raise GenerationError("broken")

    engine, recorder = make_engine(ScriptedModel(2, on_call=fail), 1000)
    with pytest.raises(GenerationError):
        run(
            engine,
            recorder,
            [
                recorder.ticket(GenerationRequest("a", max_tokens=9, num_samples=2))
                for _ in range(3)
            ],
        )
    engine.clear()
    assert engine.idle
    assert len(engine._cache) == 0
    assert recorder.outcomes == [[]] * 3


def test_more_samples_than_slots_take_turns():
    """Twenty samples on three slots all come, each once, in order, with seeds of their own."""
    request = GenerationRequest("a", max_tokens=6, num_samples=20, return_tokens=True, seed=3)
    engine, recorder = make_engine(ScriptedModel(3))
    run(engine, recorder, [recorder.ticket(request)])
    tokens = [completion.tokens for completion in recorder.outcomes[0][0].responses]
    assert len(tokens) == 20
    assert len(set(tokens)) > 15


@costly
@given(requests=st.lists(requests, min_size=2, max_size=12), n_slots=st.integers(1, 4))
def test_computed_prompts_are_held_for_so_many_requests_only(requests, n_slots):
    """However many requests of several samples there are, states and logits of few prompts are kept at once."""
    engine, recorder = make_engine(ScriptedModel(n_slots))
    for request in requests:
        engine.add(recorder.ticket(request))
    while not engine.idle:
        recorder.step(engine)
        held = [prompt for prompt in engine._queue if len(prompt.logits) or len(prompt.state)]
        assert len(held) <= max(2, n_slots)


def test_an_interrupted_prompt_costs_the_others_no_token():
    """While prompt after prompt is cancelled in the middle, a running sequence gets a token in every step."""
    model = ScriptedModel(2)
    engine, recorder = make_engine(model)
    engine.add(recorder.ticket(GenerationRequest("a", max_tokens=30)))
    recorder.step(engine)
    before = len(recorder.texts[0][0])
    for steps in range(1, 9):
        engine.add(ticket := recorder.ticket(GenerationRequest("b" * 36)))
        model.interrupted = True
        recorder.step(engine)
        engine.drop(ticket.id)
        assert len(recorder.texts[0][0]) == before + steps


def test_short_requests_behind_a_large_one_wait_for_one_sample_of_it():
    """Behind 256 samples of 100 tokens on 16 slots, eight requests have their first tokens within 100 steps.

    The slices of their prompts come on top. They arrive while all slots are taken, through a backlog, as to a worker;
    the large request ends whole all the same.
    """
    backlog, first_tokens, n_steps = RequestQueue(256), {}, itertools.count()
    engine, puller = Engine(ScriptedModel(16, n_ctx=200), PrefixCache(0)), QueueWorker(backlog)

    def step():
        for ticket in puller.take(engine.capacity, timeout_s=0):
            engine.add(ticket)
        for event in engine.step():
            puller.deliver(event)
        return next(n_steps)

    large = backlog.put(
        QueuedRequest(0, GenerationRequest("a", max_tokens=100, num_samples=256), 0, 0.0)
    )
    before = [step() for _ in range(3)][-1]
    for n_tokens in range(1, 9):
        request = GenerationRequest("b" * n_tokens, max_tokens=5)
        backlog.put(
            QueuedRequest(n_tokens, request, 0, 0.0),
            lambda *_, number=n_tokens: first_tokens.setdefault(number, len(first_tokens)),
        )
    while len(first_tokens) < 8:
        after = step()
    assert after - before <= 100 + 4 * 1 + 4 * 2
    while not engine.idle:
        step()
    assert large.result(timeout=0).num_samples == 256
    assert backlog.n_pending_samples == 0


@pytest.mark.parametrize("n_samples", [1, 256])
def test_strangers_with_all_slots_give_way_within_a_step(n_samples):
    """Two tokens for a client with a name take two steps, whatever strangers have; they get theirs whole afterwards."""
    backlog = RequestQueue(256)
    engine, puller = Engine(ScriptedModel(4, n_ctx=200), PrefixCache(0)), QueueWorker(backlog)

    def step():
        for ticket in puller.take(engine.capacity, timeout_s=0):
            engine.add(ticket)
        for event in engine.step():
            puller.deliver(event)

    request = GenerationRequest("a", max_tokens=40, num_samples=n_samples, seed=1)
    strangers = [
        backlog.put(QueuedRequest(number, request, 1, 0.0, RequestContext(client=ANONYMOUS)))
        for number in range(256 // n_samples)
    ]
    for _ in range(5):
        step()
    for number in range(1000, 1003):
        known = backlog.put(
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
        assert known.result(timeout=0).responses[0].generated_tokens == 2
    while not engine.idle:
        step()
    expected = alone(attrs.evolve(request, max_tokens=30, num_samples=min(n_samples, 4))).responses
    for stranger in strangers:
        for one, other in zip(stranger.result(timeout=0).responses, expected, strict=False):
            assert one.text.startswith(other.text)


def test_nobody_waits_for_the_slow_masks_of_a_stranger(monkeypatch):
    """While one is computed, others get their tokens, strangers among them; then its samples are what they would be."""
    monkeypatch.setattr(constraints, "_MASK_BUDGET_PER_TOKEN_S", 0.0)  # so that every mask is slow
    engine, recorder = make_engine(ScriptedModel(5))
    gate = threading.Event()
    engine._mask_threads[RequestPriority.ANONYMOUS].submit(gate.wait, 60)
    masked = GenerationRequest("a", regex="[a-p]{9}", max_tokens=9, num_samples=2, seed=1)
    engine.add(recorder.ticket(masked, ANONYMOUS))
    wait(engine._compilations.futures.values(), 60)
    for client in ("me", ANONYMOUS, None):
        engine.add(recorder.ticket(GenerationRequest("b", max_tokens=20), client))
    while not all(recorder.outcomes[1:]):
        recorder.step(engine)
    assert [len(text) for text in recorder.texts[0]] == [
        1,
        1,
    ]  # of which its prompt gave the logits
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


def fill(puller, engine):
    """Hand the engine what it has room for; tell whether that was anything."""
    for ticket in (tickets := puller.take(engine.capacity, timeout_s=0)):
        engine.add(ticket)
    return bool(tickets)


def test_many_grammars_of_one_client_keep_no_other_waiting():
    """However many are compiled at once, a request of somebody else gets one of the next slots."""
    backlog = RequestQueue(256)
    engine, puller = Engine(ScriptedModel(2), PrefixCache(0)), QueueWorker(backlog)
    request = GenerationRequest("a", max_tokens=9, regex="[a-p]{30}")
    many = [
        backlog.put(QueuedRequest(number, request, 1, 0.0, RequestContext(client="a")))
        for number in range(20)
    ]
    while fill(puller, engine):
        pass
    wait(engine._compilations.futures.values(), 60)
    step(puller, engine)
    assert not engine._compilations.futures
    other = backlog.put(
        QueuedRequest(99, GenerationRequest("b", max_tokens=3), 1, 0.0, RequestContext(client="b"))
    )
    while not other.done():
        fill(puller, engine)
        step(puller, engine)
    assert sum(future.done() for future in many) <= 2
    engine.clear()


@pytest.mark.parametrize("regex", [None, "[a-p]{30}"])
def test_requests_for_several_samples_of_one_client_keep_no_others_waiting(regex):
    """However many of one client hold their prompts or wait to, the first of another client is served beside them."""
    backlog = RequestQueue(10**6)
    engine, puller = Engine(ScriptedModel(2), PrefixCache(0)), QueueWorker(backlog)
    large = GenerationRequest("a", max_tokens=9, num_samples=60, regex=regex)
    many = [
        backlog.put(QueuedRequest(number, large, 1, 0.0, RequestContext(client="a")))
        for number in range(4)
    ]
    while fill(puller, engine) or engine._compilations.futures:
        wait(engine._compilations.futures.values(), 60)
        step(puller, engine)
    for number in range(3):
        small = QueuedRequest(
            90 + number,
            attrs.evolve(large, num_samples=2, regex=None),
            1,
            0.0,
            RequestContext(client=f"{number}"),
        )
        other = backlog.put(small)
        while not other.done():
            fill(puller, engine)
            step(puller, engine)
    assert not any(future.done() for future in many)
    engine.clear()
