"""The files of a folder at one moment, searched as one: chunks stand in the order of the files, whenever they came."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set

import numpy as np
from attrs import evolve, field, frozen

from relevance_gen.folders.files import File, Skipped
from relevance_gen.folders.ranking import FileRanking
from relevance_gen.retrieval.arrays import Offsets, bounds_of, ragged_ranges
from relevance_gen.retrieval.index import ChunkIndex
from relevance_gen.retrieval.question.distinct import Labels
from relevance_gen.retrieval.question.filtering import Filter, check_keys
from relevance_gen.retrieval.question.query import Question
from relevance_gen.retrieval.searchable import Searchable
from relevance_gen.retrieval.segment.chunks import Chunks
from relevance_gen.retrieval.segment.passages import TextEncoder
from relevance_gen.types import Explanation, Metadata, SearchResponse, SearchResult


@frozen(eq=False)
class FolderSnapshot(Searchable):
    """A folder's files as they were at one look; it never changes.

    Attributes:
        index: the chunks, those of a file behind those of the file before it.
        files: what is known of each file, by its path, in the order of the walk.
        shown_as: what stands in front of paths in results.
        by_file: whether files are ranked, with one result for each, and not chunks by themselves.
        skipped: what is not searched.
        paths: the files' paths.
        bounds: position of each file's first chunk, and behind the last of all, shape (F + 1,).
    """

    index: ChunkIndex
    files: Mapping[str, File] = field(repr=False)
    shown_as: str = ""
    by_file: bool = True
    skipped: Skipped = field(factory=Skipped)
    paths: Sequence[str] = field(init=False, repr=False)
    bounds: Offsets = field(init=False, repr=False)

    @paths.default
    def _paths(self) -> Sequence[str]:
        return list(self.files)

    @bounds.default
    def _bounds(self) -> Offsets:
        return bounds_of(np.fromiter((len(file.cuts) for file in self.files.values()), np.int64, len(self.files)))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Memory of the texts, of what is kept of them and of what is remembered, in bytes."""
        return self.index.nbytes + sum(file.cuts.nbytes for file in self.files.values())

    def answer_all(
        self, asked: Sequence[Question], encoder: TextEncoder | None = None, *, allow_partial: bool = False
    ) -> list[SearchResponse]:
        """Answer questions. With an encoder, the best by their words are encoded now: no vectors are kept."""
        asked = [*map(self._asked, asked)]
        answers = self.index.answer_all(asked, encoder, allow_partial=allow_partial, rerankings=self._rankings)
        return [evolve(answer, results=tuple(map(self._told, answer.results))) for answer in answers]

    def explain_one(self, question: Question, chunk: int, encoder: TextEncoder | None = None) -> Explanation:
        """Explain the score that a question gives to the chunk at a position."""
        return self.index.explain_one(self._asked(question), chunk, encoder, rerankings=self._rankings)

    @property
    def _rankings(self) -> tuple[FileRanking, ...]:
        return (FileRanking(self.paths, self.bounds),) if self.by_file else ()

    def positions(self, paths: Iterable[str]) -> Offsets:
        """Return the positions of all chunks of some files, file after file."""
        place = {path: number for number, path in enumerate(self.paths)}
        numbers = np.array([place[path] for path in paths], np.int64)
        return ragged_ranges(self.bounds[numbers], self.bounds[numbers + 1] - self.bounds[numbers])

    def _metadata(self, position: int) -> Metadata:
        number = int(self.bounds.searchsorted(position, "right")) - 1
        path = self.paths[number]
        return self.files[path].metadata(self.shown_as + path, position - int(self.bounds[number]))

    def _told(self, result: SearchResult) -> SearchResult:
        return evolve(result, metadata=self._metadata(result.original_index))

    def _asked(self, question: Question) -> Question:
        """Return a question that asks of positions what this one asks of metadata, which the index knows nothing of."""
        where, distinct = question.where, question.distinct
        if isinstance(where, Mapping) or callable(where):
            keys = where.keys() if isinstance(where, Mapping) else None
            chunks, counts = self._described(keys)
            chosen = Filter.read(where, counts.size).flags(np.arange(counts.size), chunks)
            if keys is not None and len(self) and not chosen.any():
                check_keys(keys, set().union(*self._described(None)[0].metadata.values()))
            where = chosen.repeat(counts)
        if isinstance(distinct, str):
            chunks, counts = self._described({distinct})
            distinct = Labels(Labels.of(distinct, chunks).hashes.repeat(counts))
        elif self.by_file:
            counts = np.diff(self.bounds)
            distinct = Labels(np.arange(1, counts.size + 1, dtype=np.uint64).repeat(counts))
        return evolve(question, where=where, distinct=distinct)

    def _described(self, keys: Set[str] | None) -> tuple[Chunks, Offsets]:
        """Return chunks with the metadata of all, under some keys or all, and for how many chunks each stands."""
        every: list[Metadata]
        if keys == {"path"}:  # a look at each file is enough
            every, counts = [{"path": self.shown_as + path} for path in self.paths], np.diff(self.bounds)
        else:
            every = [self._metadata(position) for position in range(len(self))]
            counts = np.ones(len(every), np.int64)
        return Chunks([""] * len(every), dict(enumerate(every))), counts
