"""Tests of the selection of sources for a prompt that must fit the context."""

from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import search
from relevance_gen.asking.answer import Source
from relevance_gen.asking.prompts import fit, passage_of
from relevance_gen.text.chunking import sentences

TEXT = "Cows moo all day.  Cats purr at night.\n\nDogs bark.\nSheep bleat in spring."


def sources_of(question: str, *texts: str) -> list[Source]:
    response = search(question, texts, top_n=len(texts), true_order=False, spans=True)
    return [Source.whole(result) for result in response.results]


def at_most(n_chars: int):
    return lambda sources: sum(len(source.text) for source in sources) <= n_chars


def test_fit_with_enough_space_keeps_all_chunks():
    """Complete chunks are kept, best first."""
    sources = sources_of("Do cats purr?", "Cats eat.", "Cats purr.")
    assert [source.text for source in fit(sources, at_most(100))] == ["Cats purr.", "Cats eat."]


def test_fit_cuts_large_chunk_to_sentences_around_passage():
    """The sentence of the passage is kept first, then adjacent sentences while they fit."""
    sources = sources_of("Do cats purr?", TEXT)
    shown = {n: [source.text for source in fit(sources, at_most(n))] for n in (18, 19, 53, 80)}
    assert shown == {
        18: [],
        19: ["Cats purr at night."],
        53: ["Cows moo all day.  Cats purr at night.\n\nDogs bark."],
        80: [TEXT],
    }


def test_fit_skips_large_chunk_and_keeps_smaller_chunk():
    """A chunk without any sentence that fits is skipped and the next chunk is tried."""
    sources = sources_of("Do cats purr?", "Cats purr " + "very " * 30 + "loudly.", "The cats.")
    assert [source.text for source in fit(sources, at_most(20))] == ["The cats."]


def test_fit_of_many_sources_limits_calls():
    """The number of calls of the size check is bounded, because each call tokenizes a prompt."""
    sources = sources_of("Do cats purr?", *(f"Cats purr {n}." for n in range(3000)))
    asked = []
    shown = fit(sources, lambda some: asked.append(some) or at_most(100)(some))
    assert [source.text for source in shown] == [f"Cats purr {n}." for n in range(8)]
    assert len(asked) < 400


def test_fit_drops_duplicate_texts():
    """Of chunks with equal text only the best, earliest chunk is kept."""
    sources = sources_of("Do cats purr?", "Cats eat.", "Cats purr.", "Cats purr.")
    assert [source.result.original_index for source in fit(sources, at_most(100))] == [1, 0]


def test_passage_of_extends_to_sentences():
    """The passage contains the matched words and begins and ends at sentence boundaries."""
    (source,) = sources_of("Do cats purr and dogs bark?", TEXT)
    assert passage_of(source).text == "Cats purr at night.\n\nDogs bark."


@given(
    st.lists(
        st.lists(st.sampled_from(["cat", "dog.", "moo!", "a\n\n"]), min_size=1, max_size=30),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 300),
)
def test_fit_returns_fitting_excerpts_in_score_order(words: list[list[str]], n_chars: int):
    """The excerpts fit, are sorted by score and consist of complete sentences of their chunks."""
    texts = [" ".join(["cat", *word]) for word in words]
    fits = at_most(n_chars)
    shown = fit(sources_of("cat", *texts), fits)
    assert fits(shown)
    assert [s.result.chunk_score for s in shown] == sorted(
        (s.result.chunk_score for s in shown), reverse=True
    )
    for source in shown:
        places = list(sentences(source.result.chunk_txt))
        is_whole = source.text == source.result.chunk_txt
        assert is_whole or (
            source.start in [a for a, _ in places] and source.end in [b for _, b in places]
        )
