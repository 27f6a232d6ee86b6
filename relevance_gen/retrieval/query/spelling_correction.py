"""Correct words of a question that no chunk has, and that are one letter away from one that some chunk has.

A word of seven letters or more is taken for the chunks' most frequent word, of equal ones the first in the alphabet,
that has its first letter and one letter added, dropped or changed, or two neighbours swapped. A word that is there, in
any of its forms, is never bent. Identifiers and their parts, scripts without spaces and words with digits stay as they
are, and so do questions with quotes or signs, and those of more than 64 words. What is corrected is asked as if it had
been written so. Source: the rule is ours, measured in docs/measurements.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import evolve

from relevance_gen.retrieval.query.character_offsets import code_points
from relevance_gen.retrieval.query.parsing import Query, parse
from relevance_gen.text.stems import can_inflect
from relevance_gen.text.tokenization import tokenize

_MIN_LETTERS: Final = 7
_MAX_LENGTH: Final = 64
_MAX_WORDS: Final = 8
"""Most words of one question that are corrected: it bounds the work."""


def misspelt(query: Query, df: Sequence[int]) -> tuple[str, ...]:
    """Return the words of a query that may be misspelt, told the number of chunks that hold each of its terms."""
    if not query.corrects or query.order.size > _MAX_LENGTH:
        return ()
    unknown = [
        term.word for term, n in zip(query.terms, df, strict=True) if not n and not term.stop
    ]
    return tuple(
        [word for word in unknown if len(word) >= _MIN_LETTERS and can_inflect(word)][:_MAX_WORDS]
    )


def corrected(
    query: Query,
    near: Sequence[Sequence[Counter[str]]],
    unknown: Sequence[str],
    *,
    is_english: bool,
) -> Query:
    """Return a query with its misspelt words as the chunks have them.

    `near` is what each segment has near each of the unknown words, by the number of chunks that hold it.
    """
    counts = {
        word: sum(of_word, Counter[str]()) for word, *of_word in zip(unknown, *near, strict=True)
    }
    taken = {word: min(n, key=lambda one: (-n[one], one)) for word, n in counts.items() if n}
    if not taken:
        return query
    block = tokenize([query.text], toneless=False)
    ends = block.start + block.length
    alone = np.append(
        block.start[1:] >= np.maximum.accumulate(ends)[:-1], True
    )  # no part of an identifier
    alone[1:] &= alone[:-1]
    places = [
        place for place in np.flatnonzero(alone).tolist() if block.decode_term(place) in taken
    ]
    text, done, corrections = "", 0, {}
    for place, start, end in zip(
        places, *code_points(query.text, block, np.array(places, int)), strict=True
    ):
        word = taken[block.decode_term(place)]
        corrections[query.text[start:end]] = word
        text += query.text[done:start] + word
        done = int(end)
    read = parse(text + query.text[done:], inflects=True, is_english=is_english)
    return evolve(read, corrections=corrections) if corrections else query
