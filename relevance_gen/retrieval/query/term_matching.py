"""Match a word of the query to its inflections among the terms of the chunks, in any language.

No chunk is stemmed: the word is compared with the terms of the dictionary that have the same
beginning.

* Words with the same English stem (Porter2) match with weight 1, but stop words are not inflections
  of other words: "can" does not match "cans", nor "does" "doe".
* Other languages have more inflections than one stemmer can handle. In these, a word also matches
  words with a common prefix, with weight

      s(q, v) = lcp(q, v) / max(|q|, |v|)    if lcp ≥ 4 letters and s ≥ 1/2, else 0

  where lcp is the length of the longest common prefix; except in Latin letters, three letters are
  sufficient if s ≥ 3/5. This applies to words in other alphabets than Latin, and to Latin words if
  the chunks' frequent words are not English. A word that begins in another alphabet and continues
  in Latin letters must also share its first six bytes.
* A run of a script without spaces that is shorter than its n-grams (猫) matches all n-grams that
  contain it (黒猫), with weight one over the number of n-grams that contain one occurrence.
* A word has at most 1,024 inflections in all chunks: if more words are similar, they are
  artificial, and the word matches only itself.
* A prefix (``bridg*``) matches all words that begin with it, at most 1,024, with weight 1.
* Only the first 256 distinct words of a query match inflections; its other words match only
  themselves.
* Numbers, identifiers, words of one or two letters, or of 64 bytes or more, and n-grams match only
  themselves.

Source: Porter2, https://snowballstem.org/algorithms/english/stemmer.html; the prefix rule is ours.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
from attrs import frozen

from relevance_gen.arrays import ChunkOrds, Flags, Floats, Ids, Offsets, concat, unique
from relevance_gen.index.lexicon import Lexicon
from relevance_gen.index.postings import Postings
from relevance_gen.text.scripts import ngram_size
from relevance_gen.text.word_forms import MIN_LETTERS, is_partial_ngram

_MIN_PREFIX: Final = 4
"""Minimum number of letters that inflections have in common."""
_MIN_SIMILARITY: Final = 0.5
"""Minimum share of the longer word's letters that inflections have in common."""
_MIN_SHORT_SIMILARITY: Final = 0.6
"""Minimum share if inflections have only three letters in common, which is not sufficient in Latin
letters."""
MAX_INFLECTIONS: Final = 1 << 10
"""Maximum number of inflections of a word, in all chunks together."""
MAX_INFLECTED_TERMS: Final = 256
"""Maximum number of distinct words of a query that match inflections; bounds the work for very long
queries."""

_ONES: Final[Floats] = np.ones(MAX_INFLECTIONS + 1)


@frozen
class QueryTerm:
    """Words of a query that have one stem."""

    word: str  # normalized spelling of the first
    term_id: int  # its id
    key: Hashable  # equal for all words of the term
    is_stop_word: bool  # whether it is a stop word
    is_inflected: bool  # whether it matches its inflections
    stem: str | None = None  # its English stem; None if it cannot be inflected
    is_number: bool = False  # whether it is a number other than a year
    qtf: int = 1  # number of occurrences in the query, at least 1
    is_question_word: bool = False  # whether it is a stop word that is never weighted
    is_prefix: bool = False  # whether it matches all words that begin with it; if so, inflected too

    def as_question_word(self) -> QueryTerm:
        """Return the term marked as a question word: a stop word without inflections."""
        return QueryTerm(
            word=self.word,
            term_id=self.term_id,
            key=self.key,
            is_stop_word=True,
            is_inflected=False,
            qtf=self.qtf,
            is_question_word=True,
        )


