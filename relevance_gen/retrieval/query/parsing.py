"""Read a question: check what was asked, and cut the query into terms."""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen

from relevance_gen.arrays import Flags, Ids, batch_slices, concat
from relevance_gen.retrieval.query.term_matching import MAX_INFLECTED
from relevance_gen.text.blocks import blocks
from relevance_gen.text.question_words import QUESTION_WORDS, other_question_words, question_frame
from relevance_gen.text.stems import is_partial_ngram, stem
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from relevance_gen.text.term_hashes import (
    MAX_SPELLING_BYTES,
    N_PREFIX_BUCKETS,
    hash_term,
    prefix_buckets,
)
from relevance_gen.text.tokenization import tokenize

REMEMBERED_CHARS: Final = 1024
"""Longer queries are not remembered, nor what was found for them."""
_REMEMBERED_QUERIES: Final = 256
_REMEMBERED_WORDS: Final = 1 << 14
MAX_TERMS: Final = 1 << 14
"""Most different words of a query that count: it bounds the work for queries as long as a book."""
_STEP: Final = 1 << 16
_FEW_WORDS: Final = 64
"""Up to so many words are quicker read one by one than with numpy."""
_PLAIN_WORD: Final = re.compile("[a-z0-9]+")
_IDENTIFIER: Final = re.compile("[a-z][A-Z]|[A-Za-z0-9][A-Z][a-z]|_")
"""What ASCII text has if any of its words may be cut into parts."""


@frozen
class QueryTerm:
    """A word of the query with the other words of the query that are one term with it."""

    word: str  # the folded spelling of the first
    term_id: int  # its id
    key: Hashable  # what all of them share
    stop: bool  # whether it says nothing about the subject
    inflected: bool  # whether it stands for its other forms, too
    qtf: int = 1  # how often the query says them, at least 1
    asks: bool = (
        False  # whether it only makes the query a question: a function word that never helps
    )


@frozen(eq=False)
class Query:
    """A query cut into terms."""

    text: str  # what was cut
    ids: Ids  # term id of each of its words, in reading order, shape (T,)
    terms: tuple[
        QueryTerm, ...
    ]  # its different terms, in order of first appearance; at most `MAX_TERMS`
    order: npt.NDArray[
        np.int16
    ]  # number of each word's term, -1 where it is none of these, shape (T,)
    corrects: bool = False  # whether words that no chunk has may be corrected
    corrections: Mapping[str, str] = field(
        factory=dict
    )  # what was corrected, by what the question had instead

    @property
    def prefix_buckets(self) -> Flags | None:
        """Which beginnings words have that the query can match, shape (BEGINNINGS,); None where it may be any."""
        if any(is_partial_ngram(term.word) for term in self.terms):
            return None
        flags = np.zeros(N_PREFIX_BUCKETS, bool)
        flags[prefix_buckets(self.ids)] = True
        return flags


def parse(text: str, *, inflects: bool, is_english: bool = True) -> Query:
    """Cut a query into terms.

    With `inflects` words of one stem are one term and stand for their other forms, and function words say nothing about
    the subject, nor do those that only ask; else every word is a term of its own, and counts. Where the chunks are in
    English, words in Latin letters ask in English only.
    """
    read = _parse_once if len(text) <= REMEMBERED_CHARS else _parse
    return read(text, inflects, is_english)


def _parse(text: str, inflects: bool, is_english: bool) -> Query:
    query = _cut(text, inflects)
    return _without_form(query, is_english) if inflects else query


