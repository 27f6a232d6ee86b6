"""The table of errors."""

from __future__ import annotations

import pytest
from aiohttp import web

from relevance_gen import errors
from relevance_gen.serve.http import http_errors as problems
from relevance_gen.serve.http.http_errors import problem_of, response_to


@pytest.mark.parametrize(
    ("error", "status", "kind", "retry_after"),
    [
        (errors.InvalidRequestError("x"), 400, "invalid_request", None),
        (errors.TooLargeError("x"), 413, "too_large", None),
        (errors.OverloadedError("x", retry_after_s=7), 429, "overloaded", "7"),
        (errors.BusyError("x", retry_after_s=7), 503, "overloaded", "7"),
        (errors.TimedOutError("x"), 503, "timeout", "1"),
        (errors.ShuttingDownError(), 503, "draining", "1"),
        (errors.RunnerClosedError("x"), 503, "no_runner", "5"),
        (errors.ModelLoadError("x"), 503, "no_runner", "5"),
        (errors.GenerationError("x"), 503, "no_runner", "5"),
        (errors.RequestCancelledError("x"), 503, "cancelled", "5"),
        (problems.UnauthorizedError("x"), 401, "unauthorized", None),
        (TimeoutError(), 500, "internal", None),
        (ZeroDivisionError("secret"), 500, "internal", None),
    ],
)
def test_each_error_has_its_status(
    error: Exception, status: int, kind: str, retry_after: str | None
) -> None:
    """An error has the status and kind of its own row, not of its base class, and its Retry-After."""
    problem = problem_of(error)
    assert (problem.status, problem.kind, problem.headers.get("Retry-After")) == (
        status,
        kind,
        retry_after,
    )
    assert "secret" not in problem.message


@pytest.mark.parametrize(
    ("got", "said"),
    [
        (None, "got null"),
        (True, "got true"),
        ("None", "got 'None'"),
        ("x, got None", "got 'x, got None'"),
    ],
)
def test_error_message_uses_json_values(got: object, said: str) -> None:
    """A client that sent null reads null, not Python's word for it; a string is left as it is."""
    for remedy in (None, "leave it out"):
        message = problem_of(
            errors.InvalidRequestError.must_be("top_n", "an integer", got, remedy=remedy)
        ).message
        assert message == f"top_n must be an integer, {said}" + (
            "" if remedy is None else "; leave it out"
        )


def test_unsupported_method_lists_allowed_methods() -> None:
    """The body of a 405 names the methods, as its Allow header does."""
    problem = problem_of(web.HTTPMethodNotAllowed("GET", ["POST", "OPTIONS"]))
    assert problem.message == "this path takes OPTIONS, POST, not GET"
    assert problem.headers == {"Allow": "OPTIONS, POST"}


def test_error_body_is_written_by_the_adapter() -> None:
    """The adapter makes the body of kind, message and field; status and headers come from the table."""
    problem = problem_of(errors.OverloadedError("wait", retry_after_s=3))
    response = response_to(problem, lambda sent: [sent.kind, sent.message, sent.field])
    assert (response.status, response.headers["Retry-After"]) == (429, "3")
    assert response.body == b'["overloaded","wait",null]'
