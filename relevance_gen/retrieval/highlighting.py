"""Find the character ranges of a chunk that match the query: best passage and matching words.

Ranges are computed from the terms that the query's words match, and their idf. If a word of the
query other than a stop word occurs in any chunk, the stop words of the query are ignored: they are
not found in the chunk, and the sum below does not contain their idf. The weight of a word is its
idf times the weight of its match, divided by the sum of the idf of all words of the query. The
weight of a range is the sum of the weights of its distinct words, each with the weight of its best
match; this sum, at most 1, is the span's score.

* The passage is the window of 40 tokens with the greatest weight, trimmed to the first and the last
  word that add to that weight. If several windows have this weight, the window whose words are
  closest together is used, and among equals the first.
* Words are found anywhere in the chunk. Overlapping words, such as n-grams, or identifiers and
  their parts, are one span.

Spans are whole code points of the original text, and include marks, joiners and soft hyphens after
a letter. The text of a span contains the term that was found there. Source: the rule is ours,
measured in bench/passages.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Offsets, batch_slices, concat, find, run_starts, starts_of
from relevance_gen.errors import TooLargeError
from relevance_gen.request_scope import raise_if_cancelled, reserve
from relevance_gen.retrieval.ranking.stage import WeightedTerms
from relevance_gen.text.blocks import batch_by_size, lengths
from relevance_gen.text.normalization import without_tones
from relevance_gen.text.tokenization import tokenize
from relevance_gen.types import Span

WINDOW: Final = 40
"""Tokens in a passage; windows of 24, 60 and 100 tokens were measured to be worse."""
_TOTAL_WEIGHT: Final = 1 << 40
"""Weight of the whole query. Weights are integers, so that equal passages are equal in any order of
addition."""
MAX_SPANS: Final = 1 << 20
"""Maximum number of spans in one response."""
_BATCH_CHARS: Final = 1 << 18
"""Characters processed together; each takes some hundred bytes."""
_BATCH_WINDOWS: Final = 1 << 16
"""Windows weighted together; bounds the memory for a long chunk."""


@frozen(eq=False)
class _Matches:
    """The H tokens in several joined texts that match the query, in reading order."""

    # index of the token, with gaps between texts that no window can bridge, shape (H,)
    token: Offsets
    text: Offsets  # index of the text, shape (H,)
    start: Offsets  # first code point in the joined texts, shape (H,)
    end: Offsets  # code point after the last, shape (H,)
    term: Offsets  # index of the query's word, shape (H,)
    weight: Offsets  # weight of the word, of `_TOTAL_WEIGHT`, shape (H,)


@frozen(eq=False)
class _Windows:
    """The windows that begin at each of H matches."""

    # sum of the weights of the distinct words of each window, each at its best match, shape (H,)
    weight: Offsets
    last: Offsets  # index of the last match that increases this sum, shape (H,)


@frozen(eq=False)
class _Ranges:
    """R character ranges in several joined texts."""

    text: Offsets  # index of the text, shape (R,)
    start: Offsets  # first code point in the joined texts, shape (R,)
    end: Offsets  # code point after the last, shape (R,)
    weight: Offsets  # weight of its words, of `_TOTAL_WEIGHT`, shape (R,)


def highlight(texts: Sequence[str], terms: WeightedTerms) -> list[tuple[Span, ...]]:
    """Return the spans of each text: best passage, then matching words, ascending and disjoint.

    A text without a word of the query has no spans.

    Raises:
        TooLargeError: there are more than `MAX_SPANS`.
    """
    spans: list[tuple[Span, ...]] = []
    n_spans = 0
    n_chars = lengths(texts)
    batches = [*batch_by_size(n_chars, _BATCH_CHARS)]
    batch_chars = [int(n_chars[start:end].sum()) for start, end in batches]
    reserve("span_char", max(batch_chars, default=0))
    for start, end in batches:
        raise_if_cancelled()
        first_chars = starts_of(n_chars[start:end] + 1)
        matches = _find_matches("\n".join(texts[start:end]), first_chars, terms)
        passages, words = _best_passages(matches), _matching_words(matches)
        n_new = passages.start.size + words.start.size
        n_spans += n_new
        if n_spans > MAX_SPANS:
            raise TooLargeError(
                f"must be at most {MAX_SPANS:,} in one answer",
                "spans",
                f"{n_spans:,}",
                "lower top_n",
            )
        reserve("span", n_new)
        spans_of_text: list[list[Span]] = [[] for _ in first_chars]
        _append_spans(spans_of_text, passages, first_chars)
        _append_spans(spans_of_text, words, first_chars)
        spans += map(tuple, spans_of_text)
    return spans


def _append_spans(spans_of_text: list[list[Span]], ranges: _Ranges, first_chars: Offsets) -> None:
    """Convert ranges of joined texts to spans, and append each to the list of its text.

    `first_chars` is the start of each text in the joined texts.
    """
    offsets = first_chars[ranges.text]
    starts = (ranges.start - offsets).tolist()
    ends = (ranges.end - offsets).tolist()
    texts, weights = ranges.text.tolist(), ranges.weight.tolist()
    for text, start, end, weight in zip(texts, starts, ends, weights, strict=True):
        spans_of_text[text].append(Span(start, end, min(weight / _TOTAL_WEIGHT, 1.0)))


def _find_matches(text: str, first_chars: Offsets, terms: WeightedTerms) -> _Matches:
    """Return the tokens of several texts that match the query.

    Args:
        text: the texts, joined by line ends.
        first_chars: offset of each text's first code point in `text`.
        terms: the terms of the query.
    """
    subject = terms.subject
    matches = [terms.matches[i] for i in subject]
    idf = [terms.idf[i] for i in subject]
    total_idf = math.fsum(idf) or 1.0
    # The terms that the query's words match, by id. If several matches have the same id, the best
    # one comes first, so that the search below returns it.
    ids = concat([match.ids for match in matches], np.uint64)
    match_weight = concat([match.weight for match in matches], np.float64)
    shares = [match.weight * (idf[i] / total_idf) for i, match in enumerate(matches)]
    share = concat(shares, np.float64)
    weight = np.maximum(np.rint(share * _TOTAL_WEIGHT), 1.0).astype(np.int64)
    n_ids = [match.ids.size for match in matches]
    term = np.array(subject, np.int64).repeat(n_ids)
    order = np.lexsort((-match_weight, ids))
    ids, weight, term = ids[order], weight[order], term[order]

    tokens = tokenize([text], toneless=False)
    index = find(ids, tokens.ids)
    selected = np.flatnonzero(index >= 0)
    index = index[selected]
    plain = without_tones(text)
    if plain != text:  # the same tokens without tone marks, as a query may have them
        plain_index = find(ids, tokenize([plain], toneless=False).ids)
        more = np.flatnonzero(plain_index >= 0)
        selected, first = np.unique(np.concatenate((selected, more)), return_index=True)
        index = np.concatenate((index, plain_index[more]))[first]
    start, end = tokens.find_characters(text, selected)
    text_index = np.searchsorted(first_chars, start, "right") - 1
    return _Matches(
        token=selected + WINDOW * text_index,
        text=text_index,
        start=start,
        end=end,
        term=term[index],
        weight=weight[index],
    )


def _best_passages(matches: _Matches) -> _Ranges:
    """Return the best passage of each text that has a match."""
    windows = _weigh_windows(matches)
    extent = matches.token[windows.last] - matches.token
    order = np.lexsort((extent, -windows.weight, matches.text))
    best = order[run_starts(matches.text[order])]
    starts, ends = [], []
    best_ends = windows.last[best] + 1
    for low, high in zip(best.tolist(), best_ends.tolist(), strict=True):
        starts.append(matches.start[low:high].min())
        ends.append(matches.end[low:high].max())
    start, end = np.array(starts, np.int64), np.array(ends, np.int64)
    return _Ranges(matches.text[best], start, end, windows.weight[best])


def _weigh_windows(matches: _Matches) -> _Windows:
    """Return the windows that begin at each of the H matches."""
    n = matches.token.size
    window_end = np.searchsorted(matches.token, matches.token + WINDOW)
    # Index of the previous match of the same word; -1 for none.
    by_term = np.argsort(matches.term, kind="stable")
    is_same_term = matches.term[by_term[1:]] == matches.term[by_term[:-1]]
    previous = np.full(n, -1)
    previous[by_term[1:]] = np.where(is_same_term, by_term[:-1], -1)
    window_weight = np.zeros(n, np.int64)
    last = np.arange(n)
    for batch in batch_slices(n, _BATCH_WINDOWS):
        first = np.arange(n)[batch]
        column = first - batch.start
        width = int((window_end[first] - first).max())
        # Greatest weight of a match's word in the window up to that match, shape (width, windows).
        best = np.zeros((width, first.size), np.int64)
        for row in range(width):
            match = np.minimum(first + row, n - 1)
            previous_row = previous[match] - first
            best_before = best[np.maximum(previous_row, 0), column]
            before = np.where(previous_row >= 0, best_before, 0)
            best[row] = np.maximum(matches.weight[match], before)
            added = np.where(first + row < window_end[first], best[row] - before, 0)
            window_weight[first] += added
            last[first[added > 0]] = match[added > 0]
    return _Windows(window_weight, last)


def _matching_words(matches: _Matches) -> _Ranges:
    """Return the ranges of the matching words; overlapping words are one range."""
    order = np.lexsort((matches.end, matches.start))
    start, end = matches.start[order], np.maximum.accumulate(matches.end[order])
    is_first = np.append(True, start[1:] >= end[:-1])
    first = np.flatnonzero(is_first)[: order.size]
    group = np.searchsorted(first, np.arange(order.size), "right") - 1
    # Weight of the distinct words of each group, each at its best match.
    term, weight = matches.term[order], matches.weight[order]
    by_term = np.lexsort((-weight, term, group))
    best = by_term[run_starts(group[by_term]) | run_starts(term[by_term])]
    total = np.zeros(first.size, np.int64)
    np.add.at(total, group[best], weight[best])
    last = np.append(first[1:], order.size)[: first.size] - 1
    return _Ranges(matches.text[order][first], start[first], end[last], total)
