"""Token counts: how many tokens of an encoding a text is. The only importer of tiktoken and gigatoken."""

from __future__ import annotations

import base64
import difflib
import functools
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import Future
from os import PathLike
from pathlib import Path
from threading import Lock, Thread
from typing import TYPE_CHECKING, Literal, TypeAlias

from attrs import frozen

from relevance_gen.errors import InvalidRequestError, shown

if TYPE_CHECKING:
    import tiktoken

Encoding: TypeAlias = "str | PathLike[str] | tiktoken.Encoding"
Backend: TypeAlias = Literal["gigatoken", "tiktoken"]
_Count: TypeAlias = Callable[[list[str]], int]

PIECE_CHARS = 1 << 18
"""Longest text that is counted whole. tiktoken's regular expressions fail on a run of about a million characters of
one kind, so this keeps well away from that, and it bounds the memory that one count takes."""

_REACH_CHARS = 1 << 12
"""How far back from `PIECE_CHARS` a place to cut is looked for."""

_EMBEDDED = Path(__file__).parent / "assets" / "embedded.tiktoken"

_CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
_O200K_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_GIGATOKEN_SCHEMES = {_CL100K_PATTERN: "gpt4", _O200K_PATTERN: "o200k"}
_PATTERN_OF_FILE = {"o200k_base": _O200K_PATTERN}

_BATCH_CHARS = 1 << 22
"""Texts are handed to the library in batches of about so many characters: it bounds the ids held at once."""

_LITTLE_CHARS = 1 << 20
"""Less text than this gigatoken counts text by text, in a few milliseconds and under the interpreter's lock. A batch
comes back as an awkward array, and importing awkward alone takes 0.2 s."""

_RENEW_AFTER_CHARS = 1 << 25
"""gigatoken keeps every distinct word it has met, 1.4 GiB after 200 million characters of ever-new words, and cannot be
told to forget. A new one after this much text keeps that below 400 MiB, and below 50 on prose and code, for a load of
40 ms; after twice as much, 600 MiB."""


class TokenCounter:
    """Count the tokens of texts under one encoding; made by `token_counter`. Safe to share between threads.

    Special-token text such as ``<|endoftext|>`` is ordinary text. A surrogate pair counts as its character and a lone
    surrogate as U+FFFD. A text of more than `PIECE_CHARS` characters counts as the sum of its pieces: each is cut
    before the last space that follows a character other than white space, where the split patterns of the published
    encodings break anyway, so that the sum is the count of the whole text. Only if there is no such space among the
    last 4,096 characters of a piece, the cut falls at `PIECE_CHARS`.

    Attributes:
        name: the encoding's name.
        backend: the library that counts, ``"gigatoken"`` or ``"tiktoken"``; the counts are the same.
    """

    def __init__(self, name: str, backend: Backend, count_pieces: _Count) -> None:
        self.name = name
        self.backend = backend
        self._count_pieces = count_pieces
        self._aside_from_chars = _LITTLE_CHARS if backend == "gigatoken" else 0

    def __repr__(self) -> str:
        return f"<TokenCounter {self.name} by {self.backend}>"

    def count(self, text: str) -> int:
        """Return the number of tokens in `text`.

        >>> token_counter().count("What is machine learning?")
        5
        """
        return self.count_all([text]) if len(text) > PIECE_CHARS else self._count_batch([text])

    def count_all(self, texts: Iterable[str]) -> int:
        """Return the number of tokens in `texts` together, each counted alone."""
        return sum(map(self._count_batch, _batches(texts)))

    def _count_batch(self, texts: list[str]) -> int:
        try:
            return self._count_pieces(texts)
        except (UnicodeEncodeError, TypeError):  # surrogates, as tiktoken and gigatoken refuse them
            return self._count_pieces([_well_formed(text) for text in texts])

    def count_all_aside(self, texts: Collection[str]) -> Future[int]:
        """Start `count_all`, in a thread of its own where its work is done outside the interpreter's lock."""
        counted: Future[int] = Future()

        def count() -> None:
            try:
                counted.set_result(self.count_all(texts))
            except BaseException as error:
                counted.set_exception(error)

        if sum(map(len, texts)) < self._aside_from_chars:
            count()
        else:
            Thread(target=count, name="relevance_gen token counts", daemon=True).start()
        return counted


def token_counter(encoding: Encoding | None = None, *, backend: Backend | None = None) -> TokenCounter:
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
        return _counter(_EMBEDDED, 0, backend)
    if isinstance(encoding, str) and encoding in _published_names():
        return _counter(encoding, 0, backend)
    if isinstance(encoding, str | PathLike):
        path = Path(encoding).absolute()
        return _counter(path, _modified(path), backend)
    if not _is_tiktoken_encoding(encoding):
        raise InvalidRequestError.must_be("encoding", "a name, a path or a tiktoken.Encoding", encoding)
    return _counter(encoding, 0, backend)


@functools.lru_cache(maxsize=8)
def _counter(source: Encoding, _modified: int, backend: Backend | None) -> TokenCounter:
    """Make the counter of a published name, of a file as it was when last modified, or of a tiktoken encoding."""
    definition = _define(source)
    if backend != "tiktoken":
        try:
            return TokenCounter(definition.name, "gigatoken", _Gigatoken(definition))
        # Not installed; no such split pattern; no temporary file; ranks it does not read (gaps in r50k's and p50k's).
        except (ImportError, LookupError, OSError, RuntimeError) as error:
            if backend == "gigatoken":
                message = f"backend must be one that can count {definition.name}: gigatoken cannot ({error})"
                raise InvalidRequestError(message, field="backend") from None
    return TokenCounter(definition.name, "tiktoken", _tiktoken(definition.encoding()))


