"""The vocabulary of the whole project: frozen classes whose attributes are the documented wire's fields.

Every class checks its fields when it is made, whoever makes it. What only the model or the settings can tell, such as
whether a prompt fits, is checked where the request is used. The file is long because it says every field in words.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Literal,
    Self,
    TypeAlias,
    TypeVar,
    get_args,
    overload,
)

from attrs import NOTHING, Attribute, Factory, asdict, evolve, field, fields, fields_dict, frozen
from attrs.validators import optional

from relevance_gen import checks, display
from relevance_gen.errors import InvalidRequestError, pluralize, to_install

Metadata: TypeAlias = Mapping[str, Any]
"""What a chunk carries along for its owner."""
WeightingName: TypeAlias = Literal["pivoted", "cosine"]
"""How words are weighed, to answer questions or as the textbook's TF-IDF."""
Syntax: TypeAlias = Literal["plain", "signs"]
"""Whether quotes and signs of a question are text, or say what must stand in a chunk and what must not."""
FinishReason: TypeAlias = Literal["eos", "stop", "length", "tool_calls"]
"""Why a sample ended. An end token was drawn, a stop string completed, there is room for no more tokens, or a turn of a
conversation ended with calls of tools."""
PartKind: TypeAlias = Literal["text", "reasoning", "tool_call"]

MAX_SAMPLES = 256
"""Most completions of one request: the number of sequences one llama.cpp context can hold."""
MAX_TOP_LOGPROBS = 20
MAX_BIASED_TOKENS = 4096

T = TypeVar("T")


def _shows_fields(cls: type[T]) -> type[T]:
    """Show in a signature what attrs hides: types of fields that are converted, and defaults that are made anew."""
    parameters = []
    for one in fields(cls):  # type: ignore[arg-type]
        default = one.default.factory() if isinstance(one.default, Factory) else one.default  # type: ignore[arg-type]
        default = inspect.Parameter.empty if default is NOTHING else default
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        parameters.append(inspect.Parameter(one.name, kind, default=default, annotation=one.type))
    cls.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return cls


_is_object = checks.must_be("an object", lambda v: isinstance(v, Mapping))
_is_list = checks.must_be(
    "a list", lambda v: isinstance(v, Sequence) and not isinstance(v, (str, bytes))
)


# ── Search ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@_shows_fields
@frozen
class Chunk:
    """A piece of text to search, with data of the caller's that comes back unchanged.

    Args:
        text: the content; not blank.
        metadata: free-form JSON object, returned with the result.
        original_index: may be given, so that what was listed or found can be searched again; results carry the real
            position in its place.
        title: what the text is from, such as its document's title and the headings above it; "" for none. Its words
            count as the chunk's, and once more together; it is no part of ``chunk_txt``, of spans, or of token counts.
    """

    text: str = field(converter=checks.plain, validator=checks.not_blank)
    metadata: Metadata = field(factory=dict, validator=_is_object)
    original_index: int | None = field(
        default=None, validator=optional(checks.must_be("an integer", checks.is_integer))
    )
    title: str = field(default="", converter=checks.plain, validator=checks.string)


@_shows_fields
@frozen
class SearchRequest:
    """The body of ``POST /search``.

    Args:
        query: the question; not blank.
        chunk_txts: strings, mappings or `Chunk` objects, mixed as the caller likes; checked when they are searched.
        top_n: most results to return, at least 1.
        true_order: results in input order (true) or best first (false).
        where: rank only chunks whose metadata has, under each of these keys, the value or one of a list of values.
        spans: say where in each result the answer stands.
        confidence: say how likely it is that there is an answer at all.
        min_share: return only results of at least this share of the best score, in [0, 1].
        distinct: return at most one result, the best, for each value that chunks have under this key of metadata.
        syntax: ``"plain"`` takes quotes and signs of the query for text; ``"signs"`` asks that ``"exact phrase"`` and
            ``+word`` stand there and ``-word`` does not.
        corrections: whether a word of seven letters or more that no chunk has is taken for the chunks' most frequent
            word one letter away.
        reranked: how many of the best the server's reranker reads, to put them in its own order, such as 20; null for
            as many as it may.
        keep: keep an index of the chunks, and tell its name in the header ``X-Index``: what asks the same chunks again
            names that index instead of bringing them.
    """

    query: str = field(converter=checks.plain, validator=checks.not_blank)
    chunk_txts: Sequence[str | Metadata | Chunk] = field(validator=_is_list)
    top_n: int = field(default=10, converter=checks.plain, validator=checks.integer(1))
    true_order: bool = field(default=True, validator=checks.flag)
    where: Metadata | None = field(default=None, validator=optional(_is_object))
    spans: bool = field(default=False, validator=checks.flag)
    confidence: bool = field(default=False, validator=checks.flag)
    min_share: float = field(default=0.0, converter=checks.as_float, validator=checks.number(0, 1))
    distinct: str | None = field(default=None, validator=optional(checks.string))
    syntax: Syntax = field(default="plain", validator=checks.one_of(*get_args(Syntax)))
    corrections: bool = field(default=True, validator=checks.flag)
    reranked: int | None = field(default=0, converter=checks.plain, validator=checks.optional_count)
    keep: bool = field(default=False, validator=checks.flag)


