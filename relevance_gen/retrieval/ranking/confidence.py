"""Estimate the probability that the chunks have an answer to the query at all.

    x          = s₁ · c · max(n, 3)
    confidence = x^a / (x^a + h^a)              a = 3.95, h = 0.696; 0 without results

* s₁ is the best score.
* n is the number of distinct words of the query that have a weight.
* c is a product of two factors. The first is the greatest coverage of a result by a window of 24
  tokens, as `stages.proximity` defines it. The second is the idf of the words that occur in any
  chunk, divided by the idf of all n words.

Stop words are counted in n and in the second factor only if no chunk has another word of the query.
So c · n is approximately the number of words of the query in one window. A score alone is not
sufficient: long queries score lower than short queries, and a few words of a query about another
subject occur in almost any collection, but seldom close together. One or two words count as three,
because users who enter so few words look for exactly these words. For a weighting without windows,
the best score is used as the coverage.

The second line of the formula is only a scale: of two queries, the query with the greater x has the
greater confidence. The confidence is ½ if a query that was written for the collection, and a query
that was written for another collection, are equally likely to have this x. h is the x at which that
happens, and a is the steepness there. Both are fitted to the scores of ``pivoted`` on ten public
collections; each was searched with at most 80 queries of each other collection. A fit to more kinds
of collections gave nearly the same values, and ``bench.answerable --fit``, which uses more queries,
gives similar values. The estimate detects much better that the query is about another subject than
that the collection, although it is about the subject, lacks the answer. Source: the formula is
ours, measured in docs/measurements.md.
"""

from __future__ import annotations

import math
from typing import Final

from relevance_gen.retrieval.ranking.stage import WeightedTerms

MIDDLE: Final = 0.696
STEEPNESS: Final = 3.95
_MIN_WORDS: Final = 3
_MIN_COVERAGE: Final = 1e-3
"""Minimum coverage in the formula: only the rarest words of a long query are counted in windows,
and the best chunks may contain none of these words."""


def evidence(best_score: float, coverage: float, terms: WeightedTerms) -> float:
    """Return x of the module's formula, at least 0.

    Args:
        best_score: the best score, in [0, 1].
        coverage: the greatest window coverage of a result, in [0, 1].
        terms: the weighted terms of the query.
    """
    all_idf, known_idf = [], []
    for i in terms.subject:
        all_idf.append(terms.idf[i])
        if terms.df[i]:
            known_idf.append(terms.idf[i])
    known_share = math.fsum(known_idf) / (math.fsum(all_idf) or 1.0)
    n_words = max(len(all_idf), _MIN_WORDS)
    return best_score * max(coverage, _MIN_COVERAGE) * known_share * n_words


def confidence(best_score: float, coverage: float, terms: WeightedTerms) -> float:
    """Return the confidence, in [0, 1]; `evidence` documents the arguments."""
    power = math.pow(evidence(best_score, coverage, terms), STEEPNESS)
    return power / (power + math.pow(MIDDLE, STEEPNESS))
