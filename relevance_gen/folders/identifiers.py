"""Split names of files and of definitions in code into words.

The level of a definition is high if its name describes the subject of the text::

    level = 1 at the margin, 0.8 up to four columns in, 0.6 deeper
            × 0.5 for additions to a definition elsewhere, such as `impl`
            × 0.7 for values and macros

One pattern finds names after keywords in any language; further patterns are for languages that
define names without a keyword. Wrong names are harmless, because questions rarely contain them.
"""

from __future__ import annotations

import functools
import re
from typing import Final

from attrs import frozen

from relevance_gen.text.stop_words import ENGLISH_STOP_WORDS

_MAX_SEARCHED_CHARS: Final = 20_000
"""Maximum characters of a chunk that are searched for definitions, which bounds the time."""
_MAX_CACHED_CHARS: Final = 2_000
"""Maximum characters of a chunk whose definitions are cached, which bounds the memory."""

_EDGES: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|[\W_]+")

_ROOTS: Final = frozenset(
    ("__init__", "__main__", "index", "mod", "init", "main", "lib", "package-info", "doc")
)
"""Names of files that are less specific than the name of their folder."""
_TEST_FOLDERS: Final = re.compile(
    r"tests?|__tests__|specs?|testing|test[_-]?(?:suite|data|cases|utils|helpers|support)s?|unit[_-]?tests?"
    r"|integration[_-]?tests?|e2e|fixtures?|__fixtures__|mocks?|__mocks__|(?:__)?snapshots(?:__)?"
    r"|examples?|samples?|demos?|bench(?:es|marks?)?",
    re.IGNORECASE,
)
_TEST_FILES: Final = re.compile(
    r"test_.*\.(?:py|rb|rs|c|cc|cpp|zig|lua)|tests?\.(?:rs|py|zig)|conftest\.py"
    r"|.*_test\.(?:py|go|rb|rs|c|cc|cpp|exs?|lua|zig|hs)|.*_spec\.(?:rb|lua|py)|.*[.-](?:test|spec)\.[mc]?[jt]sx?"
    r"|.*[a-z0-9](?:Tests?|TestCase|Spec|Suite)\.(?:java|kt|cs|scala|swift|php|hs|cpp)"
    r"|test[-_].*\.(?:h|hpp|js|ts)|.*\.bats"
)
"""Matches names of test files by the convention of each language; `test_functions.bash` and
`testing.py` are not test files."""

_TYPES: Final = (
    "class|struct|interface|trait|enum|protocol|module|defmodule|defprotocol|record|object|type|typealias|typedef|union"
    "|actor|newtype|data|mixin"
)
_ADDITIONS: Final = "impl|extension|instance|defimpl"
_FUNCTIONS: Final = (
    "def|defp|defmacro|defmacrop|defguard|func|fn|fun|function|sub|macro_rules!|macro|subroutine"
)
_MODIFIERS: Final = (
    r"(?:(?:export|default|declare|public|private|protected|internal|fileprivate|open|static|final|abstract|sealed"
    r"|partial|async|override|virtual|inline|extern|unsafe|const|constexpr|pub(?:\([^)\n]*\))?|indirect|readonly|inner"
    r"|case|companion|suspend|operator|infix|implicit|lazy|local|mutating|required|convenience|noinline|comptime"
    r"|typedef|friend|@\w+(?:\([^)\n]*\))?)[ \t]+)*"
)
_INTRODUCED: Final = re.compile(
    rf"^([ \t]*){_MODIFIERS}({_TYPES}|{_ADDITIONS}|{_FUNCTIONS})(?:[ \t]+class)?(?:[ \t]*\*[ \t]*|[ \t]+)"
    r"(?:\([^)\n]*\)[ \t]*(?:=>[ \t]*)?)?(?:<[^>\n]*>[ \t]*)?([A-Za-z_$][\w$.:]*)([^\n]*)",
    re.MULTILINE,
)
_USE: Final = re.compile(r"[ \t]*\*|[ \t]+\**\w+[ \t]*(?:[;=,\[(]|$)")
"""Matches the text after the name if `struct name` is a use, not a definition."""
_VALUES: Final = re.compile(
    r"^([ \t]*)(?:(export|pub|public|static|final|readonly)[ \t]+)*(?:const|let|var|val|static)[ \t]+(?:mut[ \t]+)?"
    r"([A-Za-z_$][\w$]*)[ \t]*[:=]",
    re.MULTILINE,
)
_NO_VALUES: Final = frozenset("py rb ex exs hs java c h".split())
_BY_LANGUAGE: Final = tuple(
    (frozenset(extensions.split()), re.compile(pattern, re.MULTILINE), factor)
    for extensions, pattern, factor in (
        ("c h cc cpp hpp", r"^()#[ \t]*define[ \t]+([A-Za-z_]\w*)", 0.7),
        (
            "c h cc cpp hpp",
            r"^()[A-Za-z_][\w \t*&:<>,~]{0,200}?[ \t*&:]([A-Za-z_]\w*)\([^;\n]*[{,)][ \t]*$",
            1.0,
        ),
        (
            "js ts jsx tsx mjs cjs lua",
            r"^([ \t]*)(?:export[ \t]+)?((?:[A-Za-z_$][\w$]*\.)+[A-Za-z_$][\w$]*)[ \t]*=[ \t]*(?:async[ \t]*)?"
            r"(?:function\b|\()",
            1.0,
        ),
        (
            "js ts jsx tsx mjs cjs java cs",
            r"^([ \t]+)(?:(?:async|static|get|set)[ \t]+|\*[ \t]*)*([A-Za-z_$][\w$]*)[ \t]*(?:<[^>\n]*>)?"
            r"\([^;\n]*\)[ \t]*(?::[^;{\n]+)?\{[ \t]*$",
            1.0,
        ),
        (
            "java cs kt swift php cpp cc hpp h ts tsx",
            r"^([ \t]*)(?:(?:public|private|protected|internal|static|final|async|override|virtual|abstract|inline"
            r"|extern|synchronized|unsafe|default|sealed|partial|new)[ \t]+)+(?:[\w<>\[\],.?*&:]+[ \t]+){0,3}\**"
            r"([A-Za-z_]\w*)[ \t]*(?:<[^>\n]*>)?\(",
            1.0,
        ),
        ("hs", r"^()([a-z_][\w']*)[ \t]*::[ \t]", 1.0),
        ("sh bash bats", r"^([ \t]*)([A-Za-z_][\w:.-]*)[ \t]*\(\)[ \t]*\{", 1.0),
    )
)
_FUNCTION_WORDS: Final = frozenset(_FUNCTIONS.split("|"))
_ADDING_WORDS: Final = frozenset(_ADDITIONS.split("|"))
_KEYWORDS: Final = (
    "if for while switch return else do case catch and or not is as in of the self this from import function new try"
    " throw elif unless until when match await with print sizeof defined super yield foreach elseif using lock fixed"
    " after"
)
_NO_NAMES: Final = ENGLISH_STOP_WORDS.union(
    _FUNCTION_WORDS, _ADDING_WORDS, _TYPES.split("|"), _KEYWORDS.split()
)


