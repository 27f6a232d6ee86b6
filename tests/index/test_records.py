"""Read records from open files: each record once and in order, for any division of the file."""

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
    """Divide [0, size) at the given offsets; the last range is open."""
    return list(pairwise([0, *sorted(place % (size + 1) for place in places), sys.maxsize]))


@given(
    st.lists(
        st.tuples(st.text(max_size=9), st.sampled_from(["\n", "\r\n", "\n \r\n\n"])), max_size=20
    ),
    st.booleans(),
    st.lists(st.integers(0), max_size=9),
    st.integers(120, 400),
)
def test_lines_of_ranges_are_read_exactly_once(
    written: list[tuple[str, str]], open_end: bool, places: list[int], longest: int
) -> None:
    """For any byte ranges each line is read by the range that has its first byte, in batches of bounded size."""
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
def test_rows_of_ranges_are_read_exactly_once(
    places: list[int], group: int, most_bytes: int
) -> None:
    """For any row ranges and row groups each row is read once and has its row number."""
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


def test_rows_outside_the_range_are_not_converted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the requested rows of a row group are converted to Python objects, and other row groups are not read."""
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
def test_lines_of_concatenated_compressed_parts_are_read(packing: str) -> None:
    """Members of gzip and frames of Zstandard can follow each other or be empty, and a line can span two of these."""
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
def test_kind_of_depends_on_the_end_of_the_name(name: str, kind: Any) -> None:
    """The end of the name, in upper or lower case, determines the format."""
    assert kind_of(name) == kind


@pytest.mark.parametrize("packing", ["", *PACKED])
def test_too_long_line_raises_an_error_early(packing: str) -> None:
    """A line is refused after the maximum number of bytes, and the lines before it are yielded."""
    content = b'"fine"\n' + b"a" * (1 << 26) + b"\n"
    file = io.BufferedReader(io.BytesIO(PACKED[packing](content) if packing else content))
    batches = lines(file, "a", SHORT, packing)
    assert next(batches) == [("a line 1", "fine")]
    with pytest.raises(InvalidRequestError, match=r"^a line 2 must be at most 1,024 bytes long$"):
        next(batches)
    assert file.raw.tell() <= 1 << 16


def test_error_in_a_byte_range_has_the_byte_offset() -> None:
    """A reader of a byte range cannot count the lines before, so the location is a byte offset."""
    content = b'"fine"\n"fine"\nno JSON\n'
    for start, place in (
        (0, "line 3"),
        (1, "line at byte 14"),
        (8, "line at byte 14"),
        (14, "line at byte 14"),
    ):
        with pytest.raises(InvalidRequestError, match=rf"^a {place} must be JSON"):
            list(lines(io.BytesIO(content), "a", SHORT, start=start))


def test_line_that_spans_the_range_is_skipped_within_the_range() -> None:
    """If a line begins before the range and ends after it, only the bytes of the range are read."""
    file = io.BytesIO(b"a" * (1 << 20))
    assert list(lines(file, "a", SHORT, start=5000, stop=9000)) == []
    assert file.tell() < 9000 + SHORT


def test_lines_before_a_damaged_line_are_yielded() -> None:
    """Lines before a damaged line are yielded before its error is raised."""
    read = lines(io.BytesIO(b"1\n2\n{\n"), "a", SHORT)
    assert values([next(read)]) == [1, 2]
    with pytest.raises(InvalidRequestError, match="line 3"):
        next(read)


def test_read_error_of_the_system_is_not_converted() -> None:
    """If a file cannot be read, the error of the operating system is raised and not an error about Parquet."""

    class Failing(io.BytesIO):
        def read(self, *_: Any) -> bytes:
            raise OSError(errno.EIO, "the disk is broken")

    with pytest.raises(OSError, match="the disk is broken"):
        row_groups(Failing(bytes(100)), "a")


@pytest.mark.parametrize(("missing", "read"), [("pyarrow", rows), ("zstandard", lines)])
def test_missing_package_raises_an_error_with_its_name(
    missing: str, read: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names the package to install."""
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(InvalidRequestError, match=rf"needs {missing}: pip install .*{missing}"):
        list(read(io.BytesIO(), "a", SHORT, *([".zst"] if read is lines else [])))
