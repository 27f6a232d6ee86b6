"""Three nodes of a cluster on this machine, against one process: ``python -m bench.cluster``; about three minutes.

All of it shares the same cores, so only ratios tell something: whatever is compared is measured in turns, many times,
and medians are reported.
"""

from __future__ import annotations

import argparse
import contextlib
import heapq
import itertools
import os
import pickle
import random
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from attrs import frozen

from bench.recording import Record, add_quick
from relevance_gen import ChunkIndex, Runner
from relevance_gen.retrieval.params import SearchParams
from small_models import TINY

os.environ |= {"RAY_enable_metrics_collection": "0"}
N_SHARDS = 3
N_CROWDED = 32
N_TURNS = 4
N_NODES = 16
N_ASKED = 2000
N_LONG = 3000
"""Characters of a prompt that is worth finding again: invented words, of some 2 characters a token."""


def texts(n_chars: int) -> list[str]:
    """Return chunks of invented English-like words, whose frequencies fall off as those of a language do."""
    draw = random.Random(1)
    syllables = [a + b for a in "bcdfglmnprst" for b in "aeiou"]
    words = ["".join(draw.choices(syllables, k=draw.randint(2, 5))) for _ in range(30_000)]
    weights = [1.0 / (rank + 5) for rank in range(len(words))]
    found, length = [], 0
    while length < n_chars:
        found.append(" ".join(draw.choices(words, weights, k=120)))
        length += len(found[-1])
    return found


def timed(work: Callable[[], Any]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s


def processor_s(work: Callable[[], Any]) -> float:
    """Return the processor time that this process takes for some work, in seconds."""
    begun_s = time.process_time()
    work()
    return time.process_time() - begun_s


def in_turns(rounds: int, **works: Callable[[int], Any]) -> dict[str, list[float]]:
    """Return the seconds of each work, done in turns."""
    found: dict[str, list[float]] = {name: [] for name in works}
    for number in range(rounds):
        for name, work in works.items():
            found[name].append(timed(partial(work, number)))
    return found


def note(record: Record, group: str, what: str, seconds: list[float]) -> None:
    """Record the median of some times."""
    record.add(group, what, statistics.median(seconds) * 1e3, "ms")


def ask_all(handles: list[Any]) -> None:
    """Call actors that have nothing to do, all at once: what a round costs before any work is done."""
    from relevance_gen.cluster.actors import get

    get([handle.ping.remote() for handle in handles])


def cpu_s(index: Any) -> float:
    """Return the processor time of this process and of all hosts of an index."""
    from relevance_gen.cluster.actors import get

    handles = {host.handle for shard in index._fresh().state.shards for host in shard.hosts}
    return time.process_time() + sum(
        get([handle.__ray_call__.remote(lambda _: time.process_time()) for handle in handles])
    )


def crowding(record: Record, chunks: list[str], rounds: int) -> None:
    """Compare the processor time of questions to many shards on one machine with that of one process."""
    from relevance_gen.cluster import ClusterIndex

    draw = random.Random(3)
    queries = [" ".join(draw.choices(draw.choice(chunks).split(), k=4)) for _ in range(rounds)]
    one = ChunkIndex(chunks)
    group = f"processor time of a question, {sum(map(len, chunks)) / (1 << 20):.0f} MiB"
    with ClusterIndex(chunks, n_shards=N_CROWDED) as index:
        assert index.search(queries) == one.search(queries)
        for words in ("of words asked for before", "after a change"):
            taken: dict[str, list[float]] = {"one process": [], f"{N_CROWDED} shards": []}
            for turn in range(N_TURNS):
                for what, asked in zip(taken, (one, index), strict=True):
                    if words == "after a change":
                        asked.add(["nothing"])
                        asked.search("nothing")
                    begun_s = cpu_s(index)
                    for query in queries:  # in other words each time, for rankings are remembered
                        asked.search(f"{query} {query.split()[turn]}")
                    taken[what].append((cpu_s(index) - begun_s) / rounds)
            for what, seconds in taken.items():
                note(record, group, f"{what}, {words}", seconds)
            ratio = statistics.median(
                many / alone for alone, many in zip(*taken.values(), strict=True)
            )
            record.add(group, f"as much as one process, {words}", ratio, "×", at_most=6)


@frozen
class Costs:
    """What was measured of a question, in seconds.

    Attributes:
        question: processor time of the caller, calls of three nodes among it.
        call: processor time of whoever calls an actor, for each.
        part: time to unpickle and to merge what one node tells.
        shard: processor time of a question in one shard.
        trips: some times of a call and its answer.
    """

    question: float
    call: float
    part: float
    shard: float
    trips: list[float]


def measured(chunks: list[str], rounds: int) -> Costs:
    """Measure what the simulation takes for granted, on the cluster as it is."""
    from relevance_gen.cluster import ClusterIndex
    from relevance_gen.cluster.actors import get
    from relevance_gen.retrieval.scorers import TopCandidates

    draw = random.Random(4)
    queries = [" ".join(draw.choices(draw.choice(chunks).split(), k=4)) for _ in range(rounds)]
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=N_SHARDS) as index:
        index.search(queries)
        one.search(queries)
        again = [f"{query} {query.split()[0]}" for query in queries]
        shard_s, question_s = (
            statistics.median(processor_s(partial(asked.search, query)) for query in again)
            for asked in (one, index)
        )
        collection = index._fresh()
        plan = collection.plan(collection.read(SearchParams(queries[0]))[0])
        inquiries = [*collection.ahead(plan, 50).values()]
        told = pickle.dumps(
            collection.leaders(plan, 50, None, everyone=False, n_told=8, inquiries=inquiries)
        )
        part_s = (
            processor_s(
                lambda: TopCandidates.merge([pickle.loads(told) for _ in range(N_NODES)], 50)  # noqa: S301
            )
            / N_NODES
        )
        handle = collection.state.shards[0].hosts[0].handle
        call_s = processor_s(lambda: ask_all([handle] * 1000)) / 1000
        trips = [timed(lambda: get(handle.ping.remote())) for _ in range(rounds)]
    return Costs(question_s, call_s, part_s, shard_s, trips)


