"""Train the embedded encoding: byte-level BPE over the corpus, written in tiktoken's rank format.

    python tools/embedded_model/train_encoding.py BUILD relevance_gen/assets/embedded.tiktoken

Ranks 0-255 are the bytes in tiktoken's usual order, so that any string can be encoded; every later
rank is a merge, in the order the trainer chose them. Training is deterministic: a second run writes
the same file.
"""

from __future__ import annotations

import argparse
import base64
import json
from pathlib import Path
from typing import TYPE_CHECKING

from sources import ENCODING_GROUPS
from tokenizers import Regex, Tokenizer, models, pre_tokenizers, trainers

if TYPE_CHECKING:
    from collections.abc import Iterator

# cl100k_base's split without possessive quantifiers, which the trainer's regex engine reads
# differently.
CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
N_TOKENS = 55_296
PIECE_CHARACTERS = 20_000  # the trainer takes a text as one unit of work


def byte_characters() -> dict[str, int]:
    """Return GPT-2's printable character for each byte, used in the trainer's vocabulary."""
    shown = [
        *range(ord("!"), ord("~") + 1),
        *range(ord("¡"), ord("¬") + 1),
        *range(ord("®"), ord("ÿ") + 1),
    ]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {
        chr(256 + i): byte for i, byte in enumerate(hidden)
    }


def pieces(build: Path) -> Iterator[str]:
    """Yield the whole corpus in pieces cut at line ends."""
    for group in ENCODING_GROUPS:
        with (build / "corpus" / f"{group}.jsonl").open(encoding="utf-8") as lines:
            for line in lines:
                text = json.loads(line)["text"]
                start = 0
                while start < len(text):
                    stop = text.find("\n", start + PIECE_CHARACTERS) + 1 or len(text)
                    yield text[start:stop]
                    start = stop


def train(build: Path, n_tokens: int) -> list[bytes]:
    """Train the merges and return every token's bytes in rank order."""
    characters = byte_characters()
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(CL100K_PATTERN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=n_tokens,
        initial_alphabet=list(characters),
        max_token_length=32,
        show_progress=False,
    )
    tokenizer.train_from_iterator(pieces(build), trainer)
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda item: item[1])
    merged = [bytes(characters[c] for c in token) for token, _ in by_id if len(token) > 1]
    return [bytes([byte]) for byte in characters.values()] + merged


def write_ranks(tokens: list[bytes], path: Path) -> None:
    """Write "base64 rank" lines."""
    lines = [f"{base64.b64encode(token).decode()} {rank}\n" for rank, token in enumerate(tokens)]
    path.write_text("".join(lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="the folder given to corpus.py")
    parser.add_argument("output", type=Path)
    parser.add_argument("--tokens", type=int, default=N_TOKENS)
    arguments = parser.parse_args()
    write_ranks(train(arguments.build, arguments.tokens), arguments.output)
