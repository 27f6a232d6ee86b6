"""HTTP errors: one table from exceptions to statuses, and the responses made of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TypeAlias

from aiohttp import web
from attrs import frozen

from relevance_gen import errors, wire
from relevance_gen.serve.adapters import own
from relevance_gen.serve.adapters.shared import Problem
from relevance_gen.serve.services.model_registry import UnknownModelError

_log = logging.getLogger(__name__)

WriteError: TypeAlias = Callable[[Problem], object]
"""Writes an error in an API format: returns the JSON of the body."""


class HTTPError(errors.RelevanceGenError):
    """A request is rejected because of its path, headers, API key, rate or a slow body.

    `headers` are added to the response.
    """

    def __init__(self, message: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.headers = dict(headers or {})


class ForbiddenError(HTTPError):
    """A request is for a host, or from a page of an origin, that is not allowed."""


class UnauthorizedError(HTTPError):
    """A request requires an API key, and it is missing or wrong."""


class RateLimitedError(HTTPError):
    """An API key made more requests than the rate limit admits."""


class SlowBodyError(HTTPError):
    """The body of a request did not arrive completely in time."""


class UnknownPathError(HTTPError):
    """No route has the path of a request; `nearest` is a similar path, if any."""

    def __init__(self, nearest: str | None) -> None:
        remedy = "GET /openapi.json describes all paths"
        if nearest is not None:
            remedy = f"did you mean {nearest}?"
        super().__init__(f"there is nothing at this path; {remedy}")


class MediaTypeError(HTTPError):
    """The Content-Type or Content-Encoding of a request is not supported."""


class ExactMediaTypeError(MediaTypeError):
    """The Content-Type is not exactly application/json, on a route that requires this.

    The documented interface of these routes requires that the error response is empty.
    """


TABLE: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    # exception, status, kind, message (None: that of the exception); the first match counts
    (UnknownModelError, 404, "model_not_found", None),
    (errors.TooLargeError, 413, "too_large", None),
    (errors.ContextLengthError, 400, "context_length_exceeded", None),
    (errors.InvalidRequestError, 400, "invalid_request", None),
    (errors.BusyError, 503, "overloaded", None),
    (MemoryError, 503, "overloaded", "the server has too little free memory for this request now"),
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
    (errors.ClusterError, 503, "no_cluster", "the cluster cannot answer the request"),
    (errors.RequestCancelledError, 503, "cancelled", "the request was cancelled by the server"),
    (ForbiddenError, 403, "forbidden", None),
    (UnauthorizedError, 401, "unauthorized", None),
    (RateLimitedError, 429, "rate_limited", None),
    (SlowBodyError, 408, "timeout", None),
    (MediaTypeError, 415, "unsupported_media_type", None),
    (UnknownPathError, 404, "not_found", None),
    (web.HTTPNotFound, 404, "not_found", "there is nothing at this path"),
    (web.HTTPMethodNotAllowed, 405, "method_not_allowed", None),
    (web.HTTPExpectationFailed, 417, "expectation_failed", "Expect must be 100-continue"),
    (
        Exception,
        500,
        "internal",
        "internal error; the server's log has the details under this request's id",
    ),
)

CLIENT_DISCONNECTED = 499
"""Status in logs and metrics of an exchange whose client disconnected before the response."""

_OTHER_STATUSES = {200, 202, 204, 304, 406, CLIENT_DISCONNECTED}
STATUSES = tuple(sorted(_OTHER_STATUSES.union(row[1] for row in TABLE)))
"""Every HTTP status by which metrics count requests."""

_RETRY_AFTER_S = 5
"""Default Retry-After of a 503: time to replace a worker or to load a model."""


@frozen
class HTTPProblem(Problem):
    """The content of an error response, with its status and headers.

    Attributes:
        status: the HTTP status.
        headers: headers of the response.
        is_empty: whether the response must have an empty text/plain body.
    """

    status: int
    headers: Mapping[str, str]
    is_empty: bool


def problem_of(error: Exception) -> HTTPProblem:
    """Return the content of the error response for `error`, by the first matching row of `TABLE`.

    An exception that only matches the last row of the table is a bug: it is logged, and its message
    is not sent.
    """
    row = next(row for row in TABLE if isinstance(error, row[0]))
    _, status, kind, message = row
    if status == 500:
        _log.error("internal error", exc_info=error)
    return HTTPProblem(
        status=status,
        kind=kind,
        message=message or _message(error),
        field=getattr(error, "field", None),
        headers=_headers(error, status),
        is_empty=isinstance(error, ExactMediaTypeError),
    )


def _message(error: Exception) -> str:
    if isinstance(error, web.HTTPMethodNotAllowed):
        return f"this path takes {_allowed(error)}, not {error.method}"
    if isinstance(error, errors.InvalidRequestError):
        return error.to_json_message()
    return str(error)


def _headers(error: Exception, status: int) -> dict[str, str]:
    if isinstance(error, HTTPError):
        return error.headers
    if isinstance(error, web.HTTPMethodNotAllowed):
        return {"Allow": _allowed(error)}
    default_s = _RETRY_AFTER_S if status == 503 else None
    retry_after_s = getattr(error, "retry_after_s", default_s)
    return {} if retry_after_s is None else {"Retry-After": str(retry_after_s)}


def _allowed(error: web.HTTPMethodNotAllowed) -> str:
    return ", ".join(sorted(error.allowed_methods))


def response_to(problem: HTTPProblem, write_error: WriteError = own.error) -> web.Response:
    """Return the error response for `problem`, in the API format that `write_error` writes."""
    if problem.is_empty:
        return empty(problem.status, problem.headers)
    body = wire.serialize(write_error(problem))
    return web.Response(
        status=problem.status, headers=problem.headers, body=body, content_type="application/json"
    )


def empty(status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    """Return a response with an empty text/plain body."""
    return web.Response(status=status, headers=headers, body=b"", content_type="text/plain")
