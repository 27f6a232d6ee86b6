"""Records are read from any open file, each once and in order, however it is cut and by however many."""

from __future__ import annotations

import errno
import gzip
import io
import json
import sys
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import InvalidRequestError
from relevance_gen.index.records.files import Batch, kind_of, lines, row_groups, rows

SHORT = 1 << 10


def values(batches: Iterable[Batch]) -> list[Any]:
    return [value for batch in batches for _, value in batch]


def cuts(size: int, places: list[int]) -> list[tuple[int, int]]:
    """Cut [0, size) at some places, and leave open where it ends."""
    return list(pairwise([0, *sorted(place % (size + 1) for place in places), sys.maxsize]))


@given(
    st.lists(
        st.tuples(st.text(max_size=9), st.sampled_from(["\n", "\r\n", "\n \r\n\n"])), max_size=20
    ),
    st.booleans(),
    st.lists(st.integers(0), max_size=9),
    st.integers(120, 400),
)
def test_lines_are_read_once_however_they_are_cut(
    written: list[tuple[str, str]], open_end: bool, places: list[int], longest: int
) -> None:
    """Each line is read by whoever reads the bytes where it begins, wherever it ends, in batches of a bounded size."""
    content = (
        b"\xef\xbb\xbf" * bool(written)
        + "".join(json.dumps(text) + end for text, end in written).encode()
    )
    content = content.rstrip() if open_end else content
    batches = [
        batch
        for start, stop in cuts(len(content), places)
        for batch in lines(io.BytesIO(content), "a", longest, start=start, stop=stop)
    ]
    assert values(batches) == [text for text, _ in written]
    assert all(
        batch and sum(len(json.dumps(value)) for _, value in batch) <= longest for batch in batches
    )


@given(st.lists(st.integers(0), max_size=9), st.integers(1, 12), st.integers(1, 60))
def test_rows_are_read_once_however_they_are_cut(
    places: list[int], group: int, most_bytes: int
) -> None:
    """Each row is read by whoever reads its number, and knows that, whatever row groups there are."""
    table = pyarrow.table({"n": list(range(30)), "nested": [{"a": [n]} for n in range(30)]})
    pyarrow.parquet.write_table(table, file := io.BytesIO(), row_group_size=group)
    assert [n_rows for n_rows, _ in row_groups(file, "a")] == [
        min(group, 30 - n) for n in range(0, 30, group)
    ]
    found = [
        one
        for start, stop in cuts(30, places)
        for batch in rows(file, "a", most_bytes, start, stop)
        for one in batch
    ]
    assert found == [(f"a row {n}", {"n": n, "nested": {"a": [n]}}) for n in range(30)]


def test_only_wanted_rows_become_objects(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a row group that is cut nothing else is made into Python's objects, and other groups are not read."""
    pyarrow.parquet.write_table(
        pyarrow.table({"n": range(4000)}), file := io.BytesIO(), row_group_size=2000
    )
    asked: list[Any] = []
    iterate = pyarrow.parquet.ParquetFile.iter_batches

    def watched(*args: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["row_groups"])
        for batch in iterate(*args, **kwargs):
            asked.append(batch.num_rows)
            yield batch

    monkeypatch.setattr(pyarrow.parquet.ParquetFile, "iter_batches", watched)
    batches = list(rows(file, "a", 1 << 20, 2300, 2400))
    assert [len(batch) for batch in batches] == [100]
    assert asked == [[1], 256, 256]


PACKED = {".gz": gzip.compress, ".zst": zstandard.compress}


@pytest.mark.parametrize("packing", PACKED)
def test_what_is_packed_in_parts_is_one_file(packing: str) -> None:
    """Members of gzip and frames of Zstandard follow each other, empty ones too, and a line may cross their ends."""
    pack = PACKED[packing]
    file = io.BytesIO(b"".join(map(pack, [b'"a ca', b"", b't"\n"a', b' dog"'])))
    assert values(lines(file, "a", SHORT, packing)) == ["a cat", "a dog"]
    assert list(lines(io.BytesIO(pack(b"")), "a", SHORT, packing)) == []
    assert list(lines(io.BytesIO(), "a", SHORT, packing)) == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jsonl", ("lines", "")),
        ("s3://b/A.NDJSON.GZ", ("lines", ".gz")),
        ("a.jsonl.zst", ("lines", ".zst")),
        ("a.b.parquet", ("parquet", "")),
        ("a.parquet.gz", (None, ".gz")),
        ("a.txt", (None, "")),
        ("jsonl", (None, "")),
    ],
)
def test_a_name_says_what_a_file_holds(name: str, kind: Any) -> None:
    """By its end, in upper or lower case."""
    assert kind_of(name) == kind


@pytest.mark.parametrize("packing", ["", *PACKED])
def test_a_line_of_any_length_is_given_up_early(packing: str) -> None:
    """A line that is too long is refused when so much of it was read, and what stands before it was yielded."""
    content = b'"fine"\n' + b"a" * (1 << 26) + b"\n"
    file = io.BufferedReader(io.BytesIO(PACKED[packing](content) if packing else content))
    batches = lines(file, "a", SHORT, packing)
    assert next(batches) == [("a line 1", "fine")]
    with pytest.raises(InvalidRequestError, match=r"^a line 2 must be at most 1,024 bytes long$"):
        next(batches)
    assert file.raw.tell() <= 1 << 16


def test_a_line_further_on_is_named_by_its_byte() -> None:
    """Who reads from a byte on does not know how many lines there were before."""
    content = b'"fine"\n"fine"\nno JSON\n'
    for start, place in (
        (0, "line 3"),
        (1, "line at byte 14"),
        (8, "line at byte 14"),
        (14, "line at byte 14"),
    ):
        with pytest.raises(InvalidRequestError, match=rf"^a {place} must be JSON"):
            list(lines(io.BytesIO(content), "a", SHORT, start=start))


def test_a_long_line_is_skipped_in_steps_and_no_further_than_is_wanted() -> None:
    """Of a line that began before and ends behind, not more is read than the bytes that were to be looked at."""
    file = io.BytesIO(b"a" * (1 << 20))
    assert list(lines(file, "a", SHORT, start=5000, stop=9000)) == []
    assert file.tell() < 9000 + SHORT


def test_what_is_wrong_first_is_told_first() -> None:
    """Lines before one that is damaged are yielded before its error is raised."""
    read = lines(io.BytesIO(b"1\n2\n{\n"), "a", SHORT)
    assert values([next(read)]) == [1, 2]
    with pytest.raises(InvalidRequestError, match="line 3"):
        next(read)


def test_errors_of_the_system_are_no_fault_of_the_file() -> None:
    """Where a file cannot be read, the error is the system's, and does not say that it is no Parquet."""

    class Failing(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(errno.EIO, "the disk is broken")

    with pytest.raises(OSError, match="the disk is broken"):
        row_groups(Failing(bytes(100)), "a")


@pytest.mark.parametrize(("missing", "read"), [("pyarrow", rows), ("zstandard", lines)])
def test_a_missing_package_is_named(
    missing: str, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error says what to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidRequestError, match=rf"needs {missing}: pip install .*{missing}"):
        list(read(io.BytesIO(), "a", SHORT, *([".zst"] if read is lines else [])))
