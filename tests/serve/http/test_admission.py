"""Admission: who is meant and who asks is looked at before anything else."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from relevance_gen.serve.http.application import check_host
from relevance_gen.serve.http.http_errors import ForbiddenError
from relevance_gen.serve.settings import Settings
from tests.serve.harness import JSON, Server, request_bytes


def status_of(server: Server, path: str = "/stats", **headers: str) -> int:
    """Send a request with the headers and return the status."""
    received = server.exchange(
        request_bytes("GET", path, headers={**headers, "Connection": "close"})
    )
    return int(received.split(b" ", 2)[1])


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8000", 200),
        ("localhost.", 200),
        ("127.0.0.1:1234", 200),
        ("[::1]:80", 200),
        ("10.1.2.3", 200),
        ("test", 200),  # which the harness allows
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost.evil.example", 403),
        ("user@evil.example", 403),
        ("", 403),
        ("[::1", 403),
        (":80", 403),
    ],
)
def test_unknown_host_is_rejected(server: Server, host: str, status: int) -> None:
    """A host name that a page points at this server's address is rejected."""
    for path in ("/stats", "/metrics", "/", "/none") if status == 403 else ("/stats",):
        assert status_of(server, path, Host=host) == status


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("http://localhost:3000", 200),
        ("http://127.0.0.1:8000", 200),
        ("http://test", 200),
        ("http://6.6.6.6", 403),
        ("http://[2001:db8::1]:8000", 403),
        ("https://evil.example", 403),
        ("null", 403),
        ("", 403),
    ],
)
def test_unknown_origin_is_rejected(server: Server, origin: str, status: int) -> None:
    """A cross-origin request is rejected before any work, even if the page could not read the response."""
    assert status_of(server, Origin=origin) == status
    refused = server.generate({"text": "x", "max_tokens": 1}, {**JSON, "Origin": origin})
    assert refused.status == status


@pytest.mark.parametrize(
    ("setting", "headers", "is_let_in"),
    [
        ({"cors_origins": ("https://page.example",)}, {"Origin": "https://page.example"}, True),
        ({"cors_origins": ("https://page.example",)}, {"Origin": "https://other.example"}, False),
        ({"cors_origins": ("*",)}, {"Origin": "https://other.example"}, True),
        (
            {"allowed_hosts": ("search.example.com",)},
            {"Host": "search.example.com", "Origin": "https://SEARCH.example.com"},
            True,
        ),
        ({"allowed_hosts": ()}, {"Host": "search.example.com"}, False),
        (
            {"allowed_hosts": ("search.example.com",)},
            {"Host": "10.1.2.3:80", "Origin": "http://10.1.2.3:80"},
            True,
        ),
        ({"allowed_hosts": ("*",)}, {"Host": "any.example", "Origin": "null"}, True),
    ],
)
def test_pages_that_may_call_may_have_any_name(
    setting: Any, headers: dict[str, str], is_let_in: bool
) -> None:
    """`--cors-origins` allows origins, and `--allowed-hosts` allows names; "*" allows all."""
    with nullcontext() if is_let_in else pytest.raises(ForbiddenError):
        check_host(Settings(**setting), SimpleNamespace(headers=headers))  # type: ignore[arg-type]
