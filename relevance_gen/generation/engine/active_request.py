"""A request inside the engine: its prompt, how much of it is computed, and its samples."""

from __future__ import annotations

import numpy as np
from attrs import define, field

from relevance_gen.errors import ContextLengthError, InvalidRequestError
from relevance_gen.generation.constraints.choices import Choices
from relevance_gen.generation.constraints.token_constraint import Grammar, MaskTimeBudget
from relevance_gen.generation.engine.sample_state import SampleState
from relevance_gen.generation.engine.stop_strings import NO_STOPS, StopStrings
from relevance_gen.generation.output_parsing.output_parser import ReasoningTokenCounter
from relevance_gen.generation.queue.request import (
    MAX_RESPONSE_TOP_LOGPROBS,
    QueuedRequest,
    RequestContext,
    RequestPriority,
)
from relevance_gen.generation.sampling import sampler
from relevance_gen.llama.language_model import (
    TOKEN_BOUNDARY,
    LanguageModel,
    Logits,
    SavedState,
    Tokens,
)
from relevance_gen.types import (
    Completion,
    GenerationRequest,
    GenerationResponse,
    TokenLogprob,
    TokenTexts,
)

NO_TOKENS: Tokens = np.empty(0, np.int32)
NO_LOGITS: Logits = np.empty(0, np.float32)
NO_STATE: SavedState = np.empty(0, np.uint8)
MIN_LOGPROB = -9999.0
"""Replaces ln 0, which JSON cannot represent."""


