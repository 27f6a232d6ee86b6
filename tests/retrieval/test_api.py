"""`search`: the documented interface, and any input ends well."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest
from attrs import evolve
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import (
    Chunk,
    ChunkIndex,
    InvalidRequestError,
    SearchMetadata,
    SearchResult,
    TokenCounter,
    aio,
    search,
    token_counter,
)
from relevance_gen.retrieval.api import answer_once
from relevance_gen.retrieval.params import SearchParams
from relevance_gen.types import WeightingName
from tests import corpus, strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL, WEIGHTINGS, ranking

weightings = st.sampled_from(WEIGHTINGS)


def test_mixed_chunks_equal_documented_example() -> None:
    """Mixed kinds of chunks are returned as documented, in their order and with their metadata."""
    metadata = {"source": "pets.txt", "page": 2}
    response = search(
        "What do cats do?",
        [
            "Dogs bark.",
            {"text": "Cats purr.", "metadata": metadata},
            Chunk("A cat.", original_index=9),
            "Birds sing.",
        ],
    )
    assert response.results == (
        SearchResult(0, "Cats purr.", response.results[0].chunk_score, metadata, 1),
        SearchResult(1, "A cat.", response.results[1].chunk_score, {}, 2),
    )
    assert response.metadata == SearchMetadata(5, 17)
    assert all(type(result.chunk_score) is float for result in response.results)
    assert all(type(result.original_index) is int for result in response.results)


@given(strategies.queries, strategies.chunk_lists, st.integers(1, 9), weightings)
def test_true_order_only_reorders(
    query: str, chunks: list[str], top_n: int, weighting: WeightingName
) -> None:
    """The same results come best first, ties in input order, or in the order of the input; ids count up."""
    best = search(query, chunks, top_n, true_order=False, weighting=weighting).results
    ordered = search(query, chunks, top_n, weighting=weighting).results
    kept = [(result.chunk_txt, result.chunk_score, result.original_index) for result in best]
    assert kept == sorted(kept, key=lambda found: (-found[1], found[2]))
    assert [
        (found.chunk_txt, found.chunk_score, found.original_index) for found in ordered
    ] == sorted(kept, key=lambda found: found[2])
    assert all(chunks[result.original_index] == result.chunk_txt for result in best)
    for results in (best, ordered):
        assert [result.chunk_id for result in results] == list(range(len(results)))


@costly
@given(strategies.queries, strategies.chunk_lists, st.integers(1, 9), weightings)
def test_top_n_results_are_the_first_of_all(
    query: str, chunks: list[str], top_n: int, weighting: WeightingName
) -> None:
    """The results of a smaller top_n are the best results of a larger top_n."""
    everything = search(query, chunks, ALL, true_order=False, weighting=weighting).results
    assert (
        search(query, chunks, top_n, true_order=False, weighting=weighting).results
        == everything[:top_n]
    )


def test_top_n_is_a_prefix_law_among_many() -> None:
    """The same holds where many more chunks match than proximity is looked at for."""
    chunks = corpus.prose(300, 20)
    index = ChunkIndex(chunks)
    for query in (chunks[7][:30], "ba de ko", chunks[0]):
        everything = index.search(query, ALL, true_order=False).results
        for top_n in (1, 10, 49, 50, 51, 100, 299):
            assert index.search(query, top_n, true_order=False).results == everything[:top_n]


@pytest.mark.parametrize("top_n", [1, 3, 10**30, 2**63, 2**64])
def test_any_top_n_is_allowed(top_n: int) -> None:
    """top_n may be far above the number of chunks."""
    assert len(search("cat", ["cat", "a cat", "cats"], top_n).results) == min(top_n, 3)


@pytest.mark.parametrize(
    ("arguments", "field", "message"),
    [
        (("", ["a"]), "query", "not blank"),
        ((" \n\t\u2003", ["a"]), "query", "not blank"),
        ((None, ["a"]), "query", "string"),
        ((b"cat", ["a"]), "query", "string"),
        ((["cat", "dog"], ["a"]), "query", "for several queries, create a ChunkIndex"),
        (("cat", ["a", " "]), "chunks[1].text", "not blank"),
        (("cat", ["a", ""]), "chunks[1].text", "not blank"),
        (("cat", [{"text": "\n"}]), "chunks[0].text", "not blank"),
        (("cat", [{"text": 3}]), "chunks[0].text", "string"),
        (("cat", [{}]), "chunks[0].text", "required"),
        (
            ("cat", [{"text": "a", "meta": {}}]),
            "chunks[0].meta",
            "did you mean chunks[0].metadata?",
        ),
        (("cat", [{"text": "a", "metadata": []}]), "chunks[0].metadata", "object"),
        (("cat", [{"text": "a", "original_index": "1"}]), "chunks[0].original_index", "integer"),
        (("cat", ["a", None]), "chunks[1]", "string, a mapping or a Chunk"),
        (("cat", [b"a"]), "chunks[0]", "string, a mapping or a Chunk"),
        (("cat", "a cat"), "chunks", "put a single text in a list"),
        (("cat", {"text": "a"}), "chunks", "put a single text in a list"),
        (("cat", None), "chunks", "list"),
        (("cat", 7), "chunks", "list"),
        (("cat", ["a"], 0), "top_n", "at least 1"),
        (("cat", ["a"], -(10**30)), "top_n", "at least 1"),
        (("cat", ["a"], True), "top_n", "integer"),
        (("cat", ["a"], 10.0), "top_n", "integer"),
        (("cat", ["a"], "10"), "top_n", "integer"),
        (("cat", ["a"], 10, 1), "true_order", "True or False"),
    ],
)
def test_invalid_argument_raises_with_name(arguments: tuple, field: str, message: str) -> None:
    """An invalid argument raises an error that names the argument and the allowed values."""
    with pytest.raises(InvalidRequestError) as caught:
        search(*arguments)
    assert caught.value.field == field
    assert message in str(caught.value)


def test_options_are_keywords_and_checked() -> None:
    """Options come by keyword only, and unknown values are refused."""
    with pytest.raises(TypeError):
        search("cat", ["a"], 10, True, "cosine")  # type: ignore[misc]
    with pytest.raises(InvalidRequestError, match="weighting"):
        search("cat", ["a"], weighting="bm25")  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="encoding"):
        search("cat", ["a"], encoding=3)  # type: ignore[arg-type]


def test_unknown_option_raises_with_the_nearest() -> None:
    """Every function that searches names the unknown option, and suggests an option."""
    index = ChunkIndex(["a"])
    calls: list[Any] = [
        partial(search, "a", ["a"]),
        partial(index.search, "a"),
        lambda **options: asyncio.run(aio.asearch("a", ["a"], **options)),
        lambda **options: asyncio.run(aio.asearch("a", index, **options)),
    ]
    for call in calls:
        with pytest.raises(
            InvalidRequestError, match=r"^top_k is not a known option; did you mean top_n"
        ):
            call(top_k=1)
    with pytest.raises(InvalidRequestError, match=r"^encodr is not .*; did you mean encoder"):
        index.explain("a", 0, encodr=None)  # type: ignore[call-arg]
    with pytest.raises(
        InvalidRequestError, match=r"^wings is not .*; the options are query, chunks,"
    ):
        search("a", ["a"], wings=1)  # type: ignore[call-arg]


@pytest.mark.parametrize("chunks", [[], (), iter(()), {}.keys()])
def test_zero_chunks_return_no_results(chunks: object) -> None:
    """A search of zero chunks has zero results, and counts the tokens of the query."""
    assert search("What is machine learning?", chunks).metadata == SearchMetadata(5, 0)  # type: ignore[arg-type]


def test_chunks_can_be_any_iterable() -> None:
    """A generator is read once, and strings of a subclass are strings."""

    def chunks() -> Iterator[str]:
        yield "a dog"
        yield from np.array(["a cat"])

    assert [result.original_index for result in search("cat", chunks()).results] == [1]


@pytest.mark.parametrize(
    "text",
    ["...", "—", "?!", "()", "\u200b", "\u00ad", "\x00\x01", "\ud800", "\ufffe", "€ £", "\ufdd0"],
)
def test_text_without_terms_finds_nothing(text: str) -> None:
    """A query without terms finds nothing, a chunk without terms is not found, and neither is an error."""
    assert search(text, [text, "a cat"]).results == ()
    assert ranking("cat", [text, "a cat", text]) == [1]


@pytest.mark.parametrize(
    "text", ["a", "I", "7", "é", "ж", "猫", "한", "ก", "😀", "☀", "①", "𠮷", "١"]
)
def test_single_character_is_found(text: str) -> None:
    """A text of one letter, digit, ideograph or emoji is found by itself."""
    found = search(
        text, ["zebra", text, f"x. {text}! y", f"{text} {text}"], true_order=False
    ).results
    assert (found[0].original_index, found[0].chunk_score) == (1, 1.0)
    assert {result.original_index for result in found} == {1, 2, 3}


@costly
@given(
    st.lists(
        st.builds(
            Chunk,
            strategies.chunk_texts,
            st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
        )
    )
)
def test_result_has_a_copy_of_its_metadata(chunks: list[Chunk]) -> None:
    """Each result has its own chunk's metadata, which is `{}` for a chunk without metadata."""
    for result in search(" ".join(chunk.text for chunk in chunks) or "none", chunks, ALL).results:
        metadata = chunks[result.original_index].metadata
        assert result.metadata == metadata
        assert result.metadata is not metadata


