r"""The formulas: how much a term weighs in a chunk, in the query, and what a chunk's length takes off.

The file is long because every formula, and every choice that depends on the weighting, stands in it.

Both weightings are cosines of TF-IDF vectors, with N chunks, df(t) of which hold term t:

``pivoted`` (the default) answers questions best::

    w(t, d) = tf / (tf + 1.6)            idf(t) = ln(1 + N / df)
    w(t, q) = (1 + ln qtf) · idf(t)      n(d) = ‖w(·, d)‖₂      m = mean of n over all chunks
    cosine(q, d) = Σ_t w(t, q) w(t, d) / (‖w(·, q)‖₂ · (0.4 m + 0.6 n(d)))

It is a cosine if each chunk is given one extra coordinate, which is zero in every query, so that the chunk's length
equals its denominator: pivoted normalisation. Source: Singhal, Buckley, Mitra, "Pivoted Document Length
Normalization", SIGIR 1996; the saturation of tf is BM25's (Robertson and Walker, SIGIR 1994).

``cosine`` is the textbook's, SMART ltc.ltc with scikit-learn's smoothed idf, to check us by: where the terms are the
same, its scores are those of ``TfidfVectorizer(sublinear_tf=True)``::

    w(t, d) = (1 + ln tf) · idf(t)       idf(t) = 1 + ln((1 + N) / (1 + df))
    cosine(q, d) = Σ_t w(t, q) w(t, d) / (‖w(·, q)‖₂ ‖w(·, d)‖₂)

As in scikit-learn, query terms that no chunk has are left out.
Source: Manning, Raghavan, Schütze, "Introduction to Information Retrieval", section 6.4.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any, ClassVar, Final, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
from attrs import evolve, frozen

from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.arrays import Floats, sum_by
from relevance_gen.retrieval.segment.saturation import saturated, saturated_one
from relevance_gen.retrieval.segment.segment import Segment, Statistics
from relevance_gen.retrieval.text.stems import stem
from relevance_gen.retrieval.text.stop_words import ENGLISH as STOP_WORDS
from relevance_gen.retrieval.text.terms import SPELLED_BYTES
from relevance_gen.types import WeightingName

PAIR_WEIGHT: Final = 0.2
COVERAGE_WEIGHT: Final = 0.2
HEAD_WEIGHT: Final = 0.05
RUN_WEIGHT: Final = 0.2
LETTER_WEIGHT: Final = 0.6
LIKENESS_WEIGHT: Final = 1.2
_SLOPE: Final = 0.6
"""Share of a chunk's own norm in the pivot; the mean norm has the rest."""
_ROOT: Final = 0.7
_KNEE: Final = 1.0 - 5e-7
_MAX_NEAR: Final = 32
"""Most query words looked for side by side: it bounds the work for queries as long as a book."""


class AsChunk(NamedTuple):
    """What a query, or a part of it, would be if it were a chunk.

    Attributes:
        terms: the weight of each of its terms in the query, and how often it says it.
        length: its norm as a chunk.
        norm: the query's Euclidean length.
        mean_norm: mean norm of all chunks.
        pairs: what its pairs weigh.
        has_run: whether it has any.
        coverage: the share of its idf that its best passage covers.
        reads_letters: whether the letters of words are looked at.
    """

    terms: Sequence[tuple[float, int]]
    length: float
    norm: float
    mean_norm: float
    pairs: float
    has_run: bool
    coverage: float
    reads_letters: bool


class OwnScore(NamedTuple):
    """What a query would score if it were a chunk: altogether, and by its cosine alone."""

    total: float
    cosine: float


