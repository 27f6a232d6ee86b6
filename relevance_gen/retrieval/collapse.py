"""Keep at most one result for each value of a metadata key.

A value is known by 64 bits of a hash: of a million different ones two are taken for one with a chance of 3e-8.
"""

from __future__ import annotations

import hashlib
from typing import Self

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Ids, Offsets, runs
from relevance_gen.checks import to_python_scalar
from relevance_gen.index.chunks import Chunks
from relevance_gen.retrieval.query.filters import check_keys, key_of
from relevance_gen.retrieval.ranking.old_features import ChunkBatch, StoredFields
from relevance_gen.types import Metadata


@frozen(eq=False)
class GroupKeys:
    """The values that all chunks have under a key, told before they are searched."""

    hashes: Ids  # a hash of each chunk's value, by position; 0 where it has none, shape (n,)

    @classmethod
    def of(cls, key: str, chunks: Chunks) -> Self:
        """Return those of some chunks; a key that none has raises `InvalidRequestError`."""
        hashes = [_hash(chunks.metadata_of(number), key) for number in range(len(chunks.texts))]
        if hashes and not any(hashes):
            check_keys([key], set().union(*chunks.metadata.values()), "distinct")
        return cls(np.array(hashes, np.uint64))


def hashes_of(excerpt: ChunkBatch, *, key: str) -> StoredFields[int]:
    """Return a hash of the value of each of some chunks under a key, 0 where it has none."""
    chunks = excerpt.segment.chunks
    return StoredFields(
        [_hash(chunks.metadata_of(number), key) for number in excerpt.numbers.tolist()]
    )


def _hash(metadata: Metadata, key: str) -> int:
    if key not in metadata:
        return 0
    value = to_python_scalar(metadata[key])
    said = key_of(value) or repr(value)
    digest = hashlib.blake2b(said.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return max(int.from_bytes(digest, "little"), 1)


def first_of_each(hashes: Ids) -> tuple[Offsets, Offsets]:
    """Return the places, ascending, of the first of each value, and how many others have it; 0 stands for no value.

    All that have no value are first, and without others.
    """
    order = hashes.argsort(kind="stable")
    heads, counts = runs(hashes[order])
    n_others = np.zeros(hashes.size, np.int64)
    n_others[order[heads]] = counts - 1
    n_others[hashes == 0] = 0
    is_first = hashes == 0
    is_first[order[heads]] = True
    places = is_first.nonzero()[0]
    return places, n_others[places]
