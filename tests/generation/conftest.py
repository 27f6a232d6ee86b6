"""Runners on the small models in `tests/models`, one of each for a whole run."""

import sys

import pytest

from relevance_gen.generation.runner import Runner
from tests.models import BIGRAM, TINY


@pytest.fixture(scope="session")
def bigram():
    """A runner whose every distribution has a closed form."""
    with Runner(BIGRAM, n_slots=16, n_ctx=256, n_threads=1) as runner:
        yield runner


@pytest.fixture(scope="session")
def tiny():
    """A runner with a real, random transformer: its text is full of broken UTF-8."""
    with Runner(TINY, n_slots=8, n_ctx=512, n_threads=1) as runner:
        yield runner


@pytest.fixture(scope="session", autouse=True)
def _close_what_llama_cpp_leaves_open():
    """Close the two files that importing llama_cpp opens for good: unclosed files are warnings here."""
    yield
    if (utils := sys.modules.get("llama_cpp._utils")) is not None:
        utils.outnull_file.close()
        utils.errnull_file.close()
