"""One sample being generated: what it has so far, how it draws, and why it ends. No clock, no thread, no I/O."""

from __future__ import annotations

from concurrent.futures import Executor, Future
from contextlib import suppress

import numpy as np
from attrs import define, field

from relevance_gen.generation.constraints.token_constraint import Constraint
from relevance_gen.generation.engine.stop_strings import StopStrings, TextAssembler
from relevance_gen.generation.output_parsing.output_parser import ReasoningTokenCounter
from relevance_gen.generation.sampling.logits_processor import LogitsProcessor
from relevance_gen.generation.sampling.sampler import Mask
from relevance_gen.types import Completion, FinishReason, GenerationRequest, TokenLogprob


@define(eq=False)
class Sequence:
    """The state of one sample, from its first token to its finish reason.

    Args:
        request: what was asked for.
        index: which of the request's samples this is.
        seed: makes the draws repeatable together with `index`.
        stops, ends: the request's stop strings and end tokens, made ready once for all its samples.
        n_prompt: tokens of the prompt.
        room: most tokens that the context still holds, at least 1.
        n_vocab: size of the vocabulary.
        constraint: what the text must be, if not anything.
        allowed: the tokens that may be drawn, if these are not all.
        thoughts: counts the tokens of thoughts, in a conversation.

    Attributes:
        tokens: generated so far, the end token included.
        finish_reason: ``None`` while running.
        adjustment: what to change in the logits before drawing.
    """

    request: GenerationRequest
    index: int
    _seed: int
    _stops: StopStrings
    _ends: frozenset[int]
    _n_prompt: int
    _room: int
    _n_vocab: int
    constraint: Constraint | None = None
    _allowed: Mask | None = None
    _thoughts: ReasoningTokenCounter | None = None
    tokens: list[int] = field(factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    adjustment: LogitsProcessor = field(init=False)
    n_alternatives: int = field(init=False)
    _mask: Future[Mask] | None = field(default=None, init=False)
    _assembler: TextAssembler = field(init=False)
    _text: list[str] = field(factory=list, init=False)
    _logprobs: list[float] = field(factory=list, init=False)
    _alternatives: list[tuple[TokenLogprob, ...]] = field(factory=list, init=False)
    _random: np.random.Generator = field(init=False)

    def __attrs_post_init__(self) -> None:
        # A constraint itself keeps end tokens back.
        self.adjustment = LogitsProcessor(
            self.request, () if self.constraint else self._ends, self._n_vocab
        )
        self.n_alternatives = min(self.request.top_logprobs, self._n_vocab)
        self._assembler = TextAssembler(self._stops)
        seed = np.random.SeedSequence(self._seed, spawn_key=(self.index,))
        self._random = np.random.Generator(np.random.PCG64(seed))

    @property
    def position(self) -> int:
        """Where the last token goes in the context: the tokens the context holds already."""
        return self._n_prompt + len(self.tokens) - 1

    @property
    def may_end(self) -> bool:
        """Whether the next token may be an end token."""
        return len(self.tokens) >= self.request.min_tokens

    @property
    def is_masked(self) -> bool:
        """Whether what `begin_mask` has begun is done, or will be soon, as it was the last time."""
        return (
            self._mask is None
            or self._mask.done()
            or (self.constraint is None or self.constraint.is_quick)
        )

    def begin_mask(self, thread: Executor) -> None:
        """Compute in another thread what `mask` will return."""
        if self.constraint is not None and self.finish_reason is None:
            with suppress(
                RuntimeError
            ):  # the interpreter ends, or there is no thread: then `mask` computes it
                self._mask = thread.submit(self.constraint.mask, may_end=self.may_end)

    def mask(self) -> Mask | None:
        """Return which tokens may be drawn next, where not all may; valid until the next call."""
        if self.constraint is None:
            return self._allowed
        begun, self._mask = self._mask, None
        mask = self.constraint.mask(may_end=self.may_end) if begun is None else begun.result()
        return mask if self._allowed is None else mask[: len(self._allowed)] & self._allowed

    def draw(self) -> float:
        """Return the uniform number in [0, 1) that decides the next token."""
        return self._random.random()

    def accept(
        self,
        token: int,
        piece: bytes,
        logprob: float | None = None,
        alternatives: tuple[TokenLogprob, ...] = (),
    ) -> str:
        """Append a token, decide whether the sample ends, and return the text that this releases."""
        self.tokens.append(token)
        if logprob is not None:
            self._logprobs.append(logprob)
        if self.n_alternatives:
            self._alternatives.append(alternatives)
        self.adjustment.count(token)
        if self._thoughts is not None and token not in self._ends:
            self._thoughts.note(piece)
        if token in self._ends:
            released = self._assembler.flush()
            self.finish_reason = "eos"
        else:
            may_stop = len(self.tokens) > self.request.min_tokens
            released = self._assembler.push(piece, may_stop=may_stop)
            self.finish_reason = self._end_after(token)
            if self.finish_reason is not None:
                released += self._assembler.flush(may_stop=may_stop)
        if (
            self._assembler.stop_string
        ):  # flushing too can complete a stop string, with the U+FFFD of a broken character
            self.finish_reason = "stop"
        if released:
            self._text.append(released)
        return released

    def _end_after(self, token: int) -> FinishReason | None:
        """Return why the sample ends with `token`, which is no end token and completes no stop string."""
        if self.constraint is not None:
            self.constraint.accept(token)
            if self.constraint.complete:
                return "eos"
        return "length" if len(self.tokens) == min(self.request.max_tokens, self._room) else None

    def completion(self, finished: float) -> Completion:
        """Return the finished sample, told the Unix time in seconds; a `ValueError` says that it still runs."""
        if self.finish_reason is None:
            raise ValueError("the sample is still running")
        return Completion(
            text="".join(self._text),
            generated_tokens=len(self.tokens),
            finished=finished,
            finish_reason=self.finish_reason,
            tokens=tuple(self.tokens) if self.request.return_tokens else None,
            logprobs=tuple(self._logprobs) if self.request.logprobs else None,
            top_logprobs=tuple(self._alternatives) if self.request.top_logprobs else None,
            stop_string=self._assembler.stop_string,
            reasoning_tokens=None if self._thoughts is None else self._thoughts.n_tokens,
        )
