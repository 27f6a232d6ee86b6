"""Read the server's settings from flags and from ``RELEVANCE_GEN_*`` environment variables.

A flag has precedence over its environment variable, and the variable over the default. An empty
variable counts as not set. Unknown flags and variables are refused.
"""

from __future__ import annotations

import argparse
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal, NoReturn, get_args, get_origin

from attrs import Attribute, fields, frozen, resolve_types

from relevance_gen.errors import InvalidRequestError, nearest
from relevance_gen.llama.options import ModelOptions
from relevance_gen.serve.settings import Settings

PREFIX = "RELEVANCE_GEN_"
PROGRAM = "relevance-gen serve"

_VARIABLES_WITHOUT_FLAG = {
    "RELEVANCE_GEN_API_KEYS": (
        "API keys, comma-separated; not a flag, because other users can read command lines"
    ),
    "RELEVANCE_GEN_CACHE": "folder for cached indexes of folders, or off to disable the cache",
    "RELEVANCE_GEN_LLAMA_LIB": "prebuilt llama.cpp library to load instead of the compiled one",
}
"""Environment variables that have no flag."""

# ── Parsers of values; a ValueError contains the allowed values ──────────────────────────────────

_SWITCH = dict.fromkeys("1 true yes on".split(), True) | dict.fromkeys(
    "0 false no off".split(), False
)


def _integer(text: str) -> int | str:
    # The field's validator refuses a text that is not an integer.
    return int(text) if re.fullmatch(r"-?[0-9]{1,18}", text) else text


def _seconds(text: str) -> float:
    with suppress(ValueError):
        value = float(text)
        if 0 < value < math.inf:
            return value
    raise ValueError("a number of seconds above 0")


def _switch(text: str) -> bool:
    if text.lower() not in _SWITCH:
        raise ValueError("on or off")
    return _SWITCH[text.lower()]


def _list(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def _choice(text: str, choices: tuple[str, ...]) -> str:
    if text not in choices:
        raise ValueError(f"one of {', '.join(choices)}")
    return text


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

# ── One setting ──────────────────────────────────────────────────────────────────────────────────


@frozen
class Setting:
    """A flag and an environment variable for a field.

    Attributes:
        attribute: a field of `Settings` or of its `ModelOptions`.
        group: the heading in ``--help``.
        is_option: whether the field is one of `ModelOptions`.
    """

    attribute: Attribute[Any]
    group: str
    is_option: bool

    @property
    def flag(self) -> str:
        """The flag on the command line, such as ``--max-chunks``."""
        return "--" + self.attribute.name.replace("_", "-")

    @property
    def variable(self) -> str:
        """The name of the environment variable, such as ``RELEVANCE_GEN_MAX_CHUNKS``."""
        return PREFIX + self.attribute.name.upper()

    @property
    def help(self) -> str:
        """The description of the setting for ``--help``."""
        return str(self.attribute.metadata["help"])

    def parse(self, text: str, source: str) -> Any:
        """Return the value that `text` represents.

        Raises:
            ValueError: `text` is not allowed for this setting; the message begins with `source`,
                the flag or variable that `text` comes from.
        """
        try:
            value = self._parser()(text)
            if self.attribute.validator is not None:
                self.attribute.validator(None, self.attribute, value)
        except InvalidRequestError as error:
            raise ValueError(str(error.with_field(source))) from None
        except ValueError as error:
            raise ValueError(f"{source} must be {error}, got {text[:80]!a}") from None
        return value

    def _parser(self) -> Callable[[str], Any]:
        """Return the parser that the field declares, otherwise the parser for its type."""
        if parse := self.attribute.metadata.get("parse"):
            return parse  # type: ignore[no-any-return]
        kind = self.attribute.type
        if type(None) in get_args(kind):
            kind = get_args(kind)[0]
        if get_origin(kind) is Literal:
            return partial(_choice, choices=get_args(kind))
        return _PARSERS[get_origin(kind) or kind]


def _settings() -> Iterator[Setting]:
    for attribute in fields(resolve_types(Settings)):
        group = attribute.metadata["group"]
        if attribute.type is ModelOptions:
            for option in fields(resolve_types(ModelOptions)):
                yield Setting(option, group, is_option=True)
        else:
            yield Setting(attribute, group, is_option=False)


SETTINGS = tuple(_settings())
"""All settings, in the order of ``--help``."""

# ── Reading ──────────────────────────────────────────────────────────────────────────────────────


def read(argv: Sequence[str], environ: Mapping[str, str]) -> Settings:
    """Read each setting from `argv`, otherwise from `environ`, otherwise use its default.

    Ends the process with status 2 and one line on standard error if a setting is unknown or its
    value is not allowed, and with status 0 after ``--help``.
    """
    parser = _parser()
    flags, unknown = parser.parse_known_args(argv)
    if unknown:
        name = unknown[0].split("=")[0]  # without the value, which may be a secret
        known = [flag for action in parser._actions for flag in action.option_strings]
        _refuse_unknown(parser, name, name, known)
    variables = [setting.variable for setting in SETTINGS] + list(_VARIABLES_WITHOUT_FLAG)
    for name in environ:
        if name.startswith(PREFIX) and name not in variables:
            _refuse_unknown(parser, f"the environment variable {name}", name, variables)
    values: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for setting in SETTINGS:
        name = setting.attribute.name
        texts, source = getattr(flags, name), setting.flag
        if texts is None and environ.get(setting.variable):
            texts, source = [environ[setting.variable]], setting.variable
        if texts is not None:
            try:
                parsed = [setting.parse(text, source) for text in texts]
            except ValueError as error:
                parser.error(str(error))
            # The last value of a repeated flag counts, or all items of tuples.
            value = sum(parsed, ()) if isinstance(parsed[-1], tuple) else parsed[-1]
            if setting.is_option:
                options[name] = value
            else:
                values[name] = value
    return Settings(**values, model_options=ModelOptions(**options))


def _refuse_unknown(
    parser: argparse.ArgumentParser, subject: str, name: str, known: Sequence[str]
) -> NoReturn:
    similar = nearest(name, known)
    hint = f" (did you mean {similar}?)" if similar else ""
    parser.error(f"{subject} is not a known setting{hint}")


class _SettingsParser(argparse.ArgumentParser):
    """A parser whose errors are one line, without the usage, which would fill the screen."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}; see --help\n")


def _parser() -> argparse.ArgumentParser:
    variables = "\n".join(
        f"  {name}\n      {text}" for name, text in _VARIABLES_WITHOUT_FLAG.items()
    )
    parser = _SettingsParser(
        prog=PROGRAM,
        usage="%(prog)s [OPTION ...]",
        description="Serve search and generation over HTTP.",
        epilog="Every flag is also an environment variable: --max-body-bytes is "
        f"{PREFIX}MAX_BODY_BYTES.\n\nenvironment only:\n{variables}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {}
    for setting in SETTINGS:
        if setting.group not in groups:
            groups[setting.group] = parser.add_argument_group(setting.group)
        text = setting.help
        default = setting.attribute.default
        if default not in (None, ()):
            text += f" (default: {describe_default(default)})"
        groups[setting.group].add_argument(
            setting.flag, metavar="VALUE", action="append", help=text.replace("%", "%%")
        )
    return parser


def describe_default(default: object) -> str:
    """Return the text of a setting's default value for ``--help`` and the documentation."""
    match default:
        case None | ():
            return "not set"
        case bool():
            return "on" if default else "off"
        case float():
            return f"{default:g}"
        case _:
            return str(default)
