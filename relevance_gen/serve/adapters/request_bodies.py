"""Request bodies of the documented interface, except that of ``POST /generate``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias, get_args

import attrs
from attrs import Attribute, field, frozen

from relevance_gen import checks, fields
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.types import MIN_CONFIDENCE, Chunk, Metadata, Syntax

_PYTHON_OPTIONS = ("num_candidates",)
"""Options of a search that only Python callers have."""

Chunks: TypeAlias = Sequence[str | Metadata | Chunk]

_is_syntax = checks.one_of(*get_args(Syntax))


def _with_search_options(_cls: type, declared: list[Attribute[Any]]) -> list[Attribute[Any]]:
    """Return the fields of a class, followed by the options of `SearchParams` that it lacks.

    The options in `_PYTHON_OPTIONS`, which only Python callers have, are left out.
    """
    names = {attribute.name for attribute in declared}
    names.update(_PYTHON_OPTIONS)
    options = [option for option in attrs.fields(SearchParams) if option.name not in names]
    return [*declared, *options]


@frozen(field_transformer=_with_search_options)
class SearchRequest:
    """The body of ``POST /search``.

    All other options of `SearchParams`, except `num_candidates`, are fields, too.

    Args:
        query: the query; not blank.
        chunk_txts: strings, mappings or `Chunk` objects, in any mixture; checked when they are
            searched.
        top_n: maximum number of results, at least 1.
        true_order: results in input order (true) or best first (false).
        where: return only chunks whose metadata has, under each of these keys, the value, one of a
            list of values, or a value in a range, as in `SearchParams`; scores use the statistics
            of all chunks.
        spans: return in each result the character ranges that match the query.
        confidence: return the estimated probability that the chunks hold an answer.
        min_relative_score: return only results with at least this share of the best score, in [0,
            1].
        distinct: return at most one result, the best, for each value of this metadata key.
        syntax: ``"plain"`` treats quotes and signs of the query as text; with ``"operators"``,
            ``"exact phrase"`` and ``+word`` must occur in a result, and ``-word`` must not.
        correct_spelling: whether to correct spelling: replace a query word that occurs in no chunk
            by another spelling that chunks have, or, if it has 7 or more letters, by the most
            frequent word of the chunks with the same first letter at edit distance 1.
        rerank_top_n: number of top results to rerank with the server's reranker, such as 20; 0, the
            default, for no reranking; null uses the server's limit.
        cache_index: cache an index of these chunks and return its name in the ``X-Index`` response
            header. Later requests can send that name as ``index`` instead of the chunks.
    """

    query: str = field(validator=checks.not_blank)
    chunk_txts: Chunks = field(validator=checks.sequence)
    where: Metadata | None = fields.optional(checks.mapping)
    confidence: bool = fields.flag()
    distinct: str | None = fields.optional(checks.string)
    rerank_top_n: int | None = field(default=0, validator=checks.optional_count)
    cache_index: bool = fields.flag()


@frozen
class ExplanationRequest:
    """The body of ``POST /explain``.

    Args:
        query: the query; not blank.
        original_index: position of the chunk to explain, at least 0.
        chunk_txts, syntax, correct_spelling, rerank_top_n, cache_index: as in `SearchRequest`.
        neighbors: as in `SearchParams`.
    """

    query: str = field(validator=checks.not_blank)
    chunk_txts: Chunks = field(validator=checks.sequence)
    original_index: int = field(validator=checks.integer(0))
    neighbors: int = 0
    syntax: Syntax = field(default="plain", validator=_is_syntax)
    correct_spelling: bool = fields.flag(default=True)
    rerank_top_n: int | None = field(default=0, validator=checks.optional_count)
    cache_index: bool = fields.flag()


@frozen
class CompressionRequest:
    """The body of ``POST /compress``.

    Args:
        question: sentences are selected for this question; not blank.
        chunk_txts: as in `SearchRequest`.
        max_tokens: maximum number of tokens of the compressed text, at least 1.
    """

    question: str = field(validator=checks.not_blank)
    chunk_txts: Chunks = field(validator=checks.sequence)
    max_tokens: int = field(validator=checks.integer(1))


@frozen
class CitationRequest:
    """The body of ``POST /cite``.

    Args:
        text: the text whose sentences need support, such as an answer.
        chunk_txts: the sources, as in `SearchRequest`.
    """

    text: str = field(validator=checks.string)
    chunk_txts: Chunks = field(validator=checks.sequence)


@frozen
class ExtractionRequest:
    """The body of ``POST /extract``.

    Args:
        content: the bytes of a file, as base64.
        name: the file's name; its suffix identifies HTML that cannot be identified by its first
            bytes.
    """

    content: str = field(validator=checks.string)
    name: str = field(default="", validator=checks.string)


@frozen
class PromptRequest:
    """The body of ``POST /prompt``.

    Args:
        question: the question to answer; not blank.
        top_n: maximum number of sources, at least 1.
        copy: whether answers must be sentences of the sources, verbatim; null uses the setting in
            the model file.
        min_confidence: the response has ``found`` true only if the confidence of the search is at
            least this number, in [0, 1].
        fill: whether chunks that share nothing with the question are added after the others, until
            there are `top_n` sources. Null adds them only if there are others, for a chat model
            whose answer is not copied, and if all sources then fit completely into its context.
        chunk_txts, syntax, correct_spelling, rerank_top_n, cache_index: as in `SearchRequest`.
        neighbors: as in `SearchParams`.
    """

    question: str = field(validator=checks.not_blank)
    chunk_txts: Chunks = field(validator=checks.sequence)
    top_n: int = fields.integer(1, default=5)
    copy: bool | None = fields.optional(checks.flag)
    min_confidence: float = fields.number(0, 1, default=MIN_CONFIDENCE)
    fill: bool | None = fields.optional(checks.flag)
    neighbors: int = 0
    syntax: Syntax = field(default="plain", validator=_is_syntax)
    correct_spelling: bool = fields.flag(default=True)
    rerank_top_n: int | None = field(default=0, validator=checks.optional_count)
    cache_index: bool = fields.flag()
