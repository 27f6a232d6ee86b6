"""The embedded encoding: lossless, small, and with counts near cl100k_base."""

import base64
import gzip
from importlib import resources

import pytest
import tiktoken
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import costly

RANK_FILE = resources.files("relevance_gen") / "assets" / "embedded.tiktoken"
CL100K_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+"
    r"|\s++$|\s*[\r\n]|\s+(?!\S)|\s"
)


@pytest.fixture(scope="module")
def ranks() -> dict[bytes, int]:
    return {
        base64.b64decode(token): int(rank)
        for token, rank in map(str.split, RANK_FILE.read_text().splitlines())
    }


@pytest.fixture(scope="module")
def encoding(ranks: dict[bytes, int]) -> tiktoken.Encoding:
    return tiktoken.Encoding(
        "embedded", pat_str=CL100K_PATTERN, mergeable_ranks=ranks, special_tokens={}
    )


def test_ranks_are_dense_and_start_with_all_bytes(ranks: dict[bytes, int]) -> None:
    """The first 256 ranks are the bytes, and there are 32k to 64k ranks."""
    assert sorted(ranks.values()) == list(range(len(ranks)))
    assert {token for token, rank in ranks.items() if rank < 256} == {
        bytes([byte]) for byte in range(256)
    }
    assert 32_000 <= len(ranks) <= 64_000


def test_merged_tokens_are_pairs_of_lower_ranks(ranks: dict[bytes, int]) -> None:
    """Merging can reach each token."""
    for token, rank in ranks.items():
        if rank >= 256:
            halves = ((token[:i], token[i:]) for i in range(1, len(token)))
            assert any(
                ranks.get(a, rank) < rank and ranks.get(b, rank) < rank for a, b in halves
            ), token


def test_file_is_at_most_900_kb() -> None:
    """Before and after compression."""
    raw = RANK_FILE.read_bytes()
    assert len(raw) <= 900_000
    assert len(gzip.compress(raw)) <= 450_000


@costly
@given(st.text())
def test_encode_then_decode_returns_the_text(encoding: tiktoken.Encoding, text: str) -> None:
    """For any text."""
    assert encoding.decode(encoding.encode_ordinary(text), errors="strict") == text


@given(st.binary())
def test_encode_bytes_is_lossless(encoding: tiktoken.Encoding, raw: bytes) -> None:
    """Also for bytes that are not valid UTF-8."""
    assert (
        b"".join(
            map(
                encoding.decode_single_token_bytes,
                encoding._encode_single_piece(raw) if raw else [],
            )
        )
        == raw
    )


@pytest.mark.parametrize(
    ("text", "n_cl100k", "tolerance"),
    [
        ("What is machine learning?", 5, 0.0),
        (
            "The water level of the river rose by two metres overnight, and the villagers carried their belongings to "
            "the church on the hill, where the baker had already begun to hand out bread. Nobody could say when the "
            "road to the coast would open again, but most of them believed that the worst was over.",
            60,
            0.10,
        ),
        (
            "def mean(values: list[float]) -> float:\n    if not values:\n        raise ValueError('empty')\n"
            "    return sum(values) / len(values)\n\n\n"
            "for (int i = 0; i < n; ++i) {\n    total += items[i].price * rate;\n}\n",
            57,
            0.20,
        ),
    ],
)
def test_counts_are_near_cl100k(
    encoding: tiktoken.Encoding, text: str, n_cl100k: int, tolerance: float
) -> None:
    """Within 10% on English prose and 20% on code, compared with counts of tiktoken."""
    assert abs(len(encoding.encode_ordinary(text)) - n_cl100k) <= tolerance * n_cl100k
