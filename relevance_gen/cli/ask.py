"""``relevance-gen ask``: answer a question from files with a language model."""

from __future__ import annotations

import argparse
import sys
from typing import Any, Final

from relevance_gen.asking.answer import Answer
from relevance_gen.asking.api import AnswerStream, ask_stream
from relevance_gen.cli.corpus import save
from relevance_gen.cli.generate import add_model, add_parameters, given_parameters, load_runner
from relevance_gen.cli.results import Printer, confidence_in_words
from relevance_gen.cli.search import (
    FOUND,
    NOT_FOUND,
    TROUBLE,
    add_search_arguments,
    encoder_of,
    nothing_found,
    open_index,
    say_corrections,
    wanted_metadata,
)
from relevance_gen.cli.terminal import StatusLine, WordWrap
from relevance_gen.llama.model_file import is_embedded
from relevance_gen.retrieval.question.query import Question
from relevance_gen.types import GenerationRequest
from relevance_gen.wire import serialize

_PARAMETERS: Final = ("max_tokens", "stop", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")
_EMBEDDED: Final = (
    "the small embedded model answers, which only copies a sentence that was found, in English, and not always the "
    "right one; name a real model with --model"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command to `parser`."""
    parser.epilog = "Exits with 0 if there is an answer, 1 if nothing was found to answer from, 2 if there was trouble."
    add_search_arguments(parser, top_n=5, json="the answer, its sources and its prompt")
    parameters = parser.add_argument_group("how the answer is drawn")
    add_parameters(parameters, *_PARAMETERS, temperature=0.0, max_tokens=None)
    add_model(parser)


def run(args: argparse.Namespace) -> int:
    """Answer as `args` say, print the answer as it comes and its sources below, and return the exit status."""
    # Refuses nonsense before files are read.
    question = Question(args.query, args.top_n, syntax="signs", corrections=args.corrections)
    fields = given_parameters(args)
    GenerationRequest("", **fields)
    status = StatusLine(sys.stderr)
    with encoder_of(args) as encoder:
        corpus = open_index(args, status, encoder)
        kept = args.save is None or save(corpus, args.save, status.say)
        where = wanted_metadata(args)
        chosen: dict[str, Any] = {"where": where, "syntax": question.syntax, "corrections": question.corrections}
        found = corpus.index.search(question.query, 1, candidates=0, **chosen)  # no vectors: is there anything?
        say_corrections(found, status)
        if found.results:
            if is_embedded(args.model):
                status.say(_EMBEDDED)
            asked = {"top_n": args.top_n, "distinct": args.distinct, "encoder": encoder, **chosen, **fields}
            with (
                load_runner(args, num_samples=1) as runner,
                ask_stream(question.query, corpus.index, runner=runner, **asked) as stream,
            ):
                _show(stream, args)
        elif args.json:
            sys.stdout.write(serialize(Answer.nothing_found(found.confidence).to_dict()).decode("ascii") + "\n")
        else:
            status.say(nothing_found(corpus))
    if corpus.failed or not kept:
        return TROUBLE
    return FOUND if found.results else NOT_FOUND


def _show(stream: AnswerStream, args: argparse.Namespace) -> None:
    output = sys.stdout
    if args.json:
        output.write(serialize(stream.result().to_dict()).decode("ascii") + "\n")
        return
    written = WordWrap(output)
    for piece in stream:
        written.write(piece)
    written.write("\n\n")
    printer = Printer.of(args, output)
    for number, source in enumerate(stream.sources, 1):
        output.write(printer.described(source.result, f"[{number}] "))
    if output.isatty():
        output.write(f"{confidence_in_words(stream.confidence)}\n")
