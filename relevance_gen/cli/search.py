"""``relevance-gen search``: find the passages of files that answer a question."""

from __future__ import annotations

import argparse
import itertools
import math
import re
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from typing import Any, Final, get_args

from relevance_gen.asking.compression import compress
from relevance_gen.cli.arguments import not_empty, quote, read_condition
from relevance_gen.cli.opened_index import OpenedIndex, open_index
from relevance_gen.cli.results import ResultPrinter
from relevance_gen.cli.terminal import StatusLine, write_json
from relevance_gen.documents.walker import list_file_types
from relevance_gen.errors import pluralize
from relevance_gen.retrieval.params import SearchModels, SearchParams
from relevance_gen.retrieval.stages.neighbors import MAX_NEIGHBORS
from relevance_gen.types import Chunk, SearchResponse, WeightingName

FOUND: Final = 0
NOT_FOUND: Final = 1
FAILED: Final = 2
"""Exit statuses, as grep's; an error outranks the others."""

_MAX_DIGITS: Final = 19


def _count(text: str, low: int = 1) -> int:
    is_short = text.isascii() and text.isdecimal() and len(text) < _MAX_DIGITS
    if not is_short or int(text) < low:
        message = f"must be an integer of at least {low}, got {quote(text)}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def _n_jobs(text: str) -> int:
    return -1 if text == "-1" else _count(text)


class _TypeList(argparse.Action):
    """The action of ``--type-list``: it prints the types that ``--type`` accepts, and exits."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the file types that ``--type`` accepts, and exit with status 0."""
        sys.stdout.write(list_file_types())
        parser.exit()


# ── Arguments ────────────────────────────────────────────────────────────────────────────────────


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.epilog = "Exit status: 0 if there are results, 1 if there are none, 2 on errors."
    add = add_search_arguments(parser, top_n=10, json="the response").add_argument
    add(
        "--sort",
        choices=("score", "position"),
        default="score",
        help="sort by score or by position in the files (default: %(default)s)",
    )
    add(
        "--rank-passages",
        action="store_true",
        help="in a folder, rank passages instead of files with the best passage of each",
    )
    add(
        "--max-tokens",
        type=_count,
        metavar="N",
        help="show only the most relevant sentences of the results, up to N tokens",
    )


def add_search_arguments(
    parser: argparse.ArgumentParser, *, top_n: int, json: str, default_neighbors: int | None = 0
) -> argparse._ArgumentGroup:
    """Add the arguments of commands that search files, and return the argument group "results".

    Args:
        parser: the parser of the command.
        top_n: the default of ``--top-n``.
        json: a noun phrase for the output of ``--json``, for the help text.
        default_neighbors: the default of ``--neighbors``; None if the command chooses it later.
    """
    parser.usage = "%(prog)s [OPTION ...] QUESTION [FILE ...]"
    parser.add_argument(
        "query", metavar="QUESTION", help="the query; put it after -- if it begins with -"
    )
    add_paths(parser)
    results = parser.add_argument_group("results")
    add = results.add_argument
    add(
        "-n",
        "--top-n",
        type=_count,
        metavar="N",
        default=top_n,
        help="maximum number of results (default: %(default)s)",
    )
    add(
        "--where",
        action="append",
        default=[],
        type=read_condition,
        metavar="KEY=VALUE",
        help="search only chunks with this metadata (path, first_line, last_line, page, slide, "
        "sheet, chapter, start, end); several values of a key are alternatives, and bounds such as "
        "'page>=10' form one range (repeatable)",
    )
    add(
        "--distinct",
        metavar="KEY",
        help="show only the best result for each value of this metadata key (such as path)",
    )
    add(
        "--fill",
        action="store_true",
        help="show also passages that share nothing with the question, up to N",
    )
    add(
        "--neighbors",
        type=int,
        choices=range(MAX_NEIGHBORS + 1),
        default=default_neighbors,
        help="distance at which passages of a file lend score to each other",
    )
    add(
        "--lines",
        type=partial(_count, low=0),
        metavar="N",
        default=4,
        help="lines to show of each result, 0 for all (default: %(default)s)",
    )
    add(
        "--color",
        choices=("auto", "always", "never"),
        default="auto",
        help="highlight the words of the question (default: %(default)s)",
    )
    add(
        "--encoder", type=not_empty, metavar="FILE", help="GGUF embedding model for semantic search"
    )
    add("--reranker", type=not_empty, metavar="FILE", help="GGUF reranker for the 20 best results")
    add(
        "--no-spelling-correction",
        dest="correct_spelling",
        action="store_false",
        help="disable spelling correction",
    )
    add(
        "--json", action="store_true", help=f"print {json} as JSON, with file positions as metadata"
    )
    add_files(parser)
    index = parser.add_argument_group("index")
    index.add_argument(
        "--index", type=not_empty, metavar="INDEX", help="search a saved index instead of files"
    )
    index.add_argument(
        "--no-cache",
        action="store_true",
        help="read all files of a folder again, and do not cache its index",
    )
    add_building(index)
    return results


