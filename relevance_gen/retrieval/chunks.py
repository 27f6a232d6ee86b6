"""Check what the caller hands over as chunks, once, at the border."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from attrs import frozen

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import Chunk, Metadata, is_blank


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
        texts: list[str] = []
        metadata: dict[int, Metadata] = {}
        for position, chunk in enumerate(chunks):
            if isinstance(chunk, str):
                if is_blank(chunk):
                    raise InvalidRequestError.must_be(
                        f"chunk_txts[{position}].text", "a string that is not blank", chunk, remedy="leave it out"
                    )
                texts.append(chunk)
                continue
            checked = _as_chunk(chunk, f"chunk_txts[{position}]")
            texts.append(checked.text)
            if checked.metadata:
                metadata[position] = checked.metadata
        return cls(texts, metadata)


def _as_chunk(value: object, path: str) -> Chunk:
    if isinstance(value, Chunk):
        return value
    if isinstance(value, Mapping):
        return wire.structure(Chunk, value, path=path)
    raise InvalidRequestError.must_be(path, "a string, a mapping or a Chunk", value)
