"""Count the tokens of texts under an encoding."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Final, Literal, TypeAlias

from relevance_gen.checks import string
from relevance_gen.errors import InvalidRequestError
from relevance_gen.forks import LazyAttribute
from relevance_gen.text.token_counting.backends import Count, GigatokenBackend, by_tiktoken
from relevance_gen.text.token_counting.encodings import (
    EMBEDDED,
    Encoding,
    EncodingDefinition,
    define,
    is_tiktoken_encoding,
    modification_time_ns,
    published_names,
)

Backend: TypeAlias = Literal["gigatoken", "tiktoken"]

PIECE_CHARS: Final = 1 << 18
"""Longest text that is counted at once. tiktoken's regular expressions fail on a run of about a
million characters of one kind, so this is well below; it also bounds the memory of a count."""

_SPLIT_WINDOW_CHARS: Final = 1 << 12
"""Number of characters before `PIECE_CHARS` that are searched for a position to split."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_BATCH_CHARS: Final = 1 << 20
"""Approximate number of characters that are passed to tiktoken or gigatoken at once, which bounds
the token ids held in memory."""


class TokenCounter:
    """Counts the tokens of texts under one encoding; made by `token_counter`. Thread-safe.

    The text of a special token, such as ``<|endoftext|>``, is ordinary text. A surrogate pair
    counts as its character and a lone surrogate as U+FFFD. A text of more than `PIECE_CHARS`
    characters is divided into pieces, and counts as the sum of its pieces. Each piece has at most
    `PIECE_CHARS` characters, and ends before the last possible space that follows a character other
    than white space. The split patterns of the published encodings break at that position, too, so
    that the sum is the count of the text. If the last 4,096 characters of a piece lack such a
    space, the piece ends after `PIECE_CHARS` characters.

    Attributes:
        name: the encoding's name.
        fingerprint: a hash of the definition of the encoding: encodings that count differently have
            different hashes.
        backend: the library that counts, ``"gigatoken"`` or ``"tiktoken"``; the counts are the
            same.
    """

    def __init__(
        self,
        definition: EncodingDefinition,
        backend: Backend | None = None,
    ) -> None:
        self.name = definition.name
        self._definition = definition
        self._requested_backend = backend

    def __repr__(self) -> str:
        return f"<TokenCounter {self.name} by {self.backend}>"

    def __reduce__(self) -> tuple[object, ...]:
        source = self._definition.source
        return token_counter, (None if source == EMBEDDED else source,)

    @LazyAttribute
    def _loaded(self) -> tuple[Backend, Count]:
        """The name of the library that counts, and its function; loaded on first use, in 0.1 s.

        Raises:
            InvalidRequestError: the caller requested gigatoken, and it cannot count this encoding.
        """
        definition = self._definition
        if self._requested_backend != "tiktoken":
            try:
                return "gigatoken", GigatokenBackend(definition)
            # Not installed; unknown split pattern; no temporary file; unsupported ranks (r50k and
            # p50k have gaps).
            except (ImportError, LookupError, OSError, RuntimeError) as error:
                if self._requested_backend == "gigatoken":
                    rule = f"must support {definition.name}, but gigatoken cannot ({error})"
                    raise InvalidRequestError(rule, "backend") from None
        return "tiktoken", by_tiktoken(definition.encoding())

    @property
    def backend(self) -> Backend:  # noqa: D102 described with the class
        return self._loaded[0]

    @property
    def is_loaded(self) -> bool:
        """Whether the library that counts has been loaded for this counter."""
        return "_loaded" in vars(self)

    @property
    def fingerprint(self) -> str:  # noqa: D102 described with the class
        return self._definition.fingerprint

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`.

        Raises:
            InvalidRequestError: it is not a string.

        >>> token_counter().count("What is machine learning?")
        5
        """
        string.check("text", text)
        if len(text) > PIECE_CHARS:
            return self.count_all([text])
        return self._count_batch([text])

    def count_all(self, texts: Iterable[str]) -> int:
        """Return the sum of the numbers of tokens of the texts."""
        return sum(map(self._count_batch, _batches(texts)))

    def _count_batch(self, texts: list[str]) -> int:
        _, count = self._loaded
        try:
            return count(texts)
        except (UnicodeEncodeError, TypeError):  # errors of tiktoken and gigatoken for surrogates
            return count(list(map(_well_formed, texts)))


def token_counter(
    encoding: Encoding | None = None, *, backend: Backend | None = None
) -> TokenCounter:
    """Return the counter of an encoding; the last eight counters are cached.

    Args:
        encoding: ``None`` for the encoding in this package, which needs no network; the name of a
            tiktoken encoding, such as ``"o200k_base"``, which tiktoken downloads on first use; the
            path of a rank file in tiktoken's format, read with the cl100k split pattern (a file
            named ``o200k_base`` with its own pattern); or a `tiktoken.Encoding`.
        backend: the library to count with; by default gigatoken if it is installed and supports the
            encoding's split pattern, otherwise tiktoken. Both give the same counts.

    Raises:
        InvalidRequestError: the name is unknown, or the encoding or the backend cannot be loaded.
    """
    if backend not in (None, "gigatoken", "tiktoken"):
        raise InvalidRequestError.must_be("backend", '"gigatoken", "tiktoken" or None', backend)
    if encoding is None:
        return _counter(EMBEDDED, 0, backend)
    if isinstance(encoding, str) and encoding in published_names():
        return _counter(encoding, 0, backend)
    if isinstance(encoding, str | PathLike) and encoding != "":
        path = Path(encoding)
        modified_ns = modification_time_ns(path)  # an error has the path as the caller wrote it
        return _counter(path.absolute(), modified_ns, backend)
    if not is_tiktoken_encoding(encoding):
        raise InvalidRequestError.must_be(
            "encoding", "a name, a path or a tiktoken.Encoding", encoding
        )
    return _counter(encoding, 0, backend)


def counter_of_saved(
    name: str,
    fingerprint: str,
    encoding: Encoding | None,
    path: str | PathLike[str],
) -> TokenCounter:
    """Return the counter of the encoding that counted the tokens of a saved index.

    Args:
        name: name of the encoding in the index.
        fingerprint: fingerprint of the encoding in the index.
        encoding: the caller's encoding; None for the encoding in this package or a published
            encoding, by `name`.
        path: path of the index, for errors.

    Raises:
        InvalidRequestError: the encoding differs from that of the index, or cannot be loaded.
    """
    if encoding is None and name != token_counter().name:
        encoding = name
    counter = token_counter(encoding)
    if counter.name != name or counter.fingerprint != fingerprint:
        other = "another encoding of that name" if counter.name == name else counter.name
        rule = f"must be {name}, the encoding that {path} was saved with"
        raise InvalidRequestError(rule, "encoding", other)
    return counter


@functools.lru_cache(maxsize=8)
def _counter(
    source: Encoding,
    _modified: int,
    backend: Backend | None,
) -> TokenCounter:
    """Return the counter of an encoding; the cache distinguishes files by modification time.

    Args:
        source: the path of a rank file, the name of a published encoding, or a `tiktoken.Encoding`.
        _modified: modification time of the rank file in ns; 0 for the file in this package, and for
            other sources.
        backend: as for `token_counter`.

    Raises:
        InvalidRequestError: the encoding or the backend cannot be loaded.
    """
    counter = TokenCounter(define(source), backend)
    if source != EMBEDDED or backend is not None:
        counter.count("")  # raises an error if the encoding cannot be loaded
    return counter


# ── Long texts and surrogates ─────────────────────────────────────────────────────────────────────


def _well_formed(text: str) -> str:
    """Return a text with its surrogate pairs joined and each lone surrogate replaced by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Yield texts, and the pieces of long texts, in batches of about `_BATCH_CHARS` characters.

    A batch ends with the text or piece that reaches `_BATCH_CHARS`; the last batch can be smaller.
    """
    batch: list[str] = []
    n_chars = 0
    for text in texts:
        pieces: Iterable[str] = (text,)
        if len(text) > PIECE_CHARS:
            pieces = _pieces(_well_formed(text) if _SURROGATE.search(text) else text)
        for piece in pieces:
            batch.append(piece)
            n_chars += len(piece)
            if n_chars >= _BATCH_CHARS:
                yield batch
                batch = []
                n_chars = 0
    if batch:
        yield batch


def _pieces(text: str) -> Iterator[str]:
    """Divide a long text as `TokenCounter` describes; yield pieces of at most `PIECE_CHARS`."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        end = start + PIECE_CHARS
        low = end - _SPLIT_WINDOW_CHARS
        split = text.rfind(" ", low, end)
        while split >= 0 and text[split - 1].isspace():
            split = text.rfind(" ", low, split)
        if split < 0:
            split = end
        yield text[start:split]
        start = split
    yield text[start:]
