"""An index of a folder that is never stale: before each search it looks which files have changed, and reads those.

A file has changed if its fingerprint has. What changes none is not seen: a write into mapped memory until the system
has written it to the file, and what happens while a clock goes back, or while a network's file system remembers what
it told before.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from os import PathLike
from typing import Any, Final

from attrs import asdict, evolve

import relevance_gen
from relevance_gen.checks import as_texts, check_integer
from relevance_gen.documents.extraction import unavailable_reason
from relevance_gen.documents.globs import paths_matching
from relevance_gen.documents.reading import title_of
from relevance_gen.documents.walker import Selection, Walker
from relevance_gen.errors import InvalidRequestError, pluralize
from relevance_gen.folders.cache import CachedIndex, Fingerprint, cache_of, fingerprint
from relevance_gen.folders.files import File, Skipped, as_records, from_records
from relevance_gen.folders.snapshot import FolderSnapshot, Lines
from relevance_gen.index.chunks import Chunks
from relevance_gen.progress import draw_bar
from relevance_gen.retrieval.base_index import BaseIndex
from relevance_gen.retrieval.chunk_index import ChunkIndex
from relevance_gen.retrieval.models import NO_MODELS, Models
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.retrieval.weighting import weighting_named
from relevance_gen.text.token_counting import Encoding, token_counter
from relevance_gen.types import Explanation, SearchResponse, WeightingName

_FORMAT: Final = 2
"""Raised when what is read of a file, or how it is cut, changes."""
_WORTH_KEEPING: Final = 50
"""An index is kept anew when more than one in so many of its files or chunks had to be read."""


class FolderIndex(BaseIndex):
    """The texts of a folder's files, ready to be searched, as they are when they are searched.

    Files are chosen as ``relevance-gen search`` chooses them. Before each search it looks which files were added,
    changed or removed, and reads these alone. Answers are those of an index built anew, bit for bit. A result's
    metadata says its ``path``, relative to the folder, with ``first_line`` and ``last_line``, from 1, or the ``page``,
    ``slide``, ``sheet`` or ``chapter``, and ``start`` and ``end``, characters of that text, from 0.

    Nothing is read before it is asked. What was read is kept for the next process in the user's cache folder; see
    `relevance_gen.folders.cache`. Safe to share between threads.

    Args:
        root: the folder.
        glob: patterns as in an ignore file, relative to the folder, one of which a file must match, or must not where
            they begin with ``!``; the last that matches decides, even on what is hidden or ignored.
        types: names of file types, as in ``relevance-gen search --type-list``, of which a file must have one.
        hidden: whether to take what begins with a dot.
        no_ignore: whether to take what ignore files name.
        follow: whether to follow symbolic links, also to what is outside of the folder.
        max_chars: most characters of a chunk.
        max_files: most files; a folder that has more is refused before any is read.
        by_file: whether to rank files, with the best passage of each as its one result; see
            `relevance_gen.folders.file_ranking`. False ranks passages by themselves, as `ChunkIndex` does.
        weighting, encoding, n_jobs: as for `ChunkIndex`.
        cache: the folder where indexes are kept; None for the user's, False to keep nothing.
        shown_as: a path to put in front of those in results.

    Attributes:
        root: the folder, without links.
        activity: what it does now, in words.

    Raises:
        InvalidRequestError: an argument is not allowed, or the folder is not there.

    >>> index = FolderIndex("relevance_gen/sandbox", cache=False)
    >>> index.search("a program in a process of its own", top_n=1)[0].metadata["path"]
    '__init__.py'
    """

    def __init__(
        self,
        root: str | PathLike[str],
        *,
        glob: str | Sequence[str] = (),
        types: str | Sequence[str] = (),
        hidden: bool = False,
        no_ignore: bool = False,
        follow: bool = False,
        max_chars: int = 1000,
        max_files: int = 200_000,
        by_file: bool = True,
        weighting: WeightingName = "pivoted",
        encoding: Encoding | None = None,
        n_jobs: int | None = 1,
        cache: str | PathLike[str] | bool | None = None,
        shown_as: str = "",
    ) -> None:
        if (
            not isinstance(root, str | PathLike)
            or os.fspath(root) in ("", b"")
            or "\0" in str(root)
        ):
            raise InvalidRequestError.must_be("root", "the path of a folder", root)
        self.root = os.path.realpath(root)
        self._check_root()
        if not isinstance(by_file, bool):
            raise InvalidRequestError.must_be("by_file", "True or False", by_file)
        if not isinstance(shown_as, str):
            raise InvalidRequestError.must_be("shown_as", "a string", shown_as)
        self._max_chars = check_integer("max_chars", max_chars, 1)
        self._max_files = check_integer("max_files", max_files, 1)
        self._selection = Selection(hidden, no_ignore, follow, glob, types)
        self._walker = Walker(self._selection, lambda path, why: self._failed.update({path: why}))
        weighting_named(weighting)
        self._new = partial(ChunkIndex, weighting=weighting, encoding=encoding, n_jobs=n_jobs)
        self._encoding = encoding
        counter = token_counter(encoding)
        reading = [_FORMAT, relevance_gen.__version__, unavailable_reason("PDF") is None]
        options = [
            asdict(self._selection),
            self._max_chars,
            weighting,
            counter.name,
            counter.fingerprint,
        ]
        self._cache = cache_of(cache, [self.root, *reading, *options])
        self._shown: dict[str, Any] = {
            "root": self.root,
            "follow": follow,
            "shown_as": os.path.join(shown_as, ""),
            "by_file": by_file,
        }
        self._failed: dict[str, str] = {}
        self._looking = threading.Lock()
        self._seen: FolderSnapshot | None = None
        self.activity = ""

    def __len__(self) -> int:
        return len(self._last)

    def __repr__(self) -> str:
        return f"<FolderIndex of {self.root}>"

    @property
    def nbytes(self) -> int:
        """Memory of the texts, of what is kept of them and of what is remembered, in bytes."""
        return self._last.nbytes

    @property
    def skipped(self) -> Skipped:
        """What was not searched at the last look."""
        return self._last.skipped

    @property
    def _last(self) -> FolderSnapshot:
        return self._seen or self.snapshot()

    # ── Asking ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def answer_all(
        self,
        asked: Sequence[SearchParams],
        models: Models = NO_MODELS,
        *,
        allow_partial: bool = False,
    ) -> list[SearchResponse]:
        """Answer questions from one state of the folder. With an encoder, the best by their words are encoded now."""
        return self.snapshot().answer_all(asked, models, allow_partial=allow_partial)

    def explain_one(
        self, question: SearchParams, chunk: int, models: Models = NO_MODELS
    ) -> Explanation:
        """Explain the score of the chunk that was at a position at the last look."""
        return self._last.explain_one(question, chunk, models)

    def files(self, glob: str | Sequence[str] = ()) -> list[str]:
        """Return the paths of the files that are there now, those of a folder before those of the folders in it.

        Args:
            glob: patterns, as for the class, of those wanted; by default all.

        Raises:
            InvalidRequestError: a pattern is none.
        """
        return list(paths_matching(as_texts(glob), self.snapshot().files))

    def read(self, path: str, first_line: int = 1, last_line: int | None = None) -> Lines:
        """Return some lines of a file as it is now; of a document, of the text that is searched.

        Only what is searched can be read: never what is hidden, ignored, or outside of the folder.

        Args:
            path: of one of `files`.
            first_line: the first line wanted, from 1.
            last_line: the last; None, or one that is not there, for the last of the file.

        Raises:
            InvalidRequestError: there is no such file, it cannot be read, or it has no such line.
        """
        return self.snapshot().read(path, first_line, last_line)

    # ── Looking ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def snapshot(self) -> FolderSnapshot:
        """Look what has changed, as every search does first, and return the folder as it is now, to be searched.

        Raises:
            InvalidRequestError: the folder is gone, or has too many files.
        """
        with self._looking:
            self._check_root()
            self._failed = {}
            known = self._seen or self._kept()
            found = self._walk()
            before = {} if known is None else known.files
            changed = {
                path
                for path, seen in found.items()
                if path not in before or not seen or before[path].seen != seen
            }
            n_changed = len(changed) + len(before.keys() - found.keys())
            state = self._read(known, found, changed) if known is None or n_changed else known
            state = evolve(state, skipped=self._skipped(state.files))
            if self._seen is None and self._cache is not None:
                n_chunks = state.positions(changed).size
                if _WORTH_KEEPING * n_changed > len(found) or _WORTH_KEEPING * n_chunks > len(
                    state
                ):
                    self._cache.save(CachedIndex(state.index, *as_records(state.files)))
            self._seen = state
            return state

    def _check_root(self) -> None:
        if not os.path.isdir(self.root):
            remedy = (
                "name the folder that it is in, and glob" if os.path.exists(self.root) else None
            )
            raise InvalidRequestError.must_be(
                "root", "a folder that is there", self.root, remedy=remedy
            )
        if not os.access(self.root, os.R_OK | os.X_OK):
            raise InvalidRequestError.must_be("root", "a folder that may be read", self.root)

    def _walk(self) -> dict[str, Fingerprint | None]:
        """Return the fingerprints of the files that are there; None of one that the system tells nothing of."""
        self._walker.n_links = 0
        found: dict[str, Fingerprint | None] = {}
        for path, entry in self._walker.entries(self.root):
            if len(found) == self._max_files:
                remedy = "choose with glob or types, name a folder in it, or raise max_files"
                raise InvalidRequestError(
                    f"holds more than {pluralize(self._max_files, 'file')}", "root", None, remedy
                )
            try:
                found[path] = fingerprint(entry.stat(follow_symlinks=self._selection.follow))
            except FileNotFoundError:  # removed just now
                continue
            except OSError:
                found[path] = None
        return found

    def _read(
        self, known: FolderSnapshot | None, found: Iterable[str], changed: set[str]
    ) -> FolderSnapshot:
        """Read the files that have changed, and return what is there now."""
        files: dict[str, File] = {}
        texts: list[str] = []
        titles: list[str] = []
        for path in found:
            if known is not None and path not in changed:
                files[path] = known.files[path]
            else:
                self.activity = f"reading {pluralize(len(files), 'file')}, {pluralize(len(texts), 'chunk')}  {path}"
                real = os.path.join(self.root, path)
                files[path], said = File.read(real, self._max_chars, follow=self._selection.follow)
                texts += [text for text, _ in said]
                titles += [title_of(path, heading) for _, heading in said]
        chunks = Chunks(texts, {}, dict(enumerate(titles)))
        if known is None:
            return FolderSnapshot(self._new(chunks, progress=self._show), files, **self._shown)
        state = evolve(known, files=files)
        removed = known.positions(
            path for path in known.paths if path in changed or path not in files
        )
        added = state.positions(path for path in state.paths if path in changed)
        if added.size == state.bounds[-1]:
            return evolve(state, index=self._new(chunks, progress=self._show))
        is_same = not removed.size and not added.size
        return (
            state
            if is_same
            else evolve(state, index=known.index.with_changes(removed, chunks, added))
        )

    def _show(self, done: int, total: int) -> None:
        self.activity = f"indexing {draw_bar(done, total)}"

    def _skipped(self, files: Mapping[str, File]) -> Skipped:
        troubled = [(path, file) for path, file in files.items() if file.warning is not None]
        failed = self._failed | {
            path: str(file.warning) for path, file in troubled if file.kind is None
        }
        skipped_kind = Counter(
            (file.kind, str(file.warning)) for _, file in troubled if file.kind is not None
        )
        return Skipped(
            {self._shown["shown_as"] + path: why for path, why in failed.items()},
            skipped_kind,
            self._walker.n_links,
        )

    def _kept(self) -> FolderSnapshot | None:
        """Return what an earlier process has seen."""
        kept = None if self._cache is None else self._cache.load(self._encoding)
        if kept is None:
            return None
        try:
            state = FolderSnapshot(kept.index, from_records(kept.records, kept.cuts), **self._shown)
        except (LookupError, TypeError, ValueError):
            return None
        return state if state.bounds[-1] == len(kept.index) else None
