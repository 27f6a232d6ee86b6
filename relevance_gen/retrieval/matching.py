"""Match a word of the query to the words of the chunks: the same word in its inflections, in any language.

No chunk is ever stemmed: the few words of the vocabulary that begin as the query's word does are compared with it.

* Words with the same English stem (Porter2) match in full, but no function word is a form of another word: "can" is
  not what "cans" asks for, nor "does" what "doe" does.
* Languages other than English inflect in more ways than one stemmer knows. There a word also matches words that share
  its beginning, with weight

      s(q, v) = lcp(q, v) / max(|q|, |v|)    if lcp ≥ 3 letters and s ≥ 1/2, else 0

  where lcp is the length of the longest common prefix. This holds for words in other alphabets than Latin, and for
  Latin words where the chunks' frequent words are not English ones.
* A run of a script without spaces that is shorter than its n-grams (猫) matches all n-grams that it is part of (黒猫),
  with weight one over the number of n-grams that one occurrence is part of.
* Of a query with more than 256 different words, the others match only themselves.
* Numbers, identifiers, words of one or two letters, or of 64 bytes and more, and n-grams match only themselves.

Source: Porter2, https://snowballstem.org/algorithms/english/stemmer.html; the prefix rule is ours.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from relevance_gen.retrieval.postings import Postings
from relevance_gen.retrieval.scripts import ngram_size
from relevance_gen.retrieval.stopwords import ENGLISH
from relevance_gen.retrieval.terms import SPELLED_BYTES, Ids, Offsets

MIN_PREFIX: Final = 3
"""Fewest letters that two forms of one word share."""
MIN_SIMILARITY: Final = 0.5
"""Least share of the longer word that the common prefix makes up."""
MAX_CANDIDATES: Final = 1 << 14
"""Most different words of all chunks that one is compared with. Where more begin alike, they are made up and have no
forms: then the word matches itself alone."""
MAX_INFLECTED: Final = 256
"""Most different words of a query whose other forms are looked for: it bounds the work for the longest queries."""

_NO_IDS: Final[Ids] = np.zeros(0, np.uint64)
_stemmers = threading.local()


def stem(word: str) -> str:
    """Return the English stem of a folded word; a word in another alphabet is its own.

    >>> stem("connections"), stem("связь")
    ('connect', 'связь')
    """
    if not hasattr(_stemmers, "english"):
        import Stemmer

        _stemmers.english = Stemmer.Stemmer("english")  # keeps state while it works: one for each thread
    return str(_stemmers.english.stemWord(word)) if word.isascii() and len(word) < SPELLED_BYTES else word


def is_inflected(word: str) -> bool:
    """Tell whether a folded word may have other forms: three letters to 63 bytes, no digit, no n-gram script."""
    if word.isascii() and word.isalpha():  # nearly all words
        return MIN_PREFIX <= len(word) < SPELLED_BYTES
    return (
        len(word) >= MIN_PREFIX
        and len(word.encode()) < SPELLED_BYTES
        and not ngram_size(word)
        and not any(character.isdigit() or character == "_" for character in word)
    )


def is_fragment(word: str) -> bool:
    """Tell whether a folded term is of a script without spaces and shorter than its n-grams."""
    return len(word) < ngram_size(word)


def similarity(word: str, other: str) -> float:
    """Return how far two words share their beginning, in [0, 1]; the module's docstring has the formula.

    >>> similarity("столица", "столицы"), similarity("haus", "hut")
    (0.8571428571428571, 0.0)
    """
    differing = (place for place, (one, two) in enumerate(zip(word, other, strict=False)) if one != two)
    shared = next(differing, min(len(word), len(other)))
    share = shared / max(len(word), len(other))
    return share if shared >= MIN_PREFIX and share >= MIN_SIMILARITY else 0.0


@frozen(eq=False)
class Match:
    """The terms that one word of the query stands for: those of one segment, or of several together.

    Attributes:
        ids: their ids, ascending, shape (n,); empty if no chunk has any.
        weight: how far each counts as the query's word, in (0, 1], shape (n,).
        spellings: their folded spellings.
        n_compared: how many words the word was compared with.
    """

    ids: Ids
    weight: npt.NDArray[np.float64]
    spellings: tuple[str, ...]
    n_compared: int = 0

    @classmethod
    def union(cls, matches: Sequence[Match]) -> Match:
        """Return the match in several segments together."""
        if len(matches) == 1:
            return matches[0]
        ids, first = np.unique(np.concatenate([_NO_IDS, *(match.ids for match in matches)]), return_index=True)
        spellings = [spelling for match in matches for spelling in match.spellings]
        return cls(
            ids,
            np.concatenate([np.zeros(0), *(match.weight for match in matches)])[first],
            tuple(spellings[number] for number in first.tolist()),
            sum(match.n_compared for match in matches),
        )


def match_exactly(postings: Postings, term_id: int, word: str) -> Match:
    """Match a term to itself alone."""
    return _match(postings, [(number, 1.0, word) for number in postings.find(term_id).tolist()])


def match_inflections(postings: Postings, term_id: int, word: str, *, by_prefix: bool) -> Match:
    """Match a word to all its forms among the chunks' words.

    Args:
        postings: the chunks' terms.
        term_id: id of the word.
        word: its folded spelling.
        by_prefix: whether words that share its beginning match too, for a Latin word; for others they always do.
    """
    if is_fragment(word):
        return _match_ngrams(postings, word)
    if not is_inflected(word):
        return match_exactly(postings, term_id, word)
    by_prefix = by_prefix or not word.isascii()
    root = stem(word)
    numbers = _candidates(postings, term_id, word, root, by_prefix=by_prefix)
    if numbers.size > MAX_CANDIDATES:
        return evolve(match_exactly(postings, term_id, word), n_compared=numbers.size)
    found = []
    for number, spelling in zip(numbers.tolist(), postings.spell(numbers), strict=True):
        if is_inflected(spelling) and (spelling not in ENGLISH or spelling == word):
            weight = 1.0 if stem(spelling) == root else similarity(word, spelling) if by_prefix else 0.0
            if weight:
                found.append((number, weight, spelling))
    return _match(postings, found, numbers.size)


def candidates(postings: Postings, term_id: int, word: str, *, by_prefix: bool) -> Ids:
    """Return the ids of the words that `match_inflections` compares an inflected word with, ascending."""
    by_prefix = by_prefix or not word.isascii()
    return postings.ids[_candidates(postings, term_id, word, stem(word), by_prefix=by_prefix)]


def _candidates(postings: Postings, term_id: int, word: str, root: str, *, by_prefix: bool) -> Offsets:
    # A stem is a prefix of its words but for its last letter: fly, flies → fli.
    shared = len(root) - 1
    if by_prefix:
        shared = min(shared, max(MIN_PREFIX, math.ceil(len(word) * MIN_SIMILARITY)))
    return postings.with_prefix(term_id, word[:shared].encode())


def _match_ngrams(postings: Postings, word: str) -> Match:
    """Match a fragment to all terms that it is part of."""
    size = ngram_size(word)
    numbers = postings.containing(word.encode())
    found = [
        (number, 1.0 if len(spelling) < size else 1.0 / (size - len(word) + 1), spelling)
        for number, spelling in zip(numbers.tolist(), postings.spell(numbers), strict=True)
    ]
    return _match(postings, found)


def _match(postings: Postings, found: list[tuple[int, float, str]], n_compared: int = 0) -> Match:
    return Match(
        ids=postings.ids[np.array([number for number, _, _ in found], np.int64)],
        weight=np.array([weight for _, weight, _ in found], np.float64),
        spellings=tuple(spelling for _, _, spelling in found),
        n_compared=n_compared,
    )
