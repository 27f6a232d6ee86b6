"""Folding: spellings that readers take as equal become the same bytes."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.text.normalization import fold, fold_character
from tests import strategies


def folded(text: str) -> str:
    """Fold one text and lower-case it; a non-ASCII text after it prevents the shortcut for ASCII."""
    folded = fold([text, "é"])
    content, ends = folded.content, folded.ends
    return content[: ends[0]].lower().decode("utf-8")


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("Crème Brûlée", "creme brulee"),
        ("STRASSE Straße STRAẞE", "strasse strasse strasse"),
        ("Łódź Ørsted Þór Đàng naïve", "lodz orsted thor dang naive"),
        ("İstanbul ısı", "istanbul isi"),
        ("ﬁn ﬀ ĳ ǆ", "fin ff ij dz"),
        ("ＦＵＬＬ　ｗｉｄｔｈ", "full width"),
        ("𝐁𝐨𝐥𝐝 𝔉𝔯𝔞𝔨𝔱𝔲𝔯", "bold fraktur"),
        ("Καλημέρα ΚΑΛΗΜΕΡΑ", "καλημερα καλημερα"),
        ("λόγος ΛΟΓΟΣ", "λογοσ λογοσ"),
        ("ᾳ ῥόδον", "α ροδον"),
        ("Ёлка чай Йод", "елка чай йод"),
        ("مُحَمَّد مـحـمـد", "محمد محمد"),
        ("أحمد إحمد آحمد ٱحمد", "احمد احمد احمد احمد"),
        ("مدرسة على", "مدرسه علي"),
        ("שָׁלוֹם", "שלום"),
        ("क्‍ष क्‌ष", "क्ष क्ष"),
        ("हिन्दी", "हिन्दी"),
        ("٣ ۳ ३ ๓ ３ ²", "3 3 3 3 3 2"),
        ("½ №5 ㎏", "1 2 no5 kg"),
        ("Windows™ Dolby®", "windows  dolby "),
        ("soft\u00adhyphen zero\u200bwidth", "softhyphen zero width"),
        ("don’t “quote” — …", "don t  quote      "),
        ("ガラス ｶﾞﾗｽ", "ガラス ガラス"),
        ("Tiếng Việt NGƯỜI tie\u0302\u0301ng", "tiếng tieng việt viet người nguoi tiếng tieng"),
    ],
)
def test_fold_of_equivalent_spellings_is_equal(text: str, plain: str) -> None:
    """Compatibility forms, case, accents, points and letter variants vanish; digits become ASCII; other characters become spaces."""
    assert folded(text).split() == plain.split()


@given(strategies.texts)
def test_fold_of_composed_and_decomposed_text_is_equal(text: str) -> None:
    """The fold does not depend on Unicode composition."""
    forms = {form: unicodedata.normalize(form, text) for form in ("NFC", "NFD")}
    assert folded(forms["NFC"]).split() == folded(forms["NFD"]).split()


def test_fold_of_letter_equals_fold_of_decomposition() -> None:
    """For every letter of the basic plane the composed and decomposed forms have the same fold."""
    letters = [chr(code) for code in range(0x80, 0xD800) if chr(code).isalpha()]
    letters += [chr(code) for code in range(0xE000, 0x10000) if chr(code).isalpha()]
    pieces = [unicodedata.normalize("NFD", letter) for letter in letters]
    assert folded(" ".join(letters)).split() == folded(" ".join(pieces)).split()


def test_fold_is_idempotent() -> None:
    """Folding the result of a fold does not change it."""
    plain = {
        code: fold_character(chr(code))
        for code in range(0x80, 0x30000)
        if not 0xD800 <= code < 0xE000
    }
    again = {
        code: "".join(map(fold_character, text))
        for code, text in plain.items()
        if not text.isascii()
    }
    assert {code: text for code, text in again.items() if text != plain[code]} == {}


@given(st.lists(strategies.texts, max_size=6))
def test_fold_of_a_text_does_not_depend_on_other_texts(texts: list[str]) -> None:
    """The fold of a text does not depend on the other texts, ASCII or not, and ends at its offset."""
    folded = fold(texts)
    content, ends = folded.content, folded.ends
    pieces = [content[first:end] for first, end in zip([0, *(ends + 1)], ends, strict=False)]
    alone = [fold([text]).content[:-1] for text in texts]
    assert len(ends) == len(texts)
    assert [piece.translate(_CONTROLS) for piece in pieces] == [
        piece.translate(_CONTROLS) for piece in alone
    ]


_CONTROLS = bytes(32 if byte < 32 or byte == 127 else byte for byte in range(256))
"""ASCII alone keeps its control characters; none is part of a term."""


@pytest.mark.parametrize(
    "code",
    [0x00, 0xFFFD, 0xFFFE, 0xFFFF, 0xFDD0, 0xFDEF, 0xD800, 0xDFFF, 0x1FFFE, 0x10FFFF, 0xE000],
)
def test_fold_of_sentinel_characters_is_white_space(code: int) -> None:
    """Noncharacters, surrogates and private characters in a text become white space, even if the table uses these."""
    assert folded(f"é{chr(code)}b").split() == ["e", "b"]


def test_fold_of_compatibility_han_is_the_unified_character() -> None:
    """Characters of the basic plane with a plain form outside it fold to the plain form."""
    assert folded("\ufa6c").strip() == "\U000242ee"
