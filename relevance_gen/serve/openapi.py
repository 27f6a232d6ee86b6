"""The description of the interface, as a document and as a page. Both are files that ship with the library."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache
from importlib.resources import files

_HERE = files("relevance_gen.serve")


@cache
def document() -> bytes:
    """Return openapi.json."""
    return _HERE.joinpath("openapi.json").read_bytes()


@cache
def page() -> bytes:
    """Return the page that shows it."""
    return _HERE.joinpath("static", "docs.html").read_bytes()


@cache
def page_policy() -> str:
    """Return the page's Content-Security-Policy: its own script, its own style, this server, and nothing else."""
    script, style = (
        base64.b64encode(hashlib.sha256(found).digest()).decode()
        for tag in (b"script", b"style")
        for found in re.findall(b"<%s>(.*?)</%s>" % (tag, tag), page(), re.DOTALL)
    )
    return (
        f"default-src 'none'; connect-src 'self'; script-src 'sha256-{script}'; style-src 'sha256-{style}'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
