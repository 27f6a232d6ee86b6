"""Names of file types, and how the names of their files end."""

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
    "docs": ".adoc .docx .eml .epub .htm .html .markdown .md .odp .ods .odt .org .pdf .pptx .rst .tex .txt .xhtml "
    ".xlsx",
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
    """Return how the names of files of any of some types end, in lower case; refuse what is no type."""
    found: list[str] = []
    for name in types:
        if name not in _SUFFIXES:
            hint = did_you_mean(name, _SUFFIXES, "--type-list shows them all")
            raise InvalidRequestError(f"there is no file type {name!a}", remedy=hint)
        found += _SUFFIXES[name].split()
    return tuple(found)


def listing() -> str:
    """Return a line for each type: its name and its files, as globs."""
    return "".join(
        f"{name}: {', '.join('*' + suffix for suffix in suffixes([name]))}\n" for name in _SUFFIXES
    )
