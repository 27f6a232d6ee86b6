"""Measure an index and a model on three nodes of a cluster on this machine: ``python -m bench.cluster``.

All nodes share the cores of the machine, so only ratios are meaningful. What is compared is
measured alternately, and medians are reported.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

from bench.recording import Record, add_quick
from relevance_gen import ChunkIndex, Runner
from small_models import TINY

os.environ |= {"RAY_enable_metrics_collection": "0"}
N_SHARDS = 3
N_SMALL_SHARDS = 32
N_SMALL_INDEXES = 8
N_LONG = 3000
"""Characters of a prompt that is worth finding in a prefix cache: invented words, about 2
characters a token."""


def texts(n_chars: int) -> list[str]:
    """Return chunks of invented English-like words with the frequency distribution of a language."""
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
    """Record the median of the times."""
    record.add(group, what, statistics.median(seconds) * 1e3, "ms")


def cpu_s(index: Any) -> float:
    """Return the processor time of this process and of all searchers."""
    from relevance_gen.cluster.actors import get

    times = [
        searcher.actor.__ray_call__.remote(lambda _: time.process_time())
        for searcher in index._pool.searchers
    ]
    return time.process_time() + sum(get(times))


def queries(rounds: int) -> list[str]:
    """Return queries of four words that most chunks do not have."""
    words = " ".join(texts(200_000)).split()
    draw = random.Random(2)
    return [" ".join(draw.choices(words, k=4)) for _ in range(rounds)]


def searching(record: Record, chunks: list[str], rounds: int) -> None:
    """Compare searches of shards on three nodes with searches in one process."""
    from relevance_gen.cluster import ClusterIndex

    asked = queries(rounds)
    alone = ChunkIndex(chunks)
    with ClusterIndex(chunks, n_shards=N_SHARDS) as index:
        assert index.search(asked[0]) == alone.search(asked[0])
        found = in_turns(
            rounds,
            alone=lambda number: alone.search(asked[number]),
            cluster=lambda number: index.search(asked[number]),
        )
        group = "a question"
        note(record, group, "one process", found["alone"])
        note(record, group, f"{N_SHARDS} shards on 3 nodes", found["cluster"])
        more_s = statistics.median(found["cluster"]) - statistics.median(found["alone"])
        record.add(group, "more in the cluster", more_s * 1e3, "ms", at_most=15)
        index._current().rankings.clear()
        with ThreadPoolExecutor(16) as pool:
            seconds = timed(lambda: list(pool.map(index.search, asked)))
        record.add(group, "many at once", len(asked) / seconds, "questions a second")
    with ClusterIndex(chunks[: len(chunks) // 4], n_shards=N_SMALL_SHARDS) as index:
        small = ChunkIndex(chunks[: len(chunks) // 4])
        index.search(asked[0])
        begun_s = cpu_s(index)
        for query in asked:
            index.search(query)
        cluster_s = cpu_s(index) - begun_s
        begun_s = time.process_time()
        for query in asked:
            small.search(query)
        ratio = cluster_s / (time.process_time() - begun_s)
        record.add("processor time", f"{N_SMALL_SHARDS} shards, times one process", ratio, "×")


def changing(record: Record, chunks: list[str], rounds: int) -> None:
    """Measure durable changes, and the time from the death of a searcher to the next answer."""
    from relevance_gen.cluster import ClusterIndex
    from relevance_gen.cluster.actors import get

    with (
        tempfile.TemporaryDirectory() as location,
        ClusterIndex(chunks, location=location, n_shards=N_SHARDS) as index,
    ):
        query = queries(1)[0]
        expected = index.search(query)
        added = [timed(lambda: index.add(["one more chunk"])) for _ in range(rounds)]
        removed = [timed(partial(index.remove, [number])) for number in range(min(rounds, 20))]
        note(record, "a durable change", "add a chunk", added)
        note(record, "a durable change", "remove a chunk", removed)
        index.compact()
        sizes = {path.name: path.stat().st_size for path in Path(location).iterdir()}
        index.add(["one more chunk"])
        new = [path for path in Path(location).iterdir() if path.name not in sizes]
        n_bytes = sum(path.stat().st_size for path in new)
        record.add("a durable change", "bytes written by an add", n_bytes, "bytes")
        waited = []
        for number in range(5):
            searchers = index._pool.searchers
            actor = searchers[number % len(searchers)].actor
            pid = get(actor.__ray_call__.remote(lambda _: os.getpid()))
            index._current().rankings.clear()
            os.kill(pid, signal.SIGKILL)
            waited.append(timed(lambda: index.search(query)))
            time.sleep(3.0)
        record.add("a killed searcher", "slowest answer", max(waited) * 1e3, "ms")
        assert len(index.search(query)) == len(expected)


def building(record: Record, chunks: list[str]) -> None:
    """Compare building an index in the cluster with building it in one process."""
    from relevance_gen.cluster import ClusterIndex

    alone_s = timed(lambda: ChunkIndex(chunks))
    record.add("building", "one process", alone_s, "s")
    with ClusterIndex(chunks, n_shards=N_SHARDS):
        pass
    cluster_s = timed(lambda: ClusterIndex(chunks, n_shards=N_SHARDS).close())
    record.add("building", f"{N_SHARDS} shards on 3 nodes", cluster_s, "s")


def small_indexes(record: Record, chunks: list[str]) -> None:
    """Measure the time and the memory of several small indexes with new searchers."""
    from relevance_gen.cluster import ClusterIndex

    indexes = []
    begun_s = time.perf_counter()
    for number in range(N_SMALL_INDEXES):
        indexes.append(ClusterIndex(chunks[:100], name=f"small {number}"))
        indexes[-1].search("a question")
    seconds = time.perf_counter() - begun_s
    group = f"{N_SMALL_INDEXES} small named indexes"
    record.add(group, "made and searched", seconds, "s")
    memory_mib, n_processes = actor_memory()
    record.add(group, "memory of all actors", memory_mib, "MiB")
    record.add(group, "actors", n_processes, "processes")
    for index in indexes:
        index.close()


def actor_memory() -> tuple[float, int]:
    """Return the proportional memory of the actors of this library in MiB, and their number."""
    total_kib = n_processes = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            if title.startswith(("ray::ShardSearcher", "ray::NameRegistry")):
                for line in (folder / "smaps_rollup").read_text().splitlines():
                    if line.startswith("Pss:"):
                        total_kib += int(line.split()[1])
                n_processes += 1
        except OSError:
            continue
    return total_kib / 1024, n_processes


def generating(record: Record, rounds: int) -> None:
    """Compare two runners with a shared backlog and with separate backlogs, and the time to a first token."""
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
    parser.add_argument("--search", action="store_true", help="measure only indexes")
    args = parser.parse_args()
    # Read when Ray is imported. Without it, Ray replaces 127.0.0.1 by the address that other
    # machines see.
    os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
    from ray.cluster_utils import Cluster

    from relevance_gen.cluster import connection

    n_chars, rounds = (4 << 20, 20) if args.quick else (64 << 20, 200)
    node: dict[str, Any] = {
        "num_cpus": 1,
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
            small_indexes(record, chunks)
            searching(record, chunks, rounds)
            changing(record, chunks[: len(chunks) // 4], max(10, rounds // 4))
            building(record, chunks)
    finally:
        connection.ray.shutdown()
        cluster.shutdown()


if __name__ == "__main__":
    main()