# ── What an encoding is ──────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class _Definition:
    """An encoding: its name, the pattern that splits text, and its ranks in either form, made when asked for."""

    name: str
    pattern: str
    rank_file: Callable[[], bytes]
    encoding: Callable[[], tiktoken.Encoding]


def _define(source: Encoding) -> _Definition:
    """Find the definition of `source`, a published name if it is a string."""
    match source:
        case PathLike():
            return _define_file(Path(source))
        case str():
            return _define_encoding(_published(source))
        case _:
            return _define_encoding(source)


def _is_tiktoken_encoding(value: object) -> bool:
    import tiktoken

    return isinstance(value, tiktoken.Encoding)


def _define_file(path: Path) -> _Definition:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"encoding {path} cannot be read: {error.strerror}", field="encoding") from None
    ranks = functools.cache(lambda: _parse_ranks(content, path))
    if path != _EMBEDDED:
        ranks()  # Refuse a damaged file, whichever library then reads it.
    name = path.name.removesuffix(".tiktoken")
    pattern = _PATTERN_OF_FILE.get(name, _CL100K_PATTERN)

    def encoding() -> tiktoken.Encoding:
        import tiktoken

        return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks(), special_tokens={})

    return _Definition(name, pattern, lambda: content, encoding)


def _define_encoding(encoding: tiktoken.Encoding) -> _Definition:
    def rank_file() -> bytes:
        ranks = sorted(encoding._mergeable_ranks.items(), key=lambda item: item[1])
        return b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in ranks)

    return _Definition(encoding.name, encoding._pat_str, rank_file, lambda: encoding)


def _parse_ranks(content: bytes, path: Path) -> dict[bytes, int]:
    """Read tiktoken's rank format: a line for each token, its bytes in base64 and its rank.

    Not by `tiktoken.load`, which copies what it reads to a cache under the file's name and never looks again.
    """
    try:
        pairs = (line.split() for line in content.splitlines())
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError:
        ranks = {}
    if len(set(ranks.values())) < len(ranks) or not all(bytes([byte]) in ranks for byte in range(256)):
        allowed = "a file in tiktoken's rank format: a distinct rank for each token, and a token for each byte"
        raise InvalidRequestError.must_be("encoding", allowed, str(path))
    return ranks


def _published_names() -> list[str]:
    import tiktoken

    return tiktoken.list_encoding_names()


def _published(name: str) -> tiktoken.Encoding:
    """Load an encoding that tiktoken knows by name, from its cache or the network."""
    import tiktoken

    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
        message = (
            f"encoding {name} could not be loaded: {error}; without a network, name a rank file by its path, or set "
            "TIKTOKEN_CACHE_DIR to a folder where tiktoken has stored it"
        )
        raise InvalidRequestError(message, field="encoding") from None


def _modified(path: Path) -> int:
    """Return when the file at `path` was last modified, in ns."""
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        known = _published_names()
        nearest = difflib.get_close_matches(path.name[:80], known, n=1)
        hint = f"did you mean {nearest[0]}?" if nearest else f"the names are {', '.join(known)}"
        raise InvalidRequestError(
            f"encoding {shown(str(path))} is neither a known name nor a file; {hint}", field="encoding"
        ) from None


# ── How each library counts ──────────────────────────────────────────────────────────────────────────────────────────


def _tiktoken(encoding: tiktoken.Encoding) -> _Count:
    def count(texts: list[str]) -> int:
        try:
            return sum(len(encoding.encode_ordinary(text)) for text in texts)
        except BaseException as error:
            # A Rust panic is no Exception, and its class has no name to import.
            if type(error).__name__ == "PanicException":
                message = f"encoding {encoding.name} cannot split or merge this text: {error}"
                raise InvalidRequestError(message, field="encoding") from None
            raise

    return count


class _Gigatoken:
    """Count by gigatoken, with a new tokenizer whenever the old one has read `_RENEW_AFTER_CHARS`."""

    def __init__(self, definition: _Definition) -> None:
        self._scheme = _GIGATOKEN_SCHEMES[definition.pattern]
        self._rank_file = definition.rank_file()
        self._lock = Lock()
        self._renew()

    def _renew(self) -> None:
        from gigatoken import Tokenizer

        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "ranks.tiktoken"
            path.write_bytes(self._rank_file)
            backend = Tokenizer.from_tiktoken(path, self._scheme).backend
        self._encode, self._encode_batch = backend.encode, backend.encode_batch
        self._chars_left = _RENEW_AFTER_CHARS

    def __call__(self, texts: list[str]) -> int:
        with self._lock:  # its cache takes one writer at a time
            return self._count(texts)

    def _count(self, texts: list[str]) -> int:
        n_chars = sum(map(len, texts))
        self._chars_left -= n_chars
        if self._chars_left < 0:
            self._renew()
        if n_chars < _LITTLE_CHARS:
            return sum(len(self._encode(text)) for text in texts)
        # Outside the interpreter's lock, so that other threads go on.
        return int(self._encode_batch(texts, parallel=False).layout.offsets.data[-1])


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
            batch += _pieces(_well_formed(text))
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
