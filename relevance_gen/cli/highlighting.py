"""Find the words of a chunk that a query asks for, by what the search itself matched."""

from __future__ import annotations

from collections.abc import Collection
from typing import TypeAlias

from relevance_gen.retrieval.index import ChunkIndex
from relevance_gen.retrieval.scripts import spans_of_words
from relevance_gen.retrieval.terms import tokenize

Span: TypeAlias = tuple[int, int]


def matched_spellings(index: ChunkIndex, query: str, chunk: int) -> frozenset[str]:
    """Return the words, folded, that `query` stands for in `index`, of which `chunk` is one that it found."""
    terms = index.explain(query, chunk).terms
    return frozenset(spelling for term in terms if term.idf for spelling in term.matches)


def matches(text: str, spellings: Collection[str]) -> list[Span]:
    """Return where in `text` words stand of which a term is one of `spellings`, in order."""
    spans = list(spans_of_words(text))
    tokens = tokenize([text[start:end] for start, end in spans])
    found, token = [], 0
    for span, count in zip(spans, tokens.counts.tolist(), strict=True):
        if any(tokens.spell(number) in spellings for number in range(token, token + count)):
            found.append(span)
        token += count
    return found
