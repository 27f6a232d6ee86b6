"""The text extracted from a document."""

from __future__ import annotations

from attrs import frozen

from relevance_gen.types.search import Metadata


@frozen
class DocumentPart:
    """A part of a document.

    Attributes:
        place: ``{"page": 3}``, ``{"slide": 3}``, ``{"sheet": "Prices"}``, ``{"chapter": 3}``, or
            ``{}`` for the whole document. The key ``title``, if present, is the title of the
            document or of the page.
        text: the text of the part.
    """

    place: Metadata
    text: str


@frozen
class ExtractionResponse:
    """The text of a document.

    Attributes:
        parts: the document's parts, in order.
        warning: why the text is incomplete, phrased to follow the file name; ``None`` if it is
            complete.
    """

    parts: tuple[DocumentPart, ...]
    warning: str | None = None
