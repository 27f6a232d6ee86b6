"""Constrain a sample to a list of allowed texts.

Each token must continue a text that starts with the sample. Texts are compared as bytes, so neither
the tokenization nor the script matters: a token is allowed if its bytes follow. In sorted order,
the texts with a common prefix are a range, which each token narrows.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Sequence

import numpy as np
from attrs import frozen

from relevance_gen.generation.constraints.token_constraint import Constraint, MaskTimeBudget
from relevance_gen.generation.sampling.sampler import Mask


class TokenPrefixIndex:
    """Finds the tokens whose bytes are a prefix of a text without scanning the vocabulary.

    Tokens that print nothing are not indexed.
    """

    def __init__(self, token_bytes: Sequence[bytes]) -> None:
        self.token_bytes = token_bytes
        tokens = [token for token, piece in enumerate(token_bytes) if piece]
        self._tokens = sorted(tokens, key=token_bytes.__getitem__)
        self._sorted_pieces = [token_bytes[token] for token in self._tokens]
        self._max_bytes = max(map(len, self._sorted_pieces), default=0)
        # For each row, the row of the longest other entry that is a prefix of it, or -1.
        self._prefix_rows: list[int] = []
        open_prefixes: list[int] = []
        for row, piece in enumerate(self._sorted_pieces):
            while open_prefixes and not piece.startswith(self._sorted_pieces[open_prefixes[-1]]):
                open_prefixes.pop()
            self._prefix_rows.append(open_prefixes[-1] if open_prefixes else -1)
            open_prefixes.append(row)

    def tokens_at(self, text: bytes, start: int) -> list[int]:
        """Return the tokens whose bytes are a prefix of `text` from the byte offset `start` on.

        The search begins at the last token in sorted order that is not greater than the rest of the
        text: each token that is a prefix of the rest is this token or a prefix of it.
        """
        rest = text[start : start + self._max_bytes]
        tokens = []
        row = bisect_right(self._sorted_pieces, rest) - 1
        while row >= 0:
            if rest.startswith(self._sorted_pieces[row]):
                tokens.append(self._tokens[row])
            row = self._prefix_rows[row]
        return tokens


@frozen(eq=False)
class Choices:
    """The texts that the samples of a request may have.

    Attributes:
        texts: the texts as bytes, sorted and distinct.
        token_index: the index of the model's tokens.
    """

    texts: Sequence[bytes]
    token_index: TokenPrefixIndex

    def begin(self, eos_token_ids: Collection[int], budget: MaskTimeBudget) -> Constraint:
        """Return the constraint of a new sample; see `Constraint`."""
        return _ChoiceConstraint(self, eos_token_ids, budget)


class _ChoiceConstraint(Constraint):
    """The constraint of one sample to the texts of `Choices`.

    It stores the range of the sorted texts that begin with the text of the sample.
    """

    def __init__(
        self, choices: Choices, eos_token_ids: Collection[int], budget: MaskTimeBudget
    ) -> None:
        super().__init__("choice", len(choices.token_index.token_bytes), eos_token_ids, budget)
        self._texts = choices.texts
        self._token_index = choices.token_index
        self._first = 0
        self._stop = len(choices.texts)
        self._sample = b""

    def _is_complete(self) -> bool:
        # The shortest text of a range is the first.
        return self._texts[self._first] == self._sample

    def _fill(self, mask: Mask) -> bool:
        is_complete = self._is_complete()
        first_longer = self._first + is_complete
        allowed: set[int] = set()
        for text in self._texts[first_longer : self._stop]:
            allowed.update(self._token_index.tokens_at(text, len(self._sample)))
        tokens = np.fromiter(allowed, np.intp, len(allowed))
        mask[:] = 0
        bits = 1 << tokens % 8
        np.bitwise_or.at(mask, tokens // 8, bits.astype(np.uint8))
        return is_complete

    def _append(self, token: int) -> bool:
        sample = self._sample + self._token_index.token_bytes[token]
        self._sample = sample
        n_bytes = len(sample)
        self._first = bisect_left(self._texts, sample, self._first, self._stop)
        self._stop = bisect_right(
            self._texts,
            sample,
            self._first,
            self._stop,
            key=lambda text: text[:n_bytes],
        )
        return self._stop - self._first == 1 and self._is_complete()
