"""Rank files by their best chunks, by their names, and by the names that they define.

The 300 best chunks by their lexical scores are ranked. c(k) is the score of the k-th best of these
chunks in a file f, relative to the best score of all chunks, c₁; w are the words of the question
without English stop words; and p are the parts of a name::

    chunks(f)  = c(1) + 0.3 Σ_k 0.7^(k-2) c(k),  k = 2 … 12
    recall     = Σ_w idf(w) · max_p alike(p, w) / Σ_w idf(w)       share of the question in the name
    precision  = Σ_p √|p| · max_w alike(p, w) / Σ_p √|p|           share of the name in the question
    name(f)    = √recall · precision²                              of the file name
    defines(f) = max over definitions of √recall · precision · level   for types and for non-types
    exact(f)   = max over definitions of level, if the question contains the name as an identifier;
                 0.6 of it if only case and underscores differ         for types and for non-types

    S(f) = (chunks + 1.5 name + 0.8 defines(types) + 0.8 defines(non-types)
            + 0.6 exact(types) + 0.6 exact(non-types))
           · (0.4 for tests and examples, unless the question is about tests)

The best file has the score c₁, any other file c₁ · S(f) / max S. For each chunk of a file, the sum
c + 0.8 defines + 0.6 exact of the chunk alone is computed. The chunk with the highest sum has the
score of the file; the scores of the other chunks are in proportion to their sums.

|p| is the number of letters of a part. alike(p, w) is 1 if the stems are equal, or if p consists of
adjacent words of the question, including w, written as one word. It is √(m / longer) if p begins
with the stem of w, or w with the stem of p, and this stem has m ≥ 3 letters; longer is the number
of letters of the longer of p and w. Otherwise it is 0. Levels are defined in
`relevance_gen.folders.identifiers`.

The formula is ours; measured in docs/retrieval.md.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
from attrs import frozen

from relevance_gen.arrays import Floats, Offsets, starts_of
from relevance_gen.folders.identifiers import CodeDefinition, FileName, definitions, name_parts
from relevance_gen.index.formulas import idf
from relevance_gen.retrieval.ranking.stage import (
    STORED_FIELDS,
    CandidateTable,
    FeatureSource,
    RerankStage,
    WeightedQuery,
)
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS
from relevance_gen.text.word_forms import stem

_FURTHER_CHUNKS_WEIGHT: Final = 0.3
_CHUNK_DECAY: Final = 0.7
_FURTHER_WEIGHTS: Final = [_FURTHER_CHUNKS_WEIGHT * _CHUNK_DECAY**rank for rank in range(11)]
_CHUNK_WEIGHTS: Final = np.array([1.0, *_FURTHER_WEIGHTS, 0.0])
"""The weights of the chunks of a file, best first; the thirteenth and later chunks have none."""
_NAME_WEIGHT: Final = 1.5
_DEFINES_WEIGHT: Final = 0.8
_EXACT_WEIGHT: Final = 0.6
_INEXACT_IDENTIFIER: Final = 0.6
_TEST_FACTOR: Final = 0.4
_MIN_SHARED_LETTERS: Final = 3

_PARTS: Final = (
    "words_in_files",
    "other_chunks",
    "file_name",
    "defined_names",
    "exact_identifiers",
)

_IDENTIFIER: Final = re.compile(r"\w+")
_QUALIFIED: Final = re.compile(r"\s*[\w$]+(?:(?:::|\.|->|\\|#)[\w$]+)+\s*")
_ASKS_FOR_TESTS: Final = re.compile(
    r"\b(?:tests?|benchmarks?|examples?|mocks?|fixtures?|specs?)\b", re.IGNORECASE
)
_MAX_WORDS: Final = 64


def _plain(name: str) -> str:
    """Return a name in lower case and without underscores."""
    return name.lower().replace("_", "")


@frozen
class _NameMatch:
    """How well a name matches a question: √recall and precision; see the module's formulas."""

    root_recall: float
    precision: float


