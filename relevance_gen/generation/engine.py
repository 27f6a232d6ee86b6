"""Run a model for many requests at once: take the scheduler's actions and carry them out, one step at a time.

The engine lives in one thread and knows no other. It speaks to the model through `LanguageModel`.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Items

import numpy as np

from relevance_gen.errors import InvalidRequestError
from relevance_gen.generation import sampling, scheduler
from relevance_gen.generation.cache import PrefixCache
from relevance_gen.generation.counters import Counters
from relevance_gen.generation.jobs import NO_LOGITS, NO_STATE, Job
from relevance_gen.generation.model import Interrupted, LanguageModel, Logits, Tokens
from relevance_gen.generation.sequence import Sequence
from relevance_gen.generation.stopping import StopStrings
from relevance_gen.types import GenerationRequest, GenerationResponse

_READ_PER_STEP = 1 << 16
"""Characters after which reading further requests waits for the next step, so that long texts do not add up to a pause
for those who run."""


class Engine:
    """Continuous batching over one model.

    Args:
        model: the model, owned by the calling thread.
        cache: remembered prompts.
        clock: returns Unix time in seconds.
    """

    def __init__(self, model: LanguageModel, cache: PrefixCache, clock: Callable[[], float] = time.time) -> None:
        self.counters = Counters()
        self.n_waiting = 0
        """Samples that have not started; read by other threads."""
        self._model = model
        self._cache = cache
        self._clock = clock
        self._queue: deque[Job] = deque()
        self._running: dict[int, tuple[Sequence, Job]] = {}
        self._n_read = 0

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do."""
        return not self._running and not self._queue

    @property
    def room(self) -> int:
        """Requests that could start now if they came."""
        return self._model.n_slots - len(self._running) - len(self._queue)

    def add(self, job: Job) -> None:
        """Queue a request behind all others."""
        self._queue.append(job)
        self.n_waiting += job.n_unstarted

    def drop_cancelled(self) -> None:
        """Forget the requests that were cancelled, and free their slots; nothing is called back."""
        for job in self._jobs():
            if job.cancelled and self._remove(job):
                self.counters.requests_cancelled += 1

    def abort(self, error: BaseException) -> None:
        """Answer every request with `error`. Touches no model: it may be what failed."""
        jobs = self._jobs()
        self._queue.clear()
        self._running.clear()
        self.n_waiting = 0
        for job in jobs:
            self.counters.requests_failed += 1
            job.settle(error)

    def _jobs(self) -> list[Job]:
        """Return every request that is here, once."""
        return list(dict.fromkeys([*(job for _, job in self._running.values()), *self._queue]))

    def step(self) -> None:
        """Give every running sequence one token, and the head of the queue one chunk.

        Raises:
            GenerationError: the model failed.
        """
        self._n_read = 0
        budget, decoded = self._model.n_batch, not self._running  # what starts in this step gets its token by that
        try:
            while (action := scheduler.next_action(self._state(budget, decoded))) is not None:
                match action:
                    case scheduler.Decode(slots):
                        self._decode(slots)
                        decoded = True
                    case scheduler.Prefill(slot, start, stop):
                        self._prefill(self._queue[0], slot, start, stop)
                        budget -= stop - start
                    case scheduler.Seat(slot):
                        self._seat(self._queue[0], slot)
                    case scheduler.Start(slots):
                        self._start(self._queue[0], slots)
                    case scheduler.Move(source, target):
                        self._move(source, target)
        except Interrupted:
            self._undo()

    # ── State ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _state(self, budget: int, decoded: bool) -> scheduler.State:
        return scheduler.State(
            n_slots=self._model.n_slots,
            n_batch=self._model.n_batch,
            budget=budget,
            decoded=decoded,
            running=self._running.keys(),
            head=self._head(),
        )

    def _head(self) -> scheduler.Head | None:
        """Describe the head of the queue, if it could be read yet; what is refused then is answered and skipped."""
        while self._queue:
            job = self._queue[0]
            if not len(job.prompt):
                if self._n_read >= _READ_PER_STEP:
                    return None
                self._n_read += len(job.request.text) + sum(map(len, job.request.stop))
                try:
                    job.prompt = self._prompt(job.request)
                    job.stops = StopStrings(job.request.stop)
                except InvalidRequestError as error:
                    self._fail(job, error)
                    continue
            return scheduler.Head(len(job.prompt), job.n_done, job.slot, job.n_unstarted)
        return None

    def _prompt(self, request: GenerationRequest) -> Tokens:
        prompt = self._model.tokenize(request.text, request.max_input_tokens)
        if not len(prompt):
            raise InvalidRequestError("text must hold at least one token for this model, got none", field="text")
        if len(prompt) >= self._model.n_ctx:
            raise InvalidRequestError(
                f"text must hold fewer than {self._model.n_ctx} tokens, got {len(prompt)}; "
                "shorten it, set max_input_tokens, or load the model with a larger n_ctx",
                field="text",
            )
        return prompt

    # ── Actions ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _seat(self, job: Job, slot: int) -> None:
        """Take a slot, and start from the longest known beginning of the prompt, a whole number of chunks."""
        job.slot = slot
        common, entry = self._cache.longest(job.prompt)
        # At least the last token is computed anew: its logits are not kept.
        n_reused = self._whole_chunks(min(common, len(job.prompt) - 1))
        if entry is not None and n_reused:
            self._model.load(slot, entry.state)
            self._model.rewind(slot, n_reused)
            job.n_done = n_reused
            self.counters.prefix_cache_hits += 1
            self.counters.prompt_tokens_reused += n_reused

    def _prefill(self, job: Job, slot: int, start: int, stop: int) -> None:
        job.interrupt = self._model.interrupt
        try:
            logits = self._model.prefill(slot, job.prompt[start:stop], start)
        finally:
            job.interrupt = None
        job.n_done = stop
        if stop < len(job.prompt):
            return
        job.logits = logits.copy()
        self.counters.prompt_tokens += stop
        if job.n_unstarted > 1:
            job.state = self._model.save(slot)
        if self._model.can_rewind and self._whole_chunks(stop - 1) > 0:
            self._remember(job, slot)

    def _remember(self, job: Job, slot: int) -> None:
        """Save a prompt that has a chunk no entry has, if there can be room for it."""
        if job.prompt.nbytes + self._model.saved_bytes(slot) > self._cache.max_bytes:
            return
        common, _ = self._cache.longest(job.prompt)
        if self._whole_chunks(common) < self._whole_chunks(len(job.prompt) - 1):
            self._cache.put(job.prompt, job.state if len(job.state) else self._model.save(slot))

    def _start(self, job: Job, slots: Items[int]) -> None:
        """Draw the first token of the next samples, all from the logits of the prompt's end."""
        if not job.n_started:
            self.counters.first_tokens += 1
            self.counters.first_token_seconds += max(0.0, self._clock() - job.created)
        for slot in slots:
            sequence = Sequence(
                job.request,
                job.n_started,
                seed=job.seed,
                stops=job.stops,
                ends=job.ends,
                n_prompt=len(job.prompt),
                room=self._model.n_ctx - len(job.prompt),
                n_vocab=self._model.n_vocab,
            )
            if slot != job.slot:
                self._model.load(slot, job.state)
            self._running[slot] = (sequence, job)
            job.n_started += 1
        self.n_waiting -= len(slots)
        job.slot = None
        logits = np.repeat(job.logits[None], len(slots), axis=0)
        if not job.n_unstarted:
            self._dequeue(job)
        self._advance(slots, logits)

    def _decode(self, slots: Items[int]) -> None:
        sequences = [self._running[slot][0] for slot in slots]
        logits = self._model.decode(slots, [s.tokens[-1] for s in sequences], [s.position for s in sequences])
        self.counters.decode_steps += 1
        self._advance(slots, logits)

    def _advance(self, slots: Items[int], logits: Logits) -> None:
        """Draw, append and retire: row i of `logits` belongs to ``slots[i]``."""
        batch = [self._running[slot] for slot in slots]
        tokens = sampling.sample(
            logits,
            [sequence.settings for sequence, _ in batch],
            np.array([sequence.draw() for sequence, _ in batch]),
            {row: s.penalty for row, (s, _) in enumerate(batch) if s.penalty is not None},
        )
        logprobs: dict[int, float] = {}
        if wanted := [row for row, (sequence, _) in enumerate(batch) if sequence.wants_logprobs]:
            logprobs = dict(
                zip(wanted, sampling.log_probabilities(logits[wanted], tokens[wanted]).tolist(), strict=True)
            )
        self.counters.generated_tokens += len(batch)
        for row, (slot, token) in enumerate(zip(slots, tokens.tolist(), strict=True)):
            sequence, job = batch[row]
            if self._running.get(slot) is not batch[row]:
                continue  # its request failed a moment ago, in the callback of a sibling
            released = sequence.accept(token, self._model.piece(token), logprobs.get(row))
            self._report(sequence, job, slot, released)

    def _report(self, sequence: Sequence, job: Job, slot: int, released: str) -> None:
        if released:
            try:
                job.on_text(sequence.index, released)
            except Exception as error:
                self._fail(job, error)
                return
        if sequence.finish_reason is not None:
            del self._running[slot]
            self._model.rewind(slot, 0)
            job.completions[sequence.index] = sequence.completion(self._clock())
            if len(job.completions) == job.request.num_samples:
                self._finish(job)

    def _finish(self, job: Job) -> None:
        self.counters.requests_finished += 1
        responses = tuple(job.completions[index] for index in range(job.request.num_samples))
        job.settle(
            GenerationResponse(
                created=job.created,
                finished=max(completion.finished for completion in responses),
                num_samples=len(responses),
                prompt=job.request.text,
                prompt_tokens=len(job.prompt),
                responses=responses,
            )
        )

    def _move(self, source: int, target: int) -> None:
        self._model.load(target, self._model.save(source))
        self._model.rewind(source, 0)
        self._running[target] = self._running.pop(source)

    # ── Leaving ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fail(self, job: Job, error: Exception) -> None:
        if self._remove(job):
            self.counters.requests_failed += 1
            job.settle(error)

    def _remove(self, job: Job) -> bool:
        """Free all that a request holds; tell whether it was still here."""
        queued = job in self._queue
        if queued:
            self.n_waiting -= job.n_unstarted
            self._dequeue(job)
        slots = [slot for slot, (_, owner) in self._running.items() if owner is job]
        for slot in slots:
            del self._running[slot]
            self._model.rewind(slot, 0)
        return queued or bool(slots)

    def _dequeue(self, job: Job) -> None:
        """Take a request off the queue, with the prompt that it holds."""
        self._queue.remove(job)
        if job.slot is not None:
            self._model.rewind(job.slot, 0)
        job.slot = None
        job.logits, job.state = NO_LOGITS, NO_STATE

    def _undo(self) -> None:
        """Take back what an interrupted computation may have left: it will be computed again."""
        for slot, (sequence, _) in self._running.items():
            self._model.rewind(slot, sequence.position)
        if self._queue and (job := self._queue[0]).slot is not None:
            self._model.rewind(job.slot, job.n_done)

    def _whole_chunks(self, n_tokens: int) -> int:
        return n_tokens // self._model.n_batch * self._model.n_batch
