"""Servers that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from small_models import BIGRAM, ENCODER, add_chat_template
from tests.serve.harness import REAL, SMALL_MODEL, Server, eventually


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A scripted server with default settings, but for a rate limit that no test meets by accident."""
    with Server("--rate-limit", "off") as started:
        assert eventually(lambda: started.call("GET", "/health").status == 200)
        yield started


@pytest.fixture(scope="session")
def real() -> Iterator[Server]:
    """The real server with real search, a tiny model and a tiny encoder."""
    with Server(*SMALL_MODEL, "--encoder", str(ENCODER), "--rate-limit", "off", program=REAL) as started:
        assert eventually(lambda: started.call("GET", "/health").status == 200, 60), started.log
        assert eventually(lambda: started.metric("encoders") == 1, 60), started.log
        yield started


@pytest.fixture(scope="session")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real server with the bigram model, whose template says of a conversation the last message alone."""
    path: Path = tmp_path_factory.mktemp("chat") / "bigram.gguf"
    add_chat_template(BIGRAM, path, "{{ bos_token }}{{ messages[-1].content }}")
    flags = ("--model", str(path), "--n-ctx", "256", "--n-slots", "4", "--n-threads", "1", "--rate-limit", "off")
    with Server(*flags, program=REAL) as started:
        assert eventually(lambda: started.call("GET", "/health").status == 200, 60), started.log
        yield started
