"""Correct words of a query that occur in no chunk.

A correction is a word of a chunk at edit distance 1. A word of seven letters or more is replaced by
the most frequent word of the chunks that has the same first letter, and differs by one letter
inserted, deleted or changed, or by two adjacent letters swapped; of equally frequent words by the
first in alphabetical order. A word that occurs in a chunk, in any of its inflections, is never
replaced. Identifiers and their parts, scripts without spaces and words with digits are left
unchanged, and so are queries with operators and queries of more than 64 words. The corrected query
is processed as if the user had typed it. Source: the rule is ours, measured in
docs/measurements.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from attrs import evolve, frozen

from relevance_gen.retrieval.query.character_offsets import find_characters
from relevance_gen.retrieval.query.parsing import Query, parse
from relevance_gen.text.tokenization import tokenize


@frozen(order=True)
class Correction:
    """A replacement of a range of a query's text.

    Attributes:
        start: index of the first character of the range.
        end: index after the last.
        text: the text that replaces it.
    """

    start: int
    end: int
    text: str

    def overlaps(self, other: Correction) -> bool:
        """Return whether the ranges have a character in common."""
        return self.start < other.end and other.start < self.end


def corrections_of(
    query: Query,
    near_terms: Mapping[str, Mapping[str, int]],
) -> list[Correction]:
    """Return the corrections of the misspelled words of a query, in the order of the text.

    Args:
        query: the query.
        near_terms: for each misspelled word the terms at edit distance 1, and the number of chunks
            that have each.
    """
    replacements = {}
    for word, terms in near_terms.items():
        if terms:
            replacements[word] = min(terms, key=lambda term: (-terms[term], term))
    if not replacements:
        return []
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
    words = [tokens.decode_term(token) for token in misspelled]
    corrections = []
    ranges = zip(words, starts.tolist(), stops.tolist(), strict=True)
    for word, start, stop in ranges:
        corrections.append(Correction(start, stop, replacements[word]))
    return corrections


def correct(query: Query, corrections: Sequence[Correction], *, is_english: bool) -> Query:
    """Return a corrected query; of overlapping corrections the first of the sequence is applied.

    Args:
        query: the query.
        corrections: the corrections.
        is_english: as for `parse`.
    """
    applied: list[Correction] = []
    for correction in corrections:
        if not any(map(correction.overlaps, applied)):
            applied.append(correction)
    text, end, replaced = "", 0, {}
    for correction in sorted(applied):
        replaced[query.text[correction.start : correction.end]] = correction.text
        text += query.text[end : correction.start] + correction.text
        end = correction.end
    corrected = parse(text + query.text[end:], inflects=True, is_english=is_english)
    return evolve(corrected, corrections=replaced)
