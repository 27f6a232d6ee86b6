"""Define the encodings by which tokens are counted.

A definition has a name, the pattern that splits text, and the ranks of the tokens.
"""

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
"""The name of a tiktoken encoding, the path of a rank file, or a `tiktoken.Encoding`."""

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
class EncodingDefinition:
    """The definition of an encoding by which tokens are counted.

    The rank of a token is its number. Of all pairs of neighboring tokens in a text, the pair that
    gives the token with the lowest rank is merged first.

    Attributes:
        source: the name, path or `tiktoken.Encoding` that the definition was made from.
        name: the encoding's name, which is not unique.
        pattern: the regular expression that splits text.
        ranks: a function that returns a mapping from the bytes of each token to its rank.
        rank_file: a function that returns the content of a rank file in tiktoken's format.
        encoding: a function that returns the `tiktoken.Encoding` of this definition.
    """

    source: Encoding
    name: str
    pattern: str
    ranks: Callable[[], Mapping[bytes, int]]
    rank_file: Callable[[], bytes]
    encoding: Callable[[], tiktoken.Encoding]

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of pattern and ranks: definitions that count differently have different hashes."""
        digest = hashlib.sha256(self.pattern.encode())
        # The embedded file equals the output of `_rank_file`; parsing and writing it would take 0.1
        # s.
        content = self.rank_file() if self.source == EMBEDDED else _rank_file(self.ranks())
        digest.update(content)
        return digest.hexdigest()


def define(source: Encoding) -> EncodingDefinition:
    """Return the definition of an encoding.

    Args:
        source: the path of a rank file, the name of a published encoding as a string, or a
            `tiktoken.Encoding`.

    Raises:
        InvalidRequestError: the file cannot be read or is damaged, or tiktoken cannot load the
            encoding.
    """
    if isinstance(source, PathLike):
        return _define_file(Path(source))
    encoding = _published(source) if isinstance(source, str) else source
    ranks = encoding._mergeable_ranks
    return EncodingDefinition(
        source,
        encoding.name,
        encoding._pat_str,
        lambda: ranks,
        lambda: _rank_file(ranks),
        lambda: encoding,
    )


def is_tiktoken_encoding(value: object) -> bool:
    """Return whether `value` is a `tiktoken.Encoding`; imports tiktoken."""
    import tiktoken

    return isinstance(value, tiktoken.Encoding)


def _define_file(path: Path) -> EncodingDefinition:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror}", "encoding") from None
    ranks = functools.cache(lambda: _parse_ranks(content, path))
    if path != EMBEDDED:
        ranks()  # raises an error for a damaged file, for both backends
    name = path.name.removesuffix(".tiktoken")
    pattern = _PATTERN_OF_FILE.get(name, CL100K_PATTERN)

    def encoding() -> tiktoken.Encoding:
        import tiktoken

        return tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks(), special_tokens={})

    return EncodingDefinition(path, name, pattern, ranks, lambda: content, encoding)


def _rank_file(ranks: Mapping[bytes, int]) -> bytes:
    """Return the content of a rank file in tiktoken's format, in the order of the ranks."""
    pairs = sorted(ranks.items(), key=lambda item: item[1])
    return b"".join(b"%b %d\n" % (base64.b64encode(token), rank) for token, rank in pairs)


def _parse_ranks(
    content: bytes,
    path: Path,
) -> dict[bytes, int]:
    """Return the rank of each token in a rank file in tiktoken's format.

    The file has a line for each token: its bytes in base64, and its rank. `tiktoken.load` is not
    used, because it caches files by name and ignores changes.

    Raises:
        InvalidRequestError: the content is not in this format, a rank is repeated, or a byte is not
            a token; the error has the path.
    """
    try:
        pairs = (line.split() for line in content.splitlines())
        ranks = {base64.b64decode(token, validate=True): int(rank) for token, rank in pairs}
    except ValueError:
        ranks = {}
    has_all_bytes = all(bytes([byte]) in ranks for byte in range(256))
    if not has_all_bytes or len(set(ranks.values())) < len(ranks):
        allowed = "a file in tiktoken's rank format: a distinct rank for each token, and a token for each byte"
        raise InvalidRequestError.must_be("encoding", allowed, str(path))
    return ranks


def published_names() -> list[str]:
    """Return the names of the encodings that tiktoken can download."""
    import tiktoken

    return tiktoken.list_encoding_names()


def _published(name: str) -> tiktoken.Encoding:
    """Return tiktoken's encoding with this name, from tiktoken's cache or the network.

    Raises:
        InvalidRequestError: tiktoken cannot load it.
    """
    import tiktoken

    try:
        return tiktoken.get_encoding(name)
    except (OSError, ValueError) as error:  # requests raises OSErrors, a wrong hash a ValueError
        rule = f"{name} could not be loaded: {_load_remedy(error)}"
        raise InvalidRequestError(rule, "encoding") from None


def _load_remedy(error: Exception) -> str:
    """Return why tiktoken did not load an encoding, and how to provide its file without a network.

    Args:
        error: the error that tiktoken raised.
    """
    request = getattr(error, "request", None)  # errors of requests have the request
    url = getattr(request, "url", None)
    if url is None:
        return (
            f"{error}; without a network, name a rank file by its path, or set TIKTOKEN_CACHE_DIR to a folder where "
            "tiktoken has stored it"
        )
    cache_name = hashlib.sha1(url.encode(), usedforsecurity=False).hexdigest()
    by_path = ""
    if url.endswith(".tiktoken"):
        by_path = f'name it by its path, as in encoding="{url.rpartition("/")[2]}", or '
    return (
        f"tiktoken could not fetch {url} ({type(error).__name__}); fetch that file on a machine with a network and "
        f"{by_path}put it as {cache_name} into the folder that the environment variable TIKTOKEN_CACHE_DIR names"
    )


def modification_time_ns(path: Path) -> int:
    """Return the modification time of a file in ns.

    Raises:
        InvalidRequestError: the file does not exist.
    """
    try:
        return path.stat().st_mtime_ns
    except (OSError, ValueError):
        names = published_names()
        raise InvalidRequestError(
            f"{describe(str(path))} is neither a known name nor a file",
            field="encoding",
            remedy=did_you_mean(path.name, names, f"the names are {', '.join(names)}"),
        ) from None