def simulated(
    costs: Costs, n_shards: int, per_s: float, *, by_node: bool, hedges: bool
) -> list[float]:
    """Return how long each of some questions takes that come at random, so many a second.

    Every hundredth answer of a process takes ten times as long. A caller, and each process, does one thing at a time.

    Args:
        costs: what was measured.
        n_shards: the shards; each has a processor of its own.
        per_s: the questions.
        by_node: whether one host of each of 16 nodes is asked, once; else every shard, three times.
        hedges: whether others are asked for a node that takes more than three medians.
    """
    draw = np.random.default_rng(5)
    n_asked = N_NODES if by_node else n_shards
    n_others = n_shards // N_NODES - 1 if by_node else 0
    n_rounds = 1 if by_node else 3
    parts_s = n_asked * (costs.call + costs.part * by_node) + costs.question / n_rounds
    arrived = np.cumsum(draw.exponential(1.0 / per_s, N_ASKED)).tolist()
    waiting = [(ready_s, number, 1) for number, ready_s in enumerate(arrived)]
    caller_s, busy_s = 0.0, np.zeros(n_asked)
    taken: list[float] = []
    rounds: list[float] = []

    def answers(n: int) -> Any:
        """Return the times of a call, and of the work it asks for, of some processes."""
        alone = draw.choice(costs.trips, n) + costs.shard / n_rounds
        return alone * np.where(draw.random(n) < 0.01, 10.0, 1.0)

    def nodes(n: int) -> Any:
        """Return the times of some nodes: of one process, which asks the others, and waits for the last of them."""
        slowest = answers(n * n_others).reshape(n, n_others).max(axis=1) if n_others else 0.0
        return (
            np.maximum(answers(n), slowest + draw.choice(costs.trips, n) * bool(n_others))
            + n_others * costs.call
        )

    while waiting:
        ready_s, number, n_done = heapq.heappop(waiting)
        sent_s = max(ready_s, caller_s) + parts_s / 2
        caller_s = sent_s + parts_s / 2
        started = np.maximum(busy_s, sent_s)
        times = nodes(n_asked)
        if hedges and len(rounds) > 9:
            times = np.minimum(times, 3.0 * statistics.median(rounds[-65:]) + nodes(n_asked))
        busy_s = started + (costs.shard / n_rounds) + n_others * costs.call
        done_s = float((started + times).max()) + parts_s / 2
        rounds.append(done_s - ready_s)
        if n_done < n_rounds:
            heapq.heappush(waiting, (done_s, number, n_done + 1))
        else:
            taken.append(done_s - arrived[number])
    return taken


