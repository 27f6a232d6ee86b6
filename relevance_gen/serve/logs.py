"""Logging to standard error: a line per event, as JSON or text, without request bodies and keys."""

from __future__ import annotations

import json
import logging
import sys
import time
from contextvars import ContextVar
from typing import Any

from relevance_gen.serve.settings import Settings

REQUEST_ID: ContextVar[str | None] = ContextVar("REQUEST_ID", default=None)
"""The id of the request that the current task answers; part of every line that it logs."""

_access = logging.getLogger("relevance_gen.access")

_MAX_PATH_CHARS = 256
"""Longer paths are truncated in the log; no route has such a long path."""


def configure(settings: Settings) -> None:
    """Send all logging to standard error in the format of the settings."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_JsonFormatter() if settings.log_format == "json" else _TextFormatter())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.log_level.upper())
    # aiohttp reports exceptions that its handlers did not catch; the middleware catches the rest.
    logging.getLogger("asyncio").setLevel(logging.WARNING)


def access(method: str, path: str, status: int, **details: object) -> None:
    """Log a request and its response, with `details` as further fields of the line.

    `path` must not contain the query string, which can hold secrets.
    """
    path = path[:_MAX_PATH_CHARS]
    fields = {"method": method, "path": path, "status": status, **details}
    _access.info("%s %s %d", method, path, status, extra={"fields": fields})


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    fields: dict[str, Any] = getattr(record, "fields", {})
    request_id = REQUEST_ID.get()
    return {"request_id": request_id, **fields} if request_id else fields


class _JsonFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        entry = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_fields(record),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, separators=(",", ":"))


class _TextFormatter(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        fields = " ".join(
            f"{name}={value}" for name, value in _fields(record).items() if value is not None
        )
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        # Escape line breaks, which a client can send in a path.
        message = ascii(f"{record.getMessage()} {fields}".rstrip())[1:-1]
        text = f"{clock} {record.levelname.lower():7} {message}"
        if record.exc_info:
            text += f"\n{self.formatException(record.exc_info)}"
        return text
