"""Say how likely it is that the chunks hold an answer at all.

    x          = s₁ · known · n^(1/4)
    confidence = x^a / (x^a + h^a)              a = 3.87, h = 0.338; 0 where nothing was found

s₁ is the best score, n the number of different words of the query that count, and known the share of their idf that
words have which some chunk has; function words count only where no chunk has any other word. A score alone says less:
long questions score lower than short ones, and a question about something else finds a few of its words almost
anywhere.

The second line is a scale and changes no order. It is set so that ½ is where questions asked of the collection they
were written for, and questions that were written for another, are equally likely, all else being equal; h is that
middle, and a says how fast the one side wins. Both are fitted to the scores of ``pivoted`` by ``bench.answerable
--fit``, on ten public collections. That the right collection lacks the answer is much harder to tell than that it is
the wrong collection. Source: the formula is ours, measured in docs/retrieval.md.
"""

from __future__ import annotations

import math
from typing import Final

from relevance_gen.retrieval.question.stage import Plan

MIDDLE: Final = 0.338
STEEPNESS: Final = 3.87


def evidence(best_score: float, plan: Plan) -> float:
    """Return x, at least 0.

    Args:
        best_score: score of the best chunk, in [0, 1].
        plan: the query, weighed.
    """
    terms = plan.terms
    counted = [(terms.idf[number], terms.df[number]) for number in terms.subject]
    known = math.fsum([idf for idf, df in counted if df]) / (math.fsum([idf for idf, _ in counted]) or 1.0)
    return best_score * known * math.sqrt(math.sqrt(len(counted)))


def confidence(best_score: float, plan: Plan) -> float:
    """Return the confidence, in [0, 1]; the arguments are those of `evidence`."""
    power = math.pow(evidence(best_score, plan), STEEPNESS)
    return power / (power + math.pow(MIDDLE, STEEPNESS))
