"""Match a word of the query to the words of the chunks: the same word in its inflections, in any language.

No chunk is ever stemmed: the query's word is compared with the terms of the lexicon that begin as it does.

* Words with the same English stem (Porter2) match in full, but no function word is a form of another word: "can" is
  not what "cans" asks for, nor "does" what "doe" does.
* Languages other than English inflect in more ways than one stemmer knows. There a word also matches words that share
  its beginning, with weight

      s(q, v) = lcp(q, v) / max(|q|, |v|)    if lcp ≥ 4 letters and s ≥ 1/2, else 0

  where lcp is the length of the longest common prefix; outside Latin three letters do if s ≥ 3/5. This holds for words
  in other alphabets than Latin, and for Latin words where the chunks' frequent words are not English ones. A word that
  begins in another alphabet and goes on in Latin letters must share its first six bytes too.
* A run of a script without spaces that is shorter than its n-grams (猫) matches all n-grams that it is part of (黒猫),
  with weight one over the number of n-grams that one occurrence is part of.
* A word has at most 1,024 forms in all chunks: where more words are alike, they are made up, and it matches itself.
* Of a query with more than 256 different words, the others match only themselves.
* Numbers, identifiers, words of one or two letters, or of 64 bytes and more, and n-grams match only themselves.

Source: Porter2, https://snowballstem.org/algorithms/english/stemmer.html; the prefix rule is ours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import ChunkOrds, Floats, Ids, Offsets, concat, unique
from relevance_gen.index.lexicon import Lexicon
from relevance_gen.index.postings import Postings
from relevance_gen.text.scripts import ngram_size
from relevance_gen.text.stems import MIN_LETTERS, can_inflect, is_partial_ngram, stem
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS

_MIN_PREFIX: Final = 4
_MIN_SIMILARITY: Final = 0.5
"""Fewest letters that two forms of one word share, and the least share of the longer word that these make up."""
_MIN_SHORT_SIMILARITY: Final = 0.6
"""The share that they must make up where they are only three, which does outside Latin."""
MAX_FORMS: Final = 1 << 10
"""Most forms of a word, those of all chunks together."""
MAX_INFLECTED: Final = 256
"""Most different words of a query whose other forms are looked for: it bounds the work for the longest queries."""

_ONES: Final[Floats] = np.ones(MAX_FORMS + 1)


@frozen(eq=False)
class Match:
    """The terms that one word of the query stands for, none or more: of one segment, or of several together."""

    ids: Ids  # their ids, ascending, shape (n,)
    weight: Floats  # how far each counts as the query's word, in (0, 1], shape (n,)
    counts_in_full: bool = False  # whether it is known that all weights are 1

    @classmethod
    def union(cls, matches: Sequence[Match]) -> Match:
        """Return the match in several segments together."""
        if len(matches) == 1:
            return matches[0]
        ids, first = np.unique(
            concat((match.ids for match in matches), np.uint64), return_index=True
        )
        if all(match.counts_in_full for match in matches):
            return cls.in_full(ids)
        return cls(ids, concat((match.weight for match in matches), np.float64)[first])

    @classmethod
    def in_full(cls, ids: Ids) -> Match:
        """Return a match of terms that all are as good as the query's word."""
        return cls(ids, _ONES[: ids.size] if ids.size <= _ONES.size else np.ones(ids.size), True)

    @classmethod
    def exact(cls, term_id: int) -> Match:
        """Return the match of a term with itself."""
        return cls.in_full(np.array([term_id], np.uint64))

    @property
    def nbytes(self) -> int:
        """Memory of the arrays, in bytes."""
        return self.ids.nbytes + self.weight.nbytes

    @property
    def is_crowded(self) -> bool:
        """Whether the word has more forms than any language makes."""
        return self.ids.size > MAX_FORMS


@frozen(eq=False)
class TermMatch:
    """The terms that a word of the query matches, and the number of chunks that have any of them."""

    match: Match
    df: int

    @classmethod
    def union(cls, parts: Sequence[TermMatch]) -> TermMatch:
        """Return the terms that the word matches in several segments together."""
        return cls(Match.union([part.match for part in parts]), sum([part.df for part in parts]))


@frozen(eq=False)
class TermPostings:
    """The postings of the terms that a word of the query matches in one segment."""

    matched: TermMatch  # the terms of the segment, and df
    chunk: ChunkOrds  # ordinals of the chunks that have any of them, ascending, shape (df,)
    tf: npt.NDArray[
        Any
    ]  # sum of the terms' counts in each chunk, times their match weights, shape (df,)
    weight: Floats  # weight of that count in the chunk, without idf, shape (df,)

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return self.matched.match.nbytes + self.chunk.nbytes + self.tf.nbytes + self.weight.nbytes


