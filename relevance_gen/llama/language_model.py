"""The interface of a model that generates text; `Decoder` implements it with llama.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.int32]
Logits: TypeAlias = NDArray[np.float32]
SavedState: TypeAlias = NDArray[np.uint8]


MAX_BYTES_PER_TOKEN = 32
"""More bytes per token than real texts have: a text that has more for a full context is rejected
without tokenizing."""
TOKEN_BOUNDARY = "\udc00"  # noqa: S105
"""Marks a position in a rendered conversation that tokens must not cross. Texts cannot contain this
code point."""


@frozen
class ChatFormat:
    """The properties of a model that rendering prompts and conversations needs.

    Attributes:
        template: the Jinja chat template; None if the file has none.
        bos, eos: the texts of the beginning- and end-of-sequence tokens; empty if the model has
            none.
        eos_token_ids: the ids of the tokens that end a turn.
        control: the texts of all control tokens.
        user_defined: the texts of all other tokens that are matched before a text is tokenized.
        n_ctx: maximum tokens of a prompt and its answer together; 0 if unknown.
        is_extractive: whether the model can only copy answers from its prompt, which its file
            declares with the metadata key ``relevance_gen.extractive``.
    """

    template: str | None = None
    bos: str = ""
    eos: str = ""
    eos_token_ids: tuple[int, ...] = ()
    control: tuple[str, ...] = ()
    user_defined: tuple[str, ...] = ()
    n_ctx: int = 0
    is_extractive: bool = False


class Interrupted(Exception):  # noqa: N818 - a signal between model and engine, not an error
    """`interrupt` stopped a computation.

    The sequences of the slots may contain a part of the tokens that were computed; the caller must
    remove them with `rewind`.
    """


class LanguageModel(Protocol):
    """A context of slots, each with one sequence of tokens.

    Used by one thread, except `interrupt`.
    """

    n_ctx: int
    """Maximum tokens of one sequence, prompt and generated."""
    n_slots: int
    n_batch: int
    """Maximum tokens of one `prefill`, including padding: a multiple of `prefill_multiple`."""
    prefill_multiple: int
    """Prefill chunks are padded to a multiple of this; if it is 1, they are not padded and
    `prefill` takes one chunk."""
    n_vocab: int
    chat_format: ChatFormat
    can_rewind: bool
    """Whether `rewind` can remove only the end of a sequence."""

    def tokenize(self, text: str, max_tokens: int) -> Tokens:
        """Return the tokens of `text`, with the BOS token if the model requires it.

        If `max_tokens` is not 0, only the BOS token and the last tokens are returned, at most
        `max_tokens` in all.
        """

    def tokenize_chat(self, text: str, max_tokens: int) -> Tokens:
        """Return the tokens of a rendered conversation; only the last `max_tokens` if not 0.

        The text between two occurrences of `TOKEN_BOUNDARY` is tokenized separately, so no token
        contains characters of both sides. No beginning- or end-of-sequence token is added.
        """

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token prints."""

    def prefill(
        self, slots: Sequence[int], chunks: Sequence[Tokens], starts: Sequence[int]
    ) -> Logits:
        """Append a prefill chunk, which is a part of a prompt, to each of n slots.

        For the computation all chunks are padded to the length of the longest.

        Args:
            slots: the indices of the slots.
            chunks: the tokens of each slot's chunk.
            starts: number of tokens that are already in each slot's sequence.

        Returns:
            The logits after the last token of each chunk, shape (n, n_vocab), valid until the next
            call.
        """

    def prefill_all(self, slot: int, tokens: Tokens, start: int) -> Logits:
        """Append a prefill chunk of n tokens to a slot.

        `start` is the number of tokens that are already in the slot's sequence. Return the logits
        after each of the n tokens, shape (n, n_vocab).
        """

    def decode(
        self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]
    ) -> Logits:
        """Append one token to each of B slots.

        Each slot occurs once. Slots 0, 1, 2 … without gaps are fastest.

        Args:
            slots: the indices of the slots.
            tokens: the token of each slot.
            positions: the position of each token, which is the number of tokens before it in its
                slot.

        Returns:
            The logits after each token, shape (B, n_vocab), valid until the next call.
        """

    def rewind(self, slot: int, n_tokens: int) -> None:
        """Remove all but the first `n_tokens` tokens from a slot."""

    def copy(self, source: int, target: int) -> None:
        """Replace the sequence of slot `target` by a copy of the sequence of slot `source`."""

    def saved_bytes(self, slot: int) -> int:
        """Return the size of the state that `save` would return, in bytes."""

    def save(self, slot: int) -> SavedState:
        """Return the state of a slot as bytes."""

    def restore(self, slot: int, state: SavedState) -> None:
        """Replace the state of a slot by a state from `save`."""

    def interrupt(self) -> None:
        """Make the current or the next computation raise `Interrupted`. Thread-safe."""