@define(eq=False)
class ActiveRequest:
    """The engine's state of a queued request.

    Attributes:
        eos_token_ids: tokens that end a sample; none until `tokenize`.
        grammar: compiled constraint on the samples; ``None`` without a grammar, and until it is
            compiled.
        mask_budget: CPU time used for masks of the grammar, in all samples.
        tokens: token ids of the prompt; empty until `tokenize`.
        stops: compiled stop strings; none until `tokenize`.
        allowed_tokens: tokens that may be sampled; ``None`` allows all, and until `tokenize`.
        logits: logits after the last token, shape (V,); empty until they are computed.
        state: saved slot after the prompt, for samples that start in another slot; empty until it
            is saved.
        slot: slot in which the prompt is computed; ``None`` before that, and after a sample took
            the slot.
        n_computed: tokens of the prompt that are computed.
        n_reused: how many of these came from the prefix cache.
        n_started: samples that have their first token.
        prompt_logprobs: log probabilities of the computed tokens after the first, if requested.
        prompt_top_logprobs: most likely tokens at the position of each of these, if requested.
        completions: finished samples, by index.
    """

    queued: QueuedRequest
    eos_token_ids: frozenset[int] = frozenset()
    grammar: Grammar | Choices | None = None
    mask_budget: MaskTimeBudget = field(factory=MaskTimeBudget)
    tokens: Tokens = NO_TOKENS
    stops: StopStrings = NO_STOPS
    allowed_tokens: sampler.Mask | None = None
    logits: Logits = NO_LOGITS
    state: SavedState = NO_STATE
    slot: int | None = None
    n_computed: int = 0
    n_reused: int = 0
    n_started: int = 0
    prompt_logprobs: list[float] = field(factory=list)
    prompt_top_logprobs: list[tuple[TokenLogprob, ...]] = field(factory=list)
    completions: dict[int, Completion] = field(factory=dict)

    @property
    def id(self) -> int:
        """Id of the queued request."""
        return self.queued.id

    @property
    def params(self) -> GenerationRequest:
        """Text and sampling parameters."""
        return self.queued.request

    @property
    def context(self) -> RequestContext:
        """Options set by the calling code."""
        return self.queued.context

    @property
    def client(self) -> str | None:
        """Client of the request, as in a `RequestContext`."""
        return self.queued.context.client

    @property
    def priority(self) -> RequestPriority:
        """Priority of the request."""
        return self.queued.context.priority

    @property
    def n_prompt_tokens(self) -> int:
        """The number of tokens of the prompt; 0 before the call of `tokenize`."""
        return len(self.tokens)

    @property
    def can_batch_prefill(self) -> bool:
        """Whether the prompt may be computed in a batch with other prompts.

        False if the request needs the logits of all tokens of its prompt.
        """
        return not self.params.prompt_logprobs

    @property
    def n_samples(self) -> int:
        """The number of requested samples."""
        return self.params.num_samples

    @property
    def n_pending_samples(self) -> int:
        """The number of requested samples that do not have their first token yet."""
        return self.n_samples - self.n_started

    @property
    def n_running(self) -> int:
        """The number of samples that have their first token and are not finished."""
        return self.n_started - len(self.completions)

    def tokenize(self, model: LanguageModel) -> None:
        """Tokenize the prompt and compile the stop strings.

        Not done before the request has a slot, because the compiled stop strings take much more
        memory than the strings.

        Raises:
            InvalidRequestError: the prompt is empty or does not fit into the context, the request
                names tokens beyond the vocabulary, or the response would hold too many top log
                probabilities.
        """
        self.eos_token_ids = frozenset(self.params.eos_token_ids)
        if self.context.use_model_eos:
            self.eos_token_ids |= frozenset(model.chat_format.eos_token_ids)
        _check_vocabulary(self, model.n_vocab)
        tokens = self._prompt_tokens(model)
        if not len(tokens):
            raise InvalidRequestError("must hold at least one token for this model", "text", "none")
        if len(tokens) >= model.n_ctx:
            raise ContextLengthError(
                f"is too long: {len(tokens)} tokens > {model.n_ctx - 1} maximum",
                field="text",
                remedy="shorten it, set max_input_tokens, or load the model with a larger n_ctx",
            )
        self._check_top_logprobs(len(tokens), model.n_ctx)
        self.tokens = tokens
        self.stops = StopStrings(self.params.stop)
        if self.params.allowed_token_ids:
            is_allowed = np.isin(np.arange(model.n_vocab), self.params.allowed_token_ids)
            self.allowed_tokens = np.packbits(is_allowed, bitorder="little")
        if self.grammar is not None:
            # Only an EOS token shows that a text is complete which the grammar allows to continue.
            self.eos_token_ids |= frozenset(model.chat_format.eos_token_ids)

    def count(self, model: LanguageModel) -> GenerationResponse:
        """Return a response without samples that has the number of tokens of the text.

        Raises:
            InvalidRequestError: the model cannot tokenize the text.
        """
        n_tokens = len(self._prompt_tokens(model))
        created_s = self.queued.created
        return GenerationResponse(
            created=created_s,
            finished=created_s,
            num_samples=0,
            prompt=self.params.text,
            prompt_tokens=n_tokens,
            responses=(),
        )

    def _prompt_tokens(self, model: LanguageModel) -> Tokens:
        max_tokens = self.params.max_input_tokens
        if self.context.prompt:
            return np.array(self.context.prompt[-max_tokens:], np.int32)
        if self.context.is_chat:
            return model.tokenize_chat(self.params.text, max_tokens)
        return model.tokenize(self.params.text, max_tokens)

    def _check_top_logprobs(self, n_prompt_tokens: int, n_ctx: int) -> None:
        """Refuse a request whose response would hold too many top log probabilities.

        Args:
            n_prompt_tokens: the number of tokens of the prompt.
            n_ctx: the number of tokens that the context of a slot holds.

        Raises:
            InvalidRequestError: there would be more than `MAX_RESPONSE_TOP_LOGPROBS`.
        """
        params = self.params
        n_tokens = min(params.max_tokens, n_ctx - n_prompt_tokens)
        if params.prompt_logprobs and self.context.return_token_texts:
            n_tokens += n_prompt_tokens  # They precede each sample.
        n_tokens *= params.num_samples
        if n_tokens * params.top_logprobs > MAX_RESPONSE_TOP_LOGPROBS:
            max_allowed = MAX_RESPONSE_TOP_LOGPROBS // n_tokens
            raise InvalidRequestError.must_be(
                "top_logprobs",
                f"at most {max_allowed} for {n_tokens:,} tokens in all samples",
                params.top_logprobs,
                remedy="lower max_tokens or num_samples",
            )

    def record_prompt_logprobs(self, logits: Logits, start: int) -> None:
        """Record the log probabilities of prompt tokens.

        Args:
            logits: logits after n prompt tokens, shape (n, V).
            start: index of the first of these tokens; each row is the distribution of the following
                token.
        """
        following = self.tokens[start + 1 : start + 1 + len(logits)]
        logits = logits[: len(following)]
        logprobs = sampler.log_probabilities(logits, following.astype(np.intp))
        self.prompt_logprobs += np.maximum(logprobs, MIN_LOGPROB).tolist()
        n_top = self.params.top_logprobs
        if self.context.return_token_texts and n_top:
            for row in logits:
                self.prompt_top_logprobs.append(sampler.top_logprobs(row, min(n_top, len(row))))

    def start_sample(self, model: LanguageModel) -> SampleState:
        """Return the state of the next sample, and count that sample as started."""
        index = self.n_started
        self.n_started += 1
        constraint = counter = None
        if self.grammar is not None:
            constraint = self.grammar.begin(self.eos_token_ids, self.mask_budget)
        if self.context.output_format is not None:
            counter = ReasoningTokenCounter(self.context.output_format)
        return SampleState(
            request=self.params,
            index=index,
            seed=self.queued.seed,
            stops=self.stops,
            eos_token_ids=self.eos_token_ids,
            n_prompt_tokens=len(self.tokens),
            max_context_tokens=model.n_ctx - len(self.tokens),
            n_vocab=model.n_vocab,
            constraint=constraint,
            allowed_tokens=self.allowed_tokens,
            reasoning_counter=counter,
        )

    def reset_prefill(self) -> None:
        """Release the slot before the prompt is computed.

        The prefill restarts from the beginning in another slot.
        """
        self.slot = None
        self.n_computed = self.n_reused = 0
        self.prompt_logprobs.clear()
        self.prompt_top_logprobs.clear()

    def release(self) -> None:
        """Free the logits and the saved state, after the last sample of the request has started.

        This also sets `slot` to ``None``; the engine must rewind that slot before.
        """
        self.slot = None
        self.logits, self.state = NO_LOGITS, NO_STATE

    def response(self, model: LanguageModel) -> GenerationResponse:
        """Return the response; all samples must be finished."""
        completions = tuple(self.completions[index] for index in range(self.n_samples))
        prompt, prompt_logprobs, token_texts = self.params.text, None, None
        if self.context.is_chat:
            prompt = prompt.replace(TOKEN_BOUNDARY, "")
        if self.params.prompt_logprobs:
            prompt_logprobs = (None, *self.prompt_logprobs)
        if self.context.return_token_texts:
            token_texts = self._token_texts(completions, model)
        return GenerationResponse(
            created=self.queued.created,
            finished=max(completion.finished for completion in completions),
            num_samples=len(completions),
            prompt=prompt,
            prompt_tokens=len(self.tokens),
            responses=completions,
            prompt_logprobs=prompt_logprobs,
            reused_tokens=self.n_reused,
            token_texts=token_texts,
        )

    def _token_texts(self, completions: tuple[Completion, ...], model: LanguageModel) -> TokenTexts:
        prompt = tuple(self.tokens.tolist())
        token_ids = set(prompt)
        top_logprobs = list(self.prompt_top_logprobs)
        for completion in completions:
            token_ids.update(completion.tokens or ())
            top_logprobs.extend(completion.top_logprobs or ())
        for likeliest in top_logprobs:
            token_ids.update(candidate.token for candidate in likeliest)
        return TokenTexts(
            prompt=prompt,
            pieces={token: model.piece(token) for token in token_ids},
            eos_token_ids=self.eos_token_ids,
            prompt_top_logprobs=tuple(self.prompt_top_logprobs),
        )


def _check_vocabulary(request: ActiveRequest, n_vocab: int) -> None:
    """Check the token ids in a request.

    Raises:
        InvalidRequestError: a token id in the prompt, ``logit_bias`` or ``allowed_token_ids`` is
            `n_vocab` or more; or ``min_tokens`` is set although all allowed tokens are EOS tokens.
    """
    params = request.params
    token_ids_by_field = {
        "text": request.context.prompt,
        "logit_bias": params.logit_bias,
        "allowed_token_ids": params.allowed_token_ids,
    }
    for name, token_ids in token_ids_by_field.items():
        too_large = [token for token in token_ids if token >= n_vocab]
        if too_large:
            rule = f"must hold tokens below {n_vocab}, the size of this model's vocabulary"
            raise InvalidRequestError(rule, name, str(too_large[0]))
    allowed = params.allowed_token_ids
    if params.min_tokens and request.eos_token_ids.issuperset(allowed or range(n_vocab)):
        name = "allowed_token_ids" if allowed else "eos_token_ids"
        rule = "must leave at least one token that is not an EOS token if min_tokens is set"
        raise InvalidRequestError(rule, name, "all")
