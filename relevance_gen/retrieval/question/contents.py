"""Fetch texts and metadata of chunks from wherever their segments are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from attrs import frozen

from relevance_gen.retrieval.arrays import Offsets
from relevance_gen.retrieval.question.stage import E, Excerpt, Inquiry
from relevance_gen.types import Metadata

_SHORT_CHARS: Final = 1 << 15
"""Where texts are longer, sending what nobody may want takes longer than asking again does."""


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


def if_short(inquiry: Inquiry[E], excerpt: Excerpt) -> E | None:
    """Return what is asked of some chunks, or None if their texts are long, and so the answer may be."""
    texts = excerpt.segment.chunks.texts
    n_chars = sum(len(texts[number]) for number in excerpt.numbers.tolist())
    return inquiry(excerpt) if n_chars <= _SHORT_CHARS else None
