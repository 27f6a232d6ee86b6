"""Joining a cluster: what is not there is told, where Ray would try for minutes."""

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

ASK = """
import os, ray
from relevance_gen.cluster import ClusterIndex
from relevance_gen.errors import ClusterError
for address, os.environ["RAY_ADDRESS"] in {asked!r}:
    try:
        with ClusterIndex(["cats purr"], address=address) as index:
            (host,) = index._fresh().state.shards[0].hosts
            nice = ray.get(host.handle.__ray_call__.remote(lambda _: os.nice(0)))
            print(len(index.search("cats")), "found in", ray.get_runtime_context().gcs_address, "at", nice)
    except ClusterError as error:
        print("refused:", error)
"""
TRIES_S = 60.0
"""Ray alone tries for longer."""

Listener = Callable[[], AbstractContextManager[str]]


@contextmanager
def nobody() -> Iterator[str]:
    """Give an address where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
    yield address


@contextmanager
def stranger() -> Iterator[str]:
    """Give an address where somebody listens, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def ask(*asked: tuple[str | None, str], **environment: str) -> str:
    """Return what a process of its own says of an index in a cluster, for each address and RAY_ADDRESS."""
    return subprocess.run(
        [sys.executable, "-c", ASK.format(asked=asked)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=TRIES_S,
        check=False,
    ).stdout


@pytest.mark.parametrize("listener", [nobody, stranger])
def test_a_cluster_that_does_not_answer_is_told(listener: Listener) -> None:
    """Where the caller or RAY_ADDRESS names what is no cluster, an error says so, and may be had again."""
    with listener() as there:
        said = ask((None, there), ("auto", there), (there, ""))
        assert said.count(f"refused: no cluster answers at {there}") == 3, said


@pytest.mark.parametrize("listener", [nobody, stranger])
def test_a_note_of_a_cluster_that_is_gone_is_ignored(cluster: Any, listener: Listener) -> None:
    """Where the note of this machine's last cluster leads nowhere, the one that runs is joined."""
    with listener() as there, tempfile.TemporaryDirectory() as folder:
        note = Path(folder, "ray", "ray_current_cluster")
        note.parent.mkdir()
        note.write_text(there)
        assert ask((None, ""), RAY_TMPDIR=folder) == f"1 found in {cluster.address} at 0\n"


def test_a_cluster_of_its_own(cluster: Any) -> None:
    """By "local", as by RAY_ADDRESS=local, a process starts a cluster of its own, which is not behind all others."""
    said = ask(("local", cluster.address))
    assert said.startswith("1 found in ")
    assert said.endswith(" at 0\n")
    assert cluster.address not in said


def test_ray_does_not_end_this_process_with_the_head() -> None:
    """Importing this library tells Ray to go on without a head; what the caller has set is left alone."""
    name = "RAY_gcs_rpc_server_reconnect_timeout_s"
    code = f"import os, relevance_gen.cluster; print(os.environ['{name}'])"
    unset = {key: value for key, value in os.environ.items() if key != name}
    told = [
        int(subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True).stdout)
        for env in (unset, unset | {name: "7"})
    ]
    assert told[0] > 10**7
    assert told[1] == 7
