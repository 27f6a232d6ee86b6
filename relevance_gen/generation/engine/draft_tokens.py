"""Guess what a sample says next: what followed the same words when they came before, in its prompt or in itself.

A guess costs rows of a batch that is decoded anyway, and no draw: each row's token is drawn as it would be without, and
the next row counts only if that token is the one that was guessed.
"""

from __future__ import annotations

import numpy as np

from relevance_gen.llama.language_model import Tokens

_LONGEST, _SHORTEST = 3, 2
"""Tokens that must have come before: where three did not, two are tried."""


class Lookup:
    """The words of one sample so far, and its guesses.

    The model saw the prompt, shape (n,). A guess has at most `n_most` tokens, and the sample at most `room`.
    """

    def __init__(self, prompt: Tokens, n_most: int, room: int) -> None:
        self._history = np.empty(len(prompt) + room, np.int32)
        self._history[: len(prompt)] = prompt
        self._n = len(prompt)
        self._n_most = self._length = n_most

    def note(self, token: int) -> None:
        """Take note of a generated token."""
        self._history[self._n] = token
        self._n += 1

    def guess(self, n_most: int) -> list[int]:
        """Return at most `n_most` tokens that may come next; none where the last words are new.

        What followed goes on with the guess itself where it reaches the end, as in a text that repeats itself.
        """
        n_most = min(
            n_most, self._length, len(self._history) - self._n - 1
        )  # the last token needs no row behind it
        if n_most < 1:
            return []
        history = self._history[: self._n]
        for width in range(_LONGEST, _SHORTEST - 1, -1):
            if (start := _last_before_end(history, width)) is not None:
                following: list[int] = history[start + width : start + width + n_most].tolist()
                return [following[place % len(following)] for place in range(n_most)]
        return []

    def learn(self, n_right: int) -> None:
        """Guess more where `n_right` of a guess was right, and less where little was."""
        self._length = min(self._n_most, 2 * n_right + 1)


def _last_before_end(history: Tokens, width: int) -> int | None:
    """Return where the last `width` tokens stood before, the last time."""
    n_places = len(history) - width
    if n_places < 1:
        return None
    found = np.flatnonzero(history[:n_places] == history[-width])
    for offset in range(1, width):
        found = found[history[found + offset] == history[offset - width]]
    return int(found[-1]) if len(found) else None