def add_paths(parser: argparse.ArgumentParser, before: str = "") -> None:
    """Add the positional argument ``FILE ...``, the files and folders to read.

    Args:
        parser: the parser of the command.
        before: text before the list of the kinds of files in the help text, such as further kinds.
    """
    parser.add_argument(
        "paths",
        metavar="FILE",
        nargs="*",
        type=not_empty,
        default=[],
        help=f"{before}text, PDF, HTML and Office files, folders of them, or - for standard input "
        "(default: piped input, else the working folder)",
    )


def add_files(parser: argparse.ArgumentParser) -> None:
    """Add the options that select files of a folder."""
    add = parser.add_argument_group("files of folders").add_argument
    add(
        "-g",
        "--glob",
        action="append",
        default=[],
        metavar="GLOB",
        help="include only files that match, or exclude them with ! before the glob (repeatable)",
    )
    add(
        "-t",
        "--type",
        action="append",
        default=[],
        metavar="TYPE",
        help="include only files of this type, such as py, md, pdf or docs (repeatable)",
    )
    add("--type-list", action=_TypeList, nargs=0, help="list the file types and exit")
    add("--hidden", action="store_true", help="include files whose name begins with a dot")
    add(
        "--no-ignore", action="store_true", help="include files that .gitignore and .ignore exclude"
    )
    add("-L", "--follow", action="store_true", help="follow symbolic links")


def add_building(group: argparse._ArgumentGroup) -> None:
    """Add the options of building an index."""
    add = group.add_argument
    add(
        "--max-chars",
        type=_count,
        metavar="N",
        default=1000,
        help="maximum characters of a chunk (default: %(default)s)",
    )
    add(
        "--weighting",
        choices=get_args(WeightingName),
        default="pivoted",
        help="scoring scheme: pivoted, or cosine (textbook TF-IDF) (default: %(default)s)",
    )
    add(
        "--encoding",
        type=not_empty,
        metavar="NAME|FILE",
        help="tiktoken encoding or rank file for counting tokens (default: the embedded one)",
    )
    add(
        "--jobs",
        type=_n_jobs,
        metavar="N",
        help="number of processes that build the index, -1 for one per core",
    )


# ── Running ──────────────────────────────────────────────────────────────────────────────────────


def run(args: argparse.Namespace) -> int:
    """Search, print the results, and return the exit status."""
    params = SearchParams(
        args.query,
        args.top_n,
        args.sort == "position",
        where=parse_where(args),
        spans=not args.json,
        distinct=args.distinct,
        syntax="operators",
        correct_spelling=args.correct_spelling,
        fill=args.fill,
        neighbors=args.neighbors,
    )
    started_s = time.perf_counter()
    status = StatusLine(sys.stderr)
    with load_models(args) as models:
        opened = open_index(args, status, models.encoder)
        response = opened.index.answer_all([params], models)[0]
        print_corrections(response, status)
    seconds = time.perf_counter() - started_s
    if response.results and args.max_tokens is not None:
        _print_sentences(response, args)
    elif args.json:
        write_json(response)
    elif response.results:
        printer = ResultPrinter.from_args(args, sys.stdout)
        printer.print(response, n_chunks=len(opened.index), seconds=seconds)
    else:
        status.print(no_results_message(opened))
    if opened.has_failed:
        return FAILED
    return FOUND if response.results else NOT_FOUND


