"""Runners on the small models, one of each for a whole run."""

import pytest

from relevance_gen.generation.runner import Runner
from small_models import BIGRAM, TINY


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
