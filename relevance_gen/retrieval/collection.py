"""Turn the chunks' texts into arrays, block by block: tokens, postings, norms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np
from attrs import frozen

from relevance_gen.retrieval.growing import GrowingArray
from relevance_gen.retrieval.postings import (
    MAX_BLOCK_CHUNKS,
    Postings,
    PostingsBuilder,
    TermCounts,
    count_terms,
)
from relevance_gen.retrieval.stopwords import ENGLISH_MARKERS, OTHER_MARKERS
from relevance_gen.retrieval.terms import BEGINNINGS, Ids, Offsets, beginnings, buckets, ragged_ranges, tokenize
from relevance_gen.retrieval.weighting import Floats, Weighting, saturated, smoothed_idf, sublinear, sum_by

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of chunks done and the number of all chunks, after every block."""

_CHARS_PER_TOKEN: Final = 4
"""Most texts have fewer tokens than one for so many characters."""
_BLOCK_CHARS: Final = 1 << 18
"""Characters tokenized at once: with all temporary arrays that is about what a core's cache holds."""


@frozen
class Collection:
    """What the chunks' texts come to.

    Attributes:
        postings: where each term stands.
        tokens: term id of every token, shape (T,); empty where `texts` stands in for it.
        first_token: offset in `tokens` of each chunk's first, shape (N,).
        n_tokens: tokens of each chunk, shape (N,).
        norms: Euclidean length of each chunk's vector, shape (N,).
        is_english: whether frequent words are English ones, or no language's that is known.
        texts: the chunks' texts, for one question: cutting the few that matter again is quicker than keeping tokens.
    """

    postings: Postings
    tokens: Ids
    first_token: Offsets
    n_tokens: Offsets
    norms: Floats
    is_english: bool
    texts: Sequence[str] = ()

    @property
    def n_chunks(self) -> int:
        """Number of chunks, N."""
        return self.norms.size

    def tokens_of(self, chunks: Offsets) -> tuple[Ids, Offsets]:
        """Return the token ids of some chunks, chunk after chunk, and how many tokens each has."""
        counts = self.n_tokens[chunks]
        if self.texts:
            again = [self.texts[chunk] for chunk in chunks.tolist()]
            blocks = (tokenize(again[start:end]).ids for start, end in _cut_by_size(_lengths(again), _BLOCK_CHARS))
            return np.concatenate([np.zeros(0, np.uint64), *blocks]), counts
        return self.tokens[ragged_ranges(self.first_token[chunks], counts)], counts


def collect(
    texts: Sequence[str],
    weighting: Weighting,
    *,
    only_for: Ids | None = None,
    progress: Progress | None = None,
) -> Collection:
    """Read the chunks' texts.

    Args:
        texts: the chunks' texts, N of them.
        weighting: whose norms to take.
        only_for: ids of a query's terms: keep only what one question of these terms needs, the postings of terms that
            begin as these do. The textbook's cosine needs all postings.
        progress: called after every block.
    """
    wanted = None
    if only_for is not None and weighting == "pivoted":
        wanted = np.zeros(BEGINNINGS, bool)
        wanted[beginnings(only_for)] = True
    expected = int(_lengths(texts).sum()) // _CHARS_PER_TOKEN
    builder = PostingsBuilder(expected, wanted)
    language = _LanguageGuess()
    squares = np.zeros(len(texts))
    first_token, n_tokens = np.zeros((2, len(texts)), np.int64)
    tokens = GrowingArray(np.uint64, expected if only_for is None else 0)
    done = 0
    for numbers in _blocks(texts):
        block = tokenize([texts[number] for number in numbers])
        found = count_terms(block.ids, block.counts)
        builder.add(block, found, numbers)
        language.add(found)
        squares[numbers] = sum_by(found.chunk, np.square(saturated(found.tf)), numbers.size)
        n_tokens[numbers] = block.counts
        if only_for is None:
            first_token[numbers] = len(tokens) + np.cumsum(block.counts) - block.counts
            tokens.extend(block.ids)
        done += numbers.size
        if progress is not None:
            progress(done, len(texts))
    postings = builder.build()
    norms = np.sqrt(squares) if weighting == "pivoted" else _cosine_norms(postings, len(texts))
    again = () if only_for is None else texts
    return Collection(postings, tokens.finish(), first_token, n_tokens, norms, language.is_english, again)


def _blocks(texts: Sequence[str]) -> Iterator[Offsets]:
    """Yield the numbers of chunks to tokenize together: ASCII with ASCII, which needs no folding, and not too many."""
    n_chars = _lengths(texts)
    is_ascii = np.fromiter(map(str.isascii, texts), bool, len(texts))
    for numbers, block_chars in (
        (np.flatnonzero(is_ascii), _BLOCK_CHARS),
        (np.flatnonzero(~is_ascii), _BLOCK_CHARS // 2),  # two bytes to a character, or three
    ):
        for start, end in _cut_by_size(n_chars[numbers], block_chars):
            yield numbers[start:end]


def _lengths(texts: Sequence[str]) -> Offsets:
    return np.fromiter(map(len, texts), np.int64, len(texts))


def _cut_by_size(n_chars: Offsets, block_chars: int) -> Iterator[tuple[int, int]]:
    """Yield where runs of texts begin and end that have about so many characters together, each one text at least."""
    ends = np.cumsum(n_chars + 1)
    start = 0
    while start < n_chars.size:
        before = int(ends[start - 1]) if start else 0
        end = int(np.searchsorted(ends, before + block_chars, "right"))
        end = min(max(end, start + 1), start + MAX_BLOCK_CHUNKS)
        yield start, end
        start = end


def _cosine_norms(postings: Postings, n_chunks: int) -> Floats:
    df = postings.document_frequency()
    weights = sublinear(postings.tf) * np.repeat(smoothed_idf(df, n_chunks), df)
    return np.asarray(np.sqrt(sum_by(postings.chunk, np.square(weights), n_chunks)))


class _LanguageGuess:
    """Counts words that are frequent in English, and words that are frequent in other languages."""

    def __init__(self) -> None:
        self._markers = _marker_ids()
        self._buckets = buckets(self._markers)
        self._seen = np.zeros(self._markers.size, np.int64)

    def add(self, found: TermCounts) -> None:
        """Count the markers of one block, whose terms stand in the order of their ids' top 16 bits."""
        seen_buckets = buckets(found.ids)
        low = np.searchsorted(seen_buckets, self._buckets, "left")
        n = np.searchsorted(seen_buckets, self._buckets, "right") - low
        at = ragged_ranges(low, n)
        marker = np.repeat(np.arange(self._markers.size), n)
        seen = found.tf[at] * (found.ids[at] == self._markers[marker])
        self._seen += np.bincount(marker, seen, self._markers.size).astype(np.int64)

    @property
    def is_english(self) -> bool:
        """Whether the words of other languages are in the minority, as they are where there are none of either."""
        english = len(ENGLISH_MARKERS)
        return bool(self._seen[:english].sum() >= self._seen[english:].sum())


@functools.cache
def _marker_ids() -> Ids:
    return tokenize([*ENGLISH_MARKERS, *OTHER_MARKERS]).ids
