"""llama.cpp behind a small typed surface: a model, its vocabulary, a context of slots. The only importer of llama_cpp.

All of it must be used from one thread, the one that made it: a second one with an OpenMP pool slows decoding fivefold.
Only `Model.interrupt` may be called from elsewhere.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
import os
import re
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Self

import llama_cpp.llama_cpp as lib
import numpy as np
from numpy.typing import NDArray

from relevance_gen.errors import GenerationError, InvalidRequestError, ModelLoadError
from relevance_gen.generation import aborts
from relevance_gen.generation.cores import usable_cores
from relevance_gen.generation.model import Interrupted, Logits, SavedState, Tokens
from relevance_gen.generation.probe import extra_buffers_are_safe

_MAGIC = b"GGUF"
_DEFAULT_N_CTX = 4096
_DEFAULT_KV_BYTES = 2 << 30
"""What the context may take without being asked for: n_ctx is halved until all slots together fit."""
_MIN_N_CTX = 256
_BYTES_PER_TOKEN = 32
"""More than any text has: text beyond this many bytes for each token that fits is refused, or its end used."""
_MIN_TEXT_BYTES = 1 << 20
_MAX_RUN = 8_000
_RUNS = re.compile(rf"\S{{1,{_MAX_RUN}}}|\s{{1,{_MAX_RUN}}}")
"""Characters without a break that a BPE tokenizer may see. Those of many models (tekken, gpt-4o, deepseek, bloom …) run
std::regex over them, which recurses at every character and overflows an 8 MiB stack between 16,000 and 32,000."""
_CPU_CHUNK, _GPU_CHUNK = 128, 512
_ABORTED = 2

_log = logging.getLogger("relevance_gen.llama")
_LEVELS = {1: logging.DEBUG, 2: logging.DEBUG, 3: logging.INFO, 4: logging.INFO}
"""llama.cpp's debug, info, warning and error, quieter than it calls them: what is fatal arrives as an exception."""
_ERROR = 4
_last_errors: deque[str] = deque(maxlen=3)


class _Log:
    """Send llama.cpp's own log to the logger ``relevance_gen.llama``."""

    def __init__(self) -> None:
        self._level = logging.DEBUG
        self.callback = lib.llama_log_callback(self._write)

    def _write(self, level: int, text: bytes, _: Any) -> None:
        self._level = _LEVELS.get(level, self._level)  # 5 goes on with the line before
        message = text.decode(errors="replace").rstrip()
        if level == _ERROR:
            _last_errors.append(message)
        if message.strip("."):
            _log.log(self._level, "%s", message)


_llama_log = _Log()
lib.llama_log_set(_llama_log.callback, ctypes.c_void_p(0))
lib.llama_backend_init()
aborts.install(lib._lib)


