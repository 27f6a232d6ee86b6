"""Plain English: markers of unclear sentences per 1,000 words, and distinct class names.

The patterns find sentences that usually must be read twice. They do not replace a reader: rewrite
the sentence with its noun, verb and object instead of exchanging the matched word. A ceiling may
only fall. Lower it when a change leaves room below it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LIBRARY = ROOT / "relevance_gen"

LIBRARY_CEILINGS = {
    "(top level)": 5.0,
    "agents": 5.0,
    "asking": 5.0,
    "cli": 5.0,
    "cluster": 5.0,
    "display": 5.0,
    "documents": 5.0,
    "embedding": 5.0,
    "folders": 5.0,
    "generation": 5.0,
    "index": 5.0,
    "llama": 5.0,
    "retrieval": 5.0,
    "sandbox": 5.0,
    "serve": 5.0,
    "shards": 5.0,
    "text": 5.0,
    "types": 5.0,
}
"""Markers per 1,000 words of docstrings and comments. The goal is 5 for each package."""
TEST_CEILING = 7.0
"""Markers per 1,000 words of docstrings and comments of the tests in a folder."""
SCRIPT_CEILING = 6.0
"""Markers per 1,000 words of docstrings and comments in a folder of scripts."""
PROSE_CEILINGS = {"CHANGELOG.md": 6.0, "README.md": 6.0, "docs": 6.0}
"""Markers per 1,000 words outside code. The goal is 6."""

PATTERNS = {
    "placeholder quantity": r"\b(?:so|as) (?:many|much|long)\b(?! as)",
    "people for roles": (
        r"\b(?:whoever|whomever|whom|nobody|somebody|everybody|everyone|anybody|strangers?)\b"
    ),
    "code that talks": r"\b(?:told|tells?|telling|said|says?|saying|speaks?|spoken)\b",
    "fronted 'Of …'": (
        r"(?:^|[.;:!?]\s+|\n\s*)(?-i:Of) (?:a|an|the|each|several|what|those|some|any|such|all"
        r"|these|it|one|equal|two|many|this|(?-i:[A-Z`]))"
    ),
    "'where' for 'if' or 'when'": (
        r"(?:^|[,.;:]\s+|\band |\bor |\bbut )(?:where|wherever|whatever)\b"
    ),
    "'behind' for 'after' or 'with'": r"\b(?:behind|beside|besides)\b",
    "'stand' for 'be' or 'occur'": r"\b(?:stands?|stood)\b",
    "idiom": (
        r"\b(?:lets? go|is gone|are gone|go(?:es)? by|goes? on|at hand|had better|anew|apart"
        r"|all the same|once more|comes? out|comes? back|give[sn]? up|take note)\b"
    ),
    "'is no X'": (
        r"\b(?:is|are|was|were|be|has|have|had|that|which) no (?!longer|more\b|one\b|effect)"
    ),
    "what-clause as a noun": (
        r"\b(?:what|whatever) (?:is|are|was|were|has|have|had|it|they|that|those|these|comes|came"
        r"|stands|becomes|follows|others|a|an|the|each|cannot|can|must|may|does|did|remains|goes"
        r"|needs|makes)\b"
    ),
    "'some Xs' for the argument": (
        r"\b(?:of|for|in|at|from|by|with|to|return|among) some (?:[a-z]+s)\b"
        r"|\bthose (?:of|that|with|which)\b"
    ),
    "bare 'one' or 'others'": (
        r"\b(?:ones?|others|the other|another)\b"
        r"(?=[,.;:)]|\s+(?:of|that|which|is|are|has|by|for|in|with|and|or|to|from|at|on)\b)"
    ),
    "'shall' or 'is to be'": (
        r"\b(?:shall|(?:is|are|was|were) to (?:be|have|say|come|go|do|ask|give))\b"
    ),
    "code that knows or wants": (
        r"\b(?:knows|knew|learns?|remembers?|remembered|forgets?|forgotten|hears?|heard|notices?"
        r"|wants?|wanted)\b"
    ),
}
COMPILED = [re.compile(pattern, re.IGNORECASE) for pattern in PATTERNS.values()]
ALLOWED = {
    r"\b(?:at most|at least|exactly|any|only|more than) one of\b": "a number, with its noun",
    r"\bone of (?:the|these|several)\b": "an element of a named set",
    r"\bfrom one to another\b": "a fixed phrase",
}
"""Phrases that are right although a pattern matches them, with the reason."""

MAX_SHARED_NAMES = 2
"""Ceiling of the number of class names that several classes share. The goal is 0."""


def docstrings_and_comments(path: Path) -> Iterator[str]:
    """Yield each docstring, attribute docstring and comment of a module."""
    source = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            if isinstance(node.value.value, str):
                yield re.sub(r"^\s*(?:>>>|\.\.\.).*$", "", node.value.value, flags=re.MULTILINE)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_comment = token.type == tokenize.COMMENT
        if is_comment and not re.match(r"#\s*(?:noqa|type:|fmt:|──)", token.string):
            yield token.string.lstrip("# ")


def prose(path: Path) -> Iterator[str]:
    """Yield the paragraphs of a Markdown file outside code blocks."""
    text = re.sub(
        r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    yield from text.split("\n\n")


def markers(text: str) -> list[str]:
    """Return the matches of all patterns in a text without its inline code.

    >>> markers("Whoever asks is told so.")
    ['Whoever', 'told']
    """
    text = re.sub(r"`[^`]*`", "X", text)
    for phrase in ALLOWED:
        text = re.sub(phrase, "X", text, flags=re.IGNORECASE)
    return [match.group() for pattern in COMPILED for match in pattern.finditer(text)]


def rate(texts: list[str]) -> float:
    """Return the number of markers per 1,000 words."""
    n_words = sum(len(text.split()) for text in texts)
    return 1000 * sum(len(markers(text)) for text in texts) / max(n_words, 1)


def modules_by_folder(root: Path) -> dict[str, list[Path]]:
    """Return the modules of each folder below a root, and of the root itself as "(top level)"."""
    modules: dict[str, list[Path]] = defaultdict(list)
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        modules[parts[0] if len(parts) > 1 else "(top level)"].append(path)
    return modules


def texts_of(modules: list[Path]) -> list[str]:
    """Return the docstrings and comments of modules."""
    return [text for path in modules for text in docstrings_and_comments(path)]


LIBRARY_MODULES = modules_by_folder(LIBRARY)
TEST_MODULES = modules_by_folder(ROOT / "tests")


@pytest.mark.parametrize("package", sorted(LIBRARY_MODULES))
def test_package_language_is_within_ceiling(package: str) -> None:
    """The markers in docstrings and comments of a package are at most its ceiling."""
    ceiling = LIBRARY_CEILINGS.get(package, max(LIBRARY_CEILINGS.values()))
    assert rate(texts_of(LIBRARY_MODULES[package])) <= ceiling


@pytest.mark.parametrize("folder", sorted(TEST_MODULES))
def test_language_of_tests_is_within_ceiling(folder: str) -> None:
    """The markers in docstrings and comments of the tests in a folder are at most the ceiling."""
    assert rate(texts_of(TEST_MODULES[folder])) <= TEST_CEILING


@pytest.mark.parametrize("folder", ["bench", "examples", "small_models", "tools"])
def test_language_of_scripts_is_within_ceiling(folder: str) -> None:
    """The markers in docstrings and comments of scripts are at most their ceiling."""
    assert rate(texts_of(sorted((ROOT / folder).rglob("*.py")))) <= SCRIPT_CEILING


@pytest.mark.parametrize("name", sorted(PROSE_CEILINGS))
def test_language_of_documentation_is_within_ceiling(name: str) -> None:
    """The markers in a document, or in all documents of a folder, are at most its ceiling."""
    path = ROOT / name
    paths = sorted(path.rglob("*.md")) if path.is_dir() else [path]
    assert rate([text for path in paths for text in prose(path)]) <= PROSE_CEILINGS[name]


def test_class_names_are_distinct() -> None:
    """No two classes of the library have the same name; a leading underscore is ignored."""
    counts: Counter[str] = Counter()
    for path in LIBRARY.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                counts[node.name.lstrip("_")] += 1
    shared = sorted(name for name, n in counts.items() if n > 1)
    assert len(shared) <= MAX_SHARED_NAMES, shared
