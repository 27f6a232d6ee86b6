"""Citations beside an answer, as Cohere's chats have them: each sentence that documents support, with these."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Self

from relevance_gen.asking.citations import Attributor
from relevance_gen.errors import BusyError, TooLargeError

_TEXTS = ("text", "content", "snippet")
"""Where objects that are documents have their text, Cohere's below ``data``."""


class DocumentCiter(Attributor):
    """Cites from those documents of a chat that have a text."""

    def __init__(self, documents: Sequence[tuple[str, str]]) -> None:
        super().__init__([text for _, text in documents])
        self._ids = [name for name, _ in documents]

    @classmethod
    def of(cls, documents: Sequence[Any]) -> Self | None:
        """Return what cites from documents as a client sent them; None if none has a text."""
        found = []
        for number, document in enumerate(documents):
            fields = document if isinstance(document, dict) else {"text": document}
            data = fields["data"] if isinstance(fields.get("data"), dict) else fields
            text = next((data[name] for name in _TEXTS if isinstance(data.get(name), str)), "")
            name = fields["id"] if isinstance(fields.get("id"), str) else f"doc:{number}"
            found += [(name, text)] if text.strip() else []
        return cls(found) if found else None

    def citations(self, text: str) -> list[dict[str, object]]:
        """Return the citations of an answer; none where comparing would take too much."""
        with suppress(TooLargeError, BusyError):
            return [
                {
                    "start": one.start,
                    "end": one.end,
                    "text": text[one.start : one.end],
                    "sources": [
                        {
                            "type": "document",
                            "id": self._ids[place.source],
                            "start": place.start,
                            "end": place.end,
                        }
                        for place in one.spans
                    ],
                }
                for one in self.cite(text)
                if one.spans
            ]
        return []