def numbers_of_matches(matches: Sequence[Match], lexicon: Lexicon) -> npt.NDArray[np.uint8]:
    """Return for each of V words which of at most 255 matches has it, from 1 on; 0 for none, and for no word.

    Of several that have a word, the one counts in which it has the greatest weight. Shape (V + 1,).
    """
    matches = matches[::-1]
    ids = concat([match.ids for match in matches], np.uint64)
    number = np.arange(len(matches), 0, -1, dtype=np.uint8).repeat(
        [match.ids.size for match in matches]
    )
    if not all(match.counts_in_full for match in matches):
        order = np.concatenate([match.weight for match in matches]).argsort(kind="stable")
        ids, number = ids[order], number[order]
    numbers = np.zeros(lexicon.size + 1, np.uint8)
    numbers[lexicon.find(ids)] = number
    numbers[-1] = 0  # that of no word, and of those that were not found
    return numbers


def match_inflections(postings: Postings, term_id: int, word: str, *, by_prefix: bool) -> Match:
    """Match a word to all its forms among the chunks' words; the arguments are those of `inflections`."""
    numbers, weight = inflections(postings, term_id, word, by_prefix=by_prefix)
    if postings.live is not None and numbers.size:
        kept = postings.df(numbers) > 0
        numbers, weight = numbers[kept], None if weight is None else weight[kept]
    # One form too many tells that a word is crowded; any more would only take memory.
    numbers = numbers[: MAX_FORMS + 1]
    ids = postings.lexicon.ids.take(numbers)
    return Match.in_full(ids) if weight is None else Match(ids, weight[: MAX_FORMS + 1])


def match_among(postings: Postings, whole: Match) -> Match:
    """Return what is left of a match in several segments together in one of them."""
    numbers = postings.lexicon.find(whole.ids)
    here = numbers >= 0
    if postings.live is not None:
        here[here] = postings.df(numbers[here]) > 0
    ids = whole.ids[here]
    return Match.in_full(ids) if whole.counts_in_full else Match(ids, whole.weight[here])


def inflections(
    postings: Postings, term_id: int, word: str, *, by_prefix: bool
) -> tuple[Offsets, Floats | None]:
    """Return the numbers of a folded word's forms, however many, and the weight of each; None where all count in full.

    With `by_prefix` words that share a Latin word's beginning match, too; for others they always do.
    """
    lexicon = postings.lexicon
    if is_partial_ngram(word):
        numbers = lexicon.find_by_substring(word.encode())
        size = ngram_size(word)
        least = 1.0 / (size - len(word) + 1)
        return numbers, np.array(
            [1.0 if len(one) < size else least for one in lexicon.decode_terms(numbers)]
        )
    if not can_inflect(word):
        return lexicon.find_exact(term_id), None
    numbers = lexicon.find_by_stem(term_id, stem(word))
    if word in ENGLISH_STOP_WORDS:
        numbers = unique(np.concatenate((numbers, lexicon.find_exact(term_id))))
    if not by_prefix and word.isascii():
        return numbers, None
    related, weight = _by_prefix(postings, term_id, word)
    both = unique(np.concatenate((numbers, related)))
    weights = np.zeros(both.size)
    weights[both.searchsorted(related)] = weight
    weights[both.searchsorted(numbers)] = 1.0
    return both, weights


def _by_prefix(postings: Postings, term_id: int, word: str) -> tuple[Offsets, Floats]:
    """Return the numbers of the words that share their beginning with a word, and the weight of each."""
    lexicon = postings.lexicon
    least = max(MIN_LETTERS, math.ceil(len(word) * _MIN_SIMILARITY))
    found = lexicon.find_by_prefix(term_id, word[:least].encode(), word.encode())
    numbers, shared = found.term_ords, found.n_shared
    weight = shared / np.maximum(found.n_letters, len(word))
    enough = (shared >= _MIN_PREFIX) & (weight >= _MIN_SIMILARITY)
    if "\u0370" <= word[0] < "\u1e00":  # neither Latin nor, with its tones, Vietnamese
        enough |= (shared == MIN_LETTERS) & (weight >= _MIN_SHORT_SIMILARITY)
    enough &= lexicon.prefix_ords[numbers] != 0  # no function word is a form of another
    return numbers[enough], weight[enough]
