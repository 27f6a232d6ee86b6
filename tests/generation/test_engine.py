"""The engine on a scripted model: whatever comes when, each request gets what it would get alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.errors import GenerationError, InvalidRequestError
from relevance_gen.generation.cache import PrefixCache
from relevance_gen.generation.engine import Engine
from relevance_gen.generation.jobs import NO_STATE, Job
from relevance_gen.generation.stopping import NO_STOPS
from relevance_gen.types import GenerationRequest
from tests.generation.scripted import ScriptedModel, next_logits
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
    logprobs=st.booleans(),
    return_tokens=st.just(True),
    seed=st.integers(0, 5),
)


class Recorder:
    """Collects everything a job is told."""

    def __init__(self, request, on_text=None):
        self.outcomes, self.texts = [], ["" for _ in range(request.num_samples)]
        self.job = Job(request, 0.0, on_text or self._take, self.outcomes.append)

    def _take(self, sample, text):
        assert text
        self.texts[sample] += text


def run(engine, jobs, gaps=()):
    """Step until idle; let `gaps[i]` steps pass before job i arrives."""
    for job, gap in zip(jobs, [*gaps, *[0] * len(jobs)], strict=False):
        for _ in range(gap):
            engine.step()
        engine.add(job)
    for _ in range(5000):
        if engine.idle:
            return
        engine.step()
    raise AssertionError("the engine does not come to an end")


def alone(request):
    recorder = Recorder(request)
    run(Engine(ScriptedModel(1), PrefixCache(0), clock=lambda: 0.0), [recorder.job])
    return recorder.outcomes[0]


@given(
    requests=st.lists(requests, max_size=6),
    gaps=st.lists(st.integers(0, 6), max_size=6),
    n_slots=st.integers(1, 5),
    n_bytes=st.sampled_from([0, 50, 10_000]),
)
def test_batched_is_the_same_as_alone(requests, gaps, n_slots, n_bytes):
    """Any requests, in any order of arrival, on any number of slots, cached or not: each gets its own, once."""
    model = ScriptedModel(n_slots)
    engine = Engine(model, PrefixCache(n_bytes), clock=lambda: 0.0)
    recorders = [Recorder(request) for request in requests]
    run(engine, [recorder.job for recorder in recorders], gaps)
    for request, recorder in zip(requests, recorders, strict=True):
        assert recorder.outcomes == [alone(request)]
        assert recorder.texts == [completion.text for completion in recorder.outcomes[0].responses]
    assert model.slots == [[]] * n_slots
    assert all(recorder.job.state is NO_STATE for recorder in recorders)
    assert engine.n_waiting == 0


@given(
    requests=st.lists(requests, min_size=1, max_size=6),
    cancels=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 20)), max_size=6),
    interrupt=st.booleans(),
)
def test_cancelling_frees_everything_and_changes_nobody_else(requests, cancels, interrupt):
    """A cancelled request is never heard of again, and all others get what they would get alone."""
    model = ScriptedModel(3)
    engine = Engine(model, PrefixCache(1000), clock=lambda: 0.0)
    recorders = [Recorder(request) for request in requests]
    for recorder in recorders:
        engine.add(recorder.job)
    step = 0
    while not engine.idle:
        for which, when in cancels:
            if when == step and which < len(recorders) and not recorders[which].outcomes:
                recorders[which].job.cancelled = True
                model.interrupted = interrupt
        engine.drop_cancelled()
        engine.step()
        step += 1
        assert step < 2000
    engine.drop_cancelled()
    for request, recorder in zip(requests, recorders, strict=True):
        assert recorder.outcomes == ([] if recorder.job.cancelled else [alone(request)])
    assert model.slots == [[]] * 3
    assert all(recorder.job.state is NO_STATE for recorder in recorders)
    assert engine.n_waiting == 0


def test_greedy_text_is_what_asking_for_one_token_after_another_gives():
    """Temperature 0 yields the likeliest token after each history."""
    request = GenerationRequest("hello", max_tokens=10, temperature=0, return_tokens=True)
    tokens = [ord(c) % 16 for c in "hello"]
    assert list(alone(request).responses[0].tokens) == greedy(next_logits, tokens, 10)


def test_the_prompt_is_computed_once_for_all_samples():
    """Eight samples of a 12-token prompt compute 12 prompt tokens, not 96."""
    model = ScriptedModel(8)
    run(Engine(model, PrefixCache(0)), [Recorder(GenerationRequest("a" * 12, max_tokens=1, num_samples=8)).job])
    assert model.n_computed == 12


def test_a_long_prompt_delays_the_others_by_one_chunk_a_step():
    """While a 36-token prompt is computed, a running sequence gets a token in every step."""
    engine = Engine(ScriptedModel(2), PrefixCache(0))
    first = Recorder(GenerationRequest("a", max_tokens=30, num_samples=1))
    engine.add(first.job)
    engine.step()
    engine.add(Recorder(GenerationRequest("b" * 36, max_tokens=1)).job)
    for steps in range(1, 9):
        engine.step()
        assert len(first.texts[0]) == steps + 1


def test_long_texts_that_are_refused_delay_the_others_by_one_text_a_step():
    """Reading long texts takes turns with the running sequences, however many wait; short ones are read at once."""
    engine = Engine(ScriptedModel(2), PrefixCache(0))
    running = Recorder(GenerationRequest("a", max_tokens=30))
    long = [Recorder(GenerationRequest("b" * 100_000)) for _ in range(5)]
    short = [Recorder(GenerationRequest("b" * 100)) for _ in range(5)]
    for recorder in (running, *long, *short):
        engine.add(recorder.job)
    for steps in range(1, 6):
        engine.step()
        assert len(running.texts[0]) == steps
        assert sum(len(recorder.outcomes) for recorder in long) == steps
    engine.step()
    assert all(recorder.outcomes for recorder in short)


def test_a_known_prefix_is_not_computed_again():
    """A repeated prompt computes only its last, partial chunk; one with the same beginning, what differs."""
    model = ScriptedModel(1)
    engine = Engine(model, PrefixCache(1000))
    for text, computed in (("a" * 18, 18), ("a" * 18, 2), ("a" * 17 + "b", 2), ("a" * 9 + "b" * 9, 10), ("a" * 16, 4)):
        before = model.n_computed
        run(engine, [Recorder(GenerationRequest(text, max_tokens=1)).job])
        assert model.n_computed - before == computed
    assert engine.counters.prefix_cache_hits == 4


@pytest.mark.parametrize(("n_bytes", "n_saved"), [(0, 0), (89, 0), (90, 1)])
def test_a_prompt_that_the_cache_cannot_hold_is_not_saved(n_bytes, n_saved):
    """18 tokens of four bytes and a state of 18 are saved where 90 bytes may be held, and not copied otherwise."""
    model = ScriptedModel(1)
    run(Engine(model, PrefixCache(n_bytes)), [Recorder(GenerationRequest("a" * 18, max_tokens=1)).job])
    assert model.n_saved == n_saved


@pytest.mark.parametrize("n_tokens", [40, 41])
def test_a_prompt_without_room_for_a_token_is_refused(n_tokens):
    """n_ctx tokens of prompt or more are an error that names the field; the next request is served."""
    engine = Engine(ScriptedModel(1), PrefixCache(0))
    refused, served = Recorder(GenerationRequest("a" * n_tokens)), Recorder(GenerationRequest("a", max_tokens=1))
    run(engine, [refused.job, served.job])
    assert isinstance(refused.outcomes[0], InvalidRequestError)
    assert refused.outcomes[0].field == "text"
    assert served.outcomes[0].prompt_tokens == 1


def test_a_prompt_of_no_tokens_is_refused():
    """Where the model gives nothing to start from, an empty text is an error that names the field."""
    recorder = Recorder(GenerationRequest(""))
    run(Engine(ScriptedModel(1), PrefixCache(0)), [recorder.job])
    assert recorder.outcomes[0].field == "text"


def test_stop_strings_are_compiled_when_their_turn_comes():
    """A request that waits holds no automaton: one takes hundreds of bytes for every character of its stop strings."""
    engine = Engine(ScriptedModel(1), PrefixCache(0))
    running, head, waiting = (
        Recorder(GenerationRequest("a", max_tokens=3, stop=["stop" * 1000])).job for _ in range(3)
    )
    for job in (running, head, waiting):
        engine.add(job)
    engine.step()
    assert len(running.stops.depth) == 4001
    assert waiting.stops is NO_STOPS
    run(engine, [])
    assert len(waiting.stops.depth) == 4001


def test_a_full_context_ends_a_sample():
    """Prompt and generated tokens fill n_ctx to the last one, then the reason is "length"."""
    completion = alone(GenerationRequest("a" * 35, max_tokens=100)).responses[0]
    assert (completion.generated_tokens, completion.finish_reason) == (5, "length")


def test_a_callback_that_raises_fails_its_own_request_only():
    """The request gets the callback's error, its slots are free, and the others go on."""

    def explode(sample, text):
        raise KeyError(text)

    model = ScriptedModel(3)
    bad = Recorder(GenerationRequest("a", max_tokens=5, num_samples=4), explode)
    good = GenerationRequest("b", max_tokens=5, seed=1)
    recorder = Recorder(good)
    run(Engine(model, PrefixCache(0), clock=lambda: 0.0), [bad.job, recorder.job])
    assert [type(outcome) for outcome in bad.outcomes] == [KeyError]
    assert recorder.outcomes == [alone(good)]
    assert model.slots == [[]] * 3