@costly
@given(
    strategies.queries,
    st.lists(strategies.chunk_texts, max_size=5),
    st.lists(strategies.chunk_texts, max_size=5),
)
def test_token_counts_add_up(query: str, chunks: list[str], more: list[str]) -> None:
    """The number of tokens is the sum over all chunks, and does not depend on the query."""
    counter = token_counter()
    metadata = search(query, chunks + more).metadata
    n_chunk_tokens = sum(map(counter.count, chunks + more))
    assert evolve(metadata, corrections={}) == SearchMetadata(counter.count(query), n_chunk_tokens)
    parts = [search(query, part).metadata.num_context_tokens for part in (chunks, more)]
    assert metadata.num_context_tokens == sum(parts)


def test_duplicates_tie_in_order() -> None:
    """Equal chunks have equal scores, and the earlier come first, however many there are."""
    chunks = ["the cat sat", "a dog"] * 500
    results = search("cat", chunks, 10, true_order=False).results
    assert [result.original_index for result in results] == list(range(0, 20, 2))
    assert len({result.chunk_score for result in search("cat", chunks, ALL).results}) == 1


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_thousands_of_equal_chunks(weighting: WeightingName) -> None:
    """All of many equal chunks are found, in order."""
    results = search(
        "cats purr", ["cats purr loudly"] * 30_000, 30_000, weighting=weighting
    ).results
    assert len(results) == 30_000
    assert results[-1].original_index == 29_999
    assert len({result.chunk_score for result in results}) == 1


