"""A program that cuts the network between the two nodes of a cluster, and counts correct answers meanwhile.

`test_network` runs it as the first process of its own namespaces of networks and process ids. When
it ends, the kernel ends all processes of the cluster and removes the networks.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray.cluster_utils import Cluster

from relevance_gen import ChunkIndex
from relevance_gen.cluster import ClusterIndex, connection
from relevance_gen.cluster.connection import living_nodes
from relevance_gen.cluster.search import searchers
from relevance_gen.errors import ClusterError
from tests.cluster.shared import QUERIES, RESTORED_S, forget_rankings, texts, until

CUT_S = 10.0
MIN_ANSWERS = 50
"""Number of answers after which a phase ends at the earliest, so that it has answers on a loaded machine, too."""
N_THREADS = 2
PAUSE_S = 0.02
"""Pause of a thread between two searches."""
HEAD_ADDRESS, OTHER_ADDRESS = "10.77.0.1", "10.77.0.2"
HEAD_DEVICE, OTHER_DEVICE = "cut0", "cut1"
HOLDER = ["unshare", "--net", "sleep", "infinity"]
"""A process that keeps the second namespace."""
STORE_BYTES = 80 << 20
HEAD: dict[str, Any] = {
    "num_cpus": 1,
    "object_store_memory": STORE_BYTES,
    "node_ip_address": HEAD_ADDRESS,
    "include_log_monitor": False,
    "include_dashboard": False,
    "no_monitor": True,
}
OTHER = [
    f"--node-ip-address={OTHER_ADDRESS}",
    "--num-cpus=1",
    f"--object-store-memory={STORE_BYTES}",
]


def run(*command: str) -> None:
    """Run a command, and write its output to the error stream."""
    subprocess.run(command, check=True, stdout=sys.stderr)


@contextmanager
def second_network() -> Iterator[list[str]]:
    """Create a second network namespace, and link it with the namespace of this process.

    Yields:
        The beginning of a command; it runs the rest of the command in the second namespace.
    """
    own = os.readlink("/proc/self/ns/net")
    with subprocess.Popen(HOLDER) as holder:
        path = f"/proc/{holder.pid}/ns/net"
        try:
            until(lambda: os.readlink(path) != own, "the second namespace exists")
            inside = ["nsenter", f"--net={path}"]
            peer = ["peer", "name", OTHER_DEVICE, "netns", str(holder.pid)]
            run("ip", "link", "add", HEAD_DEVICE, "type", "veth", *peer)
            enable([], HEAD_DEVICE, HEAD_ADDRESS)
            enable(inside, OTHER_DEVICE, OTHER_ADDRESS)
            yield inside
        finally:
            holder.kill()


def enable(inside: list[str], device: str, address: str) -> None:
    """Give an address to a device, and enable the device and the loopback device of its namespace."""
    run(*inside, "ip", "address", "add", f"{address}/24", "dev", device)
    for name in ("lo", device):
        run(*inside, "ip", "link", "set", name, "up")


@contextmanager
def two_nodes() -> Iterator[str]:
    """Start a cluster of two nodes, each in its own network, and join it.

    Yields:
        The id of the node in the second network.
    """
    with second_network() as inside:
        # The namespaces end all processes, so the cluster needs no shutdown.
        started = Cluster(initialize_head=True, head_node_args=HEAD, shutdown_at_exit=False)
        ray_start = [sys.executable, "-m", "ray.scripts.scripts", "start"]
        run(*inside, *ray_start, f"--address={started.address}", *OTHER)
        connection.connect(started.address)
        until(lambda: len(living_nodes()) == 2, "both nodes are alive")
        yield next(node.id for node in living_nodes() if node.address == OTHER_ADDRESS)


class Asker:
    """Threads that search an index all the time, and compare each answer with the one of `ChunkIndex`.

    Attributes:
        outcomes: number of searches by outcome: right, wrong, or refused with a `ClusterError`.
        slowest_s: duration of the slowest search, in seconds.
    """

    def __init__(self, index: ClusterIndex, one: ChunkIndex) -> None:
        self.outcomes: Counter[str] = Counter()
        self.slowest_s = 0.0
        self._index = index
        self._expected = {query: compared(one.search(query)) for query in QUERIES}
        self._is_over = threading.Event()
        self._threads = ThreadPoolExecutor(N_THREADS)
        self._searching = [self._threads.submit(self._search, n) for n in range(N_THREADS)]

    def _search(self, query_ord: int) -> None:
        while not self._is_over.wait(PAUSE_S):
            query_ord += 1
            query = QUERIES[query_ord % len(QUERIES)]
            forget_rankings(self._index)
            begun_s = time.monotonic()
            try:
                is_right = compared(self._index.search(query)) == self._expected[query]
                self.outcomes["right" if is_right else "wrong"] += 1
            except ClusterError:
                self.outcomes["refused"] += 1
            self.slowest_s = max(self.slowest_s, time.monotonic() - begun_s)

    def await_answers(self) -> None:
        """Wait until `MIN_ANSWERS` more searches have ended, except those that run already."""
        n_awaited = self.outcomes.total() + N_THREADS + MIN_ANSWERS
        until(lambda: self.outcomes.total() >= n_awaited, f"{MIN_ANSWERS} searches end")

    def end(self) -> None:
        """End the threads; an unexpected error of a search is raised here."""
        self._is_over.set()
        for searching in self._searching:
            searching.result(RESTORED_S)


def compared(response: Any) -> tuple[Any, ...]:
    """Return an answer in a form in which equal means the same bits."""
    return response, response.confidence, response.metadata


def note_searched(folder: str, metadata: Any) -> bool:
    """Create a file that is named after the node of this process and a chunk; runs on searchers."""
    node_id = ray.get_runtime_context().get_node_id()
    Path(folder, f"{node_id} {metadata['id']}").touch()
    return True


def searched_by_node(index: ClusterIndex, folder: str) -> dict[str, set[str]]:
    """Search, and return the ids of the chunks that each node has searched, by the node's id.

    If a searcher did not respond in time, another has searched the same chunks.
    """
    own_folder = tempfile.mkdtemp(dir=folder)
    index.search(QUERIES[0], where=partial(note_searched, own_folder))
    searched = defaultdict(set)
    for path in Path(own_folder).iterdir():
        node_id, chunk_id = path.name.split()
        searched[node_id].add(chunk_id)
    return dict(searched)


def cut_and_restore(index: ClusterIndex, one: ChunkIndex, node_id: str) -> dict[str, Any]:
    """Search an index while the link to a node is cut for `CUT_S` and restored.

    Args:
        index: the index.
        one: an index with the same chunks.
        node_id: id of the node to cut.

    Returns:
        For each outcome the number of searches; the number of searches during the cut; the duration
        of the slowest search, in seconds; and the time from the end of the cut until the nodes
        share the chunks as before, in seconds.
    """
    with tempfile.TemporaryDirectory() as folder:
        until(lambda: len(searched_by_node(index, folder)) == 2, "both nodes search")
        shares: list[dict[str, set[str]]] = []

        def are_shared_once() -> bool:
            shares.append(searched_by_node(index, folder))
            return sum(map(len, shares[-1].values())) == len(one)

        until(are_shared_once, "each chunk is searched by one node")
        before = shares[-1]
        assert before.keys() == {node.id for node in living_nodes()}
        asker = Asker(index, one)
        asker.await_answers()
        (cut,) = [searcher for searcher in index._pool.searchers if searcher.node_id == node_id]
        run("ip", "link", "set", HEAD_DEVICE, "down")
        n_before_cut = asker.outcomes.total()
        ping = cut.actor.ping.remote()
        time.sleep(CUT_S)
        asker.await_answers()
        n_during_cut = asker.outcomes.total() - n_before_cut
        assert not ray.wait([ping], timeout=0)[0], "the network was not cut"
        run("ip", "link", "set", HEAD_DEVICE, "up")
        restored_s = time.monotonic()
        until(lambda: searched_by_node(index, folder) == before, "the cut node has its share again")
        whole_s = time.monotonic() - restored_s
        asker.await_answers()
        asker.end()
    report = {name: asker.outcomes[name] for name in ("right", "wrong", "refused")}
    times = {"slowest_s": asker.slowest_s, "whole_s": whole_s}
    return report | {"during_cut": n_during_cut} | times


def main(location: str) -> None:
    """Build an index at a location, cut the network, and print the report as JSON."""
    searchers.MIN_SEARCHER_TOKENS = 1  # divide a small index among all searchers
    chunks = [{"text": text, "metadata": {"id": n}} for n, text in enumerate(texts(60, seed=30))]
    with two_nodes() as node_id, ClusterIndex(chunks, n_shards=6, location=location) as index:
        until(lambda: len(index._pool.searchers) == 2, "both nodes have searchers")
        report = cut_and_restore(index, ChunkIndex(chunks), node_id)
    sys.stdout.write(json.dumps(report))


if __name__ == "__main__":
    main(sys.argv[1])
