"""The explanation of a chunk's score."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import field, frozen

from relevance_gen.display.responses import ExplanationDisplay


@frozen
class TermContribution:
    """The contribution of one query term to a chunk's score.

    Attributes:
        term: the query word, normalized.
        matches: the words of the chunks that match the term, normalized; from all chunks.
        tf: occurrences in the chunk; an inexact match counts less than 1.
        df: number of chunks that contain the term.
        idf: inverse document frequency of the term; reduced for a stop word, and 0 for a word that
            is ignored.
        contribution: the summand of the chunk's score that the term contributes.
    """

    term: str
    matches: tuple[str, ...]
    tf: float
    df: int
    idf: float
    contribution: float


@frozen
class Passage:
    """The passage of a chunk that is semantically nearest to the query.

    Attributes:
        start: position of its first character in the chunk's text, in code points.
        end: position after its last character.
        cosine: cosine of the vectors of passage and query, at most 1.
    """

    start: int
    end: int
    cosine: float


@frozen(repr=False)
class Explanation(ExplanationDisplay):
    """The composition of a chunk's score: the contributions add up to it.

    It prints as one line for each contribution other than 0.

    Attributes:
        score: the chunk's score, as search returns it.
        terms: the contribution of each query term, in query order.
        bigrams: contribution of bigrams of the query.
        coverage: contribution of a passage that contains many of the query's words.
        lead: contribution of query words among the chunk's first 16 words.
        phrase: contribution of the longest sequence of words that also occurs in the query.
        title: contribution of query words in the chunk's title, if any chunk has a title.
        char_ngrams: contribution of shared character 4-grams; only if the chunks or the query are
            not English.
        top_similarity: boost from similarity to the five best chunks, including the chunk itself.
        neighbors: increase by the chunks before and after the chunk; 0 unless requested.
        semantic: contribution of the encoder; 0 without an encoder, and for a chunk outside its
            candidates.
        other_chunks: contribution of the other chunks of the file; this and the next three
            attributes are 0 outside a `FolderIndex`.
        file_name: contribution of the file's name.
        defined_names: contribution of names that the file defines.
        exact_identifiers: contribution of the file's name and definitions if the query contains
            this name, or a defined name, as an identifier.
        reranker: change made by the reranker, which can be negative. For a chunk outside the
            rerank window: the amount its score was lowered to rank below the reranked chunks.
        passage: the passage that is semantically nearest to the query, for a chunk that the encoder
            scored.
        relevance: the reranker's relevance, for a chunk that it scored.
        violated_operators: the query's operators that exclude the chunk from the results, as
            written in the query.
        corrections: as in `SearchMetadata`; `terms` has the terms of the corrected query.
    """

    score: float
    terms: tuple[TermContribution, ...]
    bigrams: float = 0.0
    coverage: float = 0.0
    lead: float = 0.0
    phrase: float = 0.0
    title: float = 0.0
    char_ngrams: float = 0.0
    top_similarity: float = 0.0
    neighbors: float = 0.0
    semantic: float = 0.0
    other_chunks: float = 0.0
    file_name: float = 0.0
    defined_names: float = 0.0
    exact_identifiers: float = 0.0
    reranker: float = 0.0
    passage: Passage | None = None
    relevance: float | None = None
    violated_operators: tuple[str, ...] = ()
    corrections: Mapping[str, str] = field(factory=dict, hash=False)
