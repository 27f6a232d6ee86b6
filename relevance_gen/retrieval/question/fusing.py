"""Lift the best chunks by what they mean, beside the words: an encoder's part in a ranking.

With the score w that the words give, and the cosine c of the question with the chunk's nearest passage::

    f = 1 − (1 − L)(1 − max(0, c)²)            L = w^(5/7)

A chunk misses the question if both its words and its meaning do. f lies in [w, 1], and only a chunk that scores 1 by
its words scores 1. Nothing is normalised over the results. L is w on a scale on which good scores are as high as good
cosines are, the root of what stands under the power in `relevance_gen.retrieval.question.weighting`. On the scale of
w itself the meaning drowned the words in one collection of seven.

Only the best chunks by their words, the candidates, are lifted. So their order beside all others stays sensible, a
chunk that shares no word with the question stays out, and a question costs one encoding and a few dozen products,
however many chunks there are.

Without that bound, every chunk is compared, and one without a shared word scores c². Function words, such as "the", do
not count as shared words there, unless the question has no other words. Where no chunk has any other word of the
question, ranking by words alone falls back on its function words; with vectors, meaning is the better guide.

Source: the formula is ours, a probabilistic sum of two signals of which neither is a probability; measured in
docs/encoder.md.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.retrieval.arrays import Floats, Offsets
from relevance_gen.retrieval.question.bags import MAX_CHUNKS
from relevance_gen.retrieval.question.collection import Collection
from relevance_gen.retrieval.question.confidence import confidence
from relevance_gen.retrieval.question.filtering import Filter
from relevance_gen.retrieval.question.plan import Plan
from relevance_gen.retrieval.question.ranking import Ranking, at_least_as_good
from relevance_gen.retrieval.question.scoring import SegmentScorer
from relevance_gen.retrieval.segment.passages import Nearest, Passages, TextEncoder, question_vector

N_CANDIDATES: Final = 50
_SCALE: Final = 5 / 7
_NEARLY_ONE: Final = float(np.nextafter(1.0, 0.0))


def fuse(words: Floats, cosines: Floats) -> Floats:
    """Return the scores of chunks from those that their words give, in [0, 1], and their cosines, shape (n,)."""
    scaled = words**_SCALE
    meaning = np.clip(cosines, 0.0, 1.0) ** 2
    return np.where(words < 1.0, np.minimum(scaled + (1.0 - scaled) * meaning, _NEARLY_ONE), 1.0)


@frozen(eq=False)
class Lifted:
    """Some chunks, and how the candidates among them were lifted.

    Attributes:
        positions: positions of all chunks that have a score, ascending, shape (n,).
        words: what their words score, shape (n,).
        scores: shape (n,).
        candidates: places of the candidates among them, ascending, shape (m,).
        nearest: the nearest passage of each candidate.
        confidence: how likely it is, by the words, that an answer is among them.
    """

    positions: Offsets
    words: Floats
    scores: Floats
    candidates: Offsets
    nearest: Nearest
    confidence: float


def rank(
    collection: Collection,
    encoder: TextEncoder,
    text: str,
    top_n: int,
    chosen: Filter | None = None,
    n_candidates: int | None = N_CANDIDATES,
) -> Ranking:
    """Return the `top_n` best chunks, best first, with scores in (0, 1]; the others are left out.

    Args:
        collection: the chunks.
        encoder: tells what texts mean.
        text: the query.
        top_n: most chunks.
        chosen: which chunks may be results; None allows all.
        n_candidates: how many of the best by their words are lifted, and all that are as good as the last of them; None
            compares every chunk.
    """
    lifted = lift(collection, encoder, collection.plan(text), top_n, chosen, n_candidates)
    some = np.flatnonzero(lifted.scores > 0.0)
    return Ranking(lifted.positions[some], lifted.scores[some], lifted.confidence).best(top_n)


def lift(
    collection: Collection,
    encoder: TextEncoder,
    plan: Plan,
    n: int = 1,
    chosen: Filter | None = None,
    n_candidates: int | None = N_CANDIDATES,
) -> Lifted:
    """Score the best `n` chunks and more by their words, and lift the candidates among them; arguments as in `rank`."""
    found = collection.assess(plan, max(n, N_CANDIDATES, n_candidates or collection.statistics.n_chunks), chosen)
    positions, words = found.positions, found.scores
    sure = confidence(float(words.max()), plan) if words.size else 0.0
    if n_candidates is None:
        positions = np.sort(np.concatenate(collection.ask(SegmentScorer.positions, chosen)))
        words = np.zeros(positions.size)
        if words_count(plan, n_candidates):
            words[np.searchsorted(positions, found.positions)] = found.scores
        candidates: Offsets = np.arange(positions.size)
    else:
        candidates = _candidates(words, n_candidates)
    nearest = _nearest(collection, encoder, plan.query.text, positions[candidates])
    scores = words.copy()
    scores[candidates] = fuse(words[candidates], nearest.cosines)
    return Lifted(positions, words, scores, candidates, nearest, sure)


def words_count(plan: Plan, n_candidates: int | None) -> bool:
    """Tell whether shared words count beside the meaning: not function words alone, where every chunk is compared."""
    return n_candidates is not None or not plan.by_function_words


def _candidates(words: Floats, n: int) -> Offsets:
    """Return the places of the best n with their ties; where very many tie for the last place, without those."""
    best = at_least_as_good(words, n)
    return best if best.size <= n + MAX_CHUNKS else best[words[best] > words[best].min()]


def _nearest(collection: Collection, encoder: TextEncoder, text: str, positions: Offsets) -> Nearest:
    """Return the nearest passage of each of some chunks, encoding what no segment keeps vectors of."""
    found = Nearest(np.zeros(positions.size), *np.zeros((2, positions.size), np.int64))
    if not positions.size:
        return found
    question = question_vector(text, encoder)
    for here, nearest in collection.read(positions, SegmentScorer.nearest, question):
        if nearest is None and here.size:
            texts = [text for text, _ in collection.contents(positions[here])]
            passages = Passages.of(texts, encoder)
            nearest = passages.nearest(np.arange(here.size), question)
        if nearest is not None:
            found.cosines[here], found.starts[here], found.ends[here] = nearest.cosines, nearest.starts, nearest.ends
    return found
