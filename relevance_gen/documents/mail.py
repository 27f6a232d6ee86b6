"""Extract the text of e-mails: sender, date, subject and body, without attachments.

Sources: RFC 5322 (Internet Message Format), RFC 2045 to 2047 (MIME).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from email import message_from_bytes
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message
from typing import Any, Final, TypeAlias

from relevance_gen.documents.charset import decode
from relevance_gen.documents.webpages import page_text

_MAX_HEADER_CHARS: Final = 1000
_MAX_PARTS: Final = 1000
"""Maximum parts of a message that are read, multipart parts included; the rest is ignored."""
_MailPart: TypeAlias = "Message[Any, Any]"


def mail_text(content: bytes) -> tuple[str, str]:
    r"""Return the subject of an e-mail, and a text of sender, date, body and attachment names.

    The body consists of the plain-text parts, or, if these are empty, of the text of the HTML
    parts.

    >>> mail_text(b"From: Ann <a@b.org>\r\nSubject: =?utf-8?q?Caf=C3=A9?=\r\n\r\nAt noon?")
    ('Café', 'From: Ann <a@b.org>\n\nAt noon?')
    """
    message = message_from_bytes(content)
    texts: dict[str, list[str]] = {"text/plain": [], "text/html": []}
    attachments: list[str] = []
    for part in _leaf_parts(message):
        kind = part.get_content_type()
        name = part.get_filename()
        is_attachment = name is not None or part.get_content_disposition() == "attachment"
        if is_attachment or kind not in texts:
            attachments.append(_decode_header_line(name or kind))
        else:
            texts[kind].append(_part_text(part))
    body = "\n\n".join(texts["text/plain"]).strip()
    if not body:
        body = "\n\n".join(page_text(markup)[1] for markup in texts["text/html"])
    headers = []
    for name in ("From", "Date"):
        value = _decode_header_line(message.get(name, ""))
        if value:
            headers.append(f"{name}: {value}")
    names = f"Attached: {', '.join(attachments)}" if attachments else ""
    subject = _decode_header_line(message.get("Subject", ""))
    paragraphs = filter(None, ["\n".join(headers), body, names])
    return subject, "\n\n".join(paragraphs)


def _leaf_parts(message: _MailPart) -> Iterator[_MailPart]:
    """Yield the parts of a message that are not multipart, in order.

    An attached message is a single part: its own parts are not yielded.
    """
    stack = [message]
    for _ in range(_MAX_PARTS):
        if not stack:
            return
        part = stack.pop()
        is_multipart = part.get_content_maintype() == "multipart"
        payload = part.get_payload() if is_multipart else None
        if isinstance(payload, list):
            stack += [inner for inner in reversed(payload) if isinstance(inner, Message)]
        else:
            yield part


def _part_text(part: _MailPart) -> str:
    content = part.get_payload(decode=True)
    if not isinstance(content, bytes):
        return ""
    try:
        text = content.decode(part.get_content_charset() or "utf-8")
    except (LookupError, ValueError):  # the charset is unknown or wrong
        text = decode(content) or ""
    return text.replace("\r\n", "\n")


def _decode_header_line(header: object) -> str:
    """Return the first `_MAX_HEADER_CHARS` of a header, decoded and in one line.

    A header that cannot be decoded keeps its encoded form.
    """
    text = str(header)[:_MAX_HEADER_CHARS]
    with suppress(HeaderParseError, LookupError, ValueError):
        text = str(make_header(decode_header(text)))
    return " ".join(text.split())
