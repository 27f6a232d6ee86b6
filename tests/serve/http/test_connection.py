"""What `edge.connection`, `edge.bodies` and `edge.exchange` take for granted of aiohttp beyond its documentation."""

from __future__ import annotations

import inspect
import tomllib

import pytest
from aiohttp import http_writer, streams, web
from aiohttp.base_protocol import BaseProtocol
from aiohttp.web_protocol import RequestHandler

from tests.serve.harness import ROOT


@pytest.mark.parametrize(
    ("owner", "name", "user"),
    [
        (BaseProtocol, "_pause_transport_reading", BaseProtocol._pause_reading_for_buffer),
        (BaseProtocol, "_resume_transport_reading", BaseProtocol._resume_reading_for_buffer),
        (BaseProtocol, "_loop", BaseProtocol.__init__),
        (RequestHandler, "_make_error_handler", RequestHandler.start),
        (RequestHandler, "_manager", RequestHandler.connection_lost),
        (RequestHandler, "_request_count", RequestHandler.data_received),
        (RequestHandler, "_current_request", RequestHandler._handle_request),
        (RequestHandler, "force_close", RequestHandler._process_keepalive),
        (RequestHandler, "handle_error", RequestHandler._handle_request),
        (http_writer.StreamWriter, "output_size", http_writer.StreamWriter._write),
        (streams.StreamReader, "set_read_chunk_size", None),
        (web.Server, "_make_request", web.Server.__init__),
        (web.Server, "pre_shutdown", None),
        (web.StreamResponse, "write_eof", RequestHandler.finish_response),
        (web.StreamResponse, "body_length", None),
    ],
)
def test_aiohttp_still_has_it(owner: type, name: str, user: object) -> None:
    """Each name is there, and aiohttp itself still uses it where this package has it do so."""
    assert hasattr(owner, name) or name in inspect.getsource(owner)
    assert user is None or name in inspect.getsource(user)  # type: ignore[arg-type]


def test_aiohttp_takes_these_options() -> None:
    """Every argument of a connection is used: aiohttp's own factory would drop unknown arguments silently."""
    options = inspect.signature(RequestHandler.__init__).parameters
    assert {
        "access_log",
        "auto_decompress",
        "keepalive_timeout",
        "lingering_time",
        "read_bufsize",
    } <= set(options)
    assert "handler_cancellation" in inspect.signature(web.Server.__init__).parameters


def test_aiohttp_has_upper_bound() -> None:
    """The aiohttp version has an upper bound, because private names change without notice."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (wanted,) = (
        one for one in project["optional-dependencies"]["server"] if one.startswith("aiohttp")
    )
    assert "<" in wanted
