"""Hold some chunks made searchable, a segment, and the statistics that scores need of all segments.

A segment never changes. All that a score needs from outside its segment is statistics, and statistics add up. So
results are the same, bit for bit, however chunks are divided among segments.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from relevance_gen import arrays
from relevance_gen.arrays import (
    Counts,
    Floats,
    GrowingArray,
    Hashes,
    Ids,
    Offsets,
    TermOrds,
)
from relevance_gen.index import array_layout as layout
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.lexicon import MADE_BYTES, Lexicon, LexiconBuilder
from relevance_gen.index.passages import Passages
from relevance_gen.index.postings import Postings
from relevance_gen.text.blocks import blocks
from relevance_gen.text.term_hashes import hash_prefixes
from relevance_gen.text.tokenization import Occurrences, tokenize

Votes = npt.NDArray[np.int32]

_NO_IDS: Final[Ids] = np.zeros(0, np.uint64)
_NO_COUNTS: Final[Offsets] = np.zeros(0, np.int64)
_MANTISSA_BITS: Final = 53
_LOW_BITS: Final = 27
_LEAST_EXPONENT: Final = -1073
"""The exponent of the least float above 0, as `math.frexp` has it."""


@frozen(eq=False)
class Statistics:
    """Facts of chunks that scores need from everywhere; those of two sets of chunks add up to those of both."""

    n_chunks: int = 0  # number of chunks, N
    norm_sum: int = 0  # exact sum of their norms; see `exact_sum`
    english_margin: int = (
        0  # frequent words of English among their words, less those of other languages
    )
    ids: Ids = _NO_IDS  # ids of all terms, ascending, shape (V,); empty where the weighting does not need them
    df: Offsets = _NO_COUNTS  # number of chunks that hold each, shape (V,)
    titles: Ids = _NO_IDS  # hashes of all titles, ascending, shape (T,)
    title_df: Offsets = _NO_COUNTS  # number of chunks that have each, shape (T,)
    n_chunks_with_title: int = 0  # number of chunks that have any

    def __add__(self, other: Statistics) -> Statistics:
        ids, df = _add_counts(self.ids, self.df, other.ids, other.df)
        titles, title_df = _add_counts(self.titles, self.title_df, other.titles, other.title_df)
        return Statistics(
            n_chunks=self.n_chunks + other.n_chunks,
            norm_sum=self.norm_sum + other.norm_sum,
            english_margin=self.english_margin + other.english_margin,
            ids=ids,
            df=df,
            titles=titles,
            title_df=title_df,
            n_chunks_with_title=self.n_chunks_with_title + other.n_chunks_with_title,
        )

    @functools.cached_property
    def scalars(self) -> Statistics:
        """The same without its arrays: what a plan needs of it, and small."""
        return Statistics(
            self.n_chunks,
            self.norm_sum,
            self.english_margin,
            n_chunks_with_title=self.n_chunks_with_title,
        )

    @functools.cached_property
    def mean_norm(self) -> float:
        """Mean of the norms; 0 of no chunks."""
        return (
            self.norm_sum / (self.n_chunks << (_MANTISSA_BITS - _LEAST_EXPONENT))
            if self.n_chunks
            else 0.0
        )

    @property
    def is_english(self) -> bool:
        """Whether frequent words of other languages are in the minority, as they are where there are none of either."""
        return self.english_margin >= 0


def _add_counts(
    ids: Ids, counts: Offsets, other_ids: Ids, other_counts: Offsets
) -> tuple[Ids, Offsets]:
    """Add up what is counted for some ids, ascending, and for some others."""
    if not ids.size or not other_ids.size:
        return (ids, counts) if ids.size else (other_ids, other_counts)
    both, number = np.unique(np.concatenate((ids, other_ids)), return_inverse=True)
    return both, np.bincount(number, np.concatenate((counts, other_counts)), both.size).astype(
        np.int64
    )


def exact_sum(values: Floats) -> int:
    """Return the sum of at most 2²⁶ floats, none negative, as a multiple of 2⁻¹¹²⁶: exact, whatever the order.

    >>> exact_sum(np.array([0.1] * 10)) == 10 * exact_sum(np.array([0.1]))
    True
    """
    mantissa, exponent = np.frexp(values)
    whole = (mantissa * (1 << _MANTISSA_BITS)).astype(np.int64)
    shift = exponent - _LEAST_EXPONENT
    # Halves of the mantissas, so that their sums are exact as floats.
    high = np.bincount(shift, whole >> _LOW_BITS)
    low = np.bincount(shift, whole & ((1 << _LOW_BITS) - 1))
    return sum(
        ((int(high[bits]) << _LOW_BITS) + int(low[bits])) << int(bits)
        for bits in np.flatnonzero(high + low)
    )


POSITION_GAP: Final = 24
"""Empty elements between the chunks of a reading, so many that no window of proximity spans two chunks."""


@frozen(eq=False)
class TokenSequences:
    """The terms of some chunks, in reading order."""

    lexicon: Lexicon  # at least all terms of the chunks, V of them
    # number in the lexicon of each occurrence's term, chunk after chunk, shape (T,). Before, between and behind the
    # chunks stand `POSITION_GAP` empty elements, which are V
    terms: TermOrds
    starts: Offsets  # index in `terms` of each chunk's first occurrence, shape (n,)
    counts: Offsets  # occurrences of each chunk, shape (n,)


@frozen(eq=False)
class Segment:
    """Some chunks made searchable. Chunks have numbers in their segment and positions in the whole collection."""

    positions: Offsets  # position of each chunk, ascending, shape (N,)
    chunks: Chunks  # their texts and metadata
    postings: Postings  # where each term stands
    # number in the lexicon of each occurrence's term, shape (T,). None in one-shot search, which keeps no occurrences
    # and cuts the few candidates again
    occurrences: TermOrds | None
    first_occurrence: Offsets  # index in `occurrences` of each chunk's first, shape (N,)
    n_occurrences: Offsets  # number of occurrences in each chunk, shape (N,)
    norms: Floats  # Euclidean length of each chunk's vector of saturated counts, shape (N,)
    english_margin: Votes  # frequent English words among each chunk's words, less those of other languages, shape (N,)
    hashes: Ids  # a hash of each chunk's words in any order, shape (N,)
    title_hashes: Ids  # a hash of each chunk's title; 0 for none, shape (N,)
    title_sizes: Counts  # number of occurrences in it, which are the chunk's first, shape (N,)
    passages: Passages | None = None  # the vectors of its passages; None without an encoder

    @property
    def size(self) -> int:
        """Number of chunks, those included that were taken out since."""
        return self.positions.size

    @property
    def live(self) -> npt.NDArray[np.bool_]:
        """Whether each chunk is still there, shape (N,)."""
        return np.ones(self.size, bool) if self.postings.live is None else self.postings.live

    def live_texts(self) -> list[str]:
        """Return the texts of the chunks that were not removed."""
        if self.postings.live is None:
            return list(self.chunks.texts)
        return [self.chunks.texts[chunk_ord] for chunk_ord in np.flatnonzero(self.live).tolist()]

    @functools.cached_property
    def statistics(self) -> Statistics:
        """The facts of its chunks, but for the terms'."""
        live = self.live
        plain = Statistics(
            int(live.sum()),
            exact_sum(self.norms[live]),
            int(self.english_margin[live].sum(dtype=np.int64)),
        )
        if not self.chunks.titles:
            return plain
        titled = np.sort(self.title_hashes[live & (self.title_hashes > 0)])
        first, title_df = arrays.runs(titled)
        return evolve(
            plain, titles=titled[first], title_df=title_df, n_chunks_with_title=titled.size
        )

    @functools.cached_property
    def lengths(self) -> frozenset[int]:
        """The numbers of occurrences that any chunk has."""
        return frozenset(self.n_occurrences.tolist())

    @functools.cached_property
    def nbytes(self) -> int:
        """Memory of texts, titles, arrays, and what questions make of the words, in bytes; metadata is not counted."""
        made = MADE_BYTES * self.postings.lexicon.size
        titles = self.chunks.titles
        named = sys.getsizeof(titles) + sum(map(sys.getsizeof, titles.values())) if titles else 0
        return self.array_bytes + made + sum(map(sys.getsizeof, self.chunks.texts)) + named

    @functools.cached_property
    def array_bytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return sum(array.nbytes for _, array in layout.arrays_of(self))

    def token_sequences(self, numbers: Offsets) -> TokenSequences:
        """Return the terms of some chunks."""
        counts = self.n_occurrences[numbers]
        if self.occurrences is None:
            lexicon, occurrences = self._cut_again(numbers)
            first = arrays.starts_of(counts)
        else:
            lexicon, occurrences, first = (
                self.postings.lexicon,
                self.occurrences,
                self.first_occurrence[numbers],
            )
        pieces = [np.full(POSITION_GAP, lexicon.size, np.uint32)] * (2 * numbers.size + 1)
        ends = (first + counts).tolist()
        pieces[1::2] = [
            occurrences[begin:end] for begin, end in zip(first.tolist(), ends, strict=True)
        ]
        return TokenSequences(
            lexicon,
            np.concatenate(pieces),
            arrays.starts_of(counts + POSITION_GAP) + POSITION_GAP,
            counts,
        )

    def _cut_again(self, numbers: Offsets) -> tuple[Lexicon, TermOrds]:
        """Return the terms of some chunks and each of their occurrences, chunk after chunk, from the texts."""
        builder = LexiconBuilder(0)
        entries = GrowingArray(np.uint32, int(self.n_occurrences[numbers].sum()))
        for block in self._blocks(numbers):
            # Of each term of a block one entry is added: a long text has many more occurrences than terms.
            ids, first, number = np.unique(block.ids, return_index=True, return_inverse=True)
            letters = np.frombuffer(block.folded, np.uint8)
            entries.extend(
                number + builder.add(ids, letters, block.start[first], block.length[first])
            )
        lexicon, numbers_of_terms = builder.build()
        return lexicon, numbers_of_terms.take(entries.finish())

    def prefix_hashes_from_texts(self, numbers: Offsets) -> tuple[Hashes, Offsets]:
        """Return the stumps of the words of some chunks, chunk after chunk, and how many each has, from the texts."""
        prefixes = (
            hash_prefixes(block.ids, block.folded, block.start, block.length)
            for block in self._blocks(numbers)
        )
        return arrays.concat(prefixes, np.uint32), self.n_occurrences[numbers]

    def _blocks(self, numbers: Offsets) -> Iterator[Occurrences]:
        said = self.chunks.indexed_texts
        return map(tokenize, blocks([said[number] for number in numbers.tolist()]))

    def find(self, positions: Offsets) -> Offsets:
        """Return the numbers of the chunks at some positions; -1 for one that is not here."""
        numbers = arrays.find(self.positions, positions)
        if self.postings.live is not None and self.size:
            numbers[~self.postings.live.take(numbers)] = -1
        return numbers

    def occurrences_of(self, numbers: Offsets) -> TermOrds:
        """Return the term of every occurrence in some chunks, chunk after chunk; occurrences must be kept."""
        if self.occurrences is None:
            raise ValueError("a segment that keeps no occurrences cannot be merged")
        return self.occurrences[
            arrays.ragged_ranges(self.first_occurrence[numbers], self.n_occurrences[numbers])
        ]

    def without(self, numbers: Offsets) -> Segment:
        """Return the segment without some of its chunks. It shares its arrays with this one."""
        live = self.live.copy()
        live[numbers] = False
        return evolve(self, postings=evolve(self.postings, live=live))
