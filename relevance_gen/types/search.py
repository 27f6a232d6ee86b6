"""Chunks to search, and the response to a search."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, TypeAlias, overload

from attrs import evolve, field, frozen

from relevance_gen import checks, fields
from relevance_gen.display.responses import SearchResponseDisplay
from relevance_gen.interop import PydanticSerializable, arrow_stream, dataclass_fields
from relevance_gen.types.signatures import with_signature

Metadata: TypeAlias = Mapping[str, Any]
"""Data that the caller attaches to a chunk."""
WeightingName: TypeAlias = Literal["pivoted", "cosine"]
"""Term weighting: ``"pivoted"`` normalization for retrieval, or ``"cosine"``, the textbook
TF-IDF."""
Syntax: TypeAlias = Literal["plain", "operators"]
"""Whether quotes, + and - in a query are text, or operators that require or exclude terms."""


@with_signature
@frozen
class Chunk:
    """A piece of text to search, with data of the caller that is returned unchanged.

    Args:
        text: the content; not blank.
        metadata: free-form JSON object, returned with the result.
        original_index: ignored; accepted so that a returned chunk can be searched again. Results
            have the position in the input.
        title: the title of the chunk's source, such as the document title and the headings above
            the chunk; "" for none. Its words count as words of the chunk, and add to the score a
            second time. It is not part of ``chunk_txt``, of spans, or of token counts.
    """

    text: str = field(converter=checks.to_python_scalar, validator=checks.not_blank)
    metadata: Metadata = field(factory=dict, validator=checks.mapping)
    original_index: int | None = fields.optional(checks.Rule("an integer", checks.is_integer))
    title: str = field(default="", converter=checks.to_python_scalar, validator=checks.string)


@frozen
class Span:
    """A range of a chunk's text.

    Attributes:
        start: position of its first character in ``chunk_txt``, in code points.
        end: position after its last character.
        score: share of the query's weight (the sum of the idf of its words) that the words in the
            span have, in (0, 1].
    """

    start: int
    end: int
    score: float


@frozen
class SearchResult(PydanticSerializable):
    """A chunk that a search returns.

    The chunk shares at least one word or character sequence with the query, or was found by an
    encoder, a reranker or the search option ``neighbors``; or the search option ``fill`` added it.

    Attributes:
        chunk_id: 0, 1, 2 … in the returned order.
        chunk_txt: the chunk's text, unchanged.
        chunk_score: relevance in (0, 1]; 1.0 is the score of a chunk that equals the query; 0 for a
            chunk that ``fill`` added.
        metadata: a copy of the chunk's metadata and of the lists and dicts in it, ``{}`` if the
            chunk has none; other values are the same objects.
        original_index: position of the chunk in the input.
        spans: the spans that answer the query; ``None`` unless requested. The first span is the
            best passage. The following spans are the matching words of the chunk, in ascending
            order and without overlap. Empty if no word of the query is in the chunk.
        title: the chunk's title; if it is "", ``to_dict`` omits it.
        num_collapsed: number of other results that this result represents, if results are collapsed
            by a metadata key; if it is 0, ``to_dict`` omits it.
    """

    chunk_id: int
    chunk_txt: str
    chunk_score: float
    metadata: Metadata
    original_index: int
    spans: tuple[Span, ...] | None = None
    title: str = ""
    num_collapsed: int = 0

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def passage(self) -> Span | None:
        """The best passage; ``None`` if no word of the query is in the chunk.

        Raises:
            AttributeError: spans were not requested.
        """
        spans = self._requested_spans()
        return spans[0] if spans else None

    @property
    def words(self) -> tuple[Span, ...]:
        """The spans of the matching words.

        Raises:
            AttributeError: spans were not requested.
        """
        return self._requested_spans()[1:]

    def _requested_spans(self) -> tuple[Span, ...]:
        if self.spans is None:
            raise AttributeError("this result has no passage and words; search with spans=True")
        return self.spans

    @property
    def is_filled(self) -> bool:
        """Whether the search option ``fill`` added the chunk, which has the score 0."""
        return self.chunk_score == 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as the server writes them.

        ``spans`` is absent unless requested, ``title`` if it is "", and ``num_collapsed`` if it is
        0. If `is_filled`, the key ``filled`` with the value True is added.
        """
        plain: dict[str, Any] = {
            "chunk_id": self.chunk_id,
            "chunk_txt": self.chunk_txt,
            "chunk_score": self.chunk_score,
            "metadata": dict(self.metadata),
            "original_index": self.original_index,
        }
        if self.spans is not None:
            plain["spans"] = [
                {"start": span.start, "end": span.end, "score": span.score} for span in self.spans
            ]
        if self.title:
            plain["title"] = self.title
        if self.num_collapsed:
            plain["num_collapsed"] = self.num_collapsed
        if self.is_filled:
            plain["filled"] = True
        return plain


SearchResult.__dataclass_fields__ = dataclass_fields(SearchResult)