class QueryIdentifiers:
    """Compares a question with names of files and definitions.

    It computes recall and precision of a name, and finds names that the question contains as
    identifiers.

    Args:
        text: the question, of which only the first 64 words are used.
        idf_by_stem: the idf of each stem; a word whose stem is absent gets the highest idf.
    """

    def __init__(self, text: str, idf_by_stem: dict[str, float]) -> None:
        matches = itertools.islice(_IDENTIFIER.finditer(text), _MAX_WORDS)
        tokens = [match[0] for match in matches]
        parts = [part for token in tokens for part in name_parts(token)][: 2 * _MAX_WORDS]
        distinct = list(dict.fromkeys(parts))
        words = [word for word in distinct if word not in ENGLISH_STOP_WORDS] or distinct
        highest_idf = max(idf_by_stem.values(), default=1.0)
        self._words = [(word, stem(word)) for word in words]
        self._idf = [idf_by_stem.get(root, highest_idf) for _, root in self._words]
        self._total_idf = math.fsum(self._idf) or 1.0
        self._prefixes = {word[:_MIN_SHARED_LETTERS] for word in parts}
        self._joined_words = _join_adjacent(parts, words)
        self._names = {token for token in tokens if name_parts(token) != (token.lower(),)}
        if len(tokens) == 1 or (tokens and _QUALIFIED.fullmatch(text)):
            self._names.add(tokens[-1])
        self._plain_names = set(map(_plain, self._names))
        self.asks_for_tests = _ASKS_FOR_TESTS.search(text) is not None
        self._similarities: dict[str, dict[int, float]] = {}
        self._matches: dict[tuple[str, ...], _NameMatch] = {}

    @classmethod
    def of(cls, plan: WeightedQuery) -> QueryIdentifiers:
        """Return the `QueryIdentifiers` of a query.

        The idf of each word is computed from the number of searched chunks that contain the word.
        """
        terms = plan.terms
        idf_by_stem = {}
        for term, df in zip(terms.query.terms, terms.df, strict=True):
            idf_by_stem[stem(term.word)] = idf(max(df, 1), terms.statistics.n_chunks)
        return cls(terms.query.text, idf_by_stem)

    def alike(self, part: str) -> dict[int, float]:
        """Return the similarity, in (0, 1], of a part of a name to words of the question.

        The keys are indices of the question's distinct words, usually without stop words. Words
        that are not similar to the part are absent. The module docstring defines the similarity
        (``alike``).
        """
        if part[:_MIN_SHARED_LETTERS] not in self._prefixes:
            return {}
        similarities = self._similarities.get(part)
        if similarities is None:
            similarities = dict.fromkeys(self._joined_words.get(part, ()), 1.0)
            self._similarities[part] = similarities
            root = stem(part)
            for word_ord, (word, word_root) in enumerate(self._words):
                n_shared = 0
                if word.startswith(root):
                    n_shared = len(root)
                elif part.startswith(word_root):
                    n_shared = len(word_root)
                if root == word_root:
                    similarities[word_ord] = 1.0
                elif n_shared >= _MIN_SHARED_LETTERS:
                    share = n_shared / max(len(part), len(word))
                    similarities.setdefault(word_ord, math.sqrt(share))
        return similarities

    def match(self, parts: tuple[str, ...]) -> _NameMatch:
        """Return √recall and precision of a name with these parts."""
        if parts not in self._matches:
            self._matches[parts] = self._match(parts)
        return self._matches[parts]

    def _match(self, parts: tuple[str, ...]) -> _NameMatch:
        similarities = [self.alike(part) for part in parts]
        if not any(similarities):
            return _NameMatch(0.0, 0.0)
        best_by_word: dict[int, float] = {}
        weights = []
        weighted = []
        for part, by_word in zip(parts, similarities, strict=True):
            weight = math.sqrt(len(part))
            weights.append(weight)
            weighted.append(weight * max(by_word.values(), default=0.0))
            for word_ord, similarity in by_word.items():
                best = best_by_word.get(word_ord, 0.0)
                best_by_word[word_ord] = max(similarity, best)
        covered_idf = math.fsum(self._idf[word] * best for word, best in best_by_word.items())
        recall = covered_idf / self._total_idf
        return _NameMatch(math.sqrt(recall), math.fsum(weighted) / math.fsum(weights))

    def exact(self, name: str) -> float:
        """Return 1 if the question contains a name as an identifier, otherwise 0.

        If only case or underscores differ, the result is `_INEXACT_IDENTIFIER`.
        """
        if name in self._names:
            return 1.0
        return _INEXACT_IDENTIFIER if _plain(name) in self._plain_names else 0.0

    def of_file(self, name: FileName) -> float:
        """Return 1.5 name(f), the contribution of a file's name; see the module's formulas."""
        match = self.match(name.parts)
        return _NAME_WEIGHT * match.root_recall * match.precision**2

    def of_chunk(self, chunk_definitions: Iterable[CodeDefinition]) -> list[float]:
        """Return the contributions of the definitions in a chunk to the score of its file.

        The list has four values, each the highest of its kind: 0.8 √recall · precision · level for
        names of types, the same for other names, 0.6 exact · level for names of types that the
        question contains as identifiers, and the same for other names. See the module's formulas.
        """
        best = [0.0, 0.0, 0.0, 0.0]
        for definition in chunk_definitions:
            match = self.match(definition.parts)
            if match.root_recall:
                kind = 0 if definition.is_type else 1
                level = definition.level
                defines = _DEFINES_WEIGHT * match.root_recall * match.precision * level
                exact = _EXACT_WEIGHT * self.exact(definition.name) * level
                best[kind] = max(best[kind], defines)
                best[kind + 2] = max(best[kind + 2], exact)
        return best


