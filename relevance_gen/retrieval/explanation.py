"""Explain the score of one chunk: the contribution of each term of the query and of each stage."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import frozen

from relevance_gen.retrieval.answer import score, weight
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.ports import FeatureRequest, MatchRequest, Segments
from relevance_gen.retrieval.query.operators import QueryOperator, satisfying
from relevance_gen.retrieval.ranking.stage import (
    LEXICAL,
    CandidateTable,
    ChunkBatch,
    FeatureRows,
    FeatureSpec,
    NumericFeatures,
    RerankStage,
    WeightedTerms,
)
from relevance_gen.types import Explanation, TermContribution


@frozen(eq=False)
class TermScores(FeatureSpec):
    """A feature spec: two values for each of T query words and n chunks, shape (2 T, n).

    The first T rows are the tf of each word in each chunk: how often the terms that it matches
    occur. The other T rows are the amount that each word adds to the cosine of the query and each
    chunk.
    """

    terms: WeightedTerms

    def extract(self, batch: ChunkBatch) -> NumericFeatures:
        """Return T rows of tf, then T rows of summands of the cosine."""
        terms, n_words = self.terms, len(self.terms.query.terms)
        values = np.zeros((2 * n_words, batch.chunk_ords.size))
        denominators = batch.denominators.tolist()
        postings = batch.reader.postings_of(terms.query.terms, terms.matches)
        for word, (of_word, query_weight) in enumerate(zip(postings, terms.weights, strict=True)):
            for column, chunk_ord in enumerate(batch.chunk_ords.tolist()):
                is_chunk = of_word.chunk == chunk_ord
                chunk_weight = float(of_word.weight[is_chunk].sum())
                values[word, column] = float(of_word.tf[is_chunk].sum())
                values[n_words + word, column] = query_weight * chunk_weight / denominators[column]
        return NumericFeatures(values)


@frozen(eq=False)
class ViolatedOperators(FeatureSpec):
    """A feature spec: for each chunk a tuple of the operators of the query that it violates."""

    operators: tuple[QueryOperator, ...]

    def extract(self, batch: ChunkBatch) -> FeatureRows:
        """Return the violated operators of each chunk, as written in the query."""
        segment = batch.segment
        by_prefix = not batch.reader.statistics.is_english
        among = np.zeros(segment.size, bool)
        among[batch.chunk_ords] = True
        rows: list[tuple[str, ...]] = [()] * batch.chunk_ords.size
        for operator in self.operators:
            flags = satisfying((operator,), segment, among, by_prefix=by_prefix)
            for row in np.flatnonzero(~flags[batch.chunk_ords]).tolist():
                rows[row] += (operator.text,)
        return FeatureRows(rows)


def explain(
    params: SearchParams,
    position: int,
    segments: Segments,
    rerank_stages: Sequence[RerankStage] = (),
) -> Explanation:
    """Return the explanation of the score that the chunk at a position has in one search.

    The other arguments are as for `answer`.

    Raises:
        InvalidRequestError: there are too many operators.
        LookupError: no chunk is at the position.
    """
    query = params.parse(
        inflects=segments.weighting.inflects, is_english=segments.statistics.is_english
    )
    weighted = weight(query, segments)
    specs = (TermScores(weighted.terms), ViolatedOperators(query.operators))
    term_scores, violated = segments.extract_features(FeatureRequest(np.array([position]), specs))
    tf, cosine_parts = term_scores.values[:, 0].reshape(2, -1).tolist()
    table = score(weighted, segments.statistics.n_chunks, segments, None, rerank_stages)
    row = int(table.positions.searchsorted(position))
    is_candidate = row < table.positions.size and int(table.positions[row]) == position
    columns = {LEXICAL: 0.0}
    parts: dict[str, Any] = {}
    remaining = final_score = 0.0
    if is_candidate:
        final_score = float(table.scores[row])
        columns = {name: float(column[row]) for name, column in table.columns.items()}
        reranked = _rerank_contributions(table, rerank_stages, row)
        parts, remaining = reranked.parts, reranked.factor
    lexical = columns[LEXICAL]
    added: dict[str, float] = {}  # summands of the sum that is normalized
    shares: dict[str, float] = {}  # shares of the lexical score
    for stage in weighted.stages if remaining else ():
        of_stage = stage.contributions(columns, lexical)
        (shares if stage.is_after_normalization else added).update(of_stage)
    # A score above that of the query matched against itself is bounded to 1, and its summands are
    # scaled likewise.
    total = math.fsum([*cosine_parts, *added.values()])
    scale = remaining * (lexical - math.fsum(shares.values())) / total if total else 0.0
    parts |= {part: value * scale for part, value in added.items()}
    parts |= {part: value * remaining for part, value in shares.items()}
    contributions = [part * scale for part in cosine_parts]
    return Explanation(
        final_score,
        _term_contributions(weighted.terms, tf, contributions, segments),
        violated_operators=violated.rows[0],
        corrections=weighted.terms.query.corrections,
        **parts,
    )


def _term_contributions(
    terms: WeightedTerms, tf: Sequence[float], contributions: Sequence[float], segments: Segments
) -> tuple[TermContribution, ...]:
    term_ids = [term_id for match in terms.matches for term_id in match.ids.tolist()]
    spellings = segments.match_terms(MatchRequest(term_ids=tuple(term_ids))).spellings
    rows = []
    for i, term in enumerate(terms.query.terms):
        matched_ids = terms.matches[i].ids.tolist()
        row = TermContribution(
            term=term.word,
            matches=tuple([spellings[term_id] for term_id in matched_ids]),
            tf=tf[i],
            df=terms.df[i],
            idf=terms.idf[i],
            contribution=contributions[i],
        )
        rows.append(row)
    return tuple(rows)


@frozen
class _RerankContributions:
    """What rerank stages contribute to the score of one chunk."""

    # values by the names of fields of `Explanation`: contributions to the final score, and others
    parts: dict[str, Any]
    factor: float  # factor of the chunk's lexical score in the final score


def _rerank_contributions(
    table: CandidateTable, rerank_stages: Sequence[RerankStage], row: int
) -> _RerankContributions:
    """Return the contributions of rerank stages to the score of one chunk.

    Args:
        table: the candidates.
        rerank_stages: the stages, in the order in which they ran.
        row: row of the chunk in the table.
    """
    scores = [float(before[row]) for before in (*table.scores_before, table.scores)]
    notes: dict[str, Any] = {}  # fields other than contributions
    contributions: dict[str, float] = {}
    factor = float(scores[0] > 0.0)
    for i, rerank_stage in enumerate(rerank_stages):
        before, after = scores[i], scores[i + 1]
        notes |= rerank_stage.explain(table, row, before, after)
        of_stage = {}
        for part in rerank_stage.parts:
            if part in notes:
                of_stage[part] = notes.pop(part)
        share = (after - math.fsum(of_stage.values())) / (before or 1.0)
        contributions = {part: value * share for part, value in contributions.items()}
        contributions |= of_stage
        factor *= share
    return _RerankContributions(notes | contributions, factor)
