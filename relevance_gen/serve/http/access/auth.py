"""Authentication: API keys, stored as SHA-256 digests and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

_log = logging.getLogger(__name__)

HEADER = "X-API-Key"

KEY_ID_HEADER = "X-Relevance-Gen-Key-ID"
"""The header in which a worker process sends the id of the client's key to the model process.

Clients cannot reach the model process.
"""

_CHECK_INTERVAL_S = 1.0
"""Minimum seconds between two checks of the key file for changes; each check costs one stat()."""


def digest(key: str) -> bytes:
    """Return the SHA-256 digest of `key`, the only form in which a key is stored."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the key in ``X-API-Key: KEY``, otherwise in ``Authorization: Bearer KEY``.

    None or "" means that the headers have no key.
    """
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    default = bearer.strip() if scheme.lower() == "bearer" else None
    return headers.get(HEADER) or default


class Keys:
    """The digests of the valid API keys.

    Args:
        keys: the digests of keys that are always valid.
        file: the path of a file with further keys, one per line: plain, or ``sha256:`` and 64 hex
            digits. Blank lines and lines that begin with ``#`` are ignored. The file is read again
            when it changes; if that fails, the keys of the last successful reading stay valid. None
            for no further keys.
    """

    def __init__(self, keys: Iterable[bytes], file: str | None = None) -> None:
        self._fixed = tuple(keys)
        self._file = None if file is None else Path(file)
        self._digests = self._fixed
        self._file_state: tuple[int, ...] | None = None
        self._next_check_s = 0.0
        if self._file is not None:
            self._reload(self._file)

    def identify(self, headers: Mapping[str, str]) -> str | None:
        """Return the id of the key in `headers`; None if it is missing or not valid.

        The id is the first 12 hexadecimal digits of the key's digest.
        """
        if self._file is not None and time.monotonic() >= self._next_check_s:
            self._reload(self._file)
        key = presented_key(headers)
        presented = digest(key or "")
        # All digests are compared, so that the time does not depend on which one matches.
        matches = [hmac.compare_digest(presented, valid) for valid in self._digests]
        return presented.hex()[:12] if key and any(matches) else None

    def _reload(self, file: Path) -> None:
        """Read the key file if it has changed; if that fails, log the error and keep the keys."""
        self._next_check_s = time.monotonic() + _CHECK_INTERVAL_S
        try:
            stat = file.stat()
            state = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if state == self._file_state:
                return
            self._digests = (*self._fixed, *read_digests(file))
        except (OSError, ValueError) as error:
            _log.error(
                "the key file cannot be read (%s); the keys that were read before stay valid", error
            )
            return
        self._file_state = state
        _log.info("the key file holds %d keys", len(self._digests) - len(self._fixed))


def read_digests(file: Path) -> list[bytes]:
    """Read the digests of the keys in `file`.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is not UTF-8, or a line is malformed. The message names the line and does not
            repeat it.
    """
    digests: list[bytes] = []
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError("the key file must be UTF-8") from None
    for line_number, line in enumerate(lines, 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        hashed = re.fullmatch(r"sha256:([0-9a-fA-F]{64})", entry)
        if hashed is None and entry.lower().startswith("sha256:"):
            raise ValueError(
                f"line {line_number} of the key file must be sha256: and 64 hexadecimal digits"
            )
        digests.append(bytes.fromhex(hashed[1]) if hashed else digest(entry))
    return digests
