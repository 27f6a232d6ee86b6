r"""The function `compress`: select the sentences of chunks that are most relevant to a question.

The utility of a sentence s of a chunk d is

    v(s) = score(s) + ¼ · (score(sentence before s) + score(sentence after s)) + ½ · score(d)

The scores of sentences are from a search among all sentences of all chunks, with the title of the
chunk; the scores of chunks are from a search among the chunks. Only neighbors in the same chunk
count. Sentences are selected in the order of their utility; a sentence that does not fit is
skipped. If utilities are equal, the first sentence is selected.

Source: the rule is ours, measured in bench/compress.py.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np
from attrs import frozen

from relevance_gen import checks
from relevance_gen.arrays import Floats
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.request_scope import raise_if_cancelled, reserve
from relevance_gen.retrieval.api import search
from relevance_gen.text.chunking import sentences as sentence_spans
from relevance_gen.text.token_counting import Encoding, TokenCounter, token_counter
from relevance_gen.types import (
    Chunk,
    CompressionResponse,
    Metadata,
    SelectedSentence,
)

_NEIGHBOR_FACTOR: Final = 0.25
_CHUNK_FACTOR: Final = 0.5
_ELLIPSIS: Final = " …"
"""Replaces omitted sentences between two selected sentences of a chunk."""
_RESERVED_SENTENCES: Final = 256
"""Sentences for which memory is reserved at once."""


class _Sentence(NamedTuple):
    """A sentence of a chunk.

    Attributes:
        sentence_ord: index of the sentence among all sentences of all chunks.
        chunk_ord: index of the chunk.
        previous_end: end of the sentence before it in the chunk; 0 for the first sentence.
        start: start of the sentence in the text of the chunk.
        end: end of the sentence in the text of the chunk.
    """

    sentence_ord: int
    chunk_ord: int
    previous_end: int
    start: int
    end: int


@frozen
class _SelectedSentences:
    """The sentences that compression selected from the chunks, in input order.

    Attributes:
        sentences: the spans of the sentences.
        text: the sentences as one text, as `_join` returns it.
        n_tokens: number of tokens of `text`, in the caller's encoding.
    """

    sentences: Sequence[_Sentence]
    text: str
    n_tokens: int


def compress(
    question: str,
    chunks: Iterable[str | Metadata | Chunk],
    *,
    max_tokens: int,
    encoding: Encoding | None = None,
) -> CompressionResponse:
    """Select the sentences of chunks that are most relevant to a question, verbatim and in order.

    Args:
        question: not blank.
        chunks: as in `search`; of a search result, pass the ``chunk_txt``.
        max_tokens: maximum tokens of the ``text`` of the response, at least 1. If no sentence fits,
            none is selected.
        encoding: the encoding in which tokens are counted, as in `search`.

    Returns:
        The sentences with their positions, and the text of all of them.

    Raises:
        InvalidRequestError: an argument is not allowed; the error names it.

    >>> chunks = ["It rained. Cats purr. Dogs bark.", "Tea is hot."]
    >>> compressed = compress("Who purrs?", chunks, max_tokens=5)
    >>> compressed.text
    'Cats purr.'
    >>> [(sentence.original_index, sentence.start, sentence.end) for sentence in compressed]
    [(0, 11, 21)]
    >>> compressed[0].num_omitted_before
    1
    """
    question = checks.to_python_scalar(question)
    checks.not_blank.check("question", question)
    max_tokens = checks.check_integer("max_tokens", max_tokens, 1)
    counter = token_counter(encoding)
    checked = read_chunks(chunks)
    sentences = _split(checked.texts)
    n_context_tokens = counter.count_all(checked.texts)
    text = _join(checked.texts, sentences) if n_context_tokens <= max_tokens else ""
    selection = _SelectedSentences(sentences, text, counter.count(text))
    if sentences and (not text or selection.n_tokens > max_tokens):
        selection = _select(question, checked, sentences, max_tokens, counter)
    return CompressionResponse(
        _selected_sentences(checked.texts, selection.sentences),
        selection.text,
        selection.n_tokens,
        n_context_tokens,
    )


def _split(texts: Sequence[str]) -> list[_Sentence]:
    """Return the spans of the sentences of all texts, text after text."""
    reserve("sentence_char", max(map(len, texts), default=0))
    sentences: list[_Sentence] = []
    for chunk_ord, text in enumerate(texts):
        previous_end = 0
        for start, end in sentence_spans(text):
            if len(sentences) % _RESERVED_SENTENCES == 0:
                raise_if_cancelled()
                reserve("sentence", _RESERVED_SENTENCES)
            sentences.append(_Sentence(len(sentences), chunk_ord, previous_end, start, end))
            previous_end = end
    return sentences


def _utilities(question: str, chunks: Chunks, sentences: Sequence[_Sentence]) -> Floats:
    """Return the utility of each sentence for a question, by the module's formula, shape (n,).

    `sentences` has the n sentences of `chunks`.
    """
    texts = []
    titles = {}
    for sentence in sentences:
        texts.append(chunks.texts[sentence.chunk_ord][sentence.start : sentence.end])
        if sentence.chunk_ord in chunks.titles:
            titles[sentence.sentence_ord] = chunks.titles[sentence.chunk_ord]
    scores = _scores(question, Chunks(texts, {}, titles))
    chunk_ords = np.array([sentence.chunk_ord for sentence in sentences])
    # Whether a sentence and its successor are in the same chunk, shape (number of sentences - 1,).
    are_neighbors = chunk_ords[1:] == chunk_ords[:-1]
    neighbor_factors = _NEIGHBOR_FACTOR * are_neighbors
    utilities: Floats = scores + _CHUNK_FACTOR * _scores(question, chunks)[chunk_ords]
    utilities[1:] += neighbor_factors * scores[:-1]
    utilities[:-1] += neighbor_factors * scores[1:]
    return utilities


def _scores(question: str, chunks: Chunks) -> Floats:
    """Search the n chunks; return the score of each, 0 if it is not a result, shape (n,)."""
    scores = np.zeros(len(chunks.texts))
    for result in search(question, chunks, len(chunks.texts)):
        scores[result.original_index] = result.chunk_score
    return scores


def _select(
    question: str,
    chunks: Chunks,
    sentences: Sequence[_Sentence],
    max_tokens: int,
    counter: TokenCounter,
) -> _SelectedSentences:
    """Select sentences in descending order of utility until `max_tokens` is reached.

    A sentence that does not fit is skipped. The selected sentences are returned in input order.

    Args:
        question: the question that utilities refer to.
        chunks: the chunks.
        sentences: all sentences of the chunks.
        max_tokens: maximum number of tokens of the text of all selected sentences, with ellipses.
        counter: counts the tokens.
    """
    n_ellipsis_tokens = counter.count(_ELLIPSIS)
    n_left = max_tokens
    tokens_by_sentence: dict[int, int] = {}  # in the order of the utility
    utilities = _utilities(question, chunks, sentences)
    for sentence_ord in np.argsort(-utilities, kind="stable").tolist():
        raise_if_cancelled()
        sentence = sentences[sentence_ord]
        text = chunks.texts[sentence.chunk_ord][sentence.previous_end : sentence.end]
        n_tokens = counter.count(text)
        neighbors = {sentence_ord - 1, sentence_ord + 1}
        if tokens_by_sentence and neighbors.isdisjoint(tokens_by_sentence):
            n_tokens += n_ellipsis_tokens
        if n_tokens <= n_left:
            tokens_by_sentence[sentence_ord] = n_tokens
            n_left -= n_tokens
        if not n_left:
            break
    while True:  # a text may have more tokens than its parts
        selected = [sentences[sentence_ord] for sentence_ord in sorted(tokens_by_sentence)]
        text = _join(chunks.texts, selected)
        n_tokens = counter.count(text)
        if n_tokens <= max_tokens:
            return _SelectedSentences(selected, text, n_tokens)
        n_excess = n_tokens - max_tokens
        while n_excess > 0:
            n_excess -= tokens_by_sentence.popitem()[1]


def _join(texts: Sequence[str], sentences: Sequence[_Sentence]) -> str:
    """Return the selected sentences of chunks as one text.

    Consecutive sentences of a chunk keep the text between them. An ellipsis replaces sentences that
    were omitted between two selected sentences of a chunk. A blank line separates chunks.

    Args:
        texts: the texts of all chunks.
        sentences: the selected sentences, in input order.
    """
    parts: list[str] = []
    previous: _Sentence | None = None
    for sentence in sentences:
        start = sentence.start
        if previous is not None and previous.chunk_ord == sentence.chunk_ord:
            start = sentence.previous_end
            if previous.sentence_ord + 1 < sentence.sentence_ord:
                parts.append(_ELLIPSIS)
        elif previous is not None:
            parts.append("\n\n")
        parts.append(texts[sentence.chunk_ord][start : sentence.end])
        previous = sentence
    return "".join(parts)


def _selected_sentences(
    texts: Sequence[str], sentences: Sequence[_Sentence]
) -> tuple[SelectedSentence, ...]:
    selected = []
    next_ord = 0
    for sentence_ord, chunk_ord, _, start, end in sentences:
        text = texts[chunk_ord][start:end]
        n_omitted = sentence_ord - next_ord
        selected.append(SelectedSentence(chunk_ord, start, end, text, n_omitted))
        next_ord = sentence_ord + 1
    return tuple(selected)
