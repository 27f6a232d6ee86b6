"""Correct words of a query that all chunks lack.

A correction is a word of a chunk at edit distance 1. A word of seven letters or more is replaced by
the chunks' most frequent word, of equal ones the first in alphabetical order, that has its first
letter, and from which it differs by one letter inserted, deleted or changed, or by two adjacent
letters swapped. A word that occurs in a chunk, in any of its inflections, is never replaced.
Identifiers and their parts, scripts without spaces and words with digits are left unchanged, and so
are queries with operators and queries of more than 64 words. The corrected query is processed as if
it had been written so. Source: the rule is ours, measured in docs/measurements.md.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from attrs import evolve

from relevance_gen.retrieval.query.character_offsets import find_characters
from relevance_gen.retrieval.query.parsing import Query, parse
from relevance_gen.text.tokenization import tokenize


def correct(
    query: Query, near_terms: Mapping[str, Mapping[str, int]], *, is_english: bool
) -> Query:
    """Return a query with its misspelled words corrected.

    The same query is returned if no word can be corrected.

    Args:
        query: the query.
        near_terms: for each misspelled word the terms at edit distance 1, and the number of chunks
            that have each.
        is_english: as for `parse`.
    """
    replacements = {}
    for word, terms in near_terms.items():
        if terms:
            replacements[word] = min(terms, key=lambda term: (-terms[term], term))
    tokens = tokenize([query.text], toneless=False)
    ends = tokens.start + tokens.length
    # Tokens without overlap: the parts of an identifier overlap with the identifier.
    ends_before = np.maximum.accumulate(ends)[:-1]
    is_alone = np.append(tokens.start[1:] >= ends_before, True)
    is_alone[1:] &= is_alone[:-1]
    misspelled = []
    for token in np.flatnonzero(is_alone).tolist():
        if tokens.decode_term(token) in replacements:
            misspelled.append(token)
    starts, stops = find_characters(query.text, tokens, np.array(misspelled, int))
    text, end, corrections = "", 0, {}
    words = zip(misspelled, starts.tolist(), stops.tolist(), strict=True)
    for token, start, stop in words:
        replacement = replacements[tokens.decode_term(token)]
        corrections[query.text[start:stop]] = replacement
        text += query.text[end:start] + replacement
        end = stop
    if not corrections:
        return query
    corrected = parse(text + query.text[end:], inflects=True, is_english=is_english)
    return evolve(corrected, corrections=corrections)
