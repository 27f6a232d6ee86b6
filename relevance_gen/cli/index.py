"""``relevance-gen index``: save an index of files or records."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from relevance_gen.cli.arguments import STDIN, not_empty
from relevance_gen.cli.file_reader import FileReader
from relevance_gen.cli.models import option_flag
from relevance_gen.cli.opened_index import describe_origin, file_reader, input_paths
from relevance_gen.cli.search import FAILED, FOUND, add_building, add_files, add_paths, load_models
from relevance_gen.cli.terminal import StatusLine, visible
from relevance_gen.errors import IndexFormatError, InvalidRequestError, pluralize
from relevance_gen.index.passages import TextEncoder
from relevance_gen.index.records.sources import is_record_file
from relevance_gen.progress import Progress
from relevance_gen.retrieval.chunk_index import ChunkIndex

_RECORD_OPTIONS: Final = ("text", "title", "skip_blank")
_RECORD_FILES: Final = "files that end in .jsonl, .ndjson (also .gz or .zst) or .parquet"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.usage = "%(prog)s [OPTION ...] (--save INDEX | --add INDEX) [FILE ...]"
    parser.epilog = "Exit status: 0 if all files are indexed, 2 on errors."
    add_paths(parser, "files of records (.jsonl, .ndjson, also .gz and .zst; .parquet), or ")
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--save",
        type=not_empty,
        metavar="INDEX",
        help="write an index to a file, a folder or an address; replaces only an index",
    )
    target.add_argument(
        "--add",
        type=not_empty,
        metavar="INDEX",
        help="add the chunks to an index in a folder or at an address",
    )
    add = parser.add_argument_group("records").add_argument
    add("--text", metavar="FIELD", help="field or column of the text (default: text)")
    add("--title", metavar="FIELD", help="field or column of the title (default: title)")
    add(
        "--skip-blank",
        action="store_true",
        default=None,
        help="skip records whose text is blank or missing",
    )
    add_files(parser)
    index = parser.add_argument_group("index")
    add_building(index)
    index.add_argument(
        "--encoder",
        type=not_empty,
        metavar="FILE",
        help="GGUF embedding model; its vectors are saved",
    )
    parser.set_defaults(reranker=None)


def _progress_of(
    reader: FileReader, status: StatusLine, *, is_records: bool, has_encoder: bool
) -> Progress:
    """Return a function that shows the progress of building an index in the status line.

    With an encoder, or for files of records, this is a bar with the number of chunks that are
    encoded or indexed; otherwise the number of files that were read so far.
    """
    if has_encoder:
        return partial(status.draw_share, "encoding")
    if is_records:
        return partial(status.draw_share, "indexing")
    return lambda _n_done, _n_total: status.draw(reader.progress)


def run(args: argparse.Namespace) -> int:
    """Build an index or add to it, print its size, and return the exit status.

    The status is `FAILED` if a file was not read completely.
    """
    status = StatusLine(sys.stderr)
    paths = input_paths(args)
    reader = file_reader(args, status)
    is_records = _has_records(args, paths)
    source: Iterable[Any] = map(Path, paths) if is_records else reader.read(paths)
    location = args.add or args.save
    try:
        with load_models(args) as models:
            progress = _progress_of(
                reader, status, is_records=is_records, has_encoder=models.encoder is not None
            )
            n_chunks = _write(args, location, source, models.encoder, progress)
    except InvalidRequestError as error:
        if error.field != "path":
            raise error.with_field_names({'blank="skip"': "--skip-blank"}) from None
        raise InvalidRequestError(error.rule, "--save", error.got, "name another file") from None
    except IndexFormatError:
        raise
    except OSError as error:
        raise InvalidRequestError(
            f"{error.filename or location}: {error.strerror or error}"
        ) from None
    finally:
        status.clear()
    origin = describe_origin(paths, reader)
    if is_records:
        origin = paths[0] if len(paths) == 1 else pluralize(len(paths), "file")
    sys.stdout.write(f"{location}: {pluralize(n_chunks, 'chunk')} of {origin}\n")
    return FAILED if reader.has_failed else FOUND


def _write(
    args: argparse.Namespace,
    location: str,
    source: Iterable[Any],
    encoder: TextEncoder | None,
    progress: Progress,
) -> int:
    """Build an index, or add chunks to one with ``--add``.

    A location that is a folder or an address gets an index in shards, any other one a single file.

    Args:
        args: the arguments of the command.
        location: the path or address of the index.
        source: the paths of the files of records, or the chunks.
        encoder: the encoder of the option ``--encoder``, if any.
        progress: shows the progress.

    Returns:
        The number of chunks of the new index; with ``--add``, the number of added chunks.

    Raises:
        InvalidRequestError: ``--encoder`` is given for an index in shards, or the folder has files
            of another kind.
    """
    records: dict[str, Any] = {
        "text": "text" if args.text is None else args.text,
        "title": "title" if args.title is None else args.title,
        "blank": "skip" if args.skip_blank else "error",
        "n_jobs": args.jobs,
        "progress": progress,
    }
    scheme = {"weighting": args.weighting, "encoding": args.encoding}
    is_sharded = args.add is not None or "://" in location or Path(location).is_dir()
    if not is_sharded:
        return len(ChunkIndex.build(source, location, encoder=encoder, **scheme, **records))
    from relevance_gen.shards.sharded_index import ShardedIndex
    from relevance_gen.shards.versions import holds_index

    if encoder is not None:
        rule = "cannot be used: an index in a folder or at an address stores no vectors"
        raise InvalidRequestError(rule, "--encoder")
    if args.add is not None:
        index = ShardedIndex.open(location, encoding=args.encoding)
        return len(index.add_source(source, **records))
    folder = Path(location)
    if "://" not in location and any(folder.iterdir()) and not holds_index(folder):
        raise InvalidRequestError.must_be(
            "--save", "a new file, an index or an empty folder", location
        )
    return len(ShardedIndex.build(source, location, **scheme, **records))


def _has_records(args: argparse.Namespace, paths: Sequence[str]) -> bool:
    """Return whether the names of all `paths` are those of files of records.

    Raises:
        InvalidRequestError: only some of the files contain records, or none does and an option is
            for files of records only.
    """
    records = [path for path in paths if path != STDIN and is_record_file(path)]
    if records and len(records) < len(paths):
        other = next(path for path in paths if path not in records)
        message = f"{records[0]} holds records, and {other} does not: index them separately"
        raise InvalidRequestError(visible(message))
    given = [name for name in _RECORD_OPTIONS if getattr(args, name) is not None]
    if given and not records:
        names = " and ".join(map(option_flag, given))
        raise InvalidRequestError(f"only files of records take {names}; name {_RECORD_FILES}")
    return bool(records)
