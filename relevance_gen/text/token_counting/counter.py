"""Count how many tokens of an encoding a text is."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Final, Literal, TypeAlias

from relevance_gen.errors import InvalidRequestError
from relevance_gen.text.token_counting.backends import Count, GigatokenBackend, by_tiktoken
from relevance_gen.text.token_counting.encodings import (
    EMBEDDED,
    Definition,
    Encoding,
    define,
    is_tiktoken_encoding,
    modification_time_ns,
    published_names,
)

Backend: TypeAlias = Literal["gigatoken", "tiktoken"]

PIECE_CHARS: Final = 1 << 18
"""Longest text that is counted whole. tiktoken's regular expressions fail on a run of about a million characters of
one kind, so this keeps well away from that, and it bounds the memory that one count takes."""

_REACH_CHARS: Final = 1 << 12
"""How far back from `PIECE_CHARS` a place to cut is looked for."""

_SURROGATE: Final = re.compile("[\ud800-\udfff]")

_BATCH_CHARS: Final = 1 << 20
"""Texts are handed to the library in batches of about so many characters: it bounds the ids held at once."""


class TokenCounter:
    """Count the tokens of texts under one encoding; made by `token_counter`. Safe to share between threads.

    Special-token text such as ``<|endoftext|>`` is ordinary text. A surrogate pair counts as its character and a lone
    surrogate as U+FFFD. A text of more than `PIECE_CHARS` characters counts as the sum of its pieces: each is cut
    before the last space that follows a character other than white space, where the split patterns of the published
    encodings break anyway, so that the sum is the count of the whole text. Only if there is no such space among the
    last 4,096 characters of a piece, the cut falls at `PIECE_CHARS`.

    Attributes:
        name: the encoding's name.
        fingerprint: a hash of what the encoding is: encodings that count differently have different ones.
        backend: the library that counts, ``"gigatoken"`` or ``"tiktoken"``; the counts are the same.
    """

    def __init__(self, definition: Definition, backend: Backend | None = None) -> None:
        self.name = definition.name
        self._definition = definition
        self._wanted = backend

    def __repr__(self) -> str:
        return f"<TokenCounter {self.name} by {self.backend}>"

    def __reduce__(self) -> tuple[object, ...]:
        source = self._definition.source
        return token_counter, (None if source == EMBEDDED else source,)

    @functools.cached_property
    def _loaded(self) -> tuple[Backend, Count]:
        """The library that counts, and its function: loaded when first asked for, which takes 0.1 s."""
        definition = self._definition
        if self._wanted != "tiktoken":
            try:
                return "gigatoken", GigatokenBackend(definition)
            # Not installed; no such split pattern; no temporary file; ranks it does not read (gaps in r50k's, p50k's).
            except (ImportError, LookupError, OSError, RuntimeError) as error:
                if self._wanted == "gigatoken":
                    rule = (
                        f"must be one that can count {definition.name}: gigatoken cannot ({error})"
                    )
                    raise InvalidRequestError(rule, "backend") from None
        return "tiktoken", by_tiktoken(definition.encoding())

    @property
    def backend(self) -> Backend:  # noqa: D102 described with the class
        return self._loaded[0]

    @property
    def _count_pieces(self) -> Count:
        return self._loaded[1]

    @property
    def is_loaded(self) -> bool:
        """Whether the library that counts has been loaded."""
        return "_loaded" in vars(self)

    @property
    def fingerprint(self) -> str:  # noqa: D102 described with the class
        return self._definition.fingerprint

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`.

        Raises:
            InvalidRequestError: it is no string.

        >>> token_counter().count("What is machine learning?")
        5
        """
        if not isinstance(text, str):
            raise InvalidRequestError.must_be("text", "a string", text)
        return self.count_all([text]) if len(text) > PIECE_CHARS else self._count_batch([text])

    def count_all(self, texts: Iterable[str]) -> int:
        """Return the number of tokens in `texts` together, each counted alone."""
        return sum(map(self._count_batch, _batches(texts)))

    def _count_batch(self, texts: list[str]) -> int:
        try:
            return self._count_pieces(texts)
        except (UnicodeEncodeError, TypeError):  # surrogates, as tiktoken and gigatoken refuse them
            return self._count_pieces([_well_formed(text) for text in texts])


