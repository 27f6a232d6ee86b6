"""Make a segment of chunks, block by block: tokens, postings, norms, votes on the language."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Final, TypeAlias

import numpy as np

from relevance_gen.retrieval.chunks import Chunks
from relevance_gen.retrieval.postings import MAX_BLOCK_CHUNKS, PostingsBuilder, TermCounts, count_terms
from relevance_gen.retrieval.segment import Segment, Votes, cut_by_size, lengths
from relevance_gen.retrieval.stopwords import ENGLISH_MARKERS, OTHER_MARKERS
from relevance_gen.retrieval.terms import BEGINNINGS, Ids, Offsets, Tokens, beginnings, buckets, ragged_ranges, tokenize
from relevance_gen.retrieval.weighting import saturated, sum_by

Progress: TypeAlias = Callable[[int, int], None]
"""Called with the number of chunks done and the number of all chunks, after every block."""

_HASH_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_CHARS_PER_TOKEN: Final = 4
"""Most texts have fewer tokens than one for so many characters."""
_BLOCK_CHARS: Final = 1 << 18
"""Characters tokenized at once: with all temporary arrays that is about what a core's cache holds."""


def build(
    chunks: Chunks,
    positions: Offsets,
    *,
    keep_tokens: bool = True,
    only_for: Ids | None = None,
    progress: Progress | None = None,
) -> Segment:
    """Make a segment of chunks.

    Args:
        chunks: the chunks.
        positions: their positions in the collection, ascending, shape (N,).
        keep_tokens: whether to keep the tokens; a single question needs those of a few chunks only.
        only_for: ids of a query's terms: keep only the postings of terms that begin as these do; None keeps all.
        progress: called after every block.
    """
    texts = chunks.texts
    wanted = None
    if only_for is not None:
        wanted = np.zeros(BEGINNINGS, bool)
        wanted[beginnings(only_for)] = True
    expected = int(lengths(texts).sum()) // _CHARS_PER_TOKEN
    builder = PostingsBuilder(expected, wanted, keep_tokens=keep_tokens)
    squares = np.zeros(len(texts))
    votes = np.zeros(len(texts), np.int32)
    hashes = np.zeros(len(texts), np.uint64)
    first_token, n_tokens = np.zeros((2, len(texts)), np.int64)
    done = n_seen = 0
    for numbers in _blocks(texts):
        block = tokenize([texts[number] for number in numbers.tolist()])
        found = count_terms(block.ids, block.counts, keep_tokens=keep_tokens)
        builder.add(block, found, numbers)
        squares[numbers] = sum_by(found.chunk, np.square(saturated(found.tf)), numbers.size)
        votes[numbers] = _votes(found, numbers.size)
        n_tokens[numbers] = block.counts
        hashes[numbers] = _hash_chunks(block)
        if keep_tokens:
            first_token[numbers] = n_seen + np.cumsum(block.counts) - block.counts
            n_seen += block.ids.size
        done += numbers.size
        if progress is not None:
            progress(done, len(texts))
    postings, tokens = builder.build()
    return Segment(
        positions=positions,
        chunks=chunks,
        postings=postings,
        tokens=tokens,
        first_token=first_token,
        n_tokens=n_tokens,
        norms=np.sqrt(squares),
        votes=votes,
        hashes=hashes,
    )


def _hash_chunks(block: Tokens) -> Ids:
    """Return a hash of each chunk's words, whatever their order."""
    hashes = np.zeros(block.counts.size, np.uint64)
    some = np.flatnonzero(block.counts)
    if some.size:
        hashes[some] = np.add.reduceat(block.ids, (np.cumsum(block.counts) - block.counts)[some])
    hashes *= _HASH_MULTIPLIER
    return hashes ^ (hashes >> np.uint64(32))


def _blocks(texts: Sequence[str]) -> Iterator[Offsets]:
    """Yield the numbers of chunks to tokenize together: ASCII with ASCII, which needs no folding, and not too many."""
    n_chars = lengths(texts)
    is_ascii = np.fromiter(map(str.isascii, texts), bool, len(texts))
    for numbers, block_chars in (
        (np.flatnonzero(is_ascii), _BLOCK_CHARS),
        (np.flatnonzero(~is_ascii), _BLOCK_CHARS // 2),  # two bytes to a character, or three
    ):
        for start, end in cut_by_size(n_chars[numbers], block_chars, MAX_BLOCK_CHUNKS):
            yield numbers[start:end]


def _votes(found: TermCounts, n_chunks: int) -> Votes:
    """Return the frequent words of English in each chunk of a block, less those of other languages.

    Args:
        found: the block's terms, in the order of their ids' top 16 bits.
        n_chunks: number of chunks in the block.
    """
    markers, vote = _markers()
    marker_buckets, seen_buckets = buckets(markers), buckets(found.ids)
    low = np.searchsorted(seen_buckets, marker_buckets, "left")
    n = np.searchsorted(seen_buckets, marker_buckets, "right") - low
    at = ragged_ranges(low, n)
    cast = found.tf[at] * np.repeat(vote, n) * (found.ids[at] == np.repeat(markers, n))
    return sum_by(found.chunk[at], cast, n_chunks).astype(np.int32)


@functools.cache
def _markers() -> tuple[Ids, Offsets]:
    """Return the ids of words that tell languages, and the vote of each: 1 for English, -1 for any other."""
    tokens = tokenize([*ENGLISH_MARKERS, *OTHER_MARKERS])
    ids = tokens.ids[np.cumsum(tokens.counts) - tokens.counts]  # "của" is also "cua"
    return ids, np.repeat([1, -1], [len(ENGLISH_MARKERS), len(OTHER_MARKERS)])
