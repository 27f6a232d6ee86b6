"""A model that generates: its weights, and a context of slots where sequences grow."""

from __future__ import annotations

import ctypes
import logging
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from relevance_gen.errors import GenerationError, ModelLoadError
from relevance_gen.llama.batch import Batch, OutputMask, abort_while_set
from relevance_gen.llama.context_size import MIN_N_CTX, MemoryEstimate, choose_size
from relevance_gen.llama.free_memory import FreeMemory, free_memory_for
from relevance_gen.llama.language_model import Interrupted, Logits, SavedState, Tokens
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.execution_tuner import ExecutionTuner, Strategy
from relevance_gen.llama.runtime.library import lib, pointer, reasons
from relevance_gen.llama.tokenizer import Tokenizer
from relevance_gen.llama.weights import OnProgress, OpenContext, Weights

_RAM_SHARE, _GPU_SHARE = 0.5, 0.8
"""How much of the free memory a context takes without being asked for: others need of the machine's, too."""
_FLOAT_BYTES = 4
_CPU_SLICE, _GPU_SLICE = 128, 512
_SLICE_MULTIPLE = 8
"""llama.cpp multiplies fewer than eight rows with other kernels than more, and for some formats four rows at a time and
those left over one by one, which round differently. In multiples of eight every row is computed in the same way."""
_ABORTED = 2
_DEFAULTS = ModelOptions()
_WARM_UP = np.zeros(2, np.int32)
_log = logging.getLogger(__name__)


