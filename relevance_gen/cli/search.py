"""``relevance-gen search``: find what answers a question in files."""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, get_args

from relevance_gen.asking.compression import compress
from relevance_gen.cli.arguments import add_rows, not_empty, pair
from relevance_gen.cli.opened_index import OpenedIndex, build, load
from relevance_gen.cli.results import Printer
from relevance_gen.cli.terminal import StatusLine, write_json
from relevance_gen.documents.filetypes import listing
from relevance_gen.errors import pluralize
from relevance_gen.index.passages import TextEncoder
from relevance_gen.retrieval.params import SearchModels, SearchParams
from relevance_gen.types import Chunk, SearchResponse, WeightingName

_MAX_DIGITS = 19
FOUND, NOT_FOUND, TROUBLE = 0, 1, 2
"""Exit statuses, as grep's; trouble outranks the others."""


def _count(text: str, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < _MAX_DIGITS and int(text) >= least):
        raise argparse.ArgumentTypeError(
            f"must be an integer of at least {least}, got {text[:80]!a}"
        )
    return int(text)


_NUMBER: dict[str, Any] = {"type": _count, "metavar": "N"}
FILE: dict[str, Any] = {"type": not_empty, "metavar": "FILE"}
_SEVERAL: dict[str, Any] = {"action": "append", "default": []}
SWITCH: dict[str, Any] = {"action": "store_true"}


class _TypeList(argparse.Action):
    """Print the types of files and end the process, as ``--help`` does with the help."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print them."""
        sys.stdout.write(listing())
        parser.exit()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.epilog = "Exits with 0 if something was found, 1 if nothing was, 2 if there was trouble."
    results = add_search_arguments(parser, top_n=10, json="the response of the REST interface")
    order: dict[str, Any] = {"choices": ("score", "position"), "default": "score"}
    add_rows(
        results,
        ("--sort", order, "best first, or as they stand in the text (default: %(default)s)"),
        (
            "--rank-passages",
            SWITCH,
            "in a folder, rank passages by themselves, and not files with the best passage of each",
        ),
        (
            "--max-tokens",
            _NUMBER,
            "show only the sentences of the results that say most about the question, at most so many tokens",
        ),
    )


def add_search_arguments(
    parser: argparse.ArgumentParser, *, top_n: int, json: str
) -> argparse._ArgumentGroup:
    """Add the arguments of every command that searches files, and return the group of what is shown.

    There are `top_n` results by default, and ``--json`` prints what `json` says.
    """
    parser.usage = "%(prog)s [OPTION ...] QUESTION [FILE ...]"
    parser.add_argument(
        "query", metavar="QUESTION", help="what to find; behind -- if it begins with -"
    )
    add_paths(parser)
    results = parser.add_argument_group("which results, and how")
    where = (
        "rank only chunks with this metadata (path, first_line, last_line, page, slide, sheet, chapter, start, end); "
        "of several values for a key any will do"
    )
    distinct = "at most one result, the best, for each value of this metadata (source, for one)"
    lines: dict[str, Any] = {"type": partial(_count, least=0), "default": 4, "metavar": "N"}
    colour: dict[str, Any] = {"choices": ("auto", "always", "never"), "default": "auto"}
    encoder = "a GGUF embedding model, to lift what says in other words what is asked"
    reranker = "a GGUF reranker, which reads the best 20 together with the question and puts them in its own order"
    exact: dict[str, Any] = {"dest": "correct_spelling", "action": "store_false"}
    add_rows(
        results,
        ("-n --top-n", _NUMBER | {"default": top_n}, "most results to show (default: %(default)s)"),
        ("--where", _SEVERAL | {"type": pair, "metavar": "KEY=VALUE"}, where),
        ("--distinct", {"metavar": "KEY"}, distinct),
        ("--lines", lines, "lines to show of a chunk, 0 for all (default: %(default)s)"),
        ("--color", colour, "mark the question's words (default: %(default)s)"),
        ("--encoder", FILE, encoder),
        ("--reranker", FILE, reranker),
        (
            "--no-spelling-correction",
            exact,
            "take no word that is not there for one that is a letter away",
        ),
        ("--json", SWITCH, f"print {json}, with file positions as metadata"),
    )
    add_files(parser.add_argument_group("which files of a folder"))
    index = parser.add_argument_group("the index")
    add_rows(
        index,
        ("--index", FILE | {"metavar": "INDEX"}, "search what `index` kept, and no files"),
        (
            "--no-cache",
            SWITCH,
            "read all of a folder again, and keep nothing of it for the next time",
        ),
    )
    add_building(index)
    return results


def add_paths(parser: argparse.ArgumentParser, before: str = "") -> None:
    """Add the files to read; `before` says what else may be read."""
    parser.add_argument(
        "paths",
        metavar="FILE",
        nargs="*",
        type=not_empty,
        default=[],
        help=f"{before}texts, PDF, HTML and Office files, folders of them, or - for the standard input "
        "(default: what is piped in, else the working folder)",
    )


