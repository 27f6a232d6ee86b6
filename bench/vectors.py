"""An encoder that keeps the vectors of texts in files between two runs of a bench."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from relevance_gen import Encoder

_KEY_BYTES = 20
_AT_ONCE = 64


class KeptEncoder:
    """An encoder that caches vectors, so that each text is encoded once for all runs.

    Args:
        encoder: the encoder.
        folder: the cache folder, with a file of keys and a file of vectors per model.

    Attributes:
        encoder: the encoder without a cache.
    """

    def __init__(self, encoder: Encoder, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.encoder = encoder
        self.fingerprint, self.n_dims = encoder.fingerprint, encoder.n_dims
        self.passage_tokens, self.count_tokens = encoder.passage_tokens, encoder.count_tokens
        self._keys, self._rows = (
            folder / f"{encoder.fingerprint[:16]}.{part}" for part in ("keys", "vectors")
        )
        self._kept: dict[bytes, Any] = {}
        if self._keys.exists():
            keys = self._keys.read_bytes()
            rows = np.fromfile(self._rows, np.float32).reshape(-1, self.n_dims)
            starts = range(0, len(keys), _KEY_BYTES)
            self._kept = {
                keys[start : start + _KEY_BYTES]: row
                for start, row in zip(starts, rows, strict=False)
            }

    def encode(
        self,
        texts: Iterable[str],
        *,
        kind: Any = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Any:
        """Return the vectors of texts, shape (n, n_dims)."""
        texts = list(texts)
        keys = [hashlib.sha1(f"{kind}\n{text}".encode(errors="replace")).digest() for text in texts]  # noqa: S324
        new = list(
            {
                key: text for key, text in zip(keys, texts, strict=True) if key not in self._kept
            }.items()
        )
        for start in range(0, len(new), _AT_ONCE):
            some = new[start : start + _AT_ONCE]
            rows = self.encoder.encode([text for _, text in some], kind=kind)
            with self._rows.open("ab") as vectors, self._keys.open("ab") as names:
                vectors.write(rows.tobytes())
                names.write(b"".join(key for key, _ in some))
            self._kept |= zip((key for key, _ in some), rows, strict=True)
            if progress is not None:
                progress(start + len(some), len(new))
        return np.array([self._kept[key] for key in keys], np.float32).reshape(-1, self.n_dims)