class Decoder(OpenContext):
    """A `LanguageModel`: a GGUF file, loaded, with a context of `n_slots` sequences of `n_ctx` tokens each.

    Of the control tokens, those with a text in `shown` print it. The rest, and what it raises, is as for `Weights`.

    Attributes:
        slice_multiple: slices are padded to a multiple of so many tokens, so that neighbours change no bit of them; 1
            for a model that cannot forget the padding.
        copies_on_device: whether `copy` leaves data where it is: by default where that is a GPU.
        n_threads: threads that computed last.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: ModelOptions = _DEFAULTS,
        *,
        on_progress: OnProgress | None = None,
        shown: Iterable[str] = (),
    ) -> None:
        self._abort_flag = ctypes.create_string_buffer(2)
        weights = Weights(Path(path), options, on_progress)
        super().__init__(weights)
        model = weights.handle
        try:
            _check_generates_text(weights, path)
            self.n_vocab = weights.n_vocab
            self._uncopied: set[int] = set()
            self.can_rewind = not (
                lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
            )
            self.prefill_multiple = _SLICE_MULTIPLE if self.can_rewind else 1
            self.copies_on_device = weights.uses_gpu and self.can_rewind
            self._fit(options, free_memory_for(weights, options))
            tokenizer = Tokenizer(weights.vocabulary, self.n_ctx)
            self.tokenize, self.tokenize_chat = tokenizer.tokenize, tokenizer.tokenize_chat
            self.piece = tokenizer.piece
            tokenizer.show(shown)
            template = lib.llama_model_chat_template(model, None)
            self.chat_format = tokenizer.chat_format(template, copies_only=weights.copies_only)
            self.n_threads = options.n_threads or weights.default_n_threads
            # Threads share a sequence's attention where it is computed by flash attention, and its bits with it.
            is_free = (
                options.n_threads is None and not options.flash_attention and not weights.uses_gpu
            )
            fewest = 1 if is_free else self.n_threads
            self._pace, self._pace_of_slices = (
                ExecutionTuner(self.n_threads, fewest),
                ExecutionTuner(self.n_threads, fewest),
            )
            self._may_cut = self.can_rewind and not weights.uses_gpu
            self._same: set[int] = set()
            self._differing: set[int] = set()
            self._open_context(path, options.flash_attention)
            self._warm_up()
        except BaseException:
            self.close()
            raise

    # ── Loading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _fit(self, options: ModelOptions, memory: FreeMemory) -> None:
        """Choose `n_ctx`, `n_slots` and `n_batch`; refuse what the memory cannot hold."""
        model, uses_gpu = self._weights.handle, self._weights.uses_gpu
        n_batch = options.n_batch or (_GPU_SLICE if uses_gpu else _CPU_SLICE)
        keeps_scores = (
            _flash_attention(options.flash_attention, uses_gpu)
            == lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        )
        n_rows = (
            lib.llama_model_n_head(model) + 1 if keeps_scores else 1
        )  # the scores of each head, and the mask
        longest = options.n_ctx or max(MIN_N_CTX, lib.llama_model_n_ctx_train(model))
        demand = MemoryEstimate(
            self._weights.token_bytes, _FLOAT_BYTES * n_rows * min(n_batch, longest)
        )
        share = memory.share(_GPU_SHARE if uses_gpu else _RAM_SHARE)
        self.n_ctx, self.n_slots = choose_size(
            demand, share, longest, options.n_ctx is not None, options.n_slots
        )
        self.n_batch = min(n_batch, self.n_ctx)
        self.n_batch += -self.n_batch % self.prefill_multiple
        needed = f"{self.n_slots} slots need {demand.of(self.n_ctx, self.n_slots) >> 20:,} MiB of {memory}"
        if self.n_ctx * (self.n_slots + 1) >= 2**31 or not memory.holds(
            demand.of(self.n_ctx, self.n_slots)
        ):
            raise ModelLoadError(
                f"n_ctx={self.n_ctx} for {needed}; choose a smaller n_ctx or n_slots"
            )
        _log.info("n_ctx=%d for %s", self.n_ctx, needed)

    def _open_context(self, path: str | os.PathLike[str], flash_attention: bool | None) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = (
            (self.n_ctx + 255) // 256 * 256 * self.n_slots
        )  # llama.cpp rounds up for every slot
        params.n_seq_max = self.n_slots
        params.n_batch = params.n_ubatch = max(self.n_batch, self.n_slots, len(_WARM_UP))
        params.n_threads = params.n_threads_batch = self.n_threads
        params.kv_unified = (
            False  # a memory for each slot: what is computed in one depends on no other
        )
        params.flash_attn_type = _flash_attention(flash_attention, self._weights.uses_gpu)
        params.abort_callback, params.abort_callback_data = abort_while_set(self._abort_flag)
        self._context = lib.llama_init_from_model(self._weights.handle, params)
        if not self._context:
            raise ModelLoadError(
                f"{self.n_slots} slots of {self.n_ctx} tokens cannot be made: {reasons()}"
            )
        self._memory = lib.llama_get_memory(self._context)
        if not self._memory or lib.llama_pooling_type(self._context) > lib.LLAMA_POOLING_TYPE_NONE:
            raise ModelLoadError(
                f"{path} holds an embedding model, which does not generate text: give it to Encoder"
            )
        self._batch = Batch(params.n_batch)

    def _warm_up(self) -> None:
        """Decode once: what cannot generate fails here, and the first request is no slower than the next."""
        try:
            logits = self.prefill([0], [_WARM_UP], [0])
        except GenerationError as error:
            raise ModelLoadError(f"the model cannot generate: {error}") from None
        if not np.isfinite(logits.max()):
            raise ModelLoadError(
                "the model cannot generate: its logits are not finite; its file is damaged"
            )
        self.rewind(0, 0)

    # ── Computing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def prefill(
        self, slots: Sequence[int], slices: Sequence[Tokens], starts: Sequence[int]
    ) -> Logits:
        """Do as `LanguageModel.prefill`; the logits of a slice have the same bits alone and beside others.

        The slices have `n_batch` tokens altogether at most, each as long as the longest, padded; each begins where its
        slot ends. It raises `Interrupted` after `interrupt`: `rewind` the slots before going on.
        """
        logits = np.empty((len(slots), self.n_vocab), np.float32)
        # llama.cpp computes slots without gaps together, and whatever follows a gap for itself.
        by_slot = np.argsort(slots)
        for run in np.split(by_slot, np.flatnonzero(np.diff(np.asarray(slots)[by_slot]) != 1) + 1):
            logits[run] = self._prefill_run(
                *([column[place] for place in run] for column in (slots, slices, starts))
            )
        return logits

    def _prefill_run(
        self, slots: Sequence[int], slices: Sequence[Tokens], starts: Sequence[int]
    ) -> Logits:
        """Do what `prefill` does, for slots that follow each other."""
        length = self._lay_out(slots, slices, starts)
        ends = np.arange(len(slices)) * length + [len(tokens) - 1 for tokens in slices]
        wanted = np.zeros(len(slices) * length, bool)
        wanted[ends] = True
        # The last matrix multiplies as many rows as logits are wanted of, so these are padded as well.
        wanted[np.flatnonzero(~wanted)[: -len(slices) % self.prefill_multiple]] = True
        pace, n_rows = self._pace_of_slices, len(wanted)
        way = pace.way(n_rows)
        self._use(way)
        with pace.timing(n_rows, way):
            logits = self._compute(wanted)
        self._forget_padding(slots, slices, starts, length)
        return logits[np.searchsorted(np.flatnonzero(wanted), ends)]

    def prefill_all(self, slot: int, tokens: Tokens, start: int) -> Logits:
        """Append a slice as `prefill` does; return the logits after each of its tokens, shape (n, V).

        llama.cpp keeps the memory for them: 4 · n_batch · V bytes.
        """
        length = self._lay_out([slot], [tokens], [start])
        logits = self._compute()
        self._forget_padding([slot], [tokens], [start], length)
        return logits[: len(tokens)]

    def _lay_out(
        self, slots: Sequence[int], slices: Sequence[Tokens], starts: Sequence[int]
    ) -> int:
        """Fill the batch with slices, each padded by its last token; return how long they are then."""
        longest = max(map(len, slices))
        length = longest + -longest % self.prefill_multiple
        tokens = np.concatenate(
            [np.pad(each, (0, length - len(each)), mode="edge") for each in slices]
        )
        positions = np.add.outer(
            np.asarray(starts, np.int32), np.arange(length, dtype=np.int32)
        ).ravel()
        self._batch.fill(tokens, positions, np.repeat(np.asarray(slots, np.int32), length))
        return length

    def _forget_padding(
        self, slots: Sequence[int], slices: Sequence[Tokens], starts: Sequence[int], length: int
    ) -> None:
        for slot, tokens, start in zip(slots, slices, starts, strict=True):
            if len(tokens) < length:
                self.rewind(slot, start + len(tokens))

    def decode(
        self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]
    ) -> Logits:
        """Do as `LanguageModel.decode`.

        The slots are ascending: llama.cpp splits a batch at every step back and every gap. It computes the first rows
        of all slots together, and then the others. It raises `Interrupted` after `interrupt`: `rewind` the slots before
        going on.
        """
        n_rows = len(slots)
        # Only slots without gaps, a row of each: llama.cpp splits other batches, whose bits were not compared.
        is_plain = n_rows == len(set(slots)) == max(slots) - min(slots) + 1
        way = self._pace.way(
            n_rows, may_cut=self._may_cut and is_plain and n_rows not in self._differing
        )
        if way.one_by_one and n_rows not in self._same:
            self._compare(slots, tokens, positions)
            return self._decode(slots, tokens, positions, Strategy(way.n_threads))
        with self._pace.timing(n_rows, way):
            return self._decode(slots, tokens, positions, way)

    def _decode(
        self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int], way: Strategy
    ) -> Logits:
        """Do what `decode` does in this way."""
        self._use(way)
        if not way.one_by_one:
            self._batch.fill(tokens, positions, slots)
            return self._compute()
        logits = np.empty((len(slots), self.n_vocab), np.float32)
        for row, one in enumerate(zip(tokens, positions, slots, strict=True)):
            self._batch.fill(*([each] for each in one))
            logits[row] = self._compute()[0]
        return logits

    def _compare(
        self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Note whether so many rows have the same bits one by one as together; the slots hold what they held."""
        bits = []
        for one_by_one in (False, True):
            bits.append(
                self._decode(
                    slots, tokens, positions, Strategy(self.n_threads, one_by_one)
                ).tobytes()
            )
            for slot, position in zip(reversed(slots), reversed(positions), strict=True):
                self.rewind(slot, position)
        (self._same if bits[0] == bits[1] else self._differing).add(len(slots))

    def _use(self, way: Strategy) -> None:
        if way.n_threads != self.n_threads:
            self.n_threads = way.n_threads
            lib.llama_set_n_threads(self._context, self.n_threads, self.n_threads)

    def _compute(self, wanted: OutputMask = True) -> Logits:
        """Decode the batch; return the logits after the tokens where `wanted` is true."""
        n_rows = self._batch.want(wanted)
        status = lib.llama_decode(self._context, self._batch.struct)
        self._uncopied.clear()
        if status == _ABORTED:
            self._abort_flag[0] = b"\0"
            raise Interrupted
        if status:
            raise GenerationError(f"llama_decode failed with status {status}: {reasons()}")
        first = lib.llama_get_logits(self._context)
        if not first:
            raise GenerationError("the model gives no logits")
        floats = (ctypes.c_float * (n_rows * self.n_vocab)).from_address(
            ctypes.addressof(first.contents)
        )
        logits: Logits = np.frombuffer(floats, np.float32).reshape(n_rows, self.n_vocab)
        return logits

    def interrupt(self) -> None:
        """Make the computation under way, or else the next one, raise `Interrupted`. May be called from any thread."""
        if self.can_rewind:
            self._abort_flag[0] = b"\1"

    # ── Memory ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def rewind(self, slot: int, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` of a slot."""
        if not lib.llama_memory_seq_rm(self._memory, slot, n_tokens, -1):
            raise GenerationError("this model cannot forget a part of what it read")

    def saved_bytes(self, slot: int) -> int:
        """Return how many bytes `save` would return."""
        return int(lib.llama_state_seq_get_size(self._context, slot))

    def save(self, slot: int) -> SavedState:
        """Return a slot's memory as bytes."""
        self._copy_now(slot)
        state = np.empty(self.saved_bytes(slot), np.uint8)
        if not lib.llama_state_seq_get_data(
            self._context, pointer(state, ctypes.c_uint8), len(state), slot
        ):
            raise GenerationError("llama.cpp could not save a sequence")
        return state

    def copy(self, source: int, target: int) -> None:
        """Let a slot hold what another one holds.

        On a GPU the data stays there: all that a slot could hold is copied, at the next computation. Elsewhere only
        what it does hold is copied, at once.
        """
        self.rewind(target, 0)
        if self.copies_on_device:
            lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self._uncopied.add(target)
        else:
            self.restore(target, self.save(source))

    def _copy_now(self, slot: int) -> None:
        """Compute a token, so that what was to be copied to `slot` at the next computation is copied now."""
        n_tokens = lib.llama_memory_seq_pos_max(self._memory, slot) + 1
        while slot in self._uncopied:
            try:
                self.decode([slot], [0], [n_tokens])
            except Interrupted:
                pass
            finally:
                self.rewind(slot, n_tokens)

    def restore(self, slot: int, state: SavedState) -> None:
        """Replace what a slot holds by what `save` returned."""
        self.rewind(slot, 0)
        self._copy_now(slot)
        if not lib.llama_state_seq_set_data(
            self._context, pointer(state, ctypes.c_uint8), len(state), slot
        ):
            raise GenerationError("llama.cpp could not restore a sequence")


def _check_generates_text(weights: Weights, path: str | os.PathLike[str]) -> None:
    if not lib.llama_model_has_decoder(weights.handle) or lib.llama_model_has_encoder(
        weights.handle
    ):
        raise ModelLoadError(f"{path} holds a model that does not generate text: it has an encoder")
    if lib.llama_vocab_type(weights.vocabulary) == lib.LLAMA_VOCAB_TYPE_NONE:
        raise ModelLoadError(f"{path} holds a model without a vocabulary")


def _flash_attention(wanted: bool | None, uses_gpu: bool) -> int:
    if wanted is None and uses_gpu:
        return int(lib.LLAMA_FLASH_ATTN_TYPE_AUTO)
    # Without it a CPU computes a sequence alone with the same bits as beside others.
    return int(lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if wanted else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED)
