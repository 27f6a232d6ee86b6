"""Say what a chunk is and check chunks, for the library, the command line and the server alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from attrs import frozen

from relevance_gen import wire
from relevance_gen.errors import InvalidRequestError
from relevance_gen.types import Chunk, Metadata

_PLAIN_FIELDS: Final = {"text", "metadata"}


@frozen
class Chunks:
    """Checked chunks; whatever takes chunks takes these as they are.

    Attributes:
        texts: the text of each.
        metadata: the caller's metadata by position, for the chunks that came with any.
    """

    texts: Sequence[str]
    metadata: Mapping[int, Metadata]

    @classmethod
    def read(
        cls,
        values: Iterable[object],
        *,
        path: str = "chunks",
        kinds: str = "a string, a mapping or a Chunk",
    ) -> Chunks:
        """Check strings, mappings and `Chunk` objects, mixed.

        Strings and plain mappings, the usual case, are checked in one loop without a `Chunk` being made.

        Args:
            values: the chunks; `Chunks` are checked already and come back as they are.
            path: what the caller calls them, for errors.
            kinds: what the caller calls the kinds that are allowed, for errors.

        Raises:
            InvalidRequestError: `values` is no list, or one of them is blank or of another kind; the error names the
                first such by its path, as in ``chunks[3].text``.
        """
        if isinstance(values, Chunks):
            return values
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise InvalidRequestError.must_be(
                path, "a list of strings, mappings or Chunk objects", values, remedy="put a single text in a list"
            )
        texts: list[str] = []
        metadata: dict[int, Metadata] = {}
        text: Any
        data: Metadata | None
        for position, value in enumerate(values):
            if type(value) is str:
                text, data = value, None
            elif type(value) is dict and value.keys() <= _PLAIN_FIELDS and type(value.get("metadata", {})) is dict:
                text, data = value.get("text"), value.get("metadata")
            else:
                text, data = None, None
            if type(text) is not str or not text or text.isspace():
                chunk = _chunk(value, f"{path}[{position}]", kinds)
                text, data = chunk.text, chunk.metadata
            texts.append(text)
            if data:
                metadata[position] = data
        return cls(texts, metadata)

    def __iter__(self) -> Iterator[Chunk]:
        return (Chunk(text, self.metadata_of(number)) for number, text in enumerate(self.texts))

    def metadata_of(self, number: int) -> Metadata:
        """Return the metadata of a chunk, ``{}`` where it came without."""
        return self.metadata.get(number, {})

    def take(self, numbers: Sequence[int]) -> Chunks:
        """Return some of the chunks, in the order of `numbers`."""
        texts, metadata = self.texts, self.metadata
        kept = {new: metadata[old] for new, old in enumerate(numbers) if old in metadata} if metadata else {}
        return Chunks([texts[number] for number in numbers], kept)


def _chunk(value: object, path: str, kinds: str) -> Chunk:
    """Make a `Chunk` of `value`, or raise the error that says why not."""
    if isinstance(value, Chunk):
        return value
    if isinstance(value, str):
        return wire.structure(Chunk, {"text": value}, path=path)
    if not isinstance(value, Mapping):
        raise InvalidRequestError.must_be(path, kinds, value)
    return wire.structure(Chunk, value, path=path)
