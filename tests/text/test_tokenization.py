"""Tokens of every script, and the ids of terms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.arrays import ragged_ranges
from relevance_gen.text.term_hashes import hash_term, prefix_buckets
from relevance_gen.text.tokenization import tokenize
from tests import reference, strategies


def terms(text: str) -> list[str]:
    """Tokenize a text, and restore the characters of moved scripts."""
    tokens = tokenize([text])
    return ["".join(map(_unmoved, tokens.decode_term(token))) for token in range(tokens.ids.size)]


def _unmoved(character: str) -> str:
    for first, end, moved in (
        (0x0E00, 0x0F00, 0xE000),
        (0x1000, 0x10A0, 0xE100),
        (0x1780, 0x1800, 0xE200),
    ):
        if moved <= ord(character) < moved + end - first:
            return chr(ord(character) - moved + first)
    if 0xA490 <= ord(character) < 0xA650:
        return chr(ord(character) - 0xA490 + 0x2600)
    return chr(ord(character) - 0xF000 + 0xA490) if 0xF000 <= ord(character) < 0xF770 else character


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("I'm OK, e.g. at 5 a.m.", "i m ok e g at 5 a m"),
        ("os.path.join(a, b)", "os path join a b"),
        ("getUserName", "getusername get user name"),
        ("HTTPServer", "httpserver http server"),
        ("get_user_name", "get_user_name get user name"),
        ("__init__ _ __", "init"),
        (
            "parseXML2Json iPhone McDonald",
            "parsexml2json parse xml2 json iphone i phone mcdonald mc donald",
        ),
        ("base64Encode 7F 3D x86_64", "base64encode base64 encode 7f 3d x86_64 x86 64"),
        ("Die Straße, GRÖSSE, Größe", "die strasse grosse grosse"),
        ("Crème brûlée", "creme brulee"),
        ("Ποιος είναι ο ΛΟΓΟΣ;", "ποιοσ ειναι ο λογοσ"),
        ("Ёлка — чай", "елка чай"),
        ("قَالَ مُحَمَّدٌ", "قال محمد"),
        ("שָׁלוֹם עולם", "שלום עולם"),
        ("क्‍ष हिन्दी भाषा।", "क्ष हिन्दी भाषा"),
        ("বাংলা தமிழ் తెలుగు", "বাংলা தமிழ் తెలుగు"),
        ("བོད་སྐད།", "བོད སྐད"),
        ("አማርኛ ქართული հայերեն", "አማርኛ ქართული հայերեն"),
        ("我喜欢猫。", "我喜 喜欢 欢猫"),
        ("猫", "猫"),
        ("東京タワー", "東京 京タ タワ ワー"),
        ("대한민국 만세", "대한 한민 민국 만세"),
        ("สวัสดี", "สวั วัส ัสด สดี"),
        ("ລາວ ພາສາ", "ລາວ ພາສ າສາ"),
        ("ភាសា", "ភាស ាសា"),
        ("မြန်မာ", "မြန ြန် န်မ ်မာ"),
        ("ไป", "ไป"),
        ("GPT模型2024年", "gpt 模型 2024 年"),
        ("日本語getUserName", "日本 本語 getusername get user name"),
        ("٣ ३ ３ ๓", "3 3 3 3"),
        ("😀😀 ok👍", "😀 😀 ok 👍"),
        ("☀️ ☀︎ ☀☀", "☀ ☀ ☀☀"),
        ("👩‍💻", "👩 💻"),
        ("𠮷野家", "𠮷 野家"),
        ("5 € + 3 % = ?", "5 3"),
        ("... !!! —", ""),
        ("\x00\x01\x7f", ""),
    ],
)
def test_tokenize_every_script(text: str, expected: str) -> None:
    """Scripts with spaces give words, scripts without spaces give overlapping n-grams, identifiers also give their parts."""
    assert terms(text) == expected.split()


@given(strategies.texts)
def test_tokenize_equals_reference(text: str) -> None:
    """Any text is tokenized as by the rules applied to each character."""
    tokens = tokenize([text])
    expected = reference.terms(text)
    assert terms(text) == [term.encode()[:64].decode("utf-8", "replace") for term in expected]
    by_term = dict(zip(expected, tokens.ids.tolist(), strict=True))
    assert [by_term[term] for term in expected] == tokens.ids.tolist()
    assert len(set(by_term.values())) == len(by_term)


@given(st.lists(strategies.texts, max_size=8))
def test_tokens_of_a_text_do_not_depend_on_other_texts(texts: list[str]) -> None:
    """The tokens of a text do not depend on the other texts of the call."""
    together = tokenize(texts)
    alone = [tokenize([text]) for text in texts]
    assert together.counts.tolist() == [tokens.ids.size for tokens in alone]
    assert together.ids.tolist() == [term_id for tokens in alone for term_id in tokens.ids.tolist()]
    spelled = [tokens.decode_term(token) for tokens in alone for token in range(tokens.ids.size)]
    assert [together.decode_term(token) for token in range(together.ids.size)] == spelled


PINNED_IDS = {
    "a": "0xc5a462a1ba48464b",
    "search": "0xfa7f3fd4b4c4fc96",
    "retrieval": "0x89f929954f0e230c",
    "internationalization": "0xf93d0d8825e5f176",
    "a" * 64: "0x7ea947f7ed2afa96",
    "a" * 65: "0x7e4f90bd788763f2",
    "2024": "0x801595fbfab5330b",
    "столица": "0xaf3250868ba5be7f",
    "हिन्दी": "0xa0a3d0cb2d07ebd6",
    "東京": "0x6fdc0cfc3add5e4b",
    "สวัสดี": "0x8059e497cc7cf812",
    "😀": "0x8996c24644248799",
}


def test_ids_never_change() -> None:
    """The ids of terms equal the ids in saved indexes."""
    assert {text: hex(int(tokenize([text]).ids[0])) for text in PINNED_IDS} == PINNED_IDS


@given(
    st.lists(
        st.one_of(strategies.words, st.text("abc", min_size=1, max_size=80)),
        min_size=1,
        max_size=20,
    )
)
def test_different_terms_have_different_ids(words: list[str]) -> None:
    """Ids are equal if and only if terms are equal, for terms of any length."""
    tokens = tokenize(words)
    spelled = [
        tokens.folded[start : start + length]
        for start, length in zip(tokens.start.tolist(), tokens.length.tolist(), strict=True)
    ]
    assert (
        len(set(spelled))
        == len(set(tokens.ids.tolist()))
        == len(set(zip(spelled, tokens.ids.tolist(), strict=True)))
    )


@pytest.mark.parametrize(
    "text", ["cat cats category", "fly flies", "столица столицы", "αρχη αρχαιος", "कमल कमला"]
)
def test_inflections_share_the_prefix_bucket(text: str) -> None:
    """Words with the same first letters are adjacent when ids are sorted."""
    assert len(set(prefix_buckets(tokenize([text]).ids).tolist())) == 1


@pytest.mark.parametrize(
    "unit", ["a", "A", "aA", "a_", "_", "猫", "ก", "й", "0", "é", "\u0301", "\ud800", "a\u0301"]
)
def test_tokenize_long_text_without_spaces_equals_reference(unit: str) -> None:
    """A text of any length without a space is tokenized by the rules."""
    text = unit * 3000
    assert len(terms(text)) == len(reference.terms(text))


def test_tokenize_of_empty_input_gives_no_tokens() -> None:
    """An empty list, and texts without terms, give empty arrays and the right counts."""
    assert tokenize([]).ids.dtype == np.uint64
    assert tokenize([]).counts.tolist() == []
    assert tokenize(["", "...", "é", "—", ""]).counts.tolist() == [0, 0, 1, 0, 0]


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 4)), max_size=8))
def test_ragged_ranges_concatenates_ranges(ranges: list[tuple[int, int]]) -> None:
    """Ranges are concatenated, including empty ranges."""
    start, length = np.array(ranges, np.int64).reshape(-1, 2).T
    assert ragged_ranges(start, length).tolist() == [
        n for first, size in ranges for n in range(first, first + size)
    ]


@given(st.text("abcdefghijklmnopqrstuvwxyz0123456789", min_size=1, max_size=63))
def test_hash_term_equals_id_of_token(word: str) -> None:
    """`hash_term` of a word equals the id of its token in a text."""
    assert hash_term(word) == int(tokenize([word]).ids[0])


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("والكتاب الكتب", ["كتاب", "كتب"]),
        ("وال الم للكم بالبيت ولله", ["وال", "الم", "كم", "بيت", "ولله"]),
        ("get_الكتاب", ["get_الكتاب", "get", "الكتاب"]),
    ],
)
def test_arabic_article_is_removed(text: str, expected: list[str]) -> None:
    """The article, with or without a particle, is removed from words that keep two letters, but not from identifiers."""
    tokens = tokenize([text])
    assert (
        [tokens.decode_term(token) for token in range(tokens.ids.size)]
        == expected
        == reference.terms(text)
    )


def test_too_long_identifier_is_not_split() -> None:
    """A word of up to 64 KiB is split at capitals and underscores; a longer word is a single term."""
    assert len(terms("aB" * (1 << 15))) == 1 + 1 + (1 << 15)
    assert [len(terms(unit * (1 << 15) + "aB_c cD")) for unit in ("aB", "a_")] == [4, 4]
