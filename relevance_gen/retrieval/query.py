"""Read a question: check what was asked, and cut the query into terms."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import Final

import numpy as np
from attrs import field, frozen

from relevance_gen import checks
from relevance_gen.retrieval.cutting import blocks
from relevance_gen.retrieval.matching import MAX_INFLECTED, is_fragment
from relevance_gen.retrieval.terms import SPELLED_BYTES, Ids, identify, tokenize
from relevance_gen.retrieval.weighting import Weighting

REMEMBERED_CHARS: Final = 1024
"""Longer queries are not remembered, nor what was found for them."""
_REMEMBERED_QUERIES: Final = 256
_REMEMBERED_WORDS: Final = 1 << 14
MAX_TERMS: Final = 1 << 14
"""Most different words of a query that count: it bounds the work for queries as long as a book."""
_FEW_WORDS: Final = 64
"""Up to so many words are quicker read one by one than with numpy."""
_PLAIN_WORD: Final = re.compile("[a-z0-9]+")
_IDENTIFIER: Final = re.compile("[a-z][A-Z]|[A-Za-z0-9][A-Z][a-z]|_")
"""What ASCII text has if any of its words may be cut into parts."""


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
        key: what all of them share.
        stop: whether it says nothing about the subject.
        inflected: whether it stands for its other forms, too.
        qtf: how often the query says them, at least 1.
    """

    word: str
    term_id: int
    key: Hashable
    stop: bool
    inflected: bool
    qtf: int = 1


@frozen(eq=False)
class Query:
    """A query cut into terms.

    Attributes:
        text: what was cut.
        ids: term ids of its tokens, in reading order, shape (T,).
        terms: its different terms, in order of first appearance; of more than `MAX_TERMS` only the first.
        order: number of the term at each token, -1 where it is none of these.
    """

    text: str
    ids: tuple[int, ...]
    terms: tuple[QueryTerm, ...]
    order: tuple[int, ...]

    @property
    def beginnings(self) -> Ids | None:
        """Ids that have the beginnings of all that the query can match; None where that may begin with anything."""
        return None if any(is_fragment(term.word) for term in self.terms) else np.array(self.ids, np.uint64)


def parse(text: str, weighting: Weighting) -> Query:
    """Cut a query into terms, as the weighting sees them."""
    return _parse_once(text, weighting) if len(text) <= REMEMBERED_CHARS else _parse(text, weighting)


def _parse(text: str, weighting: Weighting) -> Query:
    spellings = _PLAIN_WORD.findall(text.lower()) if text.isascii() and not _IDENTIFIER.search(text) else []
    if spellings and len(spellings) <= _FEW_WORDS and len(max(spellings, key=len)) < SPELLED_BYTES:
        words = [_plain_word(spelling, weighting) for spelling in spellings]
        return _query(text, tuple([word.term_id for word in words]), words)
    parts: list[Ids] = []
    heads: dict[int, QueryTerm] = {}  # the different words, in order of first appearance
    for block in map(tokenize, blocks([text])):
        parts.append(block.ids)
        if len(heads) < MAX_TERMS:
            for first in np.sort(np.unique(block.ids, return_index=True)[1]).tolist():
                term_id = int(block.ids[first])
                if len(heads) < MAX_TERMS and term_id not in heads:
                    heads[term_id] = _word(block.spell(first), term_id, int(block.length[first]), weighting)
    every = np.concatenate(parts)
    known = np.array([*heads], np.uint64)
    in_order = known.argsort()
    at = known.searchsorted(every, sorter=in_order)
    word_at = in_order.take(at, mode="clip") if heads else at
    word_at[known.take(word_at) != every] = -1
    return _query(text, tuple(every.tolist()), [*heads.values()], word_at.tolist())


def _word(spelling: str, term_id: int, n_bytes: int, weighting: Weighting) -> QueryTerm:
    stop = weighting.is_stop(spelling)
    key = weighting.key(spelling, term_id, n_bytes)
    return QueryTerm(spelling, term_id, key, stop, weighting.inflects and not stop)


@functools.lru_cache(maxsize=_REMEMBERED_WORDS)
def _plain_word(spelling: str, weighting: Weighting) -> QueryTerm:
    return _word(spelling, identify(spelling), len(spelling), weighting)


def _query(text: str, ids: tuple[int, ...], words: Sequence[QueryTerm], word_at: Sequence[int] | None = None) -> Query:
    """Put words that are one term together.

    Args:
        text: the query.
        ids: term ids of its tokens.
        words: its words, each told once.
        word_at: number of the word at each token, -1 for one that is left out; None where each is a token's.
    """
    numbers: dict[Hashable, int] = {}
    terms: list[QueryTerm] = []
    order = []
    for word in words:
        number = numbers.setdefault(word.key, len(terms))
        if number == len(terms):
            terms.append(word)
        order.append(number)
    if word_at is not None:
        order.append(-1)  # that of -1
        order = [order[word] for word in word_at]
    if len(terms) < len(order) or len(terms) > MAX_INFLECTED:
        qtf = Counter(order)
        for number, term in enumerate(terms):
            if qtf[number] > 1 or number >= MAX_INFLECTED:
                inflected = term.inflected and number < MAX_INFLECTED
                terms[number] = QueryTerm(term.word, term.term_id, term.key, term.stop, inflected, qtf[number])
    return Query(text, ids, tuple(terms), tuple(order))


_parse_once = functools.lru_cache(maxsize=_REMEMBERED_QUERIES)(_parse)