@frozen(eq=False)
class Weighting(ABC):
    """One way to weigh terms: every formula that depends on the weighting, and every choice."""

    name: ClassVar[WeightingName]
    inflects: ClassVar[bool]
    """Whether a word of the query stands for its other forms, too."""
    n_near: ClassVar[int]
    """Most words of the query that are looked for side by side."""
    reads_letters: ClassVar[bool]
    """Whether the letters of words are looked at, where chunks or query may not be in English."""
    needs_all_terms: ClassVar[bool]
    """Whether a chunk's length depends on how many chunks hold each of its terms."""

    @abstractmethod
    def key(self, spelling: str, term_id: int, n_bytes: int) -> Hashable:
        """Return what two words of the query share if they are one term; `n_bytes` is the length of the whole word."""

    @abstractmethod
    def is_stop(self, spelling: str) -> bool:
        """Tell whether a word of the query says nothing about its subject."""

    @abstractmethod
    def saturate(self, tf: npt.NDArray[Any]) -> Floats:
        """Return what each count of a term weighs in a chunk, before idf."""

    @abstractmethod
    def idf(self, df: Sequence[int], stop: Sequence[bool], n_chunks: int) -> tuple[float, ...]:
        """Return the idf of each term of the query; 0 for one that is left out."""

    @abstractmethod
    def gains(self, weight: Sequence[float], idf: Sequence[float]) -> tuple[float, ...]:
        """Return what the weight of each term in a chunk is multiplied by, the query's norm aside."""

    @abstractmethod
    def statistics(self, segment: Segment) -> Statistics:
        """Return what scores need to know of a segment elsewhere."""

    @abstractmethod
    def denominators(self, segment: Segment, statistics: Statistics) -> Floats:
        """Return what the sum of each chunk is divided by, the query's norm aside; above 0, shape (N,)."""

    @abstractmethod
    def own_score(self, query: AsChunk) -> OwnScore:
        """Return what a query would score if it were a chunk."""

    @abstractmethod
    def scale(self, ratios: Floats) -> Floats:
        """Bring scores, as multiples of the query's own, into [0, 1]."""

    @abstractmethod
    def blend(self, ratios: Floats, likeness: Floats) -> Floats:
        """Return the scores of chunks from their own and from those that they are like."""

    @abstractmethod
    def likeness_share(self, own: float, likeness: float, score: float) -> float:
        """Return how much of a chunk's score comes from the chunks that it is like."""


class Pivoted(Weighting):
    """The default: saturated counts, stems, pivoted lengths, proximity."""

    name = "pivoted"
    inflects = True
    n_near = _MAX_NEAR
    reads_letters = True
    needs_all_terms = False

    def key(self, spelling: str, term_id: int, n_bytes: int) -> Hashable:
        """Make words of one stem one term, but not "can" and "cans"."""
        return (stem(spelling), spelling in STOP_WORDS) if n_bytes < SPELLED_BYTES else term_id

    def is_stop(self, spelling: str) -> bool:
        """Tell whether the word is an English function word."""
        return spelling in STOP_WORDS

    def saturate(self, tf: npt.NDArray[Any]) -> Floats:
        """Return ``tf / (tf + 1.6)``."""
        return saturated(tf)

    def idf(self, df: Sequence[int], stop: Sequence[bool], n_chunks: int) -> tuple[float, ...]:
        """Return ``ln(1 + N / df)``; 0 for stop words, unless no chunk has any other word of the query."""
        only_stops = not any(n and not is_stop for n, is_stop in zip(df, stop, strict=True))
        return tuple(
            [rarity(n, n_chunks) if only_stops or not is_stop else 0.0 for n, is_stop in zip(df, stop, strict=True)]
        )

    def gains(self, weight: Sequence[float], idf: Sequence[float]) -> tuple[float, ...]:
        """Return the weights: idf counts on the query's side alone."""
        del idf
        return tuple(weight)

    def statistics(self, segment: Segment) -> Statistics:
        """Return the segment's facts, without its terms'."""
        return segment.statistics

    def denominators(self, segment: Segment, statistics: Statistics) -> Floats:
        """Return ``0.4 m + 0.6 n``."""
        return pivot(segment.norms, statistics.mean_norm)

    def own_score(self, query: AsChunk) -> OwnScore:
        """Return the sum of all parts, each at its best."""
        denominator = ((1.0 - _SLOPE) * query.mean_norm + _SLOPE * query.length or 1.0) * query.norm
        cosine = math.fsum([weight * saturated_one(qtf) for weight, qtf in query.terms]) / denominator
        total = cosine + PAIR_WEIGHT * query.pairs / denominator
        total += (COVERAGE_WEIGHT + HEAD_WEIGHT) * query.coverage
        if query.has_run:
            total += RUN_WEIGHT
        if query.reads_letters:
            total += LETTER_WEIGHT * cosine
        return OwnScore(total, cosine)

    def scale(self, ratios: Floats) -> Floats:
        """Squeeze ratios into [0, 1): see `below_one`."""
        return below_one(ratios)

    def blend(self, ratios: Floats, likeness: Floats) -> Floats:
        """Return ``((r + 1.2 l) / 2.2) ** 0.7``."""
        return np.asarray(((ratios + LIKENESS_WEIGHT * likeness) / (1.0 + LIKENESS_WEIGHT)) ** _ROOT)

    def likeness_share(self, own: float, likeness: float, score: float) -> float:
        """Share the score out by what stands under the root."""
        return score * LIKENESS_WEIGHT * likeness / (own + LIKENESS_WEIGHT * likeness)


