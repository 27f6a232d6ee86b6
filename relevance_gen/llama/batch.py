"""What goes into `llama_decode`."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from relevance_gen.llama.language_model import Tokens
from relevance_gen.llama.runtime.library import lib, pointer

_Integers: TypeAlias = Sequence[int] | Tokens
OutputMask: TypeAlias = bool | NDArray[np.bool_]
"""After which tokens of a batch logits are computed."""


class Batch:
    """A `llama_batch` whose fields are numpy arrays: filling it is slicing."""

    def __init__(self, capacity: int) -> None:
        self.token = np.empty(capacity, np.int32)
        self.position = np.empty(capacity, np.int32)
        self.sequence = np.empty(capacity, np.int32)
        self.wanted = np.empty(capacity, np.int8)
        self._ones = np.ones(capacity, np.int32)
        # One pointer a token, each to its own element of `sequence`.
        self._pointers = (
            self.sequence.ctypes.data + np.arange(capacity, dtype=np.uintp) * self.sequence.itemsize
        )
        self.struct = lib.llama_batch(
            token=pointer(self.token, lib.llama_token),
            pos=pointer(self.position, lib.llama_pos),
            n_seq_id=pointer(self._ones, ctypes.c_int32),
            seq_id=pointer(self._pointers, ctypes.POINTER(lib.llama_seq_id)),
            logits=pointer(self.wanted, ctypes.c_int8),
        )

    def fill(self, tokens: _Integers, positions: _Integers, sequences: _Integers | int) -> None:
        """Hold these tokens and no others."""
        n = len(tokens)
        self.token[:n] = tokens
        self.position[:n] = positions
        self.sequence[:n] = sequences
        self.struct.n_tokens = n

    def want(self, wanted: OutputMask = True) -> int:
        """Have logits computed after the tokens where `wanted` is true; return of how many."""
        n = self.struct.n_tokens
        self.wanted[:n] = wanted
        return int(np.count_nonzero(self.wanted[:n]))


def abort_while_set(flag: ctypes.Array[ctypes.c_char]) -> tuple[Any, ctypes.c_void_p]:
    """Return an abort callback that is true while the first byte of `flag` is not 0.

    llama.cpp asks at every node of its graph, so the callback must not need Python's lock. C's `strlen` does the job:
    it returns 0 or 1 for what is a string of at most one character.
    """
    strlen = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)
    return strlen, ctypes.c_void_p(ctypes.addressof(flag))
