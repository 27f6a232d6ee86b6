"""Storage: what is read back is what was written, and nothing else is read."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import math
import os
import stat
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen import ChunkIndex, IndexFormatError, InvalidRequestError
from relevance_gen.types import Chunk, WeightingName
from tests import strategies
from tests.profiles import costly
from tests.retrieval.asking import ALL, WEIGHTINGS

json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(), max_size=5),
    lambda values: (
        st.lists(values, max_size=3)
        | st.dictionaries(st.text(st.characters(), max_size=5), values, max_size=3)
    ),
    max_leaves=6,
)
metadata = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
chunks = st.builds(
    Chunk, strategies.chunk_texts, metadata, title=st.just("") | strategies.chunk_texts
)


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


@costly
@given(st.lists(chunks, max_size=6), strategies.queries, st.sampled_from(WEIGHTINGS))
def test_a_loaded_index_answers_as_the_saved_one(
    folder: Path, given_chunks: list[Chunk], query: str, weighting: WeightingName
) -> None:
    """Answers, explanations, texts and metadata are the same after saving and loading, twice over."""
    index = ChunkIndex(given_chunks, weighting=weighting)
    index.save(folder / "once")
    once = ChunkIndex.load(folder / "once")
    once.save(folder / "twice")
    for loaded in (once, ChunkIndex.load(folder / "twice")):
        assert loaded.search(query, ALL) == index.search(query, ALL)
        assert repr(loaded) == repr(index)
        assert len(loaded) == len(index)
        for place in range(len(index)):
            assert loaded.explain(query, place) == index.explain(query, place)
    assert (folder / "once").read_bytes() == (folder / "twice").read_bytes()


@pytest.fixture(scope="module")
def saved(folder: Path) -> bytes:
    ChunkIndex(["Cats purr.", {"text": "Dogs bark.", "metadata": {"page": 2}}, "猫\ud800"]).save(
        folder / "saved"
    )
    return (folder / "saved").read_bytes()


@given(st.data())
def test_a_truncated_file_is_refused(folder: Path, saved: bytes, data: st.DataObject) -> None:
    """A file that ends too early is no index."""
    (folder / "short").write_bytes(saved[: data.draw(st.integers(0, len(saved) - 1))])
    with pytest.raises(IndexFormatError, match="short"):
        ChunkIndex.load(folder / "short")


@given(st.data())
def test_a_flipped_bit_is_noticed(folder: Path, saved: bytes, data: st.DataObject) -> None:
    """A file that differs from what was written by one bit, anywhere, is refused."""
    content = bytearray(saved)
    content[data.draw(st.integers(0, len(saved) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "flipped").write_bytes(content)
    with pytest.raises(IndexFormatError, match="flipped"):
        ChunkIndex.load(folder / "flipped")


@pytest.mark.soak
def test_every_flipped_bit_is_noticed(folder: Path, saved: bytes) -> None:
    """Thousands of files, each with another bit wrong, are refused, and no process dies of one."""
    for place in range(8 * len(saved)):
        content = bytearray(saved)
        content[place // 8] ^= 1 << place % 8
        (folder / "flipped").write_bytes(content)
        with pytest.raises(IndexFormatError, match="flipped"):
            ChunkIndex.load(folder / "flipped")


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"PK\x03\x04" * 100, b"RelGenIx", b"\x80\x04}q\x00." * 9]
)
def test_a_foreign_file_is_refused(folder: Path, content: bytes) -> None:
    """A file of another kind is refused, however short."""
    (folder / "foreign").write_bytes(content)
    with pytest.raises(IndexFormatError, match="foreign is not a saved index"):
        ChunkIndex.load(folder / "foreign")


def test_another_version_is_refused_by_name(folder: Path, saved: bytes) -> None:
    """A file of another format is refused with both versions and the remedy."""
    for other in (5, 99):
        (folder / "later").write_bytes(saved[:8] + other.to_bytes(4, "little") + saved[12:])
        with pytest.raises(
            IndexFormatError, match=rf"format version {other}.*reads 6; build it again"
        ):
            ChunkIndex.load(folder / "later")


OF_INTEGERS = "text_end positions ids first chunk tf spelling spelling_first tokens first_token n_tokens hashes".split()
lengths = st.integers(-(1 << 63), 1 << 64) | st.integers(-70, 300)


@given(st.data())
def test_a_header_that_lies_is_refused_or_searched(
    folder: Path, saved: bytes, data: st.DataObject
) -> None:
    """A header that is not as written, checksum and all, is refused when opened, or the index can be searched."""
    header, body = parts(saved)
    name = data.draw(st.sampled_from([*header, *header["arrays"]]))
    if name in header["arrays"]:
        lies = st.one_of(json_values, lengths, st.lists(lengths | st.booleans(), max_size=2))
        header["arrays"][name][data.draw(st.sampled_from(["type", "shape", "offset"]))] = data.draw(
            lies
        )
    else:
        header[name] = data.draw(json_values)
    refused_or_searched(folder / "lying", header, body)


@given(st.data())
def test_arrays_that_lie_are_refused_or_searched(
    folder: Path, saved: bytes, data: st.DataObject
) -> None:
    """Offsets and numbers that are not as written, checksum and all, are refused when opened, or harmless."""
    header, body = parts(saved)
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from(OF_INTEGERS))
        array = array_of(header, body, name)
        bounds = np.iinfo(array.dtype)
        place = data.draw(st.integers(0, array.size - 1))
        least, most, written = int(bounds.min), int(bounds.max), int(array[place])
        near = st.integers(max(written - 3, least), min(written + 3, most))
        array[place] = data.draw(near | st.integers(max(-2, least), 70) | st.integers(least, most))
    refused_or_searched(folder / "lying", header, body)


@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        ("text_end", 0, -1),
        ("text_end", -1, 1 << 40),
        ("text_end", 0, 1 << 40),
        ("text_end", 1, 21),  # in the middle of a character
        ("metadata_end", 0, -1),
        ("metadata_end", 0, 1 << 40),
        ("metadata_end", -1, 0),
        ("title_end", -1, 1),
        ("first", 0, 1),
        ("first", 1, 0),
        ("first", 2, -(1 << 63)),
        ("first", -1, 1 << 40),
        ("ids", 1, 0),
        ("spelling_first", 1, 1),
        ("spelling", -1, ord("x")),
        ("chunk", 0, 3),
        ("positions", 0, -1),
        ("positions", 1, 0),
        ("positions", -1, 3),
        ("first_token", 0, -1),
        ("first_token", 0, 5),
        ("tokens", 0, 1 << 20),
        ("n_tokens", 0, -1),
        ("n_tokens", 0, 3),
        ("n_tokens", 0, (1 << 63) - 1),
    ],
)
def test_an_offset_that_leads_astray_is_refused(
    folder: Path, saved: bytes, name: str, place: int, value: int
) -> None:
    """An offset or a number that does not ascend, or leads beyond its array, is refused when opened."""
    header, body = parts(saved)
    array_of(header, body, name)[place] = value
    (folder / "astray").write_bytes(with_checksum(json.dumps(header).encode("ascii"), body))
    with pytest.raises(IndexFormatError, match=r"astray.*do not fit together"):
        ChunkIndex.load(folder / "astray")


def test_a_text_that_is_no_text_is_refused_when_it_is_wanted(folder: Path, saved: bytes) -> None:
    """Bytes that are not UTF-8, under a right checksum, are an error of the file and not of Python's codecs."""
    header, body = parts(saved)
    array_of(header, body, "text")[:] = 0xFF
    (folder / "bytes").write_bytes(with_checksum(json.dumps(header).encode("ascii"), body))
    index = ChunkIndex.load(folder / "bytes")
    with pytest.raises(IndexFormatError, match=r"chunk \d+ of the saved index is not UTF-8"):
        index.search("cats")