def token_counter(
    encoding: Encoding | None = None, *, backend: Backend | None = None
) -> TokenCounter:
    """Return the counter of an encoding, made once and kept.

    Args:
        encoding: ``None`` for the embedded encoding, which needs no network; the name of a tiktoken encoding, such as
            ``"o200k_base"``, which tiktoken downloads on first use; the path of a rank file in tiktoken's format,
            read with the cl100k split pattern (a file named ``o200k_base`` with its own); or a `tiktoken.Encoding`.
        backend: the library to count with; by default gigatoken where it is installed and knows the encoding's
            split pattern, else tiktoken. Both give the same counts.

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
        return _counter(
            path.absolute(), modification_time_ns(path), backend
        )  # an error names the path as it came
    if not is_tiktoken_encoding(encoding):
        raise InvalidRequestError.must_be(
            "encoding", "a name, a path or a tiktoken.Encoding", encoding
        )
    return _counter(encoding, 0, backend)


def counter_of_saved(
    name: str, fingerprint: str, encoding: Encoding | None, path: str | PathLike[str]
) -> TokenCounter:
    """Return the counter of the encoding in which the tokens of the index saved at `path` were counted.

    Name and fingerprint of the encoding are as they were saved; what the caller says it is may be None for the embedded
    encoding and for a published one. It raises an `InvalidRequestError` where that is another one, or cannot be loaded.
    """
    embedded = token_counter()
    if encoding is None and name == embedded.name:
        counter = embedded
    else:
        counter = token_counter(name if encoding is None else encoding)
    if (counter.name, counter.fingerprint) != (name, fingerprint):
        other = "another encoding of that name" if counter.name == name else counter.name
        raise InvalidRequestError(f"must be {name}, as when {path} was saved", "encoding", other)
    return counter


@functools.lru_cache(maxsize=8)
def _counter(source: Encoding, _modified: int, backend: Backend | None) -> TokenCounter:
    """Make the counter of a published name, of a file as it was when last modified, or of a tiktoken encoding."""
    counter = TokenCounter(define(source), backend)
    if source != EMBEDDED or backend is not None:
        counter.count("")  # what cannot be loaded is told now
    return counter


# ── Long texts and broken ones ───────────────────────────────────────────────────────────────────────────────────────


def _well_formed(text: str) -> str:
    """Join surrogate pairs, and replace each lone surrogate by U+FFFD."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _batches(texts: Iterable[str]) -> Iterator[list[str]]:
    """Group texts, and the pieces of long ones, into batches of about `_BATCH_CHARS` characters."""
    batch: list[str] = []
    n_chars = 0
    for text in texts:
        if len(text) <= PIECE_CHARS:
            batch.append(text)
        else:
            batch += _pieces(_well_formed(text) if _SURROGATE.search(text) else text)
        n_chars += len(text)
        if n_chars >= _BATCH_CHARS:
            yield batch
            batch, n_chars = [], 0
    if batch:
        yield batch


def _pieces(text: str) -> Iterator[str]:
    """Cut `text` into pieces of at most `PIECE_CHARS`, by the rule that `TokenCounter` documents."""
    start = 0
    while len(text) - start > PIECE_CHARS:
        end = start + PIECE_CHARS
        cut = text.rfind(" ", end - _REACH_CHARS, end)
        while cut >= 0 and text[cut - 1].isspace():
            cut = text.rfind(" ", end - _REACH_CHARS, cut)
        if cut < 0:
            cut = end
        yield text[start:cut]
        start = cut
    yield text[start:]
