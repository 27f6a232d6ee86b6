"""The text of electronic books: EPUB, an archive of web pages in the order that its package lists.

Source: EPUB 3.3 (W3C).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from relevance_gen.documents.charset import decode
from relevance_gen.documents.office import Archive, Attributes, DocumentError, Place
from relevance_gen.documents.webpages import text_of_page

_MOST_TITLE_CHARS: Final = 200
CONTAINER: Final = "META-INF/container.xml"
"""The member by which a book is known."""


def chapters(archive: Archive) -> Iterator[tuple[Place, str]]:
    """Yield the chapters of a book in the order in which they are read, each with the book's title and its text."""
    packages: list[str] = []

    def start(tag: str, attributes: Attributes) -> None:
        if tag == "rootfile":
            packages.append(attributes["full-path"])

    archive.parse(CONTAINER, start)
    if not packages:
        raise DocumentError("is damaged or encrypted (names no package)")
    title, members = _package(archive, packages[0])
    for number, member in enumerate(members, 1):
        markup = decode(archive.read(member))
        if markup is None:
            raise DocumentError("is damaged or encrypted (a chapter is no text)")
        _, text = text_of_page(markup)
        if text:
            yield {"chapter": number, **({"title": title} if title else {})}, text


def _package(archive: Archive, name: str) -> tuple[str, list[str]]:
    """Return a book's title, and the names of its chapters' members."""
    title = ""
    inside: list[str] = []
    pages: dict[str, str] = {}
    chapters: list[str] = []

    def start(tag: str, attributes: Attributes) -> None:
        nonlocal title
        title += " " * (tag == "title")
        inside.append(tag)
        if tag == "item" and "nav" not in attributes.get("properties", "").split():
            path = posixpath.join(posixpath.dirname(name), unquote(attributes["href"]))
            pages[attributes["id"]] = posixpath.normpath(path)
        elif tag == "itemref" and attributes["idref"] in pages:
            chapters.append(pages[attributes["idref"]])

    def data(text: str) -> None:
        nonlocal title
        if inside[-1:] == ["title"]:
            title = (title + text)[:_MOST_TITLE_CHARS]

    archive.parse(name, start, lambda _tag: inside.pop(), data)
    return " ".join(title.split()), chapters
