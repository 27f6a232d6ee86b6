"""Count tokens with tiktoken, which defines the encodings, or with gigatoken, which counts faster; counts are equal."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from relevance_gen.errors import InvalidRequestError
from relevance_gen.text.token_counting.encodings import CL100K_PATTERN, O200K_PATTERN, Definition

if TYPE_CHECKING:
    import tiktoken

_log = logging.getLogger(__name__)

Count: TypeAlias = Callable[[list[str]], int]

_GIGATOKEN_SCHEMES: Final = {CL100K_PATTERN: "gpt4", O200K_PATTERN: "o200k"}

_LITTLE_CHARS: Final = 1 << 20
_BATCHES_AFTER_CHARS: Final = 1 << 26
"""gigatoken counts text by text as quickly as in batches, but under the interpreter's lock. A batch comes back as an
awkward array, and importing awkward takes 0.2 s: as long as the counts of so much text, which therefore come first."""

_RENEW_AFTER_TOKENS: Final = 1 << 23
"""gigatoken keeps every distinct word it has met, 1.4 GiB after 200 million characters of ever-new words, and cannot be
told to forget. That takes at most 25 bytes for each token counted, so a new one after this many, some 37 million
characters of English, keeps it below 200 MiB in any script, and below 50 on prose and code, for a load of 40 ms."""


def by_tiktoken(encoding: tiktoken.Encoding) -> Count:
    """Return the function that counts by tiktoken."""

    def count(texts: list[str]) -> int:
        try:
            return sum(len(encoding.encode_ordinary(text)) for text in texts)
        except BaseException as error:
            # A Rust panic is no Exception, and its class has no name to import.
            if type(error).__name__ == "PanicException":
                rule = f"{encoding.name} cannot split or merge this text: {error}"
                raise InvalidRequestError(rule, "encoding") from None
            raise

    return count


@contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    """Lend a path under which `content` can be read: in memory where the system can, so that no disk is needed."""
    if hasattr(os, "memfd_create") and Path("/proc/self/fd").exists():
        with os.fdopen(os.memfd_create("ranks.tiktoken"), "wb") as stream:
            stream.write(content)
            stream.flush()
            yield Path(f"/proc/self/fd/{stream.fileno()}")
        return
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "ranks.tiktoken"
        path.write_bytes(content)
        yield path


class GigatokenBackend:
    """Count by gigatoken, with a new tokenizer whenever the old one has counted `_RENEW_AFTER_TOKENS`."""

    def __init__(self, definition: Definition) -> None:
        self._scheme = _GIGATOKEN_SCHEMES[definition.pattern]
        self._rank_file = definition.rank_file()
        self._lock = Lock()
        self._chars_before_batches = _BATCHES_AFTER_CHARS
        self._renew()

    def _renew(self) -> None:
        """Load a new tokenizer.

        Its first count imports parts of numpy. An interrupt in there would end as a panic of Rust; a thread gets none.
        """
        with ThreadPoolExecutor(1) as thread:
            backend = thread.submit(self._load).result()
        self._encode, self._encode_batch = backend.encode, backend.encode_batch
        self._tokens_left = _RENEW_AFTER_TOKENS

    def _load(self) -> Any:
        from gigatoken import Tokenizer

        with _as_file(self._rank_file) as path:
            backend = Tokenizer.from_tiktoken(path, self._scheme).backend
        backend.encode("numpy")
        return backend

    def __call__(self, texts: list[str]) -> int:
        """Return the number of tokens in all texts together."""
        with self._lock:  # its cache takes one writer at a time
            if self._tokens_left <= 0:
                try:
                    self._renew()
                except (
                    OSError,
                    RuntimeError,
                ) as error:  # there is no file now, or none that can be read
                    self._tokens_left = _RENEW_AFTER_TOKENS
                    _log.warning(
                        "no new gigatoken tokenizer can be loaded (%s); the old one goes on", error
                    )
            n_tokens = self._count(texts)
            self._tokens_left -= n_tokens
            return n_tokens

    def releases_lock(self, n_chars: int) -> bool:
        """Tell whether texts of so many characters together are counted outside the interpreter's lock."""
        return n_chars >= _LITTLE_CHARS and self._chars_before_batches <= 0

    def _count(self, texts: list[str]) -> int:
        n_chars = sum(map(len, texts))
        if not self.releases_lock(n_chars):
            self._chars_before_batches -= n_chars if n_chars >= _LITTLE_CHARS else 0
            return sum(map(len, map(self._encode, texts)))
        # Outside the interpreter's lock, so that other threads go on.
        return int(self._encode_batch(texts, parallel=False).layout.offsets.data[-1])
