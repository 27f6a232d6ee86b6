"""Make the index to search: from files, or from one that was saved."""

from __future__ import annotations

import argparse
import os
import stat
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from attrs import frozen

from relevance_gen.cli.arguments import STDIN
from relevance_gen.cli.file_reader import FileReader
from relevance_gen.cli.terminal import StatusLine, visible
from relevance_gen.documents.reading import INCOMPLETE
from relevance_gen.documents.walker import Selection, Walker
from relevance_gen.errors import InvalidRequestError, RelevanceGenError, did_you_mean, pluralize
from relevance_gen.folders.folder_index import FolderIndex
from relevance_gen.folders.snapshot import FolderSnapshot
from relevance_gen.index.passages import TextEncoder
from relevance_gen.retrieval.chunk_index import ChunkIndex

_HERE: Final = "."
_MAX_FILES: Final = 1_000_000
"""Most files of a folder whose index is kept."""
_FOR_BUILDING: Final[dict[str, object]] = {
    "--glob": [], "--type": [], "--hidden": False, "--no-ignore": False, "--follow": False,
    "--max-chars": 1000, "--weighting": "pivoted", "--jobs": None, "--no-cache": False,
}  # fmt: skip
"""Options without a meaning for an index that is built already, and what they are when they are not given."""
_FOR_FOLDERS: Final = ("--glob", "--type", "--hidden", "--no-ignore", "--follow")


@frozen
class OpenedIndex:
    """The chunks to search, and where they are from, in words.

    It has `failed` if anything could not be read, or not whole; `in_folders` says whether files were looked for there.
    """

    index: ChunkIndex | FolderSnapshot
    origin: str
    failed: bool = False
    in_folders: bool = False


def load(
    args: argparse.Namespace, status: StatusLine, encoder: TextEncoder | None = None
) -> OpenedIndex:
    """Open the saved index that `args` name; without its vectors, where these are not the encoder's.

    It raises an `InvalidRequestError` where an argument makes no sense beside it, or there is no such file.
    """
    given = [option for option, default in _FOR_BUILDING.items() if _value(args, option) != default]
    if args.paths or given:
        surplus = " and ".join([*(["FILE"] if args.paths else []), *given])
        raise InvalidRequestError(f"--index searches what was saved: leave out {surplus}")
    try:
        index = _load(args, status, encoder)
    except RelevanceGenError:
        raise
    except OSError as error:
        raise InvalidRequestError(f"{args.index}: {error.strerror or error}") from None
    cut = {
        f"{chunk.metadata.get('path')}: {chunk.metadata[INCOMPLETE]}"
        for chunk in (index.chunks if INCOMPLETE in index.metadata_keys else ())
        if INCOMPLETE in chunk.metadata
    }
    for message in sorted(cut):
        status.say(message)
    return OpenedIndex(index, args.index, failed=bool(cut))


def _load(args: argparse.Namespace, status: StatusLine, encoder: TextEncoder | None) -> ChunkIndex:
    if "://" in args.index or Path(args.index).is_dir():
        return _load_shards(args)
    if encoder is not None:
        try:
            return ChunkIndex.load(args.index, encoding=args.encoding, encoder=encoder)
        except InvalidRequestError as error:
            if error.field != "encoder":
                raise
            status.say(
                f"{args.index} holds no vectors of this encoder, so the best chunks are encoded now"
            )
    return ChunkIndex.load(args.index, encoding=args.encoding)


def _load_shards(args: argparse.Namespace) -> ChunkIndex:
    """Open what a cluster saved in a folder or at an address; an encoder encodes the best of its chunks."""
    from relevance_gen.shards.sharded_index import VersionReader

    reader = VersionReader(args.index, args.encoding)
    return reader.open(reader.versions.read())


def build(args: argparse.Namespace, status: StatusLine) -> OpenedIndex:
    """Read the files that `args` name and make an index of them."""
    paths = paths_of(args)
    if len(paths) == 1 and Path(paths[0]).is_dir() and _mean_the_same(args.glob, paths[0]):
        return _open_folder(args, paths[0], status)
    reader = reader_of(args, status)
    with status.watching(lambda: reader.progress):
        chunks = list(reader.read(paths))
    status.draw_share("indexing", 0, len(chunks))
    try:
        index = ChunkIndex(
            chunks,
            weighting=args.weighting,
            encoding=args.encoding,
            n_jobs=args.jobs,
            progress=lambda done, total: status.draw_share("indexing", done, total),
        )
    finally:
        status.clear()
    return OpenedIndex(
        index, origin_of(paths, reader), reader.failed, any(map(os.path.isdir, paths))
    )


def reader_of(args: argparse.Namespace, status: StatusLine) -> FileReader:
    """Return what reads the files that `args` choose."""
    selection = Selection(
        args.hidden, args.no_ignore, args.follow, tuple(args.glob), tuple(args.type)
    )
    return FileReader(
        Walker(selection, lambda path, why: status.say(f"{path}: {why}")),
        status.say,
        args.max_chars,
    )


def origin_of(paths: Sequence[str], reader: FileReader) -> str:
    """Say where the chunks are from that were read."""
    return "the standard input" if paths == [STDIN] else pluralize(reader.n_files, "file")


def _mean_the_same(globs: Sequence[str], folder: str) -> bool:
    """Tell whether globs mean the same relative to a folder as to the working folder."""
    return Path(folder).resolve() == Path.cwd() or not any(
        "/" in glob.rstrip("/") for glob in globs
    )


def _open_folder(args: argparse.Namespace, path: str, status: StatusLine) -> OpenedIndex:
    """Open the index of a folder, which may have been kept, and bring it up to date."""
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
        shown_as="" if path == _HERE else str(Path(path)),
    )
    with status.watching(lambda: folder.activity):
        snapshot = folder.snapshot()
    for message in snapshot.skipped.messages():
        status.say(message)
    return OpenedIndex(
        snapshot,
        pluralize(len(snapshot.files), "file"),
        bool(snapshot.skipped.failed),
        in_folders=True,
    )


def _value(args: argparse.Namespace, option: str) -> object:
    return getattr(args, option.removeprefix("--").replace("-", "_"))


def paths_of(args: argparse.Namespace) -> list[str]:
    """Return what to search.

    Raises:
        InvalidRequestError: something that is named is not there: without it results would look as if they were all.
    """
    for path in args.paths:
        place, beside = Path(path), list[str]()
        try:
            _ = path == STDIN or place.stat()
        except (OSError, ValueError) as error:
            with suppress(OSError, ValueError):
                beside = [one.name for one in place.parent.iterdir() if one.name != place.name]
            otherwise = "correct its name or leave it out"
            otherwise += "; a question of several words goes in quotes" * hasattr(args, "query")
            said = f"{path}: {getattr(error, 'strerror', error)}; {did_you_mean(place.name, beside, otherwise)}"
            raise InvalidRequestError(visible(said)) from None
    return args.paths or [_default_path(args)]


def _default_path(args: argparse.Namespace) -> str:
    """Return what to search where no file is named: what is piped in or read from a file, else the working folder.

    Options that choose among the files of a folder mean the folder. A terminal, ``/dev/null`` and what else is the
    standard input where nobody gave one are no text to search.
    """
    if sys.stdin is None or any(
        _value(args, option) != _FOR_BUILDING[option] for option in _FOR_FOLDERS
    ):
        return _HERE
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):  # a program put something else in its place
        return STDIN
    return STDIN if stat.S_ISFIFO(mode) or stat.S_ISREG(mode) or stat.S_ISSOCK(mode) else _HERE
