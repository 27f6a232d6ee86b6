"""Render chat templates: a program that `chat_template` runs in a sandbox.

A template is untrusted code from a model file or a request. Jinja's sandbox denies it files and
Python's internals, but limits neither time nor memory; a separate process does. This module imports
nothing of this package, so that the program starts fast.
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
"""Characters of a rendered conversation."""


class Generation(Extension):
    """Renders the content of ``{% generation %}`` unchanged.

    The tag marks the text of the model for training.
    """

    tags = {"generation"}  # noqa: RUF012 - Jinja's own declaration

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the content between the tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Serialize to JSON as transformers does: without the HTML escapes of Jinja's own filter."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def raise_exception(message: str) -> NoReturn:
    """Reject a conversation; templates call this."""
    raise jinja2.TemplateError(message)


def strftime_now(form: str) -> str:
    """Format the local time; templates call this."""
    return datetime.now().strftime(form)


def environment() -> ImmutableSandboxedEnvironment:
    """Return the environment in which transformers renders chat templates."""
    created = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    created.filters["tojson"] = to_json
    created.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    return created


@functools.lru_cache(maxsize=8)
def compiled(template: str) -> jinja2.Template:
    """Compile a template."""
    return environment().from_string(template)


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Render the ``template`` in `request` with the ``variables`` in `request`.

    Returns:
        The ``text``; or, if ``variables`` is None, the ``names`` of the variables that the template
        reads; or an ``error`` and its ``kind``: "template", "messages" or "limit".
    """
    kind = "template"
    try:
        template = compiled(request["template"])
        if request["variables"] is None:
            names = meta.find_undeclared_variables(environment().parse(request["template"]))
            return {"names": sorted(names - environment().globals.keys())}
        kind = "messages"
        text = template.render(request["variables"])
    except (MemoryError, RecursionError, OverflowError) as error:
        return {"error": f"{type(error).__name__} {error}", "kind": "limit"}
    except Exception as error:  # a template may raise any exception; it fails only its own request
        return {"error": str(error) or type(error).__name__, "kind": kind}
    if len(text) > MAX_CHARACTERS:
        return {"error": f"more than {MAX_CHARACTERS:,} characters", "kind": "limit"}
    return {"text": text}
