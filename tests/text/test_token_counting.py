"""Token counts: equal to a slow reference and for both libraries, without exceptions of these libraries."""

import base64
import errno
import itertools
import os
import pickle
import re
import socket
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn

import attrs
import pytest
import tiktoken
from hypothesis import assume, given
from hypothesis import strategies as st

from relevance_gen.errors import InvalidRequestError
from relevance_gen.text.token_counting import (
    PIECE_CHARS,
    Backend,
    TokenCounter,
    backends,
    encodings,
    token_counter,
)
from relevance_gen.text.token_counting import counter as counter_module
from tests.reference_tokens import count_tokens

pytest.importorskip("gigatoken")

EMBEDDED = encodings.EMBEDDED
RANKS = {
    base64.b64decode(token): int(rank)
    for token, rank in (line.split() for line in EMBEDDED.read_bytes().splitlines())
}
PROSE = "It's 1,234 o'clock (they'll say): “naïve” café – Größe, Привет мир; 你好世界! สวัสดี\r\n\n  x_y = f(z)\t// ok\n"

# Every edge of the split patterns: contractions, digit triples, spaces before words, newlines after
# punctuation, cases.
_SEAMS = (
    *(
        "word",
        " ",
        "  ",
        "\n",
        "\r\n",
        "\t",
        "\u00a0",
        "\u3000",
        "'s",
        "'LL",
        "'ſ",
        "1",
        "1234",
        "!",
        "!\n",
        "//",
    ),
    *(
        "Aa",
        "aA",
        "ÀÉ",
        "ǅ",
        "中",
        "ん",
        "ก็",
        "क्ष",
        "\u0301",
        "😀",
        "\x00",
        "\ufeff",
        "\ufffd",
        "<|endoftext|>",
    ),
)
_seams = st.sampled_from(_SEAMS)
texts = st.lists(_seams | st.characters(exclude_categories=["Cs"]), max_size=60).map("".join)
broken_texts = st.lists(_seams | st.characters(), max_size=30).map("".join)


@pytest.fixture(scope="module")
def slow() -> TokenCounter:
    return token_counter(backend="tiktoken")


@pytest.fixture(scope="module")
def fast() -> TokenCounter:
    return token_counter(backend="gigatoken")


def encoding_of(pattern: str) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "ours", pat_str=pattern, mergeable_ranks=RANKS, special_tokens={"<|endoftext|>": len(RANKS)}
    )


@given(texts)
def test_count_equals_reference(text: str) -> None:
    """The default count equals textbook byte-pair encoding with the embedded ranks."""
    assert token_counter().count(text) == count_tokens(text, encodings.CL100K_PATTERN, RANKS)


@given(broken_texts)
def test_backends_agree(text: str) -> None:
    """Both libraries give the same count for any string, including lone surrogates and special tokens."""
    assert token_counter(backend="gigatoken").count(text) == token_counter(
        backend="tiktoken"
    ).count(text)


O200K = encoding_of(encodings.O200K_PATTERN)


@given(broken_texts)
def test_backends_agree_on_o200k_pattern(text: str) -> None:
    """Both libraries agree for a `tiktoken.Encoding` with the o200k split pattern."""
    fast, slow = (token_counter(O200K, backend=name) for name in ("gigatoken", "tiktoken"))
    assert fast.count(text) == slow.count(text)


@given(st.lists(broken_texts, max_size=8))
def test_count_all_equals_sum_of_counts(chunks: list[str]) -> None:
    """`count_all` is the sum of the counts of each text."""
    counter = token_counter()
    assert counter.count_all(chunks) == sum(counter.count(chunk) for chunk in chunks)


