"""Find the files of a folder as git and ripgrep do: without hidden and ignored files."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Container, Iterable, Iterator
from contextlib import suppress
from operator import attrgetter
from pathlib import Path
from typing import Final, TypeAlias

from attrs import define, evolve, field, frozen

from relevance_gen import checks
from relevance_gen.documents.globs import PatternList, parse_globs, parse_pattern
from relevance_gen.errors import InvalidRequestError, did_you_mean
from relevance_gen.request_scope import raise_if_cancelled

MAX_IGNORE_FILE_BYTES: Final = 1 << 18
"""Maximum bytes of an ignore file that are read; the rest is skipped."""
MAX_PATTERNS: Final = 10_000
"""Maximum lines of an ignore file that are used, which bounds the time to compile the patterns."""

# Opening a pipe without O_NONBLOCK waits for a writer. Windows lacks O_NONBLOCK, and without
# O_BINARY it replaces line ends.
_OPEN_FLAGS: Final = (
    os.O_RDONLY
    | getattr(os, "O_CLOEXEC", 0)
    | getattr(os, "O_NONBLOCK", 0)
    | getattr(os, "O_BINARY", 0)
)
_REPOSITORY: Final = ".git"
_IGNORE_FILES: Final = (".git/info/exclude", ".gitignore", ".ignore")
"""Names of ignore files, in ascending precedence.

