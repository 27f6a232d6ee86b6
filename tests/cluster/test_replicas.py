"""Replicas: what the log says of them."""

from __future__ import annotations

import pytest

from relevance_gen.cluster.files import FilePieces
from relevance_gen.cluster.parts import Recipe
from relevance_gen.cluster.replicas import KeptShard, Replicas
from relevance_gen.tokens import token_counter


def test_what_was_closed_lacks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An index that is closed while its shards are being started ends without a warning of missing replicas."""
    shard = KeptShard(Recipe.of(FilePieces((), "text", "error")))
    replicas = Replicas("pivoted", token_counter(), 1, lambda: None)
    replicas.shards = [shard]
    replicas.close()
    replicas.fill()
    assert not shard.replicas
    assert not caplog.records