@pytest.mark.parametrize("content", [b"\xff", b"[1]", b"{", b"[" * 9])
def test_metadata_that_is_none_is_refused_when_it_is_wanted(
    folder: Path, saved: bytes, content: bytes
) -> None:
    """Metadata that is not a JSON object, under a right checksum, is an error of the file."""
    header, body = parts(saved)
    array_of(header, body, "metadata")[:] = np.frombuffer(content.ljust(11), np.uint8)
    (folder / "bytes").write_bytes(with_checksum(json.dumps(header).encode("ascii"), body))
    index = ChunkIndex.load(folder / "bytes")
    with pytest.raises(
        IndexFormatError, match="the metadata of chunk 1 of the saved index is not a JSON object"
    ):
        index.search("dogs")


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("text", "offset", False),
        ("text", "offset", 0.0),
        ("ids", "offset", -64),
        ("ids", "offset", 0),
        ("norms", "offset", 1 << 40),
        ("ids", "shape", [-4]),
        ("ids", "shape", [4, 1]),
        ("ids", "shape", 4),
        ("first", "shape", [1 << 62]),
        ("tf", "type", "<f4"),
    ],
)
def test_arrays_lie_where_they_are_written(
    folder: Path, saved: bytes, name: str, field: str, value: object
) -> None:
    """A type, a shape or an offset that is not as written is refused, a boolean for an integer as well."""
    header, body = parts(saved)
    header["arrays"][name][field] = value
    (folder / "misplaced").write_bytes(with_checksum(json.dumps(header).encode("ascii"), body))
    with pytest.raises(IndexFormatError, match="misplaced"):
        ChunkIndex.load(folder / "misplaced")