def _join_adjacent(
    parts: Sequence[str],
    words: Sequence[str],
) -> dict[str, list[int]]:
    """Join each two or three adjacent parts of a question, which a name can write as one word.

    Args:
        parts: the parts of the question's words, in order, with stop words.
        words: the distinct parts, usually without stop words.

    Returns:
        For each joined text, the indices in `words` of those of its parts that are in `words`.
    """
    word_ords = {word: word_ord for word_ord, word in enumerate(words)}
    joined: dict[str, list[int]] = {}
    for n_parts in (2, 3):
        for start in range(len(parts) - n_parts + 1):
            adjacent = parts[start : start + n_parts]
            ords = [word_ords[word] for word in adjacent if word in word_ords]
            joined.setdefault("".join(adjacent), ords)
    return joined


@frozen(eq=False)
class FileScores:
    """The scores of n chunks by their files.

    Attributes:
        scores: the new score of each chunk, in [0, the best lexical score], shape (n,).
        shares: the contributions to each score, shape (5, n). The rows are the contributions of the
            chunk's own words, of the other chunks of its file, of the file name, of the defined
            names, and of the exact identifiers.
        scale: the best lexical score divided by the largest sum of contributions of a file.
    """

    scores: Floats
    shares: Floats
    scale: float


def rank_files(
    identifiers: QueryIdentifiers,
    scores: Floats,
    file_ords: Offsets,
    names: Sequence[FileName],
    chunk_definitions: Iterable[Sequence[CodeDefinition]],
) -> FileScores:
    """Return the scores of chunks by their files; the module docstring has the formula.

    Args:
        identifiers: the comparison of the question with names.
        scores: lexical scores of n chunks, best first, in (0, 1].
        file_ords: index of the file of each chunk, in [0, F), shape (n,).
        names: the names of the files, shape (F,).
        chunk_definitions: the definitions in each chunk, shape (n,).
    """
    # Rank of each chunk in its file, shape (n,).
    order = file_ords.argsort(kind="stable")
    sizes = np.bincount(file_ords)
    rank = np.empty(file_ords.size, np.int64)
    rank[order] = np.arange(file_ords.size) - starts_of(sizes).repeat(sizes)
    # Contributions of each chunk, shape (n,) and (n, 4).
    relative = scores / scores[0]
    own_chunk = relative * _CHUNK_WEIGHTS.take(rank, mode="clip")
    defined = np.array([identifiers.of_chunk(in_chunk) for in_chunk in chunk_definitions])
    # Contributions of each file, shape (F,) and (F, 4).
    file_chunks = np.bincount(file_ords, own_chunk)
    file_names = np.array([identifiers.of_file(name) for name in names])
    file_defined = np.zeros((sizes.size, 4))
    np.maximum.at(file_defined, file_ords, defined)
    factors = np.ones(sizes.size)
    if not identifiers.asks_for_tests:
        factors[[name.is_test for name in names]] = _TEST_FACTOR
    totals = factors * (file_chunks + file_names + np.add.reduce(file_defined, axis=1))
    # Share of each chunk in the score of its file, shape (n,).
    chunk_totals = relative + np.add.reduce(defined, axis=1)
    best_in_file = np.zeros(sizes.size)
    np.maximum.at(best_in_file, file_ords, chunk_totals)
    within = chunk_totals / best_in_file.take(file_ords)
    scale = float(scores[0] / totals.max())
    contributions = np.array(
        [
            own_chunk,
            file_chunks.take(file_ords) - own_chunk,
            file_names.take(file_ords),
            (file_defined[:, 0] + file_defined[:, 1]).take(file_ords),
            (file_defined[:, 2] + file_defined[:, 3]).take(file_ords),
        ]
    )
    relative_totals = (totals / totals.max()).take(file_ords)
    return FileScores(
        scores=np.minimum(scores[0] * relative_totals * within, scores[0]),
        shares=contributions * (within * factors.take(file_ords) * scale),
        scale=scale,
    )


