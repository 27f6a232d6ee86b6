"""An index of chunks, kept: build it once, ask it often."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from os import PathLike
from typing import overload

import numpy as np
from attrs import asdict, frozen

from relevance_gen.checks import is_integer
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval import storage
from relevance_gen.retrieval.answering import answer
from relevance_gen.retrieval.chunks import Chunks
from relevance_gen.retrieval.collection import Collection, Progress, collect
from relevance_gen.retrieval.scoring import Scorer, parse_query
from relevance_gen.retrieval.weighting import Weighting, check_weighting
from relevance_gen.tokens import Encoding, TokenCounter, token_counter
from relevance_gen.types import (
    Chunk,
    Metadata,
    SearchMetadata,
    SearchRequest,
    SearchResponse,
)


@frozen
class TermShare:
    """What one term of the query gave to a chunk's score.

    Attributes:
        term: the query's word, folded.
        matches: the chunks' words that it stands for, folded; those of any chunk.
        tf: how often the chunk has it, inexact matches counting less than 1.
        df: number of chunks that have it.
        idf: its inverse document frequency; 0 for a function word that is left out.
        share: what it gave to the score.
    """

    term: str
    matches: tuple[str, ...]
    tf: float
    df: int
    idf: float
    share: float


@frozen
class Explanation:
    """Where a chunk's score comes from: the shares, pairs and coverage add up to it.

    They add up to more where a chunk says the query's words more often than the query does: scores stay below 1.

    Attributes:
        score: the chunk's score, as search returns it.
        terms: the share of each term of the query, in the query's order.
        pairs: what words side by side as in the query gave.
        coverage: what a passage with many of the query's words gave.
    """

    score: float
    terms: tuple[TermShare, ...]
    pairs: float
    coverage: float


class ChunkIndex:
    """Chunks made ready to be searched; `search` and this give the same results, bit for bit.

    Safe to share between threads.

    Args:
        chunks: strings, mappings with ``text`` and optional ``metadata``, or `Chunk` objects, mixed.
        weighting: ``"pivoted"`` to answer questions, ``"cosine"`` for the textbook's; formulas in
            `relevance_gen.retrieval.weighting`.
        encoding: what tokens are counted in: None for the embedded encoding, a tiktoken encoding's name, the path of a
            rank file, or a `tiktoken.Encoding`.
        progress: called with (chunks done, all chunks) while the index is built.

    Raises:
        InvalidRequestError: a chunk, the weighting or the encoding is not allowed.

    >>> index = ChunkIndex(["Cats purr.", "Dogs bark.", "A cat and a dog."])
    >>> [result.chunk_txt for result in index.search("cats").results]
    ['Cats purr.', 'A cat and a dog.']
    """

    def __init__(
        self,
        chunks: Iterable[str | Metadata | Chunk],
        *,
        weighting: Weighting = "pivoted",
        encoding: Encoding | None = None,
        progress: Progress | None = None,
    ) -> None:
        checked = Chunks.read(chunks)
        weighting = check_weighting(weighting)
        counter = token_counter(encoding)
        counted = counter.count_all_aside(checked.texts)
        self._keep(checked, weighting, counter, collect(checked.texts, weighting, progress=progress), counted.result())

    def _keep(
        self, chunks: Chunks, weighting: Weighting, counter: TokenCounter, collection: Collection, n_tokens: int
    ) -> None:
        self._chunks = chunks
        self._weighting: Weighting = weighting
        self._counter = counter
        self._collection = collection
        self._scorer = Scorer(collection, weighting)
        self._n_context_tokens = n_tokens

    def __len__(self) -> int:
        return len(self._chunks.texts)

    def __repr__(self) -> str:
        return (
            f"<ChunkIndex of {len(self):,} chunks, {self._collection.postings.ids.size:,} terms, "
            f"{self._weighting} weighting, {self._counter.name} tokens>"
        )

    @property
    def nbytes(self) -> int:
        """Memory of the texts and of what is kept of them, in bytes; metadata is not counted."""
        postings = asdict(self._collection.postings, recurse=False)
        kept = asdict(self._collection, recurse=False)
        arrays = [array for array in (*postings.values(), *kept.values()) if isinstance(array, np.ndarray)]
        return sum(array.nbytes for array in arrays) + sum(map(sys.getsizeof, self._chunks.texts))

    @overload
    def search(self, query: str, top_n: int = 10, true_order: bool = True) -> SearchResponse: ...
    @overload
    def search(
        self, query: list[str] | tuple[str, ...], top_n: int = 10, true_order: bool = True
    ) -> list[SearchResponse]: ...
    def search(
        self, query: str | list[str] | tuple[str, ...], top_n: int = 10, true_order: bool = True
    ) -> SearchResponse | list[SearchResponse]:
        """Return the chunks that answer the query, or a response for each of several queries.

        Args:
            query: a question, not blank; or a list of them.
            top_n: most results, at least 1.
            true_order: results in the chunks' order (true) or best first (false).

        Raises:
            InvalidRequestError: an argument is not allowed; the error names it, one of several queries as in
                ``query[3]``.
        """
        if isinstance(query, list | tuple):
            requests = [_numbered_request(place, one, top_n, true_order) for place, one in enumerate(query)]
            return [self._answer(request) for request in requests]
        return self._answer(SearchRequest(query, (), top_n, true_order))

    def _answer(self, request: SearchRequest) -> SearchResponse:
        query = parse_query(request.query, self._weighting)
        token_counts = SearchMetadata(self._counter.count(request.query), self._n_context_tokens)
        return answer(request, query, self._chunks, self._scorer, token_counts)

    def explain(self, query: str, chunk: int) -> Explanation:
        """Show what each term of the query gave to the score of a chunk.

        Args:
            query: a question, not blank.
            chunk: the chunk's position, in [0, len(index)).

        Raises:
            InvalidRequestError: an argument is not allowed.
        """
        if not is_integer(chunk) or not 0 <= chunk < len(self):
            raise InvalidRequestError.must_be("chunk", f"an integer in [0, {len(self)})", chunk)
        parsed = parse_query(SearchRequest(query, ()).query, self._weighting)
        plan = self._scorer.plan(parsed)
        shares, pairs, coverage = self._scorer.shares(plan, chunk)
        terms = tuple(
            TermShare(
                term.word,
                found.match.spellings,
                float(found.tf[found.chunk == chunk].sum()),
                found.df,
                idf,
                share,
            )
            for term, found, idf, share in zip(parsed.terms, plan.found, plan.idf, shares, strict=True)
        )
        return Explanation(self._scorer.score(parsed, chunk), terms, pairs, coverage)

    def save(self, path: str | PathLike[str]) -> None:
        """Write the index to a file, whole or not at all; `load` reads it back.

        Raises:
            OSError: the file cannot be written.
            InvalidRequestError: metadata that is not JSON.
        """
        saved = storage.SavedIndex(
            self._chunks, self._collection, self._weighting, self._counter.name, self._n_context_tokens
        )
        storage.write(path, saved)

    @classmethod
    def load(cls, path: str | PathLike[str], *, encoding: Encoding | None = None) -> ChunkIndex:
        """Open a saved index; its arrays and texts stay in the file, mapped into memory, until they are needed.

        Args:
            path: a file that `save` wrote.
            encoding: as for the index that was saved; may be left out if that was the embedded encoding or a
                published one.

        Raises:
            IndexFormatError: the file is damaged, foreign, or of another format version.
            InvalidRequestError: the encoding is not the one that was saved.
            OSError: the file cannot be read.
        """
        saved = storage.read(path)
        embedded = token_counter()
        counter = (
            embedded
            if encoding is None and saved.encoding == embedded.name
            else token_counter(saved.encoding if encoding is None else encoding)
        )
        if counter.name != saved.encoding:
            raise InvalidRequestError.must_be("encoding", f"{saved.encoding}, as when {path} was saved", counter.name)
        index = cls.__new__(cls)
        index._keep(saved.chunks, saved.weighting, counter, saved.collection, saved.n_context_tokens)
        return index


def _numbered_request(place: int, query: str, top_n: int, true_order: bool) -> SearchRequest:
    """Make the request of one query among several; an error names that one."""
    try:
        return SearchRequest(query, (), top_n, true_order)
    except InvalidRequestError as error:
        if error.field != "query":
            raise
        path = f"query[{place}]"
        raise InvalidRequestError(f"{path}{str(error).removeprefix('query')}", field=path) from None