class _LazyTokenCounts:
    """A mixin with two token counts, each of which is computed when it is first read.

    The counts are `num_query_tokens` and `num_context_tokens`; `_counts` holds the functions that
    compute them.
    """

    __slots__ = ("_counts",)
    _counts: dict[str, Callable[[], int]]

    if not TYPE_CHECKING:  # a type checker would otherwise allow reading any attribute

        def __getattr__(self, name: str) -> int:
            if name not in ("num_query_tokens", "num_context_tokens"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            n_tokens = self._counts[name]()
            object.__setattr__(self, name, n_tokens)
            self._counts[name] = n_tokens.__int__  # release the texts
            return n_tokens


@frozen
class SearchMetadata(_LazyTokenCounts):
    """Token counts of a search, in the selected encoding, and facts about how it was done.

    Attributes:
        num_query_tokens: tokens in the query.
        num_context_tokens: total tokens of all supplied chunks, each counted alone.
            `relevance_gen.search` counts query and chunks when these attributes are first read, and
            keeps the texts until then.
        confidence: the response's confidence, if a client requested it from the server; otherwise
            ``None``.
        num_missing_chunks: chunks of a cluster that were not searched, if the caller allowed that;
            if it is 0, ``to_dict`` omits it.
        corrections: query words that occur in no chunk, each with the chunk word that replaced it;
            if there are none, ``to_dict`` omits them.
    """

    num_query_tokens: int
    num_context_tokens: int
    confidence: float | None = field(default=None, repr=False)
    num_missing_chunks: int = field(default=0, repr=False)
    corrections: Mapping[str, str] = field(factory=dict, repr=False, hash=False)

    @classmethod
    def lazy(cls, **counts: Callable[[], int]) -> Self:
        """Return metadata whose token counts are computed when they are first read.

        Args:
            **counts: the functions that compute ``num_query_tokens`` and ``num_context_tokens``.
        """
        metadata = cls(0, 0)
        for name in counts:
            object.__delattr__(metadata, name)
        object.__setattr__(metadata, "_counts", counts)
        return metadata

    def with_corrections(self, corrections: Mapping[str, str]) -> Self:
        """Return the metadata with spelling corrections, without computing lazy token counts."""
        counts = getattr(self, "_counts", None)
        if counts is None:
            return evolve(self, corrections=corrections)
        metadata = self.lazy(**counts)
        object.__setattr__(metadata, "corrections", corrections)
        return metadata

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as the server writes them."""
        plain: dict[str, Any] = {
            "num_query_tokens": self.num_query_tokens,
            "num_context_tokens": self.num_context_tokens,
        }
        if self.num_missing_chunks:
            plain["num_missing_chunks"] = self.num_missing_chunks
        if self.corrections:
            plain["corrections"] = dict(self.corrections)
        if self.confidence is not None:
            plain["confidence"] = self.confidence
        return plain


@frozen(repr=False)
class SearchResponse(SearchResponseDisplay, PydanticSerializable, Sequence[SearchResult]):
    """The response to a search: a sequence of at most ``top_n`` results, and its metadata.

    It prints as a short list, and in a notebook displays as a table with the matching words
    highlighted if ``spans`` were requested; both state the order. ``pandas.DataFrame(response)``,
    ``pyarrow.table(response)`` and other readers of Arrow tables get one row for each result and
    one column for each of its fields.

    Attributes:
        results: the results, in input order or best first, as requested.
        metadata: token counts, corrections, and the number of missing chunks.
        confidence: estimated probability that the chunks hold an answer, in [0, 1]; for the formula
            see `relevance_gen.retrieval.ranking.confidence`.
    """

    results: tuple[SearchResult, ...]
    metadata: SearchMetadata
    confidence: float = 0.0

    @property
    def best(self) -> tuple[SearchResult, ...]:
        """The results, best first, regardless of the order of the response.

        If scores are equal, the earlier chunk precedes.
        """
        ranked = sorted(
            self.results, key=lambda result: (-result.chunk_score, result.original_index)
        )
        return tuple(ranked)

    def by_score(self) -> SearchResponse:
        """Return this response with its results best first, as with ``true_order=False``."""
        results = tuple(evolve(result, chunk_id=rank) for rank, result in enumerate(self.best))
        return evolve(self, results=results)

    def to_dict(self) -> dict[str, Any]:
        """Return the response as plain dicts and lists, with the content of the server's JSON.

        Values in metadata are not copied.
        """
        return {
            "results": [result.to_dict() for result in self.results],
            "metadata": self.metadata.to_dict(),
        }

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return arrow_stream(self.results, SearchResult, requested_schema)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[SearchResult]:
        return iter(self.results)

    @overload
    def __getitem__(self, index: int) -> SearchResult: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[SearchResult, ...]: ...
    def __getitem__(self, index: int | slice) -> SearchResult | tuple[SearchResult, ...]:
        return self.results[index]
