"""Say how likely it is that the chunks hold an answer at all.

    x          = s₁ · c · max(n, 3)
    confidence = x^a / (x^a + h^a)              a = 3.95, h = 0.696; 0 where nothing was found

s₁ is the best score, n the number of different words of the query that count, and c the share of their idf that stands
together: the greatest coverage of a result by a passage of 24 words, as `stages.proximity` defines it, times the share
that words have which some chunk has. Function words count in n and in that share only where no chunk has another word.
So c · n is about how many words of the query one passage holds. A score alone says less: long questions score lower
than short ones, and a question about something else finds a few of its words almost anywhere, but seldom together. One
word or two count as three: who asks so little looks for these very words. A weighting that looks at no passages takes
the best score for the coverage.

The second line is a scale and changes no order. It is set so that ½ is where questions asked of the collection they
were written for, and questions that were written for another, are equally likely, all else being equal; h is that
middle, and a says how fast the one side wins. Both are fitted to the scores of ``pivoted`` on ten public collections,
each asked at most 80 questions of each other; ``bench.answerable --fit`` asks more of them, and comes near. That the
right collection lacks the answer is much harder to tell than that it is the wrong collection. Source: the formula is
ours, measured in docs/measurements.md.
"""

from __future__ import annotations

import math
from typing import Final

from relevance_gen.retrieval.ranking.stage import WeightedQuery

MIDDLE: Final = 0.696
STEEPNESS: Final = 3.95
_FEWEST_WORDS: Final = 3
_LEAST_COVERED: Final = 1e-3
"""The best chunks may hold none of the words that are looked for in passages: of a long query these are the rarest."""


def evidence(best_score: float, covered: float, plan: WeightedQuery) -> float:
    """Return x, at least 0, of the best score and the greatest coverage of a result by a passage, in [0, 1] both."""
    terms = plan.terms
    pluralize = [(terms.idf[number], terms.df[number]) for number in terms.subject]
    known = math.fsum([idf for idf, df in pluralize if df]) / (
        math.fsum([idf for idf, _ in pluralize]) or 1.0
    )
    return best_score * max(covered, _LEAST_COVERED) * known * max(len(pluralize), _FEWEST_WORDS)


def confidence(best_score: float, covered: float, plan: WeightedQuery) -> float:
    """Return the confidence, in [0, 1]; the arguments are those of `evidence`."""
    power = math.pow(evidence(best_score, covered, plan), STEEPNESS)
    return power / (power + math.pow(MIDDLE, STEEPNESS))
