"""Extract the text of EPUB books: archives of web pages in the order that a package lists.

Source: EPUB 3.3 (W3C).
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final
from urllib.parse import unquote

from attrs import frozen

from relevance_gen.documents.charset import decode
from relevance_gen.documents.office import Archive, Attributes, DocumentError, PartLocation
from relevance_gen.documents.webpages import page_text

CONTAINER: Final = "META-INF/container.xml"
"""The archive member by which a book is recognized; it names the package."""
_MAX_TITLE_CHARS: Final = 200


def chapters(archive: Archive) -> Iterator[tuple[PartLocation, str]]:
    """Yield the location and the text of each chapter of a book, in reading order.

    The location has the key ``chapter``, the number of the chapter from 1, and the key ``title``,
    the title of the book, unless that is empty. Chapters without text are left out but counted.

    Raises:
        DocumentError: the book names no package, or a chapter is not text.
    """
    packages = archive.attributes_of(CONTAINER, "rootfile")
    if not packages:
        raise DocumentError("is damaged or encrypted (names no package)")
    book = _read_package(archive, packages[0]["full-path"])
    for number, member in enumerate(book.members, 1):
        markup = decode(archive.read(member))
        if markup is None:
            raise DocumentError("is damaged or encrypted (a chapter is not text)")
        _, text = page_text(markup)
        if not text:
            continue
        location: dict[str, str | int] = {"chapter": number}
        if book.title:
            location["title"] = book.title
        yield location, text


@frozen
class _Book:
    """The title of a book, "" if it has none, and the archive members of its chapters in order."""

    title: str
    members: list[str]


def _read_package(archive: Archive, name: str) -> _Book:
    title = ""
    open_tags: list[str] = []
    pages: dict[str, str] = {}
    members: list[str] = []

    def start(tag: str, attributes: Attributes) -> None:
        nonlocal title
        title += " " * (tag == "title")
        open_tags.append(tag)
        if tag == "item" and "nav" not in attributes.get("properties", "").split():
            path = posixpath.join(posixpath.dirname(name), unquote(attributes["href"]))
            pages[attributes["id"]] = posixpath.normpath(path)
        elif tag == "itemref" and attributes["idref"] in pages:
            members.append(pages[attributes["idref"]])

    def data(text: str) -> None:
        nonlocal title
        if open_tags[-1:] == ["title"]:
            title = (title + text)[:_MAX_TITLE_CHARS]

    archive.parse(name, start, lambda _tag: open_tags.pop(), data)
    return _Book(" ".join(title.split()), members)
