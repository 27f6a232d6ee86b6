"""A generative model: its weights, and a context of slots that each hold a sequence."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from relevance_gen.errors import GenerationError, ModelLoadError
from relevance_gen.llama.batch import Batch, OutputMask, abort_while_set
from relevance_gen.llama.context_size import (
    MAX_DEFAULT_SLOTS,
    MIN_N_CTX,
    ContextSize,
    MemoryEstimate,
    choose_size,
    next_smaller,
)
from relevance_gen.llama.free_memory import FreeMemory, free_memory_for
from relevance_gen.llama.language_model import Interrupted, Logits, SavedState, Tokens
from relevance_gen.llama.options import ModelOptions
from relevance_gen.llama.runtime.execution_tuner import ExecutionTuner, Strategy
from relevance_gen.llama.runtime.library import clear_errors, last_errors, lib, pointer
from relevance_gen.llama.tokenizer import Tokenizer
from relevance_gen.llama.weights import OnProgress, OpenContext, Weights

_RAM_FRACTION = 0.5
"""Fraction of the free memory that a context of default size takes; other processes need memory,
too."""
_GPU_FRACTION = 0.8
_FLOAT_BYTES = 4
_CPU_PREFILL_TOKENS = 128
"""Default size of a prefill chunk."""
_GPU_PREFILL_TOKENS = 512
_PREFILL_MULTIPLE = 8
"""llama.cpp multiplies fewer than eight rows with other kernels than more rows. For some formats it
multiplies four rows at a time and the remaining rows singly, which rounds differently. In multiples
of eight, every row is computed the same way."""
_ABORTED_STATUS = 2
_DEFAULT_OPTIONS = ModelOptions()
_WARM_UP_TOKENS = np.zeros(2, np.int32)
_log = logging.getLogger(__name__)


class Decoder(OpenContext):
    """A `LanguageModel`: a loaded GGUF file with `n_slots` sequences of `n_ctx` tokens each.

    Args:
        path, on_progress: as for `Weights`.
        options: the options of the model.
        visible_texts: texts of the control tokens whose text `piece` returns; other control tokens
            print nothing.

    Raises:
        ModelLoadError: as for `Weights`, or the model does not generate text.
        InvalidRequestError: as for `Weights`.

    Attributes:
        prefill_multiple: prefill chunks are padded to a multiple of this many tokens, so that the
            bits of a chunk's result do not depend on the other chunks of the batch; 1 for a model
            that cannot remove the padding.
        copies_on_device: whether `copy` copies the data inside the memory of the GPU; by default if
            the model uses a GPU and can remove tokens from a sequence (`can_rewind`).
        n_threads: number of threads of the last computation.
    """

    def __init__(
        self,
        path: Path,
        options: ModelOptions = _DEFAULT_OPTIONS,
        *,
        on_progress: OnProgress | None = None,
        visible_texts: Iterable[str] = (),
    ) -> None:
        self._abort_flag = ctypes.create_string_buffer(2)
        weights = Weights(path, options, on_progress)
        super().__init__(weights)
        model = weights.handle
        try:
            _check_generates_text(weights, path)
            self.n_vocab = weights.n_vocab
            self.can_rewind = not (
                lib.llama_model_is_recurrent(model) or lib.llama_model_is_hybrid(model)
            )
            self.prefill_multiple = _PREFILL_MULTIPLE if self.can_rewind else 1
            self.copies_on_device = weights.uses_gpu and self.can_rewind
            self._pending_copies: set[int] = set()  # slots whose data the next computation copies
            self._choose_size(options, free_memory_for(weights, options))
            self._create_tuners(options)
            self._open_context(path, options)
            self._open_vocabulary(visible_texts)
            self._warm_up()
        except BaseException:
            self.close()
            raise

    # ── Loading ───────────────────────────────────────────────────────────────────────────────────

    def _choose_size(self, options: ModelOptions, memory: FreeMemory) -> None:
        """Choose `n_ctx`, `n_slots` and `n_batch`.

        Raise `ModelLoadError` if the memory is too small.
        """
        model = self._weights.handle
        uses_gpu = self._weights.uses_gpu
        n_batch = options.n_batch or (_GPU_PREFILL_TOKENS if uses_gpu else _CPU_PREFILL_TOKENS)
        max_n_ctx = options.n_ctx or max(MIN_N_CTX, lib.llama_model_n_ctx_train(model))
        # Without flash attention the scores of each head are stored, and the mask.
        n_score_rows = 1
        flash_attention = _flash_attention_type(options.flash_attention, uses_gpu)
        if flash_attention == lib.LLAMA_FLASH_ATTN_TYPE_DISABLED:
            n_score_rows = lib.llama_model_n_head(model) + 1
        n_outputs = _padded_outputs(options.n_slots or MAX_DEFAULT_SLOTS)
        estimate = MemoryEstimate(
            token_bytes=self._weights.token_bytes,
            score_bytes=_FLOAT_BYTES * n_score_rows * min(n_batch, max_n_ctx),
            # The memory of a GPU is often tight, and a vocabulary large.
            logits_bytes=_FLOAT_BYTES * self.n_vocab * n_outputs if uses_gpu else 0,
        )
        size = choose_size(
            estimate,
            free_bytes=memory.fraction(_GPU_FRACTION if uses_gpu else _RAM_FRACTION),
            max_n_ctx=max_n_ctx,
            requires_max_n_ctx=options.n_ctx is not None,
            n_slots=options.n_slots,
        )
        self._set_size(size, n_batch)
        n_bytes = estimate.context_bytes(self.n_ctx, self.n_slots)
        slots = f"{self.n_slots} slots with n_ctx={self.n_ctx}"
        requirement = f"{slots} need {n_bytes >> 20:,} MiB of {memory}"
        if self.n_ctx * (self.n_slots + 1) >= 2**31 or not memory.holds(n_bytes):
            raise ModelLoadError(f"{requirement}; choose a smaller n_ctx or n_slots")
        _log.info("%s", requirement)

    def _set_size(self, size: ContextSize, n_batch: int) -> None:
        self.n_ctx = size.n_ctx
        self.n_slots = size.n_slots
        self.n_batch = min(n_batch, self.n_ctx)
        self.n_batch += -self.n_batch % self.prefill_multiple
        # Maximum rows of a computation, and maximum rows whose logits a computation returns.
        self._max_rows = max(self.n_batch, self.n_slots, len(_WARM_UP_TOKENS))
        self._max_outputs = self._max_rows
        if self._weights.uses_gpu:
            # llama.cpp reserves 4 · V bytes on the device for each output, where V is the size of
            # the vocabulary, so the maximum is that of a prefill in which only the last token of
            # each prompt has an output.
            self._max_outputs = min(_padded_outputs(self.n_slots), self._max_rows)

    def _open_vocabulary(self, visible_texts: Iterable[str]) -> None:
        tokenizer = Tokenizer(self._weights.vocabulary, self.n_ctx)
        self.tokenize = tokenizer.tokenize
        self.tokenize_chat = tokenizer.tokenize_chat
        self.piece = tokenizer.piece
        tokenizer.make_visible(visible_texts)
        template = lib.llama_model_chat_template(self._weights.handle, None)
        is_extractive = self._weights.is_extractive
        self.chat_format = tokenizer.chat_format(template, is_extractive=is_extractive)

    def _create_tuners(self, options: ModelOptions) -> None:
        uses_gpu = self._weights.uses_gpu
        self.n_threads = options.n_threads or self._weights.default_n_threads
        # With flash attention the threads share the attention of a sequence, so its bits depend on
        # their number.
        has_free_threads = (
            options.n_threads is None and not options.flash_attention and not uses_gpu
        )
        min_threads = 1 if has_free_threads else self.n_threads
        self._decode_tuner = ExecutionTuner(self.n_threads, min_threads)
        self._prefill_tuner = ExecutionTuner(self.n_threads, min_threads)
        self._can_split = self.can_rewind and not uses_gpu
        # Row counts for which results row by row are bit-identical to those of a batch, and row
        # counts for which they are not.
        self._equal_row_counts: set[int] = set()
        self._differing_row_counts: set[int] = set()

    def _open_context(self, path: Path, options: ModelOptions) -> None:
        """Open the context; if its default size cannot be allocated, try smaller sizes.

        Raise `ModelLoadError` if a requested size cannot be allocated, or the model cannot generate
        text.
        """
        while True:
            self._context = self._new_context(options.flash_attention)
            if self._context:
                break
            reason = last_errors()
            size = next_smaller(
                ContextSize(self.n_ctx, self.n_slots),
                can_shorten=options.n_ctx is None,
                can_reduce_slots=options.n_slots is None,
            )
            if size is None:
                remedy = "choose a smaller n_ctx, n_slots or n_batch, or fewer n_gpu_layers"
                raise ModelLoadError(
                    f"{self.n_slots} slots of {self.n_ctx} tokens cannot be allocated: {reason}; "
                    f"{remedy}"
                )
            _log.warning(
                "%d slots of %d tokens cannot be allocated; trying %d slots of %d tokens",
                self.n_slots,
                self.n_ctx,
                size.n_slots,
                size.n_ctx,
            )
            self._set_size(size, self.n_batch)
        self._memory = lib.llama_get_memory(self._context)
        pooling_type = lib.llama_pooling_type(self._context)
        if pooling_type == lib.LLAMA_POOLING_TYPE_RANK:
            raise ModelLoadError(
                f"{path} holds a reranker, which does not generate text: pass it to Reranker"
            )
        if not self._memory or pooling_type > lib.LLAMA_POOLING_TYPE_NONE:
            raise ModelLoadError(
                f"{path} holds an embedding model, which does not generate text: pass it to Encoder"
            )
        self._batch = Batch(self._max_rows)

    def _new_context(self, flash_attention: bool | None) -> int | None:
        """Return llama.cpp's context of the chosen size; None if it cannot be allocated."""
        clear_errors()
        params = lib.llama_context_default_params()
        n_ctx = -(-self.n_ctx // MIN_N_CTX) * MIN_N_CTX  # llama.cpp rounds up for each slot
        params.n_ctx = n_ctx * self.n_slots
        params.n_seq_max = self.n_slots
        params.n_batch = self._max_rows
        params.n_ubatch = self._max_rows
        params.n_outputs_max = self._max_outputs
        params.n_threads = self.n_threads
        params.n_threads_batch = self.n_threads
        # A KV cache for each slot, so that the computation of a slot does not depend on other
        # slots.
        params.kv_unified = False
        params.flash_attn_type = _flash_attention_type(flash_attention, self._weights.uses_gpu)
        params.abort_callback, params.abort_callback_data = abort_while_set(self._abort_flag)
        context: int | None = lib.llama_init_from_model(self._weights.handle, params)
        return context

    def _warm_up(self) -> None:
        """Prefill slot 0 with `_WARM_UP_TOKENS`, and then empty the slot.

        The constructor calls this method, so that a model that cannot generate text is rejected
        during loading, and the first request does not need the time of the first computation.

        Raises:
            ModelLoadError: the computation failed, or the logits are not finite.
        """
        try:
            logits = self.prefill([0], [_WARM_UP_TOKENS], [0])
        except GenerationError as error:
            raise ModelLoadError(f"the model cannot generate: {error}") from None
        if not np.isfinite(logits.max()):
            raise ModelLoadError(
                "the model cannot generate: its logits are not finite; its file is damaged"
            )
        self.rewind(0, 0)

    # ── Computing ─────────────────────────────────────────────────────────────────────────────────

    def prefill(
        self, slots: Sequence[int], chunks: Sequence[Tokens], starts: Sequence[int]
    ) -> Logits:
        """Compute prefill chunks; see `LanguageModel.prefill`.

        The logits of a chunk are bit-identical regardless of the other chunks in the call. All
        chunks are padded to the length of the longest chunk, rounded up to a multiple of
        `prefill_multiple`; together, with the padding, they must have at most `n_batch` tokens.
        Each chunk must start at the end of its slot's sequence.

        Raises:
            Interrupted: `interrupt` was called. The caller must call `rewind` for the slots before
                the next computation.
        """
        logits = np.empty((len(slots), self.n_vocab), np.float32)
        # llama.cpp computes consecutive slots together, and those after a gap separately.
        order = np.argsort(slots)
        is_gap = np.diff(np.asarray(slots)[order]) != 1
        for run in np.split(order, np.flatnonzero(is_gap) + 1):
            logits[run] = self._prefill_consecutive(
                [slots[index] for index in run],
                [chunks[index] for index in run],
                [starts[index] for index in run],
            )
        return logits

    def _prefill_consecutive(
        self, slots: Sequence[int], chunks: Sequence[Tokens], starts: Sequence[int]
    ) -> Logits:
        """Compute the prefill chunks of consecutive slots; the arguments are as for `prefill`.

        Return the logits after the last token of each chunk, shape (n, V).
        """
        length = self._fill_padded(slots, chunks, starts)
        # Rows of the batch: chunk by chunk, `length` rows each.
        n_rows = len(chunks) * length
        last_indices = [len(tokens) - 1 for tokens in chunks]
        last_rows = np.arange(len(chunks)) * length + last_indices
        has_output = np.zeros(n_rows, bool)
        has_output[last_rows] = True
        # The number of rows in the output layer is the number of outputs, so outputs are padded,
        # too.
        n_padding = -len(chunks) % self.prefill_multiple
        has_output[np.flatnonzero(~has_output)[:n_padding]] = True
        strategy = self._prefill_tuner.strategy(n_rows)
        self._set_threads(strategy.n_threads)
        with self._prefill_tuner.timing(n_rows, strategy):
            logits = self._compute(has_output)
        self._remove_padding(slots, chunks, starts, length)
        return logits[np.searchsorted(np.flatnonzero(has_output), last_rows)]

    def prefill_all(self, slot: int, tokens: Tokens, start: int) -> Logits:
        """Compute one prefill chunk; return the logits after each of its tokens, shape (n, V).

        A GPU computes it in parts of `_max_outputs` tokens.
        """
        logits = np.empty((len(tokens), self.n_vocab), np.float32)
        for first in range(0, len(tokens), self._max_outputs):
            part = tokens[first : first + self._max_outputs]
            part_start = start + first
            length = self._fill_padded([slot], [part], [part_start])
            logits[first : first + len(part)] = self._compute()[: len(part)]
            self._remove_padding([slot], [part], [part_start], length)
        return logits

    def _fill_padded(
        self, slots: Sequence[int], chunks: Sequence[Tokens], starts: Sequence[int]
    ) -> int:
        """Fill the batch with chunks, each padded by repeating its last token.

        All chunks are padded to the same length, a multiple of `prefill_multiple`. Return this
        length.
        """
        longest = max(map(len, chunks))
        length = longest + -longest % self.prefill_multiple
        indices = np.arange(length, dtype=np.int32)
        # An index beyond the last token selects the last token.
        padded = [np.take(tokens, indices, mode="clip") for tokens in chunks]
        # (n_chunks, length), then flattened chunk by chunk
        positions = np.add.outer(np.asarray(starts, np.int32), indices)
        slot_of_rows = np.repeat(slots, length)
        self._batch.fill(np.concatenate(padded), positions.ravel(), slot_of_rows)
        return length

    def _remove_padding(
        self,
        slots: Sequence[int],
        chunks: Sequence[Tokens],
        starts: Sequence[int],
        length: int,
    ) -> None:
        for slot, tokens, start in zip(slots, chunks, starts, strict=True):
            if len(tokens) < length:
                self.rewind(slot, start + len(tokens))

    def decode(
        self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]
    ) -> Logits:
        """Compute the logits after one new token of each slot; see `LanguageModel.decode`.

        The caller passes `slots` in ascending order, if possible without gaps in the numbers,
        because llama.cpp otherwise computes the batch in several parts.

        Raises:
            Interrupted: `interrupt` was called. The caller must call `rewind` for the slots before
                the next computation.
        """
        n_rows = len(slots)
        # llama.cpp splits batches of other slots, and their bits have not been compared.
        is_consecutive = n_rows == len(set(slots)) == max(slots) - min(slots) + 1
        is_splittable = is_consecutive and n_rows not in self._differing_row_counts
        strategy = self._decode_tuner.strategy(n_rows, can_split=self._can_split and is_splittable)
        if strategy.row_by_row and n_rows not in self._equal_row_counts:
            self._compare_bits(slots, tokens, positions)
            return self._decode(slots, tokens, positions, Strategy(strategy.n_threads))
        with self._decode_tuner.timing(n_rows, strategy):
            return self._decode(slots, tokens, positions, strategy)

    def _decode(
        self,
        slots: Sequence[int],
        tokens: Sequence[int],
        positions: Sequence[int],
        strategy: Strategy,
    ) -> Logits:
        self._set_threads(strategy.n_threads)
        if not strategy.row_by_row:
            self._batch.fill(tokens, positions, slots)
            return self._compute()
        logits = np.empty((len(slots), self.n_vocab), np.float32)
        for row, slot in enumerate(slots):
            self._batch.fill([tokens[row]], [positions[row]], [slot])
            logits[row] = self._compute()[0]
        return logits

    def _compare_bits(
        self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]
    ) -> None:
        """Record whether computing rows one by one and all at once gives bit-identical logits.

        Decode the tokens in both ways and compare the logits. The number of rows is added to
        `_equal_row_counts` if the bits are equal, otherwise to `_differing_row_counts`. The slots
        are unchanged afterwards.
        """
        results = []
        for row_by_row in (False, True):
            strategy = Strategy(self.n_threads, row_by_row)
            results.append(self._decode(slots, tokens, positions, strategy).tobytes())
            for slot, position in zip(reversed(slots), reversed(positions), strict=True):
                self.rewind(slot, position)
        is_equal = results[0] == results[1]
        row_counts = self._equal_row_counts if is_equal else self._differing_row_counts
        row_counts.add(len(slots))

    def _set_threads(self, n_threads: int) -> None:
        if n_threads != self.n_threads:
            self.n_threads = n_threads
            lib.llama_set_n_threads(self._context, n_threads, n_threads)

    def _compute(self, has_output: OutputMask = True) -> Logits:
        """Compute the batch.

        Return the logits of the rows where `has_output` is true, shape (n, V).
        """
        n_outputs = self._batch.set_outputs(has_output)
        status = lib.llama_decode(self._context, self._batch.struct)
        self._pending_copies.clear()
        if status == _ABORTED_STATUS:
            self._abort_flag[0] = b"\0"
            raise Interrupted
        if status:
            raise GenerationError(f"llama_decode failed with status {status}: {last_errors()}")
        first = lib.llama_get_logits(self._context)
        if not first:
            raise GenerationError("the model returned no logits")
        array_type = ctypes.c_float * (n_outputs * self.n_vocab)
        floats = array_type.from_address(ctypes.addressof(first.contents))
        logits: Logits = np.frombuffer(floats, np.float32).reshape(n_outputs, self.n_vocab)
        return logits

    def interrupt(self) -> None:
        """Make the current or the next computation raise `Interrupted`. Thread-safe.

        Does nothing if the model cannot remove tokens from a sequence (`can_rewind`).
        """
        if self.can_rewind:
            self._abort_flag[0] = b"\1"

    # ── Memory ────────────────────────────────────────────────────────────────────────────────────

    def rewind(self, slot: int, n_tokens: int) -> None:
        """Remove all but the first `n_tokens` tokens from a slot."""
        if not lib.llama_memory_seq_rm(self._memory, slot, n_tokens, -1):
            raise GenerationError("this model cannot remove the end of a sequence")

    def saved_bytes(self, slot: int) -> int:
        """Return the size of the state that `save` would return, in bytes."""
        return int(lib.llama_state_seq_get_size(self._context, slot))

    def save(self, slot: int) -> SavedState:
        """Return the state of a slot as bytes."""
        self._finish_copy(slot)
        state = np.empty(self.saved_bytes(slot), np.uint8)
        data = pointer(state, ctypes.c_uint8)
        if not lib.llama_state_seq_get_data(self._context, data, len(state), slot):
            raise GenerationError("llama.cpp could not save a sequence")
        return state

    def copy(self, source: int, target: int) -> None:
        """Replace the sequence of slot `target` by a copy of the sequence of slot `source`.

        If the model is on a GPU and can be rewound, llama.cpp copies the data inside the GPU
        memory, during the next computation: it copies the whole memory of slot `source`, used or
        not. Otherwise only the used memory is copied, before this method returns.
        """
        self.rewind(target, 0)
        if self.copies_on_device:
            lib.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            self._pending_copies.add(target)
        else:
            self.restore(target, self.save(source))

    def _finish_copy(self, slot: int) -> None:
        """Make llama.cpp complete a pending copy to `slot`; do nothing if none is pending.

        `copy` only requests a copy, and llama.cpp copies the data during its next computation.
        Therefore an arbitrary token is computed in the slot, and then removed from the slot.
        """
        n_tokens = lib.llama_memory_seq_pos_max(self._memory, slot) + 1
        while slot in self._pending_copies:
            try:
                self.decode([slot], [0], [n_tokens])
            except Interrupted:
                pass
            finally:
                self.rewind(slot, n_tokens)

    def restore(self, slot: int, state: SavedState) -> None:
        """Replace the state of a slot by a state from `save`."""
        self.rewind(slot, 0)
        self._finish_copy(slot)
        data = pointer(state, ctypes.c_uint8)
        if not lib.llama_state_seq_set_data(self._context, data, len(state), slot):
            raise GenerationError("llama.cpp could not restore a sequence")


