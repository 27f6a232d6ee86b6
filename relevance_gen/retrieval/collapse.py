"""Collapse a ranking: return at most one result for each value of a metadata key.

Values are compared by 64 bits of a hash: two of a million distinct values have the same hash with a
probability of 3e-8.
"""

from __future__ import annotations

import hashlib
from typing import Self

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Ids, Offsets, runs
from relevance_gen.checks import to_python_scalar
from relevance_gen.index.chunks import Chunks
from relevance_gen.retrieval.query.filters import check_keys, comparison_key
from relevance_gen.retrieval.ranking.stage import (
    ChunkBatch,
    FeatureRows,
    FeatureSpec,
)
from relevance_gen.types import Metadata


@frozen(eq=False)
class GroupKeys:
    """The values of all chunks under a metadata key, computed before the search."""

    hashes: Ids  # hash of each chunk's value, by position; 0 without the key, shape (n,)

    @classmethod
    def of(cls, key: str, chunks: Chunks) -> Self:
        """Return the group keys of chunks: a hash of each chunk's value under the key `key`.

        The hash is 0 for a chunk without the key.

        Raises:
            InvalidRequestError: no chunk has the key.
        """
        hashes = []
        for chunk_ord in range(len(chunks.texts)):
            hashes.append(_hash(chunks.metadata_of(chunk_ord), key))
        if hashes and not any(hashes):
            check_keys([key], set().union(*chunks.metadata.values()), "distinct")
        return cls(np.array(hashes, np.uint64))


@frozen
class GroupHashes(FeatureSpec):
    """A feature spec: the hash of each chunk's value under a metadata key; 0 without the key.

    Attributes:
        key: the metadata key.
    """

    key: str

    def extract(self, batch: ChunkBatch) -> FeatureRows:
        """Return the hash of each chunk in the batch."""
        chunks = batch.segment.chunks
        chunk_ords = batch.chunk_ords.tolist()
        return FeatureRows([_hash(chunks.metadata_of(i), self.key) for i in chunk_ords])


def _hash(metadata: Metadata, key: str) -> int:
    if key not in metadata:
        return 0
    value = to_python_scalar(metadata[key])
    text = comparison_key(value) or repr(value)
    digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return max(int.from_bytes(digest, "little"), 1)


@frozen(eq=False)
class Groups:
    """The first chunk in a ranking for each value of a metadata key."""

    rows: Offsets  # rows of the ranking, ascending, shape (m,)
    n_others: Offsets  # number of other chunks with the same value, shape (m,)


def first_of_each(hashes: Ids, n: int) -> Groups:
    """Return the first n chunks of a ranking that no earlier chunk has the same value as.

    Args:
        hashes: hash of each ranked chunk's value under a metadata key. A chunk with hash 0 lacks
            the key, and is never left out.
        n: maximum number of chunks to return.
    """
    order = hashes.argsort(kind="stable")
    first, counts = runs(hashes[order])
    n_others = np.zeros(hashes.size, np.int64)
    n_others[order[first]] = counts - 1
    n_others[hashes == 0] = 0
    is_first = hashes == 0
    is_first[order[first]] = True
    rows = is_first.nonzero()[0][:n]
    return Groups(rows, n_others[rows])
