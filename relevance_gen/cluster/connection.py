"""Join a cluster of Ray, or start one on this machine."""

from __future__ import annotations

import os
import socket
import threading
import time
from contextlib import suppress
from typing import Any, Final

import ray
from ray._private import services
from ray._private.authentication.authentication_token_setup import (
    maybe_enable_token_auth_if_token_available,
)

from relevance_gen.errors import ClusterError, InvalidRequestError

NAMESPACE: Final = "relevance_gen"
"""Of all names that this library gives in a cluster."""
_CONNECT_S: Final = 4.0
_LONGEST_REPLY: Final = 1 << 16
_connecting: Final = threading.Lock()


def connect(address: str | None) -> None:
    """Join a cluster, unless this process is in one already; the address is as for `ClusterIndex`.

    One that is started on this machine ends with this process.
    """
    if address is not None and (not isinstance(address, str) or not address or "://" in address):
        raise InvalidRequestError.must_be(
            "address", '"auto", "local" or the HOST:PORT of a cluster\'s head', address
        )
    with _connecting:
        if not ray.is_initialized():
            _join(address)
        elif address not in (None, "auto", "local"):
            joined = ray.get_runtime_context().gcs_address
            if joined not in (address, services.canonicalize_bootstrap_address(address)):
                raise ClusterError(
                    f"this process is in the cluster at {joined} already, and cannot join {address}"
                )


def _join(address: str | None) -> None:
    if address in (None, "auto"):
        address = os.environ.get("RAY_ADDRESS") or address
    quiet: dict[str, Any] = {
        "namespace": NAMESPACE,
        "logging_level": "WARNING",
        "log_to_driver": False,
    }
    found = _current() if address in (None, "auto") else address
    if address == "local" or (address is None and found is None):
        # Ray would take `local` from the environment, too, but not with an address.
        ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        return
    try:
        if found is None:
            raise ConnectionError("this machine is in none")
        found = services.canonicalize_bootstrap_address(found)
        wants_token = _greet(found or "")
    except (OSError, ValueError, OverflowError, RuntimeError) as error:
        raise ClusterError(f"no cluster answers at {found or address}: {error}") from None
    try:
        if wants_token:
            maybe_enable_token_auth_if_token_available(warn_if_disabled=False)
        ray.init(address=found, **quiet)
    except (OSError, ValueError, RuntimeError) as error:
        remedy = "where it wants a token, that of whoever started it must be in ~/.ray/auth_token"
        raise ClusterError(f"the cluster at {found} cannot be joined: {error}; {remedy}") from None


def _current() -> str | None:
    """Return the address of the cluster that this machine joined last, or of a head that runs here, if it answers."""
    with suppress(OSError):  # the file may be another user's
        found: str | None
        for found in (services.find_bootstrap_address(None), *services.find_gcs_addresses()):
            with suppress(OSError, ValueError, OverflowError):
                _greet(found or "")
                return found
    return None


def _greet(address: str) -> bool:
    """Greet a cluster's head, because Ray itself tries for minutes where none is; tell whether it wants a token.

    An OSError says that nobody listens there or answers as a head does, a ValueError or OverflowError that the address
    has no port.
    """
    host, _, port = address.rpartition(":")
    end_s, reply = time.monotonic() + _CONNECT_S, b""
    with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as head:
        if os.environ.get("RAY_USE_TLS", "0") != "0":  # then Ray alone can greet it
            return False
        head.sendall(_greeting())
        while b"grpc-status" not in reply:
            part = head.recv(_LONGEST_REPLY)
            reply += part
            if not part or len(reply) > _LONGEST_REPLY or time.monotonic() > end_s:
                raise ConnectionError("who listens there is no cluster's head")
    return b"InvalidAuthToken" in reply


def _greeting() -> bytes:
    """Return what asks a head by gRPC for the id of its cluster: a connection of HTTP/2 with one request in it."""

    def frame(kind: int, flags: int, stream: int, content: bytes = b"") -> bytes:
        return (
            len(content).to_bytes(3, "big")
            + bytes((kind, flags))
            + stream.to_bytes(4, "big")
            + content
        )

    def field(name: bytes, value: bytes) -> bytes:
        return bytes((0, len(name))) + name + bytes((len(value),)) + value

    headers = b"\x83\x86"  # POST, and http
    headers += field(b":path", b"/ray.rpc.NodeInfoGcsService/GetClusterId") + field(
        b":authority", b"head"
    )
    headers += field(b"te", b"trailers") + field(b"content-type", b"application/grpc")
    settings, request, message = frame(4, 0, 0), frame(1, 4, 1, headers), frame(0, 1, 1, bytes(5))
    return b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + settings + request + message


def check_name(name: object) -> None:
    """Check a name that other processes find something by."""
    if not isinstance(name, str) or not name:
        raise InvalidRequestError.must_be("name", "a string that is not empty", name)
