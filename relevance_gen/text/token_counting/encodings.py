"""Say what an encoding is: its name, the pattern that splits text, and the ranks of its tokens."""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable, Mapping
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import frozen

from relevance_gen.errors import InvalidRequestError, describe, did_you_mean

if TYPE_CHECKING:
    import tiktoken

Encoding: TypeAlias = "str | PathLike[str] | tiktoken.Encoding"
"""The name of an encoding of tiktoken's, the path of a file of ranks, or the encoding itself."""

EMBEDDED: Final = Path(__file__).parents[2] / "assets" / "embedded.tiktoken"

CL100K_PATTERN: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)
O200K_PATTERN: Final = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_PATTERN_OF_FILE: Final = {"o200k_base": O200K_PATTERN}


@frozen
class Definition:
    """What an encoding is.

    Attributes:
        source: what names it, as `token_counter` takes it.
        name: its name; others may have the same.
        pattern: the regular expression that splits text.
        ranks: returns the rank of each token.
        rank_file: returns the ranks in tiktoken's file format.
        encoding: returns tiktoken's object.
    """

    source: Encoding
    name: str
    pattern: str
    ranks: Callable[[], Mapping[bytes, int]]
    rank_file: Callable[[], bytes]
    encoding: Callable[[], tiktoken.Encoding]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of pattern and ranks: two encodings that count differently have different ones."""
        digest = hashlib.sha256(self.pattern.encode())
        # The embedded file is as `_rank_file` writes it: it need not be read and written again, which takes 0.1 s.
        digest.update(self.rank_file() if self.source == EMBEDDED else _rank_file(self.ranks()))
        return digest.hexdigest()


def define(source: Encoding) -> Definition:
    """Find the definition of `source`, a published name if it is a string."""
    match source:
        case PathLike():
            return _define_file(Path(source))
        case str():
            return _define_encoding(source, _published(source))
        case _:
            return _define_encoding(source, source)


def is_tiktoken_encoding(value: object) -> bool:
    """Tell whether `value` is a `tiktoken.Encoding`."""
    import tiktoken

    return isinstance(value, tiktoken.Encoding)


def _define_file(path: Path) -> Definition:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}", "encoding") from None
    ranks = functools.cache(lambda: _parse_ranks(content, path))
    if path != EMBEDDED:
        ranks()  # Refuse a damaged file, whichever library then reads it.
    name = path.name.removesuffix(".tiktoken")
    pattern = _PATTERN_OF_FILE.get(name, CL100K_PATTERN)

    def encoding() -> tiktoken.Encoding:
        import tiktoken

        return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks(), special_tokens={})

    return Definition(path, name, pattern, ranks, lambda: content, encoding)


def _define_encoding(source: Encoding, encoding: tiktoken.Encoding) -> Definition:
    ranks = encoding._mergeable_ranks
    return Definition(
        source,
        encoding.name,
        encoding._pat_str,
        lambda: ranks,
        lambda: _rank_file(ranks),
        lambda: encoding,
    )


def _rank_file(ranks: Mapping[bytes, int]) -> bytes:
    """Write tiktoken's rank format, by rank."""
    pairs = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in pairs)


def _parse_ranks(content: bytes, path: Path) -> dict[bytes, int]:
    """Read tiktoken's rank format: a line for each token, its bytes in base64 and its rank.

    Not by `tiktoken.load`, which copies what it reads to a cache under the file's name and never looks again.
    """
    try:
        pairs = (line.split() for line in content.splitlines())
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError:
        ranks = {}
    if len(set(ranks.values())) < len(ranks) or not all(
        bytes([byte]) in ranks for byte in range(256)
    ):
        allowed = "a file in tiktoken's rank format: a distinct rank for each token, and a token for each byte"
        raise InvalidRequestError.must_be("encoding", allowed, str(path))
    return ranks


def published_names() -> list[str]:
    """Return the names of the encodings that tiktoken knows."""
    import tiktoken

    return tiktoken.list_encoding_names()


def _published(name: str) -> tiktoken.Encoding:
    """Load an encoding that tiktoken knows by name, from its cache or the network."""
    import tiktoken

    try:
        return tiktoken.get_encoding(name)
    except (
        OSError,
        ValueError,
    ) as error:  # requests' errors are OSErrors; a wrong hash is a ValueError
        raise InvalidRequestError(
            f"{name} could not be loaded: {_what_to_do(error)}", "encoding"
        ) from None


def _what_to_do(error: Exception) -> str:
    """Say why tiktoken did not load an encoding, and how to bring its file where there is no network."""
    url = getattr(
        getattr(error, "request", None), "url", None
    )  # requests' errors tell what was asked for
    if url is None:
        return (
            f"{error}; without a network, name a rank file by its path, or set TIKTOKEN_CACHE_DIR to a folder where "
            "tiktoken has stored it"
        )
    kept_as = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    by_path = (
        f'name it by its path, as in encoding="{url.rpartition("/")[2]}", or '
        if url.endswith(".tiktoken")
        else ""
    )
    return (
        f"tiktoken could not fetch {url} ({type(error).__name__}); fetch that file where there is a network and "
        f"{by_path}put it as {kept_as} into the folder that the environment variable TIKTOKEN_CACHE_DIR names"
    )


def modification_time_ns(path: Path) -> int:
    """Return when the file at `path` was last modified, in ns."""
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        known = published_names()
        raise InvalidRequestError(
            f"{describe(str(path))} is neither a known name nor a file",
            field="encoding",
            remedy=did_you_mean(path.name, known, f"the names are {', '.join(known)}"),
        ) from None
