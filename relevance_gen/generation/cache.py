"""Remember the computed prompts of recent requests, so that a prompt with the same beginning starts from there."""

from __future__ import annotations

from collections import OrderedDict

import numpy as np
from attrs import frozen

from relevance_gen.llama.language_model import SavedState, Tokens


@frozen(eq=False)
class Entry:
    """A prompt, and the model's memory after it.

    Args:
        tokens: shape (n,), the prompt.
        state: what `LanguageModel.save` returned.
    """

    tokens: Tokens
    state: SavedState

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that the entry holds."""
        return self.tokens.nbytes + self.state.nbytes


class PrefixCache:
    """Hold the most recently used prompts within a number of bytes.

    Args:
        max_bytes: most bytes to hold; 0 holds nothing.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._entries: OrderedDict[bytes, Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def longest(self, prompt: Tokens) -> tuple[int, Entry | None]:
        """Return how many tokens of `prompt` some entry begins with, and that entry; it becomes the most recent."""
        best, found = 0, None
        for key, entry in self._entries.items():
            common = _common_prefix(prompt, entry.tokens)
            if common > best:
                best, found = common, key
        if found is None:
            return 0, None
        self._entries.move_to_end(found)
        return best, self._entries[found]

    def put(self, prompt: Tokens, state: SavedState) -> None:
        """Hold `state` for `prompt`; drop what that makes superfluous, then the least recent beyond `max_bytes`."""
        entry = Entry(prompt, state)
        if entry.size_bytes > self.max_bytes:
            return
        covered = [k for k, e in self._entries.items() if _common_prefix(prompt, e.tokens) == len(e.tokens)]
        for key in covered:
            self._drop(key)
        self._entries[prompt.tobytes()] = entry
        self.size_bytes += entry.size_bytes
        while self.size_bytes > self.max_bytes:
            self._drop(next(iter(self._entries)))

    def clear(self) -> None:
        """Forget everything."""
        self._entries.clear()
        self.size_bytes = 0

    def _drop(self, key: bytes) -> None:
        self.size_bytes -= self._entries.pop(key).size_bytes


def _common_prefix(a: Tokens, b: Tokens) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
