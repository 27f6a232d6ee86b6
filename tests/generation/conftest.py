"""Runners on the small models, shared by all tests of a session."""

import pytest

from relevance_gen.generation.runner import Runner
from small_models import BIGRAM, TINY


@pytest.fixture(scope="session")
def bigram():
    """A runner whose distributions have a closed form."""
    with Runner(BIGRAM, n_slots=16, n_ctx=256, n_threads=1) as runner:
        yield runner


@pytest.fixture(scope="session")
def tiny():
    """A runner with a random transformer, whose text contains much invalid UTF-8."""
    with Runner(TINY, n_slots=8, n_ctx=512, n_threads=1) as runner:
        yield runner
