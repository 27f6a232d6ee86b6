"""Constraints on the text of a sample: which tokens may follow, and when the text is complete.

llguidance, imported by `llguidance_backend`, follows JSON schemas, regular expressions and
grammars. At each step the sampler applies a mask of the allowed tokens. `choices` follows a list of
texts without llguidance.
"""

from __future__ import annotations

import importlib
import json
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import TYPE_CHECKING, Final

import numpy as np
from attrs import define, frozen

from relevance_gen.errors import InvalidRequestError, shorten, to_install
from relevance_gen.generation.constraints.json_schemas import paths_of, without_unknown_formats
from relevance_gen.generation.queue.request import GRAMMAR_FIELDS
from relevance_gen.generation.sampling.sampler import Mask
from relevance_gen.types import GenerationRequest

if TYPE_CHECKING:
    from relevance_gen.generation.constraints.llguidance_backend import LLMatcher

_JSON_WHITE_SPACE: Final = r"( |\n{1,2}[ \t]{0,20})?"
"""White space between the elements of JSON, bounded because small models otherwise write white
space endlessly."""
_MASK_BUDGET_S: Final = 0.5
"""CPU seconds that the masks of a request may take, plus `_MASK_BUDGET_PER_TOKEN_S` for each
token."""
_MASK_BUDGET_PER_TOKEN_S: Final = 0.002
FIELD_COMMENT: Final = "// of {}\n"
"""The first line of a grammar that was built from another field, which errors must name."""
_FIELD_COMMENT_PATTERN: Final = re.compile(FIELD_COMMENT.format(r"(\w+)"))
_SCHEMA_START: Final = re.compile(FIELD_COMMENT.format(r"(\S+)") + ".*?%json ")
"""The text before a schema inside a grammar, with the field that holds the schema."""
_BITS: Final = (1 << np.arange(8)).astype(np.uint8)


@define
class MaskTimeBudget:
    """The CPU time used for the grammar masks of one request, for all its samples together.

    Attributes:
        seconds: the CPU seconds used so far.
        n_tokens: the number of tokens that the samples have so far; the limit on `seconds` grows
            with it.
    """

    seconds: float = 0.0
    n_tokens: int = 0

    @property
    def is_exceeded(self) -> bool:
        """Whether the time exceeds the limit, which is many times what ordinary grammars take."""
        return self.seconds > _MASK_BUDGET_S + _MASK_BUDGET_PER_TOKEN_S * self.n_tokens


