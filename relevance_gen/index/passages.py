"""Divide chunks into passages and encode these as vectors.

Vectors are stored in half precision and compared exactly. An encoder reads only a limited number of
tokens, and the vector of a long text represents each part of it poorly. A chunk is therefore
divided at sentence ends, if possible, into passages of at most the number of tokens that the
encoder states. For an encoder that does not count tokens a passage has at most 1,000 characters,
and fewer in scripts that take more bytes. The similarity of a chunk to a query is that of its most
similar passage.

The title of a chunk is put in a line before each of its passages, unless it takes more than half of
a passage: passages seldom repeat the subject of their document.

Identifiers are split into words, ``getUserName`` into "get User Name": most encoders lower-case all
text and do not know ``getusername``. Identifiers without a word of three letters after a camel-case
boundary, as ``mRNA``, are not split.

Vector components are float16, in passages and in queries. Products of two components are multiples
of 2⁻⁴⁸, and their sums for vectors of length 1 are below 2, so both are exact in float64. A cosine
is therefore bit-identical whether the passage is compared alone or in a matrix of millions, and
regardless of summation order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final, Literal, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import (
    Floats,
    Halves,
    Offsets,
    batch_slices,
    bounds_of,
    ragged_ranges,
    starts_of,
)
from relevance_gen.errors import EncoderError
from relevance_gen.progress import Progress
from relevance_gen.text.chunking import spans, spans_of_tokens

PASSAGE_CHARS: Final = 1000
_CAMEL_CASE_BOUNDARY: Final = re.compile("(?<=[A-Za-z0-9])(?=[A-Z][a-z]{2})")
_MAX_VECTOR_LENGTH: Final = 1.01
"""Maximum Euclidean length of a vector from an encoder: 1, plus a tolerance for rounding errors."""
_ENCODE_BATCH: Final = 256
"""Number of passages that are encoded at once; more would only hold more float32 vectors at
once."""
_COMPARE_BATCH: Final = 1 << 12
"""Number of passages that are compared at once, which bounds the memory for any size of the
index."""


class TextEncoder(Protocol):
    """The interface of `relevance_gen.Encoder` that search needs."""

    @property
    def fingerprint(self) -> str:
        """A hash of everything that determines the vector of a text."""

    def encode(
        self,
        texts: Sequence[str],
        *,
        kind: Literal["query", "passage"],
    ) -> npt.NDArray[np.float32]:
        """Return the vectors of n texts, each of length 1, shape (n, d).

        `kind` is whether the texts are queries or passages, because an encoder may encode them
        differently.
        """


@runtime_checkable
class CountsTokens(Protocol):
    """Optional interface of an encoder that counts tokens and limits the tokens of a passage.

    For an encoder without this interface, passages are limited by characters.
    """

    @property
    def passage_tokens(self) -> int:
        """Maximum number of tokens of a passage, together with the title line before it."""

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of a text."""


