"""Citations as in Cohere's chats: the documents that support each sentence of an answer."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from relevance_gen.asking.citations import Attributor
from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.wire import JsonObject

_TEXT_FIELDS = ("text", "content", "snippet")
"""Fields of a document that can hold its text; Cohere's documents have them in ``data``."""


class ChatDocumentCiter(Attributor):
    """Cites the documents of a chat."""

    def __init__(self, ids: Sequence[str], texts: Sequence[str]) -> None:
        super().__init__(texts)
        self._ids = ids

    @classmethod
    def of(cls, documents: Sequence[Any]) -> Self | None:
        """Return an instance for the documents that have a text; None if there are none."""
        ids, texts = [], []
        for index, document in enumerate(documents):
            fields = document if isinstance(document, dict) else {"text": document}
            data = fields["data"] if isinstance(fields.get("data"), dict) else fields
            strings = [data[name] for name in _TEXT_FIELDS if isinstance(data.get(name), str)]
            if strings and strings[0].strip():
                name = fields.get("id")
                ids.append(name if isinstance(name, str) else f"doc:{index}")
                texts.append(strings[0])
        return cls(ids, texts) if texts else None

    def citations(self, text: str) -> list[JsonObject]:
        """Return the citations of an answer, one for each sentence that documents support.

        A citation has the position of the sentence in the answer as ``start`` and ``end``, its
        ``text``, and its ``sources``: for each the ``id`` of a document, and ``start`` and ``end``
        of the cited span in the document's text. The list is empty if the comparison would exceed
        the memory or the work that the request may use.
        """
        citations: list[JsonObject] = []
        with suppress(TooLargeError, BusyError):
            for sentence in self.cite(text):
                if sentence.spans:
                    sources = [
                        {
                            "type": "document",
                            "id": self._ids[span.source],
                            "start": span.start,
                            "end": span.end,
                        }
                        for span in sentence.spans
                    ]
                    citation = {
                        "start": sentence.start,
                        "end": sentence.end,
                        "text": text[sentence.start : sentence.end],
                        "sources": sources,
                    }
                    citations.append(citation)
        return citations
