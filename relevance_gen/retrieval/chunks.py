"""Check what the caller hands over as chunks, once, at the border."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import Chunk, Metadata


@frozen
class Chunks:
    """Checked chunks.

    Attributes:
        texts: the text of each.
        metadata: the caller's metadata by position, for the chunks that came with any.
    """

    texts: Sequence[str]
    metadata: Mapping[int, Metadata]

    @classmethod
    def read(cls, chunks: Iterable[str | Metadata | Chunk]) -> Chunks:
        """Read strings, mappings and `Chunk` objects, mixed.

        Raises:
            InvalidRequestError: `chunks` is no list, or one of them is blank or of another kind; the error names it
                by its path on the wire, as in ``chunk_txts[3].text``.
        """
        if isinstance(chunks, str | bytes | Mapping) or not isinstance(chunks, Iterable):
            raise InvalidRequestError.must_be(
                "chunk_txts",
                "a list of strings, mappings or Chunk objects",
                chunks,
                remedy="put a single text in a list",
            )
        return cls(*wire.structure_chunks(chunks, kinds="a string, a mapping or a Chunk"))