def simulating(record: Record, costs: Costs) -> None:
    """Say what the measured costs come to with many shards."""
    for n_shards, per_s in itertools.product((100, 1000), (2, 10, 40)):
        group = f"simulated from these costs: {n_shards:,} shards on {N_NODES} nodes, {per_s} questions a second"
        ways = {
            "every shard called, three rounds": (False, False),
            "one host of each node": (True, False),
        }
        ways["one host of each node, others after three medians"] = (True, True)
        for what, (by_node, hedges) in ways.items():
            taken = simulated(costs, n_shards, per_s, by_node=by_node, hedges=hedges)
            is_bar = hedges and (n_shards, per_s) == (1000, 10)
            record.add(group, f"{what}, median", statistics.median(taken) * 1e3, "ms", places=0)
            p99 = statistics.quantiles(taken, n=100)[98]
            record.add(
                group, f"{what}, p99", p99 * 1e3, "ms", places=0, at_most=150 if is_bar else None
            )


def resident_mib(kind: str) -> float:
    """Return the median resident memory of the processes whose names begin so."""
    sizes = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            if (entry / "comm").read_text().startswith(kind):
                sizes.append(
                    int((entry / "statm").read_text().split()[1])
                    * os.sysconf("SC_PAGESIZE")
                    / (1 << 20)
                )
    return statistics.median(sizes)


def building(record: Record, chunks: list[str], rounds: int) -> None:
    """Compare building with as many processes on one machine; tell what it takes to start the actors alone."""
    from relevance_gen.cluster import ClusterIndex

    def build(some: list[str]) -> None:
        with ClusterIndex(some, n_shards=N_SHARDS):
            pass

    found = in_turns(
        rounds,
        one=lambda _: ChunkIndex(chunks, n_jobs=N_SHARDS),
        cluster=lambda _: build(chunks),
        empty=lambda _: build(["one", "two", "three"]),
    )
    group = f"building, {sum(map(len, chunks)) / (1 << 20):.0f} MiB"
    note(record, group, f"one machine, {N_SHARDS} processes", found["one"])
    note(record, group, f"cluster, {N_SHARDS} shards", found["cluster"])
    note(record, group, f"cluster, {N_SHARDS} shards of a word", found["empty"])
    triples = list(zip(found["one"], found["cluster"], found["empty"], strict=True))
    ratio = statistics.median(one / many for one, many, _ in triples)
    record.add(
        group, "as fast as one machine, with the start of the actors", ratio, "×", at_least=0.8
    )
    ratio = statistics.median(one / (many - empty) for one, many, empty in triples)
    record.add(group, "as fast as one machine, without it", ratio, "×")


def cutting(record: Record, chunks: list[str]) -> None:
    """Cut a shard in two while it is asked: how long that takes, beside building, and what a question waits."""
    from relevance_gen.cluster import ClusterIndex, balance
    from relevance_gen.cluster.actors import get

    draw = random.Random(6)
    built_s = process_s = 0.0
    asked_s: list[list[float]] = [[], []]
    group = f"cutting a shard, {sum(map(len, chunks)) / (1 << 20):.0f} MiB"
    started_s = time.perf_counter()
    with ClusterIndex(chunks, n_shards=1) as index:
        built_s = time.perf_counter() - started_s
        handle = index._fresh().state.shards[0].hosts[0].handle

        def of_host(work: Callable[[Any], Any]) -> Any:
            return get(handle.__ray_call__.remote(work))

        def ask(times_s: list[float]) -> None:
            query = " ".join(draw.choices(draw.choice(chunks).split(), k=4))
            times_s.append(timed(partial(index.search, query)))

        for _ in range(50):
            ask(asked_s[0])
        before_s, before_bytes = of_host(lambda _: time.process_time()), of_host(_anonymous_bytes)
        most_bytes = before_bytes
        most, balance._MOST_TOKENS = balance._MOST_TOKENS, index._keeper._shards[0].size - 1
        try:
            with ThreadPoolExecutor(1) as pool:
                started_s = time.perf_counter()
                cut = pool.submit(index.rebalance)
                while not cut.done():
                    ask(asked_s[1])
                    most_bytes = max(most_bytes, of_host(_anonymous_bytes))
                cut.result()
        finally:
            balance._MOST_TOKENS = most
        cut_s, process_s = (
            time.perf_counter() - started_s,
            of_host(lambda _: time.process_time()) - before_s,
        )
        assert index.stats().num_shards > 1
    record.add(group, "built", built_s, "s")
    record.add(group, "cut in two, and one part moved to another node", cut_s, "s")
    record.add(group, "processor time of the host, with the questions", process_s, "s")
    record.add(
        group,
        "more memory of its own meanwhile",
        (most_bytes - before_bytes) / (1 << 20),
        "MiB",
        places=0,
    )
    note(record, group, "a question before", asked_s[0])
    note(record, group, "a question meanwhile", asked_s[1])
    record.add(group, "the longest meanwhile", max(asked_s[1]) * 1e3, "ms")


