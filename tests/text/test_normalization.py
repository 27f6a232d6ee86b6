"""Folding: what a reader takes for the same word is the same bytes."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.text.normalization import fold, fold_character
from tests import strategies


def folded(text: str) -> str:
    """Fold one text, with its letters in lower case; what follows it makes it take the way of all text beyond ASCII."""
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
def test_what_reads_alike_is_alike(text: str, plain: str) -> None:
    """Compatibility forms, case, accents, points and letter variants go; digits are the ten; the rest is space."""
    assert folded(text).split() == plain.split()


@given(strategies.texts)
def test_composed_and_decomposed_text_fold_alike(text: str) -> None:
    """Text means the same in Unicode's composed and decomposed forms."""
    forms = {form: unicodedata.normalize(form, text) for form in ("NFC", "NFD")}
    assert folded(forms["NFC"]).split() == folded(forms["NFD"]).split()


def test_every_letter_folds_alike_composed_and_decomposed() -> None:
    """No letter of the basic plane differs from its pieces, composed or not."""
    letters = [chr(code) for code in range(0x80, 0xD800) if chr(code).isalpha()]
    letters += [chr(code) for code in range(0xE000, 0x10000) if chr(code).isalpha()]
    pieces = [unicodedata.normalize("NFD", letter) for letter in letters]
    assert folded(" ".join(letters)).split() == folded(" ".join(pieces)).split()


def test_folding_again_changes_nothing() -> None:
    """What a character folds to folds to itself, so a fold never needs a second pass."""
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
def test_texts_fold_as_if_alone(texts: list[str]) -> None:
    """A text's fold does not depend on its neighbours, ASCII or not, and ends where its offset says."""
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
def test_no_input_passes_for_a_sentinel(code: int) -> None:
    """Noncharacters, surrogates and private characters in a text are white space, whatever they mean inside."""
    assert folded(f"é{chr(code)}b").split() == ["e", "b"]


def test_compatibility_forms_of_rare_han_fold_to_them() -> None:
    """Characters of the basic plane whose plain form lies beyond it fold to that."""
    assert folded("\ufa6c").strip() == "\U000242ee"