class Model:
    """A GGUF model, loaded, with a context of `n_slots` sequences of `n_ctx` tokens each.

    Args:
        path: a GGUF file.
        n_ctx: most tokens of one sequence; by default 4,096, what the model was trained on, or what about
            2 GiB hold, whichever is least.
        n_slots: sequences at once, in [1, 255].
        n_batch: most prompt tokens computed at once; 128 on a CPU, 512 on a GPU.
        n_threads: CPU threads; the physical cores this process may use by default.
        n_gpu_layers: layers to keep on the GPU; all where the build has one, by default.
        main_gpu: the one GPU to use; all by default.
        shared_prefix: let all slots share one memory: samples of one prompt do not copy it and are faster, but
            neighbours may change the low bits of a result.
        use_extra_bufts: repack weights for this CPU; by default wherever that is safe.
        on_progress: called with the loaded share in [0, 1]; returns whether to go on.

    Raises:
        ModelLoadError: the file is missing, no GGUF, damaged or unsupported, or memory does not suffice.

    Attributes:
        description: what llama.cpp calls the model, for people.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        n_ctx: int | None = None,
        n_slots: int = 16,
        n_batch: int | None = None,
        n_threads: int | None = None,
        n_gpu_layers: int | None = None,
        main_gpu: int | None = None,
        shared_prefix: bool = False,
        use_extra_bufts: bool | None = None,
        on_progress: Callable[[float], bool] | None = None,
    ) -> None:
        self._model: int | None = None
        self._context: int | None = None
        self._pieces: dict[int, bytes] = {}
        self._held: SavedState | None = None
        self._abort_flag = ctypes.create_string_buffer(2)
        _last_errors.clear()
        offload = lib.llama_supports_gpu_offload() and n_gpu_layers != 0
        try:
            params = lib.llama_model_default_params()
            params.n_gpu_layers = (-1 if n_gpu_layers is None else n_gpu_layers) if offload else 0
            if main_gpu is not None:
                params.main_gpu, params.split_mode = main_gpu, lib.LLAMA_SPLIT_MODE_NONE
            if use_extra_bufts is None:
                use_extra_bufts = extra_buffers_are_safe(lib.llama_print_system_info().decode(), _build())
            params.use_extra_bufts = use_extra_bufts
            self._load(Path(path), params, on_progress)
            self.n_slots = n_slots
            self.n_batch = n_batch or (_GPU_CHUNK if offload else _CPU_CHUNK)
            self.dense = not shared_prefix
            self.n_ctx = self._fitting_n_ctx(n_ctx, offload)
            self._open_context(n_threads or usable_cores(), offload, shared_prefix)
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
            raise ModelLoadError(f"{path} cannot be loaded: {_why() or 'llama.cpp gives no reason'}")
        if not lib.llama_model_has_decoder(self._model) or lib.llama_model_has_encoder(self._model):
            raise ModelLoadError(f"{path} holds a model that does not generate text: it has an encoder")
        self._vocab = lib.llama_model_get_vocab(self._model)
        if lib.llama_vocab_type(self._vocab) == lib.LLAMA_VOCAB_TYPE_NONE:
            raise ModelLoadError(f"{path} holds a model without a vocabulary")
        self.n_vocab = lib.llama_vocab_n_tokens(self._vocab)
        self._is_bpe = lib.llama_vocab_type(self._vocab) == lib.LLAMA_VOCAB_TYPE_BPE
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
        needed, available = n_ctx * token_bytes, _available_memory()
        if n_ctx * (self.n_slots + 1) >= 2**31 or (not offload and available is not None and needed > available):
            there_is = "too much" if available is None else f"and {available >> 20:,} MiB are available"
            raise ModelLoadError(
                f"n_ctx={n_ctx} for {self.n_slots} slots needs {needed >> 20:,} MiB of memory, {there_is}; "
                "choose a smaller n_ctx or n_slots"
            )
        return n_ctx

    def _open_context(self, n_threads: int, offload: bool, shared_prefix: bool) -> None:
        params = lib.llama_context_default_params()
        # Shared memory gets one sequence more, the prompt that samples are started from. Rounded up for every slot.
        n_sequences = self.n_slots + 1 if shared_prefix else self.n_slots
        params.n_ctx = (self.n_ctx + 255) // 256 * 256 * n_sequences
        params.n_seq_max = n_sequences
        params.n_batch = params.n_ubatch = max(self.n_batch, self.n_slots)
        params.n_threads = params.n_threads_batch = n_threads
        params.kv_unified = shared_prefix
        # On a CPU flash attention makes decoding with many sequences several times slower.
        params.flash_attn_type = lib.LLAMA_FLASH_ATTN_TYPE_AUTO if offload else lib.LLAMA_FLASH_ATTN_TYPE_DISABLED
        params.abort_callback, params.abort_callback_data = _abort_while_set(self._abort_flag)
        self._context = lib.llama_init_from_model(self._model, params)
        if not self._context:
            raise ModelLoadError(
                f"{self.n_slots} slots of {self.n_ctx} tokens cannot be made: {_why() or 'too little memory'}"
            )
        self._memory = lib.llama_get_memory(self._context)
        self._batch = _Batch(params.n_batch)

    def _warm_up(self) -> None:
        """Decode once: what cannot generate fails here, and the first request is no slower than the next."""
        try:
            logits = self.prefill(0, np.zeros(2, np.int32), 0)
        except GenerationError as error:
            raise ModelLoadError(f"the model cannot generate: {error}") from None
        if not np.isfinite(logits.max()):
            raise ModelLoadError("the model cannot generate: its logits are not finite; its file is damaged")
        self.rewind(0, 0)

    # ── Text ─────────────────────────────────────────────────────────────────────────────────────────────────────────

    def tokenize(self, text: str, max_tokens: int) -> Tokens:
        """Return the tokens of `text`, with the BOS token where the model wants one.

        Args:
            text: any string; lone surrogates count as "?".
            max_tokens: keep only this many tokens of the end, the BOS token included; 0 = all.

        Raises:
            InvalidRequestError: the text is far beyond what the context could hold.
        """
        encoded = text.encode(errors="replace")
        most_bytes = max(_MIN_TEXT_BYTES, _BYTES_PER_TOKEN * self.n_ctx)
        if len(encoded) > most_bytes:  # it cannot fit, so it shall cost no time
            if not max_tokens:
                raise InvalidRequestError(
                    f"text must hold at most {most_bytes:,} bytes for a context of {self.n_ctx} tokens, got "
                    f"{len(encoded):,}; shorten it, or set max_input_tokens to use its end",
                    field="text",
                )
            encoded = encoded[-most_bytes:]
        parts = _parts(encoded.decode(errors="ignore")) if self._is_bpe else [encoded]
        tokens = np.concatenate([self._tokenize(part, add_special=not n) for n, part in enumerate(parts)])
        n = len(tokens)
        if max_tokens == 0 or n <= max_tokens:
            return tokens
        if lib.llama_vocab_get_add_bos(self._vocab) and tokens[0] == lib.llama_vocab_bos(self._vocab):
            return np.concatenate((tokens[:1], tokens[n - max_tokens + 1 :]))
        return tokens[n - max_tokens :]

    def _tokenize(self, text: bytes, *, add_special: bool) -> Tokens:
        tokens = np.empty(len(text) + 8, np.int32)
        n = lib.llama_tokenize(
            self._vocab, text, len(text), _pointer(tokens, lib.llama_token), len(tokens), add_special, True
        )
        if n < 0:
            raise GenerationError(f"llama_tokenize needs {-n} tokens for {len(text)} bytes")
        return tokens[:n].copy()

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token prints; control tokens print nothing."""
        piece = self._pieces.get(token)
        if piece is None:
            buffer = ctypes.create_string_buffer(256)
            n = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
            if n < 0:
                buffer = ctypes.create_string_buffer(-n)
                n = lib.llama_token_to_piece(self._vocab, token, buffer, len(buffer), 0, False)
            piece = self._pieces[token] = buffer.raw[:n]
        return piece

    # ── Computing ────────────────────────────────────────────────────────────────────────────────────────────────────

    def prefill(self, slot: int, tokens: Tokens, start: int) -> Logits:
        """Append `tokens` to a slot that holds `start`; return the last one's logits, shape (V,).

        Raises:
            Interrupted: `interrupt` was called; `rewind` the slot before going on.
            GenerationError: llama.cpp failed.
        """
        n = len(tokens)
        batch = self._batch
        batch.token[:n] = tokens
        batch.position[:n] = range(start, start + n)
        batch.sequence[:n] = slot
        batch.wanted[:n] = 0
        batch.wanted[n - 1] = 1
        logits: Logits = self._compute(n, 1)[0]
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
        n = len(slots)
        batch = self._batch
        batch.token[:n] = tokens
        batch.position[:n] = positions
        batch.sequence[:n] = slots
        batch.wanted[:n] = 1
        return self._compute(n, n)

    def _compute(self, n_tokens: int, n_rows: int) -> Logits:
        self._batch.struct.n_tokens = n_tokens
        status = lib.llama_decode(self._context, self._batch.struct)
        if status == _ABORTED:
            self._abort_flag[0] = b"\0"
            raise Interrupted
        if status:
            raise GenerationError(f"llama_decode failed with status {status}: {_why() or 'llama.cpp gives no reason'}")
        pointer = lib.llama_get_logits(self._context)
        if not pointer:
            raise GenerationError("the model gives no logits")
        floats = (ctypes.c_float * (n_rows * self.n_vocab)).from_address(ctypes.addressof(pointer.contents))
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

    def save(self, slot: int) -> SavedState:
        """Return a slot's memory as bytes."""
        state = np.empty(lib.llama_state_seq_get_size(self._context, slot), np.uint8)
        if not lib.llama_state_seq_get_data(self._context, _pointer(state, ctypes.c_uint8), len(state), slot):
            raise GenerationError("llama.cpp could not save a sequence")
        return state

    def load(self, slot: int, state: SavedState) -> None:
        """Replace a slot's memory by what `save` returned."""
        self.rewind(slot, 0)
        if not lib.llama_state_seq_set_data(self._context, _pointer(state, ctypes.c_uint8), len(state), slot):
            raise GenerationError("llama.cpp could not restore a sequence")

    def hold(self, slot: int) -> None:
        """Keep what is in `slot` for `recall`, whatever becomes of the slot, until `let_go`."""
        if self.dense:
            # Copying between streams would copy their whole length, used or not.
            self._held = self.save(slot)
        else:
            lib.llama_memory_seq_cp(self._memory, slot, self.n_slots, -1, -1)

    def recall(self, slot: int) -> None:
        """Put what `hold` kept into `slot`."""
        if self._held is not None:
            self.load(slot, self._held)
        else:
            self.rewind(slot, 0)
            lib.llama_memory_seq_cp(self._memory, self.n_slots, slot, -1, -1)

    def let_go(self) -> None:
        """Free what `hold` kept."""
        self._held = None
        if not self.dense:
            self.rewind(self.n_slots, 0)


