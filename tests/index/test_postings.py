"""Postings: counts of terms, sorted by term."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.arrays import Ids
from relevance_gen.index.builder import build as build_segment
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.postings import (
    MAX_BLOCK_CHUNKS,
    Postings,
    PostingsBuilder,
    count_terms,
)
from relevance_gen.text.term_hashes import N_PREFIX_BUCKETS, prefix_buckets
from relevance_gen.text.tokenization import tokenize
from relevance_gen.text.word_forms import is_number
from tests import strategies

colliding_ids = st.builds(
    lambda high, low: high << 48 | high << 2 | low,
    st.sampled_from([0, 1, 0xFFFF]),
    st.integers(0, 3),
)
"""Ids of which several share their top 16 bits."""
id_lists = st.lists(
    st.lists(st.one_of(colliding_ids, st.integers(0, 2**64 - 1)), max_size=8), max_size=6
)


def flat(chunks: list[list[int]]) -> tuple[Ids, np.ndarray]:
    ids = np.array([term_id for chunk in chunks for term_id in chunk], np.uint64)
    return ids, np.array([len(chunk) for chunk in chunks], np.int64)


@given(id_lists)
def test_count_terms_equals_counter(chunks: list[list[int]]) -> None:
    """Every term of every chunk is counted once, also if other terms of the same bucket are in between."""
    found = count_terms(*flat(chunks))
    counts = list(zip(found.chunk.tolist(), found.ids.tolist(), found.tf.tolist(), strict=True))
    expected = [
        (place, term, tf)
        for place, chunk in enumerate(chunks)
        for term, tf in Counter(chunk).items()
    ]
    assert sorted(counts) == sorted(expected)
    ids, _ = flat(chunks)
    assert found.ids.tolist() == ids[found.occurrence].tolist()


@given(id_lists, st.integers(0, 5))
def test_counts_of_a_chunk_do_not_depend_on_its_block(chunks: list[list[int]], cut: int) -> None:
    """The counts of a chunk and their order do not depend on other chunks of the block."""

    def by_chunk(some: list[list[int]]) -> list[list[tuple[int, int]]]:
        found = count_terms(*flat(some))
        rows = list(zip(found.chunk.tolist(), found.ids.tolist(), found.tf.tolist(), strict=True))
        return [[row[1:] for row in rows if row[0] == place] for place in range(len(some))]

    assert by_chunk(chunks) == by_chunk(chunks[:cut]) + by_chunk(chunks[cut:])


def test_count_terms_distinguishes_chunks_of_the_largest_block() -> None:
    """The last chunk of the largest block is distinguished from the first."""
    found = count_terms(
        np.full(MAX_BLOCK_CHUNKS, 7, np.uint64), np.ones(MAX_BLOCK_CHUNKS, np.int64)
    )
    assert found.chunk.tolist() == list(range(MAX_BLOCK_CHUNKS))


def build(blocks: list[list[str]], wanted: np.ndarray | None = None) -> Postings:
    builder = PostingsBuilder(4, wanted)
    done = 0
    for block in blocks:
        tokens = tokenize(block)
        builder.add(
            tokens, count_terms(tokens.ids, tokens.counts), np.arange(done, done + len(block))
        )
        done += len(block)
    return builder.build()[0]


@given(st.lists(st.lists(strategies.texts, max_size=4), max_size=4))
def test_postings_equal_counts_of_each_text(blocks: list[list[str]]) -> None:
    """Postings have the number of occurrences of each term in each chunk, and the lexicon has its spelling."""
    postings = build(blocks)
    expected: dict[int, Counter[int]] = {}
    spelled: dict[int, str] = {}
    for place, text in enumerate(text for block in blocks for text in block):
        tokens = tokenize([text])
        for token, term_id in enumerate(tokens.ids.tolist()):
            expected.setdefault(term_id, Counter())[place] += 1
            spelled[term_id] = tokens.decode_term(token)
    assert postings.lexicon.ids.tolist() == sorted(expected)
    for number, term_id in enumerate(postings.lexicon.ids.tolist()):
        part = slice(postings.first[number], postings.first[number + 1])
        counts = dict(zip(postings.chunk[part].tolist(), postings.tf[part].tolist(), strict=True))
        assert counts == expected[term_id]
        assert postings.lexicon.decode_terms(np.array([number]))[0] == spelled[term_id]
        assert postings.lexicon.find(np.array([term_id], np.uint64)).tolist() == [number]
    assert postings.df_of_all().tolist() == [len(expected[term_id]) for term_id in sorted(expected)]


@given(st.lists(strategies.texts, max_size=4), st.integers(0, 2**64 - 1))
def test_find_of_absent_term_returns_nothing(texts: list[str], term_id: int) -> None:
    """Only terms of the chunks have an ordinal."""
    postings = build([texts])
    (number,) = postings.lexicon.find(np.array([term_id], np.uint64)).tolist()
    assert (number >= 0) == (term_id in postings.lexicon.ids.tolist())


@given(st.lists(strategies.word_texts(), max_size=4), strategies.words)
def test_prefix_bucket_filter_keeps_all_postings_of_a_bucket(texts: list[str], word: str) -> None:
    """A filter keeps all terms of its prefix buckets unchanged, and drops all other terms."""
    wanted = np.zeros(N_PREFIX_BUCKETS, bool)
    wanted[prefix_buckets(tokenize([word]).ids)] = True
    whole, some = build([texts]), build([texts], wanted)
    kept = np.flatnonzero(wanted[prefix_buckets(whole.lexicon.ids)])
    assert some.lexicon.ids.tolist() == whole.lexicon.ids[kept].tolist()
    assert some.df_of_all().tolist() == whole.df_of_all()[kept].tolist()
    assert [*some.lexicon.decode_terms(np.arange(kept.size))] == [*whole.lexicon.decode_terms(kept)]


def test_postings_without_terms_are_empty() -> None:
    """Lookups in postings without terms return empty results."""
    postings = build([["..."], []])
    assert postings.lexicon.ids.size == postings.chunk.size == postings.tf.size == 0
    assert postings.lexicon.find(np.array([7], np.uint64)).tolist() == [-1]
    assert list(postings.lexicon.find_by_prefix(2**64 - 1, b"a", b"abc")) == []
    assert postings.lexicon.prefixes.tolist() == [0]


@given(st.lists(st.from_regex("[0-9a-z]{1,5}|(19|20|21)[0-9a]{1,3}", fullmatch=True)))
def test_numbers_of_a_lexicon_equal_those_of_words(words: list[str]) -> None:
    """The terms of a lexicon that are numbers are those for which `is_number` returns True."""
    lexicon = build_segment(Chunks([" ".join(["word", *words])], {}), np.arange(1)).postings.lexicon
    terms = lexicon.decode_terms(np.arange(lexicon.size))
    assert lexicon.is_number.tolist() == [*map(is_number, terms), False]
