"""Text to tokens and back, by a model's own vocabulary."""

from __future__ import annotations

import ctypes
import itertools
import re
from collections.abc import Iterable
from typing import Any

import numpy as np

from relevance_gen.errors import InvalidRequestError
from relevance_gen.llama.language_model import (
    MOST_BYTES_PER_TOKEN,
    TOKEN_BOUNDARY,
    ChatFormat,
    Tokens,
)
from relevance_gen.llama.runtime.library import lib, pointer

_SPARE_BYTES = 1 << 16
"""What a text may have beside `MOST_BYTES_PER_TOKEN`; of a longer one only the end is looked at, if it is wanted."""
_USER_DEFINED = lib.LLAMA_TOKEN_ATTR_USER_DEFINED | lib.LLAMA_TOKEN_ATTR_UNKNOWN
_MAX_RUN = 8_000
_RUNS = re.compile(rf"\S{{1,{_MAX_RUN}}}|\s{{1,{_MAX_RUN}}}")
"""Characters without a break that a BPE tokenizer may see. Those of many models (tekken, gpt-4o, deepseek, bloom …) run
std::regex over them, which recurses at every character and overflows an 8 MiB stack between 16,000 and 32,000."""


class Tokenizer:
    """The vocabulary of a loaded model, llama.cpp's `handle`, which must outlive it.

    A context holds `n_ctx` tokens: text far beyond is refused without being tokenized.
    """

    def __init__(self, handle: Any, n_ctx: int) -> None:
        self._handle = handle
        self._n_ctx = n_ctx
        self._is_bpe = lib.llama_vocab_type(handle) == lib.LLAMA_VOCAB_TYPE_BPE
        self._pieces: dict[int, bytes] = {}

    def tokenize(self, text: str, max_tokens: int) -> Tokens:
        """Return the tokens of `text`, with the BOS token where the model wants one; lone surrogates count as "?".

        Only the last `max_tokens`, the BOS token included, are kept where that is not 0. It raises an
        `InvalidRequestError` where the text is far beyond what the context could hold.
        """
        return self._tokenize_all([text], max_tokens, add_special=True)

    def tokenize_chat(self, text: str, max_tokens: int) -> Tokens:
        """Do as `tokenize` for a rendered conversation, which has `TOKEN_BOUNDARY` where tokens must not reach across.

        Its template wrote the BOS token itself, if there is to be one.
        """
        return self._tokenize_all(text.split(TOKEN_BOUNDARY), max_tokens, add_special=False)

    def tokenize_beginning(self, text: str) -> Tokens:
        """Return the first tokens of `text`, as many as the context holds, between those that begin and end a text.

        What reads like a control token is plain text here, and lone surrogates count as "?".
        """
        before, behind = self.around()
        inside = self.tokenize_plain(text[: MOST_BYTES_PER_TOKEN * self._n_ctx + _SPARE_BYTES])
        return np.concatenate((before, inside[: self._n_ctx - len(before) - len(behind)], behind))

    def around(self) -> tuple[Tokens, Tokens]:
        """Return the tokens that begin a text and those that end it."""
        around = self._tokenize(b"", add_special=True, parse_special=False)
        n_before = 1 if len(around) == 2 else int(lib.llama_vocab_get_add_bos(self._handle))
        return around[:n_before], around[n_before:]

    def tokenize_plain(self, text: str, *, parse_special: bool = False) -> Tokens:
        """Return the tokens of `text`, of whatever length, and none that begins or ends one.

        Lone surrogates count as "?"; what reads like a control token is one only if `parse_special`.
        """
        parts = self._parts(text.encode(errors="replace"))
        return np.concatenate(
            [self._tokenize(part, add_special=False, parse_special=parse_special) for part in parts]
        )

    def _tokenize_all(self, texts: list[str], max_tokens: int, *, add_special: bool) -> Tokens:
        """Tokenize each of `texts` for itself, and return the tokens of all, or the last `max_tokens`."""
        n_wanted = min(max_tokens or self._n_ctx, self._n_ctx)
        most_bytes = room = MOST_BYTES_PER_TOKEN * n_wanted + _SPARE_BYTES
        encoded: list[bytes] = []
        for text in reversed(texts):
            part = text[-room - 1 :].encode(errors="replace")
            if len(part) > room:  # it cannot fit, so it shall cost no time
                if not max_tokens:
                    raise InvalidRequestError(
                        f"must hold at most {most_bytes:,} bytes for a context of {self._n_ctx} tokens",
                        field="text",
                        got="more",
                        remedy="shorten it, or set max_input_tokens to use its end",
                    )
                encoded.append(part[len(part) - room :])
                break
            encoded.append(part)
            room -= len(part)
        parts = [part for whole in reversed(encoded) for part in self._parts(whole)]
        tokens = np.concatenate(
            [
                self._tokenize(part, add_special=add_special and not n)
                for n, part in enumerate(parts)
            ]
        )
        n = len(tokens)
        if max_tokens == 0 or n <= max_tokens:
            return tokens
        if lib.llama_vocab_get_add_bos(self._handle) and tokens[0] == lib.llama_vocab_bos(
            self._handle
        ):
            return np.concatenate((tokens[:1], tokens[n - max_tokens + 1 :]))
        return tokens[
            n - max_tokens :
        ].copy()  # a view would keep them all, in the prefix cache too

    def _parts(self, encoded: bytes) -> list[bytes]:
        return _parts(encoded.decode(errors="ignore")) if self._is_bpe else [encoded]

    def _tokenize(
        self, text: bytes, *, add_special: bool, parse_special: bool = True, room: int = 0
    ) -> Tokens:
        tokens = np.empty(room or len(text) + 8, np.int32)
        kept = pointer(tokens, lib.llama_token)
        n = lib.llama_tokenize(
            self._handle, text, len(text), kept, len(tokens), add_special, parse_special
        )
        if n < 0:  # normalizing made the text longer
            return self._tokenize(
                text, add_special=add_special, parse_special=parse_special, room=-n
            )
        return tokens[:n].copy()

    def chat_format(self, template: bytes | None, *, copies_only: bool) -> ChatFormat:
        """Return what writing a prompt needs to know, beside what else the model's file says."""
        vocabulary = self._handle
        tokens = range(lib.llama_vocab_n_tokens(vocabulary))
        attributes = [lib.llama_vocab_get_attr(vocabulary, token) for token in tokens]
        return ChatFormat(
            template=None if template is None else template.decode(errors="replace"),
            bos=self._text(lib.llama_vocab_bos(vocabulary)),
            eos=self._text(lib.llama_vocab_eos(vocabulary)),
            ends=tuple(token for token in tokens if lib.llama_vocab_is_eog(vocabulary, token)),
            control=tuple(
                self._text(token)
                for token in tokens
                if attributes[token] & lib.LLAMA_TOKEN_ATTR_CONTROL
            ),
            user_defined=tuple(
                self._text(token) for token in tokens if attributes[token] & _USER_DEFINED
            ),
            n_ctx=self._n_ctx,
            copies_only=copies_only,
        )

    def _text(self, token: int) -> str:
        return (
            ""
            if token < 0
            else lib.llama_vocab_get_text(self._handle, token).decode(errors="replace")
        )

    def show(self, texts: Iterable[str]) -> None:
        """Let control tokens with these texts print them, but for those that end a turn."""
        for text in texts:
            tokens = self._tokenize(text.encode(), add_special=False)
            if len(tokens) == 1 and not lib.llama_vocab_is_eog(self._handle, int(tokens[0])):
                self._pieces[int(tokens[0])] = text.encode()

    def piece(self, token: int) -> bytes:
        """Return the bytes that a token prints; control tokens that are not shown print nothing."""
        piece = self._pieces.get(token)
        if piece is None:
            n = -256
            while n < 0:  # so many bytes are needed
                buffer = ctypes.create_string_buffer(-n)
                n = lib.llama_token_to_piece(self._handle, token, buffer, len(buffer), 0, False)
            piece = self._pieces[token] = buffer.raw[:n]
        return piece


def _parts(text: str) -> list[bytes]:
    """Cut a text wherever `_MAX_RUN` characters stand without a break; an ordinary text is one part."""
    if len(text) <= _MAX_RUN:
        return [text.encode()]
    cuts = [run.end() for run in _RUNS.finditer(text) if run.end() - run.start() == _MAX_RUN]
    return [text[start:end].encode() for start, end in itertools.pairwise([0, *cuts, len(text)])]
