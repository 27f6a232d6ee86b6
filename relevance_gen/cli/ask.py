"""``relevance-gen ask``: answer a question from files with a language model."""

from __future__ import annotations

import argparse
import itertools
import sys
from contextlib import ExitStack
from typing import Any, Final

from relevance_gen import checks
from relevance_gen.asking.api import AnswerStream, ask_stream
from relevance_gen.cli.arguments import number
from relevance_gen.cli.generate import add_model, add_parameters, given_parameters, load_runner
from relevance_gen.cli.results import Printer, confidence_in_words
from relevance_gen.cli.search import (
    FOUND,
    NOT_FOUND,
    TROUBLE,
    add_search_arguments,
    models_of,
    nothing_found,
    open_index,
    say_corrections,
    wanted_metadata,
)
from relevance_gen.cli.terminal import StatusLine, WordWrap, visible, write_json
from relevance_gen.llama.model_files.resolve import is_embedded
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
_EMBEDDED: Final = (
    "the small embedded model answers, which only copies the passage that was found; "
    "name a real model with --model"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.epilog = (
        "Exits with 0 if there is an answer, 1 if none was found, 2 if there was trouble."
    )
    add_search_arguments(parser, top_n=5, json="the answer, its sources and its prompt")
    parameters = parser.add_argument_group("how the answer is drawn")
    add_parameters(parameters, *_PARAMETERS, temperature=0.0, max_tokens=None)
    words = "answer in the words of the files alone (default: as the model's file says; the embedded one's says so)"
    parameters.add_argument("--copy", action=argparse.BooleanOptionalAction, help=words)
    least = (
        "below this confidence of the search, say that no answer was found (default: %(default)s)"
    )
    parameters.add_argument(
        "--min-confidence", type=number, default=MIN_CONFIDENCE, metavar="SHARE", help=least
    )
    add_model(parser)


def run(args: argparse.Namespace) -> int:
    """Answer as `args` say, print the answer as it comes and its sources below, and return the exit status."""
    # Refuses nonsense before files are read.
    question = SearchParams(
        args.query, args.top_n, syntax="operators", correct_spelling=args.correct_spelling
    )
    checks.number(0, 1).check("min_confidence", args.min_confidence)
    fields = given_parameters(args)
    GenerationRequest("", **fields)
    status = StatusLine(sys.stderr)
    with models_of(args) as models:
        corpus = open_index(args, status, models.encoder)
        where = wanted_metadata(args)
        chosen: dict[str, Any] = {
            "where": where,
            "syntax": question.syntax,
            "correct_spelling": question.correct_spelling,
        }
        found = corpus.index.search(
            question.query, 1, num_candidates=0, **chosen
        )  # no vectors: is there anything?
        say_corrections(found, status)
        is_found = bool(found.results) and found.confidence >= args.min_confidence
        asked = {
            "top_n": args.top_n,
            "distinct": args.distinct,
            "encoder": models.encoder,
            **chosen,
            **fields,
        }
        asked |= {
            "reranker": models.reranker,
            "copy": args.copy,
            "min_confidence": args.min_confidence,
        }
        with ExitStack() as stack:
            if is_found:
                if is_embedded(args.model):
                    status.say(_EMBEDDED)
                asked["runner"] = stack.enter_context(load_runner(args, num_samples=1))
            if found.results or args.json:
                stream = ask_stream(question.query, corpus.index, **asked)
                _show(stack.enter_context(stream), args)
            else:
                status.say(nothing_found(corpus))
    return TROUBLE if corpus.failed else FOUND if is_found else NOT_FOUND


def _show(stream: AnswerStream, args: argparse.Namespace) -> None:
    output = sys.stdout
    if args.json:
        write_json(stream.result().to_dict())
        return
    written = WordWrap(output)
    n_marked = 0
    for piece in itertools.chain(stream, ["\n\n"]):
        for sentence in stream.citations[n_marked:]:
            written.write(f" {sentence.citation_marker}")
        n_marked = len(stream.citations)
        written.write(piece)
    printer = Printer.of(args, output)
    for rank, source in enumerate(stream.sources, 1):
        _, _, headings = source.result.title.partition(" > ")  # behind the file's name
        output.write(
            printer.described(
                source.result, f"[{rank}] ", note="  " * bool(headings) + visible(headings)
            )
        )
    if output.isatty():
        output.write(f"{confidence_in_words(stream.confidence)}\n")
