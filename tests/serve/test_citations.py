"""Answers that are cited from the documents of their request, over HTTP, read by the clients' own libraries."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.serve.harness import KEY, Server, eventually

if TYPE_CHECKING:
    import anthropic

TALE = "It rained. A story of word0 word1 word2."
TEXT = "word0 word1 word2 "
"""The text of the scripted server after three steps."""


@pytest.fixture
def client(server: Server) -> Iterator[anthropic.Anthropic]:
    """Anthropic's client of the server, whose connections are closed after the test."""
    import anthropic  # takes a second, and only here

    with anthropic.Anthropic(api_key=KEY, base_url=server.url, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("kind", ["text", "content"])
def test_anthropics_client_reads_citations(client: anthropic.Anthropic, kind: str) -> None:
    """Complete and streamed citations are equal: sentences of plain text, and blocks of block content."""
    data = (
        TALE
        if kind == "text"
        else [{"type": "text", "text": "Cows."}, {"type": "text", "text": TALE}]
    )
    source = (
        {"type": kind, "media_type": "text/plain", "data": data}
        if kind == "text"
        else {"type": kind, kind: data}
    )
    document = {
        "type": "document",
        "source": source,
        "title": "A tale",
        "citations": {"enabled": True},
    }
    asked: dict = {
        "model": "m",
        "max_tokens": 3,
        "messages": [{"role": "user", "content": [document]}],
    }
    (whole,) = client.messages.create(**asked).content
    with client.messages.stream(**asked) as stream:
        fired = [event.citation for event in stream if event.type == "citation"]
        (streamed,) = stream.get_final_message().content
    assert (whole.text, whole.citations) == (streamed.text, streamed.citations)
    assert whole.text == TEXT
    (one,) = whole.citations
    assert fired == [one]
    assert (one.document_index, one.document_title, one.file_id) == (0, "A tale", None)
    if kind == "text":
        assert (one.type, one.start_char_index, one.end_char_index) == (
            "char_location",
            11,
            len(TALE),
        )
        assert one.cited_text == TALE[11:]
    else:
        assert (one.type, one.start_block_index, one.end_block_index) == (
            "content_block_location",
            1,
            2,
        )
        assert one.cited_text == TALE
    assert client.messages.count_tokens(model="m", messages=asked["messages"]).input_tokens > 3


def test_large_documents_are_answered_without_citations(
    server: Server, client: anthropic.Anthropic
) -> None:
    """The answer is complete, also streamed, and all reserved memory is released."""
    source = {"type": "text", "media_type": "text/plain", "data": f"{TALE} " * 150_000}
    document = {"type": "document", "source": source, "citations": {"enabled": True}}
    asked: dict = {
        "model": "m",
        "max_tokens": 3,
        "messages": [{"role": "user", "content": [document]}],
    }
    (whole,) = client.messages.create(**asked).content
    with client.messages.stream(**asked) as stream:
        (streamed,) = stream.get_final_message().content
    assert (whole.text, streamed.text) == (TEXT, TEXT)
    assert not whole.citations
    assert not streamed.citations
    assert eventually(lambda: server.metric('request_body_bytes_held{lane="generation"}') == 0)
