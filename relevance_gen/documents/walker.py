"""Which files of a folder to search: none that are hidden, ignored or of another type, as git and ripgrep choose."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from operator import attrgetter
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Final, TypeAlias

from attrs import define, evolve, field, frozen

from relevance_gen import checks
from relevance_gen.documents.filetypes import suffixes
from relevance_gen.errors import InvalidRequestError

if TYPE_CHECKING:
    from pathspec.patterns.gitignore.spec import GitIgnoreSpecPattern

_REPOSITORY: Final = ".git"
_IGNORE, _GITIGNORE, _EXCLUDE = ".ignore", ".gitignore", ".git/info/exclude"
_IGNORE_FILES: Final = (_EXCLUDE, _GITIGNORE, _IGNORE)
"""Files of patterns, the weakest first: a later one overrules, in whatever folder it stands, as in ripgrep."""


_are_texts: Final = checks.items("a string or a list of strings", lambda v: isinstance(v, str))


@frozen
class Selection:
    """What is wanted of the files below a folder.

    Attributes:
        hidden: whether to take files and folders whose name begins with a dot, but for the repository's own.
        no_ignore: whether to take what ignore files name.
        follow: whether to follow symbolic links.
        glob: patterns as in an ignore file, relative to the working folder, that a file has to match, or must not
            where they begin with ``!``; the last that matches decides, even on what is hidden or ignored.
        types: names of file types, of which a file must have one.
    """

    hidden: bool = field(default=False, validator=checks.flag)
    no_ignore: bool = field(default=False, validator=checks.flag)
    follow: bool = field(default=False, validator=checks.flag)
    glob: tuple[str, ...] = field(default=(), converter=checks.as_texts, validator=_are_texts)
    types: tuple[str, ...] = field(default=(), converter=checks.as_texts, validator=_are_texts)


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
class _Decisions:
    """What was decided in a folder by some rules: for each name, a folder's with a slash, whether it is wanted."""

    rules: _Rules
    wanted: dict[str, bool] = field(factory=dict)


@frozen
class _Folder:
    """A folder on the way, its `path` as it is shown and its real path without links.

    The rules are the patterns of the folders above it; `above` has device and inode of those that it stands in.
    """

    path: str
    real: str
    rules: _Rules
    above: frozenset[tuple[int, int]] = frozenset()


_File: TypeAlias = tuple[str, os.DirEntry[str]]
"""A path, and what the system says of the file."""
_name: Final = attrgetter("name")


