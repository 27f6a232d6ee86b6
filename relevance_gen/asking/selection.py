"""Select the sources of a prompt."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

from relevance_gen.asking.answer import Source
from relevance_gen.text.chunking import sentences
from relevance_gen.types import SearchResult

Fits: TypeAlias = Callable[[Sequence[Source]], bool]
"""Returns whether a prompt with these sources fits into the context of the model. If it does, a
prompt with fewer or shorter sources does, too."""

_NAMED_ROW = re.compile(r"\|.*: .*\|")
_MAX_TRIED = 100
"""Sources that are tried after the first that does not fit; the model counts each of them."""


def fit(sources: Sequence[Source], fits: Fits) -> tuple[Source, ...]:
    """Return the sources that fit into a prompt; sources with equal text are returned once.

    A source that does not fit is shortened to the sentences around its best passage. It is dropped
    if not even the sentences of the passage fit.

    Args:
        sources: the sources, best first.
        fits: returns whether a prompt with given sources fits into the context of the model.
    """
    by_text = {source.text.strip(): source for source in reversed(sources)}
    sources = list(reversed(by_text.values()))
    if fits(sources):
        return tuple(sources)
    n_complete = bisect.bisect_left(
        range(1, len(sources)),
        True,
        key=lambda n_sources: not fits(sources[:n_sources]),
    )
    selected = sources[:n_complete]
    for source in sources[n_complete : n_complete + _MAX_TRIED]:
        if fits([*selected, source]):
            selected.append(source)
            continue
        parts = _around_passage(source)
        n_fitting = bisect.bisect_left(
            parts,
            True,
            key=lambda part: not fits([*selected, part]),
        )
        selected += parts[:n_fitting][-1:]
    return tuple(selected)


def passage_of(source: Source) -> Source:
    """Return a source with only the sentences that the best passage of `source` overlaps.

    This is the first part that `_around_passage` returns; without a passage, `source` itself.
    """
    return _around_passage(source)[0]


def _around_passage(source: Source) -> list[Source]:
    """Return parts of the text of a source around its best passage, in ascending size.

    The first part consists of the sentences that the passage overlaps. Each further part has one
    more sentence at each end, as far as the text has one. If all overlapped sentences are table
    rows that contain the names of their columns, the first part is the single row with the most
    different words of the query. Without a passage, the source itself is the only part.
    """
    result = source.result
    passage = result.passage
    if passage is None:
        return [source]
    spans = list(sentences(result.chunk_txt))
    overlapping = []
    for sentence_ord, (start, end) in enumerate(spans):
        if start < passage.end and passage.start < end:
            overlapping.append(sentence_ord)
    if all(_NAMED_ROW.match(result.chunk_txt, *spans[row]) for row in overlapping):
        overlapping = [max(overlapping, key=lambda row: _n_matches(result, spans[row]))]
    first = overlapping[0]
    last = overlapping[-1]
    parts = [Source(result, spans[first][0], spans[last][1])]
    while first > 0 or last < len(spans) - 1:
        first = max(first - 1, 0)
        last = min(last + 1, len(spans) - 1)
        parts.append(Source(result, spans[first][0], spans[last][1]))
    return parts


def _n_matches(result: SearchResult, sentence: tuple[int, int]) -> int:
    """Return the number of different words of a sentence that match the query, ignoring case.

    Args:
        result: the result whose text contains the sentence.
        sentence: start and end of the sentence in ``result.chunk_txt``.
    """
    start, end = sentence
    words = set()
    for word in result.words:
        if start <= word.start and word.end <= end:
            words.add(result.chunk_txt[word.start : word.end].casefold())
    return len(words)
