"""Say where in a chunk the answer stands: the passage that holds most of the query, and the words that were found.

Spans come from the evidence of the score: the words that the query's words stand for, and their idf. A word weighs its
idf times the weight of its match, as a share of the idf of all the query's words; a stretch of text weighs what its
different words weigh, each counted once, at its best match. That weight is the span's score.

* The passage is the window of 40 tokens that weighs most, trimmed to the first and the last word that add to that; of
  equal ones that whose words stand closest, then the first.
* Words are found wherever they stand in the chunk. Those that overlap, as n-grams do, and identifiers and their parts,
  are one span.

Spans are whole code points of the text as it came, and marks, joiners and soft hyphens go with the letter before them.
A text cut from a span holds the term that was found there. Source: the rule is ours, measured in bench/passages.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.caller import announce, check_wanted
from relevance_gen.errors import TooLargeError
from relevance_gen.retrieval.arrays import Ids, Offsets
from relevance_gen.retrieval.question.stage import WeightedTerms
from relevance_gen.retrieval.text.folds import folded_sizes, without_tones
from relevance_gen.retrieval.text.terms import Occurrences, cut_terms
from relevance_gen.types import Span

WINDOW: Final = 40
"""Occurrences in a passage; measured: windows of 24, 60 and 100 tokens point worse."""
_WHOLE: Final = 1 << 40
"""Weights are whole numbers, this for the whole query, so that equal passages are equal in whatever order they add."""
MOST_SPANS: Final = 1 << 20
"""Most spans of one answer."""
_PORTION: Final = 1 << 18
"""Characters that are looked at together: each takes some hundred bytes."""
_BATCH: Final = 1 << 16
"""Windows weighed together: it bounds the memory for a chunk of any length."""


@frozen(eq=False)
class _Hits:
    """The words found in some texts, in the order of the tokens.

    Attributes:
        place: number of the token, texts so far apart that no window reaches from one into the next, shape (H,).
        text: number of the text, shape (H,).
        start: position of the first code point in the joined texts, shape (H,).
        end: the position behind the last, shape (H,).
        term: which term of the query stands there, shape (H,).
        weight: how much of the query it is, of `_WHOLE`, shape (H,).
    """

    place: Offsets
    text: Offsets
    start: Offsets
    end: Offsets
    term: Offsets
    weight: Offsets


def highlight(texts: Sequence[str], terms: WeightedTerms) -> list[tuple[Span, ...]]:
    """Say where in each of some texts the answer stands.

    Args:
        texts: texts of chunks that the query found.
        terms: the terms of the query, weighed.

    Returns:
        For each text the best passage, and behind it the words found, ascending and apart; nothing for a text that
        holds none of the query's words.

    Raises:
        TooLargeError: there are more than `MOST_SPANS`.
    """
    spans: list[tuple[Span, ...]] = []
    n_spans = 0
    portions = [*_portions(texts)]
    announce("marked_character", max((sum(map(len, some)) for some in portions), default=0))
    for some in portions:
        check_wanted()
        first = np.cumsum([0, *(len(text) + 1 for text in some[:-1])])
        hits = _find("\n".join(some), first, terms)
        both = _passages(hits), _words(hits)
        n_new = sum(starts.size for _, starts, _, _ in both)
        n_spans += n_new
        if n_spans > MOST_SPANS:
            raise TooLargeError(f"must be at most {MOST_SPANS:,} in one answer", "spans", f"{n_spans:,}", "lower top_n")
        announce("span", n_new)
        marked: list[list[Span]] = [[] for _ in some]
        for found in both:
            for text, start, end, weight in zip(*(array.tolist() for array in found), strict=True):
                offset = int(first[text])
                marked[text].append(Span(start - offset, end - offset, min(weight / _WHOLE, 1.0)))
        spans += map(tuple, marked)
    return spans


def _portions(texts: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the texts in portions of `_PORTION` characters, or of a text that is longer."""
    begin = n_chars = 0
    for number, text in enumerate(texts):
        if n_chars and n_chars + len(text) > _PORTION:
            yield texts[begin:number]
            begin, n_chars = number, 0
        n_chars += len(text)
    if begin < len(texts):
        yield texts[begin:]


def _find(joined: str, first: Offsets, terms: WeightedTerms) -> _Hits:
    """Find the words of the query in some texts joined by line ends, which begin at `first`."""
    total_idf = math.fsum(terms.idf) or 1.0
    counted = [(number, idf, terms.matches[number]) for number, idf in enumerate(terms.idf) if idf]
    ids = np.concatenate([np.zeros(0, np.uint64), *(match.ids for _, _, match in counted)])
    shares = [np.zeros(0), *(match.weight * (idf / total_idf) for _, idf, match in counted)]
    weight = np.maximum(np.rint(np.concatenate(shares) * _WHOLE), 1.0).astype(np.int64)
    similar = np.concatenate([np.zeros(0), *(match.weight for _, _, match in counted)])
    term = np.repeat(np.array([number for number, _, _ in counted], np.int64), [m.ids.size for _, _, m in counted])
    order = np.lexsort((-similar, ids))  # of equal ids the best match is the first, and found
    ids, weight, term = ids[order], weight[order], term[order]

    tokens = cut_terms([joined], toneless=False)
    at, place = _found(ids, tokens)
    plain = without_tones(joined)
    if plain != joined:  # the same words in the same places, as they may have been asked for
        more_at, more = _found(ids, cut_terms([plain], toneless=False))
        place, once = np.unique(np.concatenate((place, more)), return_index=True)
        at = np.concatenate((at, more_at))[once]
    start, end = _code_points(joined, tokens, place)
    text = np.searchsorted(first, start, "right") - 1
    return _Hits(place + WINDOW * text, text, start, end, term[at], weight[at])