@frozen(eq=False)
class Match:
    """The terms that a word of the query matches, in one segment or in several together, by id.

    Unlike the ordinals in `Inflections`, the id of a term is the same in every segment.
    """

    ids: Ids  # ids of the terms, ascending, shape (n,)
    weight: Floats  # weight of each term as an occurrence of the word, in (0, 1], shape (n,)
    df: int = 0  # number of chunks with any of the terms
    counts_in_full: bool = False  # whether all weights are known to be 1

    @classmethod
    def union(cls, matches: Sequence[Match]) -> Match:
        """Return the union of a word's matches in several segments, with the sum of their df."""
        if len(matches) == 1:
            return matches[0]
        df = sum([match.df for match in matches])
        ids = concat([match.ids for match in matches], np.uint64)
        ids, first = np.unique(ids, return_index=True)
        if all(match.counts_in_full for match in matches):
            return cls.in_full(ids, df)
        weight = concat([match.weight for match in matches], np.float64)[first]
        return cls(ids, weight, df)

    @classmethod
    def in_full(cls, ids: Ids, df: int) -> Match:
        """Return a match of the terms with these ids, each with weight 1."""
        weight = _ONES[: ids.size]
        if weight.size < ids.size:
            weight = np.ones(ids.size)
        return cls(ids, weight, df, counts_in_full=True)

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        return self.ids.nbytes + self.weight.nbytes


@frozen(eq=False)
class TermPostings:
    """The postings of the terms that a word of the query matches in one segment."""

    matched: Match  # the terms of the segment
    chunk: ChunkOrds  # ordinals of the chunks that have any of them, ascending, shape (df,)
    tf: npt.NDArray[Any]  # sum of the terms' counts in each chunk, times match weights, shape (df,)
    weight: Floats  # weight of that count in the chunk, without idf, shape (df,)

    @property
    def nbytes(self) -> int:
        """Size of the arrays in bytes."""
        n_bytes = self.matched.nbytes
        return n_bytes + self.chunk.nbytes + self.tf.nbytes + self.weight.nbytes


@frozen(eq=False)
class Inflections:
    """Terms of one dictionary that a word matches, by their ordinals; see `Match`."""

    term_ords: Offsets  # ordinals of the terms, ascending, shape (n,)
    weight: Floats | None = None  # weight of each; None if all are 1

    def take(self, selected: Offsets | Flags) -> Inflections:
        """Return the terms at the selected indices, or for which the selected flags are True."""
        weight = None if self.weight is None else self.weight[selected]
        return Inflections(self.term_ords[selected], weight)

    def match(self, lexicon: Lexicon, df: int) -> Match:
        """Return the same terms and weights as a `Match`, which has ids instead of ordinals."""
        ids = lexicon.ids.take(self.term_ords)
        if self.weight is None:
            return Match.in_full(ids, df)
        return Match(ids, self.weight, df)


def match_indices(matches: Sequence[Match], lexicon: Lexicon) -> npt.NDArray[np.uint8]:
    """Return for each of the V terms of a dictionary the number of the match that contains it.

    Matches, at most 255, are numbered from 1; 0 is for a term that is in none of them. If several
    matches contain a term, the number is that of the match that gives it the greatest weight, the
    first of equals. The shape is (V + 1,). The last element, which is 0, is for the value V in
    `TokenSequences.terms`, which stands for a gap between chunks.
    """
    # In reversed order, so that of equal weights the first match is assigned last.
    matches = matches[::-1]
    ids_of_matches, n_ids, is_in_full = [], [], True
    for match in matches:
        ids_of_matches.append(match.ids)
        n_ids.append(match.ids.size)
        is_in_full = is_in_full and match.counts_in_full
    ids = concat(ids_of_matches, np.uint64)
    descending = np.arange(len(matches), 0, -1, dtype=np.uint8)
    index = descending.repeat(n_ids)
    if not is_in_full:
        order = np.concatenate([match.weight for match in matches]).argsort(kind="stable")
        ids, index = ids[order], index[order]
    indices = np.zeros(lexicon.ids.size + 1, np.uint8)
    indices[lexicon.find(ids)] = index
    indices[-1] = 0  # also assigned by the terms that are not in the dictionary
    return indices