def _cut(text: str, inflects: bool) -> Query:
    is_plain = (
        len(text) <= _FEW_WORDS * MAX_SPELLING_BYTES
        and text.isascii()
        and not _IDENTIFIER.search(text)
    )
    spellings = _PLAIN_WORD.findall(text.lower()) if is_plain else []
    if (
        spellings
        and len(spellings) <= _FEW_WORDS
        and len(max(spellings, key=len)) < MAX_SPELLING_BYTES
    ):
        words = [_plain_word(spelling, inflects) for spelling in spellings]
        return _query(text, np.array([word.term_id for word in words], np.uint64), words)
    ids_of_blocks = []
    heads: dict[int, QueryTerm] = {}  # the different words, in order of first appearance
    for block in map(tokenize, blocks([text])):
        ids_of_blocks.append(block.ids)
        if len(heads) < MAX_TERMS:
            for first in np.sort(np.unique(block.ids, return_index=True)[1]).tolist():
                term_id = int(block.ids[first])
                if len(heads) < MAX_TERMS and term_id not in heads:
                    heads[term_id] = _word(
                        block.decode_term(first), term_id, int(block.length[first]), inflects
                    )
    ids = concat(ids_of_blocks, np.uint64)
    known = np.array([*heads], np.uint64)
    in_order = known.argsort().astype(np.int16)
    word_at = np.full(ids.size, -1, np.int16)
    for some in batch_slices(ids.size, _STEP):
        at = in_order.take(known.searchsorted(ids[some], sorter=in_order), mode="clip")
        at[known.take(at) != ids[some]] = -1
        word_at[some] = at
    return _query(text, ids, [*heads.values()], word_at)


def _word(spelling: str, term_id: int, n_bytes: int, inflects: bool) -> QueryTerm:
    if not inflects:
        return QueryTerm(spelling, term_id, term_id, stop=False, inflected=False)
    stop = spelling in ENGLISH_STOP_WORDS
    # Words of one stem are one term, but not "can" and "cans"; of a longer word not all letters are known here.
    key = (stem(spelling), stop) if n_bytes < MAX_SPELLING_BYTES else term_id
    return QueryTerm(
        spelling, term_id, key, stop, inflected=not stop, asks=spelling in QUESTION_WORDS
    )


@functools.lru_cache(maxsize=_REMEMBERED_WORDS)
def _plain_word(spelling: str, inflects: bool) -> QueryTerm:
    return _word(spelling, hash_term(spelling), len(spelling), inflects)


def _query(
    text: str, ids: Ids, words: Sequence[QueryTerm], word_at: npt.NDArray[np.int16] | None = None
) -> Query:
    """Put words that are one term together.

    Each of `words` is told once, with its number at each occurrence, or -1 for one left out; or, without `word_at`, at
    every occurrence.
    """
    numbers: dict[Hashable, int] = {}
    terms: list[QueryTerm] = []
    term_of_word = []
    for word in words:
        number = numbers.setdefault(word.key, len(terms))
        if number == len(terms):
            terms.append(word)
        term_of_word.append(number)
    if word_at is None:
        order = np.array(term_of_word, np.int16)
    else:
        order = np.array([*term_of_word, -1], np.int16).take(word_at)
    if len(terms) < order.size or len(terms) > MAX_INFLECTED:
        for number, qtf in enumerate(np.bincount(order[order >= 0], minlength=len(terms)).tolist()):
            if qtf > 1 or number >= MAX_INFLECTED:
                term, inflected = terms[number], terms[number].inflected and number < MAX_INFLECTED
                terms[number] = evolve(term, inflected=inflected, qtf=qtf)
    return Query(text, ids, tuple(terms), order)


def _without_form(query: Query, is_english: bool) -> Query:
    """Take what only makes the query a question for function words: its frame, and words that ask in other languages.

    A query that has no other words is left as it is.
    """
    terms, order = query.terms, query.order.tolist() if query.order.size <= _FEW_WORDS else []
    frame = question_frame([terms[number].word for number in order])
    form = {order[place] for place in frame} - {
        number for place, number in enumerate(order) if place not in frame
    }
    if not (is_english and query.text.isascii()):
        asking = other_question_words(latin=not is_english)
        form |= {number for number, term in enumerate(terms) if term.word in asking}
    if not form or all(term.stop or number in form for number, term in enumerate(terms)):
        return query
    asked = [
        evolve(term, stop=True, inflected=False, asks=True) if number in form else term
        for number, term in enumerate(terms)
    ]
    return evolve(query, terms=tuple(asked))


_parse_once = functools.lru_cache(maxsize=_REMEMBERED_QUERIES)(_parse)
