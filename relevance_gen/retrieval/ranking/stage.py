"""What a stage is, and what it works with: the plan of a question and a table of scores.

A score is made by a list of stages. Each looks at some of the chunks, is told of them by whatever segments they are in,
and changes the scores so far. What it asks for is its evidence: see `relevance_gen.retrieval.ranking.features`.

A new part of a score is a file in `relevance_gen.retrieval.stages`, its name in the list of a weighting, and
the fields that explain it in `relevance_gen.types.Explanation`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import numpy as np
from attrs import define, field, frozen

from relevance_gen.arrays import Flags, Floats, Ids, Offsets
from relevance_gen.index.segment import Statistics
from relevance_gen.retrieval.query.parsing import Query
from relevance_gen.retrieval.query.term_matching import Match
from relevance_gen.retrieval.ranking.old_features import ChunkBatch, E, FeatureExtractor
from relevance_gen.retrieval.ranking.sparse_vectors import MAX_CHUNKS, Sample
from relevance_gen.retrieval.ranking.top_n import at_least_as_good

N_PROMISING: Final = 50
"""Most chunks that a stage looks at, ties apart; 100 ranked no better in the collections measured."""
MAX_WORDS: Final = 32
"""Most words of a query that are looked for in chunks, function words apart: queries may be as long as a book."""


@frozen(eq=False)
class WeightedTerms:
    """The terms of a query, and what all chunks together say of them: what a stage is made from."""

    query: Query  # the query
    matches: tuple[Match, ...]  # what each of its terms stands for, in any chunk
    df: tuple[int, ...]  # number of chunks that hold each term
    idf: tuple[float, ...]  # inverse document frequency of each term; 0 for one that is left out
    norm: float  # Euclidean length of the query, of the terms that some chunk has
    statistics: Statistics  # facts of all chunks

    @property
    def rarest(self) -> list[int]:
        """Numbers of the rarest known terms that count, the rarest first."""
        pluralize = [number for number, n in enumerate(self.df) if n and self.idf[number]]
        return sorted(pluralize, key=lambda number: -self.idf[number])[:MAX_WORDS]

    @property
    def subject(self) -> list[int]:
        """Numbers of the terms that say what the query is about: function words only where chunks have no other."""
        pluralize = [number for number, idf in enumerate(self.idf) if idf]
        others = [number for number in pluralize if not self.query.terms[number].stop]
        return others if any(self.df[number] for number in others) else pluralize


@frozen
class SelfMatch:
    """What a query, or a part of it, would be if it were a chunk."""

    cosine: float  # that of the query with it
    denominator: float  # what sums of its weights are divided by, the query's norm included
    unknown_idf: float  # sum of the idf of its terms that no chunk has


class Stage(ABC):
    """One part of a score, made for one question. It can be pickled, for its evidence is asked for anywhere."""

    # what it is called in `Explanation`: a column of the table for each; none if it only changes the scale
    parts: ClassVar[tuple[str, ...]] = ()
    # whether its share is one of the score, and not of the sum that is brought onto the scale
    is_behind_scale: ClassVar[bool] = False
    # it looks at so many of the best by the scores so far, and at their ties; 0 if it asks for no evidence
    n_best: ClassVar[int] = 0
    # most chunks that it compares with each other; where more than these tie, the last of them are left out
    most: ClassVar[int | None] = None

    def evidence(self, excerpt: ChunkBatch) -> Any:
        """Return what it wants to know of some chunks of a segment: an `Features`."""
        raise NotImplementedError

    @abstractmethod
    def score(self, table: Table) -> None:
        """Change the scores of a table, and note in its columns what each chunk was given."""

    def of_query(self, total: float, own: SelfMatch) -> float:
        """Return what the query itself would have after this stage, if it were a chunk and had `total` before."""
        del own
        return total

    def shares(self, row: Mapping[str, float], score: float) -> dict[str, float]:
        """Return what one chunk was given, by the names of `parts`, told what the stages noted of it.

        A stage before the scale returns what it added. One behind it returns its share of the score by words.
        """
        del score
        return {part: row[part] for part in self.parts}


class Reranking(Stage):
    """A part of a score that looks again at the best results, once their words have said all that they can.

    It gives the table new scores, and leaves the array of those before as it is, which explanations read.
    """

    is_behind_scale = True
    # how many of the best by their words it looks at, and all that are as good as the last of them; None looks at
    # every chunk
    n_candidates: int | None

    def candidates(self, table: Table) -> Offsets:
        """Return the places of the best results with their ties; where very many tie for the last, without those."""
        n = self.n_candidates
        return table.results if n is None else table.best_of(table.results, n, n + MAX_CHUNKS)

    @abstractmethod
    def explain(self, table: Table, place: int, before: float, after: float) -> dict[str, Any]:
        """Return what the chunk at a place was given, by the names of `Explanation`, those of `parts` among them.

        What these do not add up to is what is left of the score before, and each part of that has its share in it.
        """


@frozen(eq=False)
class ScoreNormalization(Stage):
    """Brings scores into [0, 1], as multiples of what the query itself would score.

    1.0 then means "as good as a chunk that says exactly this", for every query and collection.
    """

    bound: Callable[[Floats], Floats]  # brings what is above 1 into [0, 1]

    def score(self, table: Table) -> None:
        """Bring all scores onto the scale; a chunk that says exactly what the query says has 1."""
        table.scores = self.bound(table.scores / table.plan.reference)
        table.scores[table.is_verbatim] = 1.0


@frozen(eq=False)
class WeightedQuery:
    """A query weighed against a collection. It holds facts of the whole collection only, and no postings."""

    terms: WeightedTerms  # its terms, and what all chunks say of them
    gains: tuple[
        float, ...
    ]  # what the weight of each term in a chunk is multiplied by, divided by the query's norm
    said: Ids  # ids of the query's words that some chunk has, ascending, shape (T,)
    said_norm: float  # norm of a chunk that says these and nothing else
    stages: tuple[Stage, ...]  # the parts of a score, in order
    cosine: float  # what the query would score as a chunk by its cosine alone
    reference: float  # what it would score as a chunk altogether, before the scale; all scores are divided by it
    known_share: float  # the reference as a share of what the query with all its words would score, in (0, 1]

    @property
    def by_function_words(self) -> bool:
        """Whether chunks hold function words of the query at most, though the query has other words."""
        terms = self.terms.query.terms
        is_found = any(n and not term.stop for term, n in zip(terms, self.terms.df, strict=True))
        return not is_found and any(not term.stop for term in terms)


@define(eq=False)
class Table:
    """Some chunks and their scores so far, with a column for each part of them."""

    plan: WeightedQuery  # the query, weighed
    positions: Offsets  # positions of the chunks, ascending, shape (n,)
    scores: Floats  # so far, shape (n,)
    is_verbatim: Flags  # whether each says exactly what the query says, shape (n,)
    results: Offsets  # places of those that may be results, ascending, shape (m,)
    promising: Offsets  # places of the best of all chunks by their cosine, ascending, shape (p,)
    picked: Offsets  # places of those that stages look at, the promising ones among them, ascending, shape (k,)
    source: Callable[
        [FeatureExtractor[Any], Offsets], Any
    ]  # tells what is asked of the chunks at some positions
    sample: Callable[[], Sample]  # counts words' beginnings in a sample of all chunks
    columns: dict[str, Floats] = field(factory=dict)  # what the stages noted, shape (n,) each
    before: list[Floats] = field(factory=list)  # the scores before each reranking, shape (n,) each
    # places of the chunks whose passages were compared with the query, ascending, and the nearest of each
    nearest: tuple[Offsets, Floats] | None = None

    def tell(self, inquiry: FeatureExtractor[E], places: Offsets) -> E:
        """Return the evidence of the chunks at some places."""
        evidence: E = self.source(inquiry, self.positions.take(places))
        return evidence

    def best(self, n: int, most: int) -> Offsets:
        """Return the places of the best n of the promising chunks, as `best_of` does."""
        return self.best_of(self.promising, n, most)

    def best_of(self, places: Offsets, n: int, most: int) -> Offsets:
        """Return the best n of some places with their ties; where these are more than `most`, none of the last."""
        best = places.take(at_least_as_good(self.scores.take(places), n))
        return best if best.size <= most else best[self.scores[best] > self.scores[best].min()]

    def add(self, parts: Sequence[str], places: Offsets, values: Floats) -> None:
        """Add k parts of the score, shape (k, n), to those of the chunks at n places, and note them; others have 0."""
        columns = values
        if places.size < self.scores.size:
            columns = np.zeros((len(parts), self.scores.size))
            columns[:, places] = values
        self.columns.update(zip(parts, columns, strict=True))
        self.scores += np.add.reduce(columns)