def name_parts(name: str) -> tuple[str, ...]:
    """Return the words of a name, in lower case.

    >>> name_parts("HTTPServer.read_all")
    ('http', 'server', 'read', 'all')
    """
    return tuple([part.lower() for part in _EDGES.split(name) if part])


@frozen
class FileName:
    """The words of the name of a file, or of its folder for names such as ``index``.

    Attributes:
        parts: the words, in lower case.
        is_test: whether the file is a test, an example, a fixture or a benchmark.
    """

    parts: tuple[str, ...]
    is_test: bool

    @classmethod
    @functools.lru_cache(maxsize=1 << 14)
    def of(cls, path: str) -> FileName:
        """Return the words of the file name in a path with ``/`` between folders."""
        *folders, file = path.split("/")
        name = file.rpartition(".")[0] or file
        if name in _ROOTS and folders:
            name = folders[-1]
        is_test = (
            any(map(_TEST_FOLDERS.fullmatch, folders)) or _TEST_FILES.fullmatch(file) is not None
        )
        return cls(name_parts(name), is_test)


@frozen
class CodeDefinition:
    """A definition in code.

    Attributes:
        name: the name without its qualifiers.
        parts: the words of the name, in lower case.
        is_type: whether it is a type or module instead of a function or value.
        level: how well the name describes the subject of its chunk, in (0, 1].
    """

    name: str
    parts: tuple[str, ...]
    is_type: bool
    level: float


def definitions(text: str, extension: str) -> tuple[CodeDefinition, ...]:
    """Return the definitions in the first `_MAX_SEARCHED_CHARS` characters of a chunk.

    Each combination of a name and `is_type` occurs once, with its highest level. `extension` is the
    suffix of the file name without the dot; "" if there is none.
    """
    find = _definitions if len(text) <= _MAX_CACHED_CHARS else _definitions.__wrapped__
    return find(text[:_MAX_SEARCHED_CHARS], extension or "sh")


@functools.lru_cache(maxsize=1 << 13)
def _definitions(text: str, extension: str) -> tuple[CodeDefinition, ...]:
    levels: dict[tuple[str, bool], float] = {}

    def add(
        indent: str,
        name: str,
        factor: float,
        *,
        is_type: bool = False,
    ) -> None:
        name = re.split("[.:]", name.rstrip(".:"))[-1].strip("$")
        if len(name) > 1 and name not in _NO_NAMES:
            columns = len(indent.expandtabs(4))
            level = factor * (1.0 if not columns else 0.8 if columns <= 4 else 0.6)
            levels[name, is_type] = max(level, levels.get((name, is_type), 0.0))

    for indent, word, name, rest_of_line in _INTRODUCED.findall(text):
        if word not in ("struct", "union", "enum") or not _USE.match(rest_of_line):
            add(
                indent,
                name,
                0.5 if word in _ADDING_WORDS else 1.0,
                is_type=word not in _FUNCTION_WORDS,
            )
    for indent, modifier, name in [] if extension in _NO_VALUES else _VALUES.findall(text):
        if modifier or not indent:
            add(indent, name, 0.7)
    for extensions, pattern, factor in _BY_LANGUAGE:
        for indent, name in pattern.findall(text) if extension in extensions else ():
            add(indent, name, factor)
    return tuple(
        [
            CodeDefinition(name, name_parts(name), is_type, level)
            for (name, is_type), level in levels.items()
        ]
    )
