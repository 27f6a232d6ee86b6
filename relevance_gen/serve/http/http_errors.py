"""What can go wrong, as HTTP says it: one table from errors to statuses."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from aiohttp import web
from attrs import frozen

from relevance_gen import errors, wire
from relevance_gen.serve.adapters import own
from relevance_gen.serve.services.model_registry import UnknownModelError

_log = logging.getLogger(__name__)

WriteError: TypeAlias = Callable[[str, str, "str | None"], object]
"""A dialect's words for an error: kind, message and field → the body."""


class HTTPError(errors.RelevanceGenError):
    """Refuse a request for a reason that only HTTP has; `headers` are sent along with the answer."""

    def __init__(self, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.headers = dict(headers or {})


class ForbiddenError(HTTPError):
    """Refuse a request that is meant for another host, or that a page of another origin makes."""


class UnauthorizedError(HTTPError):
    """Refuse a request whose key is missing or wrong."""


class RateLimitedError(HTTPError):
    """Refuse a request because its key made too many."""


class SlowBodyError(HTTPError):
    """Refuse a body that does not arrive in time."""


class MediaTypeError(HTTPError):
    """Refuse a Content-Type or Content-Encoding."""


class ExactMediaTypeError(MediaTypeError):
    """Refuse a Content-Type where the contract wants that answer to be empty text/plain."""


TABLE: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    # error, status, the word for programs, the message (None: the error's own); the first row that fits counts
    (UnknownModelError, 404, "model_not_found", None),
    (errors.TooLargeError, 413, "too_large", None),
    (errors.InvalidRequestError, 400, "invalid_request", None),
    (errors.BusyError, 503, "overloaded", None),
    (MemoryError, 503, "overloaded", "there is no memory for this now"),
    (errors.OverloadedError, 429, "overloaded", None),
    (errors.TimedOutError, 503, "timeout", None),
    (errors.ShuttingDownError, 503, "draining", None),
    (errors.RunnerClosedError, 503, "no_runner", "no runner is available"),
    (errors.ModelLoadError, 503, "no_runner", None),
    (errors.EncoderError, 503, "no_encoder", "no encoder is available"),
    (errors.RerankerError, 503, "no_reranker", "no reranker is available"),
    (errors.GenerationError, 503, "no_runner", "the model failed while it was generating"),
    (errors.UnknownIndexError, 404, "not_found", None),
    (errors.IndexUnavailableError, 503, "index_unavailable", None),
    (errors.ChunksMissingError, 503, "chunks_missing", None),
    (errors.ClusterError, 503, "no_cluster", "the cluster does not answer as it must"),
    (errors.RequestCancelledError, 503, "cancelled", "the request was cancelled by the server"),
    (ForbiddenError, 403, "forbidden", None),
    (UnauthorizedError, 401, "unauthorized", None),
    (RateLimitedError, 429, "rate_limited", None),
    (SlowBodyError, 408, "timeout", None),
    (MediaTypeError, 415, "unsupported_media_type", None),
    (web.HTTPNotFound, 404, "not_found", "there is nothing at this path"),
    (web.HTTPMethodNotAllowed, 405, "method_not_allowed", None),
    (web.HTTPExpectationFailed, 417, "expectation_failed", "the only Expect known is 100-continue"),
    (
        Exception,
        500,
        "internal",
        "internal error; the server's log has the details under this request's id",
    ),
)

CLIENT_LEFT = 499
"""Logged and counted as the status of an exchange whose client left before its answer."""

STATUSES = tuple(sorted({200, 202, 204, 406, CLIENT_LEFT, *(status for _, status, _, _ in TABLE)}))
"""Every status that is counted."""

_RETRY_AFTER_S = 5
"""When to come back after a 503 whose error does not say: time for a worker to be replaced or a model to be loaded."""


@frozen
class HTTPProblem:
    """An error as HTTP says it; `is_empty` asks for an empty text/plain body."""

    status: int
    kind: str
    message: str
    field: str | None
    headers: Mapping[str, str]
    is_empty: bool


def problem_of(error: Exception) -> HTTPProblem:
    """Look `error` up in the table. What only the last row fits is a bug: it is logged, and its message not told."""
    _, status, kind, message = next(row for row in TABLE if isinstance(error, row[0]))
    if status == 500:
        _log.error("internal error", exc_info=error)
    message, field = message or _message(error), getattr(error, "field", None)
    return HTTPProblem(
        status,
        kind,
        message,
        field,
        _headers(error, status),
        isinstance(error, ExactMediaTypeError),
    )


def _message(error: Exception) -> str:
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"this path takes {', '.join(sorted(error.allowed_methods))}, not {error.method}"
    return error.to_json_message() if isinstance(error, errors.InvalidRequestError) else str(error)


def _headers(error: Exception, status: int) -> dict[str, str]:
    match error:
        case HTTPError():
            return error.headers
        case web.HTTPMethodNotAllowed():
            return {"Allow": ", ".join(sorted(error.allowed_methods))}
    retry_after_s = getattr(error, "retry_after_s", _RETRY_AFTER_S if status == 503 else None)
    return {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}


def response_to(problem: HTTPProblem, write_error: WriteError = own.error) -> web.Response:
    """Answer with `problem` in a dialect's words."""
    if problem.is_empty:
        return empty(problem.status, problem.headers)
    body = wire.serialize(write_error(problem.kind, problem.message, problem.field))
    return web.Response(
        status=problem.status, headers=problem.headers, body=body, content_type="application/json"
    )


def empty(status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    """Answer with an empty text/plain body."""
    return web.Response(status=status, headers=headers, body=b"", content_type="text/plain")