def _anonymous_bytes(_: Any) -> int:
    """Return the memory of this process that is not of files."""
    told = dict(
        line.split(":", 1)
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    return int(told["RssAnon"].split()[0]) << 10


def asking(record: Record, chunks: list[str], rounds: int) -> None:
    """Compare questions that are new each time, and tell what rounds cost that bring nothing."""
    from relevance_gen.cluster import ClusterIndex

    draw = random.Random(2)
    queries = [" ".join(draw.choices(draw.choice(chunks).split(), k=4)) for _ in range(rounds)]
    one = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=N_SHARDS) as index:
        assert index.search(queries[:9]) == one.search(queries[:9])
        found = in_turns(
            rounds,
            one=lambda number: one.search(f"{queries[number]} x"),
            cluster=lambda number: index.search(f"{queries[number]} x"),
        )
        group = "a question"
        note(record, group, "one process", found["one"])
        note(record, group, f"{N_SHARDS} shards on 3 nodes", found["cluster"])
        more = [many - alone for alone, many in zip(found["one"], found["cluster"], strict=True)]
        record.add(group, "more in the cluster", statistics.median(more) * 1e3, "ms", at_most=15)
        batch = [f"{query} y" for query in queries]
        record.add(
            group,
            "many at once",
            len(batch) / timed(lambda: index.search(batch)),
            "questions a second",
        )
        handles = [shard.hosts[0].handle for shard in index._fresh().state.shards]
        for n_calls in (N_SHARDS, 100, 1000):
            calls = [handles[place % len(handles)] for place in range(n_calls)]
            note(
                record,
                "a round that asks nothing",
                f"{n_calls} calls",
                [timed(partial(ask_all, calls)) for _ in range(9)],
            )
        (size, *_) = [shard.size_bytes for shard in index.stats().shards]
        group = "memory"
        record.add(
            group,
            "of a shard, for each byte of text",
            size * N_SHARDS / sum(map(len, chunks)),
            "bytes",
        )
        with ClusterIndex(["a word"], name="bench"):
            record.add(
                group,
                "an empty actor (a keeper)",
                resident_mib("ray::Keeper"),
                "MiB resident",
                places=0,
            )
        record.add(
            group,
            "a node without actors (raylet and agents)",
            _node_mib(),
            "MiB resident",
            places=0,
        )


def _node_mib() -> float:
    return sum(map(resident_mib, ("raylet", "ray::DashboardA", "ray::RuntimeEnv")))


