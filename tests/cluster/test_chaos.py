"""Questions go on while the processes of shards are killed and stopped, one every other second."""

from __future__ import annotations

import itertools
import os
import random
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest

from relevance_gen import ChunkIndex
from relevance_gen.cluster import ClusterIndex, actors
from relevance_gen.errors import ChunksMissingError, TimedOutError
from tests.cluster.shared import QUERIES, process_of, texts, until

N_REQUESTS = 3000
REQUESTS_PER_S = 25
HARM_S = 2.0
LONGEST_S = 5.0


@pytest.mark.soak
def test_questions_are_answered_while_processes_die_and_hang(cluster: Any) -> None:
    """With two replicas no answer is wrong, none is lost or comes after 5 seconds, and four fifths are whole."""
    chunks = texts(200, seed=20)
    expected = ChunkIndex(chunks).search(QUERIES)
    draw = random.Random(0)  # noqa: S311
    outcomes: Counter[str] = Counter()
    times_s: list[float] = []
    over = threading.Event()
    with ClusterIndex(chunks, n_shards=4, replicas=2) as index:

        def ask(number: int) -> None:
            time.sleep(max(0.0, begun_s + number / REQUESTS_PER_S - time.monotonic()))
            asked_s = time.monotonic()
            try:
                right = (
                    index.search(QUERIES[number % len(QUERIES)]) == expected[number % len(QUERIES)]
                )
                outcomes["whole" if right else "wrong"] += 1
            except ChunksMissingError:
                outcomes["refused"] += 1
            times_s.append(time.monotonic() - asked_s)

        def harm() -> None:
            for number in itertools.count(1):
                if over.wait(max(0.0, begun_s + number * HARM_S - time.monotonic())):
                    return
                living: list[Any] = [
                    one.handle for shard in index._fresh().state.shards for one in shard.hosts
                ]
                how = draw.choice([signal.SIGKILL, signal.SIGSTOP])
                with suppress(IndexError, actors.RayActorError, TimedOutError, ProcessLookupError):
                    os.kill(process_of(draw.choice(living), timeout_s=0.2), how)
                    outcomes[how.name] += 1

        until(lambda: index.search(QUERIES) == expected, "it is warm")
        begun_s = time.monotonic()
        with ThreadPoolExecutor(17) as pool:
            harming = pool.submit(harm)
            list(pool.map(ask, range(N_REQUESTS)))
            over.set()
            harming.result()
        print(dict(outcomes), f"longest {max(times_s):.2f} s")  # noqa: T201
        assert outcomes["wrong"] == 0
        assert len(times_s) == N_REQUESTS
        assert max(times_s) < LONGEST_S
        assert outcomes["whole"] >= 0.8 * N_REQUESTS
        until(lambda: not index.stats().errors, "all replicas are back")
        assert index.search(QUERIES) == expected
