"""Hypothesis strategies: words, texts, queries and chunks of many scripts that share words."""

from __future__ import annotations

from hypothesis import strategies as st

ENGLISH = [
    *"the a of cat cats purr connect connected connection fly flies running can cans will willing zebra".split(),
    *"how many kinds what".split(),
]
IDENTIFIERS = [
    *"getUserName get_user_name HTTPServer parseXML2Json __init__ os.path user _ v2 x86_64 iPhone".split()
]
OTHER = [
    *"wie viele der und Straße STRASSE Häuser Haus Haustür für café cafe naïve Ünïcode ﬁnden ｆｕｌｌ".split(),
    *"сколько столица столицы столицей ёлка елка чай Москва καλημέρα ΚΑΛΗΜΕΡΑ λόγος λόγοι".split(),
    *"مُحَمَّد محمد أحمد احمد مدرسة שָׁלוֹם שלום हिन्दी हिंदी क्‍ष தமிழ் বাংলা".split(),
    *"猫 黒猫 我喜欢猫 東京都 ひらがな カタカナ ｶﾀｶﾅ 한국어 대한민국 สวัสดี ไทย ພາສາລາວ ភាសាខ្មែរ မြန်မာ".split(),
    *"😀 ☀️ ☀☀ 👩‍💻 𝐁𝐨𝐥𝐝 𠮷野 ① ½ ™ 三 ٣ ３".split(),
]

words = st.sampled_from(ENGLISH + IDENTIFIERS + OTHER)
glue = st.sampled_from([" ", " ", " ", " ", ", ", ". ", "\n", "", "-", "’"])
any_text = st.text(st.characters(), max_size=20)
"""Any code points, lone surrogates and noncharacters included."""
strange = st.text(
    st.sampled_from(
        "\x00\n\t\x1f\x7f\u00ad\u0301\u200d\u3099\ud800\udc00\ud83d\ude00\ufdd0\ufffd\ufffe\uffffÀﬀﷺĲ_aA9"
    ),
    max_size=12,
)


@st.composite
def word_texts(draw: st.DrawFn, of: st.SearchStrategy[str] = words, max_words: int = 12) -> str:
    """Draw words and separators between them."""
    parts = draw(st.lists(st.tuples(of, glue), min_size=1, max_size=max_words))
    return "".join(word + separator for word, separator in parts)


texts = st.one_of(word_texts(), word_texts(st.sampled_from(ENGLISH), 8), any_text, strange)
"""Any text, including blank texts."""
chunk_texts = texts.filter(lambda text: text and not text.isspace())
"""Any text that is allowed as a chunk or a query."""
queries = st.one_of(word_texts(max_words=5), chunk_texts)
chunk_lists = st.lists(chunk_texts, max_size=8)
plain_words = st.text(st.sampled_from("abcdeghk"), min_size=2, max_size=3)
"""Lower-case words of two or three letters, which are terms in this library and in scikit-learn."""
plain_texts = st.lists(plain_words, min_size=1, max_size=10).map(" ".join)
