"""Render chat templates: a program that `conversation` asks in a sandbox.

A template is code from a file of somebody else's. Jinja's sandbox keeps it from files and from Python's insides, but
not from looping for ever or asking for all memory; only a process of its own does. This imports nothing of this
package, so that it starts fast.
"""

from __future__ import annotations

import functools
import json
from datetime import datetime
from typing import Any, NoReturn

import jinja2
from jinja2 import meta, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MAX_CHARACTERS = 1 << 24
"""Most characters of a rendered conversation."""


class Generation(Extension):
    """``{% generation %}`` marks the model's own words for training; what stands in it is rendered as it is."""

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return what stands between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as transformers does: without escapes for HTML, which Jinja's own filter has."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: str) -> NoReturn:
    """Let a template refuse a conversation."""
    raise jinja2.TemplateError(message)


def strftime_now(form: str) -> str:
    """Return the time and date here, for templates that tell the model."""
    return datetime.now().strftime(form)


def environment() -> ImmutableSandboxedEnvironment:
    """Return what transformers renders chat templates in."""
    made = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    made.filters["tojson"] = to_json
    made.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return made


@functools.lru_cache(maxsize=8)
def compiled(template: str) -> jinja2.Template:
    """Return a template, compiled."""
    return environment().from_string(template)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Return the ``text`` that a ``template`` makes of ``variables``, or an ``error`` and of which ``kind`` it is.

    Without variables, return the ``names`` of those that it reads.
    """
    kind = "template"
    try:
        template = compiled(request["template"])
        if request["variables"] is None:
            read = meta.find_undeclared_variables(environment().parse(request["template"]))
            return {"names": sorted(read - environment().globals.keys())}
        kind = "messages"
        text = template.render(request["variables"])
    except (MemoryError, RecursionError, OverflowError) as error:
        return {"error": f"{type(error).__name__} {error}", "kind": "limit"}
    except Exception as error:  # whatever a template does wrong is the matter of its own request
        return {"error": str(error) or type(error).__name__, "kind": kind}
    if len(text) > MAX_CHARACTERS:
        return {"error": f"more than {MAX_CHARACTERS:,} characters", "kind": "limit"}
    return {"text": text}
