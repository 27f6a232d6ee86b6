"""The base class of indexes: search and explanation, on one machine or in a cluster."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, TypeAlias, Unpack, overload

from relevance_gen.retrieval.params import (
    NO_MODELS,
    ExplainOptions,
    IndexSearchOptions,
    SearchModels,
    SearchParams,
    search_params,
    take_models,
    with_options,
)
from relevance_gen.types import Explanation, SearchResponse

Queries: TypeAlias = list[str] | tuple[str, ...] | Iterator[str]


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