class _Batch:
    """A `llama_batch` whose fields are numpy arrays: filling it is slicing."""

    def __init__(self, capacity: int) -> None:
        self.token = np.empty(capacity, np.int32)
        self.position = np.empty(capacity, np.int32)
        self.sequence = np.empty(capacity, np.int32)
        self.wanted = np.empty(capacity, np.int8)
        self._ones = np.ones(capacity, np.int32)
        # One pointer a token, each to its own element of `sequence`.
        self._pointers = self.sequence.ctypes.data + np.arange(capacity, dtype=np.uintp) * self.sequence.itemsize
        self.struct = lib.llama_batch(
            token=_pointer(self.token, lib.llama_token),
            pos=_pointer(self.position, lib.llama_pos),
            n_seq_id=_pointer(self._ones, ctypes.c_int32),
            seq_id=_pointer(self._pointers, ctypes.POINTER(lib.llama_seq_id)),
            logits=_pointer(self.wanted, ctypes.c_int8),
        )


def _pointer(array: NDArray[Any], kind: Any) -> Any:
    return ctypes.cast(array.ctypes.data, ctypes.POINTER(kind))


def _abort_while_set(flag: ctypes.Array[ctypes.c_char]) -> tuple[Any, ctypes.c_void_p]:
    """Return an abort callback that is true while the first byte of `flag` is not 0.

    llama.cpp asks at every node of its graph, so the callback must not need Python's lock. C's `strlen` does the job:
    it returns 0 or 1 for what is a string of at most one character.
    """
    strlen = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)
    return strlen, ctypes.c_void_p(ctypes.addressof(flag))


def _parts(text: str) -> list[bytes]:
    """Cut a text wherever `_MAX_RUN` characters stand without a break; an ordinary text is one part."""
    if len(text) <= _MAX_RUN:
        return [text.encode()]
    cuts = [run.end() for run in _RUNS.finditer(text) if run.end() - run.start() == _MAX_RUN]
    return [text[start:end].encode() for start, end in itertools.pairwise([0, *cuts, len(text)])]


def _check_file(path: Path) -> None:
    """Refuse what is plainly no model, with a better reason than llama.cpp has."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror}") from None
    if magic != _MAGIC:
        raise ModelLoadError(f"{path} is no GGUF file: it begins with {magic!r}, not {_MAGIC!r}")


def _why() -> str:
    return "; ".join(_last_errors)


def _build() -> str:
    """Name the build of llama.cpp that is loaded."""
    library = Path(lib._lib._name)
    return f"{library} {library.stat().st_mtime_ns}"


def _available_memory() -> int | None:
    """Return the bytes that this machine can still give; ``None`` where it does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")), None)
