"""Tokenize and detokenize text with a model's vocabulary."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np
from attrs import frozen

from relevance_gen.errors import ContextLengthError
from relevance_gen.llama.language_model import (
    MAX_BYTES_PER_TOKEN,
    TOKEN_BOUNDARY,
    ChatFormat,
    Tokens,
)
from relevance_gen.llama.runtime.library import lib, pointer

_SPARE_BYTES = 1 << 16
"""Bytes that a text may have in addition to `MAX_BYTES_PER_TOKEN`; only the end of a longer text is
tokenized."""
_USER_DEFINED = lib.LLAMA_TOKEN_ATTR_USER_DEFINED | lib.LLAMA_TOKEN_ATTR_UNKNOWN
_MAX_RUN = 8_000
_RUN = re.compile(rf"\S{{1,{_MAX_RUN}}}|\s{{1,{_MAX_RUN}}}")
"""A run of characters without white space, or of white space, of at most 8,000 characters. The BPE
tokenizers of many models (tekken, gpt-4o, deepseek, bloom …) match runs with std::regex, which
recurses at each character and overflows an 8 MiB stack between 16,000 and 32,000 characters."""


@frozen(eq=False)
class SurroundingTokens:
    """The tokens that are added before and after each text."""

    before: Tokens
    after: Tokens

    @property
    def n_tokens(self) -> int:
        """The number of these tokens."""
        return len(self.before) + len(self.after)


class Tokenizer:
    """Tokenizes with the vocabulary of a loaded model.

    Args:
        handle: llama.cpp's ``llama_vocab``, which must not be freed before this object.
        n_ctx: tokens of a context. `tokenize` rejects a text that is much longer, or tokenizes only
            its end, without tokenizing all of it.
    """

    def __init__(self, handle: Any, n_ctx: int) -> None:
        self._handle = handle
        self._n_ctx = n_ctx
        self._is_bpe = lib.llama_vocab_type(handle) == lib.LLAMA_VOCAB_TYPE_BPE
        self._pieces: dict[int, bytes] = {}

    def tokenize(self, text: str, max_tokens: int) -> Tokens:
        """Return the tokens of `text`, with the BOS token if the model requires it.

        Lone surrogates become "?". If `max_tokens` is not 0, only the BOS token and the last tokens
        are returned, `max_tokens` in total.

        Raises:
            ContextLengthError: `max_tokens` is 0, and the text is much longer than the context.
        """
        return self._tokenize_all([text], max_tokens, add_special=True)

    def tokenize_chat(self, text: str, max_tokens: int) -> Tokens:
        """Return the tokens of a rendered conversation, none of which crosses a `TOKEN_BOUNDARY`.

        See `tokenize`. No BOS token is added, because the template renders it.
        """
        return self._tokenize_all(text.split(TOKEN_BOUNDARY), max_tokens, add_special=False)

    def tokenize_beginning(self, text: str) -> Tokens:
        """Return the first tokens of `text` that fit into the context, with the surrounding tokens.

        The text of a control token is plain text, and lone surrogates become "?".
        """
        special_tokens = self.surrounding_tokens()
        max_characters = MAX_BYTES_PER_TOKEN * self._n_ctx + _SPARE_BYTES
        tokens = self.tokenize_plain(text[:max_characters])[: self._n_ctx - special_tokens.n_tokens]
        return np.concatenate((special_tokens.before, tokens, special_tokens.after))

    def surrounding_tokens(self) -> SurroundingTokens:
        """Return the tokens that the model requires before and after each text."""
        tokens = self._tokenize(b"", add_special=True, parse_special=False)
        n_before = 1 if len(tokens) == 2 else int(lib.llama_vocab_get_add_bos(self._handle))
        return SurroundingTokens(tokens[:n_before], tokens[n_before:])

    def tokenize_plain(self, text: str, *, parse_special: bool = False) -> Tokens:
        """Return the tokens of `text`, of any length, without surrounding tokens.

        Lone surrogates become "?"; the text of a control token is parsed as that token only if
        `parse_special`.
        """
        parts = self._split_runs(text.encode(errors="replace"))
        return np.concatenate(
            [self._tokenize(part, add_special=False, parse_special=parse_special) for part in parts]
        )

    def _tokenize_all(self, texts: list[str], max_tokens: int, *, add_special: bool) -> Tokens:
        """Tokenize each text separately, and return the tokens, one text after another.

        Args:
            texts: the texts.
            max_tokens: maximum number of tokens to return: the BOS token, if any, and the last
                tokens; 0 for no limit.
            add_special: whether to add the special tokens that the model requires, such as BOS, to
                the first part of the first text.

        Raises:
            ContextLengthError: `max_tokens` is 0, and the texts are much longer than the context.
        """
        encoded = self._encode_end(texts, max_tokens)
        parts = [part for text in encoded for part in self._split_runs(text)]
        tokens = np.concatenate(
            [
                self._tokenize(part, add_special=add_special and index == 0)
                for index, part in enumerate(parts)
            ]
        )
        n_tokens = len(tokens)
        if max_tokens == 0 or n_tokens <= max_tokens:
            return tokens
        bos = lib.llama_vocab_bos(self._handle)
        if lib.llama_vocab_get_add_bos(self._handle) and tokens[0] == bos:
            return np.concatenate((tokens[:1], tokens[n_tokens - max_tokens + 1 :]))
        # A copy, because a view would keep all tokens in memory, in the prefix cache, too.
        return tokens[n_tokens - max_tokens :].copy()

    def _encode_end(self, texts: list[str], max_tokens: int) -> list[bytes]:
        """Return the end of the joined texts as UTF-8, one item for each text.

        The maximum size of the end is the number of bytes that `max_tokens` tokens can have, or
        that the `n_ctx` tokens of a context can have if `max_tokens` is 0 or larger than `n_ctx`.
        If the end begins in the middle of one of `texts`, the first item is the rest of this text.
        Texts before the end are left out; they are not encoded, so they cost no time.

        Raises:
            ContextLengthError: `max_tokens` is 0, and the texts are longer than this size.
        """
        n_tokens = min(max_tokens or self._n_ctx, self._n_ctx)
        max_bytes = MAX_BYTES_PER_TOKEN * n_tokens + _SPARE_BYTES
        n_left = max_bytes
        encoded: list[bytes] = []
        for text in reversed(texts):
            part = text[-n_left - 1 :].encode(errors="replace")
            if len(part) > n_left:
                if not max_tokens:
                    raise ContextLengthError(
                        f"is too long: more than {max_bytes:,} bytes > {self._n_ctx - 1} tokens maximum",
                        field="text",
                        remedy="shorten it, or set max_input_tokens to use its end",
                    )
                encoded.append(part[len(part) - n_left :])
                break
            encoded.append(part)
            n_left -= len(part)
        encoded.reverse()
        return encoded

    def _split_runs(self, encoded: bytes) -> list[bytes]:
        return _split_runs(encoded.decode(errors="ignore")) if self._is_bpe else [encoded]

    def _tokenize(
        self, text: bytes, *, add_special: bool, parse_special: bool = True, capacity: int = 0
    ) -> Tokens:
        tokens = np.empty(capacity or len(text) + 8, np.int32)
        n = lib.llama_tokenize(
            self._handle,
            text,
            len(text),
            pointer(tokens, lib.llama_token),
            len(tokens),
            add_special,
            parse_special,
        )
        if n < 0:  # normalization made the text longer; it has -n tokens
            return self._tokenize(
                text, add_special=add_special, parse_special=parse_special, capacity=-n
            )
        return tokens[:n].copy()

    def chat_format(self, template: bytes | None, *, is_extractive: bool) -> ChatFormat:
        """Return the `ChatFormat` of the model with this vocabulary.

        Args:
            template: the chat template in the model's file; None if it has none.
            is_extractive: the value of `ChatFormat.is_extractive`.
        """
        vocabulary = self._handle
        tokens = range(lib.llama_vocab_n_tokens(vocabulary))
        control = []
        user_defined = []
        for token in tokens:
            attributes = lib.llama_vocab_get_attr(vocabulary, token)
            if attributes & lib.LLAMA_TOKEN_ATTR_CONTROL:
                control.append(self._text(token))
            if attributes & _USER_DEFINED:
                user_defined.append(self._text(token))
        return ChatFormat(
            template=None if template is None else template.decode(errors="replace"),
            bos=self._text(lib.llama_vocab_bos(vocabulary)),
            eos=self._text(lib.llama_vocab_eos(vocabulary)),
            eos_token_ids=tuple(
                token for token in tokens if lib.llama_vocab_is_eog(vocabulary, token)
            ),
            control=tuple(control),
            user_defined=tuple(user_defined),
            n_ctx=self._n_ctx,
            is_extractive=is_extractive,
        )

    def _text(self, token: int) -> str:
        if token < 0:
            return ""
        text = lib.llama_vocab_get_text(self._handle, token)
        return str(text.decode(errors="replace"))

    def make_visible(self, texts: Iterable[str]) -> None:
        """Make `piece` return the text of the control tokens that have one of `texts`.

        End-of-turn tokens, and texts that are not exactly one token, are left out.
        """
        for text in texts:
            tokens = self._tokenize(text.encode(), add_special=False)
            if len(tokens) != 1:
                continue
            token = int(tokens[0])
            if not lib.llama_vocab_is_eog(self._handle, token):
                self._pieces[token] = text.encode()

    def piece(self, token: int) -> bytes:
        """Return the bytes of the text of a token.

        A control token has none, unless its text was passed to `make_visible`.
        """
        piece = self._pieces.get(token)
        if piece is None:
            n = -256
            while n < 0:  # the negative number of bytes needed
                buffer = ctypes.create_string_buffer(-n)
                n = lib.llama_token_to_piece(self._handle, token, buffer, len(buffer), 0, False)
            piece = buffer.raw[:n]
            self._pieces[token] = piece
        return piece


def _split_runs(text: str) -> list[bytes]:
    """Encode a text as UTF-8, split after each run of `_MAX_RUN` characters.

    A run has only white space or no white space. A text without such a run is returned in one part.
    """
    if len(text) <= _MAX_RUN:
        return [text.encode()]
    long_runs = [run for run in _RUN.finditer(text) if len(run[0]) == _MAX_RUN]
    boundaries = [0, *(run.end() for run in long_runs), len(text)]
    return [text[start:end].encode() for start, end in itertools.pairwise(boundaries)]
