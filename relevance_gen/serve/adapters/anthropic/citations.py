"""Citations as in Anthropic's messages: each sentence is a text block with its citations."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress

from attrs import frozen

from relevance_gen.asking.citations import Attributor, StreamingAttributor
from relevance_gen.errors import BusyError, TooLargeError
from relevance_gen.generation.chat.conversation import texts_of
from relevance_gen.request_scope import reserve
from relevance_gen.types import CitedSentence, CitedSpan
from relevance_gen.wire import JsonObject


@frozen
class _DocumentText:
    """A citable text of a document.

    Attributes:
        text: the text.
        document: index of the document, from 0.
        title: the document's title, if any.
        block: index of the block that is the text, which is cited as a whole; None if the text is
            that of the whole document.
    """

    text: str
    document: int
    title: str | None
    block: int | None = None

    def citation(self, span: CitedSpan) -> JsonObject:
        """Return the citation of a span of this text, as an object of the API.

        If the text is a block, the citation contains the whole block instead of the span.
        """
        document = {
            "document_index": self.document,
            "document_title": self.title,
            "file_id": None,
        }
        if self.block is None:
            return {
                "type": "char_location",
                "cited_text": self.text[span.start : span.end],
                **document,
                "start_char_index": span.start,
                "end_char_index": span.end,
            }
        return {
            "type": "content_block_location",
            "cited_text": self.text,
            **document,
            "start_block_index": self.block,
            "end_block_index": self.block + 1,
        }

    def n_chars(self, span: CitedSpan) -> int:
        """Return the number of characters of the title and the cited text in `citation`."""
        n_cited = span.end - span.start if self.block is None else len(self.text)
        return len(self.title or "") + n_cited


class MessageDocumentCiter(Attributor):
    """Cites the documents of messages.

    A sentence is not cited if that would exceed the memory or the work that the request may use.
    """

    def __init__(self, documents: Sequence[_DocumentText]) -> None:
        super().__init__([document.text for document in documents])
        self.documents = documents

    def cite(
        self, text: str, offset: int = 0, ends: Sequence[int] | None = None
    ) -> tuple[CitedSentence, ...]:
        """Return the sentences of a text with their citations; see `Attributor.cite`.

        The result is () if the citations would exceed the memory or the work that the request may
        use.
        """
        with suppress(TooLargeError, BusyError):
            sentences = super().cite(text, offset, ends)
            n_chars = 0
            for sentence in sentences:
                for span in sentence.spans:
                    n_chars += self.documents[span.source].n_chars(span)
            reserve("result_char", n_chars)
            return sentences
        return ()


def citer_of(messages: Sequence[JsonObject]) -> MessageDocumentCiter | None:
    """Return a citer of the documents in checked messages for which citations are enabled.

    The result is None if there are no such documents.
    """
    blocks: list[JsonObject] = []
    for message in messages:
        if not isinstance(message["content"], str):
            blocks += [block for block in message["content"] if block["type"] == "document"]
    texts: list[_DocumentText] = []
    for document, block in enumerate(blocks):
        if (block.get("citations") or {}).get("enabled"):
            title = _text(block["title"]) if block.get("title") else None
            source = block["source"]
            if source["type"] == "text":
                texts.append(_DocumentText(_text(source["data"]), document, title))
            else:
                for index, text in enumerate(texts_of(source["content"], "")):
                    texts.append(_DocumentText(text, document, title, index))
    return MessageDocumentCiter(texts) if texts else None


def _text(content: object) -> str:
    return "\n".join(texts_of(content, ""))


@frozen
class BlockDelta:
    """A piece of text or a citation to add to the text blocks of a turn.

    If `starts_block`, it is added to a new block, otherwise to the last block. `delta` is the
    object of the API.
    """

    starts_block: bool
    delta: JsonObject


class CitedText:
    """Splits a streamed text into blocks of one cited sentence each."""

    def __init__(self, citer: MessageDocumentCiter) -> None:
        self._documents = citer.documents
        self._stream = StreamingAttributor(citer)
        self._is_block_complete = False

    def deltas(self, text: str, *, is_last: bool = False) -> Iterator[BlockDelta]:
        """Yield the additions to blocks that follow from the next piece of the text.

        The caller has started the first block before the first call.

        Args:
            text: the piece.
            is_last: whether the text ends after this piece, so that its last sentence is complete.
        """
        for addition in self._stream.add(text, is_last=is_last):
            if isinstance(addition, str):
                delta: JsonObject = {"type": "text_delta", "text": addition}
                yield BlockDelta(self._is_block_complete, delta)
                self._is_block_complete = False
            else:
                for citation in self._citations(addition):
                    yield BlockDelta(False, {"type": "citations_delta", "citation": citation})
                self._is_block_complete = True

    def _citations(self, sentence: CitedSentence) -> list[JsonObject]:
        """Return the distinct citations of a sentence."""
        citations: list[JsonObject] = []
        for span in sentence.spans:
            citation = self._documents[span.source].citation(span)
            if citation not in citations:
                citations.append(citation)
        return citations
