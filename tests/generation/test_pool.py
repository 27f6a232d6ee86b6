"""A pool of runners: one queue, one sum, and no single point of failure."""

import pytest

from relevance_gen.errors import GenerationError, ModelLoadError, OverloadedError, RunnerClosedError
from relevance_gen.generation.pool import RunnerPool
from relevance_gen.generation.runner import Runner
from relevance_gen.types import GenerationRequest, Stats
from tests.generation.test_runner import ENDLESS, small_runner, until
from tests.models import TINY


def test_work_is_shared_and_summed():
    """Two runners serve one queue: both take part, responses are whole, counters add up."""
    request = GenerationRequest("a", max_tokens=20, num_samples=2)
    with RunnerPool([small_runner(), small_runner()]) as pool:
        assert pool.stats() == Stats(backlog=0, num_total_runners=2)
        futures = [pool.submit(request) for _ in range(30)]
        assert all(future.result().num_samples == 2 for future in futures)
        assert all(runner.served().requests_finished > 3 for runner in pool.runners)
        assert pool.counters().generated_tokens == 30 * 2 * 20
        assert "".join(piece.text for piece in pool.stream(GenerationRequest("a", max_tokens=3)))
    assert pool.stats() == Stats(0, 0)
    with pytest.raises(RunnerClosedError):
        pool.submit(request)


def test_what_waited_at_a_runner_waits_in_the_pool():
    """Requests submitted before the pool was made are served by it."""
    runner = Runner(TINY, n_threads=1, wait=False)
    futures = [runner.submit(GenerationRequest("a", max_tokens=2)) for _ in range(5)]
    with RunnerPool([runner]):
        assert all(future.result(timeout=20).num_samples == 1 for future in futures)


def test_the_pool_goes_on_when_a_runner_dies():
    """What the dead runner was generating fails; everything else is served by the one that lives."""
    with RunnerPool([small_runner(n_slots=1), small_runner(n_slots=1)]) as pool:
        endless = [pool.submit(ENDLESS) for _ in range(2)]
        until(lambda: all(runner.counters().generated_tokens for runner in pool.runners))
        waiting = [pool.submit(GenerationRequest("a", max_tokens=2)) for _ in range(5)]
        pool.runners[0]._engine._model._vocabulary = None
        outcomes = [future.exception(timeout=20) for future in endless]
        assert [type(outcome) for outcome in outcomes].count(GenerationError) == 1
        assert all(future.result(timeout=20).num_samples == 1 for future in waiting)
        assert pool.stats().num_total_runners == 1
        assert pool.alive


def test_the_last_runners_death_answers_everybody():
    """When none is left, waiting requests fail and new ones are refused with the reason."""
    pool = RunnerPool([small_runner(n_slots=1)])
    futures = [pool.submit(ENDLESS) for _ in range(4)]
    until(lambda: pool.counters().generated_tokens > 0)
    pool.runners[0]._engine._model._vocabulary = None
    assert {type(future.exception(timeout=20)) for future in futures} == {GenerationError}
    with pytest.raises(RunnerClosedError, match="thread failed"):
        pool.submit(ENDLESS)
    pool.close()


def test_a_runner_that_does_not_load_is_no_loss(tmp_path):
    """A pool of one good and one bad model serves with the good one."""
    good, bad = small_runner(), Runner(tmp_path / "missing.gguf", wait=False)
    with pytest.raises(ModelLoadError):
        bad.wait_ready()
    with RunnerPool([bad, good]) as pool:
        assert pool.generate(GenerationRequest("a", max_tokens=2)).num_samples == 1
        assert pool.stats().num_total_runners == 1


def test_the_queue_of_a_pool_is_bounded():
    """max_queue counts what waits for all runners together."""
    pool = RunnerPool([small_runner(n_slots=1), small_runner(n_slots=1)], max_queue=2)
    for _ in range(2):
        pool.submit(ENDLESS)
    until(lambda: pool.stats().backlog == 0)
    for _ in range(2):
        pool.submit(ENDLESS)
    with pytest.raises(OverloadedError):
        pool.submit(ENDLESS)
    pool.close(drain=False)


def test_a_pool_of_nothing_is_an_error():
    """At least one runner is needed."""
    with pytest.raises(ValueError, match="at least one"):
        RunnerPool([])
