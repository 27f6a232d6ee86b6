"""Small language models for tests and benchmarks; `small_models.make` creates them.

This module also has the closed form of the bigram model: its vocabulary and its table of logits.
"""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

TINY = Path(__file__).parent / "tiny.gguf"
BIGRAM = Path(__file__).parent / "bigram.gguf"
ENCODER = Path(__file__).parent / "encoder.gguf"
RERANKER = Path(__file__).parent / "reranker.gguf"

STORY = "Once upon a café, ends 🙂! "
"""The text that the model repeats greedily after the letter z."""

_LETTERS = [bytes([c]) for c in range(ord("a"), ord("z") + 1)]
_STORY_PIECES = [
    b"Once",
    b" upon",
    b" a ",
    b"caf",
    b"\xc3",
    b"\xa9,",
    b" en",
    b"ds ",
    b"\xf0\x9f",
    b"\x99",
    b"\x82",
    b"! ",
]
_DIGITS = [f"{n:02d}".encode() for n in range(86)]

BIGRAM_TOKENS: list[bytes] = [b"", b"", *_LETTERS, *_STORY_PIECES, *_DIGITS, b"\n", b"."]
"""The text of each id: two control tokens, letters, 12 pieces of the story, two-digit numbers,
newline, period."""

BOS, END = 0, 1
LETTER_A = 2
LETTER_Z = LETTER_A + 25
STORY_START = LETTER_Z + 1
STORY_LENGTH = len(_STORY_PIECES)


def bigram_table() -> NDArray[np.float32]:
    """Return the logits of the next token, one row for each current token.

    Most rows are broad and random; z is followed by the story's first piece, and each piece by the
    next. Nothing else leads into the story: no draw could ever leave it.
    """
    n_vocab = len(BIGRAM_TOKENS)
    table = np.random.default_rng(20).normal(0.0, 1.5, (n_vocab, n_vocab))
    table[:, LETTER_Z : STORY_START + STORY_LENGTH] = -12.0
    for piece in range(STORY_LENGTH):
        table[STORY_START + piece, STORY_START + (piece + 1) % STORY_LENGTH] = 20.0
    table[LETTER_Z, STORY_START] = 20.0
    return table.astype(np.float32)


def add_chat_template(model: Path, target: Path, template: str) -> None:
    """Write `model` to `target` with a chat template in its file."""
    key, value = b"tokenizer.chat_template", template.encode()
    size = 8 + len(key) + 4 + 8 + len(value)
    value += (
        b"{#" + b" " * (-(size + 4) % 32) + b"#}"
    )  # whole blocks of 32 bytes leave the tensors aligned
    original = model.read_bytes()
    magic, version, n_tensors, n_keys = struct.unpack("<4sIQQ", original[:24])
    entry = struct.pack("<Q", len(key)) + key + struct.pack("<IQ", 8, len(value)) + value
    target.write_bytes(
        struct.pack("<4sIQQ", magic, version, n_tensors, n_keys + 1) + entry + original[24:]
    )
