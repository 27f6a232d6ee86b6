"""The passages of chunks and their vectors: what an encoder makes of texts, kept small and compared exactly.

A chunk is cut into passages, because an encoder reads only so much of a text, and a vector of much says little of each
part: at ends of sentences where there are any, and into as many tokens as the encoder says. One that does not count
tokens has passages of 1,000 characters, fewer in scripts that take more bytes. A chunk is as near to a question as its
nearest passage.

A chunk's title stands in front of each of its passages, in a line of its own, unless it takes more than half of one: a
passage seldom says again what it is about.

Identifiers are encoded with their words apart, ``getUserName`` as "get User Name": most encoders put everything in
lower case and do not know ``getusername``. What has no word of three letters behind a hump, as ``mRNA``, stays whole.

Components are float16, on both sides. Products of two of them are multiples of 2⁻⁴⁸, and sums of those for vectors of
length 1 stay below 2: as float64 they are exact. So a cosine has the same bits wherever its passage stands, alone or
among millions, and whichever way it is added up.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
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
_HUMP: Final = re.compile("(?<=[A-Za-z0-9])(?=[A-Z][a-z]{2})")
_LONGEST: Final = 1.01
"""Greatest length of a vector that is 1 but for rounding."""
_AT_ONCE: Final = 256
"""Passages encoded together: more would only hold more vectors of four bytes at once."""
_NO_TITLES: Final[Mapping[int, str]] = MappingProxyType({})
_STEP: Final = 1 << 12
"""Passages compared together: it bounds the memory, however large the index."""


class TextEncoder(Protocol):
    """What search needs of `relevance_gen.Encoder`."""

    @property
    def fingerprint(self) -> str:
        """A hash of all that a passage's vector depends on."""

    def encode(
        self, texts: Sequence[str], *, kind: Literal["query", "passage"]
    ) -> npt.NDArray[np.float32]:
        """Return the vectors of texts, each of length 1, shape (n, d)."""


@runtime_checkable
class CountsTokens(Protocol):
    """What an encoder may have beside that, so that passages have as many tokens as it reads well."""

    @property
    def passage_tokens(self) -> int:
        """Most tokens of a passage."""

    def count_tokens(self, text: str) -> int:
        """Return how many tokens a text is."""


@frozen(eq=False)
class Passages:
    """The passages of some chunks, chunk after chunk."""

    first: (
        Offsets  # number of each chunk's first passage, and behind the last of all, shape (N + 1,)
    )
    starts: Offsets  # each passage's first character in its chunk's text, shape (P,)
    ends: Offsets  # the character behind its last, shape (P,)
    vectors: Halves  # shape (P, d)

    @classmethod
    def of(
        cls,
        texts: Sequence[str],
        encoder: TextEncoder,
        progress: Progress | None = None,
        *,
        titles: Mapping[int, str] = _NO_TITLES,
    ) -> Passages:
        """Cut texts of chunks into passages and encode these, the same passage once.

        The titles are those of chunks that have one, by place; progress is called now and then with (chunks done, all).
        """
        heads = [_head(titles.get(place, ""), encoder) for place in range(len(texts))]
        cuts = [_cut(text, head, encoder) for text, head in zip(texts, heads, strict=True)]
        first = np.cumsum([0, *map(len, cuts)])
        number: dict[str, int] = {}  # the number of each different passage
        which = [
            number.setdefault(head + text[start:end], len(number))
            for text, head, found in zip(texts, heads, cuts, strict=True)
            for start, end in found
        ]
        unique = list(number)
        newest = (
            np.maximum.accumulate(np.array(which, np.int64)) if which else np.zeros(0, np.int64)
        )
        parts = []
        for low in range(0, len(unique), _AT_ONCE):
            some = unique[low : low + _AT_ONCE]
            parts.append(_encoded(encoder, some, "passage"))
            if progress is not None:
                n_passages = int(np.searchsorted(newest, low + len(some)))
                progress(int(np.searchsorted(first, n_passages, "right")) - 1, len(texts))
        vectors = np.concatenate(parts) if parts else np.zeros((0, 0), np.float16)
        bounds = np.array([cut for found in cuts for cut in found], np.int64).reshape(-1, 2)
        return cls(
            first, bounds[:, 0].copy(), bounds[:, 1].copy(), vectors[np.array(which, np.int64)]
        )

    @classmethod
    def concat(cls, parts: Sequence[Passages]) -> Passages:
        """Return the passages of the chunks of several segments, one behind the other."""
        counts = np.concatenate([np.diff(part.first) for part in parts])
        vectors = [part.vectors for part in parts if part.vectors.size] or [
            part.vectors for part in parts[:1]
        ]
        return cls(
            bounds_of(counts),
            np.concatenate([part.starts for part in parts]),
            np.concatenate([part.ends for part in parts]),
            np.concatenate(vectors),
        )

    def take(self, numbers: Offsets) -> Passages:
        """Return the passages of some chunks, in the order of `numbers`."""
        counts = np.diff(self.first)[numbers]
        taken = ragged_ranges(self.first[numbers], counts)
        return Passages(
            bounds_of(counts), self.starts[taken], self.ends[taken], self.vectors[taken]
        )

    def nearest(self, numbers: Offsets, question: Halves) -> Floats:
        """Return for each of some chunks the passage that is nearest to a question's vector; of equal ones the first.

        Returns:
            Its cosine, at least -1 and, but for rounding, at most 1; its first character in the chunk's text, and the
            one behind its last; shape (3, n).
        """
        counts = np.diff(self.first)[numbers]
        compared = ragged_ranges(self.first[numbers], counts)
        wanted = question.astype(np.float64)
        cosines = np.empty(compared.size)
        for some in batch_slices(compared.size, _STEP):
            cosines[some] = self.vectors[compared[some]].astype(np.float64) @ wanted
        heads = starts_of(counts)
        best = np.maximum.reduceat(cosines, heads) if numbers.size else np.zeros(0)
        first_best = np.flatnonzero(cosines == np.repeat(best, counts))
        first_best = first_best[
            np.searchsorted(first_best, heads)
        ]  # of equal ones the first of each chunk
        nearest = compared[first_best]
        return np.array([best, self.starts[nearest], self.ends[nearest]])


