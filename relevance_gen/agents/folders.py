"""Searches several folders together; paths begin with the name of the folder, except for a single folder."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from relevance_gen.documents.globs import paths_matching
from relevance_gen.errors import InvalidRequestError, describe, pluralize
from relevance_gen.folders.folder_index import FolderIndex
from relevance_gen.folders.snapshot import FolderSnapshot, Lines
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.types import SearchResult

MAX_WAIT_S: Final = 10.0
"""Seconds that a tool waits for documents; documents that take longer are searched later."""
_MAX_NAMES_IN_ERROR: Final = 20


def escape_path(path: str) -> str:
    r"""Return a path with escapes for characters that a client may be unable to print.

    >>> escape_path("café.py"), escape_path("caf\udce9\n.py")
    ('café.py', 'caf\\udce9\\n.py')
    """
    return path if path.isprintable() else ascii(path)[1:-1]


def _join(name: str, path: str) -> str:
    return f"{name}/{path}" if name else path


@frozen
class ToolSearchResult:
    """The results of a search for a tool.

    Attributes:
        results: best first; the ``path`` in their metadata begins with the name of the folder.
        searched: a description of the searched files or index.
        confidence: the confidence of the search, of several folders the highest, in [0, 1].
    """

    results: list[SearchResult]
    searched: str
    confidence: float


@frozen
class _FolderPath:
    """A folder by its name, and a path in it; the path of the folder itself is ""."""

    folder: str
    path: str


@frozen
class _SelectedFiles:
    """The selected files of a folder in its current state."""

    folder: str
    snapshot: FolderSnapshot
    paths: Sequence[str]


@frozen
class Folders:
    """Indexes of folders by name; a single folder has the name "", and paths relative to it."""

    indexes: Mapping[str, FolderIndex] = field(factory=dict)

    @classmethod
    def open(cls, paths: Sequence[str]) -> Folders:
        """Open folders; of folders with one name, the second and later ones get a number.

        Raises:
            InvalidRequestError: a folder does not exist.
        """
        roots: dict[str, str] = {}
        for root in dict.fromkeys(map(os.path.realpath, paths)):
            base = root.rpartition("/")[2] or "root"
            name = base
            number = 2
            while name in roots:
                name = f"{base}-{number}"
                number += 1
            roots[name] = root
        if len(roots) == 1:
            roots = {"": next(iter(roots.values()))}
        try:
            indexes = {name: FolderIndex(root, shown_as=name) for name, root in roots.items()}
        except InvalidRequestError as error:
            raise error.with_field("folders") from None
        return cls(indexes)

    def refresh(self) -> None:
        """Update all indexes, and wait for their documents.

        Raises:
            InvalidRequestError: a folder cannot be read.
        """
        for name in self.indexes:
            self._snapshot(name, max_wait_s=None)

    def search(self, query: str, top_n: int, folder: str, glob: str) -> ToolSearchResult:
        """Search the files below a folder that match a glob.

        Raises:
            InvalidRequestError: no file matches, or an argument is invalid.
        """
        results: list[SearchResult] = []
        n_files = 0
        confidence = 0.0
        for selected in self._select(folder, glob):
            where = None
            if folder or glob:
                where = {"path": [_join(selected.folder, path) for path in selected.paths]}
            params = SearchParams(query, top_n, true_order=False, where=where, spans=True)
            response = selected.snapshot.answer_all([params])[0]
            results += response.results
            n_files += len(selected.paths)
            confidence = max(confidence, response.confidence)
        results.sort(key=lambda result: -result.chunk_score)
        return ToolSearchResult(results[:top_n], pluralize(n_files, "file"), confidence)

    def files(self, folder: str, glob: str) -> list[str]:
        """Return the paths of the files below a folder that match a glob.

        Raises:
            InvalidRequestError: no file matches, or an argument is invalid.
        """
        paths: list[str] = []
        for selected in self._select(folder, glob):
            paths += [_join(selected.folder, path) for path in selected.paths]
        return paths

    def read(
        self,
        path: str,
        first_line: int,
        last_line: int | None,
        max_chars: int,
    ) -> Lines:
        """Return lines of a file, of which at most `max_chars` characters are held in memory.

        Raises:
            InvalidRequestError: the file does not exist, cannot be read, or is shorter.
        """
        located = self._locate(path, "path")
        snapshot = self._snapshot(located.folder)
        inside = located.path
        if inside not in snapshot.files:
            unescaped = (known for known in snapshot.files if escape_path(known) == inside)
            inside = next(unescaped, inside)
        if inside not in snapshot.files:
            self._refuse_path(path, located, snapshot)
        return snapshot.read(inside, first_line, last_line, max_chars=max_chars)

    def _refuse_path(self, path: str, located: _FolderPath, snapshot: FolderSnapshot) -> None:
        """Raise the error for a path of no file, with a file of the same name as suggestion."""
        ending = "/" + located.path.rpartition("/")[2]
        remedy = "the tool files lists them"
        for known in snapshot.files:
            if ("/" + known).endswith(ending):
                remedy = f"did you mean {escape_path(_join(located.folder, known))}?"
                break
        raise InvalidRequestError.must_be(
            "path", "the path of a file that is searched", path, remedy=remedy
        )

    def _select(self, folder: str, glob: str) -> Iterator[_SelectedFiles]:
        """Yield the selected files of each folder; raise an error if no file is selected."""
        located = self._locate(folder, "folder") if folder else _FolderPath("", "")
        n_files = 0
        for name in [located.folder] if located.folder else self.indexes:
            snapshot = self._snapshot(name)
            paths: Sequence[str] = snapshot.paths
            if located.path:
                prefix = escape_path(located.path) + "/"
                paths = [path for path in paths if escape_path(path).startswith(prefix)]
            if glob:
                paths = list(paths_matching([glob], paths))
            n_files += len(paths)
            yield _SelectedFiles(name, snapshot, paths)
        if not n_files and (folder or glob):
            field, got = ("glob", glob) if glob else ("folder", folder)
            remedy = "the tool files lists them; what is hidden or in .gitignore is left out"
            raise InvalidRequestError("matches no file", field, describe(got), remedy)

    def _locate(self, path: str, field: str) -> _FolderPath:
        """Split a path into a folder and the path inside; `field` is the name for errors."""
        normal = os.path.normpath(path)
        normal = "" if normal == "." else normal
        if "" in self.indexes:
            return _FolderPath("", normal)
        name, _, inside = normal.partition("/")
        if name not in self.indexes and (name or field == "path"):
            names = ", ".join(list(self.indexes)[:_MAX_NAMES_IN_ERROR])
            raise InvalidRequestError.must_be(
                field, f"a path that begins with one of {names}", path
            )
        return _FolderPath(name, inside)

    def _snapshot(self, name: str, max_wait_s: float | None = MAX_WAIT_S) -> FolderSnapshot:
        try:
            return self.indexes[name].snapshot(max_wait_s)
        except InvalidRequestError as error:  # the path on the server is not sent to clients
            folder = f"the folder {name}" if name else "the folder"
            remedy = "ask the administrator of this server to fix it"
            raise InvalidRequestError(f"{folder} {error.rule}", remedy=remedy) from None