@frozen
class Span:
    """A part of a chunk's text.

    Attributes:
        start: position of its first character in ``chunk_txt``, in code points.
        end: the position behind its last.
        score: share of the query's weight (the sum of its words' idf) that the words in it have, in (0, 1].
    """

    start: int
    end: int
    score: float


class PydanticSerializable:
    """Let pydantic, and so FastAPI, write an instance as its ``to_dict`` does where its class is a field's type."""

    __slots__ = ()

    @classmethod
    def __get_pydantic_core_schema__(cls, *_: object) -> dict[str, Any]:
        """Return a schema of pydantic-core's, which is a plain dict: pydantic itself need not be there."""
        written = {
            "type": "function-plain",
            "function": lambda one: one.to_dict(),
            "return_schema": {"type": "any"},
        }
        return {"type": "is-instance", "cls": cls, "serialization": written}


@frozen
class SearchResult(PydanticSerializable):
    """One chunk that shares something with the query.

    Attributes:
        chunk_id: 0, 1, 2 … in the returned order.
        chunk_txt: the chunk's text as given.
        chunk_score: relevance in (0, 1]; 1.0 = as good as a chunk that says exactly what the query says.
        metadata: the chunk's metadata, the same object; ``{}`` when none was given.
        original_index: position of the chunk in the input.
        spans: where the answer stands; ``None`` unless asked for. The first span is the best passage. The others are
            the words that were found, in all of the chunk, ascending and apart.
        title: the chunk's title; "" where it has none, and then it is not written.
        num_similar: how many others this result stands for, where one was asked for of each value of a key; where that
            is 0 it is not written.
    """

    chunk_id: int
    chunk_txt: str
    chunk_score: float
    metadata: Metadata
    original_index: int
    spans: tuple[Span, ...] | None = None
    title: str = ""
    num_similar: int = 0

    __dataclass_fields__: ClassVar[dict[str, dataclasses.Field[Any]]]

    @property
    def passage(self) -> Span | None:
        """The best passage; ``None`` unless spans were asked for."""
        return self.spans[0] if self.spans else None

    @property
    def words(self) -> tuple[Span, ...]:
        """The words that were found; none unless spans were asked for."""
        return self.spans[1:] if self.spans else ()

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as the server writes them."""
        plain = {name: getattr(self, name) for name in _RESULT_FIELDS}
        plain["metadata"] = dict(self.metadata)
        if self.spans is not None:
            plain["spans"] = [
                {"start": span.start, "end": span.end, "score": span.score} for span in self.spans
            ]
        return plain | {name: value for name in _IF_ANY if (value := getattr(self, name))}


_IF_ANY = ("title", "num_similar")
_RESULT_FIELDS = tuple(
    name for name in fields_dict(SearchResult) if name not in ("spans", *_IF_ANY)
)
# pandas makes a column of each field of a dataclass, and knows nothing of attrs.
SearchResult.__dataclass_fields__ = dataclasses.make_dataclass(  # type: ignore[attr-defined]
    "SearchResult", list(fields_dict(SearchResult))
).__dataclass_fields__


_ARROW_TYPES = {
    "chunk_id": "int64", "chunk_txt": "string", "chunk_score": "float64", "original_index": "int64", "title": "string",
    "num_similar": "int64",
}  # fmt: skip
"""Arrow's types of columns; those of the others are what their values have in common."""


class _LazyTokenCounts:
    """Leave token counts of a class unset, and count when one is first read, by whomever."""

    __slots__ = ("_counts",)
    _counts: dict[str, Callable[[], int]]

    if not TYPE_CHECKING:  # which would take it for a leave to read any attribute

        def __getattr__(self, name: str) -> int:
            if name not in ("num_query_tokens", "num_context_tokens"):
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            n_tokens = self._counts[name]()
            object.__setattr__(self, name, n_tokens)
            self._counts[name] = n_tokens.__int__  # lets go of the texts
            return n_tokens


