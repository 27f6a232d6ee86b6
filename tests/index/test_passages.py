"""Passages: positions of the splits, and exact cosines."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest
from attrs import astuple
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from relevance_gen import Encoder, EncoderError, search
from relevance_gen.index.passages import PASSAGE_CHARS, Passages
from small_models import ENCODER
from tests import strategies

vectors = arrays(np.float32, (5, 7), elements=st.floats(-1, 1, width=32)).map(
    lambda rows: (rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-3)).astype(
        np.float16
    )
)


class Lengths:
    """Encodes a text as how long it is."""

    fingerprint = "lengths"

    def encode(self, texts: Sequence[str], **_: str) -> npt.NDArray[np.float32]:
        """Return a vector for each text."""
        rows = np.array([[len(text), 1.0] for text in texts]).reshape(-1, 2)
        unit: npt.NDArray[np.float32] = (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(
            np.float32
        )
        return unit


class Counting(Lengths):
    """Counts words and punctuation, and reads a limited number of these."""

    passage_tokens = 16

    def count_tokens(self, text: str) -> int:
        """Return how many words and signs a text has."""
        return len(re.findall(r"\w+|[^\w\s]", text))


@given(vectors, st.permutations(range(4)))
def test_nearest_returns_exact_cosines(rows: npt.NDArray[np.float16], order: list[int]) -> None:
    """Cosines equal the exact value, regardless of other passages and their order."""
    question, rest = rows[0], rows[1:]
    passages = Passages(np.arange(5), np.zeros(4, np.int64), np.ones(4, np.int64), rest)
    found, *_ = passages.nearest(np.array(order), question)
    expected = [
        math.fsum(float(a) * float(b) for a, b in zip(question, rest[at], strict=True))
        for at in order
    ]
    assert found.tolist() == expected
    assert [passages.nearest(np.array([at]), question)[0, 0] for at in order] == expected


@given(st.lists(strategies.chunk_texts, max_size=8), st.data())
def test_concat_and_take_keep_the_passages_of_each_chunk(
    texts: list[str], data: st.DataObject
) -> None:
    """After any concatenation and selection each chunk has its own passages."""
    cut = data.draw(st.integers(0, len(texts)))
    concat = Passages.concat(
        [Passages.encode(texts[:cut], Lengths()), Passages.encode(texts[cut:], Lengths())]
    )
    order = data.draw(st.permutations(range(len(texts))))
    taken, expected = (
        concat.take(np.array(order, np.int64)),
        Passages.encode([texts[at] for at in order], Lengths()),
    )
    for one, other in zip(astuple(taken), astuple(expected), strict=True):
        np.testing.assert_array_equal(one.ravel(), other.ravel())


@pytest.mark.parametrize(("letter", "n_bytes"), [("a", 1), ("é", 2), ("字", 3), ("😀", 4)])
def test_passage_without_token_counts_has_at_most_1000_bytes(letter: str, n_bytes: int) -> None:
    """Encoders read a limited number of tokens, and a letter of several bytes is usually a token."""
    text = " ".join([letter * 9] * 500)
    passages = Passages.encode([text], Lengths())
    parts = [text[start:end] for start, end in zip(passages.starts, passages.ends, strict=True)]
    assert max(len(part.encode()) for part in parts) <= PASSAGE_CHARS
    assert min(len(part.encode()) for part in parts[:-1]) > PASSAGE_CHARS // 2
    assert "".join(parts).replace(" ", "") == text.replace(" ", "")


SENTENCES = (
    "Call getUserName first.",
    "It is in src/users/read_me.py.",
    "Version 12.50 has it.",
    "The module a.b_c.d says 1,000.25 now.",
    "Why is it not there?",
)


@given(st.lists(st.sampled_from(SENTENCES), min_size=1, max_size=30))
def test_passages_have_at_most_the_tokens_of_the_encoder(said: list[str]) -> None:
    """Passages end at sentences, keep identifiers and numbers complete, and stay within the token limit."""
    text = " ".join(said)
    passages = Passages.encode([text], Counting())
    parts = [text[start:end] for start, end in zip(passages.starts, passages.ends, strict=True)]
    assert " ".join(parts) == text
    assert all(part.endswith((".", "?")) for part in parts)
    counts = [Counting().count_tokens(part.replace("UserName", " User Name")) for part in parts]
    assert max(counts) <= 16
    assert all(one + other > 12 for one, other in itertools.pairwise(counts))


@pytest.mark.parametrize(("encoder", "longest"), [(Lengths(), "t" * 500), (Counting(), "t " * 8)])
def test_title_is_encoded_before_each_passage(
    monkeypatch: pytest.MonkeyPatch, encoder: Lengths, longest: str
) -> None:
    """The title is part of each passage's tokens; a title of more than half a passage is omitted."""
    encoded: list[str] = []
    encode = encoder.encode

    def noting(texts: Sequence[str], **kind: str) -> npt.NDArray[np.float32]:
        encoded.extend(texts)
        return encode(texts, **kind)

    monkeypatch.setattr(encoder, "encode", noting)
    text = "Here is one more sentence. " * 100
    passages = Passages.encode(
        [text, "Cats purr."], encoder, titles={0: longest, 1: longest + "t t"}
    )
    parts = [
        text[start:end] for start, end in zip(passages.starts[:-1], passages.ends[:-1], strict=True)
    ]
    assert len(parts) > 1
    assert set(encoded) == {*(f"{longest}\n{part}" for part in parts), "Cats purr."}
    if isinstance(encoder, Counting):
        assert max(map(encoder.count_tokens, encoded)) <= encoder.passage_tokens


