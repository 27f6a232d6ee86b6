"""Search several folders together.

The paths of files that agents send and receive begin with the name of a folder, as `name_folders`
returns it. If there is only one folder, the paths are relative to this folder.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

from attrs import field, frozen

from relevance_gen.documents.globs import paths_matching
from relevance_gen.errors import InvalidRequestError, RelevanceGenError, describe, pluralize
from relevance_gen.folders.folder_index import FolderIndex
from relevance_gen.folders.root import name_folders
from relevance_gen.folders.snapshot import FolderSnapshot, Lines
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.types import SearchResult

MAX_WAIT_S: Final = 10.0
"""Seconds that a tool call waits for documents to be read; the rest is found by later calls."""
_MAX_NAMES_IN_ERROR: Final = 20


def escape_path(path: str) -> str:
    r"""Return a path, in ASCII with escapes if it has a character that cannot be printed.

    >>> escape_path("café.py"), escape_path("caf\udce9\n.py")
    ('café.py', 'caf\\udce9\\n.py')
    """
    return path if path.isprintable() else ascii(path)[1:-1]


def _join(name: str, path: str) -> str:
    return f"{name}/{path}" if name else path


@frozen
class ToolSearchResult:
    """The results of a search that a tool call requested.

    Attributes:
        results: best first; the ``path`` in their metadata begins with the name of the folder, if
            there are several folders.
        scope: a description of the searched files or index, such as "3 files".
        confidence: the confidence of the search in [0, 1]; for several folders, the highest.
    """

    results: list[SearchResult]
    scope: str
    confidence: float


@frozen
class _FolderPath:
    """The name of a folder, and a path in this folder; the path is "" for the folder itself.

    If there is only one folder, its name is "". If there are several, the name "" means all.
    """

    folder: str
    path: str


@frozen
class _SelectedFiles:
    """The files of one folder that the arguments ``folder`` and ``glob`` of a tool call select.

    Attributes:
        snapshot: the state of the folder when the files were selected.
        paths: the paths of the selected files; they begin with the name of the folder, if there are
            several folders.
    """

    snapshot: FolderSnapshot
    paths: list[str]


@frozen
class Folders:
    """The indexes of folders, by the names of the folders.

    A single folder has the name "", and its paths are relative to it.
    """

    indexes: Mapping[str, FolderIndex] = field(factory=dict)

    @classmethod
    def open(cls, paths: Sequence[str]) -> Folders:
        """Open an index for each folder, which reads no files yet.

        Raises:
            InvalidRequestError: a folder does not exist or is not readable.
        """
        roots = name_folders(paths)
        indexes = {name: FolderIndex(root, shown_as=name) for name, root in roots.items()}
        return cls(indexes)

    def begin_to_read(self) -> None:
        """Start a background thread that updates all indexes, and do not wait for it.

        The thread ends if a folder cannot be read: later calls of a tool report the error.
        """
        threading.Thread(target=self._update_all, daemon=True).start()

    def _update_all(self) -> None:
        with suppress(RelevanceGenError):
            for name in self.indexes:
                self._snapshot(name, max_wait_s=None)

    def search(self, query: str, top_n: int, folder: str, glob: str) -> ToolSearchResult:
        """Search the files below a folder that match a glob; return the best results, best first.

        Args:
            query: the question.
            top_n: maximum number of results of all folders together.
            folder: the path of a folder, as in the paths that `files` returns; "" for all folders.
            glob: a pattern for paths, relative to the indexed folder; "" for all files.

        Raises:
            InvalidRequestError: the folder or the glob matches no file, or an argument is invalid.
        """
        results: list[SearchResult] = []
        n_files = 0
        confidence = 0.0
        for selected in self._select(folder, glob):
            where = {"path": selected.paths} if folder or glob else None
            params = SearchParams(query, top_n, true_order=False, where=where, spans=True)
            response = selected.snapshot.answer_all([params])[0]
            results += response.results
            n_files += len(selected.paths)
            confidence = max(confidence, response.confidence)
        results.sort(key=lambda result: -result.chunk_score)
        return ToolSearchResult(results[:top_n], pluralize(n_files, "file"), confidence)

    def files(self, folder: str, glob: str) -> list[str]:
        """Return the paths of the files below a folder that match a glob.

        If there are several folders, each path begins with the name of its folder.

        Args:
            folder: the path of a folder, in the form of the returned paths; "" for all folders.
            glob: a pattern for paths, relative to the indexed folder; "" for all files.

        Raises:
            InvalidRequestError: the folder or the glob matches no file, or an argument is invalid.
        """
        return [path for selected in self._select(folder, glob) for path in selected.paths]

    def read(
        self,
        path: str,
        first_line: int,
        last_line: int | None,
        max_chars: int,
    ) -> Lines:
        """Return lines of a file; for a document, of its extracted text.

        Args:
            path: a path as `files` returns it, also in the form of `escape_path`.
            first_line: number of the first line to return, from 1.
            last_line: number of the last line to return; None for the last line of the file.
            max_chars: maximum number of characters that are held in memory if the file is plain
                text; see `FolderSnapshot.read`.

        Raises:
            InvalidRequestError: the file is not searched, cannot be read, or has fewer than
                `first_line` lines.
        """
        located = self._locate(path, "path")
        snapshot = self._snapshot(located.folder)
        inner_path = located.path
        if inner_path not in snapshot.files:
            unescaped = (known for known in snapshot.files if escape_path(known) == inner_path)
            inner_path = next(unescaped, inner_path)
        if inner_path not in snapshot.files:
            self._refuse_path(path, located, snapshot)
        return snapshot.read(inner_path, first_line, last_line, max_chars=max_chars)

    def _refuse_path(self, path: str, located: _FolderPath, snapshot: FolderSnapshot) -> None:
        """Raise the error for a path that no file has; it suggests a file of the same name, if any.

        Args:
            path: the path as the caller wrote it.
            located: the folder of the path, and the path in it.
            snapshot: the state of that folder.
        """
        ending = "/" + located.path.rpartition("/")[2]
        remedy = 'call the tool "files" for the paths'
        for known in snapshot.files:
            if ("/" + known).endswith(ending):
                remedy = f"did you mean {escape_path(_join(located.folder, known))}?"
                break
        raise InvalidRequestError.must_be(
            "path", "the path of a file that is searched", path, remedy=remedy
        )

    def _select(self, folder: str, glob: str) -> Iterator[_SelectedFiles]:
        """Yield the selected files of each indexed folder that `folder` refers to.

        A folder without selected files is also yielded.

        Args:
            folder: a path that begins with the name of an indexed folder if there are several;
                files below this path are selected. "" selects from all indexed folders.
            glob: a pattern for paths relative to the indexed folder; "" for all files.

        Raises:
            InvalidRequestError: `folder` or `glob` is given and no file is selected. It is raised
                after the last folder.
        """
        located = self._locate(folder, "folder")
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
            yield _SelectedFiles(snapshot, [_join(name, path) for path in paths])
        if not n_files and (folder or glob):
            field, got = ("glob", glob) if glob else ("folder", folder)
            omitted = "hidden files and files in .gitignore are omitted"
            remedy = f'call the tool "files" for the paths; {omitted}'
            raise InvalidRequestError("matches no file", field, describe(got), remedy)

    def _locate(self, path: str, field: str) -> _FolderPath:
        """Split a path into the name of its folder and the path in that folder.

        If there is only one folder, its name is "" and the path is not split. If there are several,
        the path "." as a `folder` argument has the result ("", ""), which means all folders.

        Args:
            path: the path, as a caller wrote it; "" is the same as ".".
            field: the name of the parameter that contains the path, for errors.

        Raises:
            InvalidRequestError: there are several folders, and the path does not begin with the
                name of one of them.
        """
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