@frozen
class SearchMetadata(_LazyTokenCounts):
    """Token counts of a search, by the encoding in force.

    Attributes:
        num_query_tokens: tokens in the query.
        num_context_tokens: tokens in all supplied chunks together, each counted alone. `relevance_gen.search` leaves
            counting both to whoever reads them first, and until then the texts are kept.
        confidence: that of the response, where a client asked the server for it; else ``None``.
        num_missing_chunks: chunks of a cluster that were not searched, where the caller allowed that; else 0, and then
            it is not written.
        corrections: words of the query that no chunk has, and the chunks' word that each was taken for; written if any.
    """

    num_query_tokens: int
    num_context_tokens: int
    confidence: float | None = field(default=None, repr=False)
    num_missing_chunks: int = field(default=0, repr=False)
    corrections: Mapping[str, str] = field(factory=dict, repr=False, hash=False)

    @classmethod
    def counted_later(cls, **counts: Callable[[], int]) -> Self:
        """Return the counts of a search that functions tell when they are asked for: those of query and context."""
        metadata = cls(0, 0)
        for name in counts:
            object.__delattr__(metadata, name)
        object.__setattr__(metadata, "_counts", counts)
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
        return plain if self.confidence is None else plain | {"confidence": self.confidence}


@frozen(repr=False)
class SearchResponse(PydanticSerializable, Sequence[SearchResult]):
    """What a search found: a sequence of at most ``top_n`` results, and what is known of them together.

    It prints as a short list, and in a notebook shows as a table with the words found marked if ``spans`` were asked
    for; both say in which order. ``pandas.DataFrame(response)`` and ``pyarrow.table(response)``, and so whatever reads
    Arrow's tables, have a row for each result and a column for each of its fields.

    Attributes:
        results: the results, in the order of the chunks or best first, as was asked.
        metadata: token counts.
        confidence: how likely it is that the chunks hold an answer at all, in [0, 1]; the formula stands in
            `relevance_gen.retrieval.ranking.confidence`.
    """

    results: tuple[SearchResult, ...]
    metadata: SearchMetadata
    confidence: float = 0.0

    @property
    def best(self) -> tuple[SearchResult, ...]:
        """The results, best first, whatever their order; of equal scores the earlier chunk is the better."""
        return tuple(
            sorted(self.results, key=lambda result: (-result.chunk_score, result.original_index))
        )

    def by_score(self) -> SearchResponse:
        """Return this response with its results best first, as ``true_order=False`` gives them."""
        results = tuple(evolve(result, chunk_id=place) for place, result in enumerate(self.best))
        return evolve(self, results=results)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts and lists, as the server answers; what metadata holds is not copied."""
        return {
            "results": [result.to_dict() for result in self.results],
            "metadata": self.metadata.to_dict(),
        }

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Return the results as a stream of Arrow's; metadata that no column can hold as JSON, and none at all as null.

        Raises:
            ImportError: pyarrow is not installed.
        """
        try:
            import pyarrow
        except ImportError:
            raise ImportError(f"tables need pyarrow: {to_install('data')}") from None
        columns = {
            name: [getattr(one, name) for one in self.results] for name in fields_dict(SearchResult)
        }
        columns["spans"] = [spans and list(map(asdict, spans)) for spans in columns["spans"]]
        has_any = any(columns["metadata"])  # Parquet has no struct without a field
        columns["metadata"] = [dict(one) if has_any else None for one in columns["metadata"]]
        try:
            pyarrow.array(columns["metadata"])
        except (pyarrow.ArrowException, OverflowError, TypeError, ValueError):
            columns["metadata"] = [json.dumps(one, default=str) for one in columns["metadata"]]
        table = pyarrow.table(
            {name: pyarrow.array(one, _ARROW_TYPES.get(name)) for name, one in columns.items()}
        )
        return table.__arrow_c_stream__(requested_schema)

    def __len__(self) -> int:
        return len(self.results)

    def __iter__(self) -> Iterator[SearchResult]:
        return iter(self.results)

    @overload
    def __getitem__(self, place: int) -> SearchResult: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[SearchResult, ...]: ...
    def __getitem__(self, place: int | slice) -> SearchResult | tuple[SearchResult, ...]:
        return self.results[place]

    def __repr__(self) -> str:
        return display.as_text(f"<SearchResponse: {self._summary}>", self.results, row_of)

    def _repr_html_(self) -> str:
        return display.as_html(self._summary, RESULT_COLUMNS, self.results, row_of)

    @property
    def _summary(self) -> str:
        order = "best first" if self.results == self.best else "in the chunks' order"
        shown = f"{pluralize(len(self), 'result')}{f', {order}' * (len(self) > 1)}"
        return f"{shown}, confidence {self.confidence:.2f}"


RESULT_COLUMNS = ("score", "position", "metadata", "text")


def row_of(result: SearchResult, number: str = "") -> display.Row:
    """Return what is shown of a result, behind the `number` that it may have."""
    score, position = f"{number}{result.chunk_score:.3f}", str(result.original_index)
    metadata, passage = display.in_few_words(result.metadata), result.passage
    return display.Row(
        label=f"{score}  [{position}]  {f'({metadata})  ' * bool(metadata)}",
        cells=(score, position, metadata),
        text=result.chunk_txt,
        focus=None if passage is None else (passage.start, passage.end),
        marks=[(word.start, word.end) for word in result.words],
    )


