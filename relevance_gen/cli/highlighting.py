"""Find the words of a chunk that a query asks for, by what the search itself matched."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import TypeAlias

from relevance_gen.retrieval.index import ChunkIndex
from relevance_gen.retrieval.terms import tokenize

Span: TypeAlias = tuple[int, int]

_THAI, _HAN = "\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff", "\u2e80-\ud7ff\uf900-\ufaff"
_WORD = re.compile(rf"([{_THAI}]+)|([{_HAN}]+)|(?:(?![{_THAI}{_HAN}])[\w\u0300-\u036f\u0900-\u0dff\u200c\u200d])+")
"""Runs of South-East Asian and of East Asian scripts, whose terms are three and two characters; and words."""


def matched_spellings(index: ChunkIndex, query: str, chunk: int) -> frozenset[str]:
    """Return the words, folded, that `query` stands for in `index`, of which `chunk` is one that it found."""
    terms = index.explain(query, chunk).terms
    return frozenset(spelling for term in terms if term.idf for spelling in term.matches)


def matches(text: str, spellings: Collection[str]) -> list[Span]:
    """Return where in `text` words stand of which a term is one of `spellings`, in order."""
    spans = list(_words(text))
    tokens = tokenize([text[start:end] for start, end in spans])
    found, token = [], 0
    for span, count in zip(spans, tokens.counts.tolist(), strict=True):
        if any(tokens.spell(number) in spellings for number in range(token, token + count)):
            found.append(span)
        token += count
    return found


def _words(text: str) -> Iterator[Span]:
    """Yield the words of `text`; of scripts that do not part words, overlapping n-grams."""
    for match in _WORD.finditer(text):
        start, end = match.span()
        size = 3 if match[1] else 2 if match[2] else end - start
        yield from ((at, min(at + size, end)) for at in range(start, max(end - size, start) + 1))