As in ripgrep, a name of higher precedence decides even if a file with another name is in a nearer
folder.
"""

_SUFFIXES_OF_TYPES: Final = {
    "c": ".c .h",
    "config": ".cfg .conf .ini .toml .yaml .yml",
    "cpp": ".cc .cpp .cxx .h .hh .hpp .hxx",
    "cs": ".cs",
    "css": ".css .less .scss",
    "csv": ".csv .tsv",
    "docs": ".adoc .docx .eml .epub .htm .html .markdown .md .odp .ods .odt .org .pdf .pptx "
    ".rst .tex .txt .xhtml .xlsx",
    "go": ".go",
    "html": ".htm .html .xhtml",
    "java": ".java",
    "js": ".cjs .js .jsx .mjs",
    "json": ".json .jsonl",
    "kotlin": ".kt .kts",
    "log": ".log",
    "md": ".markdown .md .mdx",
    "office": ".docx .odp .ods .odt .pptx .xlsx",
    "pdf": ".pdf",
    "php": ".php",
    "py": ".py .pyi",
    "rb": ".rb",
    "rst": ".rst",
    "rust": ".rs",
    "sh": ".bash .sh .zsh",
    "sql": ".sql",
    "swift": ".swift",
    "tex": ".tex",
    "toml": ".toml",
    "ts": ".cts .mts .ts .tsx",
    "txt": ".text .txt",
    "xml": ".xml",
    "yaml": ".yaml .yml",
}
"""The file-name suffixes of each file type."""

_are_strings: Final = checks.items(
    "a string", checks.string.is_allowed, "a string or a list of strings"
)
_name: Final = attrgetter("name")

IgnoreRules: TypeAlias = tuple[tuple[PatternList, ...], ...]
"""For each name in `_IGNORE_FILES`, the patterns of the files with this name, top folder first."""
_PatternCache: TypeAlias = dict[tuple[str, bytes], PatternList]
"""The patterns of each ignore file of a walk, by the path and the content of the file."""
FileEntry: TypeAlias = tuple[str, os.DirEntry[str]]
"""The path of a file as the walker returns it, and its directory entry."""


def _suffixes_of(types: Iterable[str]) -> tuple[str, ...]:
    """Return the file-name suffixes of the named file types, in lower case; () for no types.

    Raises:
        InvalidRequestError: a type is unknown.
    """
    selected: list[str] = []
    for name in types:
        if name not in _SUFFIXES_OF_TYPES:
            listed = f"the types are {', '.join(_SUFFIXES_OF_TYPES)}"
            remedy = did_you_mean(name, _SUFFIXES_OF_TYPES, listed)
            raise InvalidRequestError.must_be("types", "names of file types", name, remedy=remedy)
        selected += _SUFFIXES_OF_TYPES[name].split()
    return tuple(selected)


def list_file_types() -> str:
    """Return a line for each type with its name and its globs, such as ``go: *.go``."""
    lines = []
    for name, suffixes_of_type in _SUFFIXES_OF_TYPES.items():
        globs = ", ".join("*" + suffix for suffix in suffixes_of_type.split())
        lines.append(f"{name}: {globs}\n")
    return "".join(lines)


@frozen
class Selection:
    """The options that select files below a folder.

    Attributes:
        hidden: whether to include files and folders whose name begins with a dot. ``.git`` is
            included only if `no_ignore` is set, too.
        no_ignore: whether to include files that ignore files exclude.
        follow: whether to follow symbolic links.
        glob: patterns as in an ignore file, relative to the working folder, that a file must match,
            or must not match if the pattern begins with ``!``. The last pattern that matches
            decides, also on hidden and ignored files. A file that no pattern matches is excluded,
            unless all patterns begin with ``!``.
        types: names of file types; a file must have one of these types. Empty for any type.
    """

    hidden: bool = field(default=False, validator=checks.flag)
    no_ignore: bool = field(default=False, validator=checks.flag)
    follow: bool = field(default=False, validator=checks.flag)
    glob: tuple[str, ...] = field(
        default=(),
        converter=checks.as_texts,
        validator=_are_strings,
    )
    types: tuple[str, ...] = field(
        default=(),
        converter=checks.as_texts,
        validator=_are_strings,
    )


@frozen
class _Decisions:
    """The decisions of a walk on the entries of one folder.

    Attributes:
        rules: the ignore rules that the decisions are based on.
        is_selected: whether each name is selected; the name of a subfolder ends with a slash.
    """

    rules: IgnoreRules
    is_selected: dict[str, bool] = field(factory=dict)


@frozen
class _WalkedFolder:
    """A folder that the walk enters.

    Attributes:
        path: the path of the folder as the walker returns it; the path of each file in the folder
            begins with it. "" if the paths of files are relative to this folder.
        real: the absolute path; links in the path of the top folder are resolved.
        rules: the patterns of the ignore files in the folders above it.
        ancestors: device and inode of each folder of the walk above it.
    """

    path: str
    real: str
    rules: IgnoreRules
    ancestors: frozenset[tuple[int, int]] = frozenset()


@define
class Walker:
    """Finds the files below a folder that the options select.

    In a further walk, a walker reuses its decisions of the previous walk, except on new names and
    in folders whose ignore rules have changed.

    Args:
        selection: the options.
        warn: called with the path of each entry that cannot be read or is a broken link, and the
            reason.

    Attributes:
        has_failed: whether `warn` was called, in any walk of this walker.
        n_links: the number of symbolic links that were not followed; each walk adds to it.
    """

    selection: Selection
    warn: Callable[[str, str], None]
    has_failed: bool = field(default=False, init=False)
    n_links: int = field(default=0, init=False)
    _globs: PatternList = field(init=False)
    _suffixes: tuple[str, ...] = field(init=False)
    _patterns: _PatternCache = field(factory=dict, init=False)
    _previous_patterns: _PatternCache = field(factory=dict, init=False)
    _decisions: dict[str, _Decisions] = field(factory=dict, init=False)

    def __attrs_post_init__(self) -> None:
        self._globs = parse_globs(self.selection.glob)
        self._suffixes = _suffixes_of(self.selection.types)

    def files(self, top: str) -> Iterator[str]:
        """Yield the paths of the selected files below a folder, in the order of names.

        The files in a folder come before the files in its subfolders. The paths begin with `top`,
        unless that is the working folder.
        """
        path = str(Path(top))
        for file_path, _ in self.entries(top, "" if path == "." else path):
            yield file_path

    def entries(self, top: str, path: str = "") -> Iterator[FileEntry]:
        """Yield the path and the directory entry (`os.DirEntry`) of each selected file.

        The order is that of `files`.

        Args:
            top: the folder to walk.
            path: begins the paths of the files; "" for paths that are relative to `top`.

        Raises:
            RequestCancelledError: the request was cancelled.
        """
        real = os.path.realpath(top)
        previous_decisions = self._decisions
        self._decisions = {}
        self._previous_patterns = self._patterns
        self._patterns = {}
        stack = [_WalkedFolder(path, real, self._rules_above(real))]
        while stack:
            raise_if_cancelled()
            folder = stack.pop()
            files, folders = self._list_folder(folder, previous_decisions.get(folder.real))
            yield from files
            stack += reversed(folders)

    def _list_folder(
        self, folder: _WalkedFolder, previous: _Decisions | None
    ) -> tuple[list[FileEntry], list[_WalkedFolder]]:
        """Return the selected files and subfolders of a folder, each sorted by name.

        Both are empty if the folder cannot be read. `previous` has the decisions of the previous
        walk on this folder; it is None if that walk did not enter it.
        """
        files: list[FileEntry] = []
        folders: list[_WalkedFolder] = []
        try:
            with os.scandir(folder.real) as scanned:
                entries = sorted(scanned, key=_name)
            status = os.stat(folder.real)
        except OSError as error:
            self._fail(folder.path or ".", error.strerror)
            return files, folders
        rules = self._rules_with(folder.rules, folder.real, set(map(_name, entries)))
        decided: dict[str, bool] = {}
        self._decisions[folder.real] = _Decisions(rules, decided)
        known = previous.is_selected if previous is not None and previous.rules == rules else {}
        ancestors = folder.ancestors | {(status.st_dev, status.st_ino)}
        inner = _WalkedFolder(folder.path, folder.real, rules, ancestors)
        prefix = os.path.join(folder.path, "")
        for entry in entries:
            name = entry.name
            path = prefix + name
            try:
                is_plain = entry.is_file(follow_symlinks=False)
                is_folder = not is_plain and entry.is_dir(follow_symlinks=self.selection.follow)
                key = name + "/" if is_folder else name
                is_selected = known.get(key)
                if is_selected is None:
                    is_selected = self._selects(
                        path, os.path.join(folder.real, name), is_folder, rules
                    )
                decided[key] = is_selected
                if not is_selected:
                    continue
                if is_plain:
                    files.append((path, entry))
                else:
                    self._add_entry(entry, path, inner, files, folders)
            except OSError as error:
                self._fail(path, error.strerror)
        return files, folders

    def _add_entry(
        self,
        entry: os.DirEntry[str],
        path: str,
        parent: _WalkedFolder,
        files: list[FileEntry],
        folders: list[_WalkedFolder],
    ) -> None:
        """Add a selected folder or the target of a link to `folders` or `files`.

        A link is only counted if links are not followed, a folder that contains itself by a cycle
        of links is skipped, and a broken link is reported.

        Args:
            entry: a folder, a symbolic link, or a special file, which is skipped.
            path: the path of the entry.
            parent: the folder that contains the entry, with the rules that apply to its entries.
            files: the files of the parent.
            folders: the subfolders of the parent.
        """
        if entry.is_symlink() and not self.selection.follow:
            self.n_links += 1
        elif entry.is_dir():
            target = entry.stat()
            if (target.st_dev, target.st_ino) not in parent.ancestors:  # otherwise a cycle of links
                real = os.path.join(parent.real, entry.name)
                folders.append(evolve(parent, path=path, real=real))
        elif entry.is_file():
            files.append((path, entry))
        elif entry.is_symlink() and not os.path.exists(entry.path):
            self._fail(path, "the target of the symbolic link does not exist")

    def _selects(self, path: str, real: str, is_folder: bool, rules: IgnoreRules) -> bool:
        """Return whether the options and the ignore rules select an entry.

        Args:
            path: the path of the entry, which globs are matched with.
            real: its absolute path, which ignore rules are matched with.
            is_folder: whether it is a folder; globs without ``!`` and types do not exclude folders.
            rules: the ignore rules for the entries of its folder.
        """
        name = os.path.basename(real)
        if name == _REPOSITORY and not (self.selection.hidden and self.selection.no_ignore):
            return False
        if self._suffixes and not is_folder and not name.lower().endswith(self._suffixes):
            return False
        if self.selection.glob:
            excluded = self._globs.decide(os.path.relpath(path), is_folder=is_folder)
            if excluded is not None:
                return not excluded
            if not is_folder and not all(glob.startswith("!") for glob in self.selection.glob):
                return False
        if name.startswith(".") and not self.selection.hidden:
            return False
        return not _is_ignored(real, is_folder, rules)

    def _rules_above(self, real: str) -> IgnoreRules:
        """Return the rules of the ignore files above a folder, from its repository's root down.

        The rules are empty if the folder is the root of a repository or is in none.
        """
        rules: IgnoreRules = ((),) * len(_IGNORE_FILES)
        parents: list[str] = []
        folder = real
        while not os.path.exists(os.path.join(folder, _REPOSITORY)):
            parent = os.path.dirname(folder)
            if parent == folder:
                return rules
            parents.append(parent)
            folder = parent
        for parent in reversed(parents):
            rules = self._rules_with(rules, parent, (_REPOSITORY, *_IGNORE_FILES))
        return rules

    def _rules_with(self, rules: IgnoreRules, folder: str, names: Container[str]) -> IgnoreRules:
        """Return `rules` with the patterns of the ignore files in `folder` appended.

        Args:
            rules: the ignore rules of the folders above `folder`.
            folder: the absolute path of the folder.
            names: the names of the entries of `folder`; only ignore files in `names` are read.

        Returns:
            The extended rules; `rules` unchanged if the options disable ignore files.
        """
        if self.selection.no_ignore:
            return rules
        extended = []
        for lists, name in zip(rules, _IGNORE_FILES, strict=True):
            if name.partition("/")[0] in names:
                lists = (*lists, self._read_patterns(folder, name))
            extended.append(lists)
        return tuple(extended)

    def _read_patterns(self, folder: str, name: str) -> PatternList:
        """Read an ignore file, and return its patterns; none if it cannot be read.

        If its content has not changed since the previous walk, the same object is returned again.
        """
        path = os.path.join(folder, name)
        content = b""
        # Like git, ignore errors.
        with suppress(OSError), open(open_regular_file(path, follow=True), "rb") as file:
            content = file.read(MAX_IGNORE_FILE_BYTES)
        patterns = self._previous_patterns.get((path, content))
        if patterns is None:
            lines = content.decode("utf-8-sig", "surrogateescape").split("\n")[:MAX_PATTERNS]
            patterns = PatternList(folder, tuple(filter(None, map(parse_pattern, lines))))
        self._patterns[path, content] = patterns
        return patterns

    def _fail(self, path: str, reason: str | None) -> None:
        self.has_failed = True
        self.warn(path, reason or "cannot be read")


def _is_ignored(path: str, is_folder: bool, rules: IgnoreRules) -> bool:
    """Return whether ignore files exclude a path; False if no pattern matches it.

    The names of ignore files are compared first: all files with the name of the highest precedence
    in `_IGNORE_FILES`, then all files with the next name. Among files with the same name, the file
    in the nearest folder comes first. The first file that has a matching pattern decides.
    """
    for lists in reversed(rules):
        for patterns in reversed(lists):
            excluded = patterns.decide(path, is_folder=is_folder)
            if excluded is not None:
                return excluded
    return False


def open_regular_file(path: str, *, follow: bool) -> int:
    """Open a regular file for reading, and return its descriptor.

    Raises:
        OSError: the file cannot be opened, is a pipe, a device or a folder, or is a symbolic link
            although `follow` is False.
    """
    flags = _OPEN_FLAGS
    if not follow:
        flags |= getattr(os, "O_NOFOLLOW", 0)
        if not hasattr(os, "O_NOFOLLOW") and os.path.islink(path):  # on Windows
            raise OSError(None, "is a symbolic link")
    descriptor = os.open(path, flags)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(None, "is not a regular file")
    return descriptor