def test_a_boolean_is_no_size(folder: Path) -> None:
    """An array of one element whose size is given as true is refused."""
    ChunkIndex(["cat"]).save(folder / "one")
    header, body = parts((folder / "one").read_bytes())
    assert header["arrays"]["ids"]["shape"] == [1]
    header["arrays"]["ids"]["shape"] = [True]
    (folder / "one").write_bytes(with_checksum(json.dumps(header).encode("ascii"), body))
    with pytest.raises(IndexFormatError, match="one is not an index"):
        ChunkIndex.load(folder / "one")


def parts(saved: bytes) -> tuple[dict[str, Any], bytearray]:
    length = int.from_bytes(saved[16:24], "little")
    return json.loads(saved[24 : 24 + length]), bytearray(saved[24 + length :])


def array_of(header: dict[str, Any], body: bytearray, name: str) -> npt.NDArray[Any]:
    layout = header["arrays"][name]
    return np.frombuffer(body, layout["type"], layout["shape"][0], layout["offset"])


def refused_or_searched(path: Path, header: dict[str, Any], body: bytearray) -> None:
    path.write_bytes(with_checksum(json.dumps(header).encode("ascii"), body))
    try:
        index = ChunkIndex.load(path)
    except IndexFormatError:
        return
    except InvalidRequestError as error:
        assert error.field == "encoding"  # a name, but of another one
        return
    for query in ("cats", "a dog that barks, and cats that purr", "Purr!", "猫", "猫 cat"):
        index.search(query, ALL)
        for place in range(len(index)):
            index.explain(query, place)


def with_checksum(header: bytes, body: bytes | bytearray) -> bytes:
    checked = len(header).to_bytes(8, "little") + header + body
    return (
        b"RelGenIx"
        + (6).to_bytes(4, "little")
        + zlib.crc32(checked).to_bytes(4, "little")
        + checked
    )


@pytest.mark.parametrize(
    "header", [b"", b"[]", b"{}", b"null", b"[" * 100_000, b'{"arrays": []}', b"\xff"]
)
def test_a_header_of_another_shape_is_refused(folder: Path, header: bytes) -> None:
    """A header that is no object of the known fields is refused."""
    (folder / "shape").write_bytes(with_checksum(header, b""))
    with pytest.raises(IndexFormatError, match="shape"):
        ChunkIndex.load(folder / "shape")


def test_what_is_loaded_cannot_be_written_to(folder: Path, saved: bytes) -> None:
    """A loaded index is mapped from its file, read-only, and goes on when the file is replaced or removed."""
    path = folder / "mapped"
    path.write_bytes(saved)
    loaded = ChunkIndex.load(path)
    (segment,) = loaded._state.segments.segments
    arrays = [segment.occurrences, segment.norms, segment.postings.lexicon.ids]
    assert not any(array.flags.writeable for array in arrays)
    before = loaded.search("cats")
    ChunkIndex(["something else"]).save(path)
    assert loaded.search("cats") == before
    path.unlink()
    assert loaded.search("dogs bark").results[0].metadata == {"page": 2}


