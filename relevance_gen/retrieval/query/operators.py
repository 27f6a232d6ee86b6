"""Parse the operators of a query, and find the chunks that satisfy them.

All chunks are tested, not only the best.

* ``"black cat"``: the chunk must contain these words next to each other, in any case and with any
  characters between words. A single word in quotes matches only itself, not its inflections.
* ``+word``: the chunk must contain the word, or any inflection that it matches in a query. A word
  that is split into several tokens (``+e-mail``, ``+get_name``, a run of a script without spaces)
  is treated as if it was in quotes.
* ``-word`` and ``-"black cat"``: the chunk must not contain the word, or any inflection that it
  matches in a query, or the phrase. Excluded words do not belong to the query, and do not change
  scores.
* ``bridg*``: the word matches all words that begin with these letters, three or more, as if they
  were its inflections; ``+bridg*`` and ``-bridg*`` require or exclude them. Scripts without spaces
  have no prefixes.

A sign is at the beginning of the query, after white space or after ``(``, and a letter or a quote
follows it. An opening quote does not follow a letter or digit of a script with spaces, and there is
a closing quote. Everything else is text: ``C++``, ``-1``, ``a - b``, ``e-mail``, ``5" pipe``. So is
``-n``, the name of an option, and every operator of a query that consists of excluded words only.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Flags, Ids, bounds_of, concat, find
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index.segment import Segment
from relevance_gen.request_scope import raise_if_cancelled, reserve
from relevance_gen.retrieval.query.term_matching import QueryTerm, find_inflections
from relevance_gen.text.blocks import BLOCK_CHARS, pieces
from relevance_gen.text.scripts import PAIRED, TRIPLED, ngram_size
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from relevance_gen.text.term_hashes import MAX_SPELLING_BYTES
from relevance_gen.text.tokenization import Occurrences, tokenize
from relevance_gen.text.word_forms import is_partial_ngram, word_form

MAX_OPERATOR_WORDS: Final = 64
"""Maximum number of words in all operators of a query; bounds the work for each chunk."""
_PIECE_MEMORY_DIVISOR: Final = 8
"""Memory for a character of a block of texts, divided by that of a text tokenized in pieces."""
_OPERATOR: Final = (
    rf"(?:(?<![^\s(])(?P<before>[-+])|(?<!\w)|(?<=[{PAIRED}{TRIPLED}]))[\"“„«](?P<phrase>[^\"“”„«»]+)[\"”“»]"
    r"|(?<![^\s(])(?P<sign>[-+])(?!(?<=-)[A-Za-z](?![^\s\"()]))(?P<word>[^\W\d_][^\s\"()]*)"
)
"""Matches an operator. A string: `re` compiles it on first use, which takes milliseconds."""
_PREFIX: Final = r"(?<![^\s(+-])(?P<prefix>\w{3,})\*(?![^\s),.;:!?])"
_MIN_PREFIX_BYTES: Final = 3
_MIN_OTHER_PREFIX_BYTES: Final = 6
"""Minimum bytes of a prefix in Latin letters (3) and in other letters (6): all words with the same
bytes at their beginning are in the same bucket of the dictionary."""


@frozen(eq=False)
class QueryOperator:
    """A condition that a chunk must meet, of one word or phrase."""

    text: str  # as written in the query
    is_required: bool  # whether a chunk must contain it; otherwise it must not
    ids: Ids  # ids of its tokens, in reading order, shape (n,), n > 0
    # its one word, if it matches its inflections or all words that begin with it; otherwise None
    term: QueryTerm | None

    def has_words(self, segment: Segment, among: Flags, *, by_prefix: bool) -> Flags:
        """Return which chunks are in `among` and have all words of the operator.

        The words may be in any order. `among` and the result have a flag for each of the N chunks
        of the segment, shape (N,). `by_prefix` is as for `satisfying`.
        """
        raise_if_cancelled()
        postings, flags = segment.postings, among
        for term_id in self.ids.tolist():
            if self.term is None:
                term_ords = postings.lexicon.find_exact(term_id)
            else:
                term_ords = find_inflections(postings, self.term, by_prefix=by_prefix).term_ords
            has_word = np.zeros(segment.size, bool)
            has_word[postings.of_terms(term_ords.tolist()).chunk] = True
            flags = flags & has_word
        return flags


@frozen
class OperatorQuery:
    """A query whose operators were parsed."""

    text: str  # the query without its excluded words
    operators: tuple[QueryOperator, ...]


def satisfying(
    operators: Sequence[QueryOperator], segment: Segment, among: Flags, *, by_prefix: bool
) -> Flags:
    """Return which chunks are in `among` and satisfy all operators.

    `among` and the result have a flag for each of the N chunks of the segment, shape (N,). Texts
    are tokenized once for all phrases. `by_prefix`: whether words of operators in Latin letters
    also match terms with a common prefix, as in `find_inflections`.
    """
    phrases = []
    has_any_phrase = np.zeros(segment.size, bool)
    for operator in sorted(operators, key=lambda operator: not operator.is_required):
        has_words = operator.has_words(segment, among, by_prefix=by_prefix)
        if operator.ids.size > 1:
            phrases.append(operator)
            has_any_phrase |= has_words
        if operator.is_required:
            among = has_words
        elif operator.ids.size == 1:
            among = among & ~has_words
    if not phrases:
        return among
    chunk_ords = (among & has_any_phrase).nonzero()[0]
    texts = segment.chunks.indexed_texts
    has_phrase = _find_phrases(
        [phrase.ids for phrase in phrases],
        (texts[chunk_ord] for chunk_ord in chunk_ords.tolist()),
        chunk_ords.size,
    )
    is_required = np.array([[phrase.is_required] for phrase in phrases])
    among = among.copy()
    among[chunk_ords] = (has_phrase == is_required).all(axis=0)
    return among


def parse_operators(
    query: str,
    *,
    inflects: bool,
) -> OperatorQuery:
    """Return the query without its excluded words, and its operators.

    If no word remains, the whole query is returned as text without operators. With `inflects`, the
    word of an operator that is neither in quotes nor a stop word also matches its inflections.

    Raises:
        InvalidRequestError: the operators have more than `MAX_OPERATOR_WORDS` words.
    """
    operators, kept_text = [], []
    end = n_words = 0
    for match in re.finditer(_OPERATOR, query):
        operator = _parse_operator(match, inflects=inflects)
        if operator is None:
            continue
        n_words += operator.ids.size
        if n_words > MAX_OPERATOR_WORDS:
            raise InvalidRequestError(
                f"must have at most {MAX_OPERATOR_WORDS} words after + or - and in quotes",
                "query",
                remedy='remove some of these words, or set syntax="plain"',
            )
        operators.append(operator)
        if not operator.is_required:
            kept_text.append(query[end : match.start()])
            end = match.end()
    text = " ".join([*kept_text, query[end:]])
    has_words = re.search(r"[^\W_]", text) is not None
    return OperatorQuery(text, tuple(operators)) if has_words else OperatorQuery(query, ())


def find_prefixes(text: str) -> tuple[str, ...]:
    """Return the distinct words of a text that end with an asterisk, normalized, without it.

    Words that cannot be a prefix, such as those of less than three letters, are left out; see
    `_is_prefix`.

    Raises:
        InvalidRequestError: the text has more than `MAX_OPERATOR_WORDS` prefixes.

    >>> find_prefixes("old Bridg* and (rail*) but not C* or 2*3")
    ('bridg', 'rail')
    """
    if "*" not in text:
        return ()
    prefixes: dict[str, None] = {}
    for match in re.finditer(_PREFIX, text):
        tokens = tokenize([match["prefix"].lower()], toneless=False)
        if _is_prefix(tokens):
            prefixes[tokens.decode_term(0)] = None
    if len(prefixes) > MAX_OPERATOR_WORDS:
        raise InvalidRequestError(f"must have at most {MAX_OPERATOR_WORDS} prefixes", "query")
    return tuple(prefixes)


def _is_prefix(tokens: Occurrences) -> bool:
    """Return whether the tokens are one word that can be a prefix.

    Such a word has at least three bytes if it begins with an ASCII character, otherwise at least
    six, and less than `MAX_SPELLING_BYTES`. Its script has spaces between words.
    """
    if tokens.ids.size != 1:
        return False
    word, n_bytes = tokens.decode_term(0), int(tokens.length[0])
    if not word or ngram_size(word) or n_bytes >= MAX_SPELLING_BYTES:
        return False
    return n_bytes >= (_MIN_PREFIX_BYTES if word[0].isascii() else _MIN_OTHER_PREFIX_BYTES)


def _parse_operator(match: re.Match[str], *, inflects: bool) -> QueryOperator | None:
    """Return an operator, or None if it is without words."""
    phrase = match["phrase"]
    # In lower case, so that camel case is not split: "JavaScript" is the word "javascript".
    tokens = tokenize([(phrase or match["word"]).lower()], toneless=False)
    if not tokens.ids.size:
        return None
    word = tokens.decode_term(0)
    is_inflected = False
    is_prefix = not phrase and re.fullmatch(_PREFIX, match["word"]) is not None
    is_prefix = is_prefix and _is_prefix(tokens)
    if tokens.ids.size == 1 and not is_prefix:
        is_plain_word = inflects and not phrase and word not in ENGLISH_STOP_WORDS
        is_inflected = is_partial_ngram(word) or is_plain_word
    term = None
    if is_inflected or is_prefix:
        term_id = int(tokens.ids[0])
        term = QueryTerm(
            word=word,
            term_id=term_id,
            key=term_id,
            is_stop_word=False,
            is_inflected=True,
            stem=word_form(word).inflection_stem,
            is_prefix=is_prefix,
        )
    return QueryOperator(
        text=match[0],
        is_required=(match["before"] or match["sign"]) != "-",
        ids=tokens.ids,
        term=term,
    )


def _find_phrases(phrases: Sequence[Ids], texts: Iterable[str], n_texts: int) -> Flags:
    """Return which texts contain each phrase's tokens in a row, shape (phrases, texts)."""
    has_phrase = np.zeros((len(phrases), n_texts), bool)
    # Tokens are numbered from 1 to at most `MAX_OPERATOR_WORDS`, 0 for any other token, and stored
    # as bytes: Python then finds a phrase in linear time, even if the text is repetitive.
    words = np.unique(np.concatenate(phrases))
    patterns = []
    for ids in phrases:
        numbers = words.searchsorted(ids) + 1
        patterns.append(numbers.astype(np.uint8).tobytes())
    end = n_reserved = 0
    for block in _blocks(texts):
        raise_if_cancelled()
        n_chars = sum(map(len, block))
        n_chars = min(n_chars, BLOCK_CHARS + n_chars // _PIECE_MEMORY_DIVISOR)
        reserve("phrase_char", max(n_chars - n_reserved, 0))
        n_reserved = max(n_chars, n_reserved)
        if len(block) > 1:
            tokens = tokenize([text.lower() for text in block], toneless=False)
            ids, bounds = tokens.ids, bounds_of(tokens.counts)
        else:
            parts = []
            for piece in pieces(block[0].lower(), BLOCK_CHARS):
                parts.append(tokenize([piece], toneless=False).ids)
            ids = concat(parts, np.uint64)
            bounds = np.array([0, ids.size])
        token_bytes = (find(words, ids) + 1).astype(np.uint8).tobytes()
        start, end = end, end + len(block)
        for row, pattern in enumerate(patterns):
            for column, (low, high) in enumerate(itertools.pairwise(bounds.tolist()), start):
                has_phrase[row, column] = token_bytes.find(pattern, low, high) >= 0
    return has_phrase


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield lists of texts of about `BLOCK_CHARS` characters, a longer text alone.

    Only one list is held at a time.
    """
    block: list[str] = []
    n_chars = 0
    for text in texts:
        if block and n_chars + len(text) > BLOCK_CHARS:
            yield block
            block, n_chars = [], 0
        block.append(text)
        n_chars += len(text) + 1
    if block:
        yield block
