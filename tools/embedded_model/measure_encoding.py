"""Compare the embedded encoding's token counts with cl100k_base's on files of your choice.

    TIKTOKEN_CACHE_DIR=... python tools/embedded_model/measure_encoding.py embedded.tiktoken
    NAME=FILE [NAME=FILE ...]

FILE is plain text or JSON lines with a "text" field, gzipped or not. Prints tokens, bytes a token
and the ratio.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import json
from pathlib import Path

import tiktoken

SAMPLE_CHARACTERS = 4_000_000


def read_ranks(path: Path) -> dict[bytes, int]:
    """Parse a rank file; tiktoken's own loader would keep a copy in its cache and never look at the file again."""
    pairs = (line.split() for line in path.read_text().splitlines())
    return {base64.b64decode(token): int(rank) for token, rank in pairs}


def read(path: Path) -> str:
    """Read up to SAMPLE_CHARACTERS of a file."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as lines:
        text = (
            "\n\n".join(json.loads(line)["text"] for line in lines)
            if ".jsonl" in path.name
            else lines.read()
        )
    return text[:SAMPLE_CHARACTERS]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("ranks", type=Path)
    parser.add_argument("texts", nargs="+")
    arguments = parser.parse_args()
    reference = tiktoken.get_encoding("cl100k_base")
    embedded = tiktoken.Encoding(
        "embedded",
        pat_str=reference._pat_str,
        mergeable_ranks=read_ranks(arguments.ranks),
        special_tokens={},
    )
    print(
        embedded.n_vocab,
        [embedded.decode([t]) for t in embedded.encode_ordinary("What is machine learning?")],
    )
    for argument in arguments.texts:
        name, _, path = argument.partition("=")
        text = read(Path(path))
        n_reference, n_embedded = (
            sum(map(len, e.encode_ordinary_batch(text.split("\n\n"))))
            for e in (reference, embedded)
        )
        n_bytes = len(text.encode())
        print(
            f"{name:14} {n_bytes / 1e6:6.2f} MB  cl100k {n_reference:8}  embedded {n_embedded:8} "
            f"{n_bytes / n_embedded:5.2f} bytes/token  ratio {n_embedded / n_reference:.3f}"
        )