@_shows_fields
@frozen
class ExplanationRequest:
    """The body of ``POST /explain``.

    Args:
        query: the question; not blank.
        original_index: position of the chunk to explain, at least 0.
        chunk_txts, syntax, corrections, reranked, keep: as in `SearchRequest`.
    """

    query: str = field(converter=checks.plain, validator=checks.not_blank)
    chunk_txts: Sequence[str | Metadata | Chunk] = field(validator=_is_list)
    original_index: int = field(converter=checks.plain, validator=checks.integer(0))
    syntax: Syntax = field(default="plain", validator=checks.one_of(*get_args(Syntax)))
    corrections: bool = field(default=True, validator=checks.flag)
    reranked: int | None = field(default=0, converter=checks.plain, validator=checks.optional_count)
    keep: bool = field(default=False, validator=checks.flag)


@frozen
class TermContribution:
    """What one term of the query gave to a chunk's score.

    Attributes:
        term: the query's word, folded.
        matches: the chunks' words that it stands for, folded; those of any chunk.
        tf: how often the chunk has it, inexact matches counting less than 1.
        df: number of chunks that have it.
        idf: its inverse document frequency; less for a function word, and 0 for one that is left out.
        share: what it gave to the score.
    """

    term: str
    matches: tuple[str, ...]
    tf: float
    df: int
    idf: float
    share: float


@frozen
class Passage:
    """The part of a chunk that is nearest in meaning to the query.

    Attributes:
        start: position of its first character in the chunk's text, in code points.
        end: the position behind its last.
        cosine: that of its vector and the query's, at most 1.
    """

    start: int
    end: int
    cosine: float


@frozen(repr=False)
class Explanation:
    """Where a chunk's score comes from: all shares add up to it. It prints as a line for each that gave anything.

    Attributes:
        score: the chunk's score, as search returns it.
        terms: the share of each term of the query, in the query's order.
        pairs: what words side by side as in the query gave.
        coverage: what a passage with many of the query's words gave.
        head: what the query's words at the chunk's beginning gave.
        run: what words in a row as in the query gave.
        title: what the query's words in the chunk's title gave, where any chunk has a title.
        letters: what letters in a row as in the query's words gave, where chunks or query are not in English.
        likeness: what being like the best chunks gave; a chunk is like itself, too.
        meaning: what the encoder gave; 0 without one, and where it did not look at the chunk.
        chunks: what the other chunks of its file gave; this and what follows in a `FolderIndex` only.
        name: what the file's name gave.
        definitions: what names gave that the file defines.
        exact: what these gave where the query holds one of them as an identifier.
        reranking: what the reranker gave or, where it is below 0, took; of a chunk that it did not read, what that
            stands lower for standing behind those that it read.
        passage: the passage that is nearest in meaning, of a chunk that the encoder looked at.
        relevance: how relevant the reranker found a chunk that it read.
        left_out: the quotes and signs of the question that keep the chunk out of the results, as they were written.
        corrections: as in `SearchMetadata`; the terms are those of the query as it was corrected.
    """

    score: float
    terms: tuple[TermContribution, ...]
    pairs: float = 0.0
    coverage: float = 0.0
    head: float = 0.0
    run: float = 0.0
    title: float = 0.0
    letters: float = 0.0
    likeness: float = 0.0
    meaning: float = 0.0
    chunks: float = 0.0
    name: float = 0.0
    definitions: float = 0.0
    exact: float = 0.0
    reranking: float = 0.0
    passage: Passage | None = None
    relevance: float | None = None
    left_out: tuple[str, ...] = ()
    corrections: Mapping[str, str] = field(factory=dict, hash=False)

    def __repr__(self) -> str:
        shown = [f"  left out by {display.one_line(sign)}" for sign in self.left_out]
        shown += [
            f"  {display.one_line(word)!r} taken for {taken!r}"
            for word, taken in self.corrections.items()
        ]
        shown += [
            f"  {one.share:.3f}  {display.one_line(one.term)!r}, {one.tf:g} here, in {pluralize(one.df, 'chunk')}"
            for one in self.terms
            if one.share
        ]
        shown += [f"  {share:.3f}  {part}" for part in _PARTS if (share := getattr(self, part))]
        return "\n".join([f"<Explanation: score {self.score:.3f}>", *shown])


_PARTS = tuple(name for name, one in fields_dict(Explanation).items() if one.default == 0.0)


# ── Compression ──────────────────────────────────────────────────────────────────────────────────────────────────────


@_shows_fields
@frozen
class CompressionRequest:
    """The body of ``POST /compress``.

    Args:
        question: what the sentences are kept for; not blank.
        chunk_txts: as in `SearchRequest`.
        max_tokens: most tokens of the text that is kept, at least 1.
    """

    question: str = field(converter=checks.plain, validator=checks.not_blank)
    chunk_txts: Sequence[str | Metadata | Chunk] = field(validator=_is_list)
    max_tokens: int = field(converter=checks.plain, validator=checks.integer(1))