def _print_sentences(response: SearchResponse, args: argparse.Namespace) -> None:
    """Print the most relevant sentences of the results.

    The sentences of a result are below its header. With ``--json``, all sentences are one object.
    """
    chunks = [Chunk(result.chunk_txt, title=result.title) for result in response]
    compressed = compress(args.query, chunks, max_tokens=args.max_tokens, encoding=args.encoding)
    if args.json:
        fields = compressed.to_dict()
        for sentence in fields["sentences"]:
            result = response[sentence["original_index"]]
            sentence["original_index"] = result.original_index
            sentence["metadata"] = result.metadata
        write_json(fields)
        return
    printer = ResultPrinter.from_args(args, sys.stdout)
    groups = itertools.groupby(compressed, lambda sentence: sentence.original_index)
    for rank, sentences in groups:
        ranges = [(sentence.start, sentence.end) for sentence in sentences]
        sys.stdout.write(printer.format(response[rank], ranges=ranges))


@contextmanager
def load_models(args: argparse.Namespace) -> Iterator[SearchModels]:
    """Load the encoder and the reranker of a command, and close them at the end of the context."""
    # Imported here because these modules import llama.cpp, which most searches do not need.
    with ExitStack() as stack:
        encoder = reranker = None
        if args.encoder is not None:
            from relevance_gen.embedding.encoder import Encoder

            encoder = stack.enter_context(Encoder(args.encoder))
        if args.reranker is not None:
            from relevance_gen.embedding.reranker import Reranker

            reranker = stack.enter_context(Reranker(args.reranker))
        yield SearchModels(encoder, reranker)


def print_corrections(response: SearchResponse, status: StatusLine) -> None:
    """Print which words of the question were corrected."""
    for word, correction in response.metadata.corrections.items():
        status.print(
            f"searched for {correction!r} instead of {word!r}, which does not occur; "
            "--no-spelling-correction disables this"
        )


def no_results_message(opened: OpenedIndex) -> str:
    """Return the message for a search without results, with a hint if folders gave no chunks."""
    chunks = pluralize(len(opened.index), "chunk")
    hint = ""
    if opened.has_folders and not len(opened.index):
        hint = "; --no-ignore and --hidden include more files"
    return f"nothing found in {chunks} of {opened.origin}{hint}"


def parse_where(args: argparse.Namespace) -> dict[str, list[object]] | None:
    """Return the search option ``where``: a list of alternatives for each metadata key.

    Returns None without conditions. Each value of a condition ``KEY=VALUE`` is an alternative as a
    string, and if it consists of digits, also as an integer. All bounds of a key, such as
    ``KEY>=VALUE``, form one range, which is one alternative: a range of numbers if all bounds are
    numbers, otherwise of strings. If all bounds have four digits, they can be years, so both ranges
    are alternatives; the range of strings matches ISO dates.
    """
    where: dict[str, list[object]] = {}
    bounds: dict[str, dict[str, str]] = {}
    for condition in args.where:
        alternatives = where.setdefault(condition.key, [])
        if condition.comparison is not None:
            bounds.setdefault(condition.key, {})[condition.comparison] = condition.value
            continue
        alternatives.append(condition.value)
        if condition.value.isascii() and condition.value.isdecimal():
            with suppress(ValueError):  # Python converts at most 4,300 digits
                alternatives.append(int(condition.value))
    for key, limits in bounds.items():
        numbers = {comparison: _number(limit) for comparison, limit in limits.items()}
        are_numbers = None not in numbers.values()
        if are_numbers:
            where[key].append(numbers)
        if not are_numbers or all(re.fullmatch("[0-9]{4}", limit) for limit in limits.values()):
            where[key].append(limits)
    return where or None


def _number(text: str) -> int | float | None:
    """Return the number that a text represents; None for other texts, infinity and NaN."""
    with suppress(ValueError):
        return int(text)
    with suppress(ValueError):
        number = float(text)
        return number if math.isfinite(number) else None
    return None
