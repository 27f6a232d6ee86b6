"""Text assembly, against a version that looks at the whole text after every character."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen.generation.engine.stop_strings import StopStrings, TextAssembler
from tests.reference_generation import text_before_stop

few_letters = st.text("abé🙂", max_size=30)
stop_lists = st.lists(st.text("abé🙂", min_size=1, max_size=4), max_size=5)


@st.composite
def cut_anywhere(draw, texts=few_letters):
    """The bytes of a text, cut into pieces at any byte, also within characters."""
    data = draw(texts).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def assemble(pieces, stops):
    assembler = TextAssembler(StopStrings(stops))
    released = [assembler.push(piece) for piece in pieces]
    return [*released, assembler.flush()], assembler


@given(pieces=cut_anywhere(), stops=stop_lists)
@example(pieces=[b"a", b"b"], stops=["ab"])
@example(pieces=[b"abab"], stops=["bab", "abab"])
@example(pieces=[b"aab"], stops=["ab", "aaa"])
def test_the_text_ends_before_the_first_stop_string_wherever_the_tokens_are_cut(pieces, stops):
    """All that is released, put together, is the text before the first stop string that is completed."""
    released, assembler = assemble(pieces, stops)
    text, is_stopped = text_before_stop(pieces, stops)
    assert ("".join(released), bool(assembler.stop_string)) == (text, is_stopped)
    if is_stopped:
        assert assembler.stop_string in stops
        assert b"".join(pieces).decode(errors="replace").startswith(text + assembler.stop_string)


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_any_bytes_become_the_text_that_decoding_them_at_once_gives(data, cuts):
    """Broken UTF-8 becomes U+FFFD in the same places, however it arrives."""
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    released, _ = assemble([data[a:b] for a, b in itertools.pairwise(borders)], [])
    assert "".join(released) == data.decode(errors="replace")


@given(pieces=cut_anywhere(), stops=stop_lists)
def test_nothing_is_held_back_longer_than_it_must_be(pieces, stops):
    """After every piece, what is held back begins a stop string."""
    assembler = TextAssembler(StopStrings(stops))
    released, arrived = "", b""
    for piece in pieces:
        arrived += piece
        released += assembler.push(piece)
        if assembler.stop_string:
            return
        held = arrived.decode(errors="ignore").removeprefix(released)
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_a_character_in_two_tokens_comes_out_whole():
    """No half of a character is ever released."""
    assert assemble([b"\xf0\x9f", b"\x99", b"\x82!"], [])[0] == ["", "", "🙂!", ""]


def test_what_looked_like_a_stop_string_is_released_when_it_turns_out_not_to_be():
    """Held-back text comes with the character that clears it."""
    assert assemble([b"x", b"EN", b"D", b"ED"], ["ENDS"])[0] == ["x", "", "", "ENDED", ""]


def test_four_thousand_stop_strings_cost_a_character_no_more_than_one():
    """States are followed, strings are not compared: the work is bounded by the text's length."""
    assembler = TextAssembler(StopStrings([f"stop number {n:04d}" for n in range(4000)]))
    assert assembler.push(b"stop number x" * 10_000) == "stop number x" * 10_000
    assert assembler.push(b"and stop number 3999") == "and "
    assert assembler.stop_string == "stop number 3999"


def test_overlapping_stop_strings_of_one_letter_need_no_quadratic_time():
    """A stop string of 60,000 equal letters is followed through 60,000 letters and one that differs."""
    assembler = TextAssembler(StopStrings(["a" * 60_000 + "b"]))
    assert sum(len(assembler.push(b"a")) for _ in range(60_500)) == 500
    assert len(assembler.push(b"c")) == 60_001
