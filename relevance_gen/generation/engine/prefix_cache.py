"""Remember the computed prompts of recent requests, so that a prompt with the same beginning starts from there."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from relevance_gen.generation.queue.request import ANONYMOUS
from relevance_gen.llama.language_model import SavedState, Tokens
from relevance_gen.lru import SharedCache


@frozen(eq=False)
class Entry:
    """A prompt of a client's, named as in a `RequestContext`, shape (n,), and what `LanguageModel.save` returned after it."""

    tokens: Tokens
    state: SavedState
    client: str | None


class PrefixCache:
    """Hold the most recently used prompts within `max_bytes`; where these are 0, hold nothing.

    A prompt is known only to the client whose request it was of: how long a prompt takes tells nobody what others have
    sent. Where there is too much, strangers' prompts go first, then those of the client that has most.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._entries: SharedCache[Entry] = SharedCache(
            max_bytes,
            lambda entry: entry.tokens.nbytes + entry.state.nbytes,
            evict_first=lambda client: client == ANONYMOUS,
        )
        self.clear = self._entries.clear

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that all entries hold."""
        return self._entries.nbytes

    def longest(self, prompt: Tokens, client: str | None = None) -> tuple[int, Entry | None]:
        """Return how many tokens of `prompt` some entry of a client begins with, and that entry, which is used now."""
        best, found = 0, None
        for key, entry in self._entries.items():
            if entry.client == client and (common := _common_prefix(prompt, entry.tokens)) > best:
                best, found = common, key
        return best, self._entries.get(found)

    def put(self, prompt: Tokens, state: SavedState, client: str | None = None) -> None:
        """Hold `state` for a client's `prompt`, and drop what of this client's that makes superfluous."""
        for key, entry in self._entries.items():
            if entry.client == client and _common_prefix(prompt, entry.tokens) == len(entry.tokens):
                self._entries.drop(key)
        self._entries.put((client, prompt.tobytes()), Entry(prompt, state, client))


def _common_prefix(a: Tokens, b: Tokens) -> int:
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    return int(differs[0]) if len(differs) else n
