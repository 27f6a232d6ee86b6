"""Long runs, by `make soak` only."""

import gc
import random
import threading
from concurrent.futures import CancelledError
from pathlib import Path

import pytest

from relevance_gen.errors import OverloadedError
from relevance_gen.generation.runner import Runner
from relevance_gen.types import GenerationRequest, Stats
from small_models import TINY


def resident_bytes() -> int:
    """Return the memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.soak
def test_ten_thousand_requests_are_all_accounted_for_and_memory_stays_flat():
    """10,000 requests from four threads, many of them cancelled, end exactly once each, and memory does not grow."""
    n_requests, n_threads = 10_000, 4
    outcomes = {"finished": 0, "cancelled": 0, "refused": 0}
    held = []
    lock = threading.Lock()

    def client(number: int) -> None:
        rng = random.Random(number)  # noqa: S311 - no secret
        for _ in range(n_requests // n_threads):
            request = GenerationRequest(
                "A prompt that is sometimes long. " * rng.choice([1, 1, 3, 12]) + str(rng.random()),
                max_tokens=rng.randint(1, 30),
                num_samples=rng.choice([1, 1, 1, 2, 5, 20]),
                stop=rng.choice([[], ["e"]]),
                presence_penalty=rng.choice([0, 1]),
            )
            try:
                future = runner.submit(request)
            except OverloadedError:
                outcome = "refused"
            else:
                if rng.random() < 1 / 3:
                    threading.Timer(rng.random() / 50, future.cancel).start()
                try:
                    assert future.result(timeout=60).num_samples == request.num_samples
                    outcome = "finished"
                except CancelledError:
                    outcome = "cancelled"
            with lock:
                outcomes[outcome] += 1
                if sum(outcomes.values()) % (n_requests // 10) == 0:
                    gc.collect()
                    held.append(resident_bytes())

    with Runner(
        TINY, n_slots=8, n_ctx=1024, n_threads=1, max_queue=100, prefix_cache_bytes=4 << 20
    ) as runner:
        clients = [threading.Thread(target=client, args=(number,)) for number in range(n_threads)]
        for thread in clients:
            thread.start()
        for thread in clients:
            thread.join()
        runner.generate(GenerationRequest("the last one", max_tokens=1))
        counters = runner.counters()
        assert runner.stats() == Stats(backlog=0, num_total_runners=1)
    assert sum(outcomes.values()) == n_requests
    served = counters.requests_finished + counters.requests_cancelled - 1
    assert served == outcomes["finished"] + outcomes["cancelled"]
    assert counters.requests_finished > outcomes["finished"]
    assert counters.requests_failed == 0
    assert outcomes["cancelled"] > n_requests / 100
    assert max(held[3:]) - held[2] < 8 << 20
    print(outcomes, counters, [f"{each >> 20} MiB" for each in held])  # noqa: T201 - `make soak` shows it with -s
