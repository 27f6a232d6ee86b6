"""Segments: immutable parts of an index, and the statistics of all segments that scores need.

All information about other segments that a score needs is in the statistics, and statistics can be
added. Results are therefore bit-identical for any division of the chunks into segments.
"""

from __future__ import annotations

import functools
import itertools
import sys
from collections.abc import Iterator
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from relevance_gen import arrays
from relevance_gen.arrays import (
    Counts,
    Flags,
    Floats,
    GrowingArray,
    Hashes,
    Ids,
    Offsets,
    TermOrds,
)
from relevance_gen.index import array_layout
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.lexicon import DERIVED_BYTES_PER_TERM, Lexicon, LexiconBuilder
from relevance_gen.index.passages import Passages
from relevance_gen.index.postings import Postings
from relevance_gen.text.blocks import blocks
from relevance_gen.text.term_hashes import hash_prefixes
from relevance_gen.text.tokenization import Occurrences, tokenize

_NO_IDS: Final[Ids] = np.zeros(0, np.uint64)
_NO_COUNTS: Final[Offsets] = np.zeros(0, np.int64)
_HASH_MULTIPLIER: Final = np.uint64(0x9E3779B97F4A7C15)
_MANTISSA_BITS: Final = 53
_LOW_BITS: Final = 27
_LOW_MASK: Final = (1 << _LOW_BITS) - 1
_MIN_EXPONENT: Final = -1073
"""The exponent of the least float above 0, in the convention of `math.frexp`."""


@frozen(eq=False)
class Statistics:
    """Facts about a set of chunks that scores need.

    The sum of the statistics of disjoint sets is the statistics of their union.

    Attributes:
        n_chunks: number of chunks, N.
        norm_sum: exact sum of their norms, an integer in units of 2⁻¹¹²⁶; see `exact_sum`.
        english_margin: number of occurrences of English marker words minus the number of
            occurrences of other languages' marker words.
        ids: ids of all terms, ascending, shape (V,); empty if the weighting does not need them.
        df: number of chunks that contain each term, shape (V,).
        titles: hashes of all distinct titles, ascending, shape (T,).
        title_df: number of chunks that have each title, shape (T,).
        n_chunks_with_title: number of chunks that have a title.
    """

    n_chunks: int = 0
    norm_sum: int = 0
    english_margin: int = 0
    ids: Ids = _NO_IDS
    df: Offsets = _NO_COUNTS
    titles: Ids = _NO_IDS
    title_df: Offsets = _NO_COUNTS
    n_chunks_with_title: int = 0

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
        """The same statistics without the arrays; the weights of a query need no more."""
        return evolve(self, ids=_NO_IDS, df=_NO_COUNTS, titles=_NO_IDS, title_df=_NO_COUNTS)

    @functools.cached_property
    def mean_norm(self) -> float:
        """Mean of the chunks' norms; 0 without chunks."""
        if not self.n_chunks:
            return 0.0
        return self.norm_sum / (self.n_chunks << (_MANTISSA_BITS - _MIN_EXPONENT))

    @functools.cached_property
    def is_english(self) -> bool:
        """Whether English marker words are at least as frequent as those of other languages."""
        return self.english_margin >= 0


def _add_counts(
    ids: Ids,
    counts: Offsets,
    other_ids: Ids,
    other_counts: Offsets,
) -> tuple[Ids, Offsets]:
    """Return the union of two arrays of ids, ascending, and the sum of the counts of each id.

    Each array of ids must ascend without repetitions; it has a count for each id.
    """
    if not other_ids.size:
        return ids, counts
    if not ids.size:
        return other_ids, other_counts
    all_ids = np.concatenate((ids, other_ids))
    all_counts = np.concatenate((counts, other_counts))
    unique_ids, row = np.unique(all_ids, return_inverse=True)
    sums = arrays.sum_by(row, all_counts, unique_ids.size)
    return unique_ids, sums.astype(np.int64)


def exact_sum(values: Floats) -> int:
    """Return the integer m for which m · 2⁻¹¹²⁶ is the exact sum of `values`.

    The order of the values does not matter. `values` has at most 2²⁶ floats, all at least 0.

    >>> exact_sum(np.array([0.1] * 10)) == 10 * exact_sum(np.array([0.1]))
    True
    """
    mantissas, exponents = np.frexp(values)
    integers = (mantissas * (1 << _MANTISSA_BITS)).astype(np.int64)
    shifts = exponents - _MIN_EXPONENT
    # The sums of the high and low halves of the mantissas for each exponent are exact as floats.
    high = np.bincount(shifts, integers >> _LOW_BITS)
    low = np.bincount(shifts, integers & _LOW_MASK)
    total = 0
    for shift in np.flatnonzero(high + low).tolist():
        total += ((int(high[shift]) << _LOW_BITS) + int(low[shift])) << shift
    return total


