"""Find the words of a chunk that a query asks for, by the rules that the search itself matches by."""

from __future__ import annotations

import re
from collections.abc import Iterator

from relevance_gen.retrieval.matching import is_inflected, similarity, stem
from relevance_gen.retrieval.stopwords import ENGLISH
from relevance_gen.retrieval.terms import tokenize

_UNSPACED = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\ud7ff\uf900-\ufaff"
_WORD = re.compile(rf"(?:(?![{_UNSPACED}])[\w\u0300-\u036f\u0900-\u0dff])+|[{_UNSPACED}]+")
_NGRAM_CHARS = 2

Span = tuple[int, int]


class Highlighter:
    """Find the words of texts that match a word of `query`."""

    def __init__(self, query: str) -> None:
        spellings = _spellings(query)
        self._spellings = spellings - ENGLISH or spellings
        self._stems = {stem(spelling) for spelling in self._spellings}

    def spans(self, text: str) -> list[Span]:
        """Return where in `text` the matching words stand, in order."""
        return [span for span in _word_spans(text) if any(map(self._matches, _spellings(text[slice(*span)])))]

    def _matches(self, spelling: str) -> bool:
        if spelling in self._spellings or stem(spelling) in self._stems:
            return True
        if spelling.isascii() or not is_inflected(spelling):
            return False
        return any(is_inflected(own) and similarity(own, spelling) > 0 for own in self._spellings)


def _spellings(text: str) -> set[str]:
    tokens = tokenize([text])
    return {tokens.spell(number) for number in range(len(tokens.ids))}


def _word_spans(text: str) -> Iterator[Span]:
    """Yield the words of `text`; of a script that does not part them, overlapping pairs of characters."""
    for match in _WORD.finditer(text):
        start, end = match.span()
        if re.match(f"[{_UNSPACED}]", match[0]) and end - start > _NGRAM_CHARS:
            yield from ((at, at + _NGRAM_CHARS) for at in range(start, end - _NGRAM_CHARS + 1))
        else:
            yield start, end
