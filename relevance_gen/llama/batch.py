"""The input of `llama_decode`."""

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
"""Whether the logits of each row of a batch are returned: a boolean for all rows, or an array."""


class Batch:
    """A `llama_batch` whose fields are numpy arrays, so that slices can be assigned."""

    def __init__(self, capacity: int) -> None:
        self.token = np.empty(capacity, np.int32)
        self.position = np.empty(capacity, np.int32)
        self.sequence = np.empty(capacity, np.int32)
        self.has_output = np.empty(capacity, np.int8)
        self._ones = np.ones(capacity, np.int32)
        # A pointer for each token to its element of `sequence`.
        offsets = np.arange(capacity, dtype=np.uintp) * self.sequence.itemsize
        self._pointers = self.sequence.ctypes.data + offsets
        self.struct = lib.llama_batch(
            token=pointer(self.token, lib.llama_token),
            pos=pointer(self.position, lib.llama_pos),
            n_seq_id=pointer(self._ones, ctypes.c_int32),
            seq_id=pointer(self._pointers, ctypes.POINTER(lib.llama_seq_id)),
            logits=pointer(self.has_output, ctypes.c_int8),
        )

    def fill(self, tokens: _Integers, positions: _Integers, sequences: _Integers | int) -> None:
        """Replace the tokens of the batch.

        Args:
            tokens: the n tokens.
            positions: position of each token in its sequence.
            sequences: sequence id of each token, or one id for all tokens.
        """
        n = len(tokens)
        self.token[:n] = tokens
        self.position[:n] = positions
        self.sequence[:n] = sequences
        self.struct.n_tokens = n

    def set_outputs(self, has_output: OutputMask = True) -> int:
        """Request the logits of the rows where `has_output` is true.

        Return the number of these rows.
        """
        n = self.struct.n_tokens
        self.has_output[:n] = has_output
        return int(np.count_nonzero(self.has_output[:n]))


def abort_while_set(flag: ctypes.Array[ctypes.c_char]) -> tuple[Any, ctypes.c_void_p]:
    """Return an abort callback and its argument.

    The callback returns true while the first byte of `flag` is not 0. llama.cpp calls it at each
    node of its graph, so it must not need Python's interpreter lock. C's `strlen` serves as
    callback: it returns 0 or 1 for a string of at most one character.
    """
    strlen = ctypes.cast(ctypes.CDLL(None).strlen, lib.ggml_abort_callback)
    return strlen, ctypes.c_void_p(ctypes.addressof(flag))
