"""The little of llama.cpp that the checks need: tokens, logits, greedy continuation."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import llama_cpp
import numpy as np

if TYPE_CHECKING:
    from pathlib import Path

N_CONTEXT = 1024


class Llama:
    """A GGUF file, one sequence at a time, on one thread."""

    def __init__(self, path: Path) -> None:
        llama_cpp.llama_log_set(_silence, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        options = llama_cpp.llama_model_default_params()
        options.use_extra_bufts = False  # its AMX path crashes in some builds
        self._model = llama_cpp.llama_model_load_from_file(str(path).encode(), options)
        if not self._model:
            raise OSError(f"llama.cpp cannot load {path}")
        self._vocabulary = llama_cpp.llama_model_get_vocab(self._model)
        self.n_tokens = llama_cpp.llama_vocab_n_tokens(self._vocabulary)
        settings = llama_cpp.llama_context_default_params()
        settings.n_ctx = settings.n_batch = settings.n_ubatch = N_CONTEXT
        settings.type_k = settings.type_v = (
            llama_cpp.GGML_TYPE_F32
        )  # as PyTorch computes; the default is F16
        settings.n_threads = settings.n_threads_batch = 1
        settings.flash_attn_type = llama_cpp.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama_cpp.llama_init_from_model(self._model, settings)

    def tokens(self, text: str, *, add_special: bool = True) -> list[int]:
        """Tokenize."""
        raw = text.encode()
        found = (llama_cpp.llama_token * (len(raw) + 2))()
        count = llama_cpp.llama_tokenize(
            self._vocabulary, raw, len(raw), found, len(found), add_special, False
        )
        return found[:count]

    def text(self, tokens: list[int]) -> str:
        """Join the tokens' pieces; control tokens print as nothing."""
        buffer = ctypes.create_string_buffer(512)
        pieces = []
        for token in tokens:
            size = llama_cpp.llama_token_to_piece(
                self._vocabulary, token, buffer, len(buffer), 0, False
            )
            pieces.append(buffer.raw[:size])
        return b"".join(pieces).decode(errors="replace")

    def decode(self, tokens: list[int], start: int = 0, *, every: bool = False) -> np.ndarray:
        """Return logits, (tokens, n_tokens) or of the last token only."""
        memory = llama_cpp.llama_get_memory(self._context)
        llama_cpp.llama_memory_seq_rm(memory, 0, start, -1)
        batch = llama_cpp.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.seq_id[i][0] = (
                token,
                start + i,
                1,
                0,
            )
            batch.logits[i] = every or i == len(tokens) - 1
        status = llama_cpp.llama_decode(self._context, batch)
        llama_cpp.llama_batch_free(batch)
        if status:
            raise RuntimeError(f"llama_decode returned {status}")
        n_rows = len(tokens) if every else 1
        logits = llama_cpp.llama_get_logits(self._context)
        return np.ctypeslib.as_array(logits, (n_rows, self.n_tokens)).copy()

    def continuation(self, tokens: list[int], end: int, most: int) -> list[int]:
        """Continue greedily until `end`, which is left out, or `most` tokens."""
        made: list[int] = []
        logits = self.decode(tokens)
        while len(made) < most and (token := int(logits[-1].argmax())) != end:
            made.append(token)
            logits = self.decode([token], len(tokens) + len(made) - 1)
        return made


@llama_cpp.llama_log_callback
def _silence(_level: int, _text: bytes, _user: ctypes.c_void_p) -> None:
    """Drop llama.cpp's log."""