@pytest.mark.parametrize("value", [{1, 2}, object(), b"bytes", 1j])
def test_metadata_that_is_not_json_is_refused_when_saved(folder: Path, value: object) -> None:
    """Metadata that JSON does not have is an error that names it, and leaves no file."""
    index = ChunkIndex([{"text": "a cat", "metadata": {"key": value}}])
    before = sorted(folder.iterdir())
    assert index.search("cat").results[0].metadata["key"] is value
    with pytest.raises(InvalidRequestError, match="metadata must be JSON"):
        index.save(folder / "not_json")
    assert sorted(folder.iterdir()) == before


def test_metadata_that_would_come_back_changed_is_refused_when_saved(folder: Path) -> None:
    """Keys that are no strings, and tuples, would come back as something else: they are not JSON."""
    for value in ({1: "one"}, (1, 2), math.nan):
        with pytest.raises(InvalidRequestError, match="metadata must be JSON"):
            ChunkIndex([{"text": "a cat", "metadata": {"value": value}}]).save(folder / "changed")


def test_metadata_that_nests_too_deeply_is_refused_when_saved(folder: Path) -> None:
    """Nesting beyond what JSON's writer can take is an error of ours."""
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="metadata must be JSON"):
        ChunkIndex([{"text": "a cat", "metadata": {"deep": deep}}]).save(folder / "deep")


def test_a_saved_file_may_be_read_by_whom_the_system_lets(folder: Path) -> None:
    """A saved index has the permissions of any new file."""
    (folder / "plain").write_text("x")
    ChunkIndex(["a cat"]).save(folder / "index")
    modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in ("plain", "index")]
    assert modes[0] == modes[1]


