"""Save and load an index: the content is equal, and damaged files are refused."""

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
from datetime import date
from functools import partial
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
def test_loaded_index_answers_like_the_saved_index(
    folder: Path, given_chunks: list[Chunk], query: str, weighting: WeightingName
) -> None:
    """Answers, explanations, texts and metadata are equal after saving and loading twice."""
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
def test_truncated_file_raises_an_error(folder: Path, saved: bytes, data: st.DataObject) -> None:
    """A truncated file is refused."""
    (folder / "short").write_bytes(saved[: data.draw(st.integers(0, len(saved) - 1))])
    with pytest.raises(IndexFormatError, match="short"):
        ChunkIndex.load(folder / "short")


@given(st.data())
def test_file_with_a_flipped_bit_raises_an_error(
    folder: Path, saved: bytes, data: st.DataObject
) -> None:
    """A file with one changed bit at any offset is refused."""
    content = bytearray(saved)
    content[data.draw(st.integers(0, len(saved) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    (folder / "flipped").write_bytes(content)
    with pytest.raises(IndexFormatError, match="flipped"):
        ChunkIndex.load(folder / "flipped")


@pytest.mark.soak
def test_files_with_any_flipped_bit_raise_an_error(folder: Path, saved: bytes) -> None:
    """Thousands of files, each with another changed bit, are refused without a crash."""
    for place in range(8 * len(saved)):
        content = bytearray(saved)
        content[place // 8] ^= 1 << place % 8
        (folder / "flipped").write_bytes(content)
        with pytest.raises(IndexFormatError, match="flipped"):
            ChunkIndex.load(folder / "flipped")


@pytest.mark.parametrize(
    "content", [b"", b"\x00", b"PK\x03\x04" * 100, b"RelGenIx", b"\x80\x04}q\x00." * 9]
)
def test_file_of_another_kind_raises_an_error(folder: Path, content: bytes) -> None:
    """A file of another kind and any length is refused."""
    (folder / "foreign").write_bytes(content)
    with pytest.raises(IndexFormatError, match="foreign is not a saved index"):
        ChunkIndex.load(folder / "foreign")


def test_file_of_another_version_raises_an_error(folder: Path, saved: bytes) -> None:
    """The error has both format versions and the remedy."""
    for other in (5, 99):
        (folder / "later").write_bytes(saved[:8] + other.to_bytes(4, "little") + saved[12:])
        with pytest.raises(
            IndexFormatError, match=rf"format version {other}.*reads 7; build it again"
        ):
            ChunkIndex.load(folder / "later")


OF_INTEGERS = "text_end positions ids first chunk tf spelling spelling_first tokens first_token n_tokens hashes".split()
lengths = st.integers(-(1 << 63), 1 << 64) | st.integers(-70, 300)


@given(st.data())
def test_changed_header_raises_an_error_or_can_be_searched(
    folder: Path, saved: bytes, data: st.DataObject
) -> None:
    """A changed header with a valid checksum is refused on loading, or the index can be searched."""
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
def test_changed_arrays_raise_an_error_or_can_be_searched(
    folder: Path, saved: bytes, data: st.DataObject
) -> None:
    """Changed offsets and ordinals with a valid checksum are refused on loading, or can be searched."""
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
def test_invalid_offset_raises_an_error(
    folder: Path, saved: bytes, name: str, place: int, value: int
) -> None:
    """An offset or ordinal that does not ascend or exceeds its array is refused on loading."""
    header, body = parts(saved)
    array_of(header, body, name)[place] = value
    (folder / "astray").write_bytes(with_checksum(json.dumps(header).encode("ascii"), body))
    with pytest.raises(IndexFormatError, match=r"astray.*do not fit together"):
        ChunkIndex.load(folder / "astray")


def test_read_of_invalid_utf8_raises_an_error(folder: Path, saved: bytes) -> None:
    """Bytes that are not UTF-8, with a valid checksum, raise an IndexFormatError when the text is read."""
    header, body = parts(saved)
    array_of(header, body, "text")[:] = 0xFF
    (folder / "bytes").write_bytes(with_checksum(json.dumps(header).encode("ascii"), body))
    index = ChunkIndex.load(folder / "bytes")
    with pytest.raises(IndexFormatError, match=r"chunk \d+ of the saved index is not UTF-8"):
        index.search("cats")


@pytest.mark.parametrize("content", [b"\xff", b"[1]", b"{", b"[" * 9])
def test_read_of_invalid_metadata_raises_an_error(
    folder: Path, saved: bytes, content: bytes
) -> None:
    """Metadata that is not a JSON object, with a valid checksum, raises an IndexFormatError when it is read."""
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
def test_changed_layout_raises_an_error(
    folder: Path, saved: bytes, name: str, field: str, value: object
) -> None:
    """A changed type, shape or offset is refused, including a boolean instead of an integer."""
    header, body = parts(saved)
    header["arrays"][name][field] = value
    (folder / "misplaced").write_bytes(with_checksum(json.dumps(header).encode("ascii"), body))
    with pytest.raises(IndexFormatError, match="misplaced"):
        ChunkIndex.load(folder / "misplaced")


def test_boolean_size_raises_an_error(folder: Path) -> None:
    """An array of one element with the size true is refused."""
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
        + (7).to_bytes(4, "little")
        + zlib.crc32(checked).to_bytes(4, "little")
        + checked
    )


@pytest.mark.parametrize(
    "header", [b"", b"[]", b"{}", b"null", b"[" * 100_000, b'{"arrays": []}', b"\xff"]
)
def test_header_without_the_known_fields_raises_an_error(folder: Path, header: bytes) -> None:
    """A header other than an object with the known fields is refused."""
    (folder / "shape").write_bytes(with_checksum(header, b""))
    with pytest.raises(IndexFormatError, match="shape"):
        ChunkIndex.load(folder / "shape")


def test_loaded_index_is_read_only_and_survives_replacing_its_file(
    folder: Path, saved: bytes
) -> None:
    """A loaded index is mapped read-only and stays valid when its file is replaced or removed."""
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
def test_save_of_non_json_metadata_raises_an_error(folder: Path, value: object) -> None:
    """The error names the metadata, and the folder is unchanged."""
    index = ChunkIndex([{"text": "a cat", "metadata": {"key": value}}])
    before = sorted(folder.iterdir())
    assert index.search("cat").results[0].metadata["key"] is value
    with pytest.raises(InvalidRequestError, match=r"chunks\[0\]\.metadata\.key must be JSON"):
        index.save(folder / "not_json")
    assert sorted(folder.iterdir()) == before


def test_save_of_metadata_that_json_changes_raises_an_error(folder: Path) -> None:
    """Keys other than strings, and tuples, would change by saving and loading, so they are refused."""
    for value in ({1: "one"}, (1, 2), math.nan):
        with pytest.raises(
            InvalidRequestError, match=r"metadata\.value must (be JSON|have strings)"
        ):
            ChunkIndex([{"text": "a cat", "metadata": {"value": value}}]).save(folder / "changed")


def test_error_about_metadata_names_chunk_and_key(folder: Path) -> None:
    """The position is that in the index, also after a removal; the message has type and remedy."""
    index = ChunkIndex([*["a cat"] * 3, {"text": "x", "metadata": {"when": {"day": [date.min]}}}])
    index.remove([1])
    message = (
        "chunks[3].metadata.when.day[0] must be JSON to be saved, got date; "
        "store it as a string, a number, a list or a dict"
    )
    with pytest.raises(InvalidRequestError) as refused:
        index.save(folder / "dates")
    assert str(refused.value) == message


def test_save_of_too_deeply_nested_metadata_raises_an_error(folder: Path) -> None:
    """Nesting beyond the limit of the JSON writer raises an InvalidRequestError."""
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidRequestError, match="metadata must be JSON"):
        ChunkIndex([{"text": "a cat", "metadata": {"deep": deep}}]).save(folder / "deep")


def test_saved_file_has_default_permissions(folder: Path) -> None:
    """A saved index has the permissions of any new file."""
    (folder / "plain").write_text("x")
    ChunkIndex(["a cat"]).save(folder / "index")
    modes = [stat.S_IMODE((folder / name).stat().st_mode) for name in ("plain", "index")]
    assert modes[0] == modes[1]


def test_failed_save_leaves_no_files(folder: Path) -> None:
    """A write error names the file, and the folder is unchanged."""
    (folder / "taken").mkdir(exist_ok=True)
    (folder / "taken" / "inside").touch()
    before = sorted(path.name for path in folder.iterdir())
    for target in (folder / "taken", folder / "nowhere" / "index", Path()):
        with pytest.raises(OSError, match="directory") as refused:
            ChunkIndex(["a cat"]).save(target)
        assert refused.value.filename == str(target)
    assert sorted(path.name for path in folder.iterdir()) == before


def test_failed_fsync_keeps_the_old_file(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the data cannot be flushed to the disk, the old file is kept and the temporary file removed."""

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
def test_invalid_path_raises_an_error(path: Any) -> None:
    """An empty path, which would mean the working folder, and values of other types raise an error that names the argument."""
    for use in (ChunkIndex(["a cat"]).save, ChunkIndex.load):
        with pytest.raises(
            InvalidRequestError, match="path must be the path of a file, got"
        ) as refused:
            use(path)
        assert refused.value.field == "path"


def test_path_with_null_byte_raises_an_error() -> None:
    """File names cannot contain a null byte; the error names the argument, which Python's own error does not."""
    for use in (ChunkIndex(["a cat"]).save, ChunkIndex.load):
        with pytest.raises(InvalidRequestError, match="null byte") as refused:
            use("a\0b")
        assert refused.value.field == "path"


def test_path_with_lone_surrogate_raises_an_error() -> None:
    """A string that cannot be encoded as a path is refused as one with a null byte is."""
    build_at: Any = partial(ChunkIndex.build, ["a cat"])
    build_from: Any = partial(ChunkIndex.build, path="an.index")
    for field, use in (
        ("path", ChunkIndex(["a cat"]).save),
        ("path", ChunkIndex.load),
        ("path", build_at),
        ("source", build_from),
    ):
        with pytest.raises(InvalidRequestError, match="lone surrogate, got") as refused:
            use("\ud800")
        assert refused.value.field == field


def test_address_or_folder_raises_an_error_with_alternatives(folder: Path) -> None:
    """The errors name the classes that accept addresses and folders."""
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


def test_save_overwrites_only_index_or_empty_file_by_default(folder: Path) -> None:
    """Other files are not replaced unless the caller allows it; an index or an empty file is replaced."""
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


@pytest.mark.parametrize("value", ["no", 0, None])
def test_flag_that_is_not_a_boolean_raises_an_error(folder: Path, value: Any) -> None:
    """A string such as "no" does not count as true: a foreign file is not replaced."""
    index, other = ChunkIndex(["a cat"]), folder / "notes.txt"
    other.write_text("not to be lost")
    for save in (index.save, partial(ChunkIndex.build, ["a cat"])):
        with pytest.raises(InvalidRequestError, match="overwrite must be True or False, got"):
            save(other, overwrite=value)
    assert other.read_text() == "not to be lost"
    with pytest.raises(InvalidRequestError, match="check must be True or False, got"):
        ChunkIndex.load(other, check=value)
    with pytest.raises(InvalidRequestError, match="allow_partial must be True or False, got"):
        index.search("cat", allow_partial=value)
    index.save(other, overwrite=np.True_)


def test_load_of_missing_file_raises_os_error(folder: Path) -> None:
    """A missing file or a folder raises the error of the operating system."""
    with pytest.raises(FileNotFoundError):
        ChunkIndex.load(folder / "missing")
    with pytest.raises(OSError, match=r"folder|directory"):
        ChunkIndex.load(folder)


def test_load_with_another_encoding_raises_an_error(folder: Path, tmp_path: Path) -> None:
    """An index can only be loaded with its saved encoding."""
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


def test_load_with_changed_rank_file_raises_an_error(folder: Path, tmp_path: Path) -> None:
    """A rank file with the saved name and different ranks is refused."""
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
        match=r"encoding must be bytes, the encoding that .* was saved with, got another encoding of that name",
    ):
        ChunkIndex.load(folder / "named", encoding=paths[1])


def test_save_and_load_of_empty_index(folder: Path) -> None:
    """An index without chunks, and chunks without terms, can be saved and loaded."""
    for texts in ([], ["..."]):
        ChunkIndex(texts).save(folder / "empty")
        loaded = ChunkIndex.load(folder / "empty")
        assert len(loaded) == len(texts)
        assert loaded.search("cat").results == ()
        assert loaded._state.segments.n_terms == 0


PINNED = "459f4342507b0f4495f15caeb7eccb30a58ff3bf2e3ca98bf04ded780de8dfb2"


def test_saved_bytes_do_not_change_within_a_format_version(folder: Path) -> None:
    """Content and order of a file change only with the format version."""
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
