r"""The function `compress`: select the sentences of chunks that are most relevant to a question.

The utility of a sentence s of a chunk d is

    v(s) = score(s) + ¼ · (score(sentence before s) + score(sentence after s)) + ½ · score(d)

Scores are those of a search among all sentences of all chunks, with the title of the chunk, and of a
search among the chunks. Only neighbors in the same chunk count. Sentences are selected in the order
of their utility; a sentence that does not fit is skipped. The first of equal sentences wins.

Source: the rule is ours, measured in bench/compress.py.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

import numpy as np

from relevance_gen import checks
from relevance_gen.arrays import Floats
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.records.validation import read_chunks
from relevance_gen.request_scope import raise_if_cancelled, reserve
from relevance_gen.retrieval.api import search
from relevance_gen.text.chunking import sentences
from relevance_gen.text.token_counting import Encoding, TokenCounter, token_counter
from relevance_gen.types import (
    Chunk,
    CompressionResponse,
    Metadata,
    SelectedSentence,
)

_OF_NEIGHBOUR: Final = 0.25
_OF_CHUNK: Final = 0.5
_LEFT_OUT: Final = " …"
"""Replaces omitted sentences between two selected sentences of a chunk."""
_STEP: Final = 256
"""Sentences for which memory is reserved at once."""


class _Sentence(NamedTuple):
    """A sentence: its index, its chunk, the end of the sentence before, and its own span."""

    number: int
    chunk: int
    behind_last: int
    start: int
    end: int


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

    >>> kept = compress("Who purrs?", ["It rained. Cats purr. Dogs bark.", "Tea is hot."], max_tokens=5)
    >>> kept.text, [(one.original_index, one.start, one.end, one.num_omitted_before) for one in kept]
    ('Cats purr.', [(0, 11, 21, 1)])
    """
    question = checks.to_python_scalar(question)
    checks.not_blank.check("question", question)
    max_tokens = checks.check_integer("max_tokens", max_tokens, 1)
    counter = token_counter(encoding)
    checked = read_chunks(chunks)
    cut = _cut(checked.texts)
    n_context_tokens = counter.count_all(checked.texts)
    text = _joined(checked.texts, cut) if n_context_tokens <= max_tokens else ""
    n_tokens = counter.count(text)
    if cut and (not text or n_tokens > max_tokens):
        cut, text, n_tokens = _chosen(question, checked, cut, max_tokens, counter)
    return CompressionResponse(_kept(checked.texts, cut), text, n_tokens, n_context_tokens)


def _cut(texts: Sequence[str]) -> list[_Sentence]:
    """Return the sentences of all texts."""
    reserve("sentence_char", max(map(len, texts), default=0))
    cut: list[_Sentence] = []
    for chunk, text in enumerate(texts):
        behind_last = 0
        for start, end in sentences(text):
            if len(cut) % _STEP == 0:
                raise_if_cancelled()
                reserve("sentence", _STEP)
            cut.append(_Sentence(len(cut), chunk, behind_last, start, end))
            behind_last = end
    return cut


def _sentence_utilities(question: str, chunks: Chunks, cut: Sequence[_Sentence]) -> Floats:
    """Return the utility of each sentence, shape (number of sentences,)."""
    titles = {one.number: chunks.titles[one.chunk] for one in cut if one.chunk in chunks.titles}
    own = _scores(
        question, Chunks([chunks.texts[one.chunk][one.start : one.end] for one in cut], {}, titles)
    )
    chunk = np.array([one.chunk for one in cut])
    beside = _OF_NEIGHBOUR * (chunk[1:] == chunk[:-1])
    worth: Floats = own + _OF_CHUNK * _scores(question, chunks)[chunk]
    worth[1:] += beside * own[:-1]
    worth[:-1] += beside * own[1:]
    return worth


def _scores(question: str, chunks: Chunks) -> Floats:
    """Return the score of every chunk, 0 for chunks that are no results."""
    scores = np.zeros(len(chunks.texts))
    for result in search(question, chunks, len(chunks.texts)):
        scores[result.original_index] = result.chunk_score
    return scores


def _chosen(
    question: str, chunks: Chunks, cut: Sequence[_Sentence], max_tokens: int, counter: TokenCounter
) -> tuple[list[_Sentence], str, int]:
    """Return the sentences to keep, in order, and their text with its number of tokens, at most `max_tokens`."""
    n_of_mark, left = counter.count(_LEFT_OUT), max_tokens
    kept: dict[
        int, int
    ] = {}  # the numbers of sentences and what each takes, the one that is worth most first
    for number in np.argsort(-_sentence_utilities(question, chunks, cut), kind="stable").tolist():
        raise_if_cancelled()
        is_apart = kept and number - 1 not in kept and number + 1 not in kept
        _, chunk, behind_last, _, end = cut[number]
        n_tokens = counter.count(chunks.texts[chunk][behind_last:end]) + (
            n_of_mark if is_apart else 0
        )
        if n_tokens <= left:
            kept[number] = n_tokens
            left -= n_tokens
        if not left:
            break
    while True:  # a text may have more tokens than its parts
        chosen = [cut[number] for number in sorted(kept)]
        text = _joined(chunks.texts, chosen)
        n_tokens = counter.count(text)
        if n_tokens <= max_tokens:
            return chosen, text, n_tokens
        excess = n_tokens - max_tokens
        while excess > 0:
            excess -= kept.popitem()[1]


def _joined(texts: Sequence[str], kept: Sequence[_Sentence]) -> str:
    """Return the text of sentences in order; consecutive sentences keep the text between them."""
    parts: list[str] = []
    for before, one in zip([None, *kept], kept, strict=False):
        if before is None or before.chunk != one.chunk:
            parts += "\n\n" * (before is not None), texts[one.chunk][one.start : one.end]
        else:
            parts += (
                _LEFT_OUT * (before.number + 1 < one.number),
                texts[one.chunk][one.behind_last : one.end],
            )
    return "".join(parts)


def _kept(texts: Sequence[str], kept: Sequence[_Sentence]) -> tuple[SelectedSentence, ...]:
    numbers = [-1, *(one.number for one in kept)]
    n_left_out = [number - before - 1 for before, number in itertools.pairwise(numbers)]
    return tuple(
        SelectedSentence(one.chunk, one.start, one.end, texts[one.chunk][one.start : one.end], n)
        for one, n in zip(kept, n_left_out, strict=True)
    )