def question_vector(text: str, encoder: TextEncoder) -> Halves:
    """Return the vector of a question, shape (d,)."""
    vector: Halves = _encoded(encoder, [text], "query")[0]
    return vector


def _encoded(
    encoder: TextEncoder, texts: Sequence[str], kind: Literal["query", "passage"]
) -> Halves:
    """Return the vectors of texts, shape (n, d); raise `EncoderError` if the encoder gives something else."""
    vectors = np.asarray(encoder.encode([_read(text) for text in texts], kind=kind))
    if vectors.ndim != 2 or len(vectors) != len(texts) or vectors.dtype.kind != "f":
        got = f"{vectors.dtype} of shape {vectors.shape}"
        n = len(texts)
        raise EncoderError(
            f"the encoder must return floats of shape ({n}, d) for {n} texts, got {got}"
        )
    with np.errstate(over="ignore"):
        lengths = np.linalg.norm(vectors, axis=1)
    if not (lengths <= _LONGEST).all():  # written so that NaN fails, too
        raise EncoderError("the encoder must return vectors of length 1: divide each by its length")
    return vectors.astype(np.float16)


def _read(text: str) -> str:
    """Return a text as an encoder reads it, with the words of identifiers apart."""
    return _HUMP.sub(" ", text)


def _head(title: str, encoder: TextEncoder) -> str:
    """Return what stands in front of each passage of a chunk with a title, or with "" for none."""
    if isinstance(encoder, CountsTokens):
        has_room = not title or 2 * encoder.count_tokens(_read(title)) <= encoder.passage_tokens
    else:
        has_room = 2 * len(title) <= PASSAGE_CHARS
    return f"{title}\n" if title and has_room else ""


def _cut(text: str, head: str, encoder: TextEncoder) -> list[tuple[int, int]]:
    """Return the first character of each passage of a chunk's text and the one behind its last."""
    if isinstance(encoder, CountsTokens):
        found = spans_of_tokens(
            text, encoder.passage_tokens, lambda part: encoder.count_tokens(_read(head + part))
        )
        return list(found) or [(0, len(text))]
    n_bytes = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    if n_bytes <= PASSAGE_CHARS:
        return [(0, len(text))]
    return list(spans(text, max(1, PASSAGE_CHARS * len(text) // n_bytes))) or [(0, len(text))]
