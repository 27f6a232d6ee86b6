"""Encoders for the session: a tiny random model, and a real model if its weights are installed."""

import pytest

from relevance_gen import Encoder
from small_models import ENCODER, minilm


@pytest.fixture(scope="session")
def encoder():
    with Encoder(ENCODER) as encoder:
        yield encoder


@pytest.fixture(scope="session")
def minilm_path(tmp_path_factory):
    path = minilm.converted(tmp_path_factory.mktemp("minilm"))
    if path is None:
        pytest.skip(minilm.MISSING)
    return path


@pytest.fixture(scope="session")
def real_encoder(minilm_path):
    with Encoder(minilm_path, n_threads=2) as encoder:
        yield encoder
