"""Devices for tests: a second process lends its CPU to llama.cpp's RPC backend, or a Vulkan driver.

Run as a script, it serves the devices: ``rpc.py PORT N_DEVICES MAX_BYTES`` (0: without a limit).
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from attrs import frozen

ROOT = Path(__file__).parents[2]


def library_folder() -> Path:
    """Return the folder of llama.cpp's libraries."""
    spec = importlib.util.find_spec("llama_cpp")
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent / "lib"


def has_rpc() -> bool:
    """Return whether ``.ci/build_rpc`` has built the RPC backend."""
    return (library_folder() / "libggml-rpc.so").exists()


PRELUDE = """
import ctypes, logging, sys
from tests.llama.rpc import library_folder
from relevance_gen import Encoder, Reranker, Runner
from relevance_gen.llama.decoder import Decoder
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.devices import gpus
from relevance_gen.llama.runtime.library import lib
from small_models import BIGRAM, ENCODER, RERANKER, TINY

lib._lib.ggml_backend_register.argtypes = [ctypes.c_void_p]
"""
REGISTER_RPC = """
rpc = ctypes.CDLL(str(library_folder() / "libggml-rpc.so"))
rpc.ggml_backend_rpc_add_server.restype = ctypes.c_void_p
rpc.ggml_backend_rpc_reg.restype = ctypes.c_void_p
endpoint = sys.argv[1].encode()
lib._lib.ggml_backend_register(
    rpc.ggml_backend_rpc_add_server(endpoint) if endpoint else rpc.ggml_backend_rpc_reg()
)
"""
"""Registers the devices of the endpoint in the first argument, or only the backend if it is empty."""
REGISTER_VULKAN = """
vulkan = ctypes.CDLL(str(library_folder() / "libggml-vulkan.so"))
vulkan.ggml_backend_vk_reg.restype = ctypes.c_void_p
lib._lib.ggml_backend_register(vulkan.ggml_backend_vk_reg())
"""
"""Registers the devices of the Vulkan drivers of this machine."""


@frozen
class DeviceServer:
    """A process that serves devices.

    Attributes:
        process: the process.
        endpoint: its address.
    """

    process: subprocess.Popen[bytes]
    endpoint: str

    def run(self, code: str) -> str:
        """Run code after `PRELUDE` in a process of its own, and return its output."""
        return run_with_devices(self.endpoint, code, str(self.process.pid))


class VulkanDriver:
    """The first Vulkan device of this machine: Mesa's software driver, unless it has a GPU."""

    def run(self, code: str) -> str:
        """Run code after `PRELUDE` in a process of its own, and return its output."""
        # A software driver is used only if it is named; without 16-bit floats its results are closer to the CPU's.
        selected = {"GGML_VK_VISIBLE_DEVICES": "0", "GGML_VK_DISABLE_F16": "1"}
        return _run(REGISTER_VULKAN + code, [], selected)


def run_with_devices(endpoint: str, code: str, *arguments: str) -> str:
    """Run code after `PRELUDE` in a process with RPC devices, and return its output."""
    return _run(REGISTER_RPC + code, [endpoint, *arguments], {})


def _run(code: str, arguments: Sequence[str], variables: Mapping[str, str]) -> str:
    completed = subprocess.run(
        [sys.executable, "-c", PRELUDE + code, *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **variables},
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout.strip()


@contextmanager
def serve_devices(n_devices: int = 1, max_bytes: int = 0) -> Iterator[DeviceServer]:
    """Start a process that serves devices; their memory is at most `max_bytes` unless that is 0."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, __file__, str(port), str(n_devices), str(max_bytes)],
        # Each further arena would reserve 64 MiB of the limited address space.
        env={**os.environ, "MALLOC_ARENA_MAX": "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        end_s = time.monotonic() + 60
        while not _accepts(port):
            assert process.poll() is None, "the device server did not start"
            assert time.monotonic() < end_s, "the device server does not listen"
            time.sleep(0.02)
        yield DeviceServer(process, f"127.0.0.1:{port}")
    finally:
        process.kill()
        process.communicate()


def _accepts(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def _serve(port: str, n_devices: int, max_bytes: int) -> None:
    def end_with_parent() -> None:
        sys.stdin.buffer.read()
        os._exit(0)

    threading.Thread(target=end_with_parent, daemon=True).start()
    folder = library_folder()
    ctypes.CDLL(str(folder / "libggml-base.so"), mode=ctypes.RTLD_GLOBAL)
    ctypes.CDLL(str(folder / "libggml-cpu.so"), mode=ctypes.RTLD_GLOBAL)
    ggml: Any = ctypes.CDLL(str(folder / "libggml.so"), mode=ctypes.RTLD_GLOBAL)
    rpc: Any = ctypes.CDLL(str(folder / "libggml-rpc.so"))
    ggml.ggml_backend_dev_by_type.restype = ctypes.c_void_p
    cpu = ggml.ggml_backend_dev_by_type(0)
    devices = (ctypes.c_void_p * n_devices)(*[cpu] * n_devices)
    if max_bytes:
        import resource

        used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
        resource.setrlimit(resource.RLIMIT_AS, (used + max_bytes,) * 2)
    rpc.ggml_backend_rpc_start_server.argtypes = [
        ctypes.c_char_p,
        ctypes.c_char_p,
        ctypes.c_size_t,
        ctypes.c_size_t,
        ctypes.c_void_p,
    ]
    rpc.ggml_backend_rpc_start_server(f"127.0.0.1:{port}".encode(), None, 1, n_devices, devices)


if __name__ == "__main__":
    _serve(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
