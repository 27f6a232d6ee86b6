"""Who may call: API keys, held as SHA-256 digests and compared in constant time."""

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
"""How a worker tells the process that holds the model whose request it passes on; nobody else reaches that process."""

_LOOK_EVERY_S = 1.0
"""A changed key file is noticed within this time; looking costs one stat()."""


def digest(key: str) -> bytes:
    """Return the SHA-256 of `key`, the only form in which a key is kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def presented_key(headers: Mapping[str, str]) -> str | None:
    """Return the key that a client shows as ``X-API-Key: KEY`` or as ``Authorization: Bearer KEY``."""
    scheme, _, bearer = headers.get("Authorization", "").partition(" ")
    return headers.get(HEADER) or (bearer.strip() if scheme.lower() == "bearer" else None)


class Keys:
    """The digests of the keys that open the server.

    Args:
        keys: digests that always hold.
        file: further keys, one a line: plain, or ``sha256:`` and 64 hex digits. Blank lines and ``#`` comments are
            skipped. It is read again when it changes; a file that cannot be read, or that `read_digests` refuses,
            leaves the last keys in force.
    """

    def __init__(self, keys: Iterable[bytes], file: str | None = None) -> None:
        self._fixed = tuple(keys)
        self._file = None if file is None else Path(file)
        self._digests = self._fixed
        self._seen: tuple[int, ...] | None = None
        self._next_look_s = 0.0
        if self._file is not None:
            self._look(self._file)

    def identify(self, headers: Mapping[str, str]) -> str | None:
        """Return the id of the valid key that `headers` show: the first 12 hex digits of its digest, fit for logs."""
        if self._file is not None and time.monotonic() >= self._next_look_s:
            self._look(self._file)
        key = presented_key(headers)
        candidate = digest(key or "")
        # All digests are compared, so the time taken does not tell which of them is near.
        matches = [hmac.compare_digest(candidate, known) for known in self._digests]
        return candidate.hex()[:12] if key and any(matches) else None

    def _look(self, file: Path) -> None:
        self._next_look_s = time.monotonic() + _LOOK_EVERY_S
        try:
            stat = file.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return
            self._digests = (*self._fixed, *read_digests(file))
        except (OSError, ValueError) as error:
            _log.error("the key file cannot be taken (%s); the last keys stay in force", error)
            return
        self._seen = seen
        _log.info("the key file holds %d keys", len(self._digests) - len(self._fixed))


def read_digests(file: Path) -> list[bytes]:
    """Read the digests of the keys in `file`.

    Raises:
        OSError: it cannot be read.
        ValueError: it is not UTF-8, or a line is malformed; the message names the line and repeats none of it.
    """
    digests: list[bytes] = []
    try:
        lines = file.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError("the key file must be UTF-8") from None
    for number, line in enumerate(lines, 1):
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        hashed = re.fullmatch(r"sha256:([0-9a-fA-F]{64})", entry)
        if hashed is None and entry.lower().startswith("sha256:"):
            raise ValueError(
                f"line {number} of the key file must be sha256: and 64 hexadecimal digits"
            )
        digests.append(bytes.fromhex(hashed[1]) if hashed else digest(entry))
    return digests