def test_passages_cover_all_tokens_of_dense_text() -> None:
    """A text with few characters and many tokens is split, so that the encoder reads all of it."""
    dense = "a b c d " * 100
    with Encoder(ENCODER) as encoder:
        n_tokens = encoder.count_tokens(dense)
        assert n_tokens > 5 * encoder.n_ctx
        passages = Passages.encode([dense], encoder)
        parts = [
            dense[start:end] for start, end in zip(passages.starts, passages.ends, strict=True)
        ]
        read = encoder.submit(parts, kind="passage").result().n_tokens
    assert read.max() <= encoder.n_ctx
    assert read.sum() == n_tokens + 2 * len(parts)


@pytest.mark.parametrize("encoder", [Lengths(), Counting()])
@given(text=strategies.chunk_texts)
def test_every_chunk_has_a_passage(encoder: Lengths, text: str) -> None:
    """Every chunk, including unusual text, has at least one passage, each with a span in the text."""
    passages = Passages.encode([text], encoder)
    assert passages.starts.size >= 1
    assert (
        (passages.starts >= 0) & (passages.starts < passages.ends) & (passages.ends <= len(text))
    ).all()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (None, "floats of shape"),
        (np.full((2, 4), 0.5, np.float32), "floats of shape"),
        (np.full(4, 0.5, np.float32), "floats of shape"),
        (np.ones((1, 4), np.int64), "floats of shape"),
        (np.full((1, 4), np.nan, np.float32), "of length 1"),
        (np.full((1, 4), 1e30, np.float32), "of length 1"),
        (np.ones((1, 4), np.float32), "of length 1"),
    ],
)
@pytest.mark.parametrize("wrong", ["query", "passage"])
def test_encoder_with_invalid_output_raises_an_error(
    given: object, message: str, wrong: str
) -> None:
    """If an encoder returns other values than vectors of length 1, the error describes the required output."""

    class Broken:
        fingerprint = "broken"

        def encode(self, texts: Sequence[str], *, kind: str) -> object:
            return given if kind == wrong else np.full((len(texts), 4), 0.5, np.float32)

    with pytest.raises(EncoderError, match=message):
        search("a cat", ["the cat"], encoder=Broken())  # type: ignore[arg-type]
