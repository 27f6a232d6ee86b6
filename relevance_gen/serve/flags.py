"""Read the server's settings from flags and from ``RELEVANCE_GEN_*`` environment variables.

A flag wins over its environment variable, which wins over the default; an empty variable is as good as none. Whatever
is not known is refused.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NoReturn, get_args, get_origin

from attrs import Attribute, fields, frozen, resolve_types

from relevance_gen.errors import InvalidRequestError, nearest
from relevance_gen.llama.options import ModelOptions
from relevance_gen.serve.settings import Settings

PREFIX = "RELEVANCE_GEN_"
PROGRAM = "relevance-gen serve"

_FURTHER_VARIABLES = {
    "RELEVANCE_GEN_API_KEYS": "API keys, comma-separated; never a flag, since other users can read a command line",
    "RELEVANCE_GEN_CACHE": "where the indexes of folders are kept, or off for nowhere",
}
"""Environment variables that have no flag."""

# ── How values are written; a ValueError says what is allowed ────────────────────────────────────────────────────────

_SWITCH = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def _integer(text: str) -> int | str:
    return (
        int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text
    )  # what is none, the field's validator refuses


def _seconds(text: str) -> float:
    with suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise ValueError("a number of seconds above 0")


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ValueError("on or off")
    return _SWITCH[text.lower()]


def _list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _text(text: str) -> str:
    if not text:
        raise ValueError("a string that is not empty")
    return text


_PARSERS: dict[Any, Callable[[str], Any]] = {
    int: _integer,
    float: _seconds,
    bool: _switch,
    str: _text,
    tuple: _list,
}

# ── One setting ──────────────────────────────────────────────────────────────────────────────────────────────────────


@frozen
class Setting:
    """One flag and variable: for a field of `Settings`, or, as an option of the model, of the `ModelOptions` in it."""

    of: Attribute[Any]
    group: str
    is_option: bool

    @property
    def flag(self) -> str:
        """Its name on the command line."""
        return "--" + self.of.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """Its name in the environment."""
        return PREFIX + self.of.name.upper()

    @property
    def help(self) -> str:
        """What it means."""
        return str(self.of.metadata["help"])

    def parse(self, text: str, source: str) -> Any:
        """Return the value that `text` stands for; raise a ValueError that names `source` if there is none."""
        kind = get_args(self.of.type)[0] if type(None) in get_args(self.of.type) else self.of.type
        try:
            if get_origin(kind) is Literal:
                if text not in get_args(kind):
                    raise ValueError(f"one of {', '.join(get_args(kind))}")
                return text
            value = (self.of.metadata.get("parse") or _PARSERS[get_origin(kind) or kind])(text)
            if self.of.validator is not None:
                self.of.validator(None, self.of, value)
        except (
            InvalidRequestError
        ) as error:  # it names the field, but the operator knows the flag or the variable
            raise ValueError(str(error.with_field(source))) from None
        except ValueError as error:
            raise ValueError(f"{source} must be {error}, got {text[:80]!a}") from None
        return value


SETTINGS = tuple(
    Setting(of, one.metadata["group"], is_option=of is not one)
    for one in fields(resolve_types(Settings))
    for of in (fields(resolve_types(ModelOptions)) if one.type is ModelOptions else [one])
)
"""Every setting, in the order of ``--help``."""

# ── Reading them ─────────────────────────────────────────────────────────────────────────────────────────────────────


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read the settings from `argv`, then `environ`, then the defaults.

    Exits with status 2 and one clear line on standard error if anything is unknown or not allowed, and with status 0
    after ``--help``.
    """
    parser = _parser()
    given, unknown = parser.parse_known_args(argv)
    if unknown:
        name = unknown[0].split("=")[0]  # without the value, which may be a secret
        _refuse_unknown(
            parser,
            name,
            name,
            [flag for action in parser._actions for flag in action.option_strings],
        )
    variables = [setting.variable for setting in SETTINGS] + list(_FURTHER_VARIABLES)
    for name in environ:
        if name.startswith(PREFIX) and name not in variables:
            _refuse_unknown(parser, f"the environment variable {name}", name, variables)
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for setting in SETTINGS:
        texts, source = getattr(given, setting.of.name), setting.flag
        if texts is None and environ.get(setting.variable):
            texts, source = [environ[setting.variable]], setting.variable
        if texts is not None:
            try:
                read = [setting.parse(text, source) for text in texts]
                value = sum(read, ()) if isinstance(read[-1], tuple) else read[-1]
                (options if setting.is_option else values)[setting.of.name] = value
            except ValueError as error:
                parser.error(str(error))
    return Settings(**values, model_options=ModelOptions(**options))


def _refuse_unknown(
    parser: argparse.ArgumentParser, what: str, name: str, known: Sequence[str]
) -> NoReturn:
    meant = nearest(name, known)
    parser.error(f"{what} is not a known setting" + (f" (did you mean {meant}?)" if meant else ""))


class _Parser(argparse.ArgumentParser):
    """A parser that says what is wrong in one line: the usage, with every flag, would fill the screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
    further = "\n".join(f"  {name}\n      {text}" for name, text in _FURTHER_VARIABLES.items())
    parser = _Parser(
        prog=PROGRAM,
        usage="%(prog)s [OPTION ...]",
        description="Serve search and generation over HTTP.",
        epilog=f"Every flag is also an environment variable: --max-body-bytes is {PREFIX}MAX_BODY_BYTES.\n\n"
        f"environment only:\n{further}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(setting.group)
        default = (
            "" if setting.of.default in (None, ()) else f" (default: {shown(setting.of.default)})"
        )
        text = f"{setting.help}{default}".replace("%", "%%")
        groups[setting.group].add_argument(
            setting.flag, metavar="VALUE", action="append", help=text
        )
    return parser


def shown(default: object) -> str:
    """Return a default as people read it."""
    match default:
        case None | ():
            return "not set"
        case bool():
            return "on" if default else "off"
        case float():
            return f"{default:g}"
        case _:
            return str(default)