def _found(ids: Ids, tokens: Occurrences) -> tuple[Offsets, Offsets]:
    """Return which of some ids, ascending, tokens have, and the numbers of these tokens."""
    at = np.searchsorted(ids, tokens.ids)
    place: Offsets = np.flatnonzero(ids.take(at, mode="clip") == tokens.ids) if ids.size else np.zeros(0, np.int64)
    return at[place], place


def _code_points(text: str, tokens: Occurrences, place: Offsets) -> tuple[Offsets, Offsets]:
    """Return where some tokens stand in a text that is not folded, with all that folds to nothing behind them."""
    low, high = tokens.start - 1, tokens.start + tokens.length - 1  # the folded bytes begin behind a line end
    behind = np.cumsum(folded_sizes(text))
    start = np.searchsorted(behind, low[place], "right")
    last = np.searchsorted(behind, high[place] - 1, "right")
    # A part of an identifier may begin or end inside what one character folds to: then the whole word is meant.
    inside = (np.where(start, behind[start - 1], 0) != low[place]) | (behind[last] != high[place])
    if inside.any():
        reach = np.maximum.accumulate(high)
        heads = np.flatnonzero(np.append(True, high[1:] > reach[:-1]))
        whole = heads[np.searchsorted(heads, place[inside], "right") - 1]
        start[inside] = np.searchsorted(behind, low[whole], "right")
        last[inside] = np.searchsorted(behind, high[whole] - 1, "right")
    return start, np.searchsorted(behind, behind[last], "right")


def _passages(hits: _Hits) -> tuple[Offsets, Offsets, Offsets, Offsets]:
    """Return the best passage of each text that has one: text, start, end, weight."""
    covered, last = _coverage(hits)
    extent = hits.place[last] - hits.place
    order = np.lexsort((extent, -covered, hits.text))
    best = order[np.flatnonzero(np.diff(hits.text[order], prepend=-1))]
    ranges = list(zip(best.tolist(), (last[best] + 1).tolist(), strict=True))
    start = np.array([hits.start[low:high].min() for low, high in ranges], np.int64)
    end = np.array([hits.end[low:high].max() for low, high in ranges], np.int64)
    return hits.text[best], start, end, covered[best]


def _coverage(hits: _Hits) -> tuple[Offsets, Offsets]:
    """Weigh the window that begins at each hit.

    Returns:
        What it weighs, shape (H,), and the number of the last hit that adds to that, shape (H,).
    """
    n = hits.place.size
    behind = np.searchsorted(hits.place, hits.place + WINDOW)
    same = np.argsort(hits.term, kind="stable")
    previous = np.full(n, -1)
    previous[same[1:]] = np.where(hits.term[same[1:]] == hits.term[same[:-1]], same[:-1], -1)
    covered = np.zeros(n, np.int64)
    last = np.arange(n)
    for begin in range(0, n, _BATCH):
        first = np.arange(begin, min(begin + _BATCH, n))
        column = first - begin
        width = int((behind[first] - first).max())
        most = np.zeros((width, first.size), np.int64)  # what a hit's term weighs in the window up to that hit
        for row in range(width):
            hit = np.minimum(first + row, n - 1)
            back = previous[hit] - first
            before = np.where(back >= 0, most[np.maximum(back, 0), column], 0)
            most[row] = np.maximum(hits.weight[hit], before)
            added = np.where(first + row < behind[first], most[row] - before, 0)
            covered[first] += added
            last[first[added > 0]] = hit[added > 0]
    return covered, last


def _words(hits: _Hits) -> tuple[Offsets, Offsets, Offsets, Offsets]:
    """Return the words found, those that overlap as one: text, start, end, weight."""
    order = np.lexsort((hits.end, hits.start))
    start, end = hits.start[order], np.maximum.accumulate(hits.end[order])
    heads = np.flatnonzero(np.append(True, start[1:] >= end[:-1]))[: order.size]
    group = np.searchsorted(heads, np.arange(order.size), "right") - 1
    term, weight = hits.term[order], hits.weight[order]
    by_term = np.lexsort((-weight, term, group))
    once = np.append(True, (np.diff(group[by_term]) != 0) | (np.diff(term[by_term]) != 0))[: order.size]
    counted = by_term[once]
    total = np.zeros(heads.size, np.int64)
    np.add.at(total, group[counted], weight[counted])
    return hits.text[order][heads], start[heads], end[np.append(heads[1:], order.size) - 1], total
