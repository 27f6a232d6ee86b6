"""ExecutionTuner: choosing the fastest strategy while the load of the machine changes."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.execution_tuner import ExecutionTuner, Strategy
from small_models import BIGRAM, TINY


class Machine:
    """A simulated machine with given step times, whose clock advances only by its own steps."""

    def __init__(self, cost, max_threads=2, min_threads=1):
        self.now_s = 0.0
        self.cost = cost
        self.used = []
        self.pace = ExecutionTuner(max_threads, min_threads, lambda: self.now_s)

    def steps(self, seconds, n_rows=1, *, can_split=True):
        """Compute steps for a time; return the number of steps per second."""
        begun_s, n_steps = self.now_s, 0
        while self.now_s < begun_s + seconds:
            way = self.pace.strategy(n_rows, can_split=can_split)
            taken_s = self.cost(n_rows, way)
            self.now_s += taken_s
            self.used.append(way)
            self.pace.record(n_rows, way, taken_s)
            n_steps += 1
        return n_steps / (self.now_s - begun_s)


def quiet(n_rows, way):
    return 0.007 * n_rows / way.n_threads


def one_core_is_taken(n_rows, way):
    return 0.007 * n_rows * (1 if way.n_threads == 1 else 12)


def test_idle_machine_uses_all_threads():
    """Trials cost at most a twentieth of the time."""
    assert Machine(quiet, 16).steps(20) >= 0.95 * 16 / 0.007
    assert Machine(quiet, 2).steps(20) >= 0.95 * 2 / 0.007


def test_busy_core_leads_to_one_thread():
    """At least nine tenths of the throughput of one thread is reached."""
    assert Machine(one_core_is_taken).steps(20) >= 0.9 / 0.007


def test_free_core_restores_all_threads():
    """The choice of fewer threads is temporary."""
    machine = Machine(quiet)
    machine.steps(5)
    machine.cost = one_core_is_taken
    machine.steps(5)
    assert machine.used[-1] == Strategy(1)
    machine.cost = quiet
    machine.steps(60)
    assert machine.used[-1] == Strategy(2)
    assert machine.steps(5) >= 0.95 * 2 / 0.007


def test_rare_fast_steps_do_not_change_the_strategy():
    """If two threads are only sometimes as fast as one thread, one thread is used nearly always."""
    chance = random.Random(1)  # noqa: S311

    def cost(_, way):
        return 0.0075 if way.n_threads == 1 else chance.choice([0.007, 0.05, 0.1, 0.09])

    assert Machine(cost).steps(30) >= 0.9 / 0.0075


@pytest.mark.parametrize("n_rows", [2, 3, 4, 7])
def test_faster_split_rows_are_used_if_allowed(n_rows):
    """Rows are computed separately only if they have the same bits."""

    def cost(n_rows, way):
        return n_rows * (0.0065 if way.row_by_row else 0.011)

    assert Machine(cost).steps(10, n_rows) >= 0.95 / 0.0065 / n_rows
    together = Machine(cost)
    together.steps(1, n_rows, can_split=False)
    assert not any(way.row_by_row for way in together.used)


def test_large_and_single_row_batches_are_never_split():
    """Batches of one row, and of eight or more, are not tried row by row."""
    for n_rows in (1, 8, 500):
        machine = Machine(quiet)
        machine.steps(1, n_rows)
        assert not any(way.row_by_row for way in machine.used)


def test_unsplittable_rows_are_computed_together_immediately():
    """A size that was split before is computed as a batch as soon as splitting is not allowed."""
    machine = Machine(lambda n_rows, way: n_rows * (0.001 if way.row_by_row else 0.01))
    machine.steps(2, 3)
    assert machine.used[-1].row_by_row
    assert not machine.pace.strategy(3, can_split=False).row_by_row


def test_unsplittable_rows_still_try_thread_counts():
    """Also if splittable batches of the same size are computed row by row."""
    machine = Machine(
        lambda n_rows, way: n_rows * (0.001 if way.row_by_row else 0.002 * way.n_threads**2)
    )
    machine.steps(2, 3)
    assert machine.used[-1].row_by_row
    machine.steps(20, 3, can_split=False)
    assert machine.used[-1] == Strategy(1)


@given(
    max_threads=st.integers(1, 64),
    min_threads=st.integers(1, 64),
    steps=st.lists(
        st.tuples(st.integers(1, 600), st.floats(1e-6, 1e3), st.booleans()), max_size=60
    ),
)
def test_strategies_respect_their_limits(max_threads, min_threads, steps):
    """Threads are between minimum and maximum, and only allowed batches of 2 to 7 rows are split."""
    min_threads = min(min_threads, max_threads)
    now_s = 0.0
    pace = ExecutionTuner(max_threads, min_threads, lambda: now_s)
    for n_rows, seconds, can_split in steps:
        way = pace.strategy(n_rows, can_split=can_split)
        assert min_threads <= way.n_threads <= max_threads
        assert not way.row_by_row or (can_split and 2 <= n_rows <= 7)
        now_s += seconds
        pace.record(n_rows, way, seconds)


class Script:
    """A tuner that returns given strategies in rotation."""

    def __init__(self, *ways):
        self.ways = [*ways]

    def strategy(self, _, *, can_split=False):
        """Return the next strategy; rows are split only if allowed."""
        self.ways.append(self.ways.pop(0))
        return self.ways[-1] if can_split else Strategy(self.ways[-1].n_threads)

    def timing(self, *_):
        """Record nothing."""
        return nullcontext()


def rows_of(path, *ways, **options):
    """Return the logits of steps of three sequences, computed with these strategies."""
    with Decoder(path, ModelOptions(n_ctx=256, n_slots=3, n_threads=2, **options)) as model:
        model._decode_tuner = model._prefill_tuner = Script(*ways)
        prompts = [np.arange(5, 5 + length, dtype=np.int32) for length in (9, 17, 30)]
        logits = [
            model.prefill([slot], [prompt], [0]).copy() for slot, prompt in enumerate(prompts)
        ]
        for step in range(6):
            starts = [len(prompt) + step for prompt in prompts]
            logits.append(model.decode([0, 1, 2], [7 + step, 8, 9], starts).copy())
        return np.concatenate(logits), model._differing_row_counts


@pytest.mark.parametrize("path", [TINY, BIGRAM], ids=["tiny", "bigram"])
def test_strategies_give_identical_bits(path):
    """Changing threads and splitting at each step gives the logits of a constant strategy."""
    expected, _ = rows_of(path, Strategy(2))
    changing, differing = rows_of(
        path, Strategy(1), Strategy(2, row_by_row=True), Strategy(2), Strategy(1, row_by_row=True)
    )
    assert differing or np.array_equal(expected, changing)
    alone, _ = rows_of(path, Strategy(1), Strategy(2))
    assert np.array_equal(expected, alone)


def test_rows_with_different_bits_are_not_split(monkeypatch):
    """If separate rows have different bits, the size is computed as a batch from then on."""
    computed = Decoder._decode

    def rounded(self, slots, tokens, positions, way):
        logits = computed(self, slots, tokens, positions, way)
        return np.nextafter(logits, np.float32(np.inf)) if way.row_by_row else logits

    expected, _ = rows_of(TINY, Strategy(1))
    monkeypatch.setattr(Decoder, "_decode", rounded)
    found, differing = rows_of(TINY, Strategy(1, row_by_row=True))
    assert differing == {3}
    assert np.array_equal(expected, found)


@pytest.mark.parametrize("options", [{"n_threads": 2}, {"flash_attention": True}], ids=str)
def test_threads_are_fixed_if_requested_or_with_flash_attention(options):
    """The number of threads does not change if it is requested or could change the bits."""
    with Decoder(TINY, ModelOptions(n_ctx=256, n_slots=2, **options)) as model:
        assert {model._decode_tuner.strategy(1).n_threads for _ in range(5)} == {model.n_threads}
        assert len(model._decode_tuner._thread_counts) == 1
