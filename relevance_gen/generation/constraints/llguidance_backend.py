"""Compile grammars with llguidance.

This module is its only importer, and also a program that runs in a sandbox. A grammar is untrusted
input: compiling it may take any time and memory, or exhaust the stack and crash the process. So it
is first compiled with lower limits in a process that may crash, and then in this process. This
module imports nothing of this package, so that the sandbox starts fast.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NoReturn

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

__all__ = [
    "LLMatcher",
    "LLTokenizer",
    "answer",
    "compile_grammar",
    "create_tokenizer",
    "deep_stack",
    "error_of",
    "regex_to_lark",
]

_TRIAL_STACK_BYTES = 8 << 20
STACK_BYTES = 2 * _TRIAL_STACK_BYTES
"""Stack of a thread that compiles a grammar: twice that of the trial, as a margin."""

_LIMITS = LLParserLimits(
    # A mask that takes more than about 20 ms ends its request.
    step_lexer_fuel=50_000,
    # So does a grammar with too many ways to parse the text.
    step_max_items=10_000,
    # About 10 MB for each request.
    max_lexer_states=50_000,
    # Precomputing would take longer for a larger vocabulary than it took in the trial.
    precompute_large_lexemes=False,
    verbose_errors=False,
)

NO_MATCHING_TEXT = "no text matches it"
NO_FORCING = '\n%llguidance {"no_forcing": true}'
"""Lets the model choose the tokenization of text that the grammar makes the only possibility."""
GBNF = re.compile(r"^[ \t]*root[ \t]*::=", re.MULTILINE)


class _Vocabulary:
    """A model's vocabulary in the form that llguidance expects: the bytes that each token prints.

    llguidance appends an end token of its own, which only means that the text may end. It never
    tokenizes text, because grammars set ``no_forcing``.
    """

    eos_token_id = None
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self.tokens = token_bytes

    def __call__(self, text: bytes) -> NoReturn:
        raise NotImplementedError


def create_tokenizer(token_bytes: Sequence[bytes]) -> LLTokenizer:
    """Return the tokenizer of a vocabulary, given the bytes of each token.

    This takes 0.5 s for 152,000 tokens.
    """
    return LLTokenizer(TokenizerWrapper(_Vocabulary(token_bytes)))


def compile_grammar(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Compile a Lark grammar and its first mask.

    The mask detects grammars without any matching text; see `error_of`.
    """
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def error_of(matcher: LLMatcher) -> str:
    """Return the error of a matcher in one line; empty if it has none."""
    message = matcher.get_error()
    line, _, details = message.partition("\n")
    if line.startswith("panic"):  # the rest of the message describes this machine, not the grammar
        return "it uses an unsupported feature"
    if line.startswith("NoExtension"):
        return NO_MATCHING_TEXT
    if line.endswith("regex parse error:"):
        # The details show the position in the regular expression, and then the reason.
        regex = line.partition("invalid regex ")[2].rpartition(" (in regex)")[0]
        reason = details.partition("\nerror: ")[2].partition("\n")[0]
        return f"invalid regex {regex[:100]}: {reason}"
    return line[:300]


@contextmanager
def deep_stack(n_bytes: int = STACK_BYTES) -> Iterator[None]:
    """Give threads that start inside this context a stack of `n_bytes`."""
    previous_bytes = threading.stack_size(n_bytes)
    try:
        yield
    finally:
        threading.stack_size(previous_bytes)


def _run_in_thread(function: Callable[[], str]) -> str:
    with deep_stack(_TRIAL_STACK_BYTES), ThreadPoolExecutor(1) as executor:
        return executor.submit(function).result()


@functools.cache
def _byte_tokenizer() -> LLTokenizer:
    return create_tokenizer([bytes([byte]) for byte in range(256)])


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Compile the ``grammar`` in `request` for a vocabulary whose tokens are the 256 single bytes.

    Returns:
        The grammar as ``lark``, its ``error``, empty if it has none, and the CPU ``seconds`` that
        the compilation took.
    """
    started_s = time.process_time()
    lark = request["grammar"]
    error = ""
    try:
        if GBNF.search(lark):
            lark = gbnf_to_lark(lark)
    except Exception as exception:  # the converter raises any exception for an invalid grammar
        error = f"{str(exception)[:300]} (in GBNF)"
    lark += NO_FORCING
    if not error:
        error = _run_in_thread(lambda: error_of(compile_grammar(_byte_tokenizer(), lark)))
    return {"lark": lark, "error": error, "seconds": time.process_time() - started_s}
