"""Tests that a node of a cluster loses its network for a while; they need root and Linux's namespaces."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.cluster import cut_network
from tests.cluster.shared import RESTORED_S

ROOT = Path(__file__).parents[2]
MAX_SEARCH_S = 6.0
"""A search that waits for the end of the cut takes longer."""
OWN_NAMESPACES = [
    *("setpriv", "--pdeathsig", "KILL"),  # if pytest is killed, everything else is killed, too
    *("unshare", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"),
]
"""The beginning of a command that runs the rest in namespaces of its own, as the first process."""
LINK = ["ip", "link", "add", "cut0", "type", "veth", "peer", "name", "cut1"]


def skip_without_namespaces() -> None:
    """Skip the test unless this process can create namespaces and link them."""
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root can create network namespaces, on Linux")
    for name in ("ip", "nsenter", "setpriv", "unshare"):
        if shutil.which(name) is None:
            pytest.skip(f"{name} is not installed: apt-get install iproute2 util-linux")
    done = subprocess.run([*OWN_NAMESPACES, *LINK], capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"network namespaces cannot be created: {done.stderr.strip()}")


def test_cut_node_is_bypassed_and_takes_part_again(tmp_path: Path) -> None:
    """While the network of a node is cut for 10 s, other searchers give the same bits; then it has its share again."""
    skip_without_namespaces()
    unset = ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER")
    environment = {name: value for name, value in os.environ.items() if name not in unset}
    # On a loaded machine the cut takes longer, and the cluster must not remove the node meanwhile.
    environment |= {"PYTHONPATH": str(ROOT), "RAY_health_check_failure_threshold": "1000"}
    # The paths of sockets below the folder must be short.
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            [*OWN_NAMESPACES, sys.executable, "-m", cut_network.__name__, str(tmp_path)],
            cwd=ROOT,
            env=environment | {"RAY_TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=5 * RESTORED_S,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["right"] > report["during_cut"] >= cut_network.MIN_ANSWERS, report
    assert report["wrong"] == 0, report
    assert report["refused"] == 0, report
    assert report["slowest_s"] < MAX_SEARCH_S, report
