"""Generated texts for tests, equal on every machine."""

from __future__ import annotations

import random

SYLLABLES = "ba be bo da de di fa fo ga go ka ke ki la le lo ma me mo na ne no pa po ra re ri sa se so ta te to".split()


def prose(n_chunks: int, n_words: int, *, seed: int = 0) -> list[str]:
    """Return chunks of generated words, few of them frequent and most of them rare, as in natural languages."""
    rng = random.Random(seed)  # noqa: S311
    words = ["".join(rng.choices(SYLLABLES, k=rng.randint(1, 4))) for _ in range(2000)]
    weights = [1 / (rank + 1) for rank in range(len(words))]
    return [" ".join(rng.choices(words, weights, k=n_words)) for _ in range(n_chunks)]


WITHOUT_SPACE = {
    "letters": "a",
    "camel": "aA",
    "snake": "a_",
    "base64": "Zm9vYmFyMTIzNDU2Nzg5MHF1eA",
    "accents": "é",
    "Chinese": "中文字符測試",
    "Thai": "สวัสดีชาวโลก",
    "Hangul apart": "\u1112\u1161\u11ab",
    "emoji": "😀",
    "surrogates": "\ud800",
    "marks": "\u0301\u0316",
    "marks on й": "и\u0306\u0316\u0306",
    "ligatures": "ﷺ",
    "control": "\x00\x1f",
}
"""Texts to repeat, by name."""


def without_space(name: str, n_chars: int) -> str:
    """Repeat one of `WITHOUT_SPACE` to a text of `n_chars` characters."""
    unit = WITHOUT_SPACE[name]
    return (unit * (n_chars // len(unit) + 1))[:n_chars]
