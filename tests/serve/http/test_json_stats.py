"""JSON size estimates: upper bounds before parsing."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.serve.http.bodies import json_stats as shape
from relevance_gen.serve.http.bodies.json_stats import measure_json

texts = st.text(st.sampled_from('a,[{:"\\é\n😀'), max_size=12)
values = st.recursive(
    st.none() | st.integers() | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


def count(value: Any) -> int:
    """Count the values in a value, itself and empty containers included."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + sum(map(count, inner))


@given(value=values, block=st.integers(1, 9), ascii_only=st.booleans())
def test_values_are_counted_outside_strings(value: Any, block: int, ascii_only: bool) -> None:
    """For any block size and any strings, the exact count omits at most the empty containers."""
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(shape, "_BLOCK_BYTES", block)
        closely = measure_json(text, 0).n_values
    n_containers = text.count(b"[") + text.count(b"{")
    assert count(value) <= closely <= count(value) + n_containers
    assert closely <= measure_json(text, 1 << 30).n_values


def test_text_full_of_marks_is_text() -> None:
    """A table of numbers in a string does not count as values."""
    text = json.dumps(['1,2,3,4\\,"5",[6]:{7}' * 100_000]).encode()
    found = measure_json(text, 1000)
    assert found.n_values <= 3
    assert found.parsed_bytes < 1.1 * len(text)


@pytest.mark.parametrize(
    "text", [b'["' + b"\\" * (16 << 20) + b'"]', b"[" * (16 << 20), b'"' * (16 << 20)]
)
def test_measure_json_time_depends_only_on_size(text: bytes) -> None:
    """16 MiB of backslashes, brackets or quotes are looked through in less than 80 ms for each MiB."""
    started_s = time.process_time()
    measure_json(text, 0)
    assert time.process_time() - started_s < 16 * 0.08
