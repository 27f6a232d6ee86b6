"""Clients of others, unmodified, against the real server on a real socket.

Those that install together with the tests are run by their own interpreter. The others have an environment each in
``.venv-clients``, which `make test-clients` makes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments import interpreter_with
from tests.serve.harness import KEY, REAL, Server, eventually

HERE = Path(__file__).parent
CLIENTS = (
    # program, the package it needs, its environment ("" for that of the tests)
    ("cohere_client.py", "cohere", ""),
    ("openai_client.py", "openai", ""),
    ("cohere_client.py", "cohere", "langchain"),  # whose version is an older one
    ("langchain_client.py", "langchain_cohere", "langchain"),
    ("llamaindex_client.py", "llama_index", "llamaindex"),
    ("haystack_client.py", "haystack", "haystack"),
    ("rerankers_client.py", "rerankers", "rerankers"),
)


def run(server: Server, program: str, python: str) -> None:
    """Run a program against a server; whatever it asserts must hold."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"SERVER_URL": server.url, "SERVER_KEY": KEY, "HAYSTACK_TELEMETRY_ENABLED": "False"}
    done = subprocess.run(
        [python, HERE / program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=HERE,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in server.log_lines if line["level"] in ("error", "critical")]


@pytest.mark.parametrize(
    ("program", "package", "environment"), CLIENTS, ids=lambda value: value or "tests"
)
def test_a_client_is_served(writing: Server, program: str, package: str, environment: str) -> None:
    """The client's own calls, streams and errors work, and nothing it does is a bug of the server or goes on."""
    run(writing, program, interpreter_with(package, environment))
    assert eventually(lambda: writing.stats()["backlog"] == 0)


@pytest.fixture(scope="module")
def answering() -> Iterator[Server]:
    """The real server with the embedded model."""
    sizes = ("--n-ctx", "2048", "--n-slots", "4", "--n-threads", "1")
    with Server(
        *sizes, "--rate-limit", "off", "--generation-requires-key", "on", program=REAL
    ) as server:
        assert eventually(lambda: server.call("GET", "/health").status == 200), server.log
        yield server


CALLERS = (
    ("openai_tools_client.py", "openai", ""),
    ("responses_client.py", "openai", ""),
    ("anthropic_client.py", "anthropic", ""),
    ("langchain_tools_client.py", "langchain_openai", "langchain"),
    ("openai_agents_client.py", "agents", "agents"),
    ("pydantic_ai_client.py", "pydantic_ai", "agents"),
)


@pytest.mark.parametrize(
    ("program", "package", "environment"), CALLERS, ids=lambda value: value or "tests"
)
def test_a_client_calls_tools(
    answering: Server, program: str, package: str, environment: str
) -> None:
    """The client has a small model search, in whole answers and streams, and hands it what was found."""
    run(answering, program, interpreter_with(package, environment))
    assert eventually(lambda: answering.metric("generation_backlog") == 0)


def test_clients_that_come_too_often_wait_as_they_are_told() -> None:
    """A 429 tells its clients when to come again, and then they are served, after few tries."""
    for package in ("cohere", "openai"):
        interpreter_with(package)
    with Server("--rate-limit", "2/2second", "--generation-requires-key", "on") as server:
        assert eventually(lambda: server.call("GET", "/health").status == 200)
        run(server, "patience_client.py", sys.executable)
        n_rejected = server.metric("rate_limit_rejections_total")
        if not n_rejected:
            pytest.skip("on this machine the clients do not come too often")
        assert n_rejected <= 12