@frozen
class SelectedSentence:
    """A sentence of a chunk.

    Attributes:
        original_index: position of the chunk in the input.
        start: position of its first character in the chunk's text, in code points.
        end: the position behind its last.
        text: its text, as it stands there.
        num_omitted_before: sentences left out between the one that was kept before it, or the first of all, and this one.
    """

    original_index: int
    start: int
    end: int
    text: str
    num_omitted_before: int


@frozen(repr=False)
class CompressionResponse(Sequence[SelectedSentence]):
    """What was kept of some chunks: a sequence of sentences, in order. It prints as a short list.

    Attributes:
        sentences: the sentences.
        text: all of them, as they stand in the chunks where one follows the other, with ``…`` where others were left
            out between two of a chunk, and a blank line between chunks.
        num_tokens: tokens in the text, at most as many as were asked for.
        num_context_tokens: tokens in all supplied chunks together, each counted alone.
    """

    sentences: tuple[SelectedSentence, ...]
    text: str
    num_tokens: int
    num_context_tokens: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts and lists, as the server answers."""
        return asdict(self) | {"sentences": [asdict(one) for one in self.sentences]}

    def __len__(self) -> int:
        return len(self.sentences)

    @overload
    def __getitem__(self, place: int) -> SelectedSentence: ...
    @overload
    def __getitem__(self, place: slice) -> tuple[SelectedSentence, ...]: ...
    def __getitem__(self, place: int | slice) -> SelectedSentence | tuple[SelectedSentence, ...]:
        return self.sentences[place]

    def __repr__(self) -> str:
        head = f"{pluralize(len(self), 'sentence')}, {self.num_tokens:,} of {pluralize(self.num_context_tokens, 'token')}"
        return display.as_text(f"<CompressionResponse: {head}>", self.sentences, _row_of_sentence)


def _row_of_sentence(one: SelectedSentence) -> display.Row:
    return display.Row(
        label=f"[{one.original_index}]  {'… ' * bool(one.num_omitted_before)}",
        cells=(),
        text=one.text,
    )


# ── Citations ────────────────────────────────────────────────────────────────────────────────────────────────────────


@_shows_fields
@frozen
class CitationRequest:
    """The body of ``POST /cite``.

    Args:
        text: what is to be supported, such as an answer.
        chunk_txts: what may support it, as in `SearchRequest`.
    """

    text: str = field(converter=checks.plain, validator=checks.string)
    chunk_txts: Sequence[str | Metadata | Chunk] = field(validator=_is_list)


@frozen
class CitedSpan(Span):
    """A sentence of a source that supports one of an answer; its score is the share of that one's words' weight.

    Attributes:
        source: which source, from 0; the places are those of its chunk.
    """

    source: int


@frozen
class CitedSentence:
    """A sentence of an answer, with what supports it.

    Attributes:
        start: position of its first character in the answer, in code points.
        end: the position behind its last.
        spans: the places that support it, the one of the greatest share first, then what adds most; none where the
            sources do not.
    """

    start: int
    end: int
    spans: tuple[CitedSpan, ...]

    @property
    def citation_marker(self) -> str:
        """What stands behind the sentence: the numbers of its sources, from 1, or that there are none."""
        numbers = dict.fromkeys(place.source + 1 for place in self.spans)
        return "".join(f"[{number}]" for number in numbers) or "[not found in the sources]"


# ── Documents ────────────────────────────────────────────────────────────────────────────────────────────────────────


@_shows_fields
@frozen
class ExtractionRequest:
    """The body of ``POST /extract``.

    Args:
        content: the bytes of a file, as base64.
        name: the name of the file; HTML is known by how it ends, where it is not by its beginning.
    """

    content: str = field(converter=checks.plain, validator=checks.string)
    name: str = field(default="", converter=checks.plain, validator=checks.string)


@frozen
class DocumentPart:
    """A part of a document.

    Attributes:
        place: ``{"page": 3}``, ``{"slide": 3}``, ``{"sheet": "Prices"}``, ``{"chapter": 3}``, or ``{}`` for the whole.
        text: what stands there.
    """

    place: Metadata
    text: str


@frozen
class ExtractionResponse:
    """The text of a document.

    Attributes:
        parts: its texts, in order.
        warning: why that is not all, to stand behind the file's name; ``None`` if it is all.
    """

    parts: tuple[DocumentPart, ...]
    warning: str | None = None


# ── Asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────


MIN_CONFIDENCE = 0.6
"""Below this confidence there is no answer, if a caller does not say otherwise; `bench.answerable` measures it."""


@_shows_fields
@frozen
class PromptRequest:
    """The body of ``POST /prompt``.

    Args:
        question: what to answer; not blank.
        top_n: most sources, at least 1.
        copy: whether answers are to be sentences of the sources, word for word; null is what the model's file says.
        min_confidence: below this confidence of the search there is no answer, in [0, 1].
        chunk_txts, syntax, corrections, reranked, keep: as in `SearchRequest`.
    """

    question: str = field(converter=checks.plain, validator=checks.not_blank)
    chunk_txts: Sequence[str | Metadata | Chunk] = field(validator=_is_list)
    top_n: int = field(default=5, converter=checks.plain, validator=checks.integer(1))
    copy: bool | None = field(default=None, validator=optional(checks.flag))
    min_confidence: float = field(
        default=MIN_CONFIDENCE, converter=checks.as_float, validator=checks.number(0, 1)
    )
    syntax: Syntax = field(default="plain", validator=checks.one_of(*get_args(Syntax)))
    corrections: bool = field(default=True, validator=checks.flag)
    reranked: int | None = field(default=0, converter=checks.plain, validator=checks.optional_count)
    keep: bool = field(default=False, validator=checks.flag)


@frozen
class PromptSource:
    """A part of a chunk that a prompt shows.

    Attributes:
        original_index: position of the chunk in the input.
        start: where the part begins in the chunk, in code points.
        end: the position behind its last character.
    """

    original_index: int
    start: int
    end: int


@frozen
class PromptResponse:
    """What to ask the model that the server has.

    Attributes:
        sources: what the prompt shows, best first; a chat model is shown them as [1], [2] and so on.
        path: where to post ``request`` as it stands: ``"/generate"``, or ``"/v1/chat/completions"`` for a chat model.
        request: the body of that request.
        found: whether the passages are likely enough to hold an answer; if not, what the model makes of them is none.
    """

    sources: tuple[PromptSource, ...]
    path: str
    request: Mapping[str, Any]
    found: bool


# ── Generation ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _alone(request: GenerationRequest, attribute: Attribute[Any], value: Any) -> None:
    """Refuse a second field that says what the samples must be."""
    for other in itertools.takewhile(attribute.name.__ne__, ("json_schema", "regex", "grammar")):
        if value is not None and getattr(request, other) is not None:
            raise InvalidRequestError(f"must not be given beside {other}", attribute.name)


_are_tokens = checks.items(
    # Larger integers could be chosen so that all collide as hashes.
    f"an integer in [0, {checks.MAX_TOKEN_IDS - 1}]",
    lambda v: checks.is_integer(v) and 0 <= v < checks.MAX_TOKEN_IDS,
)


def _some_texts(_: Any, attribute: Attribute[Any], value: Any) -> None:
    if not (
        isinstance(value, tuple) and value and all(isinstance(text, str) and text for text in value)
    ):
        raise InvalidRequestError.must_be(
            attribute.name, "a list of at least one string, none of them empty", value
        )


def _at_most_max_tokens(request: GenerationRequest, attribute: Attribute[int], value: int) -> None:
    if value > request.max_tokens:
        raise InvalidRequestError.must_be(
            attribute.name, f"at most max_tokens ({request.max_tokens})", value
        )


@_shows_fields
@frozen
class GenerationRequest:
    """The body of ``POST /generate``.

    The bias applies first, then penalties, temperature, top_k, top_p and min_p, then the draw.

    Args:
        text: the prompt; may be empty where the model has a BOS token to start from.
        max_tokens: most tokens generated for each sample, at least 1.
        min_tokens: a sample's first tokens, so many, hold no end token and complete no stop string; at most max_tokens.
        eos_token_ids: generation stops when one is produced; the model's own end token alone does not stop it.
        max_input_tokens: keep only this many tokens of the end of the prompt; 0 = no limit.
        num_samples: independent completions, in [1, MAX_SAMPLES].
        stop: a non-empty string, or several; generation stops when one is produced, and it is not in the output.
        temperature: 0 = greedy; higher is more varied.
        top_k: keep the k most likely tokens; 0 = off.
        top_p: keep the smallest set of tokens whose probability reaches this, in [0, 1].
        min_p: keep tokens at least this fraction as likely as the likeliest, in [0, 1].
        presence_penalty: subtracted once from the logit of every token already generated, in [-2, 2].
        frequency_penalty: subtracted for every time the token was already generated, in [-2, 2].
        repetition_penalty: divides the logit of every token already generated if it is positive, and multiplies it
            otherwise; above 0, and 1 = off.
        logit_bias: token id to what is added to its logit, in [-100, 100]; at most MAX_BIASED_TOKENS of them.
        allowed_token_ids: no other tokens are drawn, nor end tokens that are not among these; none = all are.
        json_schema: each sample is JSON that fits this schema, which may be written as a text, or be a class of
            pydantic's. Of this and the next three one at most can be given; all but ``choice`` need the extra
            ``constrained``.
        regex: each sample is text that this regular expression matches as a whole.
        grammar: each sample is text of this context-free grammar, in llguidance's dialect of Lark or in GBNF.
        choice: each sample is one of these texts, whatever tokens it takes to write it; at least one, and none empty.
        logprobs: return each token's natural log probability under the model's own distribution.
        top_logprobs: return with each token so many of the likeliest in its place, in [0, MAX_TOP_LOGPROBS].
        prompt_logprobs: return the log probability of each of the prompt's tokens.
        return_tokens: return the generated token ids.
        seed: makes the request repeatable; without it every request and every sample differs.
    """

    text: str = field(converter=checks.plain, validator=checks.string)
    max_tokens: int = field(default=512, converter=checks.plain, validator=checks.integer(1))
    min_tokens: int = field(
        default=0, converter=checks.plain, validator=[checks.integer(0), _at_most_max_tokens]
    )
    eos_token_ids: tuple[int, ...] = field(
        default=(), converter=checks.as_tuple, validator=_are_tokens
    )
    max_input_tokens: int = field(default=0, converter=checks.plain, validator=checks.integer(0))
    num_samples: int = field(
        default=1, converter=checks.plain, validator=checks.integer(1, MAX_SAMPLES)
    )
    stop: tuple[str, ...] = field(
        default=(),
        converter=checks.as_texts,
        validator=checks.items("a non-empty string", lambda v: isinstance(v, str) and v != ""),
    )
    temperature: float = field(default=1.0, converter=checks.as_float, validator=checks.number(0))
    top_k: int = field(default=50, converter=checks.plain, validator=checks.integer(0))
    top_p: float = field(default=1.0, converter=checks.as_float, validator=checks.number(0, 1))
    min_p: float = field(default=0.0, converter=checks.as_float, validator=checks.number(0, 1))
    presence_penalty: float = field(
        default=0.0, converter=checks.as_float, validator=checks.number(-2, 2)
    )
    frequency_penalty: float = field(
        default=0.0, converter=checks.as_float, validator=checks.number(-2, 2)
    )
    repetition_penalty: float = field(
        default=1.0, converter=checks.as_float, validator=checks.above(0)
    )
    logit_bias: Mapping[int, float] = field(
        factory=dict,
        converter=checks.as_token_numbers,
        validator=checks.token_numbers(-100, 100, MAX_BIASED_TOKENS),
    )
    allowed_token_ids: tuple[int, ...] = field(
        default=(), converter=checks.as_tuple, validator=_are_tokens
    )
    json_schema: Mapping[str, Any] | None = field(
        default=None, converter=checks.as_schema, validator=optional(_is_object)
    )
    regex: str | None = field(
        default=None, converter=checks.plain, validator=[optional(checks.string), _alone]
    )
    grammar: str | None = field(
        default=None, converter=checks.plain, validator=[optional(checks.string), _alone]
    )
    choice: tuple[str, ...] | None = field(
        default=None, converter=checks.as_tuple, validator=[optional(_some_texts), _alone]
    )
    logprobs: bool = field(default=False, validator=checks.flag)
    top_logprobs: int = field(
        default=0, converter=checks.plain, validator=checks.integer(0, MAX_TOP_LOGPROBS)
    )
    prompt_logprobs: bool = field(default=False, validator=checks.flag)
    return_tokens: bool = field(default=False, validator=checks.flag)
    seed: int | None = field(
        default=None, converter=checks.plain, validator=optional(checks.integer(0))
    )


@frozen
class TokenLogprob:
    """A token that might have stood in a place, and how likely the model found that.

    Attributes:
        token: its id.
        logprob: its natural log probability under the model's own distribution.
    """

    token: int
    logprob: float


@frozen
class ContentPart:
    """A part of a turn of the model's, or what a stream adds to one: then its text goes behind that of its place.

    Attributes:
        kind: what it is.
        text: what is said or thought; of a call its arguments, as JSON, which a turn that is cut off leaves incomplete.
        place: which part of the turn it is, from 0.
        name: of a call the tool's.
        id: of a call what its result refers to; else empty.
    """

    kind: PartKind
    text: str
    place: int = 0
    name: str = ""
    id: str = ""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields that a part of its kind has."""
        if self.kind != "tool_call":
            return {"kind": self.kind, "text": self.text}
        return {"kind": self.kind, "id": self.id, "name": self.name, "arguments": self.text}


