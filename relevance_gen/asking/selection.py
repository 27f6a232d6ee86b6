"""Select the sources of a prompt."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence
from typing import TypeAlias

from relevance_gen.asking.answer import Source
from relevance_gen.generation.queue.request import MAX_CHOICES, MAX_GRAMMAR_CHARACTERS
from relevance_gen.text.chunking import sentences

Fits: TypeAlias = Callable[[Sequence[Source]], bool]
"""Whether a prompt with these sources fits; then a prompt with fewer or shorter sources fits too."""

_MAX_TRIED = 100
"""Sources that are tried after the first that does not fit; the model counts each of them."""


def fit(sources: Sequence[Source], fits: Fits) -> tuple[Source, ...]:
    """Return the sources that fit into a prompt, the best first, each text once.

    A source that does not fit is shortened to the sentences around its best passage. It is dropped
    if not even the sentences of the passage fit.
    """
    sources = list({source.text.strip(): source for source in reversed(sources)}.values())[::-1]
    if fits(sources):
        return tuple(sources)
    n_complete = bisect.bisect_left(
        range(1, len(sources)), True, key=lambda n: not fits(sources[:n])
    )
    shown = sources[:n_complete]
    for source in sources[n_complete : n_complete + _MAX_TRIED]:
        if fits([*shown, source]):
            shown.append(source)
            continue
        parts = _around_passage(source)
        n_fitting = bisect.bisect_left(parts, True, key=lambda part: not fits([*shown, part]))
        shown += parts[:n_fitting][-1:]
    return tuple(shown)


def passage_of(source: Source) -> Source:
    """Return the sentences of the best passage of a source."""
    return _around_passage(source)[0]


def sentences_of(sources: Sequence[Source]) -> list[str]:
    """Return the distinct sentences of the sources, each on one line.

    At most half of the choices of a request are returned, as each is offered in two variants.
    """
    texts = (source.text[start:end] for source in sources for start, end in sentences(source.text))
    lines = dict.fromkeys(" ".join(text.split()) for text in texts)
    ends = itertools.accumulate(len(line) + 1 for line in lines)
    kept = [
        line for line, end in zip(lines, ends, strict=True) if end <= MAX_GRAMMAR_CHARACTERS // 2
    ]
    return kept[: MAX_CHOICES // 2]


def _around_passage(source: Source) -> list[Source]:
    """Return the sentences of the passage, then parts that are longer by one sentence at each end."""
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