class Cosine(Weighting):
    """The textbook's, to check us by."""

    name = "cosine"
    inflects = False
    n_near = 0
    reads_letters = False
    needs_all_terms = True

    def key(self, spelling: str, term_id: int, n_bytes: int) -> Hashable:
        """Make every word a term of its own."""
        del spelling, n_bytes
        return term_id

    def is_stop(self, spelling: str) -> bool:
        """Tell that every word counts."""
        del spelling
        return False

    def saturate(self, tf: npt.NDArray[Any]) -> Floats:
        """Return ``1 + ln tf``."""
        return sublinear(tf)

    def idf(self, df: Sequence[int], stop: Sequence[bool], n_chunks: int) -> tuple[float, ...]:
        """Return scikit-learn's smoothed idf; 0 for a term that no chunk has."""
        del stop
        counts = np.array(df, np.int64)
        return tuple(np.where(counts > 0, smoothed_idf(counts, n_chunks), 0.0).tolist())

    def gains(self, weight: Sequence[float], idf: Sequence[float]) -> tuple[float, ...]:
        """Return ``weight · idf``: chunks have the idf, too."""
        return tuple(one * rare for one, rare in zip(weight, idf, strict=True))

    def statistics(self, segment: Segment) -> Statistics:
        """Return the segment's facts with the df of all its terms."""
        postings = segment.postings
        return evolve(segment.statistics, ids=postings.lexicon.ids, df=postings.document_frequency())

    def denominators(self, segment: Segment, statistics: Statistics) -> Floats:
        """Return the length of each chunk's vector."""
        postings = segment.postings
        df = statistics.df[np.searchsorted(statistics.ids, postings.lexicon.ids)]
        idf = np.repeat(smoothed_idf(df, statistics.n_chunks), np.diff(postings.first))
        norms = np.sqrt(sum_by(postings.chunk, np.square(sublinear(postings.tf) * idf), segment.size))
        return np.where(norms > 0.0, norms, 1.0)

    def own_score(self, query: AsChunk) -> OwnScore:
        """Return 1, the cosine of a vector with itself."""
        del query
        return OwnScore(1.0, 1.0)

    def scale(self, ratios: Floats) -> Floats:
        """Cut off what rounding lifted above 1."""
        return np.minimum(ratios, 1.0)

    def blend(self, ratios: Floats, likeness: Floats) -> Floats:
        """Return the scores as they are."""
        del likeness
        return ratios

    def likeness_share(self, own: float, likeness: float, score: float) -> float:
        """Return 0: a score is its chunk's own alone."""
        del own, likeness, score
        return 0.0


_WEIGHTINGS: Final[dict[object, Weighting]] = {"pivoted": Pivoted(), "cosine": Cosine()}


def weighting_named(name: object) -> Weighting:
    """Return the weighting of a name.

    Raises:
        InvalidRequestError: there is none of that name.
    """
    if not isinstance(name, str) or name not in _WEIGHTINGS:
        allowed = " or ".join(f'"{known}"' for known in get_args(WeightingName))
        raise InvalidRequestError.must_be("weighting", allowed, name)
    return _WEIGHTINGS[name]


# ── Formulas ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def sublinear(tf: npt.NDArray[Any]) -> Floats:
    """Return ``1 + ln tf``."""
    return np.asarray(1.0 + np.log(tf), np.float64)


def rarity(df: int, n_chunks: int) -> float:
    """Return ``ln(1 + N / df)``; a term that no chunk has is as rare as one that one has."""
    return math.log(1.0 + n_chunks / max(df, 1))


def smoothed_idf(df: npt.NDArray[Any], n_chunks: int) -> Floats:
    """Return scikit-learn's smoothed idf, ``1 + ln((1 + N) / (1 + df))``."""
    return np.asarray(1.0 + np.log((1.0 + n_chunks) / (1.0 + df)), np.float64)


def pivot(norms: Floats, mean_norm: float) -> Floats:
    """Return the denominators ``0.4 m + 0.6 n`` of chunks of these norms; 1 where that is 0."""
    mixed = (1.0 - _SLOPE) * mean_norm + _SLOPE * norms
    return np.where(mixed > 0.0, mixed, 1.0)


def below_one(ratios: Floats) -> Floats:
    """Squeeze ratios into [0, 1): the same below the knee at 1 − 5·10⁻⁷, above it still in order.

        s(r) = r                                  for r ≤ knee
        s(r) = 1 − (1 − knee) / (1 + r − knee)    for r > knee

    A chunk can score above one that says exactly what the query says, by saying it again and again. Cut at 1, such
    chunks would tie.
    """
    above = ratios > _KNEE
    if not above.any():
        return ratios
    squeezed = ratios.copy()
    squeezed[above] = 1.0 - (1.0 - _KNEE) / (1.0 + ratios[above] - _KNEE)
    return squeezed
