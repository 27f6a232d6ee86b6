"""Tests of joining a cluster: an address without a cluster is refused at once, not after minutes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from relevance_gen.cluster import connection
from relevance_gen.errors import ClusterError

ASK = """
import os, ray
from relevance_gen.cluster import ClusterIndex
from relevance_gen.errors import ClusterError
for address, os.environ["RAY_ADDRESS"] in {asked!r}:
    try:
        with ClusterIndex(["cats purr"], address=address) as index:
            searcher = index._pool.searchers[0]
            nice = ray.get(searcher.actor.__ray_call__.remote(lambda _: os.nice(0)))
            print(len(index.search("cats")), "found in", ray.get_runtime_context().gcs_address, "at", nice)
    except ClusterError as error:
        print("refused:", error)
"""
TRIES_S = 60.0
"""Ray alone tries for longer."""

Listener = Callable[[], AbstractContextManager[str]]


@contextmanager
def closed_address() -> Iterator[str]:
    """Yield an address without a listener."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    yield address


@contextmanager
def silent_address() -> Iterator[str]:
    """Yield an address of a listener that never responds."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def index_output(*asked: tuple[str | None, str], **environment: str) -> str:
    """Return the output of a process that searches in a cluster, for each address and RAY_ADDRESS."""
    return subprocess.run(
        [sys.executable, "-c", ASK.format(asked=asked)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TRIES_S,
        check=False,
    ).stdout


@pytest.mark.parametrize("listener", [closed_address, silent_address])
def test_address_without_cluster_is_refused(listener: Listener) -> None:
    """An address without a cluster raises an error each time, for the argument and for RAY_ADDRESS."""
    with listener() as there:
        said = index_output((None, there), ("auto", there), (there, ""))
        assert said.count(f"refused: no cluster answers at {there}") == 3, said


@pytest.mark.parametrize(
    "listener", [closed_address, pytest.param(silent_address, marks=pytest.mark.soak)]
)
def test_stale_note_of_a_cluster_is_ignored(cluster: Any, listener: Listener) -> None:
    """If the note of this machine's last cluster leads nowhere, a cluster of normal priority is started."""
    with listener() as there, tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "ray", "ray_current_cluster")
        note.parent.mkdir()
        note.write_text(there)
        output = index_output((None, ""), RAY_TMPDIR=folder)
        assert output.startswith("1 found in ")
        assert output.endswith(" at 0\n")
        assert cluster.address not in output


def test_address_of_the_environment_is_joined(cluster: Any) -> None:
    """Without an address, the cluster that `RAY_ADDRESS` names is joined."""
    assert index_output((None, cluster.address)) == f"1 found in {cluster.address} at 0\n"


def test_import_keeps_processes_without_a_head() -> None:
    """The import sets Ray's reconnect timeout to years, unless the caller has set it."""
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    code = f"import os, relevance_gen.cluster; print(os.environ['{name}'])"
    unset = {key: value for key, value in os.environ.items() if key != name}
    reported = [
        int(
            subprocess.run(
                [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True
            ).stdout
        )
        for env in (unset, unset | {name: "7"})
    ]
    assert reported[0] > 10**7
    assert reported[1] == 7


def test_second_cluster_is_refused(cluster: Any) -> None:
    """A process that has joined a cluster cannot join a second; the same cluster is accepted by any name."""
    connection.connect(cluster.address)
    for address in (None, "auto", "local"):
        connection.connect(address)
    with (
        closed_address() as there,
        pytest.raises(ClusterError, match=f"is in the cluster at {cluster.address} already"),
    ):
        connection.connect(there)


TOKENS = """
import os
from relevance_gen.cluster import ClusterIndex
import ray
with ClusterIndex(["cats purr"], address="local", name="pets"):
    print(ray.get_runtime_context().gcs_address, flush=True)
    input()
"""
JOIN = """
import sys
from relevance_gen.cluster import ClusterIndex
from relevance_gen.errors import ClusterError
try:
    print(len(ClusterIndex.named("pets", address=sys.argv[1]).search("cats")), "found")
except ClusterError as error:
    print("refused:", error)
"""


@contextmanager
def with_token(home: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Start a cluster as a user of a home does; give its address, and the user's environment."""
    environment = os.environ | {"HOME": str(home)}
    environment.pop("RAY_AUTH_MODE", None)
    start = [sys.executable, "-c", TOKENS]
    with subprocess.Popen(
        start, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        yield started.stdout.readline().strip(), environment
        started.communicate("over")


def joined(address: str, environment: dict[str, str]) -> str:
    """Return the output of a process that joins a cluster."""
    join = [sys.executable, "-c", JOIN, address]
    return subprocess.run(
        join, env=environment, capture_output=True, text=True, timeout=TRIES_S, check=True
    ).stdout


def test_cluster_with_token_is_joined(tmp_path: Path) -> None:
    """A cluster that a process starts requires its user's token, which other processes of the user send."""
    with with_token(tmp_path) as (address, environment):
        assert joined(address, environment | {"RAY_AUTH_MODE": "token"}) == "1 found\n"


@pytest.mark.soak
def test_missing_token_is_refused(tmp_path: Path) -> None:
    """A process without the token is refused, and the error names the token's file."""
    with with_token(tmp_path) as (address, environment):
        said = joined(address, environment | {"HOME": str(tmp_path / "nobody")})
        assert said.startswith(f"refused: the cluster at {address} cannot be joined: ")
        assert "~/.ray/auth_token" in said
