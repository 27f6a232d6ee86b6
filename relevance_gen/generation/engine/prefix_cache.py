"""Cache of computed prompts, so that a common prefix of prompts is not computed again."""

from __future__ import annotations

import numpy as np
from attrs import frozen

from relevance_gen.generation.queue.request import ANONYMOUS
from relevance_gen.llama.language_model import SavedState, Tokens
from relevance_gen.lru import SharedCache


@frozen(eq=False)
class CachedPrompt:
    """A computed prompt.

    Attributes:
        tokens: token ids, shape (n,).
        state: result of `LanguageModel.save` after the last token.
        client: client of the request, as in a `RequestContext`.
    """

    tokens: Tokens
    state: SavedState
    client: str | None


@frozen(eq=False)
class PrefixMatch:
    """The longest prefix of a prompt for which a cached prompt begins with the same tokens.

    Attributes:
        n_tokens: the number of tokens of the prefix; 0 if no prefix is cached.
        cached: the cached prompt that begins with the prefix; ``None`` if no prefix is cached.
    """

    n_tokens: int
    cached: CachedPrompt | None


class PrefixCache:
    """The most recently used prompts with their states, in at most `max_bytes` bytes of memory.

    If `max_bytes` is 0, the cache is disabled. A prompt is found only for the client that sent it,
    so that response times reveal nothing about the prompts of other clients. Prompts of anonymous
    clients are evicted first, then prompts of the client that uses the most memory.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self._prompts: SharedCache[CachedPrompt] = SharedCache(
            max_bytes,
            lambda cached: cached.tokens.nbytes + cached.state.nbytes,
            evict_first=lambda client: client == ANONYMOUS,
        )
        self.clear = self._prompts.clear

    def __len__(self) -> int:
        return len(self._prompts)

    @property
    def size_bytes(self) -> int:
        """Bytes of memory that all cached prompts use."""
        return self._prompts.nbytes

    def longest_match(self, prompt: Tokens, client: str | None = None) -> PrefixMatch:
        """Return the longest prefix that `prompt` shares with a cached prompt of the client.

        The matching cached prompt becomes the most recently used.
        """
        n_best, best_key = 0, None
        for key, cached in self._prompts.items():
            if cached.client == client:
                n_common = _common_prefix_length(prompt, cached.tokens)
                if n_common > n_best:
                    n_best, best_key = n_common, key
        return PrefixMatch(n_best, self._prompts.get(best_key))

    def put(self, prompt: Tokens, state: SavedState, client: str | None = None) -> None:
        """Store a client's prompt and the state after it; evict prompts beyond `max_bytes`.

        Prompts of this client that are prefixes of `prompt` are removed.

        Args:
            prompt: token ids, shape (n,).
            state: result of `LanguageModel.save` after the last token.
            client: the client, as in `RequestContext`.
        """
        for key, cached in self._prompts.items():
            if cached.client == client:
                n_common = _common_prefix_length(prompt, cached.tokens)
                if n_common == len(cached.tokens):
                    self._prompts.drop(key)
        self._prompts.put((client, prompt.tobytes()), CachedPrompt(prompt, state, client))


def _common_prefix_length(first: Tokens, second: Tokens) -> int:
    n_tokens = min(len(first), len(second))
    differences = np.flatnonzero(first[:n_tokens] != second[:n_tokens])
    return int(differences[0]) if len(differences) else n_tokens