def add_files(group: argparse._ArgumentGroup) -> None:
    """Add the options that choose among the files of a folder."""
    globs = "only those that match, or with ! before it none that do, as in .gitignore; may be given more than once"
    types = "only those of a type (py, md, pdf, docs ...); may be given more than once"
    add_rows(
        group,
        ("-g --glob", _SEVERAL | {"metavar": "GLOB"}, globs),
        ("-t --type", _SEVERAL | {"metavar": "TYPE"}, types),
        ("--type-list", {"action": _TypeList, "nargs": 0}, "show the types and exit"),
        ("--hidden", SWITCH, "also those whose name begins with a dot"),
        ("--no-ignore", SWITCH, "also those that .gitignore and .ignore leave out"),
        ("-L --follow", SWITCH, "also those behind symbolic links"),
    )


def add_building(group: argparse._ArgumentGroup) -> None:
    """Add the options that say how an index is built."""
    weighting: dict[str, Any] = {"choices": get_args(WeightingName), "default": "pivoted"}
    encoding: dict[str, Any] = {"type": not_empty, "metavar": "NAME|FILE"}
    jobs: dict[str, Any] = {
        "type": lambda text: -1 if text == "-1" else _count(text),
        "metavar": "N",
    }
    add_rows(
        group,
        (
            "--max-chars",
            _NUMBER | {"default": 1000},
            "most characters in a chunk (default: %(default)s)",
        ),
        ("--weighting", weighting, "how terms are weighted (default: %(default)s)"),
        (
            "--encoding",
            encoding,
            "tiktoken encoding, or rank file, to count tokens by (default: the embedded one)",
        ),
        ("--jobs", jobs, "processes that build it, -1 for as many as there are cores"),
    )


def run(args: argparse.Namespace) -> int:
    """Search as `args` say, print what was found, and return the exit status."""
    in_text_order, where = args.sort == "position", wanted_metadata(args)
    more: dict[str, Any] = {
        "spans": not args.json,
        "distinct": args.distinct,
        "syntax": "operators",
    }
    more["correct_spelling"] = args.correct_spelling
    question = SearchParams(args.query, args.top_n, in_text_order, where=where, **more)
    started = time.perf_counter()
    status = StatusLine(sys.stderr)
    with models_of(args) as models:
        corpus = open_index(args, status, models.encoder)
        index = corpus.index
        response = index.answer_all([question], models)[0]
        say_corrections(response, status)
    seconds = time.perf_counter() - started
    if response.results and args.max_tokens is not None:
        _show_sentences(response, args)
    elif args.json:
        write_json(response)
    elif response.results:
        Printer.of(args, sys.stdout).print(response, n_chunks=len(index), seconds=seconds)
    else:
        status.say(nothing_found(corpus))
    return TROUBLE if corpus.failed else FOUND if response.results else NOT_FOUND


def _show_sentences(response: SearchResponse, args: argparse.Namespace) -> None:
    """Print the sentences of the results that say most about the question, each below its result."""
    chunks = [Chunk(result.chunk_txt, title=result.title) for result in response]
    compressed = compress(args.query, chunks, max_tokens=args.max_tokens, encoding=args.encoding)
    printer = Printer.of(args, sys.stdout)
    if args.json:
        plain = compressed.to_dict()
        for one in plain["sentences"]:
            result = response[one["original_index"]]
            one |= {"original_index": result.original_index, "metadata": result.metadata}
        write_json(plain)
        return
    for number, sentences in itertools.groupby(compressed, lambda one: one.original_index):
        sys.stdout.write(
            printer.described(response[number], kept=[(one.start, one.end) for one in sentences])
        )


def open_index(
    args: argparse.Namespace, status: StatusLine, encoder: TextEncoder | None = None
) -> OpenedIndex:
    """Make the index of the files that `args` name, or open the saved one."""
    return build(args, status) if args.index is None else load(args, status, encoder)


@contextmanager
def models_of(args: argparse.Namespace) -> Iterator[SearchModels]:
    """Load the models that `args` name."""
    # Imported here, as they import what llama.cpp needs, for few searches.
    with ExitStack() as stack:
        encoder = reranker = None
        if args.encoder is not None:
            from relevance_gen.embedding.encoder import Encoder

            encoder = stack.enter_context(Encoder(args.encoder))
        if args.reranker is not None:
            from relevance_gen.embedding.reranker import Reranker

            reranker = stack.enter_context(Reranker(args.reranker))
        yield SearchModels(encoder, reranker)


def say_corrections(response: SearchResponse, status: StatusLine) -> None:
    """Say which words of the question were taken for others."""
    for word, taken in response.metadata.corrections.items():
        status.say(
            f"took {word!r}, which is not there, for {taken!r}; --no-spelling-correction leaves it as it is"
        )


def nothing_found(corpus: OpenedIndex) -> str:
    """Say that a search found nothing in all of these chunks, and what may help."""
    hint = (
        "; --no-ignore and --hidden take more files"
        if corpus.in_folders and not len(corpus.index)
        else ""
    )
    return f"nothing found in {pluralize(len(corpus.index), 'chunk')} of {corpus.origin}{hint}"


def wanted_metadata(args: argparse.Namespace) -> dict[str, list[object]] | None:
    """Collect the values wanted under each key; one that reads as a number is wanted as that, too."""
    wanted: dict[str, list[object]] = {}
    for key, value in args.where:
        wanted.setdefault(key, []).append(value)
        if value.isascii() and value.isdecimal():
            wanted[key].append(int(value))
    return wanted or None
