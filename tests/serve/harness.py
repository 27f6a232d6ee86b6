"""Real servers in processes of their own, and the plainest ways to talk to them."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from attrs import frozen

from tests.serve.preloaded import ENVIRON, ForkedProcess, preloaded

ROOT = Path(__file__).parents[2]
SCRIPTED = (str(Path(__file__).with_name("scripted.py")),)
HALF_SCRIPTED = (str(Path(__file__).with_name("half_scripted.py")),)
REAL = ("-m", "relevance_gen.serve")
SMALL_MODEL = (
    *("--model", str(ROOT / "small_models" / "tiny.gguf")),
    *("--n-ctx", "256", "--n-slots", "4", "--n-threads", "1"),
)

KEY = "a-test-key"
JSON = {"Content-Type": "application/json"}
KEYED = {**JSON, "X-API-Key": KEY}


@frozen
class Answer:
    """A response, read to its end."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """Return the parsed body."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, str]:
        """Return the error object, the only field of the body."""
        assert self.headers["Content-Type"] == "application/json"
        assert list(self.json) == ["error"]
        error: dict[str, str] = self.json["error"]
        assert set(error) <= {"type", "message", "field"}
        return error


class Server:
    """A server in a process of its own, stopped when the context ends."""

    def __init__(
        self,
        *flags: str,
        program: tuple[str, ...] = SCRIPTED,
        is_forked: bool = True,
        **environ: str,
    ) -> None:
        self._log = tempfile.TemporaryFile("w+")
        hosts = {"RELEVANCE_GEN_ALLOWED_HOSTS": "test,x"}
        keys = {"RELEVANCE_GEN_API_KEYS": KEY, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
        plain = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith("RELEVANCE_GEN_")
        }
        arguments = [*program, "--port", "0", *flags]
        variables = {**plain, **keys, **hosts, **environ}
        self.process = _start(arguments, variables, self._log, is_forked=is_forked)
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        self.said = [first]
        while "listens on" not in self.said[-1]:
            assert self.said[-1], f"the server did not start: {self.log}"
            self.said.append(self.process.stdout.readline())
        self.port = int(self.said[-1].rsplit(":", 1)[1])
        self.url = f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill() if self.process.poll() is None and not self.end() else None
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._log.close()

    def end(self, timeout_s: float = 60) -> bool:
        """Request the server to end; return whether it did."""
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    @property
    def log(self) -> str:
        """Return the log of the server."""
        self._log.flush()
        return Path(f"/proc/self/fd/{self._log.fileno()}").read_text()

    @property
    def log_lines(self) -> list[dict[str, Any]]:
        """Return the parsed lines of the log, without an incomplete last line."""
        return [
            json.loads(line) for line in self.log.splitlines(keepends=True) if line.endswith("\n")
        ]

    def logged(self, request_id: str) -> dict[str, Any]:
        """Return the access log line of a request, which is written after its response is sent."""

        def lines() -> list[dict[str, Any]]:
            return [
                line
                for line in self.log_lines
                if line.get("request_id") == request_id and "status" in line
            ]

        assert eventually(lambda: bool(lines()))
        return lines()[0]

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float = 60,
    ) -> Answer:
        """Make one request on a connection of its own. A body that is not bytes is sent as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)
        try:
            sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, sent, dict(headers or {}))
            response = connection.getresponse()
            return Answer(response.status, _Headers(response.getheaders()), response.read())
        except ConnectionError as error:
            error.add_note(f"log of the server:\n{self.log}")
            raise
        finally:
            connection.close()

    def is_healthy(self) -> bool:
        """Return whether GET /health answers 200; a connection that is reset counts as no answer."""
        try:
            return self.call("GET", "/health").status == 200
        except ConnectionError:
            return False

    def search(self, body: object, headers: Mapping[str, str] = KEYED, **options: Any) -> Answer:
        """Make one search."""
        return self.call("POST", "/search", body, headers, **options)

    def generate(self, body: object, headers: Mapping[str, str] = JSON, **options: Any) -> Answer:
        """Make one generation."""
        return self.call("POST", "/generate", body, headers, **options)

    def stats(self) -> dict[str, int]:
        """Return the runners' state."""
        found: dict[str, int] = self.call("GET", "/stats").json
        return found

    def metric(self, series: str) -> float:
        """Return one number of /metrics; 0 if it is not there."""
        text = self.call("GET", "/metrics").body.decode()
        match = re.search(rf"^relevance_gen_{re.escape(series)} (\S+)$", text, re.MULTILINE)
        return float(match[1]) if match else 0.0

    @contextmanager
    def raw(self, timeout_s: float = 60) -> Iterator[socket.socket]:
        """Open a plain socket."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=timeout_s) as sock:
            yield sock

    def exchange(self, sent: bytes, timeout_s: float = 60) -> bytes:
        """Send bytes, and return all that comes until the server closes or is silent."""
        with self.raw(timeout_s) as sock:
            sock.sendall(sent)
            return read_all(sock)

    def has_children(self) -> list[int]:
        """Return the ids of the server's own processes."""
        text = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in text.split()]


