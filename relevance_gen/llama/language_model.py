"""What generating needs of a model, whoever makes it; `Decoder` is the one that llama.cpp computes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeAlias

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Tokens: TypeAlias = NDArray[np.int32]
Logits: TypeAlias = NDArray[np.float32]
SavedState: TypeAlias = NDArray[np.uint8]


MOST_BYTES_PER_TOKEN = 32
"""More than texts have: what is longer than this for the tokens that a context holds is refused uncounted."""
TOKEN_BOUNDARY = "\udc00"  # noqa: S105
"""Stands in a rendered conversation where tokens must not reach across: a code point that no text can hold."""


@frozen
class ChatFormat:
    """What writing a prompt needs to know of a model, conversations above all.

    Attributes:
        template: the Jinja template that writes them; ``None`` where the file has none.
        bos, eos: the texts of the tokens that begin and end a text; empty where there is none.
        ends: the tokens that end a turn.
        control: the texts of all control tokens.
        user_defined: the texts of all others that are looked for in a text before it is cut into tokens.
        n_ctx: most tokens of a prompt and its answer together; 0 where that is not known.
        copies_only: whether answers are to be copied from what the model is shown: ``relevance_gen.copies_only`` in its
            file.
    """

    template: str | None = None
    bos: str = ""
    eos: str = ""
    ends: tuple[int, ...] = ()
    control: tuple[str, ...] = ()
    user_defined: tuple[str, ...] = ()
    n_ctx: int = 0
    copies_only: bool = False


class Interrupted(Exception):  # noqa: N818 - a signal between model and engine, not an error
    """The model gave up a computation because `interrupt` was called; its memory may hold part of it."""


class LanguageModel(Protocol):
    """A context of slots, each with one sequence of tokens. All of it but `interrupt` belongs to one thread."""

    n_ctx: int
    """Most tokens of one sequence, prompt and generated."""
    n_slots: int
    n_batch: int
    """Most tokens of one `prefill`, padding included: a multiple of `prefill_multiple`."""
    prefill_multiple: int
    """Slices are padded to a multiple of so many tokens; where it is 1 they are not, and `prefill` takes one alone."""
    n_vocab: int
    chat_format: ChatFormat
    can_rewind: bool
    """Whether `rewind` can forget the end of a sequence alone."""

    def tokenize(self, text: str, max_tokens: int) -> Tokens:
        """Return the tokens of `text`, or the last `max_tokens` of them where that is not 0."""

    def tokenize_chat(self, text: str, max_tokens: int) -> Tokens:
        """Return the tokens of a rendered conversation, to which none is added; none of them reaches over a `TOKEN_BOUNDARY`."""

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token prints."""

    def prefill(
        self, slots: Sequence[int], slices: Sequence[Tokens], starts: Sequence[int]
    ) -> Logits:
        """Append a slice to each slot; return the logits after the last token of each, shape (n, V).

        They are valid until the next call. All slices are padded to the length of the longest while they are computed.
        """

    def prefill_all(self, slot: int, tokens: Tokens, start: int) -> Logits:
        """Append a slice to one slot; return the logits after each of its tokens, shape (n, V)."""

    def decode(
        self, slots: Sequence[int], tokens: Sequence[int], positions: Sequence[int]
    ) -> Logits:
        """Append tokens to slots; return the logits after each, shape (B, V), valid until the next call.

        Several rows may be one slot's, one after another. It is fastest for slots 0, 1, 2 … without gaps.
        """

    def rewind(self, slot: int, n_tokens: int) -> None:
        """Forget all but the first `n_tokens` of a slot."""

    def copy(self, source: int, target: int) -> None:
        """Let the slot `target` hold what `source` holds."""

    def saved_bytes(self, slot: int) -> int:
        """Return how many bytes `save` would return."""

    def save(self, slot: int) -> SavedState:
        """Return what a slot holds as bytes."""

    def restore(self, slot: int, state: SavedState) -> None:
        """Replace what a slot holds by what `save` returned."""

    def interrupt(self) -> None:
        """Make the computation under way, or else the next one, raise `Interrupted`; called from any thread."""
