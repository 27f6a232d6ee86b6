"""Keep a sample to a JSON schema, a regular expression or a grammar: which tokens may come next, and when it must end.

llguidance, behind `guidance`, follows the text; a mask of the tokens that may come next goes to `sampling` at every
step. What is one of a few texts needs none of this, and is followed by `relevance_gen.generation.constraints.choices`.
"""

from __future__ import annotations

import importlib
import itertools
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
from attrs import define, frozen

from relevance_gen.errors import InvalidRequestError, shorten, to_install
from relevance_gen.generation.constraints.json_schemas import paths_of, without_unknown_formats
from relevance_gen.generation.queue.request import GRAMMAR_FIELDS
from relevance_gen.generation.sampling.sampler import Mask
from relevance_gen.types import GenerationRequest

if TYPE_CHECKING:
    from relevance_gen.generation.constraints.llguidance_backend import LLMatcher

_WHITE_SPACE = r"( |\n{1,2}[ \t]{0,20})?"
"""What may stand between the parts of JSON: without a bound, small models write white space for ever."""
_SHARE_S, _TOKEN_SHARE_S = 0.5, 0.002
"""The processor's time that following its grammar may take a request, and how much more for each of its tokens."""
NAMED_FOR = "// of {}\n"
"""Begins a grammar that was made of another field, which errors name."""
_CALLED = re.compile(NAMED_FOR.format(r"(\w+)"))
_PART = re.compile(NAMED_FOR.format(r"(\S+)") + ".*?%json ")
"""Stands before a schema within a grammar, and tells the field that it is of."""
_BITS = (1 << np.arange(8)).astype(np.uint8)


@define
class MaskTimeBudget:
    """The processor's time that it takes to follow the grammar of a request, in all its samples."""

    seconds: float = 0.0
    n_tokens: int = 0

    @property
    def is_too_much(self) -> bool:
        """Whether it is over the request's share, which is many times what ordinary grammars take."""
        return self.seconds > _SHARE_S + _TOKEN_SHARE_S * self.n_tokens


