"""``relevance-gen index``: keep an index of files, or of records, in a file of its own."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from relevance_gen.cli.arguments import STDIN, add_rows, not_empty
from relevance_gen.cli.opened_index import origin_of, paths_of, reader_of
from relevance_gen.cli.search import (
    FILE,
    FOUND,
    SWITCH,
    TROUBLE,
    add_building,
    add_files,
    add_paths,
    models_of,
)
from relevance_gen.cli.terminal import StatusLine, visible
from relevance_gen.errors import IndexFormatError, InvalidRequestError, pluralize
from relevance_gen.index.records.sources import is_record_file
from relevance_gen.retrieval.chunk_index import ChunkIndex


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.usage = "%(prog)s [OPTION ...] (--save INDEX | --add INDEX) [FILE ...]"
    parser.epilog = (
        "Exits with 0 if the index is there and everything in it, 2 if there was trouble."
    )
    add_paths(parser, "files of records (.jsonl, .ndjson, also .gz and .zst; .parquet), or ")
    target = parser.add_mutually_exclusive_group(required=True)
    place: dict[str, Any] = {"type": not_empty, "metavar": "INDEX"}
    add_rows(
        target,
        (
            "--save",
            place,
            "write a file, or an index to a folder or address; replaces only an index",
        ),
        ("--add", place, "add the chunks to an index in a folder or at an address"),
    )
    field: dict[str, Any] = {"metavar": "FIELD"}
    add_rows(
        parser.add_argument_group("records"),
        ("--text", field, "field, or column, of the text (default: text)"),
        ("--title", field, "that of the title (default: title)"),
        ("--skip-blank", SWITCH, "leave out records whose text is blank or missing"),
    )
    add_files(parser.add_argument_group("which files of a folder"))
    index = parser.add_argument_group("the index")
    add_building(index)
    add_rows(index, ("--encoder", FILE, "a GGUF embedding model; its vectors are kept"))
    parser.set_defaults(reranker=None)


def run(args: argparse.Namespace) -> int:
    """Build the index as `args` say, and return the exit status."""
    status = StatusLine(sys.stderr)
    paths = paths_of(args)
    reader = reader_of(args, status)
    is_records = _are_records(args, paths)
    source: Iterable[Any] = map(Path, paths) if is_records else reader.read(paths)

    def told(done: int, total: int) -> None:
        if is_records or models.encoder is not None:
            status.draw_share("encoding" if models.encoder is not None else "indexing", done, total)
        else:
            status.draw(reader.progress)

    place = args.add or args.save
    is_sharded = args.add is not None or "://" in place or Path(place).is_dir()
    records = {
        "text": "text" if args.text is None else args.text,
        "title": "title" if args.title is None else args.title,
        "blank": "skip" if args.skip_blank else "error",
        "n_jobs": args.jobs,
        "progress": told,
    }
    try:
        with models_of(args) as models:
            if is_sharded:
                n_chunks = _write_sharded(args, place, source, records)
            else:
                n_chunks = len(
                    ChunkIndex.build(
                        source,
                        place,
                        weighting=args.weighting,
                        encoder=models.encoder,
                        encoding=args.encoding,
                        **records,
                    )
                )
    except InvalidRequestError as error:
        if error.field != "path":
            raise error.with_field_names({'blank="skip"': "--skip-blank"}) from None
        raise InvalidRequestError(error.rule, "--save", error.got, "name another file") from None
    except IndexFormatError:
        raise
    except OSError as error:
        raise InvalidRequestError(f"{error.filename or place}: {error.strerror or error}") from None
    finally:
        status.clear()
    of = (
        origin_of(paths, reader)
        if not is_records
        else paths[0]
        if len(paths) == 1
        else pluralize(len(paths), "file")
    )
    sys.stdout.write(f"{place}: {pluralize(n_chunks, 'chunk')} of {of}\n")
    return TROUBLE if reader.failed else FOUND


def _write_sharded(
    args: argparse.Namespace, place: str, source: Iterable[Any], records: dict[str, Any]
) -> int:
    """Build an index in a folder or at an address, or add to it; return the number of new positions."""
    from relevance_gen.shards.sharded_index import ShardedIndex
    from relevance_gen.shards.version_store import holds_index

    if args.encoder is not None:
        rule = "cannot be used: an index in a folder or at an address stores no vectors"
        raise InvalidRequestError(rule, "--encoder")
    if args.add is not None:
        index = ShardedIndex.open(place, encoding=args.encoding)
        return len(index.add_source(source, **records))
    folder = Path(place)
    if "://" not in place and any(folder.iterdir()) and not holds_index(folder):
        raise InvalidRequestError.must_be(
            "--save", "a new file, an index or an empty folder", place
        )
    return len(
        ShardedIndex.build(
            source, place, weighting=args.weighting, encoding=args.encoding, **records
        )
    )


def _are_records(args: argparse.Namespace, paths: Sequence[str]) -> bool:
    """Tell whether the files are read record by record; raise where some are not, or options do not fit them."""
    records = [path for path in paths if path != STDIN and is_record_file(path)]
    if records and len(records) < len(paths):
        others = next(path for path in paths if path not in records)
        raise InvalidRequestError(
            visible(f"{records[0]} holds records, and {others} does not: index them apart")
        )
    given = {
        "--text": args.text is not None,
        "--title": args.title is not None,
        "--skip-blank": args.skip_blank,
    }
    if not records and any(given.values()):
        names = " and ".join(name for name, is_given in given.items() if is_given)
        remedy = "name files that end in .jsonl, .ndjson (also .gz or .zst) or .parquet"
        raise InvalidRequestError(f"only files of records take {names}; {remedy}")
    return bool(records)
