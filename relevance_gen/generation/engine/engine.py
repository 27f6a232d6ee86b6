"""Run a model for many requests at once: take the scheduler's actions and carry them out, one step at a time.

The engine lives in one thread; only `interrupt` may be called from another. It speaks to the model through
`LanguageModel`, and says what became of a ticket through `Reports`.

The file is long because every action of the scheduler is a method here; they share the queue and the model.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from collections.abc import Sequence as Items
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.engine import scheduler
from relevance_gen.generation.engine.active_request import ActiveRequest
from relevance_gen.generation.engine.decode_batch import draw
from relevance_gen.generation.engine.pending_compilations import PendingCompilations
from relevance_gen.generation.engine.prefix_cache import PrefixCache
from relevance_gen.generation.engine.sample_state import Sequence
from relevance_gen.generation.queue.request import (
    Capacity,
    QueuedRequest,
    Reports,
    Rooms,
    has_grammar,
)
from relevance_gen.generation.sampling.sampler import NO_TOKEN
from relevance_gen.llama.language_model import Interrupted, LanguageModel, Logits, SavedState

_READ_PER_STEP = 1 << 16
"""Characters after which reading further requests waits for the next step, so that long texts do not add up to a pause
for those who run."""


class Engine:
    """Continuous batching over one model, which the calling thread owns.

    The `cache` has remembered prompts, `reports` is told what becomes of tickets, and the `clock` tells Unix time in
    seconds. Its `counters` say what was computed; the backlog knows how requests ended.
    """

    def __init__(
        self,
        model: LanguageModel,
        cache: PrefixCache,
        reports: Reports,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.counters = Counters()
        self._prefilling: set[int] = set()
        self._model = model
        self._cache = cache
        self._reports = reports
        self._clock = clock
        self._compilation = PendingCompilations(model)
        self._masks = {
            is_anonymous: ThreadPoolExecutor(1, "relevance_gen-masks")
            for is_anonymous in (True, False)
        }
        self._queue: list[ActiveRequest] = []
        self._running: dict[int, tuple[Sequence, ActiveRequest]] = {}
        self._paused: list[tuple[Sequence, ActiveRequest, SavedState]] = []
        self._n_read = 0
        self._budget = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return (
            not self._running
            and not self._queue
            and not self._paused
            and not self._compilation.prompts
        )

    @property
    def rooms(self) -> Rooms:
        """Further requests that can start: the free slots, less one for each request here that has had none.

        What strangers have counts as free for all others. Requests with a grammar are not counted before they run: they
        were taken to be compiled, however many, and would keep all others out. Requests for several samples keep their
        prompts: see `scheduler.max_retained_prompts`.
        """
        rooms = {}
        for is_anonymous in (True, False):
            ahead = [
                prompt
                for prompt in self._queue
                if is_anonymous or not prompt.ticket.context.is_anonymous
            ]
            running = [
                prompt
                for _, prompt in self._running.values()
                if is_anonymous or not prompt.ticket.context.is_anonymous
            ]
            n_next = sum(not prompt.n_started and prompt.grammar is None for prompt in ahead)
            n_taken = len(running) + n_next + is_anonymous * len(self._paused)
            n_held = sum(
                prompt.n_samples > 1 and prompt.ticket.context.is_anonymous == is_anonymous
                for prompt in ahead
            )
            rooms[is_anonymous] = Capacity(
                self._model.n_slots - n_taken,
                scheduler.max_retained_prompts(self._model.n_slots) - n_held,
            )
        return rooms

    def add(self, ticket: QueuedRequest) -> None:
        """Queue a request behind all others, or have its grammar compiled first; only count its tokens at once."""
        prompt = ActiveRequest(ticket)
        if ticket.context.count_only:
            self._reports.done(ticket, prompt.count(self._model))
        elif has_grammar(ticket.request):
            self._compilation.add(prompt)
        else:
            self._queue.append(prompt)

    def drop(self, ticket_id: int) -> None:
        """Forget a request, if it is still here, and free its slots; nothing is reported."""
        self._compilation.drop(ticket_id)
        for prompt in [prompt for prompt in self._queue if prompt.ticket.id == ticket_id]:
            self._dequeue(prompt)
        self._paused = [paused for paused in self._paused if paused[1].ticket.id != ticket_id]
        for slot in [
            slot for slot, (_, prompt) in self._running.items() if prompt.ticket.id == ticket_id
        ]:
            del self._running[slot]
            self._model.rewind(slot, 0)

    def interrupt(self, ticket_id: int | None = None) -> None:
        """Stop computing that ticket's prompt, or whatever is being computed; what is not dropped is computed again.

        While several prompts are computed together, none of them is stopped: their slices are short, and those of the
        others would have to be computed again.
        """
        if ticket_id is None or self._prefilling == {ticket_id}:
            self._model.interrupt()

    def clear(self) -> None:
        """Forget every request and the cache. This touches no model: it may be what failed."""
        self._queue.clear()
        self._running.clear()
        self._paused.clear()
        self._compilation.clear()
        self._cache.clear()

    def step(self) -> None:
        """Give free slots away, compute at most `n_batch` tokens of prompts, and give each running sequence a token."""
        # Where there is nothing else to do, wait a moment for a grammar.
        has_nothing_else = not self._queue and not self._running
        for prompt, error in self._compilation.take_finished(wait_for_one=has_nothing_else):
            if error is None:
                self._queue.append(prompt)
            else:
                self._reports.done(prompt.ticket, error)
        self._n_read, self._budget = 0, self._model.n_batch
        try:
            while (action := scheduler.next_action(self._state())) is not None:
                self._carry_out(action)
                if isinstance(action, scheduler.Decode):
                    break
        except Interrupted:
            for slot, (sequence, _) in self._running.items():
                self._model.rewind(slot, sequence.position)  # the tokens will be computed again

    def _state(self) -> scheduler.EngineState:
        return scheduler.EngineState(
            n_slots=self._model.n_slots,
            n_ctx=self._model.n_ctx,
            n_batch=self._model.n_batch,
            prefill_multiple=self._model.prefill_multiple,
            budget=self._budget,
            can_tokenize=self._n_read < _READ_PER_STEP,
            running={slot: prompt.client for slot, (_, prompt) in self._running.items()},
            n_paused=len(self._paused),
            waiting=self._queue,
        )

    def _carry_out(self, action: scheduler.Action) -> None:
        match action:
            case scheduler.AssignSlot(place, slot):
                self._queue[place].slot = slot
            case scheduler.Preempt(slot):
                self._vacate(slot)
            case scheduler.Resume(slot):
                sequence, prompt, state = self._paused.pop(0)
                self._model.restore(slot, state)
                self._running[slot] = sequence, prompt
            case scheduler.Tokenize(place, slot):
                self._read(self._queue[place], slot)
            case scheduler.Prefill(slices):
                self._prefill(slices)
            case scheduler.Start(place, slots):
                self._start(self._queue[place], slots)
            case scheduler.CompactSlot(source, target):
                self._model.copy(source, target)
                self._model.rewind(source, 0)
                self._running[target] = self._running.pop(source)
            case scheduler.Decode(slots):
                self._decode(slots)

    # ── Actions ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _vacate(self, slot: int) -> None:
        """Free a slot: a sample is kept to go on later, and a prompt that was not yet computed begins anew."""
        if slot in self._running:
            self._paused.append((*self._running.pop(slot), self._model.save(slot)))
        else:
            next(prompt for prompt in self._queue if prompt.slot == slot).vacate()
        self._model.rewind(slot, 0)

    def _read(self, prompt: ActiveRequest, slot: int) -> None:
        """Tokenize a prompt, and start its slot from the longest known beginning that is `_reusable`."""
        self._n_read += len(prompt.ticket.request.text) + sum(map(len, prompt.ticket.request.stop))
        try:
            prompt.read(self._model)
        except InvalidRequestError as error:
            self._dequeue(prompt)
            self._reports.done(prompt.ticket, error)
            return
        if prompt.ticket.request.prompt_logprobs:
            return  # the logits of every token are wanted
        common, entry = self._cache.longest(prompt.tokens, prompt.client)
        # At least the last token is computed anew: its logits are not kept.
        n_reused = self._reusable(min(common, prompt.n_prompt - 1))
        if entry is not None and n_reused:
            self._model.restore(slot, entry.state)
            self._model.rewind(slot, n_reused)
            prompt.n_done = prompt.n_reused = n_reused
            self.counters.prefix_cache_hits += 1
            self.counters.prompt_tokens_reused += n_reused

    def _prefill(self, slices: Items[scheduler.PrefillChunk]) -> None:
        prompts = [self._queue[each.place] for each in slices]
        self._prefilling = {prompt.ticket.id for prompt in prompts}
        try:
            logits = self._logits_after(prompts, slices)
        except (
            Interrupted
        ):  # the running sequences get their tokens all the same, and the slices are computed again
            for each in slices:
                self._model.rewind(each.slot, each.start)
            self._budget = 0
            return
        finally:
            self._prefilling = set()
        self._budget -= len(slices) * scheduler.padded(slices, self._model.prefill_multiple)
        for prompt, each, row in zip(prompts, slices, logits, strict=True):
            prompt.n_done = each.stop
            if each.stop == len(prompt.tokens):
                prompt.logits = row.copy()
                self.counters.prompt_tokens += each.stop
        for prompt, each in zip(prompts, slices, strict=True):
            if (
                each.stop == len(prompt.tokens)
                and self._model.can_rewind
                and each.stop > self._model.n_batch
            ):
                self._remember(prompt, each.slot)

    def _logits_after(
        self, prompts: Items[ActiveRequest], slices: Items[scheduler.PrefillChunk]
    ) -> Logits:
        """Compute slices of prompts, and return the logits after the last token of each."""
        slots, starts = [each.slot for each in slices], [each.start for each in slices]
        tokens = [
            prompt.tokens[each.start : each.stop]
            for prompt, each in zip(prompts, slices, strict=True)
        ]
        if prompts[0].can_batch_prefill:
            return self._model.prefill(slots, tokens, starts)
        rows = self._model.prefill_all(slots[0], tokens[0], starts[0])
        prompts[0].note_logprobs(rows, starts[0])
        return rows[-1:]

    def _remember(self, prompt: ActiveRequest, slot: int) -> None:
        """Save a prompt of which no entry has as much that is `_reusable`, if there can be room for it."""
        if prompt.tokens.nbytes + self._model.saved_bytes(slot) > self._cache.max_bytes:
            return
        common, _ = self._cache.longest(prompt.tokens, prompt.client)
        if self._reusable(common) < self._reusable(len(prompt.tokens) - 1):
            prompt.state = self._model.save(slot)
            self._cache.put(prompt.tokens, prompt.state, prompt.client)

    def _start(self, prompt: ActiveRequest, slots: Items[int]) -> None:
        """Draw the first token of the next samples, from the logits of the prompt's end; other requests are next."""
        if not prompt.n_started:
            self.counters.first_tokens += 1
            self.counters.first_token_s += max(0.0, self._clock() - prompt.ticket.created)
        if (
            prompt.slot is not None
            and prompt.n_pending_samples > len(slots)
            and not len(prompt.state)
        ):
            prompt.state = self._model.save(prompt.slot)
        for slot in slots:
            if prompt.slot is None:
                self._model.restore(slot, prompt.state)
            elif slot != prompt.slot:
                self._model.copy(prompt.slot, slot)
            self._running[slot] = (prompt.next_sample(self._model), prompt)
        self._reports.started(prompt.ticket, len(slots))
        prompt.slot = None
        logits = np.repeat(prompt.logits[None], len(slots), axis=0)
        if prompt.n_pending_samples:
            self._queue.remove(prompt)
            self._queue.append(prompt)
        else:
            self._dequeue(prompt)
        if prompt.ticket.context.prefill_only:
            for slot in slots:
                self._running[slot][0].finish_reason = "length"
            self._end_finished(slots)
        else:
            self._advance(slots, logits)

    def _decode(self, slots: Items[int]) -> None:
        in_time = [
            slot
            for slot in slots
            if (of := self._running[slot])[0].is_masked or not of[1].ticket.context.is_anonymous
        ]  # nobody waits for strangers whose masks are slow
        sequences = {slot: self._running[slot][0] for slot in in_time or slots[:1]}
        tokens = [sequence.tokens[-1] for sequence in sequences.values()]
        positions = [sequence.position for sequence in sequences.values()]
        logits = self._model.decode(list(sequences), tokens, positions)
        self.counters.decode_steps += 1
        self._advance(list(sequences), logits)

    def _advance(self, slots: Items[int], logits: Logits) -> None:
        """Draw, append and retire: row i of `logits` belongs to ``slots[i]``.

        The masks of the next tokens are computed in threads, while the model computes.
        """
        batch = [self._running[slot] for slot in slots]
        self.counters.generated_tokens += len(batch)
        tokens = draw([sequence for sequence, _ in batch], logits)
        for slot, (sequence, prompt), drawn in zip(slots, batch, tokens, strict=True):
            if slot not in self._running:
                continue  # another sample of its request failed a moment ago
            if sequence.constraint is not None and drawn.token == NO_TOKEN:
                self._compilation.give_up(prompt)
                self.drop(prompt.ticket.id)
                self._reports.done(prompt.ticket, sequence.constraint.dead_end())
                continue
            released = sequence.accept(
                drawn.token, self._model.piece(drawn.token), drawn.logprob, drawn.alternatives
            )
            sequence.begin_mask(self._masks[prompt.ticket.context.is_anonymous])
            if released:
                self._reports.text(prompt.ticket, sequence.index, released)
        self._end_finished(slots)

    def _end_finished(self, slots: Items[int]) -> None:
        """Free the slots of finished samples among these, keep what they are, and report responses that are whole."""
        for slot in slots:
            if slot in self._running and self._running[slot][0].finish_reason is not None:
                sequence, prompt = self._running.pop(slot)
                self._model.rewind(slot, 0)
                prompt.completions[sequence.index] = sequence.completion(self._clock())
                if len(prompt.completions) == prompt.n_samples:
                    response = prompt.response()
                    if prompt.ticket.context.return_token_texts:
                        response = prompt.spelled(response, self._model)
                    self._reports.done(prompt.ticket, response)

    # ── Leaving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _dequeue(self, prompt: ActiveRequest) -> None:
        """Take a request off the queue, with what starting further samples needed."""
        self._queue.remove(prompt)
        if prompt.slot is not None:
            self._model.rewind(prompt.slot, 0)
        prompt.release()

    def _reusable(self, n_tokens: int) -> int:
        """Return how many of some known tokens can be kept: going on behind them changes no bit of what follows."""
        multiple = (
            self._model.prefill_multiple
            if self._model.prefill_multiple > 1
            else self._model.n_batch
        )
        return n_tokens // multiple * multiple
