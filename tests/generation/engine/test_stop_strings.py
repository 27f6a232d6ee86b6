"""Text assembly, compared with a version that searches the whole text after each character."""

import itertools

from hypothesis import example, given
from hypothesis import strategies as st

from relevance_gen.generation.engine.stop_strings import StopStrings, TextAssembler
from tests.reference_generation import text_before_stop

few_letters = st.text("abé🙂", max_size=30)
stop_lists = st.lists(st.text("abé🙂", min_size=1, max_size=4), max_size=5)


@st.composite
def split_bytes(draw, texts=few_letters):
    """The bytes of a text, split into pieces at any byte, also within characters."""
    data = draw(texts).encode()
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=8)))
    return [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def assemble(pieces, stops):
    assembler = TextAssembler(StopStrings(stops))
    released = [assembler.push(piece) for piece in pieces]
    return [*released, assembler.flush()], assembler


@given(pieces=split_bytes(), stops=stop_lists)
@example(pieces=[b"a", b"b"], stops=["ab"])
@example(pieces=[b"abab"], stops=["bab", "abab"])
@example(pieces=[b"aab"], stops=["ab", "aaa"])
def test_assembled_text_ends_before_first_stop_string(pieces, stops):
    """The concatenated released text is the text before the first complete stop string."""
    released, assembler = assemble(pieces, stops)
    text, is_stopped = text_before_stop(pieces, stops)
    assert ("".join(released), bool(assembler.stop_string)) == (text, is_stopped)
    if is_stopped:
        assert assembler.stop_string in stops
        assert b"".join(pieces).decode(errors="replace").startswith(text + assembler.stop_string)


@given(data=st.binary(max_size=40), cuts=st.lists(st.integers(0, 40), max_size=6))
def test_invalid_utf8_decodes_like_the_whole_text(data, cuts):
    """Invalid UTF-8 becomes U+FFFD at the same positions, regardless of how the bytes are split."""
    borders = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    released, _ = assemble([data[a:b] for a, b in itertools.pairwise(borders)], [])
    assert "".join(released) == data.decode(errors="replace")


@given(pieces=split_bytes(), stops=stop_lists)
def test_held_back_text_is_a_prefix_of_a_stop_string(pieces, stops):
    """After each piece, the text that is held back begins a stop string."""
    assembler = TextAssembler(StopStrings(stops))
    released, arrived = "", b""
    for piece in pieces:
        arrived += piece
        released += assembler.push(piece)
        if assembler.stop_string:
            return
        held = arrived.decode(errors="ignore").removeprefix(released)
        assert held == "" or any(stop.startswith(held) for stop in stops)


def test_split_character_is_released_complete():
    """A part of a character is never released."""
    assert assemble([b"\xf0\x9f", b"\x99", b"\x82!"], [])[0] == ["", "", "🙂!", ""]


def test_false_start_of_stop_string_is_released():
    """Text that was held back is released with the character that excludes the stop string."""
    assert assemble([b"x", b"EN", b"D", b"ED"], ["ENDS"])[0] == ["x", "", "", "ENDED", ""]


def test_many_stop_strings_cost_no_more_per_character():
    """The number of state transitions is bounded by the length of the text, not by the number of stop strings."""
    assembler = TextAssembler(StopStrings([f"stop number {n:04d}" for n in range(4000)]))
    assert assembler.push(b"stop number x" * 10_000) == "stop number x" * 10_000
    assert assembler.push(b"and stop number 3999") == "and "
    assert assembler.stop_string == "stop number 3999"


def test_overlapping_stop_strings_take_linear_time():
    """A stop string of 60,000 equal letters is matched against 60,000 such letters and a different letter."""
    assembler = TextAssembler(StopStrings(["a" * 60_000 + "b"]))
    assert sum(len(assembler.push(b"a")) for _ in range(60_500)) == 500
    assert len(assembler.push(b"c")) == 60_001
