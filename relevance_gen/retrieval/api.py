"""The verb `search`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from relevance_gen.checks import as_list
from relevance_gen.errors import InvalidRequestError
from relevance_gen.index.builder import build
from relevance_gen.index.passages import TextEncoder
from relevance_gen.index.records.validation import Blank, read_chunks
from relevance_gen.index.segment import Segment
from relevance_gen.progress import Progress, reporting
from relevance_gen.retrieval.answer import answer
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.models import NO_MODELS, Models
from relevance_gen.retrieval.params import N_CANDIDATES, N_RERANKED, SearchParams
from relevance_gen.retrieval.query.filters import Where
from relevance_gen.retrieval.query.parsing import parse
from relevance_gen.retrieval.stages.cross_encoder import TextReranker
from relevance_gen.retrieval.weighting import Weighting, weighting_named
from relevance_gen.text.token_counting import Encoding, token_counter
from relevance_gen.types import (
    Chunk,
    Metadata,
    SearchMetadata,
    SearchResponse,
    Syntax,
    WeightingName,
)


def search(
    query: str,
    chunks: Iterable[str | Metadata | Chunk],
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
    blank: Blank = "error",
    weighting: WeightingName = "pivoted",
    encoding: Encoding | None = None,
    progress: Progress | bool | None = None,
) -> SearchResponse:
    """Return the chunks that answer the query.

    Only chunks that share something with the query come back: there may be fewer than `top_n`, or none. To ask the
    same chunks again and again, keep a `ChunkIndex`; its answers are the same, bit for bit.

    Args:
        query: a question, not blank.
        chunks: strings, mappings with ``text`` and optional ``metadata``, or `Chunk` objects, mixed; none blank. Any
            iterable of them: a list, a generator, an array, a column of a data frame; or a table with a column
            ``text``, as Arrow, pandas and Polars have them, whose other columns are metadata.
        top_n: most results, at least 1.
        true_order: results in the chunks' order (true) or best first (false).
        where: rank only these chunks, with the statistics of all: metadata to have (``{"source": "a.txt"}``, or a list
            of values under a key), a callable of a chunk's metadata, positions, or a mask with one boolean for each
            chunk.
        min_relative_score: keep only results of at least this share of the best score, in [0, 1].
        distinct: return at most one result for each value of this key of metadata, the best one, or of equal scores the
            earlier; its ``num_collapsed`` counts the others. Chunks without the key are each their own. All chunks that
            share a word with the query are looked at for that.
        spans: whether each result says where in the chunk the answer stands.
        encoder: an `Encoder`, which lifts chunks that say in other words what the query asks; None goes by words alone.
        num_candidates: how many of the best by their words the encoder looks at; None encodes every chunk, and finds those,
            too, that share no word with the query; 0 goes by words alone.
        reranker: a `Reranker`, which reads the best together with the query and puts them in its own order.
        rerank_top_n: how many of the best the reranker reads; None reads every chunk, and finds those, too, that share no
            word with the query; 0 reads none.
        syntax: ``"plain"`` takes quotes and signs of the query for text. With ``"operators"`` an ``"exact phrase"`` must
            stand in a chunk, a ``+word`` in any of its forms must, and a ``-word`` must not; the rules stand in
            `relevance_gen.retrieval.query.operators`.
        correct_spelling: whether a word of seven letters or more that no chunk has is taken for the chunks' most frequent
            word one letter away; ``response.metadata.corrections`` says which were.
        blank: ``"error"`` refuses a blank or missing chunk; ``"skip"`` leaves it out, and the others keep their
            positions. Missing are None and NaN.
        weighting: ``"pivoted"`` to answer questions, ``"cosine"`` for the textbook's TF-IDF; formulas in
            `relevance_gen.retrieval.weighting`.
        encoding: what tokens are counted in: None for the embedded encoding, a tiktoken encoding's name, the path of a
            rank file, or a `tiktoken.Encoding`.
        progress: called with (chunks done, all chunks) as they are read; True shows a bar.

    Returns:
        The results, with scores in (0, 1]; 1.0 is a chunk that says exactly what the query says. Ties go to the
        earlier chunk. And how likely it is that there is an answer at all, `SearchResponse.confidence`.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.
        EncoderError: the encoder failed.
        RerankerError: the reranker failed.

    >>> found = search("What do cats do?", ["Dogs bark.", {"text": "Cats purr.", "metadata": {"page": 2}}])
    >>> [(result.chunk_txt, result.metadata, result.original_index) for result in found.results]
    [('Cats purr.', {'page': 2}, 1)]
    """
    if isinstance(as_list(query), list | tuple):
        allowed, remedy = (
            "a string that is not blank",
            "to ask several questions, make a ChunkIndex",
        )
        raise InvalidRequestError.must_be("query", allowed, query, remedy=remedy)
    more: dict[str, Any] = {
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
    question = SearchParams(query, top_n, true_order, **more)
    options: dict[str, Any] = {
        "blank": blank,
        "weighting": weighting,
        "encoding": encoding,
        "progress": progress,
    }
    return answer_once(question, chunks, Models(encoder, reranker), **options)


def answer_once(
    question: SearchParams,
    chunks: Iterable[str | Metadata | Chunk],
    models: Models = NO_MODELS,
    *,
    blank: Blank = "error",
    weighting: WeightingName = "pivoted",
    encoding: Encoding | None = None,
    progress: Progress | bool | None = None,
    counts_now: bool = False,
) -> SearchResponse:
    """Return the chunks that answer a question; the other arguments, and what is raised, as for `search`.

    Tokens are counted when their number is first read, or, with `counts_now`, before this returns.
    """
    rerankings = models.rerankings(question)
    weigher = weighting_named(weighting)
    counter = token_counter(encoding)
    checked = read_chunks(chunks, blank=blank)
    kept, positions = checked.without_blank()
    of_query = partial(counter.count, question.query)
    of_chunks = partial(counter.count_all, kept.texts)
    with reporting(progress) as report:
        wanted = (
            None
            if weigher.needs_all_terms
            else parse(question.query, inflects=weigher.inflects).prefix_buckets
        )
        segment = build(
            kept, positions, keep_occurrences=False, prefix_bucket_filter=wanted, progress=report
        )
        collection = Collection([segment], weigher)
        if wanted is not None:
            collection = _OneQuestion(
                [segment], weigher, partial(build, kept, positions, keep_occurrences=False)
            )
        if counts_now:
            token_counts = SearchMetadata(of_query(), of_chunks())
        else:
            token_counts = SearchMetadata.lazy(
                num_query_tokens=of_query, num_context_tokens=of_chunks
            )
    return answer(question, collection, len(checked.texts), token_counts, rerankings)


class _OneQuestion(Collection):
    """Chunks of which, for one question, the words that may be meant were read; where one is misspelt, all are."""

    def __init__(
        self, segments: Sequence[Segment], weighting: Weighting, build: Callable[[], Segment]
    ) -> None:
        super().__init__(segments, weighting)
        self._build = build

    def near(self, unknown: Sequence[str]) -> Sequence[Sequence[Counter[str]]]:
        """Read the chunks again: the word that is meant may begin otherwise."""
        super().__init__([self._build()], self.weighting)
        return super().near(unknown)
