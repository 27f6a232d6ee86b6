"""Match paths against the patterns of ``.gitignore`` files, without backtracking.

The time is proportional to pattern length × path length.

A pattern is translated to one regular expression that cannot backtrack across a wildcard or a
slash. Each ``*`` except the last of a segment becomes an atomic group, ``(?>[^/]*?literal)``: the
earliest match of the literal leaves the longest rest for the following wildcards, so no other match
has to be tried. For the same reason, each ``**`` except the last becomes an atomic group with the
segments between it and the next ``**``.

Source: https://git-scm.com/docs/gitignore. A ``?`` matches a character, where git compares bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import PurePath
from typing import Final

from attrs import frozen

from relevance_gen.errors import InvalidRequestError, describe
from relevance_gen.request_scope import raise_if_cancelled

MAX_PATTERN_CHARS: Final = 1024
"""Maximum characters of a pattern: longer lines of ignore files are skipped, globs are refused."""
MAX_PATTERN_WILDCARDS: Final = 64
"""Maximum number of ``*``, ``?`` and ``[`` in a pattern; with more, it is skipped or refused."""

_WILDCARDS: Final = re.compile(r"[*?[]")
_SEGMENT_TOKEN: Final = re.compile(r"[*?]|\[([!^]?+)(.[^\]]*)\]|(?:\\|(?![\[\\]))(.)", re.DOTALL)
"""Matches a wildcard, a character class with its negation and its characters, or a character that
can be escaped. Does not match a bracket that is not closed, nor a backslash at the end.
"""
_CLASS_ITEM: Final = re.compile("(.)-(.)|(.)", re.DOTALL)
"""Matches a range of a character class, or a single character."""
_FOLDER_LOOP: Final = "(?:[^/]++/)*?"
"""A regular expression that matches as few folders as possible, with their slashes."""


@frozen
class GlobPattern:
    """A compiled pattern of an ignore file.

    Attributes:
        regex: matches the name of a file or folder; if the pattern `has_path`, its path relative to
            the folder of the ignore file.
        is_negated: whether the pattern begins with ``!``.
        only_folders: whether the pattern ends with ``/``, and so does not match files.
        has_path: whether the pattern contains a slash before its end.
    """

    regex: re.Pattern[str]
    is_negated: bool
    only_folders: bool
    has_path: bool

    def matches(self, path: str, *, is_folder: bool) -> bool:
        """Return whether the pattern matches a path itself; folders above it are not checked.

        The path must be relative to the folder of the ignore file.
        """
        if self.only_folders and not is_folder:
            return False
        text = path if self.has_path else path.rpartition("/")[2]
        return self.regex.fullmatch(text) is not None


@frozen
class PatternList:
    """The patterns of an ignore file in order, and the folder that they are relative to.

    For globs, the folder is "".
    """

    folder: str
    patterns: tuple[GlobPattern, ...]

    def decide(self, path: str, *, is_folder: bool) -> bool | None:
        """Return True if a path is excluded, False if it is included, None if no pattern matches.

        The last pattern that matches decides: a pattern that begins with ``!`` includes the path,
        any other excludes it.

        Args:
            path: a path inside `folder` that begins with `folder`.
            is_folder: whether the path is a folder.
        """
        relative = path.removeprefix(self.folder).removeprefix("/")
        for pattern in reversed(self.patterns):
            if pattern.matches(relative, is_folder=is_folder):
                return not pattern.is_negated
        return None


def parse_pattern(line: str) -> GlobPattern | None:
    """Compile a line of an ignore file.

    Returns:
        The pattern; None for a comment, a blank line, or a pattern that is invalid, too long or has
        too many wildcards.
    """
    if _is_too_long(line) or line.startswith("#"):
        return None
    return _compile(line.removeprefix("!"), is_negated=line.startswith("!"))


def _compile(pattern: str, *, is_negated: bool) -> GlobPattern | None:
    """Compile a pattern without its ``!``; None if it is blank or invalid."""
    anchored = pattern.removesuffix("\r")
    if not anchored.endswith("\\ "):
        anchored = anchored.rstrip()
    body = anchored.removesuffix("/")
    has_path = "/" in body
    segments = body.removeprefix("/").split("/")
    if segments == [""]:
        return None
    try:
        regex = re.compile(_path_regex(segments), re.DOTALL)
    except (ValueError, re.error):
        return None
    return GlobPattern(
        regex, is_negated=is_negated, only_folders=anchored.endswith("/"), has_path=has_path
    )


def _is_too_long(pattern: str) -> bool:
    return (
        len(pattern) > MAX_PATTERN_CHARS or len(_WILDCARDS.findall(pattern)) > MAX_PATTERN_WILDCARDS
    )


def parse_globs(globs: Sequence[str]) -> PatternList:
    """Return the compiled patterns of globs that select files.

    A glob selects the paths that the same pattern in an ignore file excludes, and with ``!`` it
    excludes them. Therefore `PatternList.decide` returns False for a path that a glob selects.

    Raises:
        InvalidRequestError: a glob is empty, invalid, too long or has too many wildcards.
    """
    return PatternList("", tuple(map(_parse_glob, globs)))


def _parse_glob(glob: str) -> GlobPattern:
    if _is_too_long(glob):
        limits = f"{MAX_PATTERN_CHARS:,} characters and {MAX_PATTERN_WILDCARDS} wildcards"
        raise InvalidRequestError(f"must have at most {limits}", "glob", describe(glob))
    name = glob.removeprefix("!")
    pattern = _compile(name, is_negated=not glob.startswith("!"))
    if pattern is None or not name.strip("/ "):
        raise InvalidRequestError.must_be("glob", "a pattern as in .gitignore", glob)
    return pattern


def paths_matching(globs: Sequence[str], paths: Iterable[str]) -> Iterator[str]:
    """Yield the file paths that globs select, as a `Walker` does; without globs, all paths.

    A file is selected if the last glob that matches it does not begin with ``!``, and globs exclude
    no folder above it. A file that no glob matches is selected if all globs begin with ``!``.

    Raises:
        InvalidRequestError: a glob is empty, invalid, too long or has too many wildcards.
        RequestCancelledError: the request was cancelled.
    """
    patterns = parse_globs(globs)
    selects_by_default = all(glob.startswith("!") for glob in globs)
    for path in paths:
        raise_if_cancelled()
        excluded = patterns.decide(path, is_folder=False)
        if excluded is None:
            excluded = not selects_by_default
        parents = map(str, PurePath(path).parents)
        if not excluded and not any(patterns.decide(name, is_folder=True) for name in parents):
            yield path


def _path_regex(segments: list[str]) -> str:
    """Return the regular expression of a pattern that is split at its slashes.

    Consecutive segments ``**`` have the effect of a single segment ``**``.

    Raises:
        ValueError: a segment is invalid.
    """
    runs: list[list[str]] = [[]]
    for segment in segments:
        if segment == "**":
            runs.append([])
        else:
            runs[-1].append(_segment_regex(segment))
    *leading_runs, last_run = runs
    regex = ""
    for run_index, run in enumerate(leading_runs):
        folders = "".join(f"(?>{segment}/)" for segment in run)
        if run_index == 0:
            regex += folders
        elif folders:
            regex += f"(?>{_FOLDER_LOOP}{folders})"
    if not last_run:  # after a final ** there is at least one more segment
        return regex + ".+"
    *folders_of_last, name = last_run
    if leading_runs:
        regex += _FOLDER_LOOP
    return regex + "".join(f"(?>{segment}/)" for segment in folders_of_last) + name


def _segment_regex(segment: str) -> str:
    """Return the regular expression of a segment, the part of a pattern between two slashes.

    Raises:
        ValueError: a bracket is not closed, or a backslash is the last character.
    """
    first, *others = _literals_between_stars(segment)
    if not others:
        return first
    *middle, last = others
    atomic = "".join(f"(?>[^/]*?{literal})" for literal in middle if literal)
    return f"{first}{atomic}[^/]*{last}"


def _literals_between_stars(segment: str) -> list[str]:
    """Divide a segment at its wildcards ``*``, and return a regular expression for each part.

    Each of these expressions matches a fixed number of characters.

    Raises:
        ValueError: a bracket is not closed, or a backslash is the last character.
    """
    literals = [""]
    end = 0
    while end < len(segment):
        token = _SEGMENT_TOKEN.match(segment, end)
        if token is None:
            raise ValueError("a bracket is not closed, or a backslash escapes nothing")
        end = token.end()
        negation, class_chars, char = token.groups()
        if char:
            literals[-1] += re.escape(char)
        elif class_chars:
            escaped = _CLASS_ITEM.sub(_escape_class_item, class_chars)
            caret = "^" if negation else ""
            literals[-1] += f"(?!/)[{caret}{escaped}]"  # never matches a slash
        elif token[0] == "?":
            literals[-1] += "[^/]"
        else:
            literals.append("")
    return literals


def _escape_class_item(item: re.Match[str]) -> str:
    """Return the regular expression of a match of `_CLASS_ITEM`."""
    characters = filter(None, item.groups())
    return "-".join(map(re.escape, characters))
