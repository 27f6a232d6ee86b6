"""Check that llama.cpp computes from the GGUF what PyTorch computes from the checkpoint.

    python tools/embedded_model/check_gguf.py BUILD

Exports F32 and Q8_0 from the last checkpoint and compares tokens on held-out and odd strings, and
logits on held-out text.
"""

from __future__ import annotations

import argparse
import random
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
from export_gguf import export, load
from llama import Llama
from tokenizers import Tokenizer
from train_vocabulary import BEGIN_ID

N_ODD_STRINGS = 2000
ALPHABET = "abcXYZ 019 \n\t'.,!?-_()éßЖ中あ한ก😀\u200d\u00a0"


def main(build: Path) -> None:
    """Print the differences; raise AssertionError where the largest (F32) or the mean (Q8_0) is too large."""
    vocabulary = build / "vocabulary.json"
    tokenizer = Tokenizer.from_file(str(vocabulary))
    model = load(build)
    lines = (build / "prose" / "held_out.txt").read_text().split("\n")
    draw = random.Random(0)
    odd = ["".join(draw.choices(ALPHABET, k=draw.randrange(30))) for _ in range(N_ODD_STRINGS)]
    with tempfile.TemporaryDirectory() as folder:
        for kind, bound in (
            (gguf.GGMLQuantizationType.F32, 1e-3),
            (gguf.GGMLQuantizationType.Q8_0, 0.1),
        ):
            path = Path(folder) / f"{kind.name}.gguf"
            export(model, vocabulary, path, kind)
            llama = Llama(path)
            for text in [*lines, *odd]:
                expected = tokenizer.encode(text).ids
                assert llama.tokens(text, add_special=False) == expected, text
                assert llama.text(expected) == text, text
            differences = []
            for start in range(0, 200, 10):
                tokens = [BEGIN_ID, *tokenizer.encode("\n".join(lines[start : start + 10])).ids][
                    :500
                ]
                with torch.no_grad():
                    wanted = model(torch.tensor([tokens]))[0].numpy()
                differences.append(np.abs(llama.decode(tokens, every=True) - wanted).ravel())
            found = np.concatenate(differences)
            print(
                f"{kind.name}: {path.stat().st_size:,} bytes, tokens equal on {len(lines) + len(odd):,} strings, "
                f"logits differ by {found.mean():.2g} on average, {found.max():.2g} at most"
            )
            assert (found.max() if kind == gguf.GGMLQuantizationType.F32 else found.mean()) <= bound


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path, help="the folder given to corpus.py")
    main(parser.parse_args().build)