def chunk_hashes(id_sums: Ids) -> Ids:
    """Return the hash of each chunk, from the sum modulo 2⁶⁴ of its term ids; see `Segment`."""
    hashes = id_sums * _HASH_MULTIPLIER
    return hashes ^ (hashes >> np.uint64(32))


POSITION_GAP: Final = 24
"""Number of empty elements between the chunks of `TokenSequences`: no window of the proximity stage
spans two chunks."""


@frozen(eq=False)
class TokenSequences:
    """The terms of n chunks, in text order.

    Attributes:
        lexicon: a lexicon with at least all terms of the chunks, V of them.
        terms: ordinal in the lexicon of each occurrence's term, chunk after chunk. Before, between
            and after the chunks are `POSITION_GAP` empty elements with the value V.
        starts: index in `terms` of each chunk's first occurrence, shape (n,).
        counts: number of occurrences of each chunk, shape (n,).
    """

    lexicon: Lexicon
    terms: TermOrds
    starts: Offsets
    counts: Offsets


@frozen(eq=False)
class Segment:
    """N indexed chunks. A chunk has an ordinal in its segment and a position in its index.

    Attributes:
        positions: position of each chunk, ascending, shape (N,).
        chunks: texts, metadata and titles.
        postings: the inverted index.
        occurrences: ordinal in `postings.lexicon` of each occurrence's term, shape (T,). None in
            one-shot search, which builds a segment for a single query: it stores no occurrences and
            tokenizes the few candidates again.
        first_occurrence: index in `occurrences` of each chunk's first occurrence, shape (N,).
        n_occurrences: number of occurrences in each chunk, shape (N,).
        norms: Euclidean norm of each chunk's vector of saturated counts, in which numbers count
            little: see `formulas.norms`, shape (N,).
        english_margin: number of occurrences of English marker words minus that of other languages'
            marker words in each chunk, int32 of shape (N,).
        hashes: a hash of each chunk's terms that does not depend on their order, shape (N,).
        title_hashes: a hash of each chunk's title, 0 for none, shape (N,).
        title_sizes: number of occurrences in each chunk's title, shape (N,); they are the first
            occurrences of the chunk, and counted in `n_occurrences`.
        passages: the passages of the chunks with their vectors; None without an encoder.
    """

    positions: Offsets
    chunks: Chunks
    postings: Postings
    occurrences: TermOrds | None
    first_occurrence: Offsets
    n_occurrences: Offsets
    norms: Floats
    english_margin: npt.NDArray[np.int32]
    hashes: Ids
    title_hashes: Ids
    title_sizes: Counts
    passages: Passages | None = None

    @property
    def size(self) -> int:
        """Number of chunks N, including removed chunks."""
        return self.positions.size

    @property
    def live(self) -> Flags:
        """Whether each chunk has not been removed, shape (N,)."""
        return np.ones(self.size, bool) if self.postings.live is None else self.postings.live

    def live_texts(self) -> list[str]:
        """Return the texts of the chunks that were not removed, in the order of their ordinals."""
        return list(itertools.compress(self.chunks.texts, self.live.tolist()))

    @functools.cached_property
    def statistics(self) -> Statistics:
        """Statistics of the chunks that were not removed, without `ids` and `df`."""
        live = self.live
        titles = np.sort(self.title_hashes[live & (self.title_hashes > 0)])
        first, title_df = arrays.runs(titles)
        return Statistics(
            n_chunks=int(live.sum()),
            norm_sum=exact_sum(self.norms[live]),
            english_margin=int(self.english_margin[live].sum(dtype=np.int64)),
            titles=titles[first],
            title_df=title_df,
            n_chunks_with_title=titles.size,
        )

    @functools.cached_property
    def nbytes(self) -> int:
        """Bytes of the segment in memory, without metadata.

        This is the sum of the bytes of the texts, titles and arrays, and of the maximum bytes of
        the values that queries derive from the terms.
        """
        n_bytes = self.array_bytes + DERIVED_BYTES_PER_TERM * self.postings.lexicon.size
        n_bytes += sum(map(sys.getsizeof, self.chunks.texts))
        titles = self.chunks.titles
        if titles:
            n_bytes += sys.getsizeof(titles) + sum(map(sys.getsizeof, titles.values()))
        return n_bytes

    @functools.cached_property
    def array_bytes(self) -> int:
        """Bytes of all arrays of the segment, without texts, titles and metadata."""
        n_bytes = sum(array.nbytes for _, array in array_layout.arrays_of(self))
        live = self.postings.live
        return n_bytes if live is None else n_bytes + live.nbytes

    def token_sequences(self, chunk_ords: Offsets) -> TokenSequences:
        """Return the terms of the chunks with these ordinals, in text order."""
        counts = self.n_occurrences[chunk_ords]
        if self.occurrences is None:
            lexicon, occurrences = self._tokenize_again(chunk_ords)
            starts = arrays.starts_of(counts)
        else:
            lexicon = self.postings.lexicon
            occurrences = self.occurrences
            starts = self.first_occurrence[chunk_ords]
        # Joined as bytes, which takes half the time of `numpy.concatenate` for many short arrays.
        gap = lexicon.size.to_bytes(4, sys.byteorder) * POSITION_GAP
        memory = np.ascontiguousarray(occurrences, np.uint32).data
        ends = (starts + counts).tolist()
        bounds = zip(starts.tolist(), ends, strict=True)
        sequences = [memory[start:end] for start, end in bounds]
        terms = np.frombuffer(gap.join([b"", *sequences, b""]), np.uint32)
        new_ends = (counts + POSITION_GAP).cumsum()  # each sequence follows a gap
        return TokenSequences(lexicon, terms, new_ends - counts, counts)

    def _tokenize_again(self, chunk_ords: Offsets) -> tuple[Lexicon, TermOrds]:
        """Tokenize the texts of chunks, for a segment that stores no occurrences.

        Returns a lexicon of their terms, and the ordinal of each occurrence's term in it, chunk
        after chunk.
        """
        builder = LexiconBuilder(0)
        entries = GrowingArray(np.uint32, int(self.n_occurrences[chunk_ords].sum()))
        for tokens in self._tokens(chunk_ords):
            # One entry for each term of a block: a long text has many more occurrences than terms.
            ids, first, row = np.unique(tokens.ids, return_index=True, return_inverse=True)
            letters = np.frombuffer(tokens.folded, np.uint8)
            first_entry = builder.add(ids, letters, tokens.start[first], tokens.length[first])
            entries.extend(first_entry + row)
        lexicon, term_ords = builder.build()
        return lexicon, term_ords.take(entries.finish())

    def prefix_hashes(self, chunk_ords: Offsets) -> Hashes:
        """Tokenize the chunks with these ordinals again, and return the prefix hash of each token.

        The hashes are in text order, chunk after chunk.
        """
        hashes = (
            hash_prefixes(tokens.ids, tokens.folded, tokens.start, tokens.length)
            for tokens in self._tokens(chunk_ords)
        )
        return arrays.concat(hashes, np.uint32)

    def _tokens(self, chunk_ords: Offsets) -> Iterator[Occurrences]:
        texts = self.chunks.indexed_texts
        return map(tokenize, blocks([texts[chunk_ord] for chunk_ord in chunk_ords.tolist()]))

    def find(self, positions: Offsets) -> Offsets:
        """Return the ordinals in this segment of the chunks at these positions of the index.

        Shape (n,), -1 for a chunk that was removed or is in another segment.
        """
        chunk_ords = arrays.find(self.positions, positions)
        if self.postings.live is not None and self.size:
            chunk_ords[~self.postings.live.take(chunk_ords)] = -1
        return chunk_ords

    def occurrences_of(self, chunk_ords: Offsets) -> TermOrds:
        """Return the ordinals in the lexicon of the terms of these chunks, in text order.

        There is one ordinal for each occurrence, chunk after chunk.

        Args:
            chunk_ords: ordinals of the chunks.

        Raises:
            ValueError: the segment stores no occurrences.
        """
        if self.occurrences is None:
            raise ValueError("a segment without occurrences cannot be merged")
        first = self.first_occurrence[chunk_ords]
        counts = self.n_occurrences[chunk_ords]
        return self.occurrences[arrays.ragged_ranges(first, counts)]

    def without(self, chunk_ords: Offsets) -> Segment:
        """Return a segment in which the chunks with these ordinals are marked as removed, too.

        This segment does not change, and shares its other arrays with the returned segment.
        """
        live = self.live.copy()
        live[chunk_ords] = False
        return evolve(self, postings=evolve(self.postings, live=live))
