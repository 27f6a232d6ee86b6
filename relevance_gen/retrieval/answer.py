"""Answer one search.

Parse the query, weight its terms, rank candidates by stages, and build the response.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from attrs import evolve, frozen

from relevance_gen.arrays import Ids, Offsets, find
from relevance_gen.errors import InvalidRequestError
from relevance_gen.request_scope import raise_if_cancelled, reserve
from relevance_gen.retrieval.collapse import GroupHashes, GroupKeys, first_of_each
from relevance_gen.retrieval.highlighting import highlight
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.ports import (
    CandidateRequest,
    FeatureRequest,
    InventoryRequest,
    MatchRequest,
    Segments,
)
from relevance_gen.retrieval.query import term_matching
from relevance_gen.retrieval.query.filters import Filter, Where, check_keys
from relevance_gen.retrieval.query.parsing import MAX_CACHED_CHARS, Query, parse
from relevance_gen.retrieval.query.spelling import (
    Correction,
    correct,
    corrections_of,
    find_variants,
)
from relevance_gen.retrieval.query.term_matching import Match, QueryTerm
from relevance_gen.retrieval.ranking.confidence import confidence
from relevance_gen.retrieval.ranking.stage import (
    LEXICAL,
    N_STAGE_CANDIDATES,
    STORED_FIELDS,
    CandidateTable,
    ChunkFields,
    FeatureSpec,
    Ranking,
    RerankStage,
    WeightedQuery,
)
from relevance_gen.retrieval.ranking.top_n import at_least_as_good
from relevance_gen.retrieval.stages.proximity import COVERAGE, COVERAGE_WEIGHT
from relevance_gen.types import SearchMetadata, SearchResponse, SearchResult, Span

_MAX_DISTANCE: Final = 2
"""Chunks at most this number of positions from a result are added in the order of the results;
chunks that are farther away in the order of their positions."""


def answer(
    params: SearchParams,
    segments: Segments,
    n_positions: int,
    token_counts: SearchMetadata,
    rerank_stages: Sequence[RerankStage] = (),
) -> SearchResponse:
    """Return the best chunks for a query.

    Args:
        params: the query and the options of the search.
        segments: the chunks.
        n_positions: number of positions that were assigned to chunks, including removed chunks.
        token_counts: the token counts that the response contains as its metadata.
        rerank_stages: scoring stages that run, in this order, after the stages of the weighting.

    Raises:
        InvalidRequestError: `params.where` or `params.distinct` is invalid, or the query has too
            many operators.
    """
    n_chunks = segments.statistics.n_chunks
    query = params.parse(
        inflects=segments.weighting.inflects, is_english=segments.statistics.is_english
    )
    chunk_filter = None
    if query.operators or params.where is not None:
        chunk_filter = Filter.read(params.where, n_positions, query.operators)
    n_ranked = params.top_n
    if params.distinct is not None:
        reserve("ranked_chunk", n_chunks)
        n_ranked = max(n_chunks, 1)
    ranking = rank(query, n_ranked, segments, chunk_filter, rerank_stages)
    matching_positions = ranking.positions
    if not matching_positions.size:
        check_where(params.where, segments)
    if params.min_relative_score and ranking.scores.size:
        min_score = params.min_relative_score * ranking.scores[0]
        ranking = ranking.take(np.flatnonzero(ranking.scores >= min_score))
    if params.fill and matching_positions.size < params.top_n:
        ranking = fill(ranking, n_ranked, segments, chunk_filter, matching_positions)
    n_collapsed: dict[int, int] = {}
    if params.distinct is not None and ranking.positions.size:
        hashes = _group_hashes(params.distinct, ranking.positions, segments)
        groups = first_of_each(hashes, params.top_n)
        ranking = ranking.take(groups.rows)
        n_others = groups.n_others.tolist()
        n_collapsed = dict(zip(ranking.positions.tolist(), n_others, strict=True))
    if params.true_order:
        ranking = ranking.take(ranking.positions.argsort())
    return _build_response(params, ranking, segments, token_counts, n_collapsed)


def rank(
    query: Query,
    top_n: int,
    segments: Segments,
    chunk_filter: Filter | None = None,
    rerank_stages: Sequence[RerankStage] = (),
) -> Ranking:
    """Return the `top_n` best chunks with a score above 0, best first.

    If several chunks have the same score, the chunk with the lower position is first. The ranking
    is stored in `segments.rankings` and returned from there for the same query if there is no
    filter and no rerank stage, the query has at most `MAX_CACHED_CHARS` characters, and `top_n` is
    at most `N_STAGE_CANDIDATES`.
    """
    key = None
    if chunk_filter is None and not rerank_stages and top_n <= N_STAGE_CANDIDATES:
        if len(query.text) <= MAX_CACHED_CHARS:
            key = (query.text, query.prefixes, query.is_correctable, top_n)
            cached = segments.rankings.get(key)
            if cached is not None:
                return cached
    weighted = weight(query, segments)
    table = score(weighted, top_n, segments, chunk_filter, rerank_stages)
    rows = table.allowed_rows
    rows = rows[table.scores.take(rows) > 0.0]
    best_first = (-table.scores.take(rows)).argsort(kind="stable")
    rows = rows.take(best_first[:top_n])
    ranking = Ranking(
        positions=table.positions.take(rows),
        scores=table.scores.take(rows),
        terms=weighted.terms,
        confidence=_confidence(table),
    )
    if key is not None:
        segments.rankings.put(key, ranking)
    return ranking


@frozen(eq=False)
class _MatchedQuery:
    """A query with the terms of the chunks that its words match."""

    query: Query
    matches: Sequence[Match]  # for each of `query.terms` the terms that it matches


def weight(query: Query, segments: Segments) -> WeightedQuery:
    """Return a query with its terms weighted.

    Before that, words of the query that occur in no chunk are replaced by other spellings or by
    corrections, where `_find_corrections` finds any.
    """
    matched = _match(query, segments)
    unknown = matched.query.unknown(matched.matches)
    if unknown:
        corrections = _find_corrections(matched.query, unknown, segments)
        if corrections:
            is_english = segments.statistics.is_english
            corrected = correct(matched.query, corrections, is_english=is_english)
            matched = _match(corrected, segments)
    return segments.weighting.weight_query(matched.query, matched.matches, segments.statistics)


def _find_corrections(query: Query, unknown: Sequence[str], segments: Segments) -> list[Correction]:
    """Return replacements of query words that occur in no chunk.

    Other spellings (`find_variants`) are first, then corrections of misspelled words.

    Args:
        query: the query.
        unknown: the words of the query that occur in no chunk.
        segments: the chunks, in which the replacements must occur.
    """
    variants = find_variants(query.text, unknown)
    misspelled = query.misspelled(unknown)
    if not variants and not misspelled:
        return []
    words = {word: None for variant in variants for text in variant.texts for word in text.split()}
    terms: list[QueryTerm] = []
    for word in words:
        terms += parse(word.lower(), inflects=True).terms
    request = MatchRequest(tuple(terms), misspelled, with_all_terms=True)
    response = segments.match_terms(request)
    df = dict(zip(words, [match.df for match in response.matches], strict=True))
    corrections: list[Correction] = []
    for variant in variants:
        corrections += variant.choose(df.__getitem__)
    near_terms = dict(zip(misspelled, response.near_terms, strict=True))
    return corrections + corrections_of(query, near_terms)


def _match(query: Query, segments: Segments) -> _MatchedQuery:
    """Return the query with the matching terms of the chunks.

    If a word of the query has more than `MAX_INFLECTIONS` matching terms, its term in the returned
    query has `is_inflected=False`, so that inflections of the word do not match.

    Raises:
        InvalidRequestError: more than `MAX_INFLECTIONS` terms begin with a prefix in the query.
    """
    matches = segments.match_terms(MatchRequest(query.terms)).matches
    crowded = []
    for i, match in enumerate(matches):
        if match.ids.size > term_matching.MAX_INFLECTIONS:
            crowded.append(i)
    if not crowded:
        return _MatchedQuery(query, matches)
    terms = list(query.terms)
    for i in crowded:
        term = terms[i]
        if term.is_prefix:
            raise InvalidRequestError(
                f"must have prefixes that match at most {term_matching.MAX_INFLECTIONS:,} words",
                "query",
                f"{term.word}*",
                remedy="use a longer prefix",
            )
        terms[i] = evolve(term, is_inflected=False)
    query = evolve(query, terms=tuple(terms))
    return _MatchedQuery(query, segments.match_terms(MatchRequest(query.terms)).matches)


def score(
    query: WeightedQuery,
    n: int,
    segments: Segments,
    chunk_filter: Filter | None = None,
    rerank_stages: Sequence[RerankStage] = (),
) -> CandidateTable:
    """Return the `n` best chunks as candidates, with the scores of all stages.

    At least `N_STAGE_CANDIDATES` chunks are returned if as many match, even if `n` is lower.
    Chunks with the same lexical score as the last of the `n` chunks are also candidates. There are
    more candidates if a rerank stage scores more chunks, and also if there is a filter: then the
    best chunks that do not pass the filter are included, because the score of a chunk must not
    depend on the filter.
    """
    n = max(n, N_STAGE_CANDIDATES)
    includes_unmatched = False
    for rerank_stage in rerank_stages:
        includes_unmatched |= rerank_stage.includes_unmatched
        if rerank_stage.n_candidates is None:
            includes_unmatched = True
            n = max(n, segments.statistics.n_chunks)
        else:
            n = max(n, rerank_stage.n_candidates)
    n_best = 0
    features: list[FeatureSpec] = []
    later_features: list[FeatureSpec] = [STORED_FIELDS]
    for stage in query.stages:
        n_best = max(n_best, stage.n_best)
        if stage.features is not None:
            is_of_all = stage.n_best >= N_STAGE_CANDIDATES
            (features if is_of_all else later_features).append(stage.features)
    request = CandidateRequest(
        terms=query.terms,
        n=n,
        filter=chunk_filter,
        includes_unmatched=includes_unmatched,
        n_features=n_best,
        features=tuple(features),
        later_features=tuple(later_features),
    )
    candidates = segments.top_candidates(request)
    no_rows: Offsets = np.zeros(0, np.int64)
    table = CandidateTable(
        query=query,
        positions=candidates.positions,
        scores=candidates.scores.copy(),  # arrays from another process can be read-only
        is_verbatim=candidates.is_verbatim,
        allowed_rows=candidates.is_allowed.nonzero()[0],
        top_rows=at_least_as_good(candidates.scores, n_best) if n_best else no_rows,
        stage_rows=candidates.positions.searchsorted(candidates.feature_positions),
        features=dict(zip(features, candidates.features, strict=False)),
    )
    for stage in query.stages:
        if table.stage_rows.size or not stage.n_best:
            raise_if_cancelled()
            stage.score(table, segments)
    table.columns[LEXICAL] = table.scores
    for rerank_stage in rerank_stages:
        raise_if_cancelled()
        table.scores_before.append(table.scores)
        rerank_stage.score(table, segments)
    return table


def _confidence(table: CandidateTable) -> float:
    """Return the probability, in [0, 1], that a chunk that passes the filter contains an answer."""
    rows = table.allowed_rows
    if not rows.size:
        return 0.0
    best_score = float(table.columns[LEXICAL].take(rows).max())
    coverage = best_score
    if COVERAGE in table.columns:
        coverage = float(table.columns[COVERAGE].take(rows).max()) / COVERAGE_WEIGHT
    return confidence(best_score, coverage, table.query.terms)


def check_where(where: Where | None, segments: Segments) -> None:
    """Check the metadata keys of a filter that no chunk passes.

    Raises:
        InvalidRequestError: no chunk has one of the keys.
    """
    if isinstance(where, Mapping) and segments.statistics.n_chunks:
        check_keys(where, metadata_keys(segments))


def metadata_keys(segments: Segments) -> frozenset[str] | None:
    """Return the metadata keys that occur in the chunks; None if some chunks cannot be read."""
    inventory = segments.inventory(InventoryRequest(with_metadata_keys=True))
    return inventory.metadata_keys if inventory.n_chunks == segments.statistics.n_chunks else None


def _group_hashes(distinct: str | GroupKeys, positions: Offsets, segments: Segments) -> Ids:
    """Return a hash of each chunk's value under a metadata key, 0 without the key, shape (n,).

    Args:
        distinct: the metadata key, or `GroupKeys` with the hash of every chunk of the index.
        positions: positions of the chunks, shape (n,).
        segments: the chunks.

    Raises:
        InvalidRequestError: no chunk has the key.
    """
    if isinstance(distinct, GroupKeys):
        return distinct.hashes.take(positions)
    request = FeatureRequest(positions, (GroupHashes(distinct),))
    hashes = np.array(segments.extract_features(request)[0].rows, np.uint64)
    if not hashes.any():
        check_keys([distinct], metadata_keys(segments), "distinct")
    return hashes


def stored_fields(positions: Offsets, segments: Segments) -> Sequence[ChunkFields]:
    """Return the stored fields of the chunks at the given positions."""
    if not positions.size:
        return []
    rows: list[ChunkFields] = segments.extract_features(
        FeatureRequest(positions, (STORED_FIELDS,))
    )[0].rows
    return rows


def _build_response(
    params: SearchParams,
    ranking: Ranking,
    segments: Segments,
    token_counts: SearchMetadata,
    n_collapsed: Mapping[int, int],
) -> SearchResponse:
    """Return the response: the ranked chunks with stored fields and, if requested, spans.

    Args:
        params: the query and the options of the search.
        ranking: the chunks to return, in the order of the results.
        segments: the chunks.
        token_counts: the token counts that the response contains as its metadata.
        n_collapsed: for the position of a result, the number of chunks that `params.distinct` left
            out because they have the same value; 0 for a position that is not in the mapping.
    """
    chunks = stored_fields(ranking.positions, segments)
    spans: Sequence[tuple[Span, ...] | None] = [None] * len(chunks)
    if params.spans and chunks:
        spans = highlight([chunk.text for chunk in chunks], ranking.terms)
    results = []
    scores, positions = ranking.scores.tolist(), ranking.positions.tolist()
    for i, chunk in enumerate(chunks):
        result = SearchResult(
            chunk_id=i,
            chunk_txt=chunk.text,
            chunk_score=scores[i],
            metadata=chunk.metadata,
            original_index=positions[i],
            spans=spans[i],
            title=chunk.title,
            num_collapsed=n_collapsed.get(positions[i], 0),
        )
        results.append(result)
    corrections = ranking.terms.query.corrections
    if corrections:
        token_counts = token_counts.with_corrections(corrections)
    return SearchResponse(tuple(results), token_counts, ranking.confidence)


def fill(
    ranking: Ranking,
    n: int,
    segments: Segments,
    chunk_filter: Filter | None,
    matching_positions: Offsets,
) -> Ranking:
    """Return a ranking with further chunks, up to n, which have score 0.

    Chunks next to the best chunk are first, then those next to the second, and so on; then chunks
    at distance 2 in the same order, then the other chunks in the order of their positions.

    Args:
        ranking: the ranking.
        n: maximum number of chunks of the result.
        segments: the chunks.
        chunk_filter: further chunks must pass this filter.
        matching_positions: positions of all chunks with a score above 0, best first; these are not
            added.
    """
    request = InventoryRequest(with_positions=True, filter=chunk_filter)
    positions = segments.inventory(request).positions
    rank_of = matching_positions.argsort()
    ascending = matching_positions[rank_of]
    others = positions[find(ascending, positions) < 0]
    order = np.full(others.size, _MAX_DISTANCE * matching_positions.size)
    for distance in range(_MAX_DISTANCE, 0, -1):
        for neighbors in (others - distance, others + distance):
            index = find(ascending, neighbors)
            is_near = index >= 0
            near_order = rank_of[index[is_near]] + (distance - 1) * matching_positions.size
            order[is_near] = np.minimum(order[is_near], near_order)
    n_added = max(n - ranking.positions.size, 0)
    added = others[order.argsort(kind="stable")[:n_added]]
    return evolve(
        ranking,
        positions=np.concatenate((ranking.positions, added)),
        scores=np.concatenate((ranking.scores, np.zeros(added.size))),
    )
