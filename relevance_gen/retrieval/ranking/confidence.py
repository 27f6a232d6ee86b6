"""Estimate the probability that the chunks have an answer to the query at all.

    x          = s₁ · c · max(n, 3)
    confidence = x^a / (x^a + h^a)              a = 3.95, h = 0.696; 0 without results

s₁ is the best score, n the number of distinct words of the query with weight, and c the share of
their idf in one place: the greatest coverage of a result by a window of 24 tokens, as
`stages.proximity` defines it, times the share of the idf that words have which occur in any chunk.
Stop words are part of n and of that share only if no chunk has another word. So c · n is about the
number of words of the query in one window. A score alone is not sufficient: long queries score
lower than short ones, and a query about another subject finds a few of its words almost anywhere,
but seldom together. One or two words count as three: users who enter so few words look for exactly
these. A weighting without windows uses the best score as coverage.

The second line is a scale and changes no order. At ½, queries written for the collection and
queries written for other collections are equally likely, if all else is equal; h is that middle,
and a is its steepness. Both are fitted to the scores of ``pivoted`` on ten public collections, each
searched with at most 80 queries of each other collection; a fit to more kinds of collections gave
nearly the same, and ``bench.answerable --fit``, which uses more queries, comes close. That the
right collection lacks the answer is much harder to detect than that it is the wrong collection.
Source: the formula is ours, measured in docs/measurements.md.
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
