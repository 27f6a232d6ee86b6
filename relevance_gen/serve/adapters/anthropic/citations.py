"""Citations as Anthropic's messages have them: each sentence is a block of text with the places that support it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from attrs import frozen

from relevance_gen.asking.citations import Attributor, StreamingAttributor
from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.generation.chat.conversation import texts_of
from relevance_gen.request_scope import reserve
from relevance_gen.types import CitedSentence, CitedSpan

_TEXTS = {"text": "text"}


@frozen
class _Source:
    """A text of the document with a number, from 0; the block of that with a number, cited whole, or all of it."""

    text: str
    document: int
    title: str | None
    block: int | None = None

    def citation(self, place: CitedSpan) -> dict[str, object]:
        """Return the citation of a place; its strings are as long as `cost` says."""
        named = {"document_index": self.document, "document_title": self.title, "file_id": None}
        if self.block is not None:
            where = {"start_block_index": self.block, "end_block_index": self.block + 1}
            return {"type": "content_block_location", "cited_text": self.text, **named, **where}
        where = {"start_char_index": place.start, "end_char_index": place.end}
        return {
            "type": "char_location",
            "cited_text": self.text[place.start : place.end],
            **named,
            **where,
        }

    def cost(self, place: CitedSpan) -> int:
        return len(self.title or "") + (
            place.end - place.start if self.block is None else len(self.text)
        )


class DocumentCiter(Attributor):
    """Cites from documents. Sentences for which there is no room, or too much to compare, are not cited."""

    def __init__(self, sources: Sequence[_Source]) -> None:
        super().__init__([source.text for source in sources])
        self.sources = sources

    def cite(
        self, text: str, offset: int = 0, ends: Sequence[int] | None = None
    ) -> tuple[CitedSentence, ...]:
        """Return what `Attributor.cite` does, or nothing."""
        with suppress(TooLargeError, BusyError):
            cited = super().cite(text, offset, ends)
            places = [place for one in cited for place in one.spans]
            reserve("result_char", sum(self.sources[place.source].cost(place) for place in places))
            return cited
        return ()


def citer_of(messages: Sequence[Mapping[str, Any]]) -> DocumentCiter | None:
    """Return what cites from those documents of messages, read before, that are to be cited; None without any."""
    contents = [
        message["content"] for message in messages if not isinstance(message["content"], str)
    ]
    blocks = [block for content in contents for block in content if block["type"] == "document"]
    found = list[_Source]()
    for number, block in enumerate(blocks):
        if (block.get("citations") or {}).get("enabled"):
            title = "\n".join(texts_of(block["title"], "", _TEXTS)) if block.get("title") else None
            if block["source"]["type"] == "text":
                found.append(
                    _Source("\n".join(texts_of(block["source"]["data"], "", _TEXTS)), number, title)
                )
            else:
                texts = texts_of(block["source"]["content"], "", _TEXTS)
                found += [_Source(text, number, title, place) for place, text in enumerate(texts)]
    return DocumentCiter(found) if found else None


class CitedText:
    """A text of a turn that comes in pieces, in deltas of blocks, of which each has a sentence."""

    def __init__(self, citer: DocumentCiter) -> None:
        self._sources = citer.sources
        self._stream = StreamingAttributor(citer)
        self._is_ended = False

    def deltas(self, text: str, *, is_last: bool = False) -> Iterator[tuple[bool, dict[str, Any]]]:
        """Yield what a piece adds to the blocks, and whether that begins another block than the first."""
        for told in self._stream.add(text, is_last=is_last):
            if isinstance(told, str):
                yield self._is_ended, {"type": "text_delta", "text": told}
                self._is_ended = False
                continue
            found = list[dict[str, object]]()
            for place in told.spans:
                if (citation := self._sources[place.source].citation(place)) not in found:
                    yield False, {"type": "citations_delta", "citation": citation}
                    found.append(citation)
            self._is_ended = True
