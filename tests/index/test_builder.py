"""Build segments: results do not depend on blocks, and match a simple count of each text."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relevance_gen.arrays import Flags
from relevance_gen.index import builder
from relevance_gen.index.builder import build
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.segment import Segment
from relevance_gen.progress import Progress
from relevance_gen.text import blocks as portions
from relevance_gen.text.term_hashes import N_PREFIX_BUCKETS, prefix_buckets
from relevance_gen.text.tokenization import tokenize
from tests import reference, strategies
from tests.profiles import costly

text_lists = st.lists(strategies.texts, max_size=10)


def collect(
    texts: list[str], wanted: Flags | None = None, progress: Progress | None = None
) -> Segment:
    keep = wanted is None
    return build(
        Chunks(texts, {}),
        np.arange(len(texts)),
        keep_occurrences=keep,
        prefix_bucket_filter=wanted,
        progress=progress,
    )


def tokens_of(segment: Segment, numbers: list[int]) -> list[list[int]]:
    """Return the term ids of the given chunks, in text order."""
    reading = segment.token_sequences(np.array(numbers, np.int64))
    ids = [*reading.lexicon.ids.tolist(), None]
    read = [
        [ids[word] for word in reading.terms.tolist()][start:] for start in reading.starts.tolist()
    ]
    assert all(part[n] is None for part, n in zip(read, reading.counts.tolist(), strict=True))
    return [part[:n] for part, n in zip(read, reading.counts.tolist(), strict=True)]


def postings_of(segment: Segment) -> dict[int, dict[int, int]]:
    """Return tf by chunk by term."""
    postings = segment.postings
    parts = [
        slice(*postings.first[number : number + 2]) for number in range(postings.lexicon.ids.size)
    ]
    return {
        term_id: dict(zip(postings.chunk[part].tolist(), postings.tf[part].tolist(), strict=True))
        for term_id, part in zip(postings.lexicon.ids.tolist(), parts, strict=True)
    }


@settings(costly, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text_lists, st.integers(1, 60), st.integers(1, 4))
def test_build_with_any_block_size_gives_equal_segments(
    monkeypatch: pytest.MonkeyPatch, texts: list[str], block_chars: int, block_chunks: int
) -> None:
    """Segments are bit-identical for every block size."""
    whole = collect(texts)
    with monkeypatch.context() as small:
        small.setattr(portions, "BLOCK_CHARS", block_chars)
        small.setattr(builder, "MAX_BLOCK_CHUNKS", block_chunks)
        blocks = collect(texts)
    assert blocks.norms.tobytes() == whole.norms.tobytes()
    assert blocks.n_occurrences.tolist() == whole.n_occurrences.tolist()
    assert blocks.english_margin.tolist() == whole.english_margin.tolist()
    assert postings_of(blocks) == postings_of(whole)
    assert blocks.hashes.tolist() == whole.hashes.tolist()
    every = list(range(len(texts)))
    assert tokens_of(blocks, every) == tokens_of(whole, every)


@given(text_lists)
def test_build_indexes_the_terms_of_each_text(texts: list[str]) -> None:
    """Tokens, counts and postings equal the result of tokenizing each text separately."""
    segment = collect(texts)
    ids = [tokenize([text]).ids.tolist() for text in texts]
    assert segment.statistics.n_chunks == len(texts)
    assert segment.n_occurrences.tolist() == [len(part) for part in ids]
    assert tokens_of(segment, list(range(len(texts)))[::-1]) == ids[::-1]
    expected: dict[int, dict[int, int]] = {}
    for place, part in enumerate(ids):
        for term_id, tf in Counter(part).items():
            expected.setdefault(term_id, {})[place] = tf
    assert postings_of(segment) == expected


@given(text_lists)
def test_norms_equal_length_of_saturated_counts(texts: list[str]) -> None:
    """The norm of a chunk is the length of the vector of its saturated counts."""
    norms = collect(texts).norms.tolist()
    expected = [reference.norm(reference.terms(text)) for text in texts]
    assert norms == pytest.approx(expected)


def test_norms_count_numbers_other_than_years_at_most_a_tenth() -> None:
    """A table of numbers is hardly longer than its words, years are words, and pieces count alike."""
    words = "revenue by year 1999 2024"
    numbers = " ".join(map(str, range(2100, 2400)))
    norms = collect([words, f"{words} {numbers}", numbers]).norms
    assert norms[1] ** 2 == pytest.approx(1.1 * norms[0] ** 2)
    assert norms[0] == pytest.approx(math.sqrt(5) / 2.6)
    assert norms[2] == 0.0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(portions, "BLOCK_CHARS", 16)
        assert collect([f"{words} {numbers}"]).norms[0] == norms[1]


@given(text_lists, strategies.words)
def test_build_with_prefix_bucket_filter_omits_only_other_postings(
    texts: list[str], query: str
) -> None:
    """A segment built for one query lacks postings of other prefix buckets and is otherwise equal."""
    ids = tokenize([query]).ids
    flags = np.zeros(N_PREFIX_BUCKETS, bool)
    flags[prefix_buckets(ids)] = True
    whole, some = collect(texts), collect(texts, flags)
    assert some.norms.tobytes() == whole.norms.tobytes()
    every = list(range(len(texts)))
    assert tokens_of(some, every) == tokens_of(whole, every)
    assert some.statistics.is_english == whole.statistics.is_english
    wanted = set(prefix_buckets(ids).tolist())
    kept = {term: part for term, part in postings_of(whole).items() if term >> 56 in wanted}
    assert postings_of(some) == kept


@given(text_lists)
def test_english_margin_counts_marker_words(texts: list[str]) -> None:
    """A segment is English unless marker words of other languages outnumber English marker words."""
    assert collect(texts).statistics.is_english == reference.is_english(
        [reference.terms(text) for text in texts]
    )


@pytest.mark.parametrize(
    ("text", "english"),
    [
        ("The cat and the dog that you have", True),
        ("Die Katze und der Hund, die ihr mit euch habt", False),
        ("El gato y el perro de los que te hablé", False),
        ("Le chat et le chien dans les maisons", False),
        ("kedi ve köpek için bir ev", False),
        ("Кошка и собака", True),
        ("", True),
    ],
)
def test_is_english_for_texts_of_several_languages(text: str, english: bool) -> None:
    """Marker words distinguish English from other languages in Latin letters; text without markers counts as English."""
    assert collect([text]).statistics.is_english is english


@given(st.lists(strategies.chunk_texts, max_size=10))
def test_progress_increases_to_the_number_of_chunks(texts: list[str]) -> None:
    """Progress is called after every block, never decreases and ends with all chunks done."""
    reported: list[tuple[int, int]] = []
    collect(texts, progress=lambda done, n_chunks: reported.append((done, n_chunks)))
    assert [done for done, _ in reported] == sorted({done for done, _ in reported})
    assert {n_chunks for _, n_chunks in reported} == ({len(texts)} if texts else set())
    assert not texts or reported[-1] == (len(texts), len(texts))
