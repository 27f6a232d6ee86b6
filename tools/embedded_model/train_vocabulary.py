"""Train the model's own vocabulary: byte-level BPE with GPT-2's split, saved as BUILD/vocabulary.json.

    python tools/embedded_model/train_vocabulary.py BUILD

Token 0 begins every prompt, token 1 ends a text; the 256 bytes follow, then the merges.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

BEGIN, END = "<|begin|>", "<|end|>"
BEGIN_ID, END_ID = 0, 1
N_TOKENS = 6144
PROMPT_WORDS = ("Context:", "Question:", "Answer:")  # each becomes one token and the colon
N_PROMPT_WORDS = 100_000


def train(build: Path) -> Tokenizer:
    """Train on the prose, sentences with the leading space they have in running text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=N_TOKENS,
        special_tokens=[BEGIN, END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    with (build / "prose" / "train.txt").open() as lines:
        texts = itertools.chain(
            (" " + line.rstrip("\n") for line in lines), PROMPT_WORDS * N_PROMPT_WORDS
        )
        tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    return tokenizer


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("build", type=Path, help="the folder given to corpus.py")
    arguments = parser.parse_args()
    train(arguments.build).save(str(arguments.build / "vocabulary.json"))
