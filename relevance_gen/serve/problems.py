"""What can go wrong, as HTTP sees it: one table from errors to statuses, one shape of body."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from aiohttp import web

from relevance_gen import wire
from relevance_gen.errors import (
    GenerationError,
    InvalidRequestError,
    ModelLoadError,
    OverloadedError,
    RelevanceGenError,
    RequestCancelledError,
    RunnerClosedError,
)

_log = logging.getLogger(__name__)


class HTTPError(RelevanceGenError):
    """A request that HTTP itself refuses.

    Attributes:
        status: the HTTP status.
        kind: the ``type`` in the body, a word for programs.
        field: path of the offending field, if there is one.
        headers: sent along with the body.
    """

    def __init__(
        self,
        status: int,
        kind: str,
        message: str,
        *,
        field: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.field = field
        self.headers = dict(headers or {})


class EmptyHTTPError(HTTPError):
    """A refusal that the contract wants as an empty text/plain body."""


def draining() -> HTTPError:
    """Refuse work because the server is shutting down."""
    headers = {"Retry-After": "1", "Connection": "close"}
    return HTTPError(503, "draining", "the server is shutting down", headers=headers)


_TABLE: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    # error, status, type, message (None: the error's own)
    (InvalidRequestError, 400, "invalid_request", None),
    (OverloadedError, 429, "overloaded", None),
    (RunnerClosedError, 503, "no_runner", "no runner is available"),
    (ModelLoadError, 503, "no_runner", "no runner is available"),
    (GenerationError, 503, "no_runner", "the model failed while it was generating"),
    (RequestCancelledError, 503, "cancelled", "the request was cancelled by the server"),
    (web.HTTPNotFound, 404, "not_found", "there is nothing at this path"),
    (web.HTTPMethodNotAllowed, 405, "method_not_allowed", "this path does not take this method"),
    (web.HTTPExpectationFailed, 417, "expectation_failed", "the only Expect known is 100-continue"),
)

_RETRY_AFTER_S = 5
"""When to come back after a 503: time enough for a replaced worker or a loaded model, short enough to notice it."""


def problem_of(error: Exception) -> HTTPError:
    """Look `error` up in the table; what is not there is a 500 that names no internals."""
    if isinstance(error, HTTPError):
        return error
    for known, status, kind, message in _TABLE:
        if isinstance(error, known):
            return HTTPError(
                status,
                kind,
                message or str(error),
                field=getattr(error, "field", None),
                headers=_headers(error, status),
            )
    _log.error("internal error", exc_info=error)
    return HTTPError(500, "internal", "internal error; the server's log has the details under this request's id")


def _headers(error: Exception, status: int) -> dict[str, str]:
    match error:
        case OverloadedError():
            return {"Retry-After": str(error.retry_after_s)}
        case web.HTTPMethodNotAllowed():
            return {"Allow": ", ".join(sorted(error.allowed_methods))}
        case _:
            return {"Retry-After": str(_RETRY_AFTER_S)} if status == 503 else {}


def body_of(problem: HTTPError) -> bytes:
    """Write the error body: ``{"error": {"type", "message", "field"}}``, ``field`` only where there is one."""
    error = {"type": problem.kind, "message": str(problem)}
    if problem.field is not None:
        error["field"] = problem.field
    return wire.serialize({"error": error})


def response_to(problem: HTTPError) -> web.Response:
    """Answer with `problem`."""
    if isinstance(problem, EmptyHTTPError):
        return empty(problem.status, problem.headers)
    return web.Response(
        status=problem.status, headers=problem.headers, body=body_of(problem), content_type="application/json"
    )


def empty(status: int, headers: Mapping[str, str] | None = None) -> web.Response:
    """Answer with an empty text/plain body."""
    return web.Response(status=status, headers=headers, body=b"", content_type="text/plain")
