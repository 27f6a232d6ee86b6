"""Join a cluster of Ray or start a cluster on this machine, and list its nodes."""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from pathlib import Path
from typing import Any, Final

import ray
from attrs import frozen
from ray._private import auto_init_hook

from relevance_gen.errors import ClusterError, InvalidRequestError

NAMESPACE: Final = "relevance_gen"
"""Namespace of all named actors of this library."""
_PROBE_TIMEOUT_S: Final = 4.0
_LOCAL_HOSTS: Final = {"localhost", "127.0.0.1", "::1"}
_connect_lock: Final = threading.Lock()


def connect(address: str | None) -> None:
    """Connect this process to a cluster, or start one; do nothing if it is connected already.

    A cluster that is started on this machine ends with this process.

    Args:
        address: as for `ClusterIndex`.

    Raises:
        InvalidRequestError: the address is invalid.
        ClusterError: no cluster answers, it cannot be joined, or this process is in another
            cluster.
    """
    if address is not None and (not isinstance(address, str) or not address or "://" in address):
        allowed = '"auto", "local" or the HOST:PORT of a cluster\'s head'
        raise InvalidRequestError.must_be("address", allowed, address)
    # Otherwise a call of Ray in another thread after `ray.shutdown` would start a cluster. Ray's
    # variable RAY_ENABLE_AUTO_CONNECT is read only when Ray is imported.
    auto_init_hook.enable_auto_connect = False
    with _connect_lock:
        if not ray.is_initialized():
            _join(address)
        elif address not in (None, "auto", "local"):
            joined = ray.get_runtime_context().gcs_address
            if not _is_same(joined, address):
                message = f"this process is in the cluster at {joined} already"
                raise ClusterError(f"{message}, and cannot join {address}")


def _join(address: str | None) -> None:
    options: dict[str, Any] = {
        "namespace": NAMESPACE,
        "logging_level": "WARNING",
        "log_to_driver": False,
    }
    if address in (None, "auto"):
        address = os.environ.get("RAY_ADDRESS") or address
    if address is None:
        address = _last_cluster() or "local"
    elif address == "auto":
        address = _last_cluster()
    if address is None:
        raise ClusterError("no cluster was found: this machine is not a node of a cluster")
    if address == "local":
        # Ray also takes `local` from the environment, but not together with an address.
        ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **options)
        return
    try:
        _probe(address)
    except (OSError, ValueError, OverflowError) as error:
        raise ClusterError(f"no cluster answers at {address}: {error}") from None
    try:
        ray.init(address=address, **options)
    except (OSError, ValueError, RuntimeError) as error:
        remedy = "if it requires a token, copy the token of its user to ~/.ray/auth_token"
        raise ClusterError(
            f"the cluster at {address} cannot be joined: {error}; {remedy}"
        ) from None


def _last_cluster() -> str | None:
    """Return the address of this machine's last started or joined cluster, if it answers."""
    folder = os.environ.get("RAY_TMPDIR") or tempfile.gettempdir()
    try:
        address = Path(folder, "ray", "ray_current_cluster").read_text().strip()
        _probe(address)
    except (OSError, ValueError, OverflowError):  # the file may be another user's
        return None
    return address


def _probe(address: str) -> None:
    """Check that a gRPC server answers at an address.

    Otherwise Ray would try to connect for a minute. A gRPC server sends its settings as soon as a
    client connects.

    Raises:
        OSError: nothing answers at this address.
        ValueError: the address lacks a port.
        OverflowError: the port is too large.
    """
    host, _, port = address.rpartition(":")
    server_address = (host.strip("[]"), int(port))
    with socket.create_connection(server_address, _PROBE_TIMEOUT_S) as connection:
        uses_tls = os.environ.get("RAY_USE_TLS", "0") != "0"  # then the server waits for the client
        if not uses_tls and not connection.recv(1):
            raise ConnectionError("the server is not the head of a cluster")


def _is_same(joined: str, address: str) -> bool:
    """Return whether `address` is another form of the address `joined` of a cluster's head."""
    host, _, port = address.rpartition(":")
    if host in _LOCAL_HOSTS:
        host = ray.util.get_node_ip_address()
    return joined == f"{host}:{port}"


def check_connected() -> None:
    """Raise a `ClusterError` if this process is in no cluster, for example after `ray.shutdown`."""
    if not ray.is_initialized():
        raise ClusterError("the connection to the cluster was closed")


@frozen
class Node:
    """A node of the cluster as Ray describes it, usually a machine."""

    id: str
    n_cpus: float
    n_gpus: float
    address: str = ""  # IP address


def living_nodes() -> list[Node]:
    """Return the nodes that are alive, in the order of their ids; empty without a connection.

    The cluster detects the death of a node after some seconds. Nodes without CPUs and GPUs, such as
    a head that only coordinates, are left out unless all nodes are of this kind.
    """
    if not ray.is_initialized():  # `ray.nodes` would start a cluster
        return []
    nodes = []
    for node in ray.nodes():
        if node["Alive"]:
            n_cpus = node["Resources"].get("CPU", 0.0)
            n_gpus = node["Resources"].get("GPU", 0.0)
            nodes.append(Node(node["NodeID"], n_cpus, n_gpus, node["NodeManagerAddress"]))
    with_processors = [node for node in nodes if node.n_cpus or node.n_gpus]
    return sorted(with_processors or nodes, key=lambda node: node.id)


def check_name(name: object) -> None:
    """Check the name under which other processes find an index or a runner.

    Raises:
        InvalidRequestError: it is not a string, or is empty.
    """
    if not isinstance(name, str) or not name:
        raise InvalidRequestError.must_be("name", "a string that is not empty", name)
