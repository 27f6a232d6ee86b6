"""An argument parser that accepts options anywhere and suggests corrections for typing errors."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from attrs import frozen

from relevance_gen.errors import InvalidRequestError, nearest

STDIN: Final = "-"
_LITERAL_MARK: Final = "\0"
"""Precedes an argument after ``--``; arguments of a process cannot contain NUL."""
_DASHED_SENTENCE: Final = re.compile(r"-\S*\s")
_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_MAX_SHOWN_CHARS: Final = 80


class CommandParser(argparse.ArgumentParser):
    """A parser that accepts options before, between and after positional arguments.

    All arguments after ``--`` are positional, even if they begin with ``-``.
    """

    _has_dashed_sentence = False

    def __init__(self, **settings: Any) -> None:
        # A new flag could change the meaning of an abbreviation.
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Parse the arguments of a command; end the process with status 2 if they are invalid.

        This method itself handles ``--``, because argparse recognizes it only at certain positions,
        which depend on the version of Python.
        """
        end = arguments.index("--") if "--" in arguments else len(arguments)
        options = list(arguments[:end])
        self._has_dashed_sentence = any(map(_DASHED_SENTENCE.match, options))
        literals = [_LITERAL_MARK + argument for argument in arguments[end + 1 :]]
        parsed, unknown = self.parse_known_intermixed_args(options + literals)
        if unknown:
            self.refuse(unknown)
        values = {name: _without_mark(value) for name, value in vars(parsed).items()}
        return argparse.Namespace(**values)

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 and a message.

        If an argument looks like a sentence that begins with ``-``, a hint follows the message.
        """
        if self._has_dashed_sentence:
            message += "; a question that begins with - goes after --"
        super().error(message)

    def with_flags(self, error: InvalidRequestError) -> InvalidRequestError:
        """Return `error` with names that users of the command line know.

        Each name of a field of the library is replaced by the long flag that sets this field, or
        by the name of the positional argument.
        """
        flags: dict[str, str] = {}
        for action in self._actions:
            long_flags = [flag for flag in action.option_strings if flag.startswith("--")]
            flag = long_flags[0] if long_flags else str(action.metavar)
            flags[action.dest] = flag
            flags[f"{action.dest}="] = flag
            if isinstance(action.default, list):  # the field of a repeatable flag is a plural
                flags[f"{action.dest}s"] = flag
        return error.with_field_names(flags)

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """End the process with status 2, naming the unknown arguments and similar options."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        options = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
        similar = filter(None, (nearest(option, known) for option in options))
        suggestion = " ".join(dict.fromkeys(similar))
        names = " ".join(options or unknown).replace(_LITERAL_MARK, "")
        hint = f"; did you mean {suggestion}?" if suggestion else ""
        self.error(f"unrecognized arguments: {names}{hint}")


def not_empty(text: str) -> str:
    """Return the text of a path or name; refuse an empty text, often a mistake of a script."""
    if not text.removeprefix(_LITERAL_MARK):
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def integer(text: str) -> int:
    """Parse an integer; its range is checked by the code that uses it."""
    if not _INTEGER.fullmatch(text):
        raise argparse.ArgumentTypeError(f"must be an integer, got {quote(text)}")
    return int(text)


def number(text: str) -> float:
    """Parse a number; its range is checked by the code that uses it."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {quote(text)}") from None


@frozen
class Condition:
    """A condition on the metadata of chunks.

    Attributes:
        key: the metadata key.
        comparison: "gte", "lte", "gt" or "lt", as in the search option ``where``; None if the
            metadata must equal the value.
        value: the value to compare with, as the user wrote it.
    """

    key: str
    comparison: str | None
    value: str


_COMPARISONS: Final = {">=": "gte", "<=": "lte", ">": "gt", "<": "lt", "=": None}


def read_condition(text: str) -> Condition:
    """Return the condition that a text states, such as ``KEY=VALUE`` or ``KEY>=VALUE``."""
    match = re.fullmatch("(.+?)(>=|<=|>|<|=)(.*)", text, re.DOTALL)
    if match is None:
        message = f"must be KEY=VALUE or a comparison with <, <=, > or >=, got {quote(text)}"
        raise argparse.ArgumentTypeError(message)
    return Condition(match[1], _COMPARISONS[match[2]], match[3])


def quote(text: str) -> str:
    """Return an argument for an error message: its beginning, quoted and in ASCII."""
    return ascii(text[:_MAX_SHOWN_CHARS])


def _without_mark(value: object) -> object:
    if isinstance(value, list):
        return [_without_mark(item) for item in value]
    return value.removeprefix(_LITERAL_MARK) if isinstance(value, str) else value
