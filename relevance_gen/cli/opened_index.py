"""Open the index that a command searches: build it from files, or load a saved index."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from attrs import frozen

from relevance_gen.cli.arguments import STDIN
from relevance_gen.cli.file_reader import FileReader
from relevance_gen.cli.models import option_flag
from relevance_gen.cli.terminal import StatusLine, visible
from relevance_gen.documents.reading import INCOMPLETE
from relevance_gen.documents.walker import Selection, Walker
from relevance_gen.errors import InvalidRequestError, RelevanceGenError, did_you_mean, pluralize
from relevance_gen.folders.folder_index import FolderIndex
from relevance_gen.folders.snapshot import FolderSnapshot
from relevance_gen.index.passages import TextEncoder
from relevance_gen.retrieval.chunk_index import ChunkIndex

_WORKING_FOLDER: Final = "."
_MAX_FILES: Final = 1_000_000
"""Maximum number of files in a folder that is searched."""
_BUILD_DEFAULTS: Final[dict[str, object]] = {
    "glob": [], "type": [], "hidden": False, "no_ignore": False, "follow": False,
    "max_chars": 1000, "weighting": "pivoted", "jobs": None, "no_cache": False,
}  # fmt: skip
"""Defaults of the options that a saved index does not accept."""
_FOLDER_OPTIONS: Final = ("glob", "type", "hidden", "no_ignore", "follow")


@frozen
class OpenedIndex:
    """The index that a command searches.

    Attributes:
        index: the index.
        origin: a description of the source of its chunks, such as "3 files".
        has_failed: whether a file of the index was not read, or not completely.
        has_folders: whether the index has files that were found in folders.
    """

    index: ChunkIndex | FolderSnapshot
    origin: str
    has_failed: bool = False
    has_folders: bool = False


def open_index(
    args: argparse.Namespace, status: StatusLine, encoder: TextEncoder | None = None
) -> OpenedIndex:
    """Open the saved index of the option ``--index``; without the option, build an index of files.

    The arguments are as for `_load`.
    """
    return _build(args, status) if args.index is None else _load(args, status, encoder)


def _load(args: argparse.Namespace, status: StatusLine, encoder: TextEncoder | None) -> OpenedIndex:
    """Open the saved index of the option ``--index``.

    Warns of each file that was read only in part when the index was built.

    Args:
        args: the arguments of the command.
        status: prints the warnings.
        encoder: the encoder of the search, or None. If the vectors in the index are from another
            encoder, the index is opened without vectors, and a message is printed.

    Raises:
        InvalidRequestError: the index cannot be opened, or the arguments contain files or options
            that only apply when an index is built from files.
    """
    changed = [
        option_flag(name)
        for name, default in _BUILD_DEFAULTS.items()
        if getattr(args, name) != default
    ]
    if args.paths:
        changed.insert(0, "FILE")
    if changed:
        surplus = " and ".join(changed)
        raise InvalidRequestError(f"--index searches a saved index: leave out {surplus}")
    try:
        index = _read(args, status, encoder)
    except RelevanceGenError:
        raise
    except OSError as error:
        raise InvalidRequestError(f"{args.index}: {error.strerror or error}") from None
    warnings = set()
    if INCOMPLETE in index.metadata_keys:
        for chunk in index.chunks:
            if INCOMPLETE in chunk.metadata:
                warnings.add(f"{chunk.metadata.get('path')}: {chunk.metadata[INCOMPLETE]}")
    for message in sorted(warnings):
        status.print(message)
    return OpenedIndex(index, args.index, has_failed=bool(warnings))


def _read(args: argparse.Namespace, status: StatusLine, encoder: TextEncoder | None) -> ChunkIndex:
    """Open the index in a file, or the sharded index in a folder or at an address.

    A sharded index has no vectors.
    """
    if "://" in args.index or Path(args.index).is_dir():
        from relevance_gen.shards.sharded_index import VersionReader

        reader = VersionReader(args.index, args.encoding)
        return reader.open(reader.versions.read())
    try:
        return ChunkIndex.load(args.index, encoding=args.encoding, encoder=encoder)
    except InvalidRequestError as error:
        if error.field != "encoder":
            raise
    status.print(
        f"{args.index} holds no vectors of this encoder, so the best chunks are encoded now"
    )
    return ChunkIndex.load(args.index, encoding=args.encoding)


def _build(args: argparse.Namespace, status: StatusLine) -> OpenedIndex:
    """Return an index of the files and folders that the arguments name.

    For a single folder, this is the current state of a `FolderIndex`, which can be cached on disk;
    only changed files are read again. For other paths, or if a glob with a slash would match other
    files relative to the working folder, all files are read and a new `ChunkIndex` is built.
    """
    paths = input_paths(args)
    if (
        len(paths) == 1
        and Path(paths[0]).is_dir()
        and _are_independent_of_folder(args.glob, paths[0])
    ):
        return _open_folder(args, paths[0], status)
    reader = file_reader(args, status)
    with status.watching(lambda: reader.progress):
        chunks = list(reader.read(paths))
    status.draw_share("indexing", 0, len(chunks))
    try:
        index = ChunkIndex(
            chunks,
            weighting=args.weighting,
            encoding=args.encoding,
            n_jobs=args.jobs,
            progress=partial(status.draw_share, "indexing"),
        )
    finally:
        status.clear()
    has_folders = any(map(os.path.isdir, paths))
    return OpenedIndex(index, describe_origin(paths, reader), reader.has_failed, has_folders)


def file_reader(args: argparse.Namespace, status: StatusLine) -> FileReader:
    """Return a reader of the files that the options select; it prints warnings to `status`."""
    selection = Selection(args.hidden, args.no_ignore, args.follow, args.glob, args.type)
    return FileReader(
        Walker(selection, lambda path, reason: status.print(f"{path}: {reason}")),
        status.print,
        args.max_chars,
    )


def describe_origin(paths: Sequence[str], reader: FileReader) -> str:
    """Return a description of the files that were read, such as "3 files"."""
    return "the standard input" if paths == [STDIN] else pluralize(reader.n_files, "file")


def _are_independent_of_folder(globs: Sequence[str], folder: str) -> bool:
    """Return whether globs match the same files relative to a folder and the working folder."""
    return Path(folder).resolve() == Path.cwd() or not any(
        "/" in glob.rstrip("/") for glob in globs
    )


def _open_folder(args: argparse.Namespace, path: str, status: StatusLine) -> OpenedIndex:
    """Open the index of a folder, which may be cached, update it, and warn of skipped files."""
    folder = FolderIndex(
        path,
        glob=args.glob,
        types=args.type,
        hidden=args.hidden,
        no_ignore=args.no_ignore,
        follow=args.follow,
        max_chars=args.max_chars,
        max_files=_MAX_FILES,
        by_file=not getattr(args, "rank_passages", True),
        weighting=args.weighting,
        encoding=args.encoding,
        n_jobs=args.jobs,
        cache=False if args.no_cache else None,
        shown_as="" if path == _WORKING_FOLDER else str(Path(path)),
    )
    with status.watching(lambda: folder.activity):
        snapshot = folder.snapshot()
    for message in snapshot.skipped.messages():
        status.print(message)
    return OpenedIndex(
        snapshot,
        pluralize(len(snapshot.files), "file"),
        bool(snapshot.skipped.failures),
        has_folders=True,
    )


def input_paths(args: argparse.Namespace) -> list[str]:
    """Return the files and folders to search: the paths in the arguments.

    If the arguments contain no path, the only item is the result of `_default_path`.

    Raises:
        InvalidRequestError: a path does not exist. It is not skipped, because the results would
            then be incomplete.
    """
    for path in args.paths:
        try:
            if path != STDIN:
                Path(path).stat()
        except (OSError, ValueError) as error:
            _refuse_path(path, error, is_query=hasattr(args, "query"))
    return args.paths or [_default_path(args)]


def _refuse_path(path: str, error: Exception, *, is_query: bool) -> NoReturn:
    """Raise the error for a path that does not exist; it suggests a similar name in its folder.

    If `is_query`, the command takes a question before the paths. The error then also advises to put
    a question of several words in quotes, because without quotes its further words are parsed as
    paths.
    """
    missing_path = Path(path)
    neighbors: list[str] = []
    with suppress(OSError, ValueError):
        neighbors = [
            entry.name for entry in missing_path.parent.iterdir() if entry.name != missing_path.name
        ]
    remedy = "correct its name or leave it out"
    if is_query:
        remedy += "; a question of several words goes in quotes"
    hint = did_you_mean(missing_path.name, neighbors, remedy)
    reason = getattr(error, "strerror", error)
    raise InvalidRequestError(visible(f"{path}: {reason}; {hint}")) from None


def _default_path(args: argparse.Namespace) -> str:
    """Return the input to search if no path is given: piped input, otherwise the working folder.

    An option that selects files of a folder implies the working folder, and so do a terminal or
    ``/dev/null`` as standard input.
    """
    if sys.stdin is None or any(
        getattr(args, name) != _BUILD_DEFAULTS[name] for name in _FOLDER_OPTIONS
    ):
        return _WORKING_FOLDER
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # replaced by a program
        return STDIN
    return (
        STDIN
        if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode)
        else _WORKING_FOLDER
    )
