"""Rank files by their best chunks, by their names, and by the names that they define.

The 300 best chunks by their lexical scores are ranked. c(k) is the score of chunk k relative to the
best score, c₁. A file f has n of these chunks, best first; w are the words of the question without
English stop words, and p are the parts of a name::

    chunks(f)  = c(1) + 0.3 Σ_k 0.7^(k-2) c(k),  k = 2 … 12
    recall(n)  = Σ_w idf(w) · max_p alike(p, w) / Σ_w idf(w)       share of the question in the name
    precision(n) = Σ_p √|p| · max_w alike(p, w) / Σ_p √|p|         share of the name in the question
    name(f)    = √recall · precision²                              of the file name
    defines(f) = max over definitions of √recall · precision · level   for types, and for others
    exact(f)   = max over definitions of level, if the question contains the name as an identifier;
                 0.6 of it if only case and underscores differ         for types, and for others

    S(f) = (chunks + 1.5 name + 0.8 defines(types) + 0.8 defines(others)
            + 0.6 exact(types) + 0.6 exact(others))
           · (0.4 for tests and examples, unless the question is about tests)

The best file has the score c₁, any other file c₁ · S(f) / max S. Within a file, the chunk with the
highest c + defines + exact has the score of the file, and other chunks a share in proportion.

|p| is the number of letters of a part. alike(p, w) is 1 if the stems are equal, or if p consists of
adjacent words of the question, including w, written as one word; √(n / longer) if one begins with
the n ≥ 3 letters of the stem of the other; else 0. Levels are defined in
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
from relevance_gen.retrieval.ranking.features import STORED_FIELDS, FeatureSource
from relevance_gen.retrieval.ranking.stage import CandidateTable, RerankStage, WeightedQuery
from relevance_gen.text.stems import stem
from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS

_MORE: Final = 0.3
_FADE: Final = 0.7
_GAINS: Final = np.array([1.0, *(_MORE * _FADE**rank for rank in range(11)), 0.0])
"""The weights of the chunks of a file, best first; the thirteenth and later chunks have none."""
_NAME: Final = 1.5
_DEFINES: Final = 0.8
_EXACT: Final = 0.6
_ALMOST_EXACT: Final = 0.6
_TEST: Final = 0.4
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
    """Return a name without case and underscores."""
    return name.lower().replace("_", "")


class QueryIdentifiers:
    """Compares a question with names: recall and precision of a name, and exact identifiers.

    Only the first 64 words of a question are used. `rarities` has the idf of each stem; a word that
    does not occur has the highest idf.
    """

    def __init__(self, text: str, rarities: dict[str, float]) -> None:
        matches = itertools.islice(_IDENTIFIER.finditer(text), _MAX_WORDS)
        tokens = [match[0] for match in matches]
        said = [part for token in tokens for part in name_parts(token)][: 2 * _MAX_WORDS]
        words = [word for word in dict.fromkeys(said) if word not in ENGLISH_STOP_WORDS] or list(
            dict.fromkeys(said)
        )
        unknown = max(rarities.values(), default=1.0)
        self._words = [(word, stem(word)) for word in words]
        self._idf = [rarities.get(root, unknown) for _, root in self._words]
        self._all = math.fsum(self._idf) or 1.0
        self._beginnings = {word[:_MIN_SHARED_LETTERS] for word in said}
        place = {word: number for number, word in enumerate(words)}
        self._together: dict[str, list[int]] = {}
        for n in (2, 3):
            for at in range(len(said) - n + 1):
                some = said[at : at + n]
                self._together.setdefault(
                    "".join(some), [place[word] for word in some if word in place]
                )
        self._names = {
            token for token in tokens if name_parts(token) != (token.lower(),) or len(tokens) == 1
        }
        if tokens and _QUALIFIED.fullmatch(text):
            self._names.add(tokens[-1])
        self._plain_names = set(map(_plain, self._names))
        self.asks_for_tests = _ASKS_FOR_TESTS.search(text) is not None
        self._known: dict[str, dict[int, float]] = {}
        self._matched: dict[tuple[str, ...], tuple[float, float]] = {}

    @classmethod
    def of(cls, plan: WeightedQuery) -> QueryIdentifiers:
        """Return the comparison for a query, with idf by the chunks that contain its words."""
        terms, n_chunks = plan.terms, plan.terms.statistics.n_chunks
        words = zip(terms.query.terms, terms.df, strict=True)
        return cls(
            terms.query.text, {stem(term.word): idf(max(n, 1), n_chunks) for term, n in words}
        )

    def alike(self, part: str) -> dict[int, float]:
        """Return the similarity of a part of a name to each word of the question, by word index."""
        if part[:_MIN_SHARED_LETTERS] not in self._beginnings:
            return {}
        known = self._known.get(part)
        if known is None:
            known = self._known[part] = dict.fromkeys(self._together.get(part, ()), 1.0)
            root = stem(part)
            for number, (word, of_word) in enumerate(self._words):
                n = (
                    len(root)
                    if word.startswith(root)
                    else len(of_word)
                    if part.startswith(of_word)
                    else 0
                )
                if root == of_word:
                    known[number] = 1.0
                elif n >= _MIN_SHARED_LETTERS:
                    known.setdefault(number, math.sqrt(n / max(len(part), len(word))))
        return known

    def match(self, parts: tuple[str, ...]) -> tuple[float, float]:
        """Return √recall and precision of a name with these parts."""
        known = self._matched.get(parts)
        if known is None:
            known = self._matched[parts] = self._match(parts)
        return known

    def _match(self, parts: tuple[str, ...]) -> tuple[float, float]:
        alike = [self.alike(part) for part in parts]
        if not any(alike):
            return 0.0, 0.0
        said: dict[int, float] = {}
        for one in alike:
            for number, share in one.items():
                said[number] = max(share, said.get(number, 0.0))
        lengths = [math.sqrt(len(part)) for part in parts]
        asked = math.fsum(
            n * max(one.values(), default=0.0) for n, one in zip(lengths, alike, strict=True)
        )
        share = math.fsum(self._idf[number] * one for number, one in said.items()) / self._all
        return math.sqrt(share), asked / math.fsum(lengths)

    def exact(self, name: str) -> float:
        """Return 1 if the question contains a name as an identifier, less for other spellings, or 0."""
        return (
            1.0
            if name in self._names
            else _ALMOST_EXACT
            if _plain(name) in self._plain_names
            else 0.0
        )

    def of_file(self, name: FileName) -> float:
        """Return the contribution of the name of a file."""
        root, asked = self.match(name.parts)
        return _NAME * root * asked**2

    def of_chunk(self, defined: Iterable[CodeDefinition]) -> list[float]:
        """Return the contributions of definitions: types, others, exact types, exact others."""
        best = [0.0, 0.0, 0.0, 0.0]
        for one in defined:
            root, asked = self.match(one.parts)
            if root:
                kind = 0 if one.is_type else 1
                best[kind] = max(best[kind], _DEFINES * root * asked * one.level)
                best[kind + 2] = max(best[kind + 2], _EXACT * self.exact(one.name) * one.level)
        return best


def rank_files(
    asked: QueryIdentifiers,
    scores: Floats,
    file: Offsets,
    names: Sequence[FileName],
    defined: Iterable[Sequence[CodeDefinition]],
) -> tuple[Floats, Floats, float]:
    """Return the scores of chunks by their files; the module docstring has the formula.

    Args:
        asked: the comparison of the question with names.
        scores: lexical scores of n chunks, best first, in (0, 1].
        file: index of the file of each chunk, in [0, F), shape (n,).
        names: the names of the files, shape (F,).
        defined: the definitions in each chunk, shape (n,).

    Returns:
        The scores, in [0, the best score], shape (n,); the contributions of the chunk itself, other
        chunks of its file, the file name, definitions and exact names, shape (5, n); and the factor
        from the sum of contributions to the score.
    """
    order = file.argsort(kind="stable")
    sizes = np.bincount(file)
    rank = np.empty(file.size, np.int64)
    rank[order] = np.arange(file.size) - starts_of(sizes).repeat(sizes)
    share = scores / scores[0]
    gained = share * _GAINS.take(rank, mode="clip")
    named = np.array([asked.of_chunk(some) for some in defined])
    of_files = np.zeros((sizes.size, 4))
    np.maximum.at(of_files, file, named)
    of_chunks = np.bincount(file, gained)
    of_names = np.array([asked.of_file(name) for name in names])
    parts = np.array(
        [
            gained,
            of_chunks.take(file) - gained,
            of_names.take(file),
            (of_files[:, 0] + of_files[:, 1]).take(file),
            (of_files[:, 2] + of_files[:, 3]).take(file),
        ]
    )
    factor = np.where([name.is_test and not asked.asks_for_tests for name in names], _TEST, 1.0)
    total = factor * (of_chunks + of_names + np.add.reduce(of_files, axis=1))
    own = share + np.add.reduce(named, axis=1)
    most = np.zeros(sizes.size)
    np.maximum.at(most, file, own)
    scale = float(scores[0] / total.max())
    within = own / most.take(file)
    shares = parts * (within * factor.take(file) * scale)
    return (
        np.minimum(scores[0] * (total / total.max()).take(file) * within, scores[0]),
        shares,
        scale,
    )


@frozen(eq=False)
class FileRanking(RerankStage):
    """Reranks the best chunks by their files.

    Attributes:
        paths: the paths of the files, with ``/`` between folders.
        bounds: position of the first chunk of each file, and the number of chunks, shape (F + 1,).
    """

    paths: Sequence[str]
    bounds: Offsets

    n_candidates = 300
    parts = _PARTS[1:]

    def score(self, table: CandidateTable, segments: FeatureSource) -> None:
        """Score the candidates by their files, and scale the scores of other results accordingly."""
        some = self.candidate_rows(table)
        if not some.size:
            return
        before = table.scores.take(some)
        best_first = (-before).argsort(kind="stable")
        places = some.take(best_first)
        of_chunks = self.bounds.searchsorted(table.positions.take(places), "right") - 1
        numbers, file = np.unique(of_chunks, return_inverse=True)
        paths = [self.paths[number] for number in numbers.tolist()]
        extensions = [
            path.rpartition("/")[2].rpartition(".")[2] if "." in path else "" for path in paths
        ]
        rows = table.extract(STORED_FIELDS, some, segments).rows
        chunks = zip(best_first.tolist(), file.tolist(), strict=True)
        defined = [definitions(rows[place].text, extensions[number]) for place, number in chunks]
        names = [FileName.of(path) for path in paths]
        scores, shares, scale = rank_files(
            QueryIdentifiers.of(table.query), before.take(best_first), file, names, defined
        )
        values = np.zeros((len(_PARTS), table.scores.size))
        values[0] = table.scores * (scale / before.max())
        table.scores = values[0].copy()
        values[:, places], table.scores[places] = shares, scores
        table.columns.update(zip(_PARTS, values, strict=True))

    def explain(
        self, table: CandidateTable, place: int, before: float, after: float
    ) -> dict[str, float]:
        """Return the contributions of the file."""
        del before, after
        return {
            part: float(table.columns[part][place]) for part in self.parts if part in table.columns
        }
