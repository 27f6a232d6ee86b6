"""Choose what a model is shown of the chunks that were found."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from relevance_gen.asking.answer import Source
from relevance_gen.generation.queue.request import MAX_CHOICES, MAX_GRAMMAR_CHARACTERS
from relevance_gen.text.chunking import sentences

Fits: TypeAlias = Callable[[Sequence[Source]], bool]
"""Tells whether a prompt of these sources has room; if so, one of fewer or shorter sources has."""

_MOST_TRIED = 100
"""Sources that are tried once one had no room: few small ones follow so many, and each is counted by the model."""


def fit(sources: Sequence[Source], fits: Fits) -> tuple[Source, ...]:
    """Return as many of the sources, the best first, as there is room for, and each text once.

    One for which there is none is cut to whole sentences around its best passage, as many as there is room for. Where
    not even the passage's own sentences have room, it is left out.
    """
    sources = list({source.text.strip(): source for source in reversed(sources)}.values())[::-1]
    if fits(sources):
        return tuple(sources)
    n_whole = bisect.bisect_left(range(1, len(sources)), True, key=lambda n: not fits(sources[:n]))
    shown = sources[:n_whole]
    for source in sources[n_whole : n_whole + _MOST_TRIED]:
        if fits([*shown, source]):
            shown.append(source)
            continue
        parts = _around_passage(source)
        n_fitting = bisect.bisect_left(parts, True, key=lambda part: not fits([*shown, part]))
        shown += parts[:n_fitting][-1:]
    return tuple(shown)


def passage_of(source: Source) -> Source:
    """Cut a source to the sentences of its best passage."""
    return _around_passage(source)[0]


def sentences_of(sources: Sequence[Source]) -> list[str]:
    """Return the sentences of the sources, each once and in one line, as many as a request can choose from twice."""
    texts = (source.text[start:end] for source in sources for start, end in sentences(source.text))
    lines = dict.fromkeys(" ".join(text.split()) for text in texts)
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    kept = [
        line for line, end in zip(lines, ends, strict=True) if end <= MAX_GRAMMAR_CHARACTERS // 2
    ]
    return kept[: MAX_CHOICES // 2]


def _around_passage(source: Source) -> list[Source]:
    """Return parts of a source, each a sentence longer at either end than the one before, from the passage's own on."""
    result = source.result
    passage = result.passage
    if passage is None:
        return [source]
    places = list(sentences(result.chunk_txt))
    within = [
        place
        for place, (start, end) in enumerate(places)
        if start < passage.end and passage.start < end
    ]
    first, last = within[0], within[-1]
    return [
        Source(result, places[max(first - n, 0)][0], places[min(last + n, len(places) - 1)][1])
        for n in range(max(first, len(places) - 1 - last) + 1)
    ]
