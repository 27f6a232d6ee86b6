"""Small models for the tests, and how they are made."""

from pathlib import Path

TINY = Path(__file__).parent / "tiny.gguf"
BIGRAM = Path(__file__).parent / "bigram.gguf"
