"""Keep a sample to one of a few texts: each token goes on with one of those that begin as the sample does.

The texts are compared as bytes, so it does not matter how a tokenizer would cut them, nor what script they are in: a
token may come next where its bytes do. Sorted texts with the same beginning stand together, so that what is still
possible is a range, which each token narrows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

import numpy as np
from attrs import frozen

from relevance_gen.generation.constraints.token_constraint import Constraint, MaskTimeBudget
from relevance_gen.generation.sampling.sampler import Mask

FIELD = "choice"
"""The request's field."""


class Pieces:
    """What the tokens of a vocabulary print, sorted, so that those that begin a text are found without looking at all.

    Tokens that print nothing begin no text.
    """

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.of_tokens = pieces
        self._tokens = sorted(
            (token for token, piece in enumerate(pieces) if piece), key=pieces.__getitem__
        )
        self._sorted = [pieces[token] for token in self._tokens]
        self._longest = max(map(len, self._sorted), default=0)
        self._shorter: list[
            int
        ] = []  # of each the place of the longest other that it begins with, or -1
        begun: list[int] = []
        for place, piece in enumerate(self._sorted):
            while begun and not piece.startswith(self._sorted[begun[-1]]):
                begun.pop()
            self._shorter.append(begun[-1] if begun else -1)
            begun.append(place)

    def beginning(self, text: bytes, start: int) -> list[int]:
        """Return the tokens that print what `text` goes on with from `start`.

        Whatever `text` begins with also begins the last piece that does not sort behind it.
        """
        rest = text[start : start + self._longest]
        found, place = [], bisect_right(self._sorted, rest) - 1
        while place >= 0:
            if rest.startswith(self._sorted[place]):
                found.append(self._tokens[place])
            place = self._shorter[place]
        return found


@frozen(eq=False)
class Choices:
    """The texts that the samples of a request may be, sorted, each once, and what the model's tokens print."""

    texts: Sequence[bytes]
    pieces: Pieces

    def begin(self, ends: Collection[int], effort: MaskTimeBudget) -> Constraint:
        """Return the constraint of a sample, as `Grammar.begin` does."""
        return _Chooser(self, ends, effort)


class _Chooser(Constraint):
    """Follows one of the texts, with all others that begin as it does."""

    def __init__(self, choices: Choices, ends: Collection[int], effort: MaskTimeBudget) -> None:
        super().__init__(FIELD, len(choices.pieces.of_tokens), ends, effort)
        self._texts, self._pieces = choices.texts, choices.pieces
        self._first, self._stop = 0, len(choices.texts)
        self._said = b""

    def _is_complete(self) -> bool:
        return self._texts[self._first] == self._said  # the shortest of a range stands first

    def _fill(self, mask: Mask) -> bool:
        is_complete = self._is_complete()
        going_on = self._texts[self._first + is_complete : self._stop]
        tokens = {
            token for text in going_on for token in self._pieces.beginning(text, len(self._said))
        }
        places = np.fromiter(tokens, np.intp, len(tokens))
        mask[:] = 0
        np.bitwise_or.at(mask, places // 8, (1 << places % 8).astype(np.uint8))
        return is_complete

    def _follow(self, token: int) -> bool:
        said = self._said = self._said + self._pieces.of_tokens[token]
        self._first = bisect_left(self._texts, said, self._first, self._stop)
        self._stop = bisect_right(
            self._texts, said, self._first, self._stop, key=lambda text: text[: len(said)]
        )
        return self._stop - self._first == 1 and self._is_complete()
