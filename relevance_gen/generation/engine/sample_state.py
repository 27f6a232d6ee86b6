"""The state of one sample during generation, and sampling of the next token for a batch of samples.

Nothing in this module reads a clock or performs I/O.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Executor, Future
from contextlib import suppress

import numpy as np
from attrs import define, field, frozen

from relevance_gen.generation.constraints.token_constraint import Constraint
from relevance_gen.generation.engine.stop_strings import StopStrings, TextAssembler
from relevance_gen.generation.output_parsing.output_parser import ReasoningTokenCounter
from relevance_gen.generation.sampling import sampler
from relevance_gen.generation.sampling.logits_processor import LogitsProcessor
from relevance_gen.generation.sampling.sampler import Mask
from relevance_gen.llama.language_model import Logits
from relevance_gen.types import Completion, FinishReason, GenerationRequest, TokenLogprob


@frozen
class SampledToken:
    """The result of sampling one token.

    Attributes:
        token: token id, or `sampler.NO_TOKEN` if the mask allows no possible token.
        logprob: natural log probability of the token; ``None`` unless requested.
        top_logprobs: the most likely tokens at this position; empty unless requested.
    """

    token: int
    logprob: float | None = None
    top_logprobs: tuple[TokenLogprob, ...] = ()


@define(eq=False, kw_only=True)
class SampleState:
    """The state of one sample, from its first token to its finish reason.

    Args:
        request: sampling parameters.
        index: index of this sample among the samples of the request.
        seed: seed of the random numbers, together with `index`.
        stops: compiled stop strings, shared by all samples of the request.
        eos_token_ids: tokens that end the sample.
        n_prompt_tokens: tokens of the prompt.
        max_context_tokens: tokens that still fit into the context, at least 1.
        n_vocab: size of the vocabulary.
        constraint: constraint on the text; ``None`` allows any text.
        allowed_tokens: tokens that may be sampled; ``None`` allows all.
        reasoning_counter: counter of reasoning tokens, for a conversation.

    Attributes:
        tokens: generated tokens, including the EOS token.
        finish_reason: ``None`` while the sample is running.
        logits_processor: changes of the logits before sampling.
        n_top_logprobs: number of top log probabilities for each token.
    """

    request: GenerationRequest
    index: int
    _seed: int
    _stops: StopStrings
    _eos_token_ids: frozenset[int]
    _n_prompt_tokens: int
    _max_context_tokens: int
    _n_vocab: int
    constraint: Constraint | None = None
    _allowed_tokens: Mask | None = None
    _reasoning_counter: ReasoningTokenCounter | None = None
    tokens: list[int] = field(factory=list, init=False)
    finish_reason: FinishReason | None = field(default=None, init=False)
    logits_processor: LogitsProcessor = field(init=False)
    n_top_logprobs: int = field(init=False)
    _next_mask: Future[Mask] | None = field(default=None, init=False)
    _assembler: TextAssembler = field(init=False)
    _text: list[str] = field(factory=list, init=False)
    _logprobs: list[float] = field(factory=list, init=False)
    _top_logprobs: list[tuple[TokenLogprob, ...]] = field(factory=list, init=False)
    _random: np.random.Generator = field(init=False)

    def __attrs_post_init__(self) -> None:
        # A constraint itself excludes EOS tokens until the sample may end.
        suppressed = () if self.constraint else self._eos_token_ids
        self.logits_processor = LogitsProcessor(self.request, suppressed, self._n_vocab)
        self.n_top_logprobs = min(self.request.top_logprobs, self._n_vocab)
        self._assembler = TextAssembler(self._stops)
        seed = np.random.SeedSequence(self._seed, spawn_key=(self.index,))
        self._random = np.random.Generator(np.random.PCG64(seed))

    @property
    def position(self) -> int:
        """Position of the last token in the context, which is the number of tokens before it."""
        return self._n_prompt_tokens + len(self.tokens) - 1

    @property
    def may_end(self) -> bool:
        """Whether the sample has ``min_tokens`` tokens or more, so that an EOS token may follow."""
        return len(self.tokens) >= self.request.min_tokens

    @property
    def has_fast_mask(self) -> bool:
        """Whether `mask` is expected to return soon.

        False only while another thread computes the mask and the previous mask took 2 ms or longer.
        """
        if self._next_mask is None or self._next_mask.done():
            return True
        return self.constraint is None or self.constraint.is_fast

    def start_mask(self, executor: Executor) -> None:
        """Start to compute the next result of `mask` in a thread of `executor`.

        Does nothing if the sample is finished or has no constraint.
        """
        if self.constraint is not None and self.finish_reason is None:
            # After a RuntimeError, because threads cannot be started, `mask` computes the result.
            with suppress(RuntimeError):
                self._next_mask = executor.submit(self.constraint.mask, may_end=self.may_end)

    def mask(self) -> Mask | None:
        """Return the mask of the tokens that may follow, one bit each; ``None`` allows all.

        If `start_mask` was called, its result is returned when it is ready. The mask is valid until
        the next call.
        """
        if self.constraint is None:
            return self._allowed_tokens
        mask_future, self._next_mask = self._next_mask, None
        if mask_future is None:
            mask = self.constraint.mask(may_end=self.may_end)
        else:
            mask = mask_future.result()
        if self._allowed_tokens is None:
            return mask
        return mask[: len(self._allowed_tokens)] & self._allowed_tokens

    def next_uniform(self) -> float:
        """Return the uniform random number in [0, 1) that decides the next token."""
        return self._random.random()

    def accept(self, sampled: SampledToken, piece: bytes) -> str:
        """Append a sampled token, set `finish_reason` if the sample ends, and return the new text.

        The new text may be empty: incomplete characters, and text that may belong to a stop string,
        are held back until later tokens arrive.

        Args:
            sampled: the token and its log probabilities.
            piece: the bytes of the token; not used if the token is an EOS token.
        """
        token = sampled.token
        self.tokens.append(token)
        if sampled.logprob is not None:
            self._logprobs.append(sampled.logprob)
        if self.n_top_logprobs:
            self._top_logprobs.append(sampled.top_logprobs)
        self.logits_processor.count(token)
        is_eos = token in self._eos_token_ids
        if self._reasoning_counter is not None and not is_eos:
            self._reasoning_counter.add_token(piece)
        if is_eos:
            released = self._assembler.flush()
            self.finish_reason = "eos"
        else:
            may_stop = len(self.tokens) > self.request.min_tokens
            released = self._assembler.push(piece, may_stop=may_stop)
            self.finish_reason = self._reason_to_end(token)
            if self.finish_reason is not None:
                released += self._assembler.flush(may_stop=may_stop)
        # Flushing can complete a stop string too, with the U+FFFD of an incomplete character.
        if self._assembler.stop_string:
            self.finish_reason = "stop"
        if released:
            self._text.append(released)
        return released

    def _reason_to_end(self, token: int) -> FinishReason | None:
        """Add `token` to the constraint; return why the sample ends with it, None if it continues.

        Stop strings are not considered. The token is not an EOS token.
        """
        if self.constraint is not None:
            self.constraint.accept(token)
            if self.constraint.is_complete:
                return "eos"
        max_tokens = min(self.request.max_tokens, self._max_context_tokens)
        return "length" if len(self.tokens) == max_tokens else None

    def completion(self, finished_s: float) -> Completion:
        """Return the finished sample.

        Args:
            finished_s: Unix time in seconds at which the sample finished.

        Raises:
            ValueError: the sample is still running.
        """
        if self.finish_reason is None:
            raise ValueError("the sample is still running")
        request, counter = self.request, self._reasoning_counter
        return Completion(
            text="".join(self._text),
            generated_tokens=len(self.tokens),
            finished=finished_s,
            finish_reason=self.finish_reason,
            tokens=tuple(self.tokens) if request.return_tokens else None,
            logprobs=tuple(self._logprobs) if request.logprobs else None,
            top_logprobs=tuple(self._top_logprobs) if request.top_logprobs else None,
            stop_string=self._assembler.stop_string,
            reasoning_tokens=None if counter is None else counter.n_tokens,
        )


def sample_tokens(samples: Sequence[SampleState], logits: Logits) -> list[SampledToken]:
    """Sample the next token of each of B samples; `logits`, shape (B, V), has a row for each."""
    replacements = {}
    masks = {}
    for row, sample in enumerate(samples):
        if sample.logits_processor.changes_logits:
            replacements[row] = sample.logits_processor.replacement(logits[row])
    uniforms = np.array([sample.next_uniform() for sample in samples])
    for row, sample in enumerate(samples):
        mask = sample.mask()
        if mask is not None:
            masks[row] = mask
    requests = [sample.request for sample in samples]
    tokens = sampler.sample(logits, requests, uniforms, replacements, masks)
    logprob_rows = [row for row, request in enumerate(requests) if request.logprobs]
    logprobs: dict[int, float] = {}
    if logprob_rows:
        values = sampler.log_probabilities(logits[logprob_rows], tokens[logprob_rows])
        logprobs = dict(zip(logprob_rows, values.tolist(), strict=True))
    sampled = []
    for row, sample in enumerate(samples):
        top_logprobs: tuple[TokenLogprob, ...] = ()
        if sample.n_top_logprobs:
            top_logprobs = sampler.top_logprobs(logits[row], sample.n_top_logprobs)
        sampled.append(SampledToken(int(tokens[row]), logprobs.get(row), top_logprobs))
    return sampled