@frozen(eq=False)
class Passages:
    """P passages of N chunks, chunk after chunk.

    Attributes:
        first: index of each chunk's first passage, and P as last element, shape (N + 1,).
        starts: offset of each passage's start in the text of its chunk, in characters, shape (P,).
        ends: offset of the first character after each passage, as for `starts`, shape (P,).
        vectors: vector of each passage, float16 of shape (P, d).
    """

    first: Offsets
    starts: Offsets
    ends: Offsets
    vectors: Halves

    @classmethod
    def encode(
        cls,
        texts: Sequence[str],
        encoder: TextEncoder,
        progress: Progress | None = None,
        *,
        titles: Mapping[int, str] | None = None,
    ) -> Passages:
        """Return the passages of chunks with their vectors; each distinct passage is encoded once.

        Args:
            texts: texts of the N chunks.
            encoder: encodes the passages.
            progress: called after each batch with the number of chunks done and N.
            titles: titles of chunks, by index; None if no chunk has a title.
        """
        bounds = []  # start and end of each passage
        counts = []  # number of passages of each chunk
        row_of: dict[str, int] = {}  # row of each distinct passage
        rows = []  # row of each passage
        first_chunks = []  # for each distinct passage, the index of the first chunk that has it
        for index, text in enumerate(texts):
            title_line = _title_line((titles or {}).get(index, ""), encoder)
            passage_spans = _passage_spans(text, title_line, encoder)
            bounds += passage_spans
            counts.append(len(passage_spans))
            for start, end in passage_spans:
                passage = title_line + text[start:end]
                if passage not in row_of:
                    row_of[passage] = len(row_of)
                    first_chunks.append(index)
                rows.append(row_of[passage])
        first_chunks.append(len(texts))
        first = np.cumsum([0, *counts])
        unique_passages = list(row_of)
        batches = []
        for batch_slice in batch_slices(len(unique_passages), _ENCODE_BATCH):
            batch = unique_passages[batch_slice]
            batches.append(_encode(encoder, batch, "passage"))
            if progress is not None:
                # All chunks are done before the first chunk that has the next passage.
                progress(first_chunks[batch_slice.start + len(batch)], len(texts))
        vectors = np.concatenate(batches) if batches else np.zeros((0, 0), np.float16)
        bounds_of_passages = np.array(bounds, np.int64).reshape(-1, 2)
        starts, ends = bounds_of_passages.T.copy()
        return cls(first, starts, ends, vectors[np.array(rows, np.int64)])

    @classmethod
    def concat(cls, parts: Sequence[Passages]) -> Passages:
        """Return the passages of the chunks of several segments, in order."""
        counts = [np.diff(part.first) for part in parts]
        vectors = [part.vectors for part in parts if part.vectors.size]
        if not vectors:
            vectors = [parts[0].vectors]
        return cls(
            bounds_of(np.concatenate(counts)),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.ends for part in parts]),
            np.concatenate(vectors),
        )

    def take(self, chunk_ords: Offsets) -> Passages:
        """Return the passages of the chunks with these ordinals, in the order of `chunk_ords`."""
        counts = np.diff(self.first)[chunk_ords]
        rows = ragged_ranges(self.first[chunk_ords], counts)
        return Passages(
            bounds_of(counts),
            self.starts[rows],
            self.ends[rows],
            self.vectors[rows],
        )

    def nearest(self, chunk_ords: Offsets, query: Halves) -> Floats:
        """Return cosine and bounds of the passage most similar to a query, for each of n chunks.

        If several passages are equally similar, the first is used.

        Args:
            chunk_ords: ordinals of the chunks, shape (n,).
            query: vector of the query, shape (d,).

        Returns:
            Three rows, shape (3, n): the cosine of the passage with the query, in [-1, 1] except
            for rounding; the start of the passage in the text of the chunk, in characters; and its
            end.
        """
        counts = np.diff(self.first)[chunk_ords]
        rows = ragged_ranges(self.first[chunk_ords], counts)
        query_vector = query.astype(np.float64)
        cosines = np.empty(rows.size)
        for batch in batch_slices(rows.size, _COMPARE_BATCH):
            vectors = self.vectors[rows[batch]].astype(np.float64)
            cosines[batch] = vectors @ query_vector
        first = starts_of(counts)
        best = np.maximum.reduceat(cosines, first)
        is_best = cosines == np.repeat(best, counts)
        best_index = np.flatnonzero(is_best)
        # The first best passage of each chunk.
        best_index = best_index[np.searchsorted(best_index, first)]
        best_rows = rows[best_index]
        return np.array([best, self.starts[best_rows], self.ends[best_rows]])


def query_vector(text: str, encoder: TextEncoder) -> Halves:
    """Return the vector of a query, shape (d,)."""
    vector: Halves = _encode(encoder, [text], "query")[0]
    return vector


def _encode(
    encoder: TextEncoder,
    texts: Sequence[str],
    kind: Literal["query", "passage"],
) -> Halves:
    """Return the vectors of n texts in half precision, shape (n, d); identifiers are split first.

    Raises:
        EncoderError: the encoder does not return n vectors of floats of length 1 or less.
    """
    split_texts = [_split_identifiers(text) for text in texts]
    vectors = np.asarray(encoder.encode(split_texts, kind=kind))
    n = len(texts)
    if vectors.ndim != 2 or len(vectors) != n or vectors.dtype.kind != "f":
        got = f"{vectors.dtype} of shape {vectors.shape}"
        raise EncoderError(
            f"the encoder must return floats of shape ({n}, d) for {n} texts, got {got}"
        )
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=1)
    # NaN fails this comparison, too.
    if not (lengths <= _MAX_VECTOR_LENGTH).all():
        raise EncoderError("the encoder must return vectors of length 1: divide each by its length")
    return vectors.astype(np.float16)


def _split_identifiers(text: str) -> str:
    return _CAMEL_CASE_BOUNDARY.sub(" ", text)


def _title_line(title: str, encoder: TextEncoder) -> str:
    """Return the line with a chunk's title to put before each of its passages.

    The line is "" if the chunk lacks a title, or if the title is too long.
    """
    if not title:
        return ""
    if isinstance(encoder, CountsTokens):
        n_tokens = encoder.count_tokens(_split_identifiers(title))
        fits = 2 * n_tokens <= encoder.passage_tokens
    else:
        fits = 2 * len(title) <= PASSAGE_CHARS
    return f"{title}\n" if fits else ""


def _passage_spans(
    text: str,
    title_line: str,
    encoder: TextEncoder,
) -> list[tuple[int, int]]:
    """Return the start and end offset of each passage of a chunk's text; at least one passage.

    For an encoder that counts tokens, the title line and a passage have together at most
    `passage_tokens` tokens. Otherwise a passage has at most `PASSAGE_CHARS` characters, and fewer
    if its characters take several bytes; then the title line does not count.

    Args:
        text: the text.
        title_line: the line before each passage; "" for none.
        encoder: the encoder of the passages.
    """
    full_text = [(0, len(text))]
    if isinstance(encoder, CountsTokens):

        def count(passage: str) -> int:
            return encoder.count_tokens(_split_identifiers(title_line + passage))

        return list(spans_of_tokens(text, encoder.passage_tokens, count)) or full_text
    n_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if n_bytes <= PASSAGE_CHARS:
        return full_text
    max_chars = max(1, PASSAGE_CHARS * len(text) // n_bytes)
    return list(spans(text, max_chars)) or full_text
