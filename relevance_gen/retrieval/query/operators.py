"""Read the quotes and signs of a question, and tell which chunks keep to them; all are looked at, not only the best.

* ``"black cat"``: these words must stand there in a row, whatever their case and what stands between words. One word in
  quotes is that word alone, in none of its other forms.
* ``+word``: it must stand there in any of the forms in which a question finds it. What is cut into several words
  (``+e-mail``, ``+get_name``, a run of a script without spaces) must stand there as if in quotes.
* ``-word`` and ``-"black cat"`` must not stand there. They are no part of what is asked, and of no score.

A sign stands at the beginning or behind white space, and a letter or a quote follows it; a quote opens behind no letter
or digit of a script with spaces, and is closed. All else is text: ``C++``, ``-1``, ``a - b``, ``e-mail``, ``5" pipe``.
So is ``-n``, an option's name, and every sign where without what must not be there nothing is asked.
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
from relevance_gen.retrieval.query.term_matching import inflections
from relevance_gen.text.blocks import BLOCK_CHARS, pieces
from relevance_gen.text.scripts import PAIRED, TRIPLED
from relevance_gen.text.stems import is_partial_ngram
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from relevance_gen.text.tokenization import tokenize

MAX_WORDS: Final = 64
"""Most words behind all signs and in all quotes of a question: it bounds the work for each chunk."""
_IN_PIECES: Final = 8
"""How much less memory a character takes of a text that is cut in pieces than of a block that is cut at once."""
_SIGN: Final = (
    rf"(?:(?<![^\s(])(?P<before>[-+])|(?<!\w)|(?<=[{PAIRED}{TRIPLED}]))[\"“„«](?P<phrase>[^\"“”„«»]+)[\"”“»]"
    r"|(?<![^\s(])(?P<sign>[-+])(?!(?<=-)[A-Za-z](?![^\s\"()]))(?P<word>[^\W\d_][^\s\"()]*)"
)


@frozen(eq=False)
class QueryOperator:
    """What must stand in a chunk, or must not. It can be pickled."""

    said: str  # as the question has it
    is_wanted: bool  # whether it must stand there
    has_forms: bool  # whether its one word stands for its other forms, too
    ids: Ids  # ids of its terms, in reading order, shape (n,), n > 0
    word: str  # the spelling of the first, folded

    def stands(self, segment: Segment, among: Flags, *, by_prefix: bool) -> Flags:
        """Tell which of some chunks of a segment have all its words, in whatever order; else as `allowed`."""
        raise_if_cancelled()
        postings, stands = segment.postings, among
        for term_id in self.ids.tolist():
            numbers = postings.lexicon.find(np.array([term_id], np.uint64))
            if self.has_forms:
                numbers, _ = inflections(postings, term_id, self.word, by_prefix=by_prefix)
            has = np.zeros(segment.size, bool)
            has[postings.of_terms(numbers[numbers >= 0].tolist()).chunk] = True
            stands = stands & has
        return stands


def allowed(
    signs: Sequence[QueryOperator], segment: Segment, among: Flags, *, by_prefix: bool
) -> Flags:
    """Tell which chunks of a segment, `among` those flagged, keep to all of some signs, shape (N,).

    Texts are read once, however many phrases there are. `by_prefix` is as for `matching.inflections`.
    """
    phrases, has_some = [], np.zeros(segment.size, bool)
    for sign in sorted(signs, key=lambda sign: not sign.is_wanted):
        stands = sign.stands(segment, among, by_prefix=by_prefix)
        if sign.ids.size > 1:
            phrases.append(sign)
            has_some |= stands
        if sign.is_wanted or sign.ids.size == 1:
            among = stands if sign.is_wanted else among & ~stands
    if phrases:
        numbers = (among & has_some).nonzero()[0]
        said = segment.chunks.indexed_texts
        found = _in_rows(
            [sign.ids for sign in phrases],
            numbers.size,
            (said[number] for number in numbers.tolist()),
        )
        is_wanted = np.array([[sign.is_wanted] for sign in phrases])
        among = among.copy()
        among[numbers] = (found == is_wanted).all(axis=0)
    return among


def read_signs(query: str, *, inflects: bool) -> tuple[str, tuple[QueryOperator, ...]]:
    """Return what is asked, without what must not be there, and the signs; with `inflects` words stand for all forms.

    Raises:
        InvalidRequestError: there are more than `MAX_WORDS` words behind signs and in quotes.
    """
    signs, asked, end, n_words = [], [], 0, 0
    for match in re.finditer(
        _SIGN, query
    ):  # compiled when first needed, which takes milliseconds; `re` remembers it
        sign = _read(match, inflects)
        if sign is None:
            continue
        n_words += sign.ids.size
        if n_words > MAX_WORDS:
            rule = f"must have at most {MAX_WORDS} words behind signs and in quotes"
            raise InvalidRequestError(
                rule, "query", remedy='leave some out, or take syntax="plain"'
            )
        signs.append(sign)
        if not sign.is_wanted:
            asked.append(query[end : match.start()])
            end = match.end()
    text = " ".join([*asked, query[end:]])
    return (text, tuple(signs)) if re.search(r"[^\W_]", text) else (query, ())


def _read(match: re.Match[str], inflects: bool) -> QueryOperator | None:
    phrase = match["phrase"]
    # Small letters, for a word is one however it is cut: JavaScript is "javascript", too.
    block = tokenize([(phrase or match["word"]).lower()], toneless=False)
    if not block.ids.size:
        return None
    word, is_one = block.decode_term(0), block.ids.size == 1
    has_forms = is_one and (
        is_partial_ngram(word) or (inflects and not phrase and word not in ENGLISH_STOP_WORDS)
    )
    return QueryOperator(
        match[0], (match["before"] or match["sign"]) != "-", has_forms, block.ids, word
    )


def _in_rows(rows: Sequence[Ids], n_texts: int, texts: Iterable[str]) -> Flags:
    """Tell in which of some texts the terms of each row stand one behind the other, shape (rows, texts)."""
    stands = np.zeros((len(rows), n_texts), bool)
    words = np.unique(np.concatenate(rows))  # at most `MAX_WORDS`
    asked = [(words.searchsorted(row) + 1).astype(np.uint8).tobytes() for row in rows]
    end = n_announced = 0
    for some in _blocks(texts):
        raise_if_cancelled()
        n_chars = sum(map(len, some))
        n_chars = min(n_chars, BLOCK_CHARS + n_chars // _IN_PIECES)  # a long text is cut in pieces
        reserve("phrase_char", max(n_chars - n_announced, 0))
        n_announced = max(n_chars, n_announced)
        if len(some) > 1:
            block = tokenize([text.lower() for text in some], toneless=False)
            ids, bounds = block.ids, bounds_of(block.counts)
        else:
            cut = (
                tokenize([piece], toneless=False).ids
                for piece in pieces(some[0].lower(), BLOCK_CHARS)
            )
            ids = concat(cut, np.uint64)
            bounds = np.array([0, ids.size])
        # Bytes for ids: Python then looks for a row in linear time, however much it repeats itself.
        said = (find(words, ids) + 1).astype(np.uint8).tobytes()
        start, end = end, end + len(some)
        ends = list(itertools.pairwise(bounds.tolist()))
        for place, row in enumerate(asked):
            stands[place, start:end] = [said.find(row, *one) >= 0 for one in ends]
    return stands


def _blocks(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield texts in lists of about `BLOCK_CHARS` characters, a longer one by itself; no others are held meanwhile."""
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
