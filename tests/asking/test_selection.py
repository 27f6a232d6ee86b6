"""What a model is shown: the best first, whole where there is room, cut at sentences where there is little."""

from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import search
from relevance_gen.asking.answer import Source
from relevance_gen.asking.selection import fit, passage_of
from relevance_gen.text.chunking import sentences

TEXT = "Cows moo all day.  Cats purr at night.\n\nDogs bark.\nSheep bleat in spring."


def found(question: str, *texts: str) -> list[Source]:
    response = search(question, texts, top_n=len(texts), true_order=False, spans=True)
    return [Source.whole(result) for result in response.results]


def at_most(n_chars: int):
    return lambda sources: sum(len(source.text) for source in sources) <= n_chars


def test_all_is_shown_where_all_has_room():
    """Whole chunks, the best first."""
    sources = found("Do cats purr?", "Cats eat.", "Cats purr.")
    assert [source.text for source in fit(sources, at_most(100))] == ["Cats purr.", "Cats eat."]


def test_a_chunk_without_room_is_cut_to_sentences_around_its_passage():
    """The passage's own sentence first, then one more at either end, as far as there is room."""
    sources = found("Do cats purr?", TEXT)
    shown = {n: [source.text for source in fit(sources, at_most(n))] for n in (18, 19, 53, 80)}
    assert shown == {
        18: [],
        19: ["Cats purr at night."],
        53: ["Cows moo all day.  Cats purr at night.\n\nDogs bark."],
        80: [TEXT],
    }


def test_a_smaller_chunk_takes_the_room_that_a_larger_one_has_not():
    """What has no room at all is left out, and the next is tried."""
    sources = found("Do cats purr?", "Cats purr " + "very " * 30 + "loudly.", "The cats.")
    assert [source.text for source in fit(sources, at_most(20))] == ["The cats."]


def test_few_of_very_many_sources_are_counted():
    """Whether there is room is asked of the model each time, so it is asked a bounded number of times."""
    sources = found("Do cats purr?", *(f"Cats purr {n}." for n in range(3000)))
    asked = []
    shown = fit(sources, lambda some: asked.append(some) or at_most(100)(some))
    assert [source.text for source in shown] == [f"Cats purr {n}." for n in range(8)]
    assert len(asked) < 400


def test_no_text_is_shown_twice():
    """Of equal texts the best, which is the earliest, is shown alone."""
    sources = found("Do cats purr?", "Cats eat.", "Cats purr.", "Cats purr.")
    assert [source.result.original_index for source in fit(sources, at_most(100))] == [1, 0]


def test_a_passage_is_shown_with_its_sentences():
    """The words found are in it, and it begins and ends with a sentence."""
    (source,) = found("Do cats purr and dogs bark?", TEXT)
    assert passage_of(source).text == "Cats purr at night.\n\nDogs bark."


@given(
    st.lists(
        st.lists(st.sampled_from(["cat", "dog.", "moo!", "a\n\n"]), min_size=1, max_size=30),
        min_size=1,
        max_size=6,
    ),
    st.integers(0, 300),
)
def test_what_is_shown_fits_and_is_of_the_chunks(words: list[list[str]], n_chars: int):
    """Whatever the chunks and the room: it fits, in the order of scores, and each part is the chunk's own sentences."""
    texts = [" ".join(["cat", *some]) for some in words]
    fits = at_most(n_chars)
    shown = fit(found("cat", *texts), fits)
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