class Constraint(ABC):
    """What one sample may still say, by a field of its request; it is `complete` once nothing may follow.

    The `ends` are the tokens that end the sample, where its text is complete, and may not come before. What the
    request's samples take is added to their `effort`. It `is_quick` where its last mask took little time.
    """

    def __init__(
        self, field: str, n_vocab: int, ends: Collection[int], effort: MaskTimeBudget
    ) -> None:
        self.complete = False
        self.is_quick = True
        self._field = field
        self._effort = effort
        self._ends = np.array([token for token in ends if token < n_vocab], np.intp)
        self._mask = np.zeros((n_vocab // 32 + 1) * 4, np.uint8)

    def mask(self, *, may_end: bool) -> Mask:
        """Return the tokens that may come next, none of them where there is none; valid until the next call.

        There is none, either, once this has taken too much time. Where the text is complete but others may follow, an
        end token is among them if it `may_end`.
        """
        mask, before_s = self._mask, self._effort.seconds
        with self._measured():
            is_complete = self._fill(mask)
        self.is_quick = self._effort.seconds - before_s < _TOKEN_SHARE_S
        if self._effort.is_too_much:
            mask[:] = 0
            return mask
        np.bitwise_and.at(mask, self._ends // 8, ~_BITS[self._ends % 8])
        if is_complete and (may_end or not mask.any()):
            np.bitwise_or.at(mask, self._ends // 8, _BITS[self._ends % 8])
        return mask

    def accept(self, token: int) -> None:
        """Take note of a token that was drawn, no end token."""
        with self._measured():
            self.complete = self._follow(token)
        self._effort.n_tokens += 1

    def dead_end(self) -> InvalidRequestError:
        """Return why no token may come next."""
        effort, why = self._effort, self._why()
        if effort.is_too_much:
            why = f"{effort.seconds:.2f} seconds of the processor for {effort.n_tokens} tokens; make it simpler"
        told = (
            f"takes too much to follow: {why}"
            if why
            else "allows no token here that this model has"
        )
        return InvalidRequestError(told, self._field)

    @abstractmethod
    def _fill(self, mask: Mask) -> bool:
        """Write which tokens may come next, and tell whether the text is complete."""

    @abstractmethod
    def _follow(self, token: int) -> bool:
        """Take a token, and tell whether the text is complete and nothing may follow."""

    def _why(self) -> str:
        """Return what made it impossible to follow, empty if nothing did."""
        return ""

    @contextmanager
    def _measured(self) -> Iterator[None]:
        """Count the time that this thread spends inside this context."""
        began_s = time.thread_time()
        yield
        self._effort.seconds += time.thread_time() - began_s


@frozen(eq=False)
class Grammar:
    """What the samples of a request must be, compiled for a model with the module `guidance`.

    The `matcher` is at the beginning of a text; `n_vocab` is the size of the model's vocabulary.
    """

    source: GrammarSource
    matcher: LLMatcher
    n_vocab: int
    guidance: ModuleType

    def begin(self, ends: Collection[int], effort: MaskTimeBudget) -> Constraint:
        """Return the constraint of a sample; `ends` are the tokens that end it, and `effort` its request's."""
        return _Parser(self, ends, effort)


class _Parser(Constraint):
    """Follows a grammar."""

    def __init__(self, grammar: Grammar, ends: Collection[int], effort: MaskTimeBudget) -> None:
        super().__init__(grammar.source.field, grammar.n_vocab, ends, effort)
        self._matcher = grammar.matcher.deep_copy()
        self._guidance = grammar.guidance
        self._end = (
            grammar.n_vocab // 8,
            _BITS[grammar.n_vocab % 8],
        )  # the end token that llguidance has of its own

    def _fill(self, mask: Mask) -> bool:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        place, bit = self._end
        is_complete = bool(mask[place] & bit) and not self._matcher.is_error()
        mask[place] &= ~bit
        return is_complete

    def _follow(self, token: int) -> bool:
        self._matcher.consume_token(token)
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _why(self) -> str:
        why = self._guidance.reason(self._matcher)
        return "" if why == self._guidance.NO_TEXT else why


@frozen
class GrammarSource:
    """A request's own words for what its samples must be: a field and what it holds, a schema as JSON.

    Where that was made of another field, it is `called` that.
    """

    field: str
    text: str
    called: str = ""

    def lark(self) -> str:
        """Write the same in llguidance's dialect of Lark, GBNF where it came so; refuse what cannot be written."""
        match self.field:
            case "json_schema":
                try:
                    schema = without_unknown_formats(json.loads(self.text))
                except RecursionError:
                    raise self.refused("nests too deeply") from None
                options = schema.get("x-guidance", {})
                if isinstance(options, Mapping):
                    options = {"whitespace_pattern": _WHITE_SPACE, **options}
                lark = "start: %json " + json.dumps({**schema, "x-guidance": options})
            case "regex":
                if (len(self.text) - len(self.text.rstrip("\\"))) % 2:
                    raise self.refused("must not end with a single backslash")
                lark = f"start: /{guidance_module().regex_to_lark(self.text)}/"
            case _:
                lark = self.text
        return lark

    def parts(self) -> Iterator[GrammarSource]:
        """Yield the schemas that this was made of, where it was made of several fields."""
        for found in _PART.finditer(self.text):
            schema, _ = json.JSONDecoder().raw_decode(self.text, found.end())
            yield GrammarSource("json_schema", json.dumps(schema), found[1])

    def uncompilable(self, why: str) -> InvalidRequestError:
        """Return the error that says `why` it cannot be compiled, of a schema also where, and what can be done."""
        what = why.rpartition("JSON schema: ")[2]
        if self.field != "json_schema" or what == why:
            return self.refused(f"cannot be compiled: {why}")
        keys, schema = re.findall(r'"([^"]+)"', what), json.loads(self.text)
        places = [path for key in keys for path in itertools.islice(paths_of(key, schema), 1)]
        where = f" at {shorten(', '.join(places))}" if places else ""
        remedy = (
            'leave it out, or put "x-guidance": {"lenient": true} into the schema, '
            "which ignores what is not done here"
        )
        return InvalidRequestError(
            f"cannot be compiled: {what}{where}",
            self.called or self.field,
            remedy=remedy if places else None,
        )

    def refused(self, why: str) -> InvalidRequestError:
        """Return the error that says `why` it cannot be followed."""
        return InvalidRequestError(why, self.called or self.field)


def source_of(request: GenerationRequest) -> GrammarSource:
    """Return what the samples of `request` must be, which has a grammar; refuse it where the extra is not installed."""
    name = next(name for name in GRAMMAR_FIELDS if getattr(request, name) is not None)
    value = getattr(request, name)
    text = value if isinstance(value, str) else json.dumps(value)
    called = _CALLED.match(text)
    source = GrammarSource(name, text, called[1] if called else "")
    try:
        guidance_module()
    except ImportError:
        raise source.refused(
            f"needs a package that is not installed: {to_install('constrained')}"
        ) from None
    return source


def guidance_module() -> ModuleType:
    """Return the module that imports llguidance, which need not be installed."""
    return importlib.import_module("relevance_gen.generation.constraints.llguidance_backend")
