"""Several folders as one: paths begin with the folder's name where there is more than one."""

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

_SHOWN_NAMES: Final = 20


def shown(path: str) -> str:
    r"""Return a path as text that any client can read and print, and that names the file when it comes back.

    >>> shown("café.py"), shown("caf\udce9\n.py")
    ('café.py', 'caf\\udce9\\n.py')
    """
    return path if path.isprintable() else ascii(path)[1:-1]


def _joined(name: str, path: str) -> str:
    return f"{name}/{path}" if name else path


@frozen
class Found:
    """What a search found.

    Attributes:
        results: best first; of folders, the ``path`` in their metadata has the folder's name in front.
        searched: what was searched, in words.
        confidence: of several folders that of the one that answers best, in [0, 1].
    """

    results: list[SearchResult]
    searched: str
    confidence: float


@frozen
class Folders:
    """Indexes of folders by their names; one alone is named "", and paths are relative to it."""

    indexes: Mapping[str, FolderIndex] = field(factory=dict)

    @classmethod
    def open(cls, paths: Sequence[str]) -> Folders:
        """Open folders; those with the same name are numbered from the second on. Raise if one is not there."""
        roots: dict[str, str] = {}
        for root in dict.fromkeys(map(os.path.realpath, paths)):
            name = base = root.rpartition("/")[2] or "root"
            number = 2
            while name in roots:
                name, number = f"{base}-{number}", number + 1
            roots[name] = root
        if len(roots) == 1:
            roots = dict(zip([""], roots.values(), strict=True))
        try:
            return cls({name: FolderIndex(root, shown_as=name) for name, root in roots.items()})
        except InvalidRequestError as error:
            raise error.with_field("folders") from None

    def look(self) -> None:
        """Bring all indexes up to date, so that the next who asks need not wait; raise if a folder cannot be read."""
        for name in self.indexes:
            self._snapshot(name)

    def search(self, query: str, top_n: int, folder: str, glob: str) -> Found:
        """Search the files below a folder that match a pattern; "" for all, and raise if there are none."""
        results: list[SearchResult] = []
        n_files, confidence = 0, 0.0
        for name, snapshot, paths in self._chosen(folder, glob):
            where = {"path": [_joined(name, path) for path in paths]} if folder or glob else None
            question = SearchParams(query, top_n, true_order=False, where=where, spans=True)
            response = snapshot.answer_all([question])[0]
            results += response.results
            n_files += len(paths)
            confidence = max(confidence, response.confidence)
        results.sort(key=lambda result: -result.chunk_score)
        return Found(results[:top_n], pluralize(n_files, "file"), confidence)

    def files(self, folder: str, glob: str) -> list[str]:
        """Return the paths of the files below a folder that match a pattern; "" for all; raise if there are none."""
        return [
            _joined(name, path) for name, _, paths in self._chosen(folder, glob) for path in paths
        ]

    def read(self, path: str, first_line: int, last_line: int | None) -> Lines:
        """Return some lines of a file that is searched, as it is now.

        Raises:
            InvalidRequestError: there is no such file, it cannot be read, or it has no such line.
        """
        name, inside = self._placed(path, "path")
        snapshot = self._snapshot(name)
        files = snapshot.files
        if inside not in files:
            inside = next((one for one in files if shown(one) == inside), inside)
        if inside not in files:
            ending = "/" + inside.rpartition("/")[2]
            alike = next(
                (_joined(name, one) for one in files if ("/" + one).endswith(ending)), None
            )
            remedy = f"did you mean {shown(alike)}?" if alike else "the tool files lists them"
            raise InvalidRequestError.must_be(
                "path", "the path of a file that is searched", path, remedy=remedy
            )
        return snapshot.read(inside, first_line, last_line)

    def _chosen(
        self, folder: str, glob: str
    ) -> Iterator[tuple[str, FolderSnapshot, Sequence[str]]]:
        """Yield what is to be searched: the name of a folder, its state now, and those of its files that are wanted."""
        name, inside = self._placed(folder, "folder") if folder else ("", "")
        names = [name] if name else self.indexes
        n_files = 0
        for one in names:
            snapshot = self._snapshot(one)
            paths = [
                path
                for path in snapshot.paths
                if not inside or shown(path).startswith(shown(inside) + "/")
            ]
            if glob:
                paths = list(paths_matching([glob], paths))
            n_files += len(paths)
            yield one, snapshot, paths
        if not n_files and (folder or glob):
            what, got = ("glob", glob) if glob else ("folder", folder)
            remedy = "the tool files lists them; what is hidden or in .gitignore is left out"
            raise InvalidRequestError("matches no file", what, describe(got), remedy)

    def _placed(self, path: str, what: str) -> tuple[str, str]:
        """Return the name of the folder that a path is in, and the path inside of it; of the folder itself ""."""
        normal = os.path.normpath(path)
        normal = "" if normal == "." else normal
        if "" in self.indexes:
            return "", normal
        name, _, inside = normal.partition("/")
        if name not in self.indexes and (name or what == "path"):
            names = ", ".join(list(self.indexes)[:_SHOWN_NAMES])
            raise InvalidRequestError.must_be(what, f"a path that begins with one of {names}", path)
        return name, inside

    def _snapshot(self, name: str) -> FolderSnapshot:
        try:
            return self.indexes[name].snapshot()
        except InvalidRequestError as error:  # where it lies is not for every client to know
            what = f"the folder {name}" if name else "the folder"
            raise InvalidRequestError(
                f"{what} {error.rule}", remedy="tell whoever has started this server"
            ) from None
