"""A model whose logits are a function of the previous tokens, and that refuses any misuse of its slots."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from relevance_gen.generation.queue.events import Failed, Finished, Started, TextDelta
from relevance_gen.generation.queue.request import Capacity, RequestPriority
from relevance_gen.llama.language_model import TOKEN_BOUNDARY, ChatFormat, Interrupted


def next_logits(history: list[int], n_vocab: int = 16) -> np.ndarray:
    """Return pseudo-random logits that are a function of the whole history."""
    digest = hashlib.blake2b(bytes(history), digest_size=8).digest()
    return np.random.default_rng(int.from_bytes(digest)).normal(0, 2, n_vocab).astype(np.float32)


class ScriptedModel:
    """A `LanguageModel` whose tokens are characters: the token is the code point modulo the vocabulary.

    Entering it as a context returns it, so a function that returns a model is a `Load`.

    Args:
            on_call: called before each computation with its name; may raise, so that the model
            fails.
    """

    can_rewind = True
    prefill_multiple = 2
    chat_format = ChatFormat()

    def __init__(
        self,
        n_slots: int,
        *,
        n_ctx: int = 40,
        n_batch: int = 4,
        on_call: Callable[[str], None] | None = None,
    ) -> None:
        self.n_ctx, self.n_slots, self.n_batch, self.n_vocab = n_ctx, n_slots, n_batch, 16
        self.slots: list[list[int]] = [[] for _ in range(n_slots)]
        self.n_computed = 0
        self.n_saved = 0
        self.n_together = 0
        self.interrupted = False
        self._on_call = on_call or (lambda _: None)

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def tokenize(self, text: str, max_tokens: int) -> np.ndarray:
        """Map characters to tokens."""
        tokens = np.array([ord(c) % self.n_vocab for c in text], np.int32)
        return tokens[-max_tokens:] if max_tokens else tokens

    def tokenize_chat(self, text: str, max_tokens: int) -> np.ndarray:
        """Map the characters between boundaries to tokens."""
        return self.tokenize(text.replace(TOKEN_BOUNDARY, ""), max_tokens)

    def piece(self, token: int) -> bytes:
        """Return a letter for a token."""
        return bytes([ord("a") + token])

    def prefill(self, slots, chunks, starts) -> np.ndarray:
        """Append chunks to slots that must contain the tokens before them; with padding they must fit a batch.

        Several chunks must also fit into the context with their padding.
        """
        assert len(set(slots)) == len(slots) > 0
        length = max(map(len, chunks))
        length += length % self.prefill_multiple
        assert length * len(slots) <= self.n_batch
        assert len(slots) == 1 or max(starts) + length <= self.n_ctx
        self.n_together = max(self.n_together, len(slots))
        self._compute("prefill", sum(map(len, chunks)))
        rows = []
        for slot, tokens, start in zip(slots, chunks, starts, strict=True):
            assert len(self.slots[slot]) == start
            assert len(tokens)
            self.slots[slot] += tokens.tolist()
            rows.append(next_logits(self.slots[slot]))
        return np.array(rows)

    def prefill_all(self, slot: int, tokens: np.ndarray, start: int) -> np.ndarray:
        """Append tokens separately; return the logits after each."""
        self.prefill([slot], [tokens], [start])
        return np.array(
            [next_logits(self.slots[slot][: start + n]) for n in range(1, len(tokens) + 1)]
        )

    def decode(self, slots, tokens, positions) -> np.ndarray:
        """Append each token to its slot, which must contain exactly the tokens before its position."""
        assert list(slots) == sorted(slots)
        self._compute("decode", len(slots))
        rows = []
        for slot, token, position in zip(slots, tokens, positions, strict=True):
            assert len(self.slots[slot]) == position
            self.slots[slot].append(token)
            assert len(self.slots[slot]) <= self.n_ctx
            rows.append(next_logits(self.slots[slot]))
        return np.array(rows)

    def _compute(self, name: str, n_tokens: int) -> None:
        self._on_call(name)
        self.n_computed += n_tokens
        if self.interrupted:
            self.interrupted = False
            raise Interrupted

    def rewind(self, slot: int, n_tokens: int) -> None:
        """Remove the end of a slot."""
        assert len(self.slots[slot]) >= n_tokens
        del self.slots[slot][n_tokens:]

    def copy(self, source: int, target: int) -> None:
        """Copy a slot's tokens to an empty one."""
        assert not self.slots[target]
        self.slots[target] = list(self.slots[source])

    def saved_bytes(self, slot: int) -> int:
        """Return one byte per token."""
        return len(self.slots[slot])

    def save(self, slot: int) -> np.ndarray:
        """Return the slot's tokens as bytes."""
        self.n_saved += 1
        return np.array(self.slots[slot], np.uint8)

    def restore(self, slot: int, state: np.ndarray) -> None:
        """Restore an empty slot."""
        assert not self.slots[slot]
        self.slots[slot] = state.tolist()

    def interrupt(self) -> None:
        """Make the next computation raise."""
        self.interrupted = True


def capacity(n_requests: int, n_retained_prompts: int = 1 << 30) -> Capacity:
    """Return the same capacity for all priorities."""
    return Capacity(
        dict.fromkeys(RequestPriority, n_requests),
        dict.fromkeys(RequestPriority, n_retained_prompts),
    )


class QueueWorker:
    """A worker that is registered with a queue."""

    def __init__(self, queue, on_cancel=lambda _: None) -> None:
        self._queue = queue
        self._id = queue.register(on_cancel)

    def take(self, capacity, timeout_s=None):
        """Take the next requests."""
        return self._queue.take(self._id, capacity, timeout_s)

    def deliver(self, event) -> None:
        """Deliver any event."""
        self._queue.deliver(self._id, event)

    def start(self, queued, n_samples) -> None:
        """Report that further samples have started."""
        self.deliver(Started(queued.id, n_samples))

    def add_text(self, queued, sample, text) -> None:
        """Report text of a sample."""
        self.deliver(TextDelta(queued.id, sample, text))

    def finish(self, queued, response) -> None:
        """Report a response."""
        self.deliver(Finished(queued.id, response))

    def fail(self, queued, error) -> None:
        """Report an error."""
        self.deliver(Failed(queued.id, error))

    def leave(self, error) -> None:
        """Leave the queue."""
        self._queue.unregister(self._id, error)
