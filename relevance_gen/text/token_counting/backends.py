"""Count tokens with tiktoken, which defines the encodings, or with gigatoken, which is faster.

The counts are equal.
"""

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
from relevance_gen.text.token_counting.encodings import (
    CL100K_PATTERN,
    O200K_PATTERN,
    EncodingDefinition,
)

if TYPE_CHECKING:
    import tiktoken

_log = logging.getLogger(__name__)

Count: TypeAlias = Callable[[list[str]], int]
"""Returns the number of tokens in all texts together."""

_GIGATOKEN_SCHEMES: Final = {CL100K_PATTERN: "gpt4", O200K_PATTERN: "o200k"}

_MIN_BATCH_CHARS: Final = 1 << 20
_CHARS_BEFORE_BATCHES: Final = 1 << 26
"""gigatoken counts text by text as fast as in batches, but holds the interpreter's lock. The result
of a batch is an awkward array, and importing awkward takes 0.2 s: as long as counting this many
characters, which are therefore counted text by text first."""

_RENEW_AFTER_TOKENS: Final = 1 << 23
"""gigatoken caches every distinct word, 1.4 GiB after 200 million characters of distinct words, and
the cache cannot be cleared. It takes at most 25 bytes for each token counted. A new tokenizer after
this many tokens, about 37 million characters of English, bounds the cache to 200 MiB in any script,
and to 50 MiB for prose and code; loading takes 40 ms."""


def by_tiktoken(encoding: tiktoken.Encoding) -> Count:
    """Return a function that counts with tiktoken the tokens of all texts of a list together."""

    def count(texts: list[str]) -> int:
        try:
            return sum(len(encoding.encode_ordinary(text)) for text in texts)
        except BaseException as error:
            # A Rust panic is not an Exception, and its class cannot be imported.
            if type(error).__name__ == "PanicException":
                rule = f"{encoding.name} cannot split or merge this text: {error}"
                raise InvalidRequestError(rule, "encoding") from None
            raise

    return count


@contextmanager
def _as_file(content: bytes) -> Iterator[Path]:
    """Yield the path of a temporary file with this content, which exists until the context ends.

    The file is in memory if the system supports it.
    """
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
    """Counts the tokens of texts with gigatoken. Thread-safe.

    The tokenizer is replaced after every `_RENEW_AFTER_TOKENS` tokens, because its cache grows.

    Raises:
        ImportError: gigatoken is not installed.
        LookupError: gigatoken does not support the encoding's pattern.
        OSError, RuntimeError: gigatoken cannot read the ranks, or no temporary file can be written.
    """

    def __init__(self, definition: EncodingDefinition) -> None:
        self._scheme = _GIGATOKEN_SCHEMES[definition.pattern]
        self._rank_file = definition.rank_file()
        self._lock = Lock()
        self._chars_before_batches = _CHARS_BEFORE_BATCHES
        self._renew()

    def _renew(self) -> None:
        """Load a new tokenizer, in a thread other than the main thread, and wait for it.

        The tokenizer's first count imports parts of numpy. A KeyboardInterrupt during the import
        would become a Rust panic; only the main thread receives KeyboardInterrupts.
        """
        with ThreadPoolExecutor(1) as executor:
            self._backend = executor.submit(self._load).result()
        self._tokens_left = _RENEW_AFTER_TOKENS

    def _load(self) -> Any:
        from gigatoken import Tokenizer

        with _as_file(self._rank_file) as path:
            backend = Tokenizer.from_tiktoken(path, self._scheme).backend
        backend.encode("numpy")
        return backend

    def __call__(self, texts: list[str]) -> int:
        """Return the number of tokens in all texts together."""
        with self._lock:  # the tokenizer's cache is not thread-safe
            if self._tokens_left <= 0:
                self._try_to_renew()
            n_tokens = self._count(texts)
            self._tokens_left -= n_tokens
            return n_tokens

    def _try_to_renew(self) -> None:
        try:
            self._renew()
        except (OSError, RuntimeError) as error:  # the temporary file cannot be written or read
            self._tokens_left = _RENEW_AFTER_TOKENS
            _log.warning("cannot load a new gigatoken tokenizer (%s); using the old one", error)

    def _count(self, texts: list[str]) -> int:
        n_chars = sum(map(len, texts))
        if n_chars >= _MIN_BATCH_CHARS:
            if self._chars_before_batches <= 0:
                # Releases the interpreter's lock, so that other threads can run.
                encoded = self._backend.encode_batch(texts, parallel=False)
                return int(encoded.layout.offsets.data[-1])
            self._chars_before_batches -= n_chars
        return sum(map(len, map(self._backend.encode, texts)))
