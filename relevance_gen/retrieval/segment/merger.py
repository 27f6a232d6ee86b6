"""Merge segments into one, so that an index that grows has few of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from relevance_gen.retrieval.arrays import Offsets, TermNumbers, ragged_ranges
from relevance_gen.retrieval.segment.chunks import Chunks
from relevance_gen.retrieval.segment.lexicon import lexicon_of
from relevance_gen.retrieval.segment.passages import Passages
from relevance_gen.retrieval.segment.postings import Postings
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
    live = [np.flatnonzero(segment.live) for segment in segments]
    positions = np.concatenate([segment.positions[kept] for segment, kept in zip(segments, live, strict=True)])
    order = np.argsort(positions, kind="stable")
    new_number = np.empty(order.size, np.int64)
    new_number[order] = np.arange(order.size)

    def gather(arrays: Sequence[npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Return one value a chunk, in the order of their positions."""
        return np.concatenate([array[kept] for array, kept in zip(arrays, live, strict=True)])[order]

    n_occurrences = gather([segment.n_occurrences for segment in segments])
    starts = np.cumsum([0, *(segment.size for segment in segments)])
    renumbered = np.full(int(starts[-1]), -1, np.int64)  # by the numbers of all segments, one behind the other
    renumbered[np.concatenate([kept + start for kept, start in zip(live, starts.tolist(), strict=False)])] = new_number
    parts = [segment.chunks.take(kept.tolist()) for segment, kept in zip(segments, live, strict=True)]
    postings, numbers = _merge_postings([segment.postings for segment in segments], renumbered, starts)
    return Segment(
        positions=positions[order],
        chunks=_joined(parts).take(order.tolist()),
        postings=postings,
        occurrences=_merge_occurrences(segments, live, order, numbers),
        first_occurrence=np.cumsum(n_occurrences) - n_occurrences,
        n_occurrences=n_occurrences,
        norms=gather([segment.norms for segment in segments]),
        votes=gather([segment.votes for segment in segments]),
        hashes=gather([segment.hashes for segment in segments]),
        passages=_merge_passages(segments, live, order),
    )


def _joined(parts: Sequence[Chunks]) -> Chunks:
    texts: list[str] = []
    metadata = {}
    for part in parts:
        metadata.update({len(texts) + number: data for number, data in part.metadata.items()})
        texts += part.texts
    return Chunks(texts, metadata)


def _merge_passages(segments: Sequence[Segment], live: Sequence[Offsets], order: Offsets) -> Passages | None:
    """Merge vectors, where every segment has some."""
    parts = [one.passages.take(kept) for one, kept in zip(segments, live, strict=True) if one.passages is not None]
    return Passages.joined(parts).take(order) if parts and len(parts) == len(segments) else None


def _merge_occurrences(
    segments: Sequence[Segment], live: Sequence[Offsets], order: Offsets, numbers: Sequence[TermNumbers]
) -> TermNumbers:
    """Merge occurrences, each renumbered; `numbers` are those of each segment's words in the merged vocabulary."""
    occurrences, first, counts = [], [], []
    n_before = 0
    for segment, kept, number in zip(segments, live, numbers, strict=True):
        if segment.occurrences is None:
            raise ValueError("a segment without its occurrences cannot be merged")
        occurrences.append(number.take(segment.occurrences))
        first.append(segment.first_occurrence[kept] + n_before)
        counts.append(segment.n_occurrences[kept])
        n_before += segment.occurrences.size
    first_occurrence, n_occurrences = np.concatenate(first), np.concatenate(counts)
    return np.concatenate(occurrences)[ragged_ranges(first_occurrence[order], n_occurrences[order])]


def _merge_postings(
    parts: Sequence[Postings], renumbered: Offsets, starts: Offsets
) -> tuple[Postings, list[TermNumbers]]:
    """Merge inverted indexes, and return the new number of each part's terms, too.

    A term that no chunk has any more is left out, and its number is never asked for.

    Args:
        parts: the indexes, one behind the other.
        renumbered: the new number of each chunk, by the numbers of all parts; -1 for one that goes.
        starts: where each part's numbers begin.
    """
    df = np.concatenate([part.document_frequency() for part in parts])
    words = [part.lexicon for part in parts]
    ids = np.concatenate([lexicon.ids for lexicon in words])
    order = np.argsort(ids, kind="stable")
    order = order[df[order] > 0]
    new = np.concatenate((np.ones(min(1, order.size), bool), ids[order[1:]] != ids[order[:-1]]))
    first = np.concatenate(([0], np.cumsum(df[order])))
    heads = np.flatnonzero(new)

    chunk = np.concatenate([part.chunk + start for part, start in zip(parts, starts.tolist(), strict=False)])
    kept = renumbered[chunk.astype(np.int64)]
    alive = kept >= 0
    start_of = np.cumsum(df) - df
    at = ragged_ranges(start_of[order], df[order])
    tf = np.concatenate([part.tf for part in parts])[alive]

    letters = np.concatenate([lexicon.spelling for lexicon in words])
    spelled = np.concatenate([np.diff(lexicon.spelling_first) - 1 for lexicon in words])
    spelled_from = np.cumsum(spelled + 1) - spelled - 1
    shown = order[heads]
    merged = Postings(
        lexicon=lexicon_of(ids[shown], letters, spelled_from[shown], spelled[shown]),
        first=np.append(first[heads], first[-1]),
        chunk=kept[alive].astype(np.uint32)[at],
        tf=tf[at],
    )
    new_number = np.zeros(ids.size, np.uint32)
    new_number[order] = np.cumsum(new) - 1
    return merged, np.split(new_number, np.cumsum([lexicon.size for lexicon in words[:-1]]))
