"""Which files of a folder to search: none that are hidden, ignored or of another type, as git and ripgrep choose."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import define, field, frozen

from relevance_gen.cli.filetypes import suffixes
from relevance_gen.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_REPOSITORY: Final = ".git"
_IGNORE, _GITIGNORE, _EXCLUDE = ".ignore", ".gitignore", ".git/info/exclude"
_IGNORE_FILES: Final = (_EXCLUDE, _GITIGNORE, _IGNORE)
"""Files of patterns, the weakest first: a later one overrules, in whatever folder it stands, as in ripgrep."""


@frozen
class Selection:
    """What is wanted of the files below a folder.

    Attributes:
        hidden: whether to take files and folders whose name begins with a dot, but for the repository's own.
        no_ignore: whether to take what ignore files name.
        follow: whether to follow symbolic links.
        globs: patterns as in an ignore file, relative to the working folder, that a file has to match, or must not
            where they begin with ``!``; the last that matches decides, even on what is hidden or ignored.
        types: names of file types, of which a file must have one.
    """

    hidden: bool = False
    no_ignore: bool = False
    follow: bool = False
    globs: tuple[str, ...] = ()
    types: tuple[str, ...] = ()


@frozen
class _Patterns:
    """The patterns of an ignore file, and the folder that they are relative to."""

    folder: str
    patterns: tuple[GitIgnoreSpecPattern, ...]

    def decide(self, path: str, is_folder: bool) -> bool | None:
        """Tell what the last pattern that matches says of a path: ignore it or not; None if no pattern matches."""
        relative = path.removeprefix(self.folder).removeprefix("/")
        for pattern in reversed(self.patterns):
            if _matches(pattern, relative, is_folder):
                return pattern.include
        return None


_Rules: TypeAlias = tuple[tuple[_Patterns, ...], ...]
"""For each of `_IGNORE_FILES`, the patterns of the folders from the top down."""


@frozen
class _Folder:
    """A folder on the way.

    Attributes:
        path: as it is shown.
        real: its path without links.
        rules: the patterns of the folders above it.
        above: device and inode of the folders that it stands in.
    """

    path: str
    real: str
    rules: _Rules
    above: frozenset[tuple[int, int]] = frozenset()


@define
class Walker:
    """Find the files below folders, and remember what could not be followed.

    Args:
        selection: what is wanted.
        warn: told of every folder that cannot be read.

    Attributes:
        failed: whether a folder could not be read, or a link leads nowhere.
        n_links: links that were not followed.
    """

    selection: Selection
    warn: Callable[[str], None]
    failed: bool = field(default=False, init=False)
    n_links: int = field(default=0, init=False)
    _globs: _Patterns = field(init=False)
    _suffixes: tuple[str, ...] = field(init=False)

    def __attrs_post_init__(self) -> None:
        self._globs = _Patterns("", tuple(_pattern_of_glob(glob) for glob in self.selection.globs))
        self._suffixes = suffixes(self.selection.types)

    def files(self, top: str) -> Iterator[str]:
        """Yield the files below a folder: those of a folder by name, then those of the folders in it."""
        real = os.path.realpath(top)
        path = str(Path(top))
        waiting = [_Folder("" if path == "." else path, real, self._rules_above(real))]
        while waiting:
            folder = waiting.pop()
            below = []
            for entry, inner in self._wanted(folder):
                if inner is not None:
                    below.append(inner)
                else:
                    yield os.path.join(folder.path, entry.name)
            waiting += reversed(below)

    def _wanted(self, folder: _Folder) -> Iterator[tuple[os.DirEntry[str], _Folder | None]]:
        """Yield what is wanted of a folder, by name, and for a folder how to go on there."""
        try:
            with os.scandir(folder.path or ".") as found:
                entries = sorted(found, key=lambda entry: entry.name)
            status = os.stat(folder.path or ".")
        except OSError as error:
            return self._fail(folder.path or ".", error.strerror)
        rules = self._rules_with(folder.rules, folder.real, {entry.name for entry in entries})
        above = folder.above | {(status.st_dev, status.st_ino)}
        for entry in entries:
            path, real = os.path.join(folder.path, entry.name), os.path.join(folder.real, entry.name)
            try:
                is_folder = entry.is_dir(follow_symlinks=self.selection.follow)
                if not self._selects(entry.name, path, real, is_folder, rules):
                    continue
                if entry.is_symlink() and not self.selection.follow:
                    self.n_links += 1
                elif is_folder:
                    target = entry.stat()
                    if (target.st_dev, target.st_ino) not in above:  # no link in a circle
                        yield entry, _Folder(path, real, rules, above)
                elif entry.is_file():
                    yield entry, None
                elif entry.is_symlink() and not os.path.exists(path):
                    self._fail(path, "the link leads nowhere")
            except OSError as error:
                self._fail(path, error.strerror)

    def _selects(self, name: str, path: str, real: str, is_folder: bool, rules: _Rules) -> bool:
        if name == _REPOSITORY and not (self.selection.hidden and self.selection.no_ignore):
            return False
        if self._suffixes and not is_folder and not name.lower().endswith(self._suffixes):
            return False
        if self.selection.globs:
            unwanted = self._globs.decide(os.path.relpath(path), is_folder)
            if unwanted is None and not is_folder:
                unwanted = any(not glob.startswith("!") for glob in self.selection.globs) or None
            if unwanted is not None:
                return not unwanted
        if name.startswith(".") and not self.selection.hidden:
            return False
        return not _ignored(real, is_folder, rules)

    def _rules_above(self, real: str) -> _Rules:
        """Read the ignore files above a folder, from the root of the repository that it stands in, if it does."""
        rules: _Rules = ((),) * len(_IGNORE_FILES)
        parents = [Path(real), *Path(real).parents]
        root = next((at for at, parent in enumerate(parents) if os.path.exists(parent / _REPOSITORY)), 0)
        for parent in reversed(parents[1 : root + 1]):
            rules = self._rules_with(rules, str(parent), (_REPOSITORY, *_IGNORE_FILES))
        return rules

    def _rules_with(self, rules: _Rules, folder: str, names: Container[str]) -> _Rules:
        """Return the rules with those of one folder more, in which there are such names."""
        if self.selection.no_ignore:
            return rules
        return tuple(
            (*known, _read_patterns(folder, name)) if name.partition("/")[0] in names else known
            for known, name in zip(rules, _IGNORE_FILES, strict=True)
        )

    def _fail(self, path: str, why: str | None) -> None:
        self.failed = True
        self.warn(f"{path}: {why}")


def _ignored(path: str, is_folder: bool, rules: _Rules) -> bool:
    """Tell whether ignore files name a path: the strongest kind decides, and of that the nearest file."""
    for of_a_kind in reversed(rules):
        for patterns in reversed(of_a_kind):
            decision = patterns.decide(path, is_folder)
            if decision is not None:
                return decision
    return False


def _read_patterns(folder: str, name: str) -> _Patterns:
    try:
        content = Path(folder, name).read_bytes()
    except OSError:  # there is none, or git could not read it, either
        content = b""
    lines = content.decode("utf-8-sig", "surrogateescape").split("\n")
    return _Patterns(folder, tuple(pattern for line in lines if (pattern := _pattern(line)) is not None))


def _pattern(line: str) -> GitIgnoreSpecPattern | None:
    """Compile a line of an ignore file; None if it is no pattern, which git passes over, too."""
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern  # here, as many folders have no ignore file

    line = line.removesuffix("\r").rstrip(" ") if not line.endswith("\\ ") else line
    if line.endswith("/**/"):  # pathspec makes the same expression of a/**/ as of /a/
        line += "*/"
    try:
        pattern = GitIgnoreSpecPattern(line)
    except ValueError:
        return None
    return None if pattern.include is None else pattern


def _pattern_of_glob(glob: str) -> GitIgnoreSpecPattern:
    """Compile a glob that names what is wanted: the opposite of the same pattern in an ignore file."""
    name = glob.removeprefix("!")
    name = "\\" + name if name.startswith(("!", "#")) else name
    pattern = _pattern(name if glob.startswith("!") else "!" + name)
    if pattern is None or not name.strip("/ "):
        raise InvalidRequestError.must_be("glob", "a pattern as in .gitignore", glob)
    return pattern


def _matches(pattern: GitIgnoreSpecPattern, path: str, is_folder: bool) -> bool:
    """Tell whether a pattern matches a path itself, and not only a folder above it.

    The folders above were decided on before, perhaps by another pattern. pathspec's expressions match a beginning of
    the path. Those that have a group end where the named file or folder ends; those without match everything below.
    """
    regex: re.Pattern[str] | None = pattern.regex
    if regex is None:
        return False
    if not regex.groups:
        return regex.search(path) is not None
    whole = path + "/" * is_folder
    return any(found.end() == len(whole) for found in regex.finditer(whole))