def live_inflections(postings: Postings, term: QueryTerm, *, by_prefix: bool) -> Inflections:
    """Return the first `MAX_INFLECTIONS` + 1 terms that a word matches in chunks not removed.

    More than `MAX_INFLECTIONS` terms mean that the word matches only itself; one more is sufficient
    to detect that. The arguments are as for `find_inflections`.
    """
    inflections = find_inflections(postings, term, by_prefix=by_prefix)
    if postings.live is not None and inflections.term_ords.size:
        inflections = inflections.take(postings.df(inflections.term_ords) > 0)
    if inflections.term_ords.size > MAX_INFLECTIONS:
        inflections = inflections.take(np.arange(MAX_INFLECTIONS + 1))
    return inflections


def inflections_among(postings: Postings, match: Match) -> Inflections:
    """Return the terms of a match that occur in the chunks of one segment."""
    term_ords = postings.lexicon.find(match.ids)
    is_present = term_ords >= 0
    if postings.live is not None:
        is_present[is_present] = postings.df(term_ords[is_present]) > 0
    weight = None if match.counts_in_full else match.weight
    return Inflections(term_ords, weight).take(is_present)


def find_inflections(postings: Postings, term: QueryTerm, *, by_prefix: bool) -> Inflections:
    """Return the terms of a segment that a word of the query matches, with weights.

    A prefix matches all terms that begin with it. A word that cannot be inflected matches itself,
    or if it is a part of an n-gram, all n-grams that contain it. Other words match the terms with
    the same stem, and possibly terms with a common prefix. Unlike `live_inflections`, the result
    has also terms that occur only in removed chunks, and any number of terms.

    Args:
        postings: the postings of a segment.
        term: the word, which is no stop word; `is_inflected` is not read.
        by_prefix: whether an ASCII word also matches by prefix; words with other characters always
            do.
    """
    lexicon = postings.lexicon
    word, term_id = term.word, term.term_id
    if term.is_prefix:
        return Inflections(concat(lexicon.find_beginning(term_id, word.encode()), np.int64))
    if term.stem is None:
        if is_partial_ngram(word):
            return _find_ngrams(lexicon, word)
        return Inflections(lexicon.find_exact(term_id))
    same_stem = lexicon.find_by_stem(term_id, term.stem)
    if not by_prefix and word.isascii():
        return Inflections(same_stem)
    same_prefix = _find_by_prefix(postings, term_id, word)
    term_ords = unique(np.concatenate((same_stem, same_prefix.term_ords)))
    weight = np.zeros(term_ords.size)
    weight[term_ords.searchsorted(same_prefix.term_ords)] = same_prefix.weight
    weight[term_ords.searchsorted(same_stem)] = 1.0
    return Inflections(term_ords, weight)


def _find_ngrams(lexicon: Lexicon, word: str) -> Inflections:
    """Return the n-grams of a dictionary that contain a shorter word, with their weights.

    n depends on the script of the word.
    """
    term_ords = lexicon.find_by_substring(word.encode())
    size = ngram_size(word)
    n_containing = size - len(word) + 1
    weights = []
    for term in lexicon.decode_terms(term_ords):
        weights.append(1.0 if len(term) < size else 1.0 / n_containing)
    return Inflections(term_ords, np.array(weights))


def _find_by_prefix(postings: Postings, term_id: int, word: str) -> Inflections:
    """Return the terms that have a prefix in common with a word, and the weight of each."""
    lexicon = postings.lexicon
    n_required = max(MIN_LETTERS, math.ceil(len(word) * _MIN_SIMILARITY))
    term_ords, weights = [], []
    prefix = word[:n_required].encode()
    for batch in lexicon.find_by_prefix(term_id, prefix, word.encode()):
        weight = batch.n_shared / np.maximum(batch.n_letters, len(word))
        is_similar = (batch.n_shared >= _MIN_PREFIX) & (weight >= _MIN_SIMILARITY)
        if "\u0370" <= word[0] < "\u1e00":  # neither Latin nor Vietnamese with tone marks
            is_similar |= (batch.n_shared == MIN_LETTERS) & (weight >= _MIN_SHORT_SIMILARITY)
        is_similar &= lexicon.prefix_ords[batch.term_ords] != 0  # no stop words
        term_ords.append(batch.term_ords[is_similar])
        weights.append(weight[is_similar])
    return Inflections(concat(term_ords, np.int64), concat(weights, np.float64))
