"""Compile grammars with llguidance, of which this is the only importer; also a program that tries one in a sandbox.

A grammar is a stranger's: it may take any time and memory to compile, or so much stack that the process dies. So it is
compiled once in a process that may die, with more narrow limits, and only then here. This imports nothing of this
package, so that the sandbox starts fast.
"""

from __future__ import annotations

import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

from llguidance import LLMatcher, LLParserLimits, LLTokenizer, TokenizerWrapper, regex_to_lark
from llguidance.gbnf_to_lark import gbnf_to_lark

__all__ = [
    "LLMatcher",
    "LLTokenizer",
    "answer",
    "compiled",
    "deep_stack",
    "reason",
    "regex_to_lark",
    "tokenizer_of",
]

_TRIAL_STACK_BYTES = 8 << 20
STACK_BYTES = 2 * _TRIAL_STACK_BYTES
"""What a thread that compiles a grammar needs: with room to spare beyond what the trial had."""

_LIMITS = LLParserLimits(
    step_lexer_fuel=50_000,  # a mask that takes more than some 20 ms ends its request,
    step_max_items=10_000,  # and so does one that follows too many ways to read the text at once
    max_lexer_states=50_000,  # some 10 MB for each request
    precompute_large_lexemes=False,  # this would take longer for a larger vocabulary than it took in the trial
    verbose_errors=False,
)


NO_TEXT = "no text fits it"
NO_FORCING = '\n%llguidance {"no_forcing": true}'
"""Lets the model itself choose how a text that must come is cut into tokens."""
GBNF = re.compile(r"^[ \t]*root[ \t]*::=", re.MULTILINE)


class _Pieces:
    """A model's vocabulary, as llguidance wants to see it: only what the tokens print.

    Its end token is none of the model's; it only tells that the text may end. Tokens are never asked for: grammars say
    ``no_forcing``, so that the model itself chooses among the tokens that begin what must come.
    """

    eos_token_id = None  # one more is appended
    bos_token_id = None
    special_token_ids: Sequence[int] = ()

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.tokens = pieces

    def __call__(self, text: bytes) -> NoReturn:
        raise NotImplementedError


def tokenizer_of(pieces: Sequence[bytes]) -> LLTokenizer:
    """Return the tokenizer of a vocabulary, given what each token prints; at V = 152,000 this takes half a second."""
    return LLTokenizer(TokenizerWrapper(_Pieces(pieces)))


def compiled(tokenizer: LLTokenizer, grammar: str) -> LLMatcher:
    """Compile a Lark grammar as far as the first mask, which finds those that no text fits; see `reason`."""
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=_LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
    return matcher


def reason(matcher: LLMatcher) -> str:
    """Return in one line what is wrong with a matcher, empty if nothing is."""
    line = matcher.get_error().partition("\n")[0]
    if line.startswith("panic"):  # what follows tells of this machine, and nothing of the grammar
        return "it asks for what is not done here"
    return NO_TEXT if line.startswith("NoExtension") else line[:300]


@contextmanager
def deep_stack(n_bytes: int = STACK_BYTES) -> Iterator[None]:
    """Give threads that start inside this context so much stack."""
    before = threading.stack_size(n_bytes)
    try:
        yield
    finally:
        threading.stack_size(before)


def _in_thread(work: Callable[[], str]) -> str:
    outcome: list[str] = []
    thread = threading.Thread(target=lambda: outcome.append(work()))
    with deep_stack(_TRIAL_STACK_BYTES):
        thread.start()
    thread.join()
    return outcome[0]


@functools.cache
def _bytes() -> LLTokenizer:
    return tokenizer_of([bytes([byte]) for byte in range(256)])


def answer(question: dict[str, Any]) -> dict[str, Any]:
    """Return a ``grammar`` in ``lark``, its ``error``, empty where there is none, and the ``seconds`` that it took."""
    began_s, lark, error = time.process_time(), question["grammar"], ""
    try:
        lark = gbnf_to_lark(lark) if GBNF.search(lark) else lark
    except Exception as wrong:  # the converter indexes and recurses wherever a grammar leads it
        error = f"{str(wrong)[:300]} (in GBNF)"
    error = error or _in_thread(lambda: reason(compiled(_bytes(), lark + NO_FORCING)))
    return {"lark": lark + NO_FORCING, "error": error, "seconds": time.process_time() - began_s}