@pytest.mark.parametrize(
    ("backend", "n_before"), [("gigatoken", 1 << 26), ("gigatoken", 0), ("tiktoken", 0)]
)
def test_count_all_of_many_megabytes_equals_sum_of_counts(
    backend: Backend, n_before: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The count of megabytes of text is the sum of the counts, with batches and without, including long, broken and empty texts."""
    counter = token_counter(backend=backend)
    if isinstance(counter._loaded[1], backends.GigatokenBackend):
        monkeypatch.setattr(counter._loaded[1], "_chars_before_batches", n_before)
    chunks = [*(PROSE[n % 50 :] for n in range(8_000)), "", "\ud800 " * 100_000, "a" * 600_000]
    assert counter.count_all(chunks) == sum(map(counter.count, chunks))


def test_query_of_documented_example_has_5_tokens() -> None:
    """The question of the documented example has 5 tokens in the default encoding."""
    counter = token_counter()
    assert counter.count("What is machine learning?") == 5
    assert counter.name == "embedded"
    assert repr(counter) == "<TokenCounter embedded by gigatoken>"


@pytest.mark.parametrize("backend", ["gigatoken", "tiktoken"])
def test_surrogate_pairs_and_lone_surrogates_are_counted(backend: Backend) -> None:
    """A surrogate pair counts as its character, a lone surrogate as U+FFFD."""
    counter = token_counter(backend=backend)
    assert counter.count("a\ud83d\ude00b") == counter.count("a😀b")
    assert counter.count("a\ud800b") == counter.count("a\ufffdb")
    assert counter.count("\ud800" * (PIECE_CHARS + 1)) == counter.count(
        "\ufffd" * (PIECE_CHARS + 1)
    )


@pytest.mark.parametrize("text", [None, 5, b"text", ["text"]])
def test_count_of_other_types_raises_an_error(text: Any) -> None:
    """Only single strings are counted."""
    with pytest.raises(InvalidRequestError, match="text must be a string, got "):
        token_counter().count(text)


def test_special_token_is_ordinary_text() -> None:
    """The text of a special token is counted as ordinary text."""
    assert token_counter(O200K).count("<|endoftext|>") > 1


@pytest.mark.parametrize(
    ("encoding", "unit"),
    [
        *itertools.product(
            [None, O200K], [" ", "\n", "a", "A", "!", "中", "\u00a0", "\u0301", "😀", " \n"]
        ),
        (None, "\ud800"),
    ],
)
def test_long_runs_are_counted(unit: str, encoding: tiktoken.Encoding | None) -> None:
    """A run of 1.1 million characters, for which tiktoken alone panics, is counted equally by both libraries."""
    text = unit * (1_100_000 // len(unit))
    fast, slow = (token_counter(encoding, backend=name) for name in ("gigatoken", "tiktoken"))
    assert fast.count(text) == slow.count(text) > 0


@pytest.mark.parametrize(
    "pattern", [encodings.CL100K_PATTERN, encodings.O200K_PATTERN], ids=["cl100k", "o200k"]
)
def test_count_of_split_long_text_equals_tiktoken(pattern: str) -> None:
    """A text of many pieces has the count that tiktoken gives for the complete text."""
    encoding = encoding_of(pattern)
    for text in (PROSE * 6_000, "wait!\n \n  go " * 50_000):
        assert len(text) > 2 * PIECE_CHARS
        assert token_counter(encoding).count(text) == len(encoding.encode_ordinary(text))


_words = st.text(
    st.characters(exclude_categories=["Cs", "Zs", "Zl", "Zp", "Cc"]), min_size=1, max_size=10
)
_gaps = st.sampled_from([" ", " ", " ", "  ", "\n", "!\n", "\r\n ", " \n", ", "])


@given(st.lists(st.tuples(_words, _gaps), min_size=10, max_size=40))
def test_split_before_space_after_word_keeps_the_count(words: list[tuple[str, str]]) -> None:
    """For any split before a space that follows a word, the sum is the count of the complete text."""
    text = "".join(word + gap for word, gap in words)
    whole = token_counter().count(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(counter_module, "PIECE_CHARS", 64)
        patch.setattr(counter_module, "_SPLIT_WINDOW_CHARS", 63)
        assume(all(len(piece) < 64 for piece in counter_module._pieces(text)))
        assert token_counter().count(text) == whole


def test_tiktoken_panic_raises_invalid_request_error(capfd: pytest.CaptureFixture[str]) -> None:
    """An encoding that makes tiktoken panic raises `InvalidRequestError`, not a BaseException of Rust."""
    gappy = tiktoken.Encoding(
        "gappy", pat_str=r"\p{L}+|\P{L}+", mergeable_ranks={b"a": 0}, special_tokens={}
    )
    with pytest.raises(InvalidRequestError, match="gappy cannot"):
        token_counter(gappy).count("abracadabra")
    assert "panicked" in capfd.readouterr().err


def test_counter_is_thread_safe(fast: TokenCounter) -> None:
    """A counter that threads share gives the same counts as in one thread."""
    chunks = [PROSE * n for n in range(40)]
    alone = [fast.count(chunk) for chunk in chunks]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(fast.count, chunks)) == alone


def test_renewed_tokenizer_gives_equal_counts(
    monkeypatch: pytest.MonkeyPatch, slow: TokenCounter
) -> None:
    """A gigatoken tokenizer that is replaced every few texts, to bound its cache, gives the same counts."""
    monkeypatch.setattr(backends, "_RENEW_AFTER_TOKENS", 60)
    fast = token_counter(encoding_of(encodings.CL100K_PATTERN), backend="gigatoken")
    chunks = [PROSE[n:] for n in range(20)]
    assert fast.count_all(chunks) == slow.count_all(chunks)


def test_counters_are_cached() -> None:
    """Calls with the same encoding return the same counter."""
    assert token_counter() is token_counter()
    assert token_counter(str(EMBEDDED)) is token_counter(EMBEDDED)


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("no network in this test")

    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))


@pytest.mark.usefixtures("no_network")
def test_default_needs_no_network() -> None:
    """The default encoding works if every connection fails."""
    counter_module._counter.cache_clear()
    assert token_counter(backend="tiktoken").count("hello") == token_counter(
        backend="gigatoken"
    ).count("hello")


@pytest.mark.usefixtures("no_network")
def test_failed_download_raises_an_error_with_remedy() -> None:
    """A published encoding that cannot be fetched raises `InvalidRequestError` with a remedy."""
    with pytest.raises(
        InvalidRequestError, match=r"r50k_base could not be loaded.*TIKTOKEN_CACHE_DIR"
    ) as caught:
        token_counter("r50k_base")
    assert caught.value.field == "encoding"


@pytest.mark.usefixtures("no_network")
def test_remedies_for_failed_download_work(tmp_path: Path) -> None:
    """Without a network the error names the file to fetch, and both remedies lead to the encoding."""
    with pytest.raises(InvalidRequestError) as caught:
        token_counter("p50k_base")
    message = str(caught.value)
    url, kept_as = re.search(r"fetch (\S+)", message)[1], re.search(r"put it as (\w+)", message)[1]
    assert url == "https://openaipublic.blob.core.windows.net/encodings/p50k_base.tiktoken"
    assert 'encoding="p50k_base.tiktoken"' in message
    (tmp_path / kept_as).write_bytes(EMBEDDED.read_bytes())
    with pytest.raises(InvalidRequestError) as caught:  # found there, and refused only for its hash
        token_counter("p50k_base")
    assert not (tmp_path / kept_as).exists()
    (tmp_path / "p50k_base.tiktoken").write_bytes(EMBEDDED.read_bytes())
    assert token_counter(tmp_path / "p50k_base.tiktoken").count("hello") == token_counter().count(
        "hello"
    )


def test_published_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A published name counts with tiktoken's encoding of that name."""
    monkeypatch.setitem(tiktoken.registry.ENCODINGS, "o200k_base", O200K)
    assert token_counter("o200k_base").count(PROSE) == len(O200K.encode_ordinary(PROSE))


def test_empty_name_raises_an_error() -> None:
    """An empty name is refused by name, and is not the working folder."""
    with pytest.raises(InvalidRequestError, match=r"encoding must be a name, .*, got ''"):
        token_counter("")


@pytest.mark.parametrize("name", ["o200k_bose", "cl100kbase"])
def test_unknown_name_raises_an_error_with_suggestion(name: str) -> None:
    """A misspelled name is refused with the nearest known name."""
    with pytest.raises(
        InvalidRequestError, match=r"did you mean (o200k_base|cl100k_base)"
    ) as caught:
        token_counter(name)
    assert caught.value.field == "encoding"


@pytest.mark.parametrize(
    "bad", ["", "\x00", "no/such/file", ".", "x" * 5000, 5, b"cl100k_base", ["cl100k_base"]]
)
def test_invalid_encoding_raises_an_error(bad: object) -> None:
    """A value other than a name, a readable file or an encoding is refused."""
    with pytest.raises(InvalidRequestError):
        token_counter(bad)  # type: ignore[arg-type]


def test_unknown_backend_raises_an_error() -> None:
    """Only the names of the two libraries are allowed."""
    with pytest.raises(InvalidRequestError, match="backend must be"):
        token_counter(backend="sentencepiece")  # type: ignore[arg-type]


def test_failed_renewal_keeps_the_old_tokenizer(
    monkeypatch: pytest.MonkeyPatch, slow: TokenCounter
) -> None:
    """If temporary files cannot be written, the old tokenizer still gives the same counts."""
    counter = token_counter(encoding_of(encodings.CL100K_PATTERN), backend="gigatoken")
    monkeypatch.setattr(backends, "_RENEW_AFTER_TOKENS", 5)

    def no_room(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(backends.os, "memfd_create", no_room, raising=False)
    monkeypatch.setattr(tempfile, "TemporaryDirectory", no_room)
    backend: Any = counter._loaded[1]
    backend._tokens_left = 0
    for text in ("What is machine learning?", "one more text, to renew again and again"):
        assert counter.count(text) == slow.count(text)


def test_gigatoken_needs_no_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """If the system supports files in memory, loading gigatoken does not write to a disk."""
    if not hasattr(os, "memfd_create"):
        pytest.skip("files in memory are Linux's")

    def no_folder(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(tempfile, "TemporaryDirectory", no_folder)
    backends.GigatokenBackend(encodings.define(encodings.EMBEDDED))


def test_gigatoken_with_unsupported_pattern_raises_an_error() -> None:
    """An encoding with another split pattern uses tiktoken by default, and gigatoken by name is an error."""
    own = encoding_of(r"\S+|\s+")
    assert token_counter(own).backend == "tiktoken"
    with pytest.raises(InvalidRequestError, match="gigatoken cannot"):
        token_counter(own, backend="gigatoken")


def test_tiktoken_counts_without_gigatoken(monkeypatch: pytest.MonkeyPatch) -> None:
    """If gigatoken is not installed, tiktoken counts."""
    monkeypatch.setitem(sys.modules, "gigatoken", None)
    counter = token_counter(encoding_of(encodings.CL100K_PATTERN))
    assert counter.backend == "tiktoken"
    assert counter.count("What is machine learning?") == 5


ALL_BYTES = b"".join(b"%b %d\n" % (base64.b64encode(bytes([byte])), byte) for byte in range(256))


def test_rank_file_by_path(tmp_path: Path) -> None:
    """A rank file of single bytes counts bytes, and a changed file is read again."""
    path = tmp_path / "bytes.tiktoken"
    path.write_bytes(ALL_BYTES)
    counter = token_counter(path)
    assert (counter.name, counter.count("añb 中")) == ("bytes", 8)
    path.write_bytes(ALL_BYTES + base64.b64encode(b"ab") + b" 256\n")
    assert token_counter(path).count("ab") == 1


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x00\xff",
        b"YQ== one",
        b"YQ==",
        b"!!!! 1",
        ALL_BYTES[10:],
        ALL_BYTES + b"YWI= 97\n",
        ALL_BYTES + b"\n",
    ],
    ids=[
        "empty",
        "binary",
        "no rank",
        "one column",
        "no base64",
        "a byte missing",
        "a rank twice",
        "blank line",
    ],
)
def test_damaged_rank_file_raises_an_error(content: bytes, tmp_path: Path) -> None:
    """An incomplete rank file is refused when the counter is made."""
    path = tmp_path / "damaged.tiktoken"
    path.write_bytes(content)
    with pytest.raises(
        InvalidRequestError, match="encoding must be a file in tiktoken's rank format"
    ):
        token_counter(path)


def test_pickled_counter_has_the_same_encoding() -> None:
    """An unpickled counter has the same encoding: the embedded encoding, a file or an object."""
    for encoding in (None, EMBEDDED, encoding_of(encodings.CL100K_PATTERN)):
        counter = token_counter(encoding)
        copied = pickle.loads(pickle.dumps(counter))
        assert (copied.name, copied.fingerprint, copied.count("What is it?")) == (
            counter.name,
            counter.fingerprint,
            counter.count("What is it?"),
        )


def test_fingerprints_of_different_ranks_differ(tmp_path: Path) -> None:
    """Two rank files of one name have different fingerprints if their ranks differ, and equal fingerprints otherwise."""
    counters = []
    for folder, shift in (("a", 0), ("b", 1), ("c", 0)):
        path = tmp_path / folder / "bytes.tiktoken"
        path.parent.mkdir()
        ranks = {bytes([byte]): (byte + shift) % 256 for byte in range(256)}
        path.write_text(
            "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks.items())
        )
        counters.append(token_counter(path))
    assert len({counter.name for counter in counters}) == 1
    assert counters[0].fingerprint == counters[2].fingerprint != counters[1].fingerprint


def test_embedded_fingerprint_equals_fingerprint_of_ranks() -> None:
    """The embedded file is in the order of its ranks, so that its bytes give the fingerprint."""
    embedded = encodings.define(encodings.EMBEDDED)
    assert embedded.fingerprint == attrs.evolve(embedded, source="as by name").fingerprint


def test_batches_of_a_long_text_are_bounded() -> None:
    """A text of 5 Mi characters is divided into batches of at most `_BATCH_CHARS` + `PIECE_CHARS` characters."""
    text = "cats " * (1 << 20)
    batches = list(counter_module._batches([text, "dogs"]))
    sizes = [sum(map(len, batch)) for batch in batches]
    assert max(sizes) <= counter_module._BATCH_CHARS + PIECE_CHARS
    assert "".join("".join(batch) for batch in batches) == f"{text}dogs"
