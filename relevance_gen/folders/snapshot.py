"""An immutable state of a folder index, with the chunks in the order of the files."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any, Final

import numpy as np
from attrs import evolve, field, frozen

from relevance_gen.arrays import Flags, Offsets, bounds_of, concat, ragged_ranges, run_starts
from relevance_gen.checks import check_integer
from relevance_gen.errors import InvalidRequestError, did_you_mean
from relevance_gen.folders.file_ranking import FileRanking
from relevance_gen.folders.files import FileRecord, LineReader, Skipped
from relevance_gen.folders.reader import read_lines
from relevance_gen.index.chunks import Chunks
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.chunk_index import ChunkIndex
from relevance_gen.retrieval.collapse import GroupKeys
from relevance_gen.retrieval.params import NO_MODELS, SearchModels, SearchParams
from relevance_gen.retrieval.query.filters import Filter, check_keys, mask_of
from relevance_gen.retrieval.stages.neighbors import MAX_NEIGHBORS, Neighborhood
from relevance_gen.types import Explanation, Metadata, SearchResponse

_CHUNK_KEYS: Final = {"first_line", "last_line", "start", "end"}
"""Metadata keys whose values differ between the chunks of a file."""


@frozen
class Lines:
    """A range of lines of a file.

    Attributes:
        path: the path of the file, relative to the folder.
        first_line: the number of the first line in the range, from 1.
        last_line: the number of the last line that was requested, at most `n_lines`.
        n_lines: the number of lines of the whole file.
        text: the lines, without the newline after the last line.
    """

    path: str
    first_line: int
    last_line: int
    n_lines: int
    text: str


@frozen(eq=False)
class FolderSnapshot(BaseIndex):
    """The files of a folder at one time, and an index of their chunks; immutable.

    Attributes:
        index: the index of the chunks, which are in the order of the files.
        files: the record of each of F files by path, in the order of the walk.
        root, follow, by_file: as in `FolderIndex`.
        shown_as: a path that precedes the paths in results.
        skipped: the files that are not searched, or only in part, with the reasons.
        paths: the paths of the files, in the order of `files`.
        bounds: for each file, the position of its first chunk in `index`, and at the end the number
            of all chunks; shape (F + 1,).
    """

    default_neighbors = MAX_NEIGHBORS

    index: ChunkIndex
    files: Mapping[str, FileRecord] = field(repr=False)
    root: str
    follow: bool
    shown_as: str
    by_file: bool
    skipped: Skipped = field(factory=Skipped)
    paths: Sequence[str] = field(init=False, repr=False)
    bounds: Offsets = field(init=False, repr=False)

    @paths.default
    def _paths(self) -> Sequence[str]:
        return list(self.files)

    @bounds.default
    def _bounds(self) -> Offsets:
        counts = [len(file.locations) for file in self.files.values()]
        return bounds_of(np.array(counts, np.int64))

    def __len__(self) -> int:
        return len(self.index)

    @property
    def nbytes(self) -> int:
        """Memory of the texts, of the index and of its caches, in bytes."""
        return self.index.nbytes + sum(file.locations.nbytes for file in self.files.values())

    def answer_all(
        self,
        searches: Sequence[SearchParams],
        models: SearchModels = NO_MODELS,
        *,
        allow_partial: bool = False,
    ) -> list[SearchResponse]:
        """Return the response to each search of this snapshot.

        An encoder encodes the best lexical candidates during the search: no vectors are stored.
        """
        responses = self.index.answer_all(
            list(map(self._without_metadata, searches)),
            models,
            allow_partial=allow_partial,
            rerankings=self._rankings,
        )
        return list(map(self._with_metadata, responses))

    def explain_one(
        self, params: SearchParams, chunk: int, models: SearchModels = NO_MODELS
    ) -> Explanation:
        """Return the explanation of the score that a chunk has in one search.

        `chunk` is the position of the chunk in `index`.
        """
        return self.index.explain_one(
            self._without_metadata(params), chunk, models, rerankings=self._rankings
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

        Only the first `max_chars` characters of the lines are returned; the rest is left out. Plain
        text is read block by block, so that no more characters are held in memory.
        """
        path = self._known_path(path)
        first_line = check_integer("first_line", first_line, 1)
        if last_line is not None:
            last_line = check_integer("last_line", last_line, first_line)
        requested = LineReader(first_line, last_line, max_chars)
        real = os.path.join(self.root, path)
        try:
            lines = read_lines(real, requested, follow=self.follow)
        except InvalidRequestError as error:
            raise InvalidRequestError(f"cannot be read: {path} {error.rule}", "path") from None
        check_integer("first_line", first_line, 1, max(lines.n_lines, 1))
        last_line = lines.n_lines if last_line is None else min(last_line, lines.n_lines)
        return Lines(path, first_line, last_line, lines.n_lines, lines.text)

    def _known_path(self, path: object) -> str:
        """Return a path in normal form; raise an error unless a file of the folder has this path.

        The error suggests a similar path.
        """
        if isinstance(path, str):
            path = os.path.normpath(path)
            if path in self.files:
                return path
        # Only neighbors and namesakes are compared: comparing all paths would take seconds.
        folder, name = os.path.split(str(path))
        similar = [known for known in self.paths if _has_folder_or_name(known, folder, name)]
        remedy = did_you_mean(str(path), similar, "files() lists them")
        raise InvalidRequestError.must_be(
            "path", "the path of a file that is searched", path, remedy=remedy
        )

    def positions(self, paths: Iterable[str]) -> Offsets:
        """Return the positions in `index` of the chunks of files, file after file."""
        ords = {path: file_ord for file_ord, path in enumerate(self.paths)}
        file_ords = np.array([ords[path] for path in paths], np.int64)
        starts = self.bounds[file_ords]
        return ragged_ranges(starts, self.bounds[file_ords + 1] - starts)

    def _metadata(self, position: int) -> Metadata:
        file_ord = int(self.bounds.searchsorted(position, "right")) - 1
        path = self.paths[file_ord]
        chunk_ord = position - int(self.bounds[file_ord])
        return self.files[path].metadata(self.shown_as + path, chunk_ord)

    def _with_metadata(self, response: SearchResponse) -> SearchResponse:
        results = [
            evolve(result, metadata=self._metadata(result.original_index))
            for result in response.results
        ]
        return evolve(response, results=tuple(results))

    def _without_metadata(self, params: SearchParams) -> SearchParams:
        """Return search parameters that need no metadata, because the index stores none.

        `where` is replaced by a mask of the chunks, and `distinct` by the group of each chunk. If
        files are ranked and `distinct` is not set, the chunks of each file are a group.
        """
        where = params.where
        distinct = params.distinct
        if isinstance(where, Mapping):
            where = self._mask(where)
        elif callable(where):
            positions = np.arange(len(self))
            chunks = self._describe(positions)
            where = Filter.read(where, len(self)).flags(positions, chunks)
        if isinstance(distinct, str):
            runs = self._runs({distinct})
            hashes = GroupKeys.of(distinct, runs.first_chunks).hashes
            distinct = GroupKeys(hashes.repeat(runs.lengths))
        elif self.by_file:
            file_numbers = np.arange(1, len(self.paths) + 1, dtype=np.uint64)
            distinct = GroupKeys(file_numbers.repeat(np.diff(self.bounds)))
        neighbors = params.neighbors
        if isinstance(neighbors, int) and neighbors:
            neighbors = Neighborhood(neighbors, self.bounds[:-1])
        return evolve(params, where=where, distinct=distinct, neighbors=neighbors)

    def _mask(self, where: Mapping[str, Any]) -> Flags:
        """Return a mask of the chunks whose metadata matches `where`.

        A value that adjacent chunks share is compared once for all of them.

        Raises:
            InvalidRequestError: no chunk matches, and `where` has a key that does not occur in the
                metadata of any chunk.
        """
        chunk_conditions = {key: value for key, value in where.items() if key in _CHUNK_KEYS}
        file_conditions = {key: value for key, value in where.items() if key not in _CHUNK_KEYS}
        runs = self._runs(file_conditions.keys())
        mask = mask_of(file_conditions, runs.first_chunks).repeat(runs.lengths)
        if chunk_conditions:
            positions = mask.nonzero()[0]
            mask[positions] = mask_of(chunk_conditions, self._describe(positions))
        if len(self) and not mask.any():
            metadata = self._runs({"page"}).first_chunks.metadata
            check_keys(where, set().union(*metadata.values()))
        return mask

    def _runs(self, keys: Set[str]) -> _Runs:
        """Return the runs of adjacent chunks with equal values of the metadata `keys`."""
        n_chunks = np.diff(self.bounds)
        if keys <= {"path"}:
            metadata = [{"path": self.shown_as + path} for path in self.paths]
            return _Runs(_chunks_with(metadata), n_chunks)
        first_positions = np.arange(len(self))
        if not keys & _CHUNK_KEYS:  # all chunks of a page, or of a text, have equal values
            parts = [file.locations[:, 0] for file in self.files.values()]
            is_first = run_starts(concat(parts, np.int32))
            file_starts = self.bounds[:-1]
            is_first[file_starts[n_chunks > 0]] = True
            first_positions = first_positions[is_first]
        lengths = np.diff(first_positions, append=len(self))
        return _Runs(self._describe(first_positions), lengths)

    def _describe(self, positions: Offsets) -> Chunks:
        """Return chunks with the metadata, but not the texts, of the chunks at these positions."""
        return _chunks_with(list(map(self._metadata, positions.tolist())))


@frozen(eq=False)
class _Runs:
    """R runs of adjacent chunks with equal values of certain metadata keys.

    Attributes:
        first_chunks: the metadata of the first chunk of each run.
        lengths: number of chunks of each run, shape (R,).
    """

    first_chunks: Chunks
    lengths: Offsets


def _chunks_with(metadata: Sequence[Metadata]) -> Chunks:
    return Chunks([""] * len(metadata), dict(enumerate(metadata)))


def _has_folder_or_name(path: str, folder: str, name: str) -> bool:
    own_folder, _, own_name = path.rpartition("/")
    return own_folder == folder or own_name == name