def _start(
    arguments: list[str], variables: dict[str, str], log: IO[str], *, is_forked: bool
) -> subprocess.Popen[str] | ForkedProcess:
    """Start a server, in a forked process if its variables and the system allow that."""
    can_fork = all(variables.get(name) == value for name, value in ENVIRON.items())
    if is_forked and can_fork and hasattr(os, "pidfd_open"):
        return preloaded().fork(arguments, variables, log)
    return subprocess.Popen(
        [sys.executable, *arguments],
        env=variables,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
    )


class Held:
    """Work that a scripted server goes on with until it is let go, or the context ends.

    Attributes:
        words: what to give as a query, a prompt or a model.
    """

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._file = Path(self._folder.name) / "held"
        self.words = f"hold {self._file}"
        self.hold()

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._folder.cleanup()

    @property
    def search(self) -> dict[str, Any]:
        """A search that lasts."""
        return {"query": self.words, "chunk_txts": [self.words]}

    def hold(self) -> None:
        """Hold what begins from now on."""
        self._file.touch()

    def has_begun(self) -> bool:
        """Return whether the server has begun the work; loading a model does not report that."""
        return Path(f"{self._file}.begun").exists()

    def let_go(self) -> None:
        """Let the work end."""
        self._file.unlink()


class _Headers(dict[str, str]):
    """Headers by name, in any case."""

    def __init__(self, pairs: list[tuple[str, str]]) -> None:
        super().__init__({name.title(): value for name, value in pairs})

    def __getitem__(self, name: str) -> str:
        return super().__getitem__(name.title())

    def __contains__(self, name: object) -> bool:
        return super().__contains__(str(name).title())


def refused_start(*flags: str) -> int:
    """Have the command refuse to start a server, here, and return its status."""
    from relevance_gen.serve.processes.command import main

    try:
        return main(["--port", "0", *flags], {})
    except SystemExit as ended:
        return int(str(ended.code))


def read_all(sock: socket.socket) -> bytes:
    """Read until the other side closes or nothing comes any more."""
    received = b""
    try:
        while piece := sock.recv(65536):
            received += piece
    except (TimeoutError, ConnectionResetError):
        pass
    return received


def processor_seconds(pid: int) -> float:
    """Return the CPU seconds of a process; 0 if it has ended."""
    try:
        with open(f"/proc/{pid}/stat") as stat:
            user, system = stat.read().rsplit(") ", 1)[1].split()[11:13]
    except FileNotFoundError:
        return 0.0
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def eventually(holds: Callable[[], bool]) -> bool:
    """Wait until `holds`, looking every 20 ms; what takes a minute does not come, however busy the machine."""
    end_s = time.monotonic() + 60
    while not holds():
        if time.monotonic() > end_s:
            return False
        time.sleep(0.02)
    return True


def request_bytes(
    method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None
) -> bytes:
    """Write a request by hand."""
    fields = {"Host": "test", **(headers or {})}
    if body or method == "POST":
        fields.setdefault("Content-Length", str(len(body)))
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return f"{method} {path} HTTP/1.1\r\n{head}\r\n".encode() + body
