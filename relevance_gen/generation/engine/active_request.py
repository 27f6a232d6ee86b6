"""The engine's half of a request: its prompt, how far that is computed, and the samples that come of it."""

from __future__ import annotations

import attrs
import numpy as np
from attrs import define, field

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.constraints.choices import Choices
from relevance_gen.generation.constraints.token_constraint import Grammar, MaskTimeBudget
from relevance_gen.generation.engine.sample_state import Sequence
from relevance_gen.generation.engine.stop_strings import NO_STOPS, StopStrings
from relevance_gen.generation.output_parsing.output_parser import ReasoningTokenCounter
from relevance_gen.generation.queue.request import MAX_RESPONSE_TOP_LOGPROBS, QueuedRequest
from relevance_gen.generation.sampling import sampler as sampling
from relevance_gen.llama.language_model import (
    TOKEN_BOUNDARY,
    LanguageModel,
    Logits,
    SavedState,
    Tokens,
)
from relevance_gen.types import Completion, GenerationResponse, TokenLogprob, TokenTexts

NO_LOGITS: Logits = np.empty(0, np.float32)
NO_STATE: SavedState = np.empty(0, np.uint8)
LEAST_LOGPROB = -9999.0
"""Stands for ln 0, which JSON has no number for."""


@define(eq=False)
class ActiveRequest:
    """What an engine knows of a ticket.

    Attributes:
        ends: the tokens that end a sample.
        grammar: what the samples must be, if not anything; ``None`` until that is compiled.
        effort: what it takes to follow that, in all samples.
        tokens: empty until `read`.
        stops: the stop strings, compiled; none until `read`.
        allowed: the tokens that may be drawn, if these are not all; ``None`` until `read`.
        logits: shape (V,), after the last token; empty until that is computed.
        state: what the prompt left in its slot, for samples that start in another; empty until then.
        slot: where the prompt is computed or about to be; ``None`` before that, and after a sample took it over.
        n_done: tokens that are computed, of which the cache had `n_reused`.
        n_started: samples that have produced a token.
        logprobs: those of the tokens after the first, as far as they are computed, where the request wants them.
        alternatives: the likeliest in the place of each of these, where they are wanted.
        completions: the finished samples, by index.
    """

    ticket: QueuedRequest
    ends: frozenset[int] = field(init=False)
    grammar: Grammar | Choices | None = field(default=None, init=False)
    effort: MaskTimeBudget = field(factory=MaskTimeBudget, init=False)
    tokens: Tokens = field(factory=lambda: np.empty(0, np.int32), init=False)
    stops: StopStrings = field(default=NO_STOPS, init=False)
    allowed: sampling.Mask | None = field(default=None, init=False)
    logits: Logits = field(default=NO_LOGITS, init=False)
    state: SavedState = field(default=NO_STATE, init=False)
    slot: int | None = field(default=None, init=False)
    n_done: int = field(default=0, init=False)
    n_reused: int = field(default=0, init=False)
    n_started: int = field(default=0, init=False)
    logprobs: list[float] = field(factory=list, init=False)
    alternatives: list[tuple[TokenLogprob, ...]] = field(factory=list, init=False)
    completions: dict[int, Completion] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self.ends = frozenset(self.ticket.request.eos_token_ids)

    @property
    def client(self) -> str | None:
        """Who asks, as in a `RequestContext`."""
        return self.ticket.context.client

    @property
    def n_prompt(self) -> int:
        """Tokens of the prompt; 0 until `read`."""
        return len(self.tokens)

    @property
    def can_batch_prefill(self) -> bool:
        """Whether it may be computed along with others: not where the logits of every token are wanted."""
        return not self.ticket.request.prompt_logprobs

    @property
    def n_samples(self) -> int:
        """Samples that were asked for."""
        return self.ticket.request.num_samples

    @property
    def n_pending_samples(self) -> int:
        """Samples that have not produced a token."""
        return self.n_samples - self.n_started

    @property
    def n_running(self) -> int:
        """Samples that have produced a token and are not finished."""
        return self.n_started - len(self.completions)

    def read(self, model: LanguageModel) -> None:
        """Tokenize the text and compile the stop strings, which takes much more memory than they do.

        It raises an `InvalidRequestError` where the model has no token or no room for this prompt, or the request does
        not fit the vocabulary.
        """
        request = self.ticket.request
        if self.ticket.context.use_model_eos:
            self.ends |= frozenset(model.chat_format.ends)
        _check_vocabulary(self.ticket, self.ends, model.n_vocab)
        tokens = self._tokenize(model)
        if not len(tokens):
            raise InvalidRequestError("must hold at least one token for this model", "text", "none")
        if len(tokens) >= model.n_ctx:
            raise InvalidRequestError(
                f"must hold fewer than {model.n_ctx} tokens",
                field="text",
                got=str(len(tokens)),
                remedy="shorten it, set max_input_tokens, or load the model with a larger n_ctx",
            )
        n_generated = min(request.max_tokens, model.n_ctx - len(tokens))
        n_generated += len(tokens) * (
            request.prompt_logprobs and self.ticket.context.return_token_texts
        )  # before each sample
        n_generated *= request.num_samples
        if n_generated * request.top_logprobs > MAX_RESPONSE_TOP_LOGPROBS:
            allowed = f"at most {MAX_RESPONSE_TOP_LOGPROBS // n_generated} for {n_generated:,} tokens in all samples"
            remedy = "lower max_tokens or num_samples"
            raise InvalidRequestError.must_be(
                "top_logprobs", allowed, request.top_logprobs, remedy=remedy
            )
        self.tokens, self.stops = tokens, StopStrings(request.stop)
        if request.allowed_token_ids:
            self.allowed = np.packbits(
                np.isin(np.arange(model.n_vocab), request.allowed_token_ids), bitorder="little"
            )
        if (
            self.grammar is not None
        ):  # only an end token tells that a text which could go on is complete
            self.ends |= frozenset(model.chat_format.ends)

    def count(self, model: LanguageModel) -> GenerationResponse | InvalidRequestError:
        """Return a response without samples that says how many tokens the text has, or why they cannot be counted."""
        try:
            tokens = self._tokenize(model)
        except InvalidRequestError as error:
            return error
        created = self.ticket.created
        return GenerationResponse(created, created, 0, self.ticket.request.text, len(tokens), ())

    def _tokenize(self, model: LanguageModel) -> Tokens:
        request, context = self.ticket.request, self.ticket.context
        if context.prompt:
            return np.array(context.prompt[-request.max_input_tokens :], np.int32)
        tokenize = model.tokenize_chat if context.is_chat else model.tokenize
        return tokenize(request.text, request.max_input_tokens)

    def note_logprobs(self, logits: Logits, start: int) -> None:
        """Keep what the logits after the tokens from `start` on, shape (n, V), say of the tokens that follow these."""
        following = self.tokens[start + 1 : start + 1 + len(logits)]
        logprobs = sampling.log_probabilities(logits[: len(following)], following.astype(np.intp))
        self.logprobs += np.maximum(logprobs, LEAST_LOGPROB).tolist()
        if self.ticket.context.return_token_texts and (n := self.ticket.request.top_logprobs):
            self.alternatives += [
                sampling.likeliest(row, min(n, len(row))) for row in logits[: len(following)]
            ]

    def next_sample(self, model: LanguageModel) -> Sequence:
        """Return the next sample, which starts now."""
        index, self.n_started = self.n_started, self.n_started + 1
        room = model.n_ctx - len(self.tokens)
        return Sequence(
            self.ticket.request,
            index,
            seed=self.ticket.seed,
            stops=self.stops,
            ends=self.ends,
            n_prompt=len(self.tokens),
            room=room,
            n_vocab=model.n_vocab,
            constraint=None if self.grammar is None else self.grammar.begin(self.ends, self.effort),
            allowed=self.allowed,
            thoughts=None
            if (form := self.ticket.context.output_format) is None
            else ReasoningTokenCounter(form),
        )

    def vacate(self) -> None:
        """Leave the slot before the prompt is computed: that begins anew in another one."""
        self.slot, self.n_done, self.n_reused = None, 0, 0
        self.logprobs.clear()
        self.alternatives.clear()

    def release(self) -> None:
        """Let go of what only starting further samples needs."""
        self.slot = None
        self.logits, self.state = NO_LOGITS, NO_STATE

    def response(self) -> GenerationResponse:
        """Return the response, once every sample is finished."""
        responses, text = (
            tuple(self.completions[index] for index in range(self.n_samples)),
            self.ticket.request.text,
        )
        return GenerationResponse(
            created=self.ticket.created,
            finished=max(completion.finished for completion in responses),
            num_samples=len(responses),
            prompt=text.replace(TOKEN_BOUNDARY, "") if self.ticket.context.is_chat else text,
            prompt_tokens=len(self.tokens),
            responses=responses,
            prompt_logprobs=(None, *self.logprobs) if self.ticket.request.prompt_logprobs else None,
            reused_tokens=self.n_reused,
        )

    def spelled(self, response: GenerationResponse, model: LanguageModel) -> GenerationResponse:
        """Add to a response how its tokens are written."""
        prompt = tuple(self.tokens.tolist())
        tokens = {*prompt, *(one.token for place in self.alternatives for one in place)}
        for completion in response.responses:
            tokens.update(completion.tokens or ())
            tokens.update(one.token for place in completion.top_logprobs or () for one in place)
        pieces = {token: model.piece(token) for token in tokens}
        return attrs.evolve(
            response, token_texts=TokenTexts(prompt, pieces, self.ends, tuple(self.alternatives))
        )


def _check_vocabulary(ticket: QueuedRequest, ends: frozenset[int], n_vocab: int) -> None:
    request = ticket.request
    bias, allowed = request.logit_bias, request.allowed_token_ids
    for name, tokens in (
        ("text", ticket.context.prompt),
        ("logit_bias", bias),
        ("allowed_token_ids", allowed),
    ):
        if beyond := [token for token in tokens if token >= n_vocab]:
            rule = f"must hold tokens below {n_vocab}, the size of this model's vocabulary"
            raise InvalidRequestError(rule, name, str(beyond[0]))
    if request.min_tokens and ends.issuperset(allowed or range(n_vocab)):
        field = "allowed_token_ids" if allowed else "eos_token_ids"
        raise InvalidRequestError(
            "must leave a token that ends nothing where min_tokens is set", field, "all"
        )
