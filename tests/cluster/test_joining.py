"""Tests of joining a cluster: an address without a cluster is refused within seconds."""

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

from relevance_gen.cluster import ClusterIndex, connection
from relevance_gen.errors import ClusterError

NICENESS = """
def niceness_of(index):
    import os, ray
    actor = index._pool.searchers[0].actor
    return ray.get(actor.__ray_call__.remote(lambda _: os.nice(0)))
"""
START = (
    NICENESS
    + """
from relevance_gen.cluster import ClusterIndex
import ray
with ClusterIndex(["cats purr"], name="pets") as index:
    print(ray.get_runtime_context().gcs_address, niceness_of(index), flush=True)
    input()
"""
)
JOIN = (
    NICENESS
    + """
import sys
from relevance_gen.cluster import ClusterIndex
from relevance_gen.errors import ClusterError
try:
    index = ClusterIndex.named("pets", address=sys.argv[1] or None)
    print(len(index.search("cats")), "found at", niceness_of(index))
except ClusterError as error:
    print("refused:", error)
"""
)
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


def joined(address: str, **environment: str) -> str:
    """Return the output of a process that joins a cluster and searches its index `pets`."""
    return subprocess.run(
        [sys.executable, "-c", JOIN, address],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TRIES_S,
        check=True,
    ).stdout


@contextmanager
def started_cluster(home: Path, note: str) -> Iterator[tuple[str, str]]:
    """Start a cluster as a user does whose note of the last cluster is stale.

    Args:
        home: the user's home folder, which gets the token.
        note: the address in the note.

    Yields:
        The address of the cluster, and the niceness of its searcher.
    """
    # The paths of sockets below the folder must be short.
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ray", "ray_current_cluster")
        path.parent.mkdir()
        path.write_text(note)
        environment = os.environ | {"HOME": str(home), "RAY_TMPDIR": folder}
        for name in ("RAY_AUTH_MODE", "RAY_ADDRESS"):
            environment.pop(name, None)
        with subprocess.Popen(
            [sys.executable, "-c", START],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            assert process.stdout is not None
            address, niceness = process.stdout.readline().split()
            yield address, niceness
            process.communicate("over")


@pytest.mark.parametrize("listener", [closed_address, silent_address])
def test_address_without_cluster_is_refused(
    listener: Listener, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An address without a cluster raises an error each time, for the argument and for RAY_ADDRESS."""
    monkeypatch.setattr(connection, "_PROBE_TIMEOUT_S", 0.2)
    with listener() as there:
        for address, of_environment in ((None, there), ("auto", there), (there, "")):
            monkeypatch.setenv("RAY_ADDRESS", of_environment)
            with pytest.raises(ClusterError, match=f"^no cluster answers at {there}: "):
                connection._join(address)


def test_address_of_the_environment_is_joined(cluster: Any) -> None:
    """Without an address, the cluster that `RAY_ADDRESS` names is joined."""
    with ClusterIndex(["cats purr"], name="pets"):
        assert joined("", RAY_ADDRESS=cluster.address) == f"1 found at {os.nice(0)}\n"


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
    port = cluster.address.rpartition(":")[2]
    for address in (None, "auto", "local", f"localhost:{port}"):
        connection.connect(address)
    with (
        closed_address() as there,
        pytest.raises(ClusterError, match=f"is in the cluster at {cluster.address} already"),
    ):
        connection.connect(there)


@pytest.mark.parametrize(
    "listener", [closed_address, pytest.param(silent_address, marks=pytest.mark.soak)]
)
def test_cluster_is_started_despite_a_stale_note(
    cluster: Any, tmp_path: Path, listener: Listener
) -> None:
    """If the note of the last cluster leads nowhere, a cluster is started, with normal priority and a token.

    A process that sends the token of its user joins it.
    """
    with listener() as note, started_cluster(tmp_path, note) as (address, niceness):
        assert address not in (note, cluster.address)
        assert niceness == str(os.nice(0))
        token = {"RAY_AUTH_MODE": "token"}
        assert joined(address, HOME=str(tmp_path), **token) == f"1 found at {os.nice(0)}\n"


@pytest.mark.soak
def test_missing_token_is_refused(tmp_path: Path) -> None:
    """A process without the token is refused, and the error names the token's file."""
    with closed_address() as note, started_cluster(tmp_path, note) as (address, _):
        output = joined(address, HOME=str(tmp_path / "nobody"))
        assert output.startswith(f"refused: the cluster at {address} cannot be joined: ")
        assert "~/.ray/auth_token" in output
