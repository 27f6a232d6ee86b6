"""Tests with unmodified clients of other projects against a real server on a real socket.

Clients that install together with the tests run in the tests' interpreter. Each other client has an
environment in ``.venv-clients``, which `make test-clients` creates.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments import interpreter_with, node_folder_with
from tests.serve.harness import KEY, REAL, ROOT, Server, eventually

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


def run(server: Server, program: str, interpreter: str, folder: Path = HERE) -> None:
    """Run a program against a server; a failed assertion of the program fails the test."""
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environ |= {"SERVER_URL": server.url, "SERVER_KEY": KEY, "HAYSTACK_TELEMETRY_ENABLED": "False"}
    done = subprocess.run(
        [interpreter, HERE / program],
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        cwd=folder,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert not [line for line in server.log_lines if line["level"] in ("error", "critical")]


@pytest.mark.parametrize(
    ("program", "package", "environment"), CLIENTS, ids=lambda value: value or "tests"
)
def test_client_program_succeeds(
    writing: Server, program: str, package: str, environment: str
) -> None:
    """The client's calls, streams and errors work, and no server work remains afterwards."""
    run(writing, program, interpreter_with(package, environment))
    assert eventually(lambda: writing.stats()["backlog"] == 0)


@pytest.fixture(scope="module")
def answering() -> Iterator[Server]:
    """The real server with the embedded model and a small encoder."""
    sizes = ("--n-ctx", "2048", "--n-slots", "4", "--n-threads", "1")
    sizes += ("--encoder", str(ROOT / "small_models" / "encoder.gguf"))
    with Server(
        *sizes, "--rate-limit", "off", "--generation-requires-key", "on", program=REAL
    ) as server:
        assert eventually(server.is_healthy), server.log
        yield server


CALLERS = (
    ("openai_tools_client.py", "openai", ""),
    ("responses_client.py", "openai", ""),
    ("anthropic_client.py", "anthropic", ""),
    ("ollama_client.py", "ollama", "ollama"),
    ("langchain_tools_client.py", "langchain_openai", "langchain"),
    ("openai_agents_client.py", "agents", "agents"),
    ("pydantic_ai_client.py", "pydantic_ai", "agents"),
)


@pytest.mark.parametrize(
    ("program", "package", "environment"), CALLERS, ids=lambda value: value or "tests"
)
def test_client_tool_program_succeeds(
    answering: Server, program: str, package: str, environment: str
) -> None:
    """The client lets a small model call a search and passes it the results, also streamed."""
    run(answering, program, interpreter_with(package, environment))
    assert eventually(lambda: answering.metric("generation_backlog") == 0)


def test_ollama_client_for_javascript_succeeds(answering: Server) -> None:
    """The client chats, streams, generates and embeds."""
    run(answering, "ollama_client.mjs", "node", node_folder_with("ollama"))
    assert eventually(lambda: answering.metric("generation_backlog") == 0)


def test_rate_limited_clients_wait_and_succeed() -> None:
    """Clients wait for the time in the 429 response and succeed after few attempts."""
    for package in ("cohere", "openai"):
        interpreter_with(package)
    with Server("--rate-limit", "2/2second", "--generation-requires-key", "on") as server:
        assert eventually(server.is_healthy)
        run(server, "patience_client.py", sys.executable)
        n_rejected = server.metric("rate_limit_rejections_total")
        if not n_rejected:
            pytest.skip("on this machine the clients do not come too often")
        assert n_rejected <= 12
