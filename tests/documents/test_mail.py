"""Tests of e-mail extraction with valid and invalid content."""

from email.message import EmailMessage

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen.documents.extraction import extract, format_of
from relevance_gen.documents.mail import mail_text


def mail(plain: str | None, page: str | None = None, **attached: bytes) -> bytes:
    """Write a message with a text, a page or both, and with files."""
    message = EmailMessage()
    message["Subject"], message["From"], message["Date"] = (
        "Café at noon",
        "Änn <ann@b.org>",
        "Fri, 1 May 2026 12:00:00",
    )
    if plain is not None:
        message.set_content(plain)
    if page is not None:
        (message.add_alternative if plain is not None else message.set_content)(
            page, subtype="html"
        )
    for name, content in attached.items():
        message.add_attachment(content, maintype="application", subtype="pdf", filename=name)
    return message.as_bytes()


HEAD = "From: Änn <ann@b.org>\nDate: Fri, 01 May 2026 12:00:00 -0000"


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (mail("Come at 12.\nÄnn"), f"{HEAD}\n\nCome at 12.\nÄnn"),
        (mail("Plain.", "<p>Page."), f"{HEAD}\n\nPlain."),
        (mail(None, "<nav>Home</nav><h1>Page</h1><p>Text."), f"{HEAD}\n\n# Page\n\nText."),
        (
            mail("See files.", None, menu=b"%PDF-", map=b"PK"),
            f"{HEAD}\n\nSee files.\n\nAttached: menu, map",
        ),
    ],
)
def test_mail_text_has_headers_body_and_attachment_names(content: bytes, text: str) -> None:
    """Sender, date, plain text and attachment names are extracted; the subject is the title."""
    assert mail_text(content) == ("Café at noon", text)
    assert format_of("a.EML", content) == "e-mail"
    assert extract(content, "e-mail").parts == [({"title": "Café at noon"}, text)]


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"", ("", "")),
        (b"no header at all", ("", "no header at all")),
        (b"Subject: =?none?q?a?= =?utf-8?b?!?=\n\ntext", ("=?none?q?a?= =?utf-8?b?!?=", "text")),
        (b"Content-Type: text/plain; charset=none\n\ncaf\xc3\xa9", ("", "café")),
        (b"Content-Type: text/plain; charset=utf-8\n\ncaf\xe9", ("", "café")),
        (b"Content-Type: message/rfc822\n\nSubject: a\n\nb", ("", "Attached: message/rfc822")),
    ],
)
def test_mail_text_tolerates_invalid_parts(content: bytes, found: tuple[str, str]) -> None:
    """Messages with invalid headers, charsets or bodies are read as far as possible."""
    assert mail_text(content) == found


def test_mail_parts_are_limited() -> None:
    """The number of parts is limited, and nesting that is too deep gives a warning."""
    many = b'Content-Type: multipart/mixed; boundary="b"\n\n' + b"--b\n\nword\n" * 5000
    assert mail_text(many)[1].count("word") < 5000
    deep = b"".join(
        b'Content-Type: multipart/mixed; boundary="%d"\n\n--%d\n' % (n, n) for n in range(3000)
    )
    found = extract(deep + b"\nword", "e-mail")
    assert found.warning is None or found.warning.startswith("cannot be read (RecursionError")


_LINES = st.sampled_from(
    [b"Content-Type: multipart/mixed; boundary=b", b"--b", b"--b--", b"", b"text", b"Subject: a"]
)


@given(st.lists(_LINES | st.binary(max_size=20), max_size=12).map(b"\n".join) | st.binary())
@example(b"Content-Transfer-Encoding: base64\n\n!")
def test_random_bytes_are_valid_mail(content: bytes) -> None:
    """Any bytes are read as an e-mail without a warning."""
    found = extract(content, "e-mail")
    assert found.warning is None
