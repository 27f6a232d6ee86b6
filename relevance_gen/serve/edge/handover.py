"""Leave a port to the next server: with SO_REUSEPORT two servers listen on it, and none of its connections is lost."""

from __future__ import annotations

import ctypes
import socket
import struct
from contextlib import suppress

_ATTACH_PROGRAM = 51  # SO_ATTACH_REUSEPORT_CBPF
_DETACH_PROGRAM = 68  # SO_DETACH_REUSEPORT_BPF
_RETURN = 0x06  # BPF_RET | BPF_K


def steer_away(listener: socket.socket, n_sockets: int) -> None:
    """Have the kernel give new connections to the server that came later.

    The kernel numbers the sockets on a port in the order in which they began to listen: the first `n_sockets` are this
    server's. A program of one instruction names the next. Where there is none, the kernel goes on spreading.
    """
    instruction = ctypes.create_string_buffer(struct.pack("HBBI", _RETURN, 0, 0, n_sockets))  # a sock_filter
    program = struct.pack("HP", 1, ctypes.addressof(instruction))  # a sock_fprog
    with suppress(OSError):  # not Linux
        listener.setsockopt(socket.SOL_SOCKET, _ATTACH_PROGRAM, program)


def spread(listener: socket.socket) -> None:
    """Have the kernel spread connections over all sockets again, whatever a server that has left told it."""
    with suppress(OSError):  # not Linux, or nobody told it anything
        listener.setsockopt(socket.SOL_SOCKET, _DETACH_PROGRAM, 0)
