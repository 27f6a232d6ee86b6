"""Collection: texts in blocks come to what they come to one by one."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from relevance_gen.retrieval import collection as module
from relevance_gen.retrieval.collection import Collection, collect
from relevance_gen.retrieval.terms import beginnings, tokenize
from relevance_gen.retrieval.weighting import Weighting
from tests import reference, strategies
from tests.retrieval.asking import WEIGHTINGS

text_lists = st.lists(strategies.texts, max_size=10)
weightings = st.sampled_from(WEIGHTINGS)


def postings_of(collection: Collection) -> dict[int, dict[int, int]]:
    """Return tf by chunk by term."""
    postings = collection.postings
    parts = [slice(*postings.first[number : number + 2]) for number in range(postings.ids.size)]
    return {
        term_id: dict(zip(postings.chunk[part].tolist(), postings.tf[part].tolist(), strict=True))
        for term_id, part in zip(postings.ids.tolist(), parts, strict=True)
    }


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text_lists, weightings, st.integers(1, 60), st.integers(1, 4))
def test_block_borders_do_not_show(
    monkeypatch: pytest.MonkeyPatch, texts: list[str], weighting: Weighting, block_chars: int, block_chunks: int
) -> None:
    """Whatever the size of a block, a collection is the same, bit for bit."""
    whole = collect(texts, weighting)
    with monkeypatch.context() as small:
        small.setattr(module, "_BLOCK_CHARS", block_chars)
        small.setattr(module, "MAX_BLOCK_CHUNKS", block_chunks)
        blocks = collect(texts, weighting)
    assert blocks.norms.tobytes() == whole.norms.tobytes()
    assert blocks.n_tokens.tolist() == whole.n_tokens.tolist()
    assert blocks.is_english == whole.is_english
    assert postings_of(blocks) == postings_of(whole)
    for place in range(len(texts)):
        assert blocks.tokens_of(np.array([place]))[0].tolist() == whole.tokens_of(np.array([place]))[0].tolist()


@given(text_lists, weightings)
def test_a_collection_holds_the_terms_of_its_texts(texts: list[str], weighting: Weighting) -> None:
    """Tokens, counts and postings are those of each text alone."""
    collection = collect(texts, weighting)
    ids = [tokenize([text]).ids.tolist() for text in texts]
    assert collection.n_chunks == len(texts)
    assert collection.n_tokens.tolist() == [len(part) for part in ids]
    found, counts = collection.tokens_of(np.arange(len(texts))[::-1])
    assert found.tolist() == [term_id for part in ids[::-1] for term_id in part]
    assert counts.tolist() == [len(part) for part in ids[::-1]]
    expected: dict[int, dict[int, int]] = {}
    for place, part in enumerate(ids):
        for term_id, tf in Counter(part).items():
            expected.setdefault(term_id, {})[place] = tf
    assert postings_of(collection) == expected


@given(text_lists)
def test_pivoted_norms_are_those_of_saturated_counts(texts: list[str]) -> None:
    """A chunk's norm is the length of the vector of its saturated counts."""
    norms = collect(texts, "pivoted").norms.tolist()
    expected = [sum((tf / (tf + 1.6)) ** 2 for tf in Counter(reference.terms(text)).values()) ** 0.5 for text in texts]
    assert norms == pytest.approx(expected)


@given(text_lists, strategies.words)
def test_reading_for_one_query_changes_only_what_it_does_not_need(texts: list[str], query: str) -> None:
    """Read for one query, a collection lacks postings of other beginnings and is the same in all else."""
    ids = tokenize([query]).ids
    whole, some = collect(texts, "pivoted"), collect(texts, "pivoted", only_for=ids)
    assert some.norms.tobytes() == whole.norms.tobytes()
    every = np.arange(len(texts))
    assert [part.tolist() for part in some.tokens_of(every)] == [part.tolist() for part in whole.tokens_of(every)]
    assert some.is_english == whole.is_english
    wanted = set(beginnings(ids).tolist())
    kept = {term: part for term, part in postings_of(whole).items() if term >> 56 in wanted}
    assert postings_of(some) == kept
    assert postings_of(collect(texts, "cosine", only_for=ids)) == postings_of(whole)


@given(text_lists)
def test_the_language_is_guessed_by_its_frequent_words(texts: list[str]) -> None:
    """A collection is English unless frequent words of other languages outnumber those of English."""
    assert collect(texts, "pivoted").is_english == reference.is_english([reference.terms(text) for text in texts])


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
def test_languages(text: str, english: bool) -> None:
    """Frequent words tell English from other languages in Latin letters; with none of them it is taken for English."""
    assert collect([text], "pivoted").is_english is english


@given(st.lists(strategies.chunk_texts, max_size=10))
def test_progress_counts_up_to_all_chunks(texts: list[str]) -> None:
    """Progress is told after every block, never goes back and ends with all chunks done."""
    told: list[tuple[int, int]] = []
    collect(texts, "pivoted", progress=lambda done, n_chunks: told.append((done, n_chunks)))
    assert [done for done, _ in told] == sorted({done for done, _ in told})
    assert {n_chunks for _, n_chunks in told} == ({len(texts)} if texts else set())
    assert not texts or told[-1] == (len(texts), len(texts))