@frozen(eq=False)
class FileRanking(RerankStage):
    """Reranks the best chunks of a search by the scores of their files.

    Attributes:
        paths: the paths of F files, with ``/`` between folders.
        bounds: for each file, the index of its first chunk in the searched index, and at the end
            the number of all chunks; shape (F + 1,).
    """

    paths: Sequence[str]
    bounds: Offsets

    n_candidates = 300
    parts = _PARTS[1:]

    def score(self, table: CandidateTable, segments: FeatureSource) -> None:
        """Replace the scores of the best `n_candidates` chunks in `table` by scores of their files.

        The old score of a chunk, multiplied by a factor, is one of the contributions to its new
        score. The scores of all other chunks in `table` are multiplied by `FileScores.scale`
        divided by the best old score, so that old and new scores can be compared. The contributions
        are stored in the columns of `table`.
        """
        rows = self.candidate_rows(table)
        if not rows.size:
            return
        before = table.scores.take(rows)
        best_first = (-before).argsort(kind="stable")
        ranked_rows = rows.take(best_first)
        positions = table.positions.take(ranked_rows)
        file_of_chunk = self.bounds.searchsorted(positions, "right") - 1
        files, file_ords = np.unique(file_of_chunk, return_inverse=True)
        paths = [self.paths[file] for file in files.tolist()]
        extensions = list(map(_extension, paths))
        stored = table.extract(STORED_FIELDS, rows, segments).rows
        defined = [
            definitions(stored[row].text, extensions[file_ord])
            for row, file_ord in zip(best_first.tolist(), file_ords.tolist(), strict=True)
        ]
        ranked = rank_files(
            QueryIdentifiers.of(table.query),
            before.take(best_first),
            file_ords,
            [FileName.of(path) for path in paths],
            defined,
        )
        values = np.zeros((len(_PARTS), table.scores.size))
        values[0] = table.scores * (ranked.scale / before.max())
        table.scores = values[0].copy()
        values[:, ranked_rows] = ranked.shares
        table.scores[ranked_rows] = ranked.scores
        table.columns.update(zip(_PARTS, values, strict=True))

    def explain(
        self, table: CandidateTable, row: int, before: float, after: float
    ) -> dict[str, float]:
        """Return the contributions to the score of the chunk in `row` from other parts of its file.

        The keys are "other_chunks", "file_name", "defined_names" and "exact_identifiers". The
        contribution of the words of the chunk itself is not included. `before` and `after` are not
        used.
        """
        del before, after
        present = [part for part in self.parts if part in table.columns]
        return {part: float(table.columns[part][row]) for part in present}


def _extension(path: str) -> str:
    """Return the part of a file name after its last dot; "" if there is none."""
    name = path.rpartition("/")[2]
    return name.rpartition(".")[2] if "." in name else ""
