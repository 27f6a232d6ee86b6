"""Parse a query: tokenize it and merge tokens of one stem to terms.

In addition find its stop words and question words.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Hashable, Mapping, Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen

from relevance_gen.arrays import Flags, Ids, batch_slices, concat
from relevance_gen.retrieval.query.operators import QueryOperator
from relevance_gen.retrieval.query.term_matching import MAX_INFLECTED_TERMS, Match, QueryTerm
from relevance_gen.text.blocks import blocks
from relevance_gen.text.question_words import (
    FRAME_WORDS,
    QUESTION_WORDS,
    other_question_words,
    question_frame,
)
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from relevance_gen.text.term_hashes import (
    MAX_SPELLING_BYTES,
    N_PREFIX_BUCKETS,
    hash_term,
    prefix_buckets,
)
from relevance_gen.text.tokenization import tokenize
from relevance_gen.text.word_forms import can_inflect, is_partial_ngram, word_form

MAX_CACHED_CHARS: Final = 1024
"""Maximum characters of a query that is cached, as parsed and with its ranking."""
MAX_TERMS: Final = 1 << 14
"""Maximum number of distinct words of a query that are used; bounds the work for very long
queries."""
_MAX_CACHED_QUERIES: Final = 256
_MAX_CACHED_WORDS: Final = 1 << 14
_BATCH_TOKENS: Final = 1 << 16
_MAX_LISTED_TOKENS: Final = 64
"""Maximum tokens of a query that Python loops process; numpy, which processes longer queries, is
slower for short queries."""
_MIN_CORRECTED_LETTERS: Final = 7
_MAX_CORRECTED_WORDS: Final = 8
"""Maximum number of words of one query that are corrected; bounds the work."""
_PLAIN_WORD: Final = re.compile("[a-z0-9]+")
_IDENTIFIER: Final = re.compile("[a-z][A-Z]|[A-Za-z0-9][A-Z][a-z]|_")
"""Matches ASCII text if any of its words can be split into parts."""
_ASCII_WORD: Final = re.compile("[A-Za-z0-9]+(?:_[A-Za-z0-9]+)*")
_PART_END: Final = re.compile("_|(?<=[a-z])(?=[A-Z])|(?<=[A-Za-z0-9])(?=[A-Z][a-z])")
"""Matches between two parts of an identifier."""


@frozen(eq=False)
class Query:
    """A parsed query: the text, its tokens, and the distinct terms that are searched for."""

    text: str  # the text that was tokenized
    ids: Ids  # term ids of its tokens, in reading order, shape (T,)
    terms: tuple[QueryTerm, ...]  # distinct, by first occurrence; at most `MAX_TERMS`
    term_of_token: npt.NDArray[np.int16]  # index of each token's term, -1 for none, shape (T,)
    is_correctable: bool = True  # whether words that occur in no chunk may be corrected
    corrections: Mapping[str, str] = field(factory=dict)  # original words with their corrections
    prefixes: tuple[str, ...] = ()  # words of the terms that are prefixes
    operators: tuple[QueryOperator, ...] = ()  # conditions that results must meet

    @property
    def prefix_buckets(self) -> Flags | None:
        """Flags of the prefix buckets that hold all terms the query can match.

        A prefix bucket is the set of terms whose ids have the same top 8 bits, which depend only on
        the first letters (see `relevance_gen.text.term_hashes`). The shape is (N_PREFIX_BUCKETS,).
        The value is None if terms in any bucket can match.
        """
        for term in self.terms:
            if is_partial_ngram(term.word):
                return None
        flags = np.zeros(N_PREFIX_BUCKETS, bool)
        flags[prefix_buckets(self.ids)] = True
        return flags

    def unknown(self, matches: Sequence[Match]) -> list[str]:
        """Return the words of the query, except stop words, that occur in no chunk.

        The list is empty if the query is not correctable or has more than `_MAX_LISTED_TOKENS`
        tokens.

        Args:
            matches: for each term of the query the terms that it matches, and the number of chunks
                that contain any of them.
        """
        if not self.is_correctable or self.term_of_token.size > _MAX_LISTED_TOKENS:
            return []
        words = []
        for term, match in zip(self.terms, matches, strict=True):
            if not match.df and not term.is_stop_word:
                words.append(term.word)
        return words

    def misspelled(self, unknown: Sequence[str]) -> tuple[str, ...]:
        """Return those of the unknown words that may be corrected: the first 8 at most.

        Such a word has seven letters or more and no digits, and its script has spaces between
        words.
        """
        words = []
        for word in unknown:
            if len(word) >= _MIN_CORRECTED_LETTERS and can_inflect(word):
                words.append(word)
        return tuple(words[:_MAX_CORRECTED_WORDS])


def parse(text: str, *, inflects: bool, is_english: bool = True) -> Query:
    """Parse and return a query.

    Args:
        text: the query.
        inflects: whether to merge the words that have the same stem to one term, which matches
            their inflections, and to mark stop words and question words. Otherwise each distinct
            word is a term that matches only itself.
        is_english: whether the chunks are in English; then question words of other languages are
            not marked if they are in Latin letters.
    """
    parse_text = _parse_cached if len(text) <= MAX_CACHED_CHARS else _parse
    return parse_text(text, inflects, is_english)


def with_prefixes(query: Query, prefixes: Sequence[str]) -> Query:
    """Return a query in which these words match all words that begin with them.

    Args:
        query: the query.
        prefixes: normalized words of the query.
    """
    terms = list(query.terms)
    prefix_ids = tokenize(prefixes).ids.tolist()
    for prefix, term_id in zip(prefixes, prefix_ids, strict=True):
        is_prefix = (query.ids == np.uint64(term_id)) & (query.term_of_token >= 0)
        for index in np.unique(query.term_of_token[is_prefix]).tolist():
            terms[index] = QueryTerm(
                word=prefix,
                term_id=term_id,
                key=term_id,
                is_stop_word=False,
                is_inflected=True,
                is_number=terms[index].is_number,
                qtf=terms[index].qtf,
                is_prefix=True,
            )
    return evolve(query, terms=tuple(terms), prefixes=tuple(prefixes))


def _parse(text: str, inflects: bool, is_english: bool) -> Query:
    query = _tokenize(text, inflects)
    return _mark_question_words(query, is_english) if inflects else query


_parse_cached = functools.lru_cache(maxsize=_MAX_CACHED_QUERIES)(_parse)


def _tokenize(text: str, inflects: bool) -> Query:
    # A short query of plain ASCII words is split by a regular expression, which is faster.
    if text.isascii() and len(text) <= _MAX_LISTED_TOKENS * MAX_SPELLING_BYTES:
        spellings = _ascii_spellings(text)
        if spellings and len(spellings) <= _MAX_LISTED_TOKENS:
            if len(max(spellings, key=len)) < MAX_SPELLING_BYTES:
                words = [_plain_word(spelling, inflects) for spelling in spellings]
                ids = np.array([word.term_id for word in words], np.uint64)
                return _merge_words(text, ids, words, np.arange(ids.size, dtype=np.int16))
    ids_of_blocks = []
    words_by_id: dict[int, QueryTerm] = {}  # distinct words, by first occurrence
    for tokens in map(tokenize, blocks([text])):
        ids_of_blocks.append(tokens.ids)
        if len(words_by_id) == MAX_TERMS:
            continue
        _, first_tokens = np.unique(tokens.ids, return_index=True)
        for first in np.sort(first_tokens).tolist():
            term_id = int(tokens.ids[first])
            if len(words_by_id) < MAX_TERMS and term_id not in words_by_id:
                spelling, n_bytes = tokens.decode_term(first), int(tokens.length[first])
                words_by_id[term_id] = _word(spelling, term_id, n_bytes, inflects)
    ids = concat(ids_of_blocks, np.uint64)
    # Index of each token's word, -1 if it is not among the first `MAX_TERMS`.
    known_ids = np.array([*words_by_id], np.uint64)
    sorter = known_ids.argsort().astype(np.int16)
    word_of_token = np.full(ids.size, -1, np.int16)
    for batch in batch_slices(ids.size, _BATCH_TOKENS):
        word = sorter.take(known_ids.searchsorted(ids[batch], sorter=sorter), mode="clip")
        word[known_ids.take(word) != ids[batch]] = -1
        word_of_token[batch] = word
    return _merge_words(text, ids, [*words_by_id.values()], word_of_token)


def _ascii_spellings(text: str) -> list[str]:
    """Return the words of an ASCII text in lower case.

    The words and their order are those of `tokenize`: the parts of an identifier follow it.
    """
    if not _IDENTIFIER.search(text):
        return _PLAIN_WORD.findall(text.lower())
    spellings = []
    for word in _ASCII_WORD.findall(text):
        parts = _PART_END.split(word)
        spellings.append(word.lower())
        if len(parts) > 1:
            spellings += [part.lower() for part in parts]
    return spellings


def _word(spelling: str, term_id: int, n_bytes: int, inflects: bool) -> QueryTerm:
    if not inflects:
        return QueryTerm(spelling, term_id, term_id, is_stop_word=False, is_inflected=False)
    is_stop_word = spelling in ENGLISH_STOP_WORDS
    form = word_form(spelling)
    # Words of one stem are one term, except stop words: "can" and "cans" are different terms. The
    # spelling of a longer word is truncated, so that its stem is unknown.
    key = (form.stem, is_stop_word) if n_bytes < MAX_SPELLING_BYTES else term_id
    return QueryTerm(
        word=spelling,
        term_id=term_id,
        key=key,
        is_stop_word=is_stop_word,
        is_inflected=not is_stop_word,
        stem=form.inflection_stem,
        is_number=form.is_number,
        is_question_word=spelling in QUESTION_WORDS,
    )


@functools.lru_cache(maxsize=_MAX_CACHED_WORDS)
def _plain_word(spelling: str, inflects: bool) -> QueryTerm:
    return _word(spelling, hash_term(spelling), len(spelling), inflects)


def _merge_words(
    text: str, ids: Ids, words: Sequence[QueryTerm], word_of_token: npt.NDArray[np.int16]
) -> Query:
    """Return a query in which words with equal `QueryTerm.key` are merged to one term.

    The `qtf` of a term is the number of tokens of its words in the query. Only the first
    `MAX_INFLECTED_TERMS` terms match inflections.

    Args:
        text: the query.
        ids: term ids of its tokens, in reading order.
        words: its distinct words, or one word for each token.
        word_of_token: index of each token's word; -1 for none.
    """
    index_of_key: dict[Hashable, int] = {}
    terms: list[QueryTerm] = []
    term_of_word = []
    for word in words:
        index = index_of_key.setdefault(word.key, len(terms))
        if index == len(terms):
            terms.append(word)
        term_of_word.append(index)
    order = np.array([*term_of_word, -1], np.int16).take(word_of_token)
    if len(terms) < order.size or len(terms) > MAX_INFLECTED_TERMS:
        counts = np.bincount(order[order >= 0], minlength=len(terms)).tolist()
        for index, qtf in enumerate(counts):
            if qtf > 1 or index >= MAX_INFLECTED_TERMS:
                is_inflected = terms[index].is_inflected and index < MAX_INFLECTED_TERMS
                terms[index] = evolve(terms[index], is_inflected=is_inflected, qtf=qtf)
    return Query(text, ids, tuple(terms), order)


def _mark_question_words(query: Query, is_english: bool) -> Query:
    """Mark as stop words the words of a query that are only part of the form of a question.

    These are the words of the frame of an English question (see `question_frame`), unless they also
    occur outside of the frame, and question words of other languages. The query is returned
    unchanged if all its other words are stop words.
    """
    terms = query.terms
    words = [term.word for term in terms]
    question_words: set[int] = set()
    if query.term_of_token.size <= _MAX_LISTED_TOKENS and not FRAME_WORDS.isdisjoint(words):
        order = query.term_of_token.tolist()
        frame = question_frame([words[index] for index in order])
        in_frame = {index for token, index in enumerate(order) if token in frame}
        elsewhere = {index for token, index in enumerate(order) if token not in frame}
        question_words = in_frame - elsewhere
    if not (is_english and query.text.isascii()):
        foreign = other_question_words(latin=not is_english)
        question_words.update([i for i, term in enumerate(terms) if term.word in foreign])
    if not question_words:
        return query
    marked = []
    has_content = False
    for index, term in enumerate(terms):
        if index in question_words:
            marked.append(term.as_question_word())
        else:
            marked.append(term)
            has_content |= not term.is_stop_word
    if not has_content:
        return query
    return Query(query.text, query.ids, tuple(marked), query.term_of_token)
