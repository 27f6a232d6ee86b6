"""Read a question: check what was asked, and cut the query into terms."""

from __future__ import annotations

import functools
from collections.abc import Hashable
from typing import Final

import numpy as np
from attrs import field, frozen

from relevance_gen import checks
from relevance_gen.retrieval.matching import MAX_INFLECTED, is_fragment
from relevance_gen.retrieval.terms import Ids, Offsets, tokenize
from relevance_gen.retrieval.weighting import Weighting

REMEMBERED_CHARS: Final = 1024
"""Longer queries are not remembered, nor what was found for them."""
_REMEMBERED_QUERIES: Final = 256


@frozen
class Question:
    """What a caller asks of some chunks.

    Args:
        query: the question in words; not blank.
        top_n: most results, at least 1.
        true_order: results in the chunks' order (true) or best first (false).

    Raises:
        InvalidRequestError: one of them is not allowed.
    """

    query: str = field(converter=checks.plain, validator=checks.not_blank)
    top_n: int = field(default=10, converter=checks.plain, validator=checks.integer(1))
    true_order: bool = field(default=True, converter=checks.plain, validator=checks.flag)


@frozen
class QueryTerm:
    """A word of the query with the other words of the query that are one term with it.

    Attributes:
        word: the folded spelling of the first.
        term_id: its id.
        qtf: how often the query says them, at least 1.
        stop: whether it says nothing about the subject.
        inflected: whether it stands for its other forms, too.
    """

    word: str
    term_id: int
    qtf: int
    stop: bool
    inflected: bool


@frozen(eq=False)
class Query:
    """A query cut into terms.

    Attributes:
        text: what was cut.
        ids: term ids of its tokens, in reading order, shape (T,).
        terms: its different terms, in order of first appearance.
        order: number of the term at each token, shape (T,).
    """

    text: str
    ids: Ids
    terms: tuple[QueryTerm, ...]
    order: Offsets

    @property
    def beginnings(self) -> Ids | None:
        """Ids that have the beginnings of all that the query can match; None where that may begin with anything."""
        return None if any(is_fragment(term.word) for term in self.terms) else self.ids


def parse(text: str, weighting: Weighting) -> Query:
    """Cut a query into terms, as the weighting sees them."""
    return _parse_once(text, weighting) if len(text) <= REMEMBERED_CHARS else _parse(text, weighting)


def _parse(text: str, weighting: Weighting) -> Query:
    tokens = tokenize([text])
    ids, first, word_at = np.unique(tokens.ids, return_index=True, return_inverse=True)
    term_of_word = np.zeros(ids.size, np.int64)
    numbers: dict[Hashable, int] = {}
    heads: list[tuple[str, int]] = []
    for word in np.argsort(first).tolist():  # in order of first appearance
        token, term_id = int(first[word]), int(ids[word])
        spelling = tokens.spell(token)
        number = numbers.setdefault(weighting.key(spelling, term_id, int(tokens.length[token])), len(numbers))
        if number == len(heads):
            heads.append((spelling, term_id))
        term_of_word[word] = number
    order = term_of_word[word_at]
    qtf = np.bincount(order, minlength=len(heads)).tolist()
    terms = tuple(
        QueryTerm(
            spelling,
            term_id,
            qtf[number],
            stop := weighting.is_stop(spelling),
            weighting.inflects and not stop and number < MAX_INFLECTED,
        )
        for number, (spelling, term_id) in enumerate(heads)
    )
    return Query(text, tokens.ids, terms, order)


_parse_once = functools.lru_cache(maxsize=_REMEMBERED_QUERIES)(_parse)
