"""A real cluster of three nodes on this machine, started once for all tests; skipped where Ray is not installed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

# Read when Ray is imported. Without it, Ray replaces 127.0.0.1 by the address that other machines
# see.
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
# Calls of Ray after its shutdown must fail instead of starting a cluster.
os.environ["RAY_ENABLE_AUTO_CONNECT"] = "0"

pytest.importorskip("ray", reason="the extra cluster is not installed")

from relevance_gen.cluster import connection
from relevance_gen.cluster.search import searchers

NODE: dict[str, Any] = {
    "num_cpus": 1,  # for each, Ray starts a process in advance
    "object_store_memory": 80 << 20,
    "node_ip_address": "127.0.0.1",
    "include_log_monitor": False,
}


@pytest.fixture(scope="session", autouse=True)
def _divide_small_indexes() -> Iterator[None]:
    """Divide the shards of small indexes among all searchers, as those of large indexes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(searchers, "MIN_SEARCHER_TOKENS", 1)
        yield


@pytest.fixture(scope="session")
def cluster() -> Iterator[Any]:
    """Start three nodes, and join them."""
    # A node that was killed refuses five checks of its health in a row within a second.
    os.environ |= {"RAY_enable_metrics_collection": "0", "RAY_health_check_period_ms": "200"}
    from ray.cluster_utils import Cluster

    started = Cluster(
        initialize_head=True, head_node_args=NODE | {"include_dashboard": False, "no_monitor": True}
    )
    try:
        for _ in range(2):
            started.add_node(wait=False, **NODE)
        started.wait_for_nodes()
        connection.connect(started.address)
        yield started
    finally:
        connection.ray.shutdown()
        started.shutdown()