def _padded_outputs(n_slots: int) -> int:
    """Return `n_slots`, rounded up to a multiple of `_PREFILL_MULTIPLE`.

    This is the number of outputs of a prefill of all slots, which has one output for each slot and
    the outputs that are added as padding.
    """
    return n_slots + -n_slots % _PREFILL_MULTIPLE


def _check_generates_text(weights: Weights, path: Path) -> None:
    has_decoder = lib.llama_model_has_decoder(weights.handle)
    if not has_decoder or lib.llama_model_has_encoder(weights.handle):
        raise ModelLoadError(f"{path} holds a model that does not generate text: it has an encoder")
    if lib.llama_vocab_type(weights.vocabulary) == lib.LLAMA_VOCAB_TYPE_NONE:
        raise ModelLoadError(f"{path} holds a model without a vocabulary")


def _flash_attention_type(is_requested: bool | None, uses_gpu: bool) -> int:
    if is_requested is None and uses_gpu:
        return int(lib.LLAMA_FLASH_ATTN_TYPE_AUTO)
    # Without flash attention a CPU computes a sequence with the same bits regardless of the batch.
    if is_requested:
        return int(lib.LLAMA_FLASH_ATTN_TYPE_ENABLED)
    return int(lib.LLAMA_FLASH_ATTN_TYPE_DISABLED)
