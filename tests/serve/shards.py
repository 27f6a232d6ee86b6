"""Sharded indexes for tests, with a given number of shards."""

from __future__ import annotations

from typing import Any

import numpy as np

from relevance_gen.index.records.validation import read_chunks
from relevance_gen.index.spill import batches_of
from relevance_gen.shards.changes import IndexWriter
from relevance_gen.shards.object_store import as_address
from relevance_gen.shards.shard_files import LocalShardEditor, ShardOpener, ShardWriter
from relevance_gen.shards.versions import IndexVersion, ShardRecord, VersionStore
from relevance_gen.text.token_counting import token_counter
from relevance_gen.types import WeightingName


def write_shards(
    address: str, chunks: list[Any], n_shards: int, weighting: WeightingName = "pivoted"
) -> list[ShardRecord]:
    """Write shards of chunks without publishing them."""
    writer = ShardWriter(as_address(address), weighting, token_counter())
    checked = read_chunks(chunks)
    shards = []
    for chunk_ords in np.array_split(np.arange(len(chunks)), n_shards):
        first = int(chunk_ords[0]) if chunk_ords.size else len(chunks)
        shards.append(writer.build(batches_of(checked, chunk_ords)).at(first))
    return shards


def save_shards(
    address: str, chunks: list[Any], n_shards: int = 3, weighting: WeightingName = "pivoted"
) -> IndexVersion:
    """Replace the index at an address, and return its version."""
    versions = VersionStore(as_address(address))
    versions.files.make_folder()
    versions.begin()
    shards = write_shards(address, chunks, n_shards, weighting)
    writer = ShardWriter(versions.location, weighting, token_counter())
    editor = LocalShardEditor(ShardOpener(versions.location), writer)
    return IndexWriter(versions, writer, editor).create(shards)
