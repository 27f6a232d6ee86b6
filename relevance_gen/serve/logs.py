"""One line for each event on standard error: JSON for machines, or text. No bodies and no keys, ever."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

from relevance_gen.serve.settings import Settings

REQUEST_ID: ContextVar[str | None] = ContextVar("REQUEST_ID", default=None)
"""The request that the current task answers; every line logged meanwhile carries it."""

_access = logging.getLogger("relevance_gen.access")

_LONGEST_PATH = 256
"""Longer paths are cut in the log: only paths that do not exist are so long."""


def configure(settings: Settings) -> None:
    """Send all logging to standard error in the form that `settings` ask for."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if settings.log_format == "json" else _Text())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    # aiohttp reports here what its own handlers did not catch; ours catch everything else.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def access(method: str, path: str, status: int, **details: object) -> None:
    """Log one exchange. `path` comes without its query string: people put secrets there."""
    path = path[:_LONGEST_PATH]
    fields = {"method": method, "path": path, "status": status, **details}
    _access.info("%s %s %d", method, path, status, extra={"fields": fields})


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    request_id = REQUEST_ID.get()
    return {"request_id": request_id, **fields} if request_id else fields


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line = {
            "time": f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(record.created))}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, separators=(",", ":"))


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(
            f"{name}={value}" for name, value in _fields(record).items() if value is not None
        )
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        # One record is one line, also when a client put line breaks into its path.
        line = ascii(f"{record.getMessage()} {fields}".rstrip())[1:-1]
        text = f"{clock} {record.levelname.lower():7} {line}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text