def test_a_file_that_cannot_be_written_leaves_nothing(folder: Path) -> None:
    """An error in writing names the file, and leaves neither a part of it nor anything beside it."""
    (folder / "taken").mkdir(exist_ok=True)
    (folder / "taken" / "inside").touch()
    before = sorted(path.name for path in folder.iterdir())
    for target in (folder / "taken", folder / "nowhere" / "index", Path()):
        with pytest.raises(OSError, match="directory") as refused:
            ChunkIndex(["a cat"]).save(target)
        assert refused.value.filename == str(target)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_a_file_takes_its_name_when_it_is_on_the_disk(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the system cannot bring to the disk replaces nothing, and leaves nothing."""

    def refuse(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    target = folder / "safe" / "index"
    target.parent.mkdir()
    ChunkIndex(["a cat"]).save(target)
    before = target.read_bytes()
    monkeypatch.setattr(os, "fsync", refuse)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        ChunkIndex(["a dog"]).save(target)
    assert ([*target.parent.iterdir()], target.read_bytes()) == ([target], before)


@pytest.mark.parametrize("path", ["", None, 5, b"index"])
def test_what_is_no_path_is_refused_by_name(path: Any) -> None:
    """An empty path, which would mean the working folder, and what is no path at all are an error that names it."""
    for use in (ChunkIndex(["a cat"]).save, ChunkIndex.load):
        with pytest.raises(
            InvalidRequestError, match="path must be the path of a file, got"
        ) as refused:
            use(path)
        assert refused.value.field == "path"


def test_a_null_byte_is_refused_by_name() -> None:
    """No file has one in its name, and Python's own error for it names nothing."""
    for use in (ChunkIndex(["a cat"]).save, ChunkIndex.load):
        with pytest.raises(InvalidRequestError, match="null byte") as refused:
            use("a\0b")
        assert refused.value.field == "path"


def test_an_address_and_a_folder_are_refused(folder: Path) -> None:
    """What takes addresses is named, and so is what opens folders."""
    for use in (ChunkIndex(["a cat"]).save, ChunkIndex.load):
        with pytest.raises(
            InvalidRequestError,
            match=r"path must be .* no address, got 's3://b/a'; ClusterIndex, in save",
        ):
            use("s3://b/a")
    with pytest.raises(
        IndexFormatError, match=r"is a folder, .*; ClusterIndex\.load opens .*FolderIndex"
    ):
        ChunkIndex.load(folder)


def test_another_file_is_not_overwritten(folder: Path) -> None:
    """A file that is no index stays as it is, unless it is empty or the caller says so; an index is replaced."""
    index, other = ChunkIndex(["a cat"]), folder / "notes.txt"
    other.write_text("not to be lost")
    with pytest.raises(
        InvalidRequestError, match=r"path must be a new file or a saved index, got .*overwrite=True"
    ):
        index.save(other)
    assert other.read_text() == "not to be lost"
    empty = folder / "empty"
    empty.touch()
    for target, options in ((empty, {}), (empty, {}), (other, {"overwrite": True})):
        index.save(target, **options)
        assert len(ChunkIndex.load(target)) == 1


def test_a_missing_file_is_an_os_error(folder: Path) -> None:
    """A file that is not there, or is a folder, is reported as the system does."""
    with pytest.raises(FileNotFoundError):
        ChunkIndex.load(folder / "missing")
    with pytest.raises(OSError, match=r"folder|directory"):
        ChunkIndex.load(folder)


def test_another_encoding_is_refused(folder: Path, tmp_path: Path) -> None:
    """An index is loaded with the encoding that it was saved with, or not at all."""
    ranks = tmp_path / "bytes.tiktoken"
    ranks.write_text(
        "".join(f"{base64.b64encode(bytes([byte])).decode()} {byte}\n" for byte in range(256))
    )
    ChunkIndex(["a cat"], encoding=ranks).save(folder / "encoded")
    assert (
        ChunkIndex.load(folder / "encoded", encoding=ranks)
        .search("cat")
        .metadata.num_context_tokens
        == 5
    )
    with pytest.raises(InvalidRequestError, match="encoding"):
        ChunkIndex.load(folder / "encoded")


def test_another_encoding_of_the_same_name_is_refused(folder: Path, tmp_path: Path) -> None:
    """A rank file of the name that was saved, but with other ranks, is not the encoding that was saved."""
    paths = []
    for shift in (0, 1):
        path = tmp_path / str(shift) / "bytes.tiktoken"
        path.parent.mkdir()
        ranks = ((bytes([byte]), (byte + shift) % 256) for byte in range(256))
        path.write_text(
            "".join(f"{base64.b64encode(token).decode()} {rank}\n" for token, rank in ranks)
        )
        paths.append(path)
    ChunkIndex(["a cat"], encoding=paths[0]).save(folder / "named")
    assert len(ChunkIndex.load(folder / "named", encoding=paths[0])) == 1
    with pytest.raises(
        InvalidRequestError,
        match=r"encoding must be bytes, as when .*, got another encoding of that name",
    ):
        ChunkIndex.load(folder / "named", encoding=paths[1])


def test_an_empty_index_is_saved_and_loaded(folder: Path) -> None:
    """No chunks, and chunks without terms, survive saving."""
    for texts in ([], ["..."]):
        ChunkIndex(texts).save(folder / "empty")
        loaded = ChunkIndex.load(folder / "empty")
        assert len(loaded) == len(texts)
        assert loaded.search("cat").results == ()
        assert loaded._state.segments.n_terms == 0


PINNED = "02f6a164322b4b8158732574990c39ab18f2bd6252c0425b04ddc72fc373fffe"


def test_a_saved_index_is_the_same_bytes_in_every_release_of_the_format(folder: Path) -> None:
    """What a file holds, and in which order, changes only with the format's version."""
    index = ChunkIndex(
        [
            "Cats purr, and a cat_named_Tom is no dog.",
            "Größe столица 猫が好き",
            {"text": "the the", "metadata": {"page": 1}},
        ]
    )
    index.add(["Tiếng Việt", "dogs bark at cats", "..."])
    index.remove([4])
    index.save(folder / "pinned")
    assert hashlib.sha256((folder / "pinned").read_bytes()).hexdigest() == PINNED
