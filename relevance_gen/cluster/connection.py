"""Join a cluster of Ray, or start one on this machine."""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from typing import Any, Final

import ray
from ray._private import services
from ray._private.authentication.authentication_token_setup import maybe_enable_token_auth_if_token_available

from relevance_gen.errors import ClusterError, InvalidRequestError

NAMESPACE: Final = "relevance_gen"
"""Of all names that this library gives in a cluster."""
_CONNECT_S: Final = 4.0
_GREETING: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""HTTP/2, which a head speaks, begins with this, and with an empty frame of settings from both sides."""
_SETTINGS: Final = 4
_connecting: Final = threading.Lock()


def connect(address: str | None) -> None:
    """Join a cluster, unless this process is in one already; the address is as for `ClusterIndex`.

    One that is started on this machine ends with this process.
    """
    if address is not None and (not isinstance(address, str) or not address or "://" in address):
        raise InvalidRequestError.must_be("address", '"auto", "local" or the HOST:PORT of a cluster\'s head', address)
    with _connecting:
        if not ray.is_initialized():
            _join(address)
        elif address not in (None, "auto", "local"):
            joined = ray.get_runtime_context().gcs_address
            if joined not in (address, services.canonicalize_bootstrap_address(address)):
                raise ClusterError(f"this process is in the cluster at {joined} already, and cannot join {address}")


def _join(address: str | None) -> None:
    if address in (None, "auto"):
        address = os.environ.get("RAY_ADDRESS") or address
    quiet: dict[str, Any] = {"namespace": NAMESPACE, "logging_level": "WARNING", "log_to_driver": False}
    found = _current() if address in (None, "auto") else address
    if address == "local" or (address is None and found is None):
        # Ray would take `local` from the environment, too, but not with an address.
        ray.init(address="local", include_dashboard=False, _node_ip_address="127.0.0.1", **quiet)
        return
    try:
        if found is None:
            raise ConnectionError("this machine is in none")
        found = services.canonicalize_bootstrap_address(found)
        _greet(found or "")
    except (OSError, ValueError, OverflowError, RuntimeError) as error:
        raise ClusterError(f"no cluster answers at {found or address}: {error}") from None
    try:
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


def _greet(address: str) -> None:
    """Greet a cluster's head, because Ray itself tries for minutes where none is.

    An OSError says that nobody listens there or answers as a head does, a ValueError or OverflowError that the address
    has no port.
    """
    host, _, port = address.rpartition(":")
    with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S) as head:
        if os.environ.get("RAY_USE_TLS", "0") == "0":  # else Ray alone can greet it
            head.sendall(_GREETING)
            if head.recv(9, socket.MSG_WAITALL)[3:4] != bytes((_SETTINGS,)):
                raise ConnectionError("who listens there is no cluster's head")


def check_name(name: object) -> None:
    """Check a name that other processes find something by."""
    if not isinstance(name, str) or not name:
        raise InvalidRequestError.must_be("name", "a string that is not empty", name)