@pytest.mark.parametrize("call", ["prefill", "decode"])
def test_a_failing_model_fails_every_waiter(call):
    """Whatever the model was doing, `abort` answers queued and running requests alike, each once."""

    def fail(name):
        if name == call and len(recorders[0].texts[0]) >= (name == "decode"):
            raise GenerationError("broken")

    engine = Engine(ScriptedModel(2, on_call=fail), PrefixCache(0))
    recorders = [Recorder(GenerationRequest("a", max_tokens=9, num_samples=2)) for _ in range(3)]
    with pytest.raises(GenerationError) as caught:
        run(engine, [recorder.job for recorder in recorders])
    engine.abort(caught.value)
    assert [recorder.outcomes for recorder in recorders] == [[caught.value]] * 3
    assert engine.idle
    assert engine.n_waiting == 0


def test_more_samples_than_slots_take_turns():
    """Twenty samples on three slots all come, each once, in order, with seeds of their own."""
    request = GenerationRequest("a", max_tokens=6, num_samples=20, return_tokens=True, seed=3)
    recorder = Recorder(request)
    run(Engine(ScriptedModel(3), PrefixCache(0)), [recorder.job])
    tokens = [completion.tokens for completion in recorder.outcomes[0].responses]
    assert len(tokens) == 20
    assert len(set(tokens)) > 15
