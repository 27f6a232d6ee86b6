"""Who may call: API keys, held as SHA-256 digests and compared in constant time."""

from __future__ import annotations

import hashlib
import hmac
import logging
import re
import secrets
import time
from collections.abc import Iterable
from pathlib import Path

from relevance_gen.serve.problems import HTTPError

_log = logging.getLogger(__name__)

HEADER = "X-API-Key"

_LOOK_EVERY_S = 1.0
"""A changed key file is noticed within this time; looking costs one stat()."""


def digest(key: str) -> bytes:
    """Return the SHA-256 of `key`, the only form in which a key is kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def made() -> str:
    """Make a key that nobody can guess."""
    return f"rg_{secrets.token_urlsafe(32)}"


class Keys:
    """The digests of the keys that open the server.

    Args:
        keys: digests that always hold.
        file: further keys, one a line: plain, or ``sha256:`` and 64 hex digits. Blank lines and ``#`` comments are
            skipped. It is read again when it changes; a file that cannot be read leaves the last keys in force.
    """

    def __init__(self, keys: Iterable[bytes], file: str | None = None) -> None:
        self._fixed = tuple(keys)
        self._file = None if file is None else Path(file)
        self._digests = self._fixed
        self._seen: tuple[int, ...] | None = None
        self._next_look = 0.0
        if self._file is not None:
            self._look(self._file)

    def check(self, presented: str | None) -> str:
        """Return the id of a valid key: the first 12 hex digits of its digest, fit for logs.

        Raises:
            HTTPError: 401, no key or a wrong one.
        """
        if self._file is not None and time.monotonic() >= self._next_look:
            self._look(self._file)
        candidate = digest(presented or "")
        # Every digest is compared, so the time tells nothing about which one came near.
        matches = [hmac.compare_digest(candidate, known) for known in self._digests]
        if not presented or not any(matches):
            what = "is wrong" if presented else "is missing"
            raise HTTPError(
                401,
                "unauthorized",
                f"the {HEADER} header {what}",
                headers={"WWW-Authenticate": f'ApiKey header="{HEADER}"'},
            )
        return candidate.hex()[:12]

    def _look(self, file: Path) -> None:
        self._next_look = time.monotonic() + _LOOK_EVERY_S
        try:
            stat = file.stat()
            seen = (stat.st_mtime_ns, stat.st_size, stat.st_ino)
            if seen == self._seen:
                return
            self._digests = (*self._fixed, *_digests_in(file.read_text("utf-8-sig")))
        except (OSError, UnicodeDecodeError) as error:
            _log.error("the key file cannot be read (%s); the last keys stay in force", type(error).__name__)
            return
        self._seen = seen
        _log.info("the key file holds %d keys", len(self._digests) - len(self._fixed))


def _digests_in(text: str) -> Iterable[bytes]:
    for line in text.splitlines():
        entry = line.strip()
        if not entry or entry.startswith("#"):
            continue
        hashed = re.fullmatch(r"sha256:([0-9a-fA-F]{64})", entry)
        yield bytes.fromhex(hashed[1]) if hashed else digest(entry)
