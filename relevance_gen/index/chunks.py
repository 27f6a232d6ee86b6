"""Hold checked chunks as columns: texts, metadata and titles, which can be computed when read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
from attrs import evolve, field, frozen

from relevance_gen.arrays import Offsets
from relevance_gen.types import Chunk, Metadata

T = TypeVar("T")


@frozen
class Chunks:
    """Chunks that were checked by `relevance_gen.index.records.validation`.

    Attributes:
        texts: the text of each chunk; "" for a blank chunk to leave out.
        metadata: the metadata of the chunks that have any, by chunk ordinal.
        titles: titles that are not blank, by chunk ordinal.
    """

    texts: Sequence[str]
    metadata: Mapping[int, Metadata]
    titles: Mapping[int, str] = field(factory=dict)

    def __iter__(self) -> Iterator[Chunk]:
        for chunk_ord, text in enumerate(self.texts):
            title = self.title_of(chunk_ord)
            yield Chunk(text, self.metadata_of(chunk_ord), title=title)

    @property
    def indexed_texts(self) -> Sequence[str]:
        """The text that is indexed for each chunk: its title, if any, in a line before its text."""
        return LazyTexts(len(self.texts), self._indexed_text) if self.titles else self.texts

    def _indexed_text(self, chunk_ord: int) -> str:
        title = self.titles.get(chunk_ord)
        text = self.texts[chunk_ord]
        return text if title is None else f"{title}\n{text}"

    def title_of(self, chunk_ord: int) -> str:
        """Return the title of a chunk, "" if it has none."""
        return self.titles.get(chunk_ord, "")

    def metadata_of(self, chunk_ord: int) -> Metadata:
        """Return the metadata of a chunk, ``{}`` if it has none."""
        return self.metadata.get(chunk_ord, {})

    def without_blank(self) -> tuple[Chunks, Offsets]:
        """Return the n chunks with a text, and the position of each in all chunks, shape (n,)."""
        if all(self.texts):
            return self, np.arange(len(self.texts))
        positions = [position for position, text in enumerate(self.texts) if text]
        return self.take(positions), np.array(positions, np.int64)

    def take(self, chunk_ords: Sequence[int]) -> Chunks:
        """Return the chunks with these ordinals, in the order of `chunk_ords`."""
        texts = [self.texts[chunk_ord] for chunk_ord in chunk_ords]
        metadata = _reindex(self.metadata, chunk_ords)
        return Chunks(texts, metadata, _reindex(self.titles, chunk_ords))

    def without_metadata(self) -> Chunks:
        """Return the chunks with only the searched fields: texts and titles."""
        return evolve(self, metadata={})

    @classmethod
    def concat(cls, parts: Iterable[Chunks]) -> Chunks:
        """Return the chunks of several parts, in order."""
        texts: list[str] = []
        metadata: dict[int, Metadata] = {}
        titles: dict[int, str] = {}
        for part in parts:
            first_ord = len(texts)
            for chunk_ord, fields in part.metadata.items():
                metadata[first_ord + chunk_ord] = fields
            for chunk_ord, title in part.titles.items():
                titles[first_ord + chunk_ord] = title
            texts += part.texts
        return cls(texts, metadata, titles)


def copy_metadata(metadata: Metadata) -> dict[str, Any]:
    """Return a copy of metadata, with copies of the lists and dicts in it.

    Other values are the same objects. Two references to one list or dict become references to one
    copy.
    """
    copied = dict(metadata)
    containers: list[Any] = [copied]
    copies: dict[int, Any] = {}  # the copy of each list or dict, by its id
    while containers:
        container = containers.pop()
        items = container.items() if isinstance(container, dict) else enumerate(container)
        for key, value in items:
            if not isinstance(value, dict | list):
                continue
            if id(value) not in copies:
                copies[id(value)] = value.copy()
                containers.append(copies[id(value)])
            container[key] = copies[id(value)]
    return copied


def _reindex(
    values: Mapping[int, T],
    chunk_ords: Sequence[int],
) -> dict[int, T]:
    """Return the values of some chunks by new ordinals; chunks without a value are left out.

    Args:
        values: values by old ordinal.
        chunk_ords: the old ordinal of each chunk; its index is the new ordinal.
    """
    if not values:
        return {}
    return {
        new_ord: values[old_ord] for new_ord, old_ord in enumerate(chunk_ords) if old_ord in values
    }


class LazyTexts(Sequence[str]):
    """A sequence of texts that are computed when they are read; pickled as a list.

    Args:
        size: number of texts.
        make: returns the text at an index in [0, size).
    """

    def __init__(
        self,
        size: int,
        make: Callable[[int], str],
    ) -> None:
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return list(map(self._make, range(self._size)[index]))
        return self._make(range(self._size)[index])

    def __iter__(self) -> Iterator[str]:
        return map(self._make, range(self._size))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*self],)
