"""Read a question: check what was asked, and cut the query into terms."""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Iterable, Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.cutting import blocks
from relevance_gen.retrieval.growing import GrowingArray
from relevance_gen.retrieval.matching import MAX_INFLECTED, is_fragment
from relevance_gen.retrieval.terms import BEGINNINGS, SPELLED_BYTES, Ids, beginnings, identify, tokenize
from relevance_gen.retrieval.vocabulary import Flags
from relevance_gen.retrieval.weighting import Weighting

REMEMBERED_CHARS: Final = 1024
"""Longer queries are not remembered, nor what was found for them."""
_REMEMBERED_QUERIES: Final = 256
MAX_TERMS: Final = 1 << 14
"""Most different words of a query that count: it bounds the work for queries as long as a book."""
_STEP: Final = 1 << 16
_CHARS_PER_TOKEN: Final = 4
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
        order: number of the term at each token, -1 where it is none of these, shape (T,).
    """

    text: str
    ids: Ids
    terms: tuple[QueryTerm, ...]
    order: npt.NDArray[np.int16]

    @property
    def beginnings(self) -> Flags | None:
        """Which beginnings words have that the query can match, shape (BEGINNINGS,); None where it may be any."""
        if any(is_fragment(term.word) for term in self.terms):
            return None
        flags = np.zeros(BEGINNINGS, bool)
        flags[beginnings(self.ids)] = True
        return flags


def parse(text: str, weighting: Weighting) -> Query:
    """Cut a query into terms, as the weighting sees them."""
    return _parse_once(text, weighting) if len(text) <= REMEMBERED_CHARS else _parse(text, weighting)


def _parse(text: str, weighting: Weighting) -> Query:
    is_plain = len(text) <= _FEW_WORDS * SPELLED_BYTES and text.isascii() and not _IDENTIFIER.search(text)
    words = _PLAIN_WORD.findall(text.lower()) if is_plain else []
    if words and len(words) <= _FEW_WORDS and len(max(words, key=len)) < SPELLED_BYTES:
        ids = np.array([*map(identify, words)], np.uint64)
        each = zip(words, ids.tolist(), map(len, words), strict=True)
        return _terms(text, ids, each, np.arange(len(words), dtype=np.int16), weighting)
    every: GrowingArray[np.uint64] = GrowingArray(np.uint64, len(text) // _CHARS_PER_TOKEN)
    heads: dict[int, tuple[str, int]] = {}  # spelling and bytes of each word, in order of first appearance
    for block in map(tokenize, blocks([text])):
        every.extend(block.ids)
        if len(heads) < MAX_TERMS:
            for first in np.sort(np.unique(block.ids, return_index=True)[1]).tolist():
                if len(heads) < MAX_TERMS:
                    heads.setdefault(int(block.ids[first]), (block.spell(first), int(block.length[first])))
    ids = every.finish()
    known = np.array([*heads], np.uint64)
    in_order = known.argsort().astype(np.int16)
    word_at = np.full(ids.size, -1, np.int16)
    for low in range(0, ids.size, _STEP):
        some = ids[low : low + _STEP]
        at = in_order.take(known.searchsorted(some, sorter=in_order), mode="clip")
        at[known.take(at) != some] = -1
        word_at[low : low + _STEP] = at
    heads_of = ((spelling, term_id, n_bytes) for term_id, (spelling, n_bytes) in heads.items())
    return _terms(text, ids, heads_of, word_at, weighting)


def _terms(
    text: str, ids: Ids, words: Iterable[tuple[str, int, int]], word_at: npt.NDArray[np.int16], weighting: Weighting
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
    order = np.array(term_of_word, np.int16).take(word_at)
    qtf = np.bincount(order[order >= 0], minlength=len(heads)).tolist()
    terms = []
    for number, (spelling, term_id) in enumerate(heads):
        stop = weighting.is_stop(spelling)
        inflected = weighting.inflects and not stop and number < MAX_INFLECTED
        terms.append(QueryTerm(spelling, term_id, qtf[number], stop, inflected))
    return Query(text, ids, tuple(terms), order)


_parse_once = functools.lru_cache(maxsize=_REMEMBERED_QUERIES)(_parse)