class Constraint(ABC):
    """The state of one sample's constraint.

    Args:
        field: the field of the request that sets the constraint.
        n_vocab: the size of the vocabulary.
        eos_token_ids: tokens that end the sample; allowed only if its text is complete.
        budget: shared by all samples of the request; the time of each mask is added to it.

    Attributes:
        is_complete: whether the text is complete and nothing may follow.
        is_fast: whether the last mask took less than 2 ms.
    """

    def __init__(
        self, field: str, n_vocab: int, eos_token_ids: Collection[int], budget: MaskTimeBudget
    ) -> None:
        self.is_complete = False
        self.is_fast = True
        self._field = field
        self._budget = budget
        self._eos_token_ids = np.array(
            [token for token in eos_token_ids if token < n_vocab], np.intp
        )
        # One bit for each token and for llguidance's own end token, in whole 32-bit words.
        self._mask = np.zeros((n_vocab // 32 + 1) * 4, np.uint8)

    def mask(self, *, may_end: bool) -> Mask:
        """Return the mask of the tokens that may follow; the array is valid until the next call.

        No bit is set if no token may follow or the time budget is exceeded. End tokens are allowed
        if the text is complete and `may_end` is true, and also if the text is complete and no other
        token may follow.
        """
        mask = self._mask
        seconds_before = self._budget.seconds
        with self._timed():
            is_complete = self._fill(mask)
        self.is_fast = self._budget.seconds - seconds_before < _MASK_BUDGET_PER_TOKEN_S
        if self._budget.is_exceeded:
            mask[:] = 0
            return mask
        end_bits = _BITS[self._eos_token_ids % 8]
        np.bitwise_and.at(mask, self._eos_token_ids // 8, ~end_bits)
        if is_complete and (may_end or not mask.any()):
            np.bitwise_or.at(mask, self._eos_token_ids // 8, end_bits)
        return mask

    def accept(self, token: int) -> None:
        """Append a sampled token, which is not an end token, to the text."""
        with self._timed():
            self.is_complete = self._append(token)
        self._budget.n_tokens += 1

    def no_valid_token_error(self) -> InvalidRequestError:
        """Return the error for an empty mask, with its reason."""
        budget = self._budget
        reason = self._failure()
        if budget.is_exceeded:
            reason = f"{budget.seconds:.2f} CPU seconds for {budget.n_tokens} tokens; simplify it"
        if reason:
            return InvalidRequestError(f"is too expensive to follow: {reason}", self._field)
        return InvalidRequestError("allows no token of this model at this position", self._field)

    @abstractmethod
    def _fill(self, mask: Mask) -> bool:
        """Set the bits of tokens that may follow; return whether the text is complete."""

    @abstractmethod
    def _append(self, token: int) -> bool:
        """Append a token, and return whether the text is complete and nothing may follow."""

    def _failure(self) -> str:
        """Return the error that prevents further masks; empty if there is none.

        It is empty, too, if the constraint permits no token of the model at this position.
        """
        return ""

    @contextmanager
    def _timed(self) -> Iterator[None]:
        """Add the CPU time of this thread inside the context to the budget."""
        started_s = time.thread_time()
        yield
        self._budget.seconds += time.thread_time() - started_s


@frozen(eq=False)
class Grammar:
    """A grammar compiled for one model.

    Attributes:
        source: the request's field and text.
        matcher: llguidance's state at the start of a text.
        n_vocab: the size of the model's vocabulary.
    """

    source: GrammarSource
    matcher: LLMatcher
    n_vocab: int

    def begin(self, eos_token_ids: Collection[int], budget: MaskTimeBudget) -> Constraint:
        """Return the constraint of a new sample; see `Constraint`."""
        return _GrammarConstraint(self, eos_token_ids, budget)


class _GrammarConstraint(Constraint):
    """Follows a compiled grammar."""

    def __init__(
        self, grammar: Grammar, eos_token_ids: Collection[int], budget: MaskTimeBudget
    ) -> None:
        super().__init__(grammar.source.field, grammar.n_vocab, eos_token_ids, budget)
        self._matcher = grammar.matcher.deep_copy()
        # llguidance's own end token follows the model's tokens.
        self._end_byte = grammar.n_vocab // 8
        self._end_bit = _BITS[grammar.n_vocab % 8]

    def _fill(self, mask: Mask) -> bool:
        self._matcher.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        is_end_allowed = bool(mask[self._end_byte] & self._end_bit)
        mask[self._end_byte] &= ~self._end_bit
        return is_end_allowed and not self._matcher.is_error()

    def _append(self, token: int) -> bool:
        self._matcher.consume_token(token)
        return self._matcher.is_stopped() and not self._matcher.is_error()

    def _failure(self) -> str:
        guidance = guidance_module()
        reason = str(guidance.error_of(self._matcher))
        return "" if reason == guidance.NO_MATCHING_TEXT else reason


@frozen
class GrammarSource:
    """The constraint of a request before it is compiled.

    Attributes:
        field: the name of the request field that the constraint is in: "json_schema", "regex" or
            "grammar".
        text: the value of this field; a schema as JSON.
        original_field: the name of the client's field from which this field was built, for error
            messages; empty if the client has sent `field` itself.
    """

    field: str
    text: str
    original_field: str = ""

    def to_lark(self) -> str:
        """Return the grammar in llguidance's dialect of Lark; a GBNF grammar unchanged."""
        if self.field == "json_schema":
            return self._schema_to_lark()
        if self.field == "regex":
            n_backslashes = len(self.text) - len(self.text.rstrip("\\"))
            if n_backslashes % 2:
                raise self.error("must not end with a single backslash")
            return f"start: /{guidance_module().regex_to_lark(self.text)}/"
        return self.text

    def _schema_to_lark(self) -> str:
        try:
            schema = without_unknown_formats(json.loads(self.text))
        except RecursionError:
            raise self.error("nests too deeply") from None
        options = schema.get("x-guidance", {})
        if isinstance(options, Mapping):
            options = {"whitespace_pattern": _JSON_WHITE_SPACE, **options}
        return "start: %json " + json.dumps({**schema, "x-guidance": options})

    def schemas(self) -> Iterator[GrammarSource]:
        """Yield the schemas inside a grammar that was built from several fields."""
        for start in _SCHEMA_START.finditer(self.text):
            schema, _ = json.JSONDecoder().raw_decode(self.text, start.end())
            yield GrammarSource("json_schema", json.dumps(schema), start[1])

    def compile_error(self, reason: str) -> InvalidRequestError:
        """Return the error of a failed compilation.

        For a schema, the error lists the paths of unsupported keys.
        """
        schema_reason = reason.rpartition("JSON schema: ")[2]
        if self.field != "json_schema" or schema_reason == reason:
            return self.error(f"cannot be compiled: {reason}")
        keys = re.findall(r'"([^"]+)"', schema_reason)
        schema = json.loads(self.text)
        first_paths = [next(paths_of(key, schema), None) for key in keys]
        paths = [path for path in first_paths if path is not None]
        location = f" at {shorten(', '.join(paths))}" if paths else ""
        remedy = 'omit it, or add "x-guidance": {"lenient": true} to the schema to ignore unsupported keys'
        rule = f"cannot be compiled: {schema_reason}{location}"
        return self.error(rule, remedy if paths else None)

    def error(self, rule: str, remedy: str | None = None) -> InvalidRequestError:
        """Return an error that names `original_field`, or `field` if that is empty.

        `rule` and `remedy` are as for `InvalidRequestError`.
        """
        return InvalidRequestError(rule, self.original_field or self.field, remedy=remedy)


def grammar_source(request: GenerationRequest) -> GrammarSource:
    """Return the constraint of a request as its field and its text, before compilation.

    The request must have a constraint.

    Raises:
        InvalidRequestError: llguidance is not installed.
    """
    field = next(name for name in GRAMMAR_FIELDS if getattr(request, name) is not None)
    value = getattr(request, field)
    text = value if isinstance(value, str) else json.dumps(value)
    comment = _FIELD_COMMENT_PATTERN.match(text)
    source = GrammarSource(field, text, comment[1] if comment else "")
    try:
        guidance_module()
    except ImportError:
        raise source.error(
            f"needs a package that is not installed: {to_install('constrained')}"
        ) from None
    return source


def guidance_module() -> ModuleType:
    """Return the module `llguidance_backend`, which imports the optional package llguidance.

    Raises:
        ImportError: llguidance is not installed.
    """
    return importlib.import_module("relevance_gen.generation.constraints.llguidance_backend")