@pytest.mark.parametrize("name", corpus.WITHOUT_SPACE)
def test_long_text_without_a_space(name: str) -> None:
    """A long text without a space, as chunk and as query, is searched in time that is linear in its length."""
    text = corpus.without_space(name, 60_000)
    started_s = time.monotonic()
    assert [result.original_index for result in search("hello", [text, "hello"]).results] == [1]
    found = search(text, [text, "hello"]).results
    assert time.monotonic() - started_s < 10.0
    assert [result.chunk_score for result in found] == (
        [] if name in ("surrogates", "control", "marks") else [1.0]
    )


def test_long_query_is_answered_in_linear_time() -> None:
    """A query of many distinct words that all begin alike is answered in time that is linear in their number."""
    words = [
        f"con{a}{b}{c}{d}"
        for a in "abcdefgh"
        for b in "abcdefgh"
        for c in "abcdefgh"
        for d in "abcdefgh"
    ]
    chunks = [" ".join(words[start : start + 64]) for start in range(0, len(words), 64)]
    started_s = time.monotonic()
    assert len(search(" ".join(words), chunks, ALL).results) == len(chunks)
    assert time.monotonic() - started_s < 20.0


@pytest.mark.parametrize("weighting", WEIGHTINGS)
def test_match_among_many_short_chunks_is_found(weighting: WeightingName) -> None:
    """The single matching chunk among many one-word chunks is found."""
    results = search(
        "word7777", (f"word{number}" for number in range(50_000)), weighting=weighting
    ).results
    assert [(result.original_index, result.chunk_score) for result in results] == [(7_777, 1.0)]


@pytest.mark.soak
@pytest.mark.parametrize("name", corpus.WITHOUT_SPACE)
def test_ten_million_characters_without_a_space(name: str) -> None:
    """Ten million characters without a space are searched, as chunk and as query, in time that is linear in them.

    What bodies cost is measured by bench.attack; anything that grows faster than the text would
    take hours here.
    """
    text = corpus.without_space(name, 10_000_000)
    n_mib = 2 * len(text.encode(errors="surrogatepass")) / (1 << 20)
    started_s = time.process_time()
    assert [result.original_index for result in search("hello", [text, "hello"]).results] == [1]
    search(text, [text[:1000], "hello"])
    assert time.process_time() - started_s < 10.0 * n_mib


@pytest.mark.soak
def test_match_among_a_million_chunks_is_found() -> None:
    """The single matching chunk among a million is found, also by an index; a prefix of the word matches none."""
    chunks = [f"word{number}" for number in range(1_000_000)]
    index = ChunkIndex(chunks)
    assert [
        (found.original_index, found.chunk_score) for found in index.search("word777777").results
    ] == [(777_777, 1.0)]
    assert index.search("words").results == ()
    assert index.search("word777777") == search("word777777", chunks)


@pytest.mark.soak
def test_chunk_of_fifty_megabytes_is_searched() -> None:
    """One chunk of any size is searched."""
    text = " ".join(corpus.prose(1, 1_000_000)) * 10
    assert len(search(text[:40], [text, "hello"]).results) == 1


def test_counts_are_taken_only_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search counts nothing until its counts are read; a server's counts at once. The counts are the same."""
    chunks = ["Cats purr.", "Dogs bark."]
    expected = ChunkIndex(chunks).search("cats")
    n_context_tokens = expected.metadata.num_context_tokens
    counts: list[int] = []
    count_all = TokenCounter.count_all

    def counting(counter: TokenCounter, texts: Iterable[str]) -> int:
        counts.append(count_all(counter, texts))
        return counts[-1]

    monkeypatch.setattr(TokenCounter, "count_all", counting)
    found = search("cats", chunks)
    assert (len(found), counts) == (1, [])
    assert found == expected
    assert counts == [n_context_tokens]
    assert answer_once(SearchParams("cats"), chunks, counts_now=True) == expected
    assert len(counts) == 2
