"""An immutable state of a folder index, with the chunks in the order of the files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np
from attrs import evolve, field, frozen

from relevance_gen.arrays import Flags, Offsets, bounds_of, concat, ragged_ranges
from relevance_gen.checks import check_integer
from relevance_gen.errors import InvalidRequestError, did_you_mean
from relevance_gen.folders.file_ranking import FileRanking
from relevance_gen.folders.files import FileRecord, Skipped
from relevance_gen.folders.reader import read_lines
from relevance_gen.index.chunks import Chunks
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.chunk_index import ChunkIndex
from relevance_gen.retrieval.collapse import GroupKeys
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.query.filters import Filter, check_keys, mask_of
from relevance_gen.types import Explanation, Metadata, SearchResponse, SearchResult

_OF_ONE: Final = {"first_line", "last_line", "start", "end"}
"""Metadata keys whose values differ between the chunks of a file."""


@frozen
class Lines:
    """Some lines of a file.

    Attributes:
        path: the file.
        first_line: number of the first, from 1.
        last_line: number of the last.
        n_lines: lines of the whole file.
        text: the lines, without the end of the last.
    """

    path: str
    first_line: int
    last_line: int
    n_lines: int
    text: str


@frozen(eq=False)
class FolderSnapshot(BaseIndex):
    """The files of a folder in one state; immutable.

    Attributes:
        index: the chunks, in the order of the files.
        files: the record of each file by path, in the order of the walk.
        root, follow, by_file: as in `FolderIndex`.
        shown_as: a path that precedes the paths in results.
        skipped: the files that are not searched.
        paths: the paths of the files.
        bounds: position of the first chunk of each file, and the number of chunks, shape (F + 1,).
    """

    index: ChunkIndex
    files: Mapping[str, FileRecord] = field(repr=False)
    root: str
    follow: bool
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
        return bounds_of(
            np.fromiter(
                (len(file.locations) for file in self.files.values()), np.int64, len(self.files)
            )
        )

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Memory of the texts, of the index and of its caches, in bytes."""
        return self.index.nbytes + sum(file.locations.nbytes for file in self.files.values())

    def answer_all(
        self,
        asked: Sequence[SearchParams],
        models: SearchModels = NO_MODELS,
        *,
        allow_partial: bool = False,
    ) -> list[SearchResponse]:
        """Answer questions. With an encoder, the best by their words are encoded now: no vectors are kept."""
        asked = [*map(self._asked, asked)]
        answers = self.index.answer_all(
            asked, models, allow_partial=allow_partial, rerankings=self._rankings
        )
        return [
            evolve(answer, results=tuple(map(self._told, answer.results))) for answer in answers
        ]

    def explain_one(
        self, question: SearchParams, chunk: int, models: SearchModels = NO_MODELS
    ) -> Explanation:
        """Explain the score that a question gives to the chunk at a position."""
        return self.index.explain_one(
            self._asked(question), chunk, models, rerankings=self._rankings
        )

    @property
    def _rankings(self) -> tuple[FileRanking, ...]:
        return (FileRanking(self.paths, self.bounds),) if self.by_file else ()

    def read(
        self,
        path: str,
        first_line: int = 1,
        last_line: int | None = None,
        *,
        max_chars: int = sys.maxsize,
    ) -> Lines:
        """Return lines of a file, as `FolderIndex.read` does, without an update of the folder.

        Plain text is read block by block: at most `max_chars` characters are held in memory.
        """
        self._check_path(path)
        path = os.path.normpath(path)
        first_line = check_integer("first_line", first_line, 1)
        if last_line is not None:
            last_line = check_integer("last_line", last_line, first_line)
        real = os.path.join(self.root, path)
        try:
            lines = read_lines(real, first_line, last_line, max_chars, follow=self.follow)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"cannot be read: {path} {error.rule}", "path") from None
        check_integer("first_line", first_line, 1, max(lines.n_lines, 1))
        last_line = lines.n_lines if last_line is None else min(last_line, lines.n_lines)
        return Lines(path, first_line, last_line, lines.n_lines, lines.text)

    def _check_path(self, path: object) -> None:
        """Raise an error with a similar path, unless a path is that of a file of the folder."""
        if isinstance(path, str) and os.path.normpath(path) in self.files:
            return
        # Only neighbors and namesakes are compared: comparing all paths would take seconds.
        normal = os.path.normpath(path) if isinstance(path, str) else str(path)
        folder, name = os.path.split(normal)
        similar = [known for known in self.paths if _has_folder_or_name(known, folder, name)]
        remedy = did_you_mean(normal, similar, "files() lists them")
        raise InvalidRequestError.must_be(
            "path",
            "the path of a file that is searched",
            normal if isinstance(path, str) else path,
            remedy=remedy,
        )

    def positions(self, paths: Iterable[str]) -> Offsets:
        """Return the positions of all chunks of the files, file after file."""
        place = {path: number for number, path in enumerate(self.paths)}
        numbers = np.array([place[path] for path in paths], np.int64)
        return ragged_ranges(self.bounds[numbers], self.bounds[numbers + 1] - self.bounds[numbers])

    def _metadata(self, position: int) -> Metadata:
        number = int(self.bounds.searchsorted(position, "right")) - 1
        path = self.paths[number]
        return self.files[path].metadata(self.shown_as + path, position - int(self.bounds[number]))

    def _told(self, result: SearchResult) -> SearchResult:
        return evolve(result, metadata=self._metadata(result.original_index))

    def _asked(self, question: SearchParams) -> SearchParams:
        """Return a search with masks and groups instead of metadata, which the index does not store."""
        where, distinct = question.where, question.distinct
        if isinstance(where, Mapping):
            where = self._having(where)
        elif callable(where):
            where = Filter.read(where, len(self)).flags(
                np.arange(len(self)), self._described(np.arange(len(self)))
            )
        if isinstance(distinct, str):
            chunks, counts = self._alike({distinct})
            distinct = GroupKeys(GroupKeys.of(distinct, chunks).hashes.repeat(counts))
        elif self.by_file:
            counts = np.diff(self.bounds)
            distinct = GroupKeys(np.arange(1, counts.size + 1, dtype=np.uint64).repeat(counts))
        return evolve(question, where=where, distinct=distinct)

    def _having(self, where: Mapping[str, Any]) -> Flags:
        """Return a mask of the chunks with certain metadata; shared values are compared once."""
        own = {key: value for key, value in where.items() if key in _OF_ONE}
        shared = {key: value for key, value in where.items() if key not in _OF_ONE}
        chunks, counts = self._alike(shared.keys())
        chosen = mask_of(shared, chunks).repeat(counts)
        if own:
            at = chosen.nonzero()[0]
            chosen[at] = mask_of(own, self._described(at))
        if len(self) and not chosen.any():
            check_keys(where, set().union(*self._alike(None)[0].metadata.values()))
        return chosen

    def _alike(self, keys: Set[str] | None) -> tuple[Chunks, Offsets]:
        """Return a chunk for each run of chunks that have the same under some keys, and the runs' lengths, shape (R,).

        Without keys a run's chunks have the same keys at all.
        """
        if keys is not None and keys <= {"path"}:
            every: list[Metadata] = [{"path": self.shown_as + path} for path in self.paths]
            return _with_metadata(every), np.diff(self.bounds)
        firsts = np.arange(len(self))
        if keys is None or not keys & _OF_ONE:  # all chunks of a page, or of a text, have the same
            begins = (
                np.diff(
                    concat((file.locations[:, 0] for file in self.files.values()), np.int32),
                    prepend=-1,
                )
                != 0
            )
            begins[self.bounds[:-1][np.diff(self.bounds) > 0]] = True
            firsts = firsts[begins]
        return self._described(firsts), np.diff(firsts, append=len(self))

    def _described(self, positions: Offsets) -> Chunks:
        """Return chunks with the metadata of the chunks at these positions."""
        return _with_metadata(list(map(self._metadata, positions.tolist())))


def _with_metadata(every: Sequence[Metadata]) -> Chunks:
    return Chunks([""] * len(every), dict(enumerate(every)))


def _has_folder_or_name(path: str, folder: str, name: str) -> bool:
    own_folder, _, own_name = path.rpartition("/")
    return own_folder == folder or own_name == name
