"""Say where in a chunk the answer stands: the passage that holds most of the query, and the words that were found.

Spans come from the evidence of the score: the words that the query's words stand for, and their idf. A word weighs its
idf times the weight of its match, as a share of the idf of all the query's words, function words left out where any
other is found; a stretch of text weighs what its different words weigh, each counted once, at its best match. That
weight is the span's score.

* The passage is the window of 40 words that weighs most, trimmed to the first and the last word that add to that; of
  equal ones that whose words stand closest, then the first.
* Words are found wherever they stand in the chunk. Those that overlap, as n-grams do, and identifiers and their parts,
  are one span.

Spans are whole code points of the text as it came, and marks, joiners and soft hyphens go with the letter before them.
A text cut from a span holds the term that was found there. Source: the rule is ours, measured in bench/passages.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Ids, Offsets, batch_slices, concat, find, run_starts, starts_of
from relevance_gen.errors import TooLargeError
from relevance_gen.request_scope import raise_if_cancelled, reserve
from relevance_gen.retrieval.query.character_offsets import code_points
from relevance_gen.retrieval.ranking.stage import WeightedTerms
from relevance_gen.text.blocks import batch_by_size, lengths
from relevance_gen.text.normalization import without_tones
from relevance_gen.text.tokenization import Occurrences, tokenize
from relevance_gen.types import Span

WINDOW: Final = 40
"""Occurrences in a passage; measured: windows of 24, 60 and 100 point worse."""
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
    """The words found in some texts, in reading order."""

    # number of the occurrence, texts so far apart that no window reaches from one into the next, shape (H,)
    place: Offsets
    text: Offsets  # number of the text, shape (H,)
    start: Offsets  # position of the first code point in the joined texts, shape (H,)
    end: Offsets  # the position behind the last, shape (H,)
    term: Offsets  # which term of the query stands there, shape (H,)
    weight: Offsets  # how much of the query it is, of `_WHOLE`, shape (H,)


def highlight(texts: Sequence[str], terms: WeightedTerms) -> list[tuple[Span, ...]]:
    """Say where in each of some texts the answer stands.

    For each it is the best passage, and behind that the words found, ascending and apart; nothing for a text that holds
    none of the query's words.

    Raises:
        TooLargeError: there are more than `MOST_SPANS`.
    """
    spans: list[tuple[Span, ...]] = []
    n_spans = 0
    n_chars = lengths(texts)
    portions = [*batch_by_size(n_chars, _PORTION)]
    reserve(
        "span_char",
        max((int(n_chars[start:end].sum()) for start, end in portions), default=0),
    )
    for start, end in portions:
        raise_if_cancelled()
        first = starts_of(n_chars[start:end] + 1)
        hits = _find("\n".join(texts[start:end]), first, terms)
        both = _passages(hits), _words(hits)
        n_new = sum(starts.size for _, starts, _, _ in both)
        n_spans += n_new
        if n_spans > MOST_SPANS:
            raise TooLargeError(
                f"must be at most {MOST_SPANS:,} in one answer",
                "spans",
                f"{n_spans:,}",
                "lower top_n",
            )
        reserve("span", n_new)
        marked: list[list[Span]] = [[] for _ in first]
        for found in both:
            for text, begin, behind, weight in zip(
                *(array.tolist() for array in found), strict=True
            ):
                offset = int(first[text])
                marked[text].append(
                    Span(begin - offset, behind - offset, min(weight / _WHOLE, 1.0))
                )
        spans += map(tuple, marked)
    return spans


def _find(text: str, first: Offsets, terms: WeightedTerms) -> _Hits:
    """Find the words of the query in some texts joined by line ends, which begin at `first`."""
    pluralize = [(number, terms.idf[number], terms.matches[number]) for number in terms.subject]
    total_idf = math.fsum([idf for _, idf, _ in pluralize]) or 1.0
    ids = concat((match.ids for _, _, match in pluralize), np.uint64)
    shares = concat((match.weight * (idf / total_idf) for _, idf, match in pluralize), np.float64)
    weight = np.maximum(np.rint(shares * _WHOLE), 1.0).astype(np.int64)
    similar = concat((match.weight for _, _, match in pluralize), np.float64)
    term = np.repeat(
        np.array([number for number, _, _ in pluralize], np.int64),
        [m.ids.size for _, _, m in pluralize],
    )
    order = np.lexsort((-similar, ids))  # of equal ids the best match is the first, and found
    ids, weight, term = ids[order], weight[order], term[order]

    block = tokenize([text], toneless=False)
    at, place = _found(ids, block)
    plain = without_tones(text)
    if plain != text:  # the same words in the same places, as they may have been asked for
        more_at, more = _found(ids, tokenize([plain], toneless=False))
        place, once = np.unique(np.concatenate((place, more)), return_index=True)
        at = np.concatenate((at, more_at))[once]
    start, end = code_points(text, block, place)
    number = np.searchsorted(first, start, "right") - 1
    return _Hits(place + WINDOW * number, number, start, end, term[at], weight[at])


def _found(ids: Ids, block: Occurrences) -> tuple[Offsets, Offsets]:
    """Return which of some ids, ascending, occurrences have, and the numbers of these occurrences."""
    at = find(ids, block.ids)
    place: Offsets = np.flatnonzero(at >= 0)
    return at[place], place


def _passages(hits: _Hits) -> tuple[Offsets, Offsets, Offsets, Offsets]:
    """Return the best passage of each text that has one: text, start, end, weight."""
    covered, last = _coverage(hits)
    extent = hits.place[last] - hits.place
    order = np.lexsort((extent, -covered, hits.text))
    best = order[run_starts(hits.text[order])]
    ranges = list(zip(best.tolist(), (last[best] + 1).tolist(), strict=True))
    start = np.array([hits.start[low:high].min() for low, high in ranges], np.int64)
    end = np.array([hits.end[low:high].max() for low, high in ranges], np.int64)
    return hits.text[best], start, end, covered[best]


def _coverage(hits: _Hits) -> tuple[Offsets, Offsets]:
    """Return what the window that begins at each hit weighs, and the number of the last hit that adds to that."""
    n = hits.place.size
    behind = np.searchsorted(hits.place, hits.place + WINDOW)
    same = np.argsort(hits.term, kind="stable")
    previous = np.full(n, -1)
    previous[same[1:]] = np.where(hits.term[same[1:]] == hits.term[same[:-1]], same[:-1], -1)
    covered = np.zeros(n, np.int64)
    last = np.arange(n)
    for some in batch_slices(n, _BATCH):
        first = np.arange(n)[some]
        column = first - some.start
        width = int((behind[first] - first).max())
        most = np.zeros(
            (width, first.size), np.int64
        )  # what a hit's term weighs in the window up to that hit
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
    pluralize = by_term[run_starts(group[by_term]) | run_starts(term[by_term])]
    total = np.zeros(heads.size, np.int64)
    np.add.at(total, group[pluralize], weight[pluralize])
    last = np.append(heads[1:], order.size)[: heads.size] - 1
    return hits.text[order][heads], start[heads], end[last], total
