"""A model and its context of slots."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import llama_cpp.llama_cpp as lib
import numpy as np

from relevance_gen.errors import GenerationError, ModelLoadError
from relevance_gen.generation.llama.batch import Batch, abort_while_set
from relevance_gen.generation.llama.library import build, forget_reasons, pointer, reasons, system_info
from relevance_gen.generation.llama.vocabulary import Vocabulary
from relevance_gen.generation.model import Interrupted, Logits, SavedState, Tokens
from relevance_gen.generation.probe import extra_buffers_are_safe
from relevance_gen.llama.options import ModelOptions
from relevance_gen.machine import available_memory, usable_cores

_MAGIC = b"GGUF"
_DEFAULT_N_CTX = 4096
_DEFAULT_KV_BYTES = 2 << 30
"""What the context may take without being asked for: n_ctx is halved until all slots together fit."""
_MIN_N_CTX = 256
_CPU_CHUNK, _GPU_CHUNK = 128, 512
_ABORTED = 2
_DEFAULTS = ModelOptions()
_WARM_UP = np.zeros(2, np.int32)


class Model:
    """A GGUF model, loaded, with a context of `n_slots` sequences of `n_ctx` tokens each.

    Args:
        path: a GGUF file.
        options: see `ModelOptions`.
        on_progress: called with the loaded share in [0, 1]; returns whether to go on.

    Raises:
        ModelLoadError: the file is missing, no GGUF, damaged or unsupported, or memory does not suffice.

    Attributes:
        description: what llama.cpp calls the model, for people.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        options: ModelOptions = _DEFAULTS,
        *,
        on_progress: Callable[[float], bool] | None = None,
    ) -> None:
        self._model: int | None = None
        self._context: int | None = None
        self._abort_flag = ctypes.create_string_buffer(2)
        forget_reasons()
        offload = lib.llama_supports_gpu_offload() and options.n_gpu_layers != 0
        try:
            params = lib.llama_model_default_params()
            params.n_gpu_layers = (-1 if options.n_gpu_layers is None else options.n_gpu_layers) if offload else 0
            if options.main_gpu is not None:
                params.main_gpu, params.split_mode = options.main_gpu, lib.LLAMA_SPLIT_MODE_NONE
            if options.use_extra_bufts is None:
                params.use_extra_bufts = extra_buffers_are_safe(system_info(), build())
            else:
                params.use_extra_bufts = options.use_extra_bufts
            self._load(Path(path), params, on_progress)
            self.n_slots = options.n_slots
            self.n_ctx = self._fitting_n_ctx(options.n_ctx, offload)
            self.n_batch = min(options.n_batch or (_GPU_CHUNK if offload else _CPU_CHUNK), self.n_ctx)
            self._vocabulary = Vocabulary(self._vocabulary_handle, self.n_ctx)
            self._open_context(options.n_threads or usable_cores(), offload, options.flash_attention)
            self._warm_up()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the context and the model; safe to call twice."""
        if self._context:
            lib.llama_free(self._context)
            self._context = None
        if self._model:
            lib.llama_model_free(self._model)
            self._model = None

    # ── Loading ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _load(
        self,
        path: Path,
        params: lib.llama_model_params,
        on_progress: Callable[[float], bool] | None,
    ) -> None:
        _check_file(path)
        callback = lib.llama_progress_callback(lambda share, _: on_progress is None or on_progress(share))
        params.progress_callback = callback
        self._model = lib.llama_model_load_from_file(os.fsencode(path), params)
        if not self._model:
            raise ModelLoadError(f"{path} cannot be loaded: {reasons()}")
        if not lib.llama_model_has_decoder(self._model) or lib.llama_model_has_encoder(self._model):
            raise ModelLoadError(f"{path} holds a model that does not generate text: it has an encoder")
        self._vocabulary_handle = lib.llama_model_get_vocab(self._model)
        if lib.llama_vocab_type(self._vocabulary_handle) == lib.LLAMA_VOCAB_TYPE_NONE:
            raise ModelLoadError(f"{path} holds a model without a vocabulary")
        self.n_vocab = lib.llama_vocab_n_tokens(self._vocabulary_handle)
        text = ctypes.create_string_buffer(256)
        lib.llama_model_desc(self._model, text, len(text))
        self.description = text.value.decode(errors="replace")
        self.can_rewind = not (lib.llama_model_is_recurrent(self._model) or lib.llama_model_is_hybrid(self._model))

    def _fitting_n_ctx(self, n_ctx: int | None, offload: bool) -> int:
        """Return the context length to use; refuse one that the machine's memory cannot hold."""
        n_heads = max(1, lib.llama_model_n_head(self._model))
        width = lib.llama_model_n_head_kv(self._model) * (lib.llama_model_n_embd(self._model) // n_heads)
        token_bytes = 2 * 2 * width * lib.llama_model_n_layer(self._model) * self.n_slots  # keys and values, float16
        if n_ctx is None:
            n_ctx = min(_DEFAULT_N_CTX, max(_MIN_N_CTX, lib.llama_model_n_ctx_train(self._model)))
            while n_ctx > _MIN_N_CTX and n_ctx * token_bytes > _DEFAULT_KV_BYTES:
                n_ctx //= 2
        needed, available = n_ctx * token_bytes, available_memory()
        if n_ctx * (self.n_slots + 1) >= 2**31 or (not offload and available is not None and needed > available):
            there_is = "too much" if available is None else f"and {available >> 20:,} MiB are available"
            raise ModelLoadError(
                f"n_ctx={n_ctx} for {self.n_slots} slots needs {needed >> 20:,} MiB of memory, {there_is}; "
                "choose a smaller n_ctx or n_slots"
            )
        return n_ctx

    def _open_context(self, n_threads: int, offload: bool, flash_attention: bool | None) -> None:
        params = lib.llama_context_default_params()
        params.n_ctx = (self.n_ctx + 255) // 256 * 256 * self.n_slots  # rounded up for every slot
        params.n_seq_max = self.n_slots
        params.n_batch = params.n_ubatch = max(self.n_batch, self.n_slots, len(_WARM_UP))
        params.n_threads = params.n_threads_batch = n_threads
        params.kv_unified = False  # a memory for each slot: what is computed in one depends on no other
        params.flash_attn_type = _flash_attention(flash_attention, offload)
        params.abort_callback, params.abort_callback_data = abort_while_set(self._abort_flag)
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise ModelLoadError(f"{self.n_slots} slots of {self.n_ctx} tokens cannot be made: {reasons()}")
        self._memory = lib.llama_get_memory(self._context)
        self._batch = Batch(params.n_batch)

    def _warm_up(self) -> None:
        """Decode once: what cannot generate fails here, and the first request is no slower than the next."""
        try:
            logits = self.prefill(0, _WARM_UP, 0)
        except GenerationError as error:
            raise ModelLoadError(f"the model cannot generate: {error}") from None
        if not np.isfinite(logits.max()):
            raise ModelLoadError("the model cannot generate: its logits are not finite; its file is damaged")
        self.rewind(0, 0)

    # ── Text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tokenize(self, text: str, max_tokens: int) -> Tokens:
        """Return the tokens of `text`, or the last `max_tokens` of them where that is not 0; see `Vocabulary`."""
        return self._vocabulary.tokenize(text, max_tokens)

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token prints; control tokens print nothing."""
        return self._vocabulary.piece(token)

    # ── Computing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def prefill(self, slot: int, tokens: Tokens, start: int) -> Logits:
        """Append `tokens` to a slot that holds `start`; return the last one's logits, shape (V,).

        Raises:
            Interrupted: `interrupt` was called; `rewind` the slot before going on.
            GenerationError: llama.cpp failed.
        """
        self._batch.fill(tokens, range(start, start + len(tokens)), slot, n_wanted=1)
        logits: Logits = self._compute(1)[0]
        return logits

    def decode(self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]) -> Logits:
        """Append one token to each slot; return their logits, shape (B, V), valid until the next call.

        Args:
            slots: ascending: llama.cpp splits a batch at every step back and every gap.
            tokens: one for each slot.
            positions: tokens that each slot holds.

        Raises:
            Interrupted: `interrupt` was called; `rewind` the slots before going on.
            GenerationError: llama.cpp failed.
        """
        self._batch.fill(tokens, positions, slots, n_wanted=len(tokens))
        return self._compute(len(tokens))

    def _compute(self, n_rows: int) -> Logits:
        """Decode the batch; return the logits of the `n_rows` tokens for which they are wanted."""
        status = lib.llama_decode(self._context, self._batch.struct)
        if status == _ABORTED:
            self._abort_flag[0] = b"\0"
            raise Interrupted
        if status:
            raise GenerationError(f"llama_decode failed with status {status}: {reasons()}")
        first = lib.llama_get_logits(self._context)
        if not first:
            raise GenerationError("the model gives no logits")
        floats = (ctypes.c_float * (n_rows * self.n_vocab)).from_address(ctypes.addressof(first.contents))
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
        state = np.empty(self.saved_bytes(slot), np.uint8)
        if not lib.llama_state_seq_get_data(self._context, pointer(state, ctypes.c_uint8), len(state), slot):
            raise GenerationError("llama.cpp could not save a sequence")
        return state

    def load(self, slot: int, state: SavedState) -> None:
        """Replace a slot's memory by what `save` returned."""
        self.rewind(slot, 0)
        if not lib.llama_state_seq_set_data(self._context, pointer(state, ctypes.c_uint8), len(state), slot):
            raise GenerationError("llama.cpp could not restore a sequence")


def _flash_attention(wanted: bool | None, offload: bool) -> int:
    if wanted is None and offload:
        return int(lib.LLAMA_FLASH_ATTN_TYPE_AUTO)
    # Without it a CPU computes a sequence alone with the same bits as beside others.
    return int(lib.LLAMA_FLASH_ATTN_TYPE_ENABLED if wanted else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED)


def _check_file(path: Path) -> None:
    """Refuse what is plainly no model, with a better reason than llama.cpp has."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from None
    if magic != _MAGIC:
        raise ModelLoadError(f"{path} is no GGUF file: it begins with {magic!r}, not {_MAGIC!r}")
