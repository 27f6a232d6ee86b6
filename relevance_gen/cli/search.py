"""``relevance-gen search``: find what answers a question in files."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator

from relevance_gen.chunking import spans
from relevance_gen.cli.highlighting import matched_spellings
from relevance_gen.cli.reading import STDIN, Document, Reader
from relevance_gen.cli.results import Printer
from relevance_gen.cli.terminal import ProgressBar
from relevance_gen.errors import InvalidRequestError
from relevance_gen.retrieval.index import ChunkIndex
from relevance_gen.retrieval.query import Question
from relevance_gen.types import Chunk, SearchResponse
from relevance_gen.wire import serialize

FOUND, NOT_FOUND, TROUBLE = 0, 1, 2
"""Exit statuses, as grep's; trouble outranks the others."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.epilog = "Exits with 0 if something was found, 1 if nothing was, 2 if there was trouble."
    parser.add_argument("query", metavar="QUESTION")
    parser.add_argument(
        "paths",
        metavar="FILE",
        nargs="*",
        help="text files, folders of them, or - for the standard input (the default)",
    )
    parser.add_argument(
        "-n", "--top-n", type=int, default=10, metavar="N", help="most results to show (default: %(default)s)"
    )
    parser.add_argument(
        "--order",
        choices=("best", "text"),
        default="best",
        help="best first, or as they stand in the text (default: %(default)s)",
    )
    parser.add_argument(
        "--where",
        action="append",
        default=[],
        type=_condition,
        metavar="KEY=VALUE",
        help="rank only chunks with this metadata (source, line, start, end); of several values for a key any will do",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="processes that read the text, -1 for as many as there are cores"
    )
    parser.add_argument(
        "--weighting",
        choices=("pivoted", "cosine"),
        default="pivoted",
        help="how terms are weighted (default: %(default)s)",
    )
    parser.add_argument(
        "--max-chars", type=int, default=1000, metavar="N", help="most characters in a chunk (default: %(default)s)"
    )
    parser.add_argument(
        "--lines", type=int, default=4, metavar="N", help="lines to show of a chunk, 0 for all (default: %(default)s)"
    )
    parser.add_argument(
        "--encoding",
        metavar="NAME|FILE",
        help="tiktoken encoding, or rank file, to count tokens by (default: the embedded one)",
    )
    parser.add_argument(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="mark the question's words (default: %(default)s)",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the response of the REST interface, with file positions as metadata"
    )


def run(args: argparse.Namespace) -> int:
    """Search as `args` say, print what was found, and return the exit status."""
    question = Question(args.query, args.top_n, args.order == "text")  # refuses nonsense before files are read
    reader = Reader(_warn)
    started = time.perf_counter()
    paths = args.paths or _piped_input()
    index = _index([chunk for document in reader.read(paths) for chunk in _chunks(document, args.max_chars)], args)
    response = index.search(question.query, question.top_n, question.true_order, where=_where(args.where))
    seconds = time.perf_counter() - started
    if reader.n_binary:
        _warn(f"skipped {reader.n_binary:,} binary file{'s' * (reader.n_binary > 1)}")
    if args.json:
        _print_json(response)
    elif response.results:
        spellings = matched_spellings(index, args.query, response.results[0].original_index)
        Printer.of(args, sys.stdout, spellings).print(response, n_chunks=len(index), seconds=seconds)
    if reader.failed:
        return TROUBLE
    return FOUND if response.results else NOT_FOUND


def _condition(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text[:80]!a}")
    return key, value


def _where(conditions: list[tuple[str, str]]) -> dict[str, list[object]] | None:
    """Collect the values wanted under each key; one that reads as a number is wanted as that, too."""
    wanted: dict[str, list[object]] = {}
    for key, value in conditions:
        wanted.setdefault(key, []).append(value)
        if value.isascii() and value.isdecimal():
            wanted[key].append(int(value))
    return wanted or None


def _piped_input() -> list[str]:
    if sys.stdin is None or sys.stdin.isatty():
        raise InvalidRequestError("name the files to search, or pipe a text in", field="FILE")
    return [STDIN]


def _chunks(document: Document, max_chars: int) -> Iterator[Chunk]:
    """Yield the chunks of a document, with the file, the line and the characters where each stands as metadata."""
    line, counted = 1, 0
    for start, end in spans(document.text, max_chars):
        line += document.text.count("\n", counted, start)
        counted = start
        place = {"source": document.source, "line": line, "start": start, "end": end}
        yield Chunk(document.text[start:end], place)


def _index(chunks: list[Chunk], args: argparse.Namespace) -> ChunkIndex:
    progress = ProgressBar(sys.stderr, "indexing")
    try:
        return ChunkIndex(chunks, weighting=args.weighting, encoding=args.encoding, n_jobs=args.jobs, progress=progress)
    finally:
        progress.clear()


def _print_json(response: SearchResponse) -> None:
    sys.stdout.write(serialize(response).decode("ascii") + "\n")


def _warn(message: str) -> None:
    sys.stderr.write(f"relevance-gen: {message}\n")
