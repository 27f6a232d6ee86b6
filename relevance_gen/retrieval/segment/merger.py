"""Merge segments into one, so that an index that grows has few of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from relevance_gen.retrieval.arrays import Offsets, inverse, starts_of
from relevance_gen.retrieval.segment.chunks import Chunks
from relevance_gen.retrieval.segment.layout import OF_CHUNKS
from relevance_gen.retrieval.segment.passages import Passages
from relevance_gen.retrieval.segment.postings import PostingsBuilder
from relevance_gen.retrieval.segment.segment import Segment

_TIER: Final = 4
"""A segment is merged with the one before it unless that is more than so many times its size."""


def in_tiers(segments: list[Segment]) -> list[Segment]:
    """Merge the last segments until each is much smaller than the one before it.

    So there are few of them, and a chunk is copied only a few times in its life, however it was added.
    """
    while len(segments) > 1 and segments[-2].statistics.n_chunks <= _TIER * segments[-1].statistics.n_chunks:
        segments[-2:] = [merge(segments[-2:])]
    return segments


def without(segments: Sequence[Segment], positions: Offsets) -> tuple[list[Segment], list[str]]:
    """Take the chunks at some positions out of segments; return the segments that are left, and the chunks' texts.

    A segment of which most is gone is made anew of what is left; of segments of which nothing is left one stays.
    """
    left, texts = [], []
    for segment in segments:
        numbers = segment.find(positions)
        numbers = numbers[numbers >= 0]
        if numbers.size:
            texts += [segment.chunks.texts[number] for number in numbers.tolist()]
            segment = segment.without(numbers)
        if 2 * segment.statistics.n_chunks < segment.size:
            segment = merge([segment])
        left.append(segment)
    return [segment for segment in left if segment.size] or left[:1], texts


def merge(segments: Sequence[Segment]) -> Segment:
    """Return one segment of the chunks of several, without those taken out. Their occurrences must be kept."""
    if len(segments) == 1 and segments[0].postings.live is None:
        return segments[0]
    parts = [(segment, np.flatnonzero(segment.live)) for segment in segments]
    order = np.argsort(np.concatenate([segment.positions[kept] for segment, kept in parts]), kind="stable")
    new_number = inverse(order)
    builder = PostingsBuilder(sum(segment.postings.chunk.size for segment in segments), keep_occurrences=True)
    done = 0
    for segment, kept in parts:
        numbers = np.zeros(segment.size, np.int64)
        numbers[kept] = new_number[done : done + kept.size]
        done += kept.size
        builder.add_segment(segment.postings, segment.occurrences_of(kept), numbers)
    postings, occurrences = builder.build()
    of_chunks = {
        name: np.concatenate([getattr(segment, name)[kept] for segment, kept in parts])[order] for name in OF_CHUNKS
    }
    of_chunks["first_occurrence"] = starts_of(of_chunks["n_occurrences"][new_number])[order]
    passages = [segment.passages.take(kept) for segment, kept in parts if segment.passages is not None]
    return Segment(
        chunks=Chunks.joined([segment.chunks.take(kept.tolist()) for segment, kept in parts]).take(order.tolist()),
        postings=postings,
        occurrences=occurrences,
        passages=Passages.joined(passages).take(order) if passages and len(passages) == len(parts) else None,
        **of_chunks,
    )
