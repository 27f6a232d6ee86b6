"""Read a turn as the model writes it: what is said, what is thought, and which tools are called."""

from __future__ import annotations

from attrs import frozen

from relevance_gen.types import Part


@frozen
class AnswerFormat:
    """How a model writes a turn."""

    def reader(self, nonce: str) -> Reader:
        """Return what reads one turn; the `nonce` makes the ids of its calls unique."""
        return Reader(self, nonce)


class Reader:
    """Reads one turn, wherever its text is cut.

    The pieces that `push` and `end` return are, joined, what the whole text alone would have given.
    """

    def __init__(self, form: AnswerFormat, nonce: str) -> None:
        self._form, self._nonce = form, nonce

    def push(self, text: str) -> list[Part]:
        """Return the pieces that more of the text releases."""
        return [Part("text", text)] if text else []

    def end(self) -> list[Part]:
        """Return the pieces that were held back, now that nothing follows."""
        return []