@define
class Walker:
    """Find the files below folders, and remember what could not be followed.

    One that walks again decides only on names that are new, or in a folder whose ignore files have changed. `warn` is
    told of every folder that cannot be read: its path, and why. It has `failed` where there was one, or a link led
    nowhere; `n_links` were not followed.
    """

    selection: Selection
    warn: Callable[[str, str], None]
    failed: bool = field(default=False, init=False)
    n_links: int = field(default=0, init=False)
    _globs: _Patterns = field(init=False)
    _suffixes: tuple[str, ...] = field(init=False)
    _read: dict[str, tuple[bytes, _Patterns]] = field(factory=dict, init=False)
    _known: dict[str, tuple[bytes, _Patterns]] = field(factory=dict, init=False)
    """What the walk before has read."""
    _decided: dict[str, _Decisions] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._globs = _Patterns("", tuple(_pattern_of_glob(glob) for glob in self.selection.glob))
        self._suffixes = suffixes(self.selection.types)

    def files(self, top: str) -> Iterator[str]:
        """Yield the files below a folder: those of a folder by name, then those of the folders in it."""
        path = str(Path(top))
        return (found for found, _ in self.entries(top, "" if path == "." else path))

    def entries(self, top: str, path: str = "") -> Iterator[_File]:
        """Yield the files below a folder, in the same order, with what the system says of them.

        The folder is called `path` in the paths of its files; by default these are relative to it.
        """
        real = os.path.realpath(top)
        before, self._decided = self._decided, {}
        self._known, self._read = self._read, {}
        waiting = [_Folder(path, real, self._rules_above(real))]
        while waiting:
            files, folders = self._wanted(folder := waiting.pop(), before.get(folder.real))
            yield from files
            waiting += reversed(folders)

    def _wanted(
        self, folder: _Folder, before: _Decisions | None
    ) -> tuple[list[_File], list[_Folder]]:
        """Return the files and the folders that are wanted of a folder, by name."""
        files: list[_File] = []
        folders: list[_Folder] = []
        try:
            with os.scandir(folder.real) as found:
                entries = sorted(found, key=_name)
            status = os.stat(folder.real)
        except OSError as error:
            self._fail(folder.path or ".", error.strerror)
            return files, folders
        rules = self._rules_with(folder.rules, folder.real, set(map(_name, entries)))
        decided: dict[str, bool] = {}
        self._decided[folder.real] = _Decisions(rules, decided)
        known = before.wanted if before is not None and before.rules == rules else {}
        inner = _Folder(
            folder.path, folder.real, rules, folder.above | {(status.st_dev, status.st_ino)}
        )
        path_of = os.path.join(folder.path, "")
        for entry in entries:
            name = entry.name
            path = path_of + name
            try:
                is_plain = entry.is_file(follow_symlinks=False)
                is_folder = not is_plain and entry.is_dir(follow_symlinks=self.selection.follow)
                key = name + "/" if is_folder else name
                is_wanted = known.get(key)
                if is_wanted is None:
                    is_wanted = self._selects(
                        name, path, os.path.join(folder.real, name), is_folder, rules
                    )
                decided[key] = is_wanted
                if not is_wanted:
                    continue
                if is_plain:
                    files.append((path, entry))
                else:
                    self._follow(entry, path, inner, files, folders)
            except OSError as error:
                self._fail(path, error.strerror)
        return files, folders

    def _follow(
        self,
        entry: os.DirEntry[str],
        path: str,
        inside: _Folder,
        files: list[_File],
        folders: list[_Folder],
    ) -> None:
        """Add what is behind a link, or a folder, to the files or the folders, if it is to be followed."""
        if entry.is_symlink() and not self.selection.follow:
            self.n_links += 1
        elif entry.is_dir():
            target = entry.stat()
            if (target.st_dev, target.st_ino) not in inside.above:  # no link in a circle
                folders.append(
                    evolve(inside, path=path, real=os.path.join(inside.real, entry.name))
                )
        elif entry.is_file():
            files.append((path, entry))
        elif entry.is_symlink() and not os.path.exists(entry.path):
            self._fail(path, "the link leads nowhere")

    def _selects(self, name: str, path: str, real: str, is_folder: bool, rules: _Rules) -> bool:
        if name == _REPOSITORY and not (self.selection.hidden and self.selection.no_ignore):
            return False
        if self._suffixes and not is_folder and not name.lower().endswith(self._suffixes):
            return False
        if self.selection.glob:
            unwanted = self._globs.decide(os.path.relpath(path), is_folder)
            if unwanted is None and not is_folder:
                unwanted = any(not glob.startswith("!") for glob in self.selection.glob) or None
            if unwanted is not None:
                return not unwanted
        if name.startswith(".") and not self.selection.hidden:
            return False
        return not _ignored(real, is_folder, rules)

    def _rules_above(self, real: str) -> _Rules:
        """Read the ignore files above a folder, from the root of the repository that it stands in, if it does."""
        rules: _Rules = ((),) * len(_IGNORE_FILES)
        parents = [Path(real), *Path(real).parents]
        root = next(
            (at for at, parent in enumerate(parents) if os.path.exists(parent / _REPOSITORY)), 0
        )
        for parent in reversed(parents[1 : root + 1]):
            rules = self._rules_with(rules, str(parent), (_REPOSITORY, *_IGNORE_FILES))
        return rules

    def _rules_with(self, rules: _Rules, folder: str, names: Container[str]) -> _Rules:
        """Return the rules with those of one folder more, in which there are such names."""
        if self.selection.no_ignore:
            return rules
        return tuple(
            (*known, self._patterns(folder, name)) if name.partition("/")[0] in names else known
            for known, name in zip(rules, _IGNORE_FILES, strict=True)
        )

    def _patterns(self, folder: str, name: str) -> _Patterns:
        """Read the patterns of an ignore file; they are the same object while it says the same."""
        path = os.path.join(folder, name)
        content = _content(path)
        before = self._known.get(path)
        if before is None or before[0] != content:
            lines = content.decode("utf-8-sig", "surrogateescape").split("\n")
            patterns = tuple(pattern for line in lines if (pattern := _pattern(line)) is not None)
            before = content, _Patterns(folder, patterns)
        self._read[path] = before
        return before[1]

    def _fail(self, path: str, why: str | None) -> None:
        self.failed = True
        self.warn(path, why or "cannot be read")


def _ignored(path: str, is_folder: bool, rules: _Rules) -> bool:
    """Tell whether ignore files name a path: the strongest kind decides, and of that the nearest file."""
    for of_a_kind in reversed(rules):
        for patterns in reversed(of_a_kind):
            decision = patterns.decide(path, is_folder)
            if decision is not None:
                return decision
    return False


def matching(globs: Sequence[str], paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths of files that globs want, each with the folders above it, as a walk does; without globs, all.

    A glob that is none is refused.
    """
    wanted = _Patterns("", tuple(_pattern_of_glob(glob) for glob in globs))
    by_default = all(glob.startswith("!") for glob in globs)
    for path in paths:
        unwanted = wanted.decide(path, is_folder=False)
        if unwanted is None:
            unwanted = not by_default
        if not unwanted and not any(
            wanted.decide(str(parent), is_folder=True) for parent in PurePath(path).parents
        ):
            yield path


def _content(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError:  # there is none, or git could not read it, either
        return b""


def _pattern(line: str) -> GitIgnoreSpecPattern | None:
    """Compile a line of an ignore file; None if it is no pattern, which git passes over, too."""
    from pathspec.patterns.gitignore.spec import (
        GitIgnoreSpecPattern,
    )  # here, as many folders have no ignore file

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
