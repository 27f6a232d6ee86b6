"""Hosts: what the log says of them, and where they are started."""

from __future__ import annotations

import pytest

from relevance_gen.cluster.files import FilePieces
from relevance_gen.cluster.hosts import Hosts
from relevance_gen.cluster.kept import KeptShard
from relevance_gen.cluster.parts import Recipe
from relevance_gen.text.token_counting import token_counter


def test_what_was_closed_lacks_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """An index that is closed while its shards are being made ends without a warning of missing replicas."""
    shard = KeptShard(0, Recipe.of(FilePieces((), "text", "title", "error")))
    hosts = Hosts("pivoted", token_counter(), 1, lambda: None)
    hosts.shards = [shard]
    hosts.close()
    hosts.fill()
    assert not shard.replicas
    assert not caplog.records
