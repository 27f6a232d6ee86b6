"""Read a question: check what was asked, and cut the query into terms."""

from __future__ import annotations

import functools
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from attrs import field, frozen

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.cutting import blocks
from relevance_gen.retrieval.matching import MAX_INFLECTED, is_fragment
from relevance_gen.retrieval.terms import SPELLED_BYTES, Ids, identify, tokenize
from relevance_gen.retrieval.weighting import Weighting

REMEMBERED_CHARS: Final = 1024
"""Longer queries are not remembered, nor what was found for them."""
_REMEMBERED_QUERIES: Final = 256
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


def questions(query: object, top_n: int, true_order: bool) -> Question | list[Question]:
    """Return what a caller asks: one question, or several if the query is a list, a tuple, an array or a generator.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it, one of several queries as in ``query[3]``.
    """
    asked = checks.as_list(query)
    if not isinstance(asked, list | tuple | Iterator):
        return Question(asked, top_n, true_order)
    return [_numbered(place, one, top_n, true_order) for place, one in enumerate(asked)]


def _numbered(place: int, query: Any, top_n: int, true_order: bool) -> Question:
    """Make the question of one query among several; an error names that one."""
    try:
        return Question(query, top_n, true_order)
    except InvalidRequestError as error:
        if error.field != "query":
            raise
        path = f"query[{place}]"
        raise InvalidRequestError(f"{path}{str(error).removeprefix('query')}", field=path) from None


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
        terms: its different terms, in order of first appearance; of more than `MAX_TERMS` only the first.
        order: number of the term at each token, -1 where it is none of these.
    """

    text: str
    ids: Ids
    terms: tuple[QueryTerm, ...]
    order: tuple[int, ...]

    @property
    def beginnings(self) -> Ids | None:
        """Ids that have the beginnings of all that the query can match; None where that may begin with anything."""
        return None if any(is_fragment(term.word) for term in self.terms) else self.ids


def parse(text: str, weighting: Weighting) -> Query:
    """Cut a query into terms, as the weighting sees them."""
    return _parse_once(text, weighting) if len(text) <= REMEMBERED_CHARS else _parse(text, weighting)


def _parse(text: str, weighting: Weighting) -> Query:
    words = _PLAIN_WORD.findall(text.lower()) if text.isascii() and not _IDENTIFIER.search(text) else []
    if words and len(words) <= _FEW_WORDS and len(max(words, key=len)) < SPELLED_BYTES:
        ids = list(map(identify, words))
        each = zip(words, ids, map(len, words), strict=True)
        return _terms(text, np.array(ids, np.uint64), each, range(len(words)), weighting)
    parts: list[Ids] = []
    heads: dict[int, tuple[str, int]] = {}  # spelling and bytes of each word, in order of first appearance
    for block in map(tokenize, blocks([text])):
        parts.append(block.ids)
        if len(heads) < MAX_TERMS:
            for first in np.sort(np.unique(block.ids, return_index=True)[1]).tolist():
                if len(heads) < MAX_TERMS:
                    heads.setdefault(int(block.ids[first]), (block.spell(first), int(block.length[first])))
    every = np.concatenate(parts)
    known = np.array([*heads], np.uint64)
    in_order = known.argsort()
    at = known.searchsorted(every, sorter=in_order)
    word_at = in_order.take(at, mode="clip") if heads else at
    word_at[known.take(word_at) != every] = -1
    heads_of = ((spelling, term_id, n_bytes) for term_id, (spelling, n_bytes) in heads.items())
    return _terms(text, every, heads_of, word_at.tolist(), weighting)


def _terms(
    text: str, ids: Ids, words: Iterable[tuple[str, int, int]], word_at: Sequence[int], weighting: Weighting
) -> Query:
    """Put words that are one term together.

    Args:
        text: the query.
        ids: term ids of its tokens.
        words: spelling, id and length in bytes of its different words.
        word_at: number of the word at each token; -1 for one that is left out.
        weighting: tells which words are one term.
    """
    numbers: dict[Hashable, int] = {}
    heads: list[tuple[str, int]] = []
    term_of_word = []
    for spelling, term_id, n_bytes in words:
        number = numbers.setdefault(weighting.key(spelling, term_id, n_bytes), len(numbers))
        if number == len(heads):
            heads.append((spelling, term_id))
        term_of_word.append(number)
    term_of_word.append(-1)  # that of -1
    order = tuple([term_of_word[word] for word in word_at])
    qtf = Counter(order)
    terms = []
    for number, (spelling, term_id) in enumerate(heads):
        stop = weighting.is_stop(spelling)
        inflected = weighting.inflects and not stop and number < MAX_INFLECTED
        terms.append(QueryTerm(spelling, term_id, qtf[number], stop, inflected))
    return Query(text, ids, tuple(terms), order)


_parse_once = functools.lru_cache(maxsize=_REMEMBERED_QUERIES)(_parse)
