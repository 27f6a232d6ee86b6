"""Servers that the tests share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from small_models import BIGRAM, ENCODER, TINY, add_chat_template
from tests.serve.harness import REAL, SMALL_MODEL, Server, eventually

PATIENT = ("--search-threads", "16", "--encoder-search-timeout-s", "600")
"""Several searches at once have the encoder, and each waits for it, on however small and busy a
machine."""


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    """A scripted server with default settings, except for a rate limit that tests do not reach."""
    with Server("--rate-limit", "off") as started:
        assert eventually(started.is_healthy)
        yield started


@pytest.fixture(scope="session")
def real() -> Iterator[Server]:
    """The real server with real search, a tiny model and a tiny encoder."""
    with Server(
        *SMALL_MODEL, "--encoder", str(ENCODER), *PATIENT, "--rate-limit", "off", program=REAL
    ) as started:
        assert eventually(started.is_healthy), started.log
        assert eventually(lambda: started.metric("encoders") == 1), started.log
        yield started


@pytest.fixture(scope="session")
def by_words() -> Iterator[Server]:
    """The real server without a model and without an encoder."""
    with Server("--model", "none", "--rate-limit", "off", program=REAL) as started:
        yield started


@pytest.fixture(scope="session")
def chatting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The real server with the bigram model, whose template renders only the last message."""
    with chat_server(BIGRAM, tmp_path_factory.mktemp("chat")) as started:
        yield started


@pytest.fixture(scope="session")
def writing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The same with a model that has a token for every byte, so that it can write JSON, and with an encoder."""
    with chat_server(
        TINY, tmp_path_factory.mktemp("chat"), "--encoder", str(ENCODER), *PATIENT
    ) as started:
        assert eventually(lambda: started.metric("encoders") == 1), started.log
        yield started


@contextmanager
def chat_server(model: Path, directory: Path, *flags: str) -> Iterator[Server]:
    """Start the real server with `model`, having put a template into a copy of it."""
    path = directory / model.name
    add_chat_template(model, path, "{{ bos_token }}{{ messages[-1].content }}")
    sizes = ("--n-ctx", "256", "--n-slots", "4", "--n-threads", "1")
    with Server(
        "--model", str(path), *sizes, "--rate-limit", "off", *flags, program=REAL
    ) as started:
        assert eventually(started.is_healthy), started.log
        yield started