def generating(record: Record, rounds: int) -> None:
    """Compare two runners behind one backlog with two behind a backlog each, and a first token with one process."""
    from relevance_gen.cluster import ClusterRunner

    options: dict[str, Any] = {"n_slots": 8, "n_ctx": 512, "n_threads": 1}
    requests = [
        {"text": f"request {number}", "max_tokens": 64, "seed": number} for number in range(64)
    ]

    def work(runners: list[Any]) -> None:
        futures = [
            runners[number % len(runners)].submit(request)
            for number, request in enumerate(requests)
        ]
        for future in futures:
            future.result()

    with (
        ClusterRunner(TINY, n_runners=2, **options) as cluster,
        ClusterRunner(TINY, n_runners=1, **options) as left,
        ClusterRunner(TINY, n_runners=1, **options) as right,
        Runner(TINY, **options) as alone,
    ):
        found = in_turns(
            rounds,
            separate=lambda _: work([left, right]),
            together=lambda _: work([cluster]),
            first_alone=lambda number: next(alone.stream({"text": f"a {number}", "max_tokens": 2})),
            first_cluster=lambda number: next(
                cluster.stream({"text": f"a {number}", "max_tokens": 2})
            ),
        )
    group = "64 requests for 64 tokens, two runners"
    note(record, group, "a backlog for each", found["separate"])
    note(record, group, "one backlog", found["together"])
    ratio = statistics.median(
        a / b for a, b in zip(found["separate"], found["together"], strict=True)
    )
    record.add(group, "as fast as apart", ratio, "×", at_least=0.9)
    note(record, "the first token", "one process", found["first_alone"])
    note(record, "the first token", "cluster", found["first_cluster"])


def steering(record: Record, rounds: int) -> None:
    """Compare the first token of conversations that go on, several at once, with and without prefix affinity."""
    from relevance_gen.cluster import ClusterRunner

    options: dict[str, Any] = {"n_slots": 8, "n_ctx": N_LONG, "n_threads": 1}
    words = " ".join(texts(2 * N_LONG))
    group = "first token, 4 conversations that go on, two runners"
    with (
        ClusterRunner(n_runners=2, **options) as steered,
        ClusterRunner(n_runners=2, **options) as unsteered,
    ):
        unsteered._queue._routes_by_prefix = False
        works = {"with": steered, "without": unsteered}
        first_s: dict[str, list[float]] = {name: [] for name in works}
        for number in range(rounds):
            for turn in range(4):
                for name, runner in works.items():
                    started_s, arrived_s = time.perf_counter(), list[float]()

                    def on_text(*_: Any, times: list[float] = arrived_s) -> None:
                        times.append(time.perf_counter())

                    futures = []
                    for talk in range(4):
                        beginning = f"talk {number} {talk}: {words[talk : talk + N_LONG]} "
                        request = {
                            "text": f"{beginning}{'and on ' * turn}",
                            "max_tokens": 1,
                            "seed": number,
                        }
                        futures.append(runner.submit(request, on_text=on_text))
                    for future in futures:
                        future.result()
                    if turn:
                        first_s[name] += [one_s - started_s for one_s in arrived_s]
        for name, runner in works.items():
            counters = runner.counters()
            note(record, group, f"{name} prefix affinity, median", first_s[name])
            record.add(
                group, f"{name} prefix affinity, mean", statistics.mean(first_s[name]) * 1e3, "ms"
            )
            share = counters.prompt_tokens_reused / counters.prompt_tokens
            record.add(group, f"{name} prefix affinity, prompt tokens reused", 100 * share, "%")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add_quick(parser)
    parser.add_argument("--search", action="store_true", help="only what indexes do")
    args = parser.parse_args()
    # Read when Ray is imported. Without it, Ray replaces 127.0.0.1 by the address that other machines see.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from ray.cluster_utils import Cluster

    from relevance_gen.cluster import connection

    n_chars, rounds = (4 << 20, 20) if args.quick else (64 << 20, 200)
    node: dict[str, Any] = {
        "num_cpus": 2,
        "object_store_memory": 160 << 20,
        "node_ip_address": "127.0.0.1",
    }
    cluster = Cluster(initialize_head=True, head_node_args=node | {"include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(**node)
        cluster.wait_for_nodes()
        connection.connect(cluster.address)
        chunks = texts(n_chars)
        with Record("cluster", args, is_whole=not args.search) as record:
            if not args.search:
                generating(record, max(5, rounds // 10))
                steering(record, max(3, rounds // 20))
            asking(record, chunks[: len(chunks) // 2], rounds)
            crowding(record, chunks[: len(chunks) // 4], rounds)
            simulating(record, measured(chunks[: len(chunks) // 2], rounds))
            building(record, chunks, 5)
            cutting(record, chunks)
    finally:
        connection.ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
