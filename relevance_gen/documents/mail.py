"""The text of e-mails: who wrote, when and what, without what is attached.

Sources: RFC 5322 (Internet Message Format), RFC 2045 to 2047 (MIME).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from typing import Any, Final

from relevance_gen.documents.charset import decode
from relevance_gen.documents.webpages import text_of_page

_MOST_HEADER_CHARS: Final = 1000
_MOST_PARTS: Final = 1000
"""More parts of a message than so many are not looked at."""


def text_of_mail(content: bytes) -> tuple[str, str]:
    r"""Return the subject of an e-mail, and its sender, date, text and the names of what is attached.

    The text is what is plain; where nothing is, that of the web pages in it.

    >>> text_of_mail(b"From: Ann <a@b.org>\r\nSubject: =?utf-8?q?Caf=C3=A9?=\r\n\r\nAt noon?")
    ('Café', 'From: Ann <a@b.org>\n\nAt noon?')
    """
    message = message_from_bytes(content)
    texts: dict[str, list[str]] = {"text/plain": [], "text/html": []}
    attached: list[str] = []
    for part in _leaves(message):
        kind, name = part.get_content_type(), part.get_filename()
        if name is not None or part.get_content_disposition() == "attachment" or kind not in texts:
            attached.append(_in_words(name or kind))
        else:
            texts[kind].append(_text_of_part(part))
    said = "\n\n".join(texts["text/plain"]).strip()
    said = said or "\n\n".join(text_of_page(markup)[1] for markup in texts["text/html"])
    headers = [
        f"{name}: {value}"
        for name in ("From", "Date")
        if (value := _in_words(message.get(name, "")))
    ]
    files = f"Attached: {', '.join(attached)}" if attached else ""
    return _in_words(message.get("Subject", "")), "\n\n".join(
        filter(None, ["\n".join(headers), said, files])
    )


def _leaves(message: Message[Any, Any]) -> Iterator[Message[Any, Any]]:
    """Yield the parts of a message that hold something, in order; a message within it is one."""
    waiting = [message]
    for _ in range(_MOST_PARTS):
        if not waiting:
            return
        part = waiting.pop()
        if part.get_content_maintype() == "multipart" and isinstance(
            payload := part.get_payload(), list
        ):
            waiting += [one for one in payload[::-1] if isinstance(one, Message)]
        else:
            yield part


def _text_of_part(part: Message[Any, Any]) -> str:
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        return ""
    try:
        text = content.decode(part.get_content_charset() or "utf-8")
    except (LookupError, UnicodeError, ValueError):  # an unknown charset, or another than it says
        text = decode(content) or ""
    return text.replace("\r\n", "\n")


def _in_words(header: object) -> str:
    """Return what a header says, in one line."""
    text = str(header)[:_MOST_HEADER_CHARS]
    with suppress(
        HeaderParseError, LookupError, ValueError
    ):  # encoded in no way that is known: as it stands
        text = str(make_header(decode_header(text)))
    return " ".join(text.split())
