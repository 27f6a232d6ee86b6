"""Names of file types, and the suffixes of their files."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from relevance_gen.errors import InvalidRequestError, did_you_mean

_SUFFIXES: Final = {
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


def suffixes(types: Iterable[str]) -> tuple[str, ...]:
    """Return the file-name suffixes of the named file types, in lower case; () for no types.

    Raises:
        InvalidRequestError: a type is unknown.
    """
    selected: list[str] = []
    for name in types:
        if name not in _SUFFIXES:
            hint = did_you_mean(name, _SUFFIXES, "--type-list shows them all")
            raise InvalidRequestError(f"there is no file type {name!a}", remedy=hint)
        selected += _SUFFIXES[name].split()
    return tuple(selected)


def listing() -> str:
    """Return a line for each type with its name and its globs, such as ``go: *.go``."""
    lines = []
    for name, suffixes_of_type in _SUFFIXES.items():
        globs = ", ".join("*" + suffix for suffix in suffixes_of_type.split())
        lines.append(f"{name}: {globs}\n")
    return "".join(lines)
