"""A parser of arguments that takes options anywhere and helps with what was mistyped."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from typing import Any, NoReturn

from relevance_gen.errors import InvalidRequestError, nearest

STDIN = "-"
_TAKEN_AS_IT_IS = "\0"
"""Marks an argument behind ``--``. No argument of a process can hold a NUL."""
_SENTENCE_WITH_DASH = re.compile(r"-\S*\s")


class Parser(argparse.ArgumentParser):
    """Parse a command's arguments: options before, between and behind the others, and behind ``--`` none."""

    _has_sentence_with_dash = False

    def __init__(self, **settings: Any) -> None:
        # An abbreviation would change its meaning as soon as a new flag began with the same letters.
        super().__init__(**{"allow_abbrev": False, **settings})

    def parse(self, arguments: Sequence[str]) -> argparse.Namespace:
        """Return what `arguments` say, or end the process with status 2 and a hint.

        argparse finds ``--`` at some places only; which, differs between versions of Python.
        """
        end = arguments.index("--") if "--" in arguments else len(arguments)
        options = list(arguments[:end])
        self._has_sentence_with_dash = any(_SENTENCE_WITH_DASH.match(option) for option in options)
        marked = [_TAKEN_AS_IT_IS + word for word in arguments[end + 1 :]]
        parsed, unknown = self.parse_known_intermixed_args(options + marked)
        if unknown:
            self.refuse(unknown)
        return argparse.Namespace(
            **{name: _unmarked(value) for name, value in vars(parsed).items()}
        )

    def error(self, message: str) -> NoReturn:
        """End the process with status 2 after a message, with a hint where a question may have been taken apart."""
        if self._has_sentence_with_dash:
            message += "; a question that begins with - goes behind --"
        super().error(message)

    def in_its_words(self, error: InvalidRequestError) -> InvalidRequestError:
        """Return an error with options and arguments in place of the fields that they are the values of."""
        names = {
            action.dest: next(
                (flag for flag in action.option_strings if flag.startswith("--")),
                str(action.metavar),
            )
            for action in self._actions
        }
        return error.with_field_names(names | {f"{name}=": flag for name, flag in names.items()})

    def refuse(self, unknown: Sequence[str]) -> NoReturn:
        """End the process with status 2 after the names of arguments that are not known, and what they may mean."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        options = [argument.partition("=")[0] for argument in unknown if argument.startswith("-")]
        meant = " ".join(
            dict.fromkeys(filter(None, (nearest(option, known) for option in options)))
        )
        names = " ".join(options or unknown).replace(_TAKEN_AS_IT_IS, "")
        self.error(
            f"unrecognized arguments: {names}" + (f"; did you mean {meant}?" if meant else "")
        )


def add_rows(parser: argparse._ActionsContainer, *rows: tuple[str, dict[str, Any], str]) -> None:
    """Add arguments: the names of each, with a space between two, how argparse reads it, and what it is for."""
    for names, settings, purpose in rows:
        parser.add_argument(*names.split(), help=purpose, **settings)


def not_empty(text: str) -> str:
    """Read a path or a name; an empty one, which a script may leave by mistake, would mean the working folder."""
    if not text.removeprefix(_TAKEN_AS_IT_IS):
        raise argparse.ArgumentTypeError("must not be empty")
    return text


def integer(text: str) -> int:
    """Read an integer; what range it has is checked where it is used."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise argparse.ArgumentTypeError(f"must be an integer, got {text[:80]!a}")
    return int(text)


def pair(text: str) -> tuple[str, str]:
    """Read a name and what it stands for."""
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise argparse.ArgumentTypeError(f"must be KEY=VALUE, got {text[:80]!a}")
    return name, value


def number(text: str) -> float:
    """Read a number; what range it has is checked where it is used."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number, got {text[:80]!a}") from None


def _unmarked(value: object) -> object:
    if isinstance(value, list):
        return [_unmarked(one) for one in value]
    return value.removeprefix(_TAKEN_AS_IT_IS) if isinstance(value, str) else value
