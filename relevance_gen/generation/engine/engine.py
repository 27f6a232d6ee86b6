"""Run a model for many requests at once: carry out the scheduler's actions, one step at a time.

The engine lives in one thread; only `interrupt` may be called from other threads. It uses the model
through `LanguageModel`, and reports what happens to requests as events that `step` returns.

The module is long because every action of the scheduler is a method, and all of them use the same
queue and model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from attrs import frozen

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.engine import scheduler
from relevance_gen.generation.engine.active_request import ActiveRequest
from relevance_gen.generation.engine.pending_compilations import PendingCompilations
from relevance_gen.generation.engine.prefix_cache import PrefixCache
from relevance_gen.generation.engine.sample_state import SampleState, sample_tokens
from relevance_gen.generation.queue.events import (
    EngineEvent,
    Failed,
    Finished,
    Started,
    TextDelta,
)
from relevance_gen.generation.queue.request import (
    Capacity,
    QueuedRequest,
    RequestPriority,
    has_grammar,
)
from relevance_gen.generation.sampling.sampler import NO_TOKEN
from relevance_gen.llama.language_model import Interrupted, LanguageModel, Logits, SavedState

_TOKENIZED_CHARACTERS_PER_STEP = 1 << 16
"""Characters after which tokenizing further prompts waits for the next step, so that many long
texts do not stall the running samples."""


@frozen(eq=False)
class _RunningSample:
    """A sample with its request."""

    state: SampleState
    request: ActiveRequest


@frozen(eq=False)
class _PreemptedSample:
    """A sample that lost its slot, and the saved content of the slot."""

    running: _RunningSample
    saved: SavedState


class Engine:
    """Continuous batching over one model, which belongs to the calling thread.

    Args:
        model: the model.
        cache: computed prompts of earlier requests.
        clock: returns the Unix time in seconds.

    Attributes:
        counters: numbers of computed tokens and steps; the queue counts how requests ended.
    """

    def __init__(
        self,
        model: LanguageModel,
        cache: PrefixCache,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counters = Counters()
        self._model = model
        self._cache = cache
        self._clock = clock
        self._compilations = PendingCompilations(model)
        self._mask_threads = {
            priority: ThreadPoolExecutor(1, "relevance_gen-masks") for priority in RequestPriority
        }
        self._queue: list[ActiveRequest] = []
        self._running: dict[int, _RunningSample] = {}
        self._preempted: list[_PreemptedSample] = []
        self._events: list[EngineEvent] = []
        self._prefilling_ids: set[int] = set()
        self._n_tokenized_characters = 0
        self._prefill_budget = 0

    @property
    def is_idle(self) -> bool:
        """Whether the engine has neither a request nor an event to return."""
        has_requests = self._queue or self._running or self._preempted or self._compilations.futures
        return not has_requests and not self._events

    @property
    def capacity(self) -> Capacity:
        """How many further requests can start: free slots minus queued requests without a sample.

        Slots of anonymous requests count as free for authenticated requests. A request with a
        grammar counts only while one of its samples runs: requests that wait for their grammars do
        not reduce the capacity, because otherwise they would keep other requests out. Requests for
        several samples retain their prompts: see `scheduler.max_retained_prompts`.
        """
        n_slots = self._model.n_slots
        n_requests, n_retained_prompts = {}, {}
        for priority in RequestPriority:
            queued = [request for request in self._queue if request.priority <= priority]
            n_running = sum(
                running.request.priority <= priority for running in self._running.values()
            )
            n_starting = sum(
                not request.n_started and request.grammar is None for request in queued
            )
            n_taken = n_running + n_starting
            if priority is RequestPriority.ANONYMOUS:
                n_taken += len(self._preempted)
            n_retained = sum(
                request.n_samples > 1 and request.priority == priority for request in queued
            )
            n_requests[priority] = n_slots - n_taken
            n_retained_prompts[priority] = scheduler.max_retained_prompts(n_slots) - n_retained
        return Capacity(n_requests, n_retained_prompts)

    def add(self, queued: QueuedRequest) -> None:
        """Append a request to the queue, or first compile its grammar.

        A request to count tokens finishes at once.
        """
        request = ActiveRequest(queued)
        if request.context.count_only:
            try:
                self._events.append(Finished(request.id, request.count(self._model)))
            except InvalidRequestError as error:
                self._events.append(Failed(request.id, error))
        elif has_grammar(request.params):
            self._compilations.add(request)
        else:
            self._queue.append(request)

    def drop(self, request_id: int) -> None:
        """Remove a request, if it is still present, and free its slots. No event is reported."""
        self._compilations.drop(request_id)
        for request in list(self._queue):
            if request.id == request_id:
                self._dequeue(request)
        self._preempted = [
            preempted for preempted in self._preempted if preempted.running.request.id != request_id
        ]
        for slot, running in list(self._running.items()):
            if running.request.id == request_id:
                del self._running[slot]
                self._model.rewind(slot, 0)

    def interrupt(self, request_id: int | None = None) -> None:
        """Stop the current computation.

        With a `request_id`, the computation is stopped only if it computes the prompt of this
        request alone. A batch of several prompts is not stopped: its chunks are short, and the
        chunks of the other requests would have to be computed again. Without a `request_id`, any
        computation is stopped.

        A stopped computation is repeated unless the request is dropped.
        """
        if request_id is None or self._prefilling_ids == {request_id}:
            self._model.interrupt()

    def clear(self) -> None:
        """Remove all requests and clear the cache.

        This does not use the model, which may have failed.
        """
        self._queue.clear()
        self._running.clear()
        self._preempted.clear()
        self._events.clear()
        self._compilations.clear()
        self._cache.clear()

    def step(self) -> Iterator[EngineEvent]:
        """Run one step of computation.

        The step assigns slots, computes up to `n_batch` prompt tokens, and computes one token for
        each running sample. The step proceeds while its events are read, so that a caller can
        deliver the first token of a request before the next computation. Read all events before the
        next step.
        """
        # Without other work, wait a moment for a grammar.
        has_other_work = bool(self._queue or self._running)
        compiled = self._compilations.take_finished(wait_for_one=not has_other_work)
        for request, error in compiled.items():
            if error is None:
                self._queue.append(request)
            else:
                self._events.append(Failed(request.id, error))
        yield from self._take_events()
        self._n_tokenized_characters = 0
        self._prefill_budget = self._model.n_batch
        try:
            while (action := scheduler.next_action(self._scheduler_state())) is not None:
                self._carry_out(action)
                yield from self._take_events()
                if isinstance(action, scheduler.Decode):
                    break
        except Interrupted:
            # Discard the tokens of the interrupted computation; the next step computes them again.
            for slot, running in self._running.items():
                self._model.rewind(slot, running.state.position)

    def _take_events(self) -> list[EngineEvent]:
        events, self._events = self._events, []
        return events

    def _scheduler_state(self) -> scheduler.EngineState:
        return scheduler.EngineState(
            n_slots=self._model.n_slots,
            n_ctx=self._model.n_ctx,
            n_batch=self._model.n_batch,
            prefill_multiple=self._model.prefill_multiple,
            budget=self._prefill_budget,
            can_tokenize=self._n_tokenized_characters < _TOKENIZED_CHARACTERS_PER_STEP,
            running={slot: running.request.client for slot, running in self._running.items()},
            n_preempted=len(self._preempted),
            waiting=self._queue,
        )

    def _carry_out(self, action: scheduler.Action) -> None:
        match action:
            case scheduler.AssignSlot(queue_index, slot):
                self._queue[queue_index].slot = slot
            case scheduler.Preempt(slot):
                self._preempt(slot)
            case scheduler.Resume(slot):
                preempted = self._preempted.pop(0)
                self._model.restore(slot, preempted.saved)
                self._running[slot] = preempted.running
            case scheduler.Tokenize(queue_index, slot):
                self._tokenize(self._queue[queue_index], slot)
            case scheduler.Prefill(chunks):
                self._prefill(chunks)
            case scheduler.Start(queue_index, slots):
                self._start(self._queue[queue_index], slots)
            case scheduler.CompactSlot(source, target):
                self._model.copy(source, target)
                self._model.rewind(source, 0)
                self._running[target] = self._running.pop(source)
            case scheduler.Decode(slots):
                self._decode(slots)

    # ── Actions ──────────────────────────────────────────────────────────────────────────────────

    def _preempt(self, slot: int) -> None:
        """Free a slot.

        A running sample is saved so that it can resume; an incomplete prefill restarts from the
        beginning.
        """
        if slot in self._running:
            running = self._running.pop(slot)
            self._preempted.append(_PreemptedSample(running, self._model.save(slot)))
        else:
            next(request for request in self._queue if request.slot == slot).reset_prefill()
        self._model.rewind(slot, 0)

    def _tokenize(self, request: ActiveRequest, slot: int) -> None:
        """Tokenize a prompt, and restore to `slot` the cached state of its longest reusable prefix.

        See `_reusable`. A request whose prompt cannot be tokenized is removed and reported as
        failed. If the log probabilities of the prompt are requested, nothing is restored.
        """
        params = request.params
        self._n_tokenized_characters += len(params.text) + sum(map(len, params.stop))
        try:
            request.tokenize(self._model)
        except InvalidRequestError as error:
            self._dequeue(request)
            self._events.append(Failed(request.id, error))
            return
        if params.prompt_logprobs:
            return  # The logits of every prompt token are needed, and the cache has none.
        match = self._cache.longest_match(request.tokens, request.client)
        # At least the last token must be computed, because its logits are not cached.
        n_reused = self._reusable(min(match.n_tokens, request.n_prompt_tokens - 1))
        if match.cached is not None and n_reused:
            self._model.restore(slot, match.cached.state)
            self._model.rewind(slot, n_reused)
            request.n_computed = request.n_reused = n_reused
            self.counters.prefix_cache_hits += 1
            self.counters.prompt_tokens_reused += n_reused

    def _prefill(self, chunks: Sequence[scheduler.PrefillChunk]) -> None:
        requests = [self._queue[chunk.queue_index] for chunk in chunks]
        self._prefilling_ids = {request.id for request in requests}
        try:
            logits = self._compute_chunks(requests, chunks)
        except Interrupted:
            # The running samples get their tokens in this step anyway; the chunks are computed
            # again.
            for chunk in chunks:
                self._model.rewind(chunk.slot, chunk.start)
            self._prefill_budget = 0
            return
        finally:
            self._prefilling_ids = set()
        length = scheduler.padded_length(chunks, self._model.prefill_multiple)
        self._prefill_budget -= len(chunks) * length
        for request, chunk, row in zip(requests, chunks, logits, strict=True):
            request.n_computed = chunk.stop
            if chunk.stop == len(request.tokens):
                request.logits = row.copy()
                self.counters.prompt_tokens += chunk.stop
        if not self._model.can_rewind:
            return
        for request, chunk in zip(requests, chunks, strict=True):
            if chunk.stop == request.n_prompt_tokens > self._model.n_batch:
                self._save_to_cache(request, chunk.slot)

    def _compute_chunks(
        self, requests: Sequence[ActiveRequest], chunks: Sequence[scheduler.PrefillChunk]
    ) -> Logits:
        """Compute chunks of prompts; ``chunks[i]`` is a chunk of the prompt of ``requests[i]``.

        Return the logits after the last token of each of n chunks, shape (n, V).
        """
        slots = [chunk.slot for chunk in chunks]
        starts = [chunk.start for chunk in chunks]
        tokens = [
            request.tokens[chunk.start : chunk.stop]
            for request, chunk in zip(requests, chunks, strict=True)
        ]
        if requests[0].can_batch_prefill:
            return self._model.prefill(slots, tokens, starts)
        logits = self._model.prefill_all(slots[0], tokens[0], starts[0])
        requests[0].record_prompt_logprobs(logits, starts[0])
        return logits[-1:]

    def _save_to_cache(self, request: ActiveRequest, slot: int) -> None:
        """Store the state of a computed prompt in the prefix cache.

        Nothing is stored if the state is larger than the cache, or if the cache already has a
        prompt from which as many tokens can be reused.
        """
        n_bytes = request.tokens.nbytes + self._model.saved_bytes(slot)
        if n_bytes > self._cache.max_bytes:
            return
        n_cached = self._cache.longest_match(request.tokens, request.client).n_tokens
        if self._reusable(n_cached) < self._reusable(len(request.tokens) - 1):
            request.state = self._model.save(slot)
            self._cache.put(request.tokens, request.state, request.client)

    def _start(self, request: ActiveRequest, slots: Sequence[int]) -> None:
        """Start a sample of `request` in each of `slots`: sample its first token.

        The token is sampled from the logits after the prompt. Then the request moves to the end of
        the queue.
        """
        if not request.n_started:
            self.counters.first_tokens += 1
            wait_s = self._clock() - request.queued.created
            self.counters.first_token_s += max(0.0, wait_s)
        has_state = len(request.state) > 0
        if request.slot is not None and request.n_pending_samples > len(slots) and not has_state:
            request.state = self._model.save(request.slot)
        for slot in slots:
            if request.slot is None:
                self._model.restore(slot, request.state)
            elif slot != request.slot:
                self._model.copy(request.slot, slot)
            self._running[slot] = _RunningSample(request.start_sample(self._model), request)
        self._events.append(Started(request.id, len(slots)))
        request.slot = None
        logits = np.repeat(request.logits[None], len(slots), axis=0)
        if request.n_pending_samples:
            self._queue.remove(request)
            self._queue.append(request)
        else:
            self._dequeue(request)
        if request.context.prefill_only:
            for slot in slots:
                self._running[slot].state.finish_reason = "length"
            self._finish_samples(slots)
        else:
            self._advance(slots, logits)

    def _decode(self, slots: Sequence[int]) -> None:
        # Anonymous requests with slow masks skip this step, so that other requests do not wait for
        # them.
        ready = [slot for slot in slots if self._is_ready(self._running[slot])]
        slots = ready or slots[:1]
        samples = [self._running[slot].state for slot in slots]
        tokens = [sample.tokens[-1] for sample in samples]
        positions = [sample.position for sample in samples]
        logits = self._model.decode(slots, tokens, positions)
        self.counters.decode_steps += 1
        self._advance(slots, logits)

    def _is_ready(self, running: _RunningSample) -> bool:
        is_authenticated = running.request.priority is RequestPriority.AUTHENTICATED
        return is_authenticated or running.state.has_fast_mask

    def _advance(self, slots: Sequence[int], logits: Logits) -> None:
        """Sample and append the next tokens, and finish samples.

        Row i of `logits` belongs to ``slots[i]``. The masks of the following tokens are computed in
        threads while the model computes.
        """
        batch = [self._running[slot] for slot in slots]
        self.counters.generated_tokens += len(batch)
        sampled_tokens = sample_tokens([running.state for running in batch], logits)
        for slot, running, sampled in zip(slots, batch, sampled_tokens, strict=True):
            if slot not in self._running:
                continue  # Another sample of the request has just failed.
            sample, request = running.state, running.request
            if sample.constraint is not None and sampled.token == NO_TOKEN:
                self._compilations.give_up(request)
                self.drop(request.id)
                self._events.append(Failed(request.id, sample.constraint.no_valid_token_error()))
                continue
            released = sample.accept(sampled, self._model.piece(sampled.token))
            sample.start_mask(self._mask_threads[request.priority])
            if released:
                self._events.append(TextDelta(request.id, sample.index, released))
        self._finish_samples(slots)

    def _finish_samples(self, slots: Sequence[int]) -> None:
        """Free the slots of finished samples, store completions, and report complete responses."""
        for slot in slots:
            running = self._running.get(slot)
            if running is None or running.state.finish_reason is None:
                continue
            del self._running[slot]
            self._model.rewind(slot, 0)
            sample, request = running.state, running.request
            request.completions[sample.index] = sample.completion(self._clock())
            if len(request.completions) == request.n_samples:
                self._events.append(Finished(request.id, request.response(self._model)))

    # ── Removing ─────────────────────────────────────────────────────────────────────────────────

    def _dequeue(self, request: ActiveRequest) -> None:
        """Remove a request from the queue.

        The request was dropped, has failed, or all of its samples have started. Its logits and its
        saved state are freed, and the slot in which its prompt is computed is rewound.
        """
        self._queue.remove(request)
        if request.slot is not None:
            self._model.rewind(request.slot, 0)
        request.release()

    def _reusable(self, n_tokens: int) -> int:
        """Return how many of `n_tokens` cached tokens can be reused without changing results.

        The result is a multiple of the number of tokens that the model computes together.
        """
        multiple = self._model.prefill_multiple
        if multiple == 1:
            multiple = self._model.n_batch
        return n_tokens // multiple * multiple
