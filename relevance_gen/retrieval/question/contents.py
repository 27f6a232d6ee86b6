"""Fetch texts and metadata of chunks from wherever their segments are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from relevance_gen.retrieval.arrays import Offsets
from relevance_gen.retrieval.question.stage import Excerpt
from relevance_gen.types import Metadata

_SHORT_CHARS: Final = 1 << 15
"""Texts that are sent along unasked: more would take longer to send than asking again does."""


@frozen(eq=False)
class Contents:
    """Texts and metadata of some chunks.

    Attributes:
        pairs: of each chunk, in order.
    """

    pairs: list[tuple[str, Metadata]]

    @classmethod
    def merge(cls, parts: Sequence[Contents], places: Sequence[Offsets]) -> Contents:
        """Return those of several segments' chunks."""
        at = [place for some in places for place in some.tolist()]
        pairs = [pair for part in parts for pair in part.pairs]
        return cls([pair for _, pair in sorted(zip(at, pairs, strict=True), key=lambda one: one[0])])

    def take(self, kept: Offsets) -> Contents:
        """Return those of some of the chunks."""
        return Contents([self.pairs[place] for place in kept.tolist()])


def contents(excerpt: Excerpt) -> Contents:
    """Return texts and metadata of some chunks."""
    chunks = excerpt.segment.chunks
    return Contents([(chunks.texts[number], chunks.metadata_of(number)) for number in excerpt.numbers.tolist()])


def short_contents(excerpt: Excerpt) -> Contents | None:
    """Return the same, or None if that is much to send."""
    found = contents(excerpt)
    return found if sum(len(text) for text, _ in found.pairs) <= _SHORT_CHARS else None