@frozen
class Completion:
    """One generated sample.

    Attributes:
        text: the generated text, without end token and stop string; of a turn in a conversation what is said in it.
        generated_tokens: tokens generated, the end token included.
        finished: Unix time in seconds when this sample was complete.
        finish_reason: ``"eos"``, ``"stop"`` or ``"length"``, of a turn also ``"tool_calls"``; where the request has a
            schema, a regular expression, a grammar or a choice, only ``"eos"`` says that the text is complete.
        tokens: the generated token ids, ``generated_tokens`` of them; ``None`` unless ``return_tokens``.
        logprobs: their natural log probabilities, one each; ``None`` unless ``logprobs``.
        top_logprobs: for each of them the likeliest tokens in its place, the likeliest first; whether it is among them
            depends on the draw; ``None`` unless ``top_logprobs``.
        parts: of a turn in a conversation what it says, thinks and calls, in order; ``None`` of any other sample.
        stopped_by: the stop string that ended it; empty where none did. Not on the documented wire.
        reasoning_tokens: of the generated tokens those of a turn's thoughts, with the mark that ends them; ``None`` of
            any other sample.
    """

    text: str
    generated_tokens: int
    finished: float
    finish_reason: FinishReason
    tokens: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[TokenLogprob, ...], ...] | None = None
    parts: tuple[ContentPart, ...] | None = None
    stopped_by: str = ""
    reasoning_tokens: int | None = None

    @property
    def reasoning(self) -> str:
        """What the model thought before and between what it says; empty where it did not, and outside conversations."""
        return "".join(part.text for part in self.parts or () if part.kind == "reasoning")

    @property
    def tool_calls(self) -> tuple[ContentPart, ...]:
        """The calls of tools."""
        return tuple(part for part in self.parts or () if part.kind == "tool_call")

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as the server writes them: those that were not asked for are absent."""
        plain = _given(self)
        plain.pop("stopped_by")
        if self.top_logprobs is not None:
            plain["top_logprobs"] = [
                [{"token": one.token, "logprob": one.logprob} for one in likeliest]
                for likeliest in self.top_logprobs
            ]
        if self.parts is not None:
            plain["parts"] = [part.to_dict() for part in self.parts]
        return plain


def _given(response: Completion | GenerationResponse) -> dict[str, Any]:
    """Return the fields that were asked for, with lists for tuples."""
    values = ((name, getattr(response, name)) for name in fields_dict(type(response)))
    return {
        name: [*value] if isinstance(value, tuple) else value
        for name, value in values
        if value is not None
    }


@frozen
class Spelling:
    """How the tokens of a response are written; for callers in Python, and never on the documented wire.

    Attributes:
        prompt: the tokens that the model saw.
        pieces: the bytes that each token of the prompt and of the samples prints, by its id; alternatives included.
        ends: the tokens that end a sample, and are no part of its text.
        alternatives: for each token of the prompt after the first the likeliest in its place, where ``prompt_logprobs``
            and ``top_logprobs`` are asked for.
    """

    prompt: tuple[int, ...]
    pieces: Mapping[int, bytes]
    ends: frozenset[int] = frozenset()
    alternatives: tuple[tuple[TokenLogprob, ...], ...] = ()


@frozen(repr=False)
class GenerationResponse(PydanticSerializable):
    """What was generated for one request. It prints as a line or more for each sample, in a notebook as a table.

    Attributes:
        created: Unix time in seconds when the request was accepted.
        finished: Unix time in seconds when the last sample was complete.
        num_samples: number of completions.
        prompt: the text as sent, also when the model saw less of it.
        prompt_tokens: tokens the model saw.
        responses: the completions, in sample order.
        prompt_logprobs: the natural log probability of each of the ``prompt_tokens`` tokens, given those before it,
            and so ``None`` for the first; at least −9,999. ``None`` unless ``prompt_logprobs``.
        spelling: how its tokens are written; ``None`` unless the runner was asked to spell.
        reused_tokens: how many of the ``prompt_tokens`` came from the prefix cache; on the wire of some dialects only.
    """

    created: float
    finished: float
    num_samples: int
    prompt: str
    prompt_tokens: int
    responses: tuple[Completion, ...]
    prompt_logprobs: tuple[float | None, ...] | None = None
    spelling: Spelling | None = None
    reused_tokens: int = field(default=0, eq=False)

    def to_dict(self) -> dict[str, Any]:
        """Return plain dicts and lists, as the server answers: what was not asked for is absent."""
        plain = _given(self)
        plain.pop("spelling", None)
        plain.pop("reused_tokens")
        return plain | {"responses": [completion.to_dict() for completion in self.responses]}

    def __repr__(self) -> str:
        head = f"<GenerationResponse: {self._summary}>"
        return display.as_text(head, self.responses, _row_of_sample, display.CELL_CHARS)

    def _repr_html_(self) -> str:
        columns = ("tokens", "ended by", "text")
        return display.as_html(
            self._summary, columns, self.responses, _row_of_sample, display.ALL_CHARS
        )

    @property
    def _summary(self) -> str:
        prompt = pluralize(self.prompt_tokens, "token")
        return f"{pluralize(len(self.responses), 'sample')} of a prompt of {prompt}"


def _row_of_sample(sample: Completion) -> display.Row:
    n_tokens = sample.generated_tokens
    return display.Row(
        label=f"{pluralize(n_tokens, 'token')}, {sample.finish_reason}: ",
        cells=(f"{n_tokens:,}", sample.finish_reason),
        text=sample.text,
    )


@frozen
class Stats:
    """The body of ``GET /stats``.

    Attributes:
        backlog: samples accepted and not yet being decoded.
        num_total_runners: runners able to take work.
    """

    backlog: int
    num_total_runners: int
