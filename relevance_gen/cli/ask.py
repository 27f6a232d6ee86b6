"""``relevance-gen ask``: answer a question from files with a language model."""

from __future__ import annotations

import argparse
import itertools
import sys
from contextlib import ExitStack
from typing import Any, Final

from relevance_gen import checks
from relevance_gen.asking.api import AnswerStream, ask_stream, copies_without_model
from relevance_gen.cli.arguments import number
from relevance_gen.cli.generate import add_parameters, request_fields
from relevance_gen.cli.models import add_model, load_runner
from relevance_gen.cli.opened_index import open_index
from relevance_gen.cli.results import ResultPrinter, describe_confidence
from relevance_gen.cli.search import (
    FAILED,
    FOUND,
    NOT_FOUND,
    add_search_arguments,
    load_models,
    no_results_message,
    parse_where,
    print_corrections,
)
from relevance_gen.cli.terminal import StatusLine, WordWrap, visible, write_json
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.types import MIN_CONFIDENCE, GenerationRequest

_PARAMETERS: Final = (
    "max_tokens",
    "stop",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "seed",
)
_COPIED: Final = (
    "the answer is the best passage, because no model is loaded; choose a model with --model"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.epilog = "Exit status: 0 if there is an answer, 1 if there is none, 2 on errors."
    content = "the answer, its sources and its prompt"
    add_search_arguments(parser, top_n=5, json=content, default_neighbors=None)
    parameters = parser.add_argument_group("answer")
    add_parameters(parameters, *_PARAMETERS, temperature=0.0, max_tokens=None)
    copy = "answer with text of the files, word for word (default: as the model file says)"
    parameters.add_argument("--copy", action=argparse.BooleanOptionalAction, help=copy)
    parameters.add_argument(
        "--min-confidence",
        type=number,
        default=MIN_CONFIDENCE,
        metavar="FRACTION",
        help="minimum confidence of the search, below which there is no answer "
        "(default: %(default)s)",
    )
    add_model(parser)


def run(args: argparse.Namespace) -> int:
    """Answer a question, print the answer as it arrives and its sources, and return the status."""
    # Invalid arguments are refused before files are read.
    params = SearchParams(
        args.query, args.top_n, syntax="operators", correct_spelling=args.correct_spelling
    )
    checks.number(0, 1).check("min_confidence", args.min_confidence)
    fields = request_fields(args)
    GenerationRequest("", **fields)
    status = StatusLine(sys.stderr)
    with load_models(args) as models:
        opened = open_index(args, status, models.encoder)
        options: dict[str, Any] = {
            "where": parse_where(args),
            "syntax": params.syntax,
            "correct_spelling": params.correct_spelling,
        }
        # A search without vectors decides whether a model has to be loaded.
        response = opened.index.search(params.query, 1, num_candidates=0, **options)
        print_corrections(response, status)
        is_found = bool(response.results) and response.confidence >= args.min_confidence
        if not response.results and not args.json:
            status.print(no_results_message(opened))
            return FAILED if opened.has_failed else NOT_FOUND
        neighbors = args.neighbors
        if neighbors is None:
            neighbors = opened.index.default_neighbors
        with ExitStack() as stack:
            runner = None
            if is_found and copies_without_model(args.model, args.copy, fields):
                status.print(_COPIED)
            elif is_found:
                runner = stack.enter_context(load_runner(args, num_samples=1))
            stream = ask_stream(
                params.query,
                opened.index,
                runner=runner,
                top_n=args.top_n,
                distinct=args.distinct,
                neighbors=neighbors,
                encoder=models.encoder,
                reranker=models.reranker,
                copy=args.copy,
                min_confidence=args.min_confidence,
                **options,
                **fields,
            )
            _print_answer(stack.enter_context(stream), args)
    if opened.has_failed:
        return FAILED
    return FOUND if is_found else NOT_FOUND


def _print_answer(stream: AnswerStream, args: argparse.Namespace) -> None:
    output = sys.stdout
    if args.json:
        write_json(stream.result().to_dict())
        return
    wrapped = WordWrap(output)
    n_cited = 0
    for piece in itertools.chain(stream, ["\n\n"]):
        for sentence in stream.citations[n_cited:]:
            wrapped.write(f" {sentence.citation_marker}")
        n_cited = len(stream.citations)
        wrapped.write(piece)
    printer = ResultPrinter.from_args(args, output)
    for number_of_source, source in enumerate(stream.sources, 1):
        _, _, headings = source.result.title.partition(" > ")  # after the name of the file
        note = f"  {visible(headings)}" if headings else ""
        output.write(printer.format(source.result, f"[{number_of_source}] ", note=note))
    if output.isatty():
        output.write(f"{describe_confidence(stream.confidence)}\n")
