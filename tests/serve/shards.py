"""What an index of a cluster is saved as, made without a cluster."""

from __future__ import annotations

from typing import Any

import numpy as np

from relevance_gen.index import storage
from relevance_gen.index.builder import build
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.shards import folder
from relevance_gen.text.token_counting import token_counter


def save_shards(
    address: str, chunks: list[Any], n_shards: int = 3, before: folder.Before | None = None
) -> None:
    """Write what `ClusterIndex.save` writes, without a cluster."""
    counter, names = token_counter(), folder.new_files(n_shards)
    checked = read_chunks(chunks)
    shards = {}
    before = before or folder.begin(address)
    for name, numbers in zip(names, np.array_split(np.arange(len(chunks)), n_shards), strict=True):
        some = checked.take(numbers.tolist())
        n_tokens = counter.count_all(some.texts)
        saved = (
            build(some, numbers),
            "pivoted",
            counter.name,
            counter.fingerprint,
            None,
            len(chunks),
            n_tokens,
        )
        shards[name] = folder.write_index(address, name, storage.SavedIndex(*saved))
    manifest = folder.Manifest("pivoted", counter.name, counter.fingerprint, len(chunks), shards)
    folder.publish(address, manifest, before)
