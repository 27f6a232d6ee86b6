"""The verb `search`."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from relevance_gen.retrieval.answering import answer
from relevance_gen.retrieval.building import Progress, build
from relevance_gen.retrieval.chunks import Chunks
from relevance_gen.retrieval.collection import Collection
from relevance_gen.retrieval.filtering import Where
from relevance_gen.retrieval.query import Question, parse
from relevance_gen.retrieval.weighting import WeightingName, weighting_named
from relevance_gen.tokens import Encoding, token_counter
from relevance_gen.types import Chunk, Metadata, SearchMetadata, SearchResponse


def search(
    query: str,
    chunks: Iterable[str | Metadata | Chunk],
    top_n: int = 10,
    true_order: bool = True,
    *,
    where: Where | None = None,
    weighting: WeightingName = "pivoted",
    encoding: Encoding | None = None,
    progress: Progress | None = None,
) -> SearchResponse:
    """Return the chunks that answer the query.

    Only chunks that share something with the query come back: there may be fewer than `top_n`, or none. To ask the
    same chunks again and again, keep a `ChunkIndex`; its answers are the same, bit for bit.

    Args:
        query: a question, not blank.
        chunks: strings, mappings with ``text`` and optional ``metadata``, or `Chunk` objects, mixed; none blank.
        top_n: most results, at least 1.
        true_order: results in the chunks' order (true) or best first (false).
        where: rank only these chunks, with the statistics of all: metadata to have (``{"source": "a.txt"}``, or a list
            of values under a key), a callable of a chunk's metadata, positions, or a mask with one boolean for each
            chunk.
        weighting: ``"pivoted"`` to answer questions, ``"cosine"`` for the textbook's TF-IDF; formulas in
            `relevance_gen.retrieval.weighting`.
        encoding: what tokens are counted in: None for the embedded encoding, a tiktoken encoding's name, the path of a
            rank file, or a `tiktoken.Encoding`.
        progress: called with (chunks done, all chunks) as they are read.

    Returns:
        The results, with scores in (0, 1]; 1.0 is a chunk that says exactly what the query says. Ties go to the
        earlier chunk.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.

    >>> found = search("What do cats do?", ["Dogs bark.", {"text": "Cats purr.", "metadata": {"page": 2}}])
    >>> [(result.chunk_txt, result.metadata, result.original_index) for result in found.results]
    [('Cats purr.', {'page': 2}, 1)]
    """
    question = Question(query, top_n, true_order)
    weigher = weighting_named(weighting)
    counter = token_counter(encoding)
    checked = Chunks.read(chunks)
    n_query_tokens = counter.count(query)
    counted = counter.count_all_aside(checked.texts)
    segment = build(
        checked,
        np.arange(len(checked.texts)),
        keep_tokens=False,
        only_for=None if weigher.needs_all_terms else parse(query, weigher).beginnings,
        progress=progress,
    )
    token_counts = SearchMetadata(n_query_tokens, counted.result())
    return answer(question, where, Collection([segment], weigher), len(checked.texts), token_counts)
