"""What every index can be asked, on one machine or over many."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, TypedDict, Unpack, overload

from relevance_gen.index.passages import TextEncoder
from relevance_gen.retrieval.models import NO_MODELS, Models
from relevance_gen.retrieval.params import N_CANDIDATES, N_RERANKED, SearchParams, questions
from relevance_gen.retrieval.query.filters import Where
from relevance_gen.retrieval.stages.cross_encoder import TextReranker
from relevance_gen.types import Explanation, SearchResponse, Syntax

Queries: TypeAlias = list[str] | tuple[str, ...] | Iterator[str]


class SearchOptions(TypedDict, total=False):
    """The types of the options of `BaseIndex.search`, for type checkers."""

    where: Where | None
    min_relative_score: float
    distinct: str | None
    spans: bool
    encoder: TextEncoder | None
    num_candidates: int | None
    reranker: TextReranker | None
    rerank_top_n: int | None
    syntax: Syntax
    correct_spelling: bool
    allow_partial: bool


class BaseIndex(ABC):
    """Chunks that can be searched again and again."""

    @overload
    def search(
        self, query: str, top_n: int = 10, true_order: bool = True, **options: Unpack[SearchOptions]
    ) -> SearchResponse: ...
    @overload
    def search(
        self,
        query: Queries,
        top_n: int = 10,
        true_order: bool = True,
        **options: Unpack[SearchOptions],
    ) -> list[SearchResponse]: ...
    def search(
        self,
        query: str | Queries,
        top_n: int = 10,
        true_order: bool = True,
        *,
        where: Where | None = None,
        min_relative_score: float = 0.0,
        distinct: str | None = None,
        spans: bool = False,
        encoder: TextEncoder | None = None,
        num_candidates: int | None = N_CANDIDATES,
        reranker: TextReranker | None = None,
        rerank_top_n: int | None = N_RERANKED,
        syntax: Syntax = "plain",
        correct_spelling: bool = True,
        allow_partial: bool = False,
    ) -> SearchResponse | list[SearchResponse]:
        """Return the chunks that answer the query, or a response for each of several queries.

        Args:
            query: a question, not blank; or several in a list, a tuple, an array or a generator.
            top_n: most results, at least 1.
            true_order: results in the chunks' order (true) or best first (false).
            where: as in `relevance_gen.search`; a mask has one boolean for each position ever given. In a cluster a
                callable is sent to the nodes, which run it.
            min_relative_score: keep only results of at least this share of the best score, in [0, 1].
            distinct: return only the best result for each value of this key of metadata, as in `relevance_gen.search`.
            spans: whether each result says where in the chunk the answer stands.
            encoder: an `Encoder` for this search, where the index has none: the best by their words are encoded now.
                An index of a cluster goes by words alone, and refuses it.
            num_candidates: with an encoder, how many of the best by their words it looks at; None compares every chunk, and
                0 none, as in `relevance_gen.search`.
            reranker: a `Reranker`, which reads the best together with the query and puts them in its own order.
            rerank_top_n: with a reranker, how many of the best it reads; None reads every chunk, and 0 none.
            syntax: as in `relevance_gen.search`.
            correct_spelling: as in `relevance_gen.search`.
            allow_partial: in a cluster, answer from the shards that live while others are lost;
                ``response.metadata.num_missing_chunks`` tells how many chunks were not searched.

        Raises:
            InvalidRequestError: an argument is not allowed; the error names it, one of several queries as in
                ``query[3]``.
            EncoderError: the encoder failed.
            RerankerError: the reranker failed.
            ChunksMissingError: a shard of a cluster is lost, and not restored yet.
            ClusterError: the index of a cluster was closed, or the cluster is gone.
        """
        more: dict[str, object] = {
            "where": where,
            "min_relative_score": min_relative_score,
            "spans": spans,
            "syntax": syntax,
        }
        more |= {
            "distinct": distinct,
            "num_candidates": num_candidates,
            "rerank_top_n": rerank_top_n,
            "correct_spelling": correct_spelling,
        }
        asked, models = questions(query, top_n, true_order, **more), Models(encoder, reranker)
        if isinstance(asked, SearchParams):
            return self.answer_all([asked], models, allow_partial=allow_partial)[0]
        return self.answer_all(asked, models, allow_partial=allow_partial)

    @abstractmethod
    def answer_all(
        self,
        asked: Sequence[SearchParams],
        models: Models = NO_MODELS,
        *,
        allow_partial: bool = False,
    ) -> list[SearchResponse]:
        """Answer questions from one state of the index; the other arguments are those of `search`."""

    def explain(
        self,
        query: str,
        chunk: int,
        *,
        encoder: TextEncoder | None = None,
        num_candidates: int | None = N_CANDIDATES,
        reranker: TextReranker | None = None,
        rerank_top_n: int | None = N_RERANKED,
        syntax: Syntax = "plain",
        correct_spelling: bool = True,
    ) -> Explanation:
        """Show what each term of the query, an encoder and a reranker gave to the score of a chunk.

        Args:
            query: a question, not blank.
            chunk: the chunk's position.
            encoder: as in `search`.
            num_candidates: as in `search`.
            reranker: as in `search`.
            rerank_top_n: as in `search`.
            syntax: as in `search`; what leaves the chunk out is told, beside the score that it would have.
            correct_spelling: as in `search`.

        Raises:
            InvalidRequestError: an argument is not allowed.
            ChunksMissingError: a shard of a cluster is lost, and not restored yet.
        """
        more: dict[str, Any] = {"num_candidates": num_candidates, "rerank_top_n": rerank_top_n}
        question = SearchParams(query, **more, syntax=syntax, correct_spelling=correct_spelling)
        return self.explain_one(question, chunk, Models(encoder, reranker))

    @abstractmethod
    def explain_one(
        self, question: SearchParams, chunk: int, models: Models = NO_MODELS
    ) -> Explanation:
        """Explain the score that a question gives to the chunk at a position."""
