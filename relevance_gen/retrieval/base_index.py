"""The base classes of indexes: search and explanation; chunks that are added, removed and read.

An index is on one machine or in a cluster.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Final, TypeAlias, TypeVar, Unpack, overload

import numpy as np

from relevance_gen.arrays import Offsets, batch_slices, unique
from relevance_gen.checks import as_list, check_flag, is_integer, string, to_python_scalar
from relevance_gen.errors import InvalidRequestError, shorten
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.records.validation import Blank, read_chunks
from relevance_gen.retrieval.answer import check_where, metadata_keys, stored_fields
from relevance_gen.retrieval.explanation import explain
from relevance_gen.retrieval.params import (
    NO_MODELS,
    ExplainOptions,
    IndexSearchOptions,
    SearchModels,
    SearchParams,
    check_option_names,
    search_params,
    take_models,
    with_options,
)
from relevance_gen.retrieval.ports import InventoryRequest, Segments
from relevance_gen.retrieval.query.filters import Filter, Where
from relevance_gen.retrieval.ranking.stage import RerankStage
from relevance_gen.types import Chunk, Explanation, Metadata, SearchResponse

Queries: TypeAlias = list[str] | tuple[str, ...] | Iterator[str]
T = TypeVar("T")
FindPositions: TypeAlias = Callable[[int, Segments], Offsets]
"""A function that returns distinct positions in ascending order, given the number of assigned
positions and the segments of one state of an index."""
_BATCH_CHUNKS: Final = 1 << 10
"""Number of chunks that one request fetches from the segments."""


class BaseIndex(ABC):
    """Chunks that are indexed once and searched repeatedly.

    Attributes:
        default_neighbors: value of the search option `neighbors` that `ask` uses if the caller
            gives none.
    """

    default_neighbors: ClassVar[int] = 0

    @overload
    def search(
        self,
        query: str,
        top_n: int = 10,
        true_order: bool = True,
        **options: Unpack[IndexSearchOptions],
    ) -> SearchResponse: ...
    @overload
    def search(
        self,
        query: Queries,
        top_n: int = 10,
        true_order: bool = True,
        **options: Unpack[IndexSearchOptions],
    ) -> list[SearchResponse]: ...
    @with_options(IndexSearchOptions)
    def search(
        self,
        query: str | Queries,
        top_n: int = 10,
        true_order: bool = True,
        **options: Unpack[IndexSearchOptions],
    ) -> SearchResponse | list[SearchResponse]:
        """Return the best chunks for a query, or a response for each of several queries.

        Args:
            query: the text to search for, not blank; or several in a list, a tuple, an array or an
                iterator.
            top_n: maximum number of results, at least 1.
            true_order: return results in the order of the chunks (true) or best first (false).
            options: see `SearchParams`

        Raises:
            InvalidRequestError: an argument is invalid; the error names it, and the index of an
                invalid query, as in ``query[3]``.
            EncoderError: the encoder failed.
            RerankerError: the reranker failed.
            ChunksMissingError: a shard of a cluster cannot be read.
            ClusterError: the index of a cluster was closed, or the cluster does not exist anymore.
        """
        arguments: dict[str, Any] = dict(options)
        allow_partial = arguments.pop("allow_partial", False)
        if options:
            check_option_names(options, BaseIndex.search)
            check_flag("allow_partial", allow_partial)
        models = take_models(arguments)
        params = search_params(query, top_n=top_n, true_order=true_order, **arguments)
        if isinstance(params, SearchParams):
            return self.answer_all([params], models, allow_partial=allow_partial)[0]
        return self.answer_all(params, models, allow_partial=allow_partial)

    @abstractmethod
    def answer_all(
        self,
        searches: Sequence[SearchParams],
        models: SearchModels = NO_MODELS,
        *,
        allow_partial: bool = False,
    ) -> list[SearchResponse]:
        """Return the response to each of several searches; no change of the index is between them.

        Args:
            searches: the query and the options of each search.
            models: the encoder and the reranker of all searches.
            allow_partial: whether a cluster searches without the chunks that it cannot read,
                instead of raising `ChunksMissingError`.

        Raises:
            InvalidRequestError, EncoderError, RerankerError, ChunksMissingError, ClusterError: as
                for `search`.
        """

    @with_options(ExplainOptions)
    def explain(self, query: str, chunk: int, **options: Unpack[ExplainOptions]) -> Explanation:
        """Return the contribution of each query term, and of each stage, to the score of a chunk.

        If operators exclude the chunk from the results, the explanation lists them, and explains
        the score that the chunk has without them.

        Args:
            query: the text to search for, not blank.
            chunk: position of the chunk.
            options: see `SearchParams`

        Raises:
            InvalidRequestError: an argument is invalid.
            ChunksMissingError: a shard of a cluster cannot be read.
        """
        check_option_names(options, BaseIndex.explain)
        arguments: dict[str, Any] = dict(options)
        models = take_models(arguments)
        return self.explain_one(SearchParams(query, **arguments), chunk, models)

    @abstractmethod
    def explain_one(
        self, params: SearchParams, chunk: int, models: SearchModels = NO_MODELS
    ) -> Explanation:
        """Return the explanation of the score of one chunk in one search.

        Args:
            params: the query and the options of the search.
            chunk: position of the chunk.
            models: the encoder and the reranker of the search.
        """


class MutableIndex(BaseIndex):
    """An index whose chunks can be added, removed and read by position.

    A chunk keeps its position, and the position of a removed chunk is not assigned again.
    """

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __iter__(self) -> Iterator[Chunk]: ...

    @abstractmethod
    def _read(self, work: Callable[[int, Segments], T]) -> T:
        """Call `work` with the number of assigned positions and the segments; return its result.

        Both arguments are from one state of the index.
        """

    @abstractmethod
    def _add(self, chunks: Chunks, find_replaced: FindPositions | None = None) -> range:
        """Add valid chunks, at least one, and return their positions.

        `find_replaced` is called with the number of assigned positions and the segments before the
        change. The chunks at the positions that it returns are removed by the same change.
        """

    @abstractmethod
    def _remove(self, find_positions: FindPositions) -> int:
        """Remove chunks, and return the number of removed chunks.

        `find_positions` is called with the number of assigned positions and the segments, and
        returns the positions of the chunks to remove.
        """

    def _with_own_models(self, models: SearchModels) -> SearchModels:
        """Return the caller's models; the index's own models replace models that are None."""
        return models

    def explain_one(
        self,
        params: SearchParams,
        chunk: int,
        models: SearchModels = NO_MODELS,
        *,
        rerankings: Sequence[RerankStage] = (),
    ) -> Explanation:
        """Return the explanation of the score of one chunk in one search.

        Args:
            params: the query and the options of the search.
            chunk: position of the chunk.
            models: the encoder and the reranker of the search.
            rerankings: further stages, which run after the encoder and before the reranker.
        """
        stages = self._with_own_models(models).rerank_stages(params, rerankings)
        return self._read(partial(_explain, params, chunk, stages))

    @overload
    def __getitem__(self, position: int) -> Chunk: ...
    @overload
    def __getitem__(self, position: slice) -> list[Chunk]: ...
    def __getitem__(self, position: int | slice) -> Chunk | list[Chunk]:
        """Return the chunk at a position, or the chunks in a slice of positions.

        Position -1 is the last assigned position.

        Raises:
            InvalidRequestError: no chunk is at the position; a slice omits removed chunks.
            ChunksMissingError: a shard of a cluster cannot be read.
        """
        return self._read(partial(chunks_by_index, position))

    def __contains__(self, chunk: object) -> bool:
        """Return whether a chunk has this text or, for a `Chunk`, also its metadata and title."""
        if not isinstance(chunk, Chunk):
            return any(other.text == chunk for other in self)
        content = (chunk.text, chunk.metadata, chunk.title)
        return any((other.text, other.metadata, other.title) == content for other in self)

    @property
    def metadata_keys(self) -> set[str]:
        """The metadata keys of all chunks; empty if a cluster cannot read some of the chunks."""
        return self._read(lambda _, segments: set(metadata_keys(segments) or ()))

    def add(
        self,
        chunks: Iterable[str | Metadata | Chunk],
        *,
        text: str | None = None,
        blank: Blank = "error",
    ) -> range:
        """Add chunks, and return their positions, which follow all positions assigned before.

        The cost depends on the added chunks, not on the size of the index. In a folder, a bucket or
        a cluster each call writes a new shard, and small shards are merged: add many chunks with
        one call if possible.

        Args:
            chunks: as for `relevance_gen.ChunkIndex`; in a folder, a bucket or a cluster, metadata
                must be JSON.
            text: the field or column with the text, as for `relevance_gen.ChunkIndex`.
            blank: ``"error"`` rejects a blank chunk; ``"skip"`` leaves it out, but assigns its
                position.

        Raises:
            InvalidRequestError: a chunk is invalid; none was added.
            EncoderError: the encoder failed; none was added.
            OSError: the store does not answer; the chunks may have been added.
        """
        validated = read_chunks(chunks, blank=blank, text=text)
        return self._add(validated) if validated.texts else self._no_positions()

    def replace(
        self,
        chunks: Iterable[str | Metadata | Chunk],
        *,
        key: str = "id",
        text: str | None = None,
    ) -> range:
        """Add chunks, remove all chunks that have the same identifiers, and return the positions.

        Identifiers are metadata: each new chunk has a string or an integer under `key`. Several
        chunks can have the same identifier, such as the ``path`` of their document. Chunks are
        removed as by ``remove(where={key: identifiers})``, and the new chunks get new positions. A
        search uses the index before or after the whole change. The cost includes reading the
        metadata of all chunks: replace many chunks with one call if possible.

        Args:
            chunks: as for `add`, none of them blank.
            key: the metadata key of the identifiers.
            text: the field or column with the text, as for `relevance_gen.ChunkIndex`; all other
                fields are metadata.

        Raises:
            InvalidRequestError: a chunk is invalid or has no identifier; nothing was changed.
            ChunksMissingError: a shard of a cluster cannot be read; nothing was changed.
            EncoderError: the encoder failed; nothing was changed.
            OSError: the store does not answer; the chunks may have been replaced.

        >>> from relevance_gen import ChunkIndex
        >>> index = ChunkIndex([Chunk("Cats purr.", {"id": 7}), Chunk("Dogs bark.", {"id": 8})])
        >>> index.replace([Chunk("Cats meow.", {"id": 7})])
        range(2, 3)
        >>> [chunk.text for chunk in index]
        ['Dogs bark.', 'Cats meow.']
        """
        string.check("key", key)
        validated = read_chunks(chunks, text=text)
        where = {key: identifiers(validated, key)}
        if not validated.texts:
            return self._no_positions()
        return self._add(validated, partial(positions_with, where))

    def _no_positions(self) -> range:
        """Return the empty range after the last assigned position."""
        n_positions = self._read(lambda n_positions, _: n_positions)
        return range(n_positions, n_positions)

    def remove(
        self,
        positions: Iterable[int] | None = None,
        *,
        where: Where | None = None,
    ) -> int:
        """Remove the chunks at given positions, or all that pass a filter; return their number.

        Args:
            positions: the positions.
            where: a filter as in `search`, instead of positions: ``index.remove(where={"source":
                "a.txt"})``.

        Raises:
            InvalidRequestError: a position has no chunk, or `where` is invalid; none was removed.
            ChunksMissingError: a shard of a cluster cannot be read; none was removed.
            OSError: the store does not answer; the chunks may have been removed.
        """
        if isinstance(positions, Iterator | range):
            positions = list(positions)  # a change that is tried again reads them again
        return self._remove(partial(positions_to_remove, positions, where))


def _explain(
    params: SearchParams,
    chunk: int,
    stages: Sequence[RerankStage],
    n_positions: int,
    segments: Segments,
) -> Explanation:
    position = check_position("chunk", chunk, n_positions, segments)
    return explain(params, position, segments, stages)


def check_position(name: str, value: object, n_positions: int, segments: Segments) -> int:
    """Return `value` as an integer, if it is the position of a chunk.

    A valid position is in [0, `n_positions`), and its chunk was not removed.

    Args:
        name: the field that an error names.
        value: the position to check.
        n_positions: number of positions that the index has assigned, also to removed chunks.
        segments: the chunks of the index.

    Raises:
        InvalidRequestError: the position is invalid; the error names the field `name`.
    """
    return int(_check_all([value], name, n_positions, segments)[0])


def check_positions(values: object, n_positions: int, segments: Segments) -> Offsets:
    """Check that each of `values` is the position of a chunk, and return the distinct positions.

    The returned positions are ascending. The other arguments are as for `check_position`.

    Raises:
        InvalidRequestError: `values` is not a list or another iterable of positions, or a position
            is invalid; the error names the first such position.
    """
    values = as_list(values)
    if not isinstance(values, Iterable) or isinstance(values, str | bytes):
        remedy = "put a single one in a list"
        raise InvalidRequestError.must_be("positions", "a list of positions", values, remedy=remedy)
    return unique(_check_all(list(values), "positions[{}]", n_positions, segments))


def positions_to_remove(
    positions: object, where: Where | None, n_positions: int, segments: Segments
) -> Offsets:
    """Return distinct positions in ascending order.

    These are the given positions, or the positions of all chunks that pass `where`.

    Raises:
        InvalidRequestError: both or neither are given, a position is invalid as in
            `check_positions`, or `where` is invalid.
    """
    if (positions is None) == (where is None):
        raise InvalidRequestError(
            "must be None if where is given, and must be given otherwise", "positions"
        )
    if where is None:
        return check_positions(positions, n_positions, segments)
    matching = positions_with(where, n_positions, segments)
    if not matching.size:
        check_where(where, segments)
    return matching


def identifiers(chunks: Chunks, key: str) -> list[str | int]:
    """Return the metadata value under `key` of each chunk.

    Raises:
        InvalidRequestError: a value is missing, or neither a string nor an integer.
    """
    values = []
    for chunk_ord in range(len(chunks.texts)):
        value = to_python_scalar(chunks.metadata_of(chunk_ord).get(key))
        if not isinstance(value, str) and not is_integer(value):
            name = f"chunks[{chunk_ord}].metadata.{shorten(key)}"
            raise InvalidRequestError.must_be(name, "a string or an integer", value)
        values.append(value)
    return values


def positions_with(where: Where, n_positions: int, segments: Segments) -> Offsets:
    """Return the positions of all chunks that pass a filter, ascending."""
    request = InventoryRequest(with_positions=True, filter=Filter.read(where, n_positions))
    return segments.inventory(request).positions


def _check_all(values: list[object], name: str, n_positions: int, segments: Segments) -> Offsets:
    """Return the values, which must be positions of chunks, in an array.

    In the error for value i, the field is the format string `name` with the argument i.
    """
    values = list(map(to_python_scalar, values))
    for i, value in enumerate(values):
        if not is_integer(value) or not 0 <= value < n_positions:
            allowed = f"an integer in [0, {n_positions})"
            raise InvalidRequestError.must_be(name.format(i), allowed, value)
    positions = np.array(values, np.int64)
    is_occupied = segments.inventory(InventoryRequest(occupied=positions)).is_occupied
    for i in np.flatnonzero(~is_occupied).tolist():
        allowed = "the position of a chunk that was not removed"
        raise InvalidRequestError.must_be(name.format(i), allowed, values[i])
    return positions


class ChunkList(Sequence[Chunk]):
    """The chunks of an index at one time, in the order of positions; read-only.

    Element i is the i-th chunk that was not removed, whose position in the index can be greater
    than i. A chunk is created on access.

    Attributes:
        positions: position of each chunk in the index, ascending, int64 of shape (n,).
    """

    def __init__(self, segments: Segments) -> None:
        self._segments = segments
        self.positions = segments.inventory(InventoryRequest(with_positions=True)).positions

    def __len__(self) -> int:
        return self.positions.size

    @overload
    def __getitem__(self, index: int) -> Chunk: ...
    @overload
    def __getitem__(self, index: slice) -> list[Chunk]: ...
    def __getitem__(self, index: int | slice) -> Chunk | list[Chunk]:
        if isinstance(index, slice):
            return chunks_at(self._segments, self.positions[index])
        return chunks_at(self._segments, self.positions[[index]])[0]

    def __iter__(self) -> Iterator[Chunk]:
        for batch in batch_slices(len(self), _BATCH_CHUNKS):
            yield from self[batch]

    def __repr__(self) -> str:
        return f"<ChunkList of {len(self):,} chunks>"


def chunks_by_index(
    position: int | slice, n_positions: int, segments: Segments
) -> Chunk | list[Chunk]:
    """Return the chunk at a position, or the chunks in a slice of positions.

    A negative position counts from `n_positions`. A slice leaves out removed chunks. The argument
    is that of `MutableIndex.__getitem__`.

    Raises:
        InvalidRequestError: a single position is not an integer, has not been assigned, or its
            chunk was removed.
    """
    if isinstance(position, slice):
        positions = np.arange(n_positions)[position]
        is_occupied = segments.inventory(InventoryRequest(occupied=positions)).is_occupied
        return chunks_at(segments, positions[is_occupied])
    index = to_python_scalar(position)
    if is_integer(index) and -n_positions <= index < 0:
        index += n_positions
    checked = check_position("position", index, n_positions, segments)
    return chunks_at(segments, np.array([checked]))[0]


def chunks_at(segments: Segments, positions: Offsets) -> list[Chunk]:
    """Return the chunks at the given positions, each of which must have a chunk."""
    chunks = []
    fields = stored_fields(positions, segments)
    for chunk, position in zip(fields, positions.tolist(), strict=True):
        chunks.append(Chunk(chunk.text, chunk.metadata, position, chunk.title))
    return chunks
