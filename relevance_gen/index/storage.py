"""Write an index to one file and read it back, memory-mapped; all its segments become one.

The frame of the file is that of `relevance_gen.index.array_file`. Nothing in it is code: numbers,
UTF-8 and JSON. Which arrays there are says `relevance_gen.index.array_layout`.
"""

from __future__ import annotations

import errno
import fcntl
import io
import json
import os
import re
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO, Final, get_args

import numpy as np
import numpy.typing as npt
from attrs import asdict, evolve, frozen
from attrs.filters import exclude

from relevance_gen.checks import check_path, is_integer
from relevance_gen.errors import IndexFormatError, InvalidRequestError
from relevance_gen.index import array_file as arrayfile
from relevance_gen.index import array_layout as layout
from relevance_gen.index.chunks import Chunks
from relevance_gen.index.lazy_values import LazyTexts, LazyValues
from relevance_gen.index.lexicon import Lexicon
from relevance_gen.index.passages import Passages
from relevance_gen.index.postings import Postings
from relevance_gen.index.segment import Segment
from relevance_gen.types import Metadata, WeightingName

_LINE_END: Final = ord("\n")
_UNFINISHED: Final = re.compile(r"\.[0-9a-f]{16}\.unfinished")
_TAKES_ADDRESSES: Final = "ClusterIndex, in save and load,"
_to_json: Final = json.JSONEncoder(allow_nan=False).encode


@frozen
class SavedIndex:
    """What a file holds."""

    segment: Segment  # the chunks, searchable
    weighting: WeightingName  # the name of the weighting
    encoding: str  # name of the encoding that tokens were counted in
    fingerprint: str  # a hash of what that encoding is
    encoder: (
        str | None
    )  # fingerprint of the encoder whose vectors the segment has; None where it has none
    n_positions: int  # number of positions that were ever given
    n_context_tokens: int  # tokens in all chunks


def check_target(path: str | PathLike[str], *, overwrite: bool = False) -> Path:
    """Return `path`, if nothing is there, or what may be replaced: an index, an empty file, with `overwrite` any file.

    Raises:
        InvalidRequestError: it is no path, or another file is there.
        OSError: it is a folder, or in none.
    """
    target = Path(check_path("path", path, takes_addresses=_TAKES_ADDRESSES))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))
    if (
        not overwrite
        and target.exists()
        and not (target.is_file() and arrayfile.is_index_or_empty(target))
    ):
        remedy = "name another file, or pass overwrite=True"
        raise InvalidRequestError.must_be(
            "path", "a new file or a saved index", str(target), remedy=remedy
        )
    return target


def write(path: str | PathLike[str], index: SavedIndex, *, overwrite: bool = False) -> None:
    """Write the file beside `path` and move it there: whole or not at all.

    Raises:
        InvalidRequestError: `path` is none or another file than an index, or some metadata is not JSON.
        OSError: the file cannot be written; the error names it.
    """
    content = _content(index)
    with replacing(check_target(path, overwrite=overwrite)) as file:
        arrayfile.write(file, layout.TYPES, *content).seal()


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Yield a file beside `target` that takes its name when all is written, and goes where anything fails.

    What processes that were killed meanwhile have left behind in the folder is removed.

    Raises:
        OSError: the file cannot be written.
    """
    with suppress(OSError):
        for left in [
            path
            for path in target.parent.iterdir()
            if _UNFINISHED.fullmatch(path.name) and path.is_file()
        ]:
            with (
                suppress(OSError),
                left.open("rb") as one,
            ):  # another's, or one that is just being written
                fcntl.flock(one, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()
    unfinished, file = _unfinished(target)
    try:
        with file:
            yield file
            file.flush()
            os.fsync(
                file.fileno()
            )  # else a crash of the machine may leave the new name of what was not written
            unfinished.replace(target)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def _unfinished(target: Path) -> tuple[Path, BinaryIO]:
    """Return a new file beside `target`, locked for as long as it is open, so that others know that it is in use."""
    while True:
        path = target.with_name(
            f".{secrets.token_hex(8)}.unfinished"
        )  # tempfile's would be its owner's alone
        file = path.open("x+b")
        with suppress(OSError):  # where files cannot be locked, nobody removes those of others
            fcntl.flock(file, fcntl.LOCK_EX)
        if path.exists():  # and nobody has taken it for one left behind, before it was locked
            return path, file
        file.close()


def to_bytes(index: SavedIndex) -> bytes:
    """Return what `write` would write; metadata that is not JSON raises `InvalidRequestError`."""
    file = io.BytesIO()
    arrayfile.write(file, layout.TYPES, *_content(index)).seal()
    return file.getvalue()


def _content(index: SavedIndex) -> tuple[dict[str, Any], dict[str, npt.NDArray[Any]]]:
    settings = asdict(index, recurse=False, filter=exclude("segment"))
    return settings, arrays_of(index.segment) | _content_of(index.segment.chunks)


class ContentWriter:
    """Writes what a file has of chunks themselves, one chunk after the other: texts, metadata and titles.

    Args:
        open_file: returns a new file to write to and to read, for each of the arrays.
    """

    def __init__(self, open_file: Callable[[], BinaryIO]) -> None:
        self._files = {
            name: (open_file(), open_file(), f"{ends}_end") for name, ends in _CONTENT.items()
        }

    def add(self, text: str, metadata: Metadata, title: str) -> int:
        """Write a chunk, and return the bytes that its text takes.

        Raises:
            InvalidRequestError: its metadata is not JSON.
        """
        encoded = _metadata_json(metadata) if metadata else b""
        values = (
            text.encode("utf-8", "surrogatepass"),
            encoded,
            title.encode("utf-8", "surrogatepass"),
        )
        for value, (file, ends, _) in zip(values, self._files.values(), strict=True):
            file.write(value)
            ends.write(file.tell().to_bytes(8, "little"))
        return len(values[0])

    def finish(
        self, read: Callable[[BinaryIO], npt.NDArray[np.uint8]]
    ) -> dict[str, npt.NDArray[Any]]:
        """Return the arrays by their names; `read` returns what is in a file."""
        held = {name: read(file) for name, (file, _, _) in self._files.items()}
        return held | {name: read(ends).view("<i8") for _, ends, name in self._files.values()}


_CONTENT: Final = {"text": "text", "metadata": "metadata", "titles": "title"}
"""The arrays of chunks themselves, and what those that say where each chunk's part ends begin with."""


def _content_of(chunks: Chunks) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that a file has of chunks themselves, as `ContentWriter` makes them of a chunk at a time."""
    numbers = range(len(chunks.texts))
    values = (
        (text.encode("utf-8", "surrogatepass") for text in chunks.texts),
        (
            _metadata_json(chunks.metadata[number]) if number in chunks.metadata else b""
            for number in numbers
        ),
        (chunks.title_of(number).encode("utf-8", "surrogatepass") for number in numbers),
    )
    arrays: dict[str, npt.NDArray[Any]] = {}
    for (name, ends), ones in zip(_CONTENT.items(), values, strict=True):
        content, sizes = bytearray(), []
        for one in ones:
            content += one
            sizes.append(len(one))
        arrays |= {
            name: np.frombuffer(content, np.uint8),
            f"{ends}_end": np.cumsum(sizes, dtype="<i8"),
        }
    return arrays


def arrays_of(segment: Segment) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a segment that a file has, empty where it has none, but for its texts."""
    return dict.fromkeys(layout.TYPES, np.zeros(0, np.uint8)) | dict(layout.arrays_of(segment))


def write_arrays(file: BinaryIO, segment: Segment) -> None:
    """Write the arrays of a segment, without its texts, for `read_arrays` in another process."""
    arrayfile.write(file, layout.TYPES, {}, arrays_of(segment))


def read_arrays(content: npt.NDArray[np.uint8], chunks: Chunks) -> Segment:
    """Return the segment of chunks whose arrays `write_arrays` wrote; they stay where they are."""
    _, arrays = arrayfile.read(content, layout.TYPES)
    return _segment(arrays, chunks, None)


def _metadata_json(metadata: Metadata) -> bytes:
    """Return metadata as it is stored.

    Raises:
        InvalidRequestError: it is not JSON.
    """
    try:
        encoded = _to_json(metadata)
        if json.loads(encoded) != metadata:  # keys that are no strings, tuples
            raise ValueError("it would come back changed")
    except (RecursionError, TypeError, ValueError) as error:
        raise InvalidRequestError(f"must be JSON to be saved: {error}", "metadata") from None
    return encoded.encode("ascii")


def read(path: str | PathLike[str], *, check: bool = True) -> SavedIndex:
    """Map a file that `write` wrote, with `check` after comparing its checksum, for which all of it is read.

    Raises:
        InvalidRequestError: `path` is none.
        IndexFormatError: the file is damaged, foreign, of another format version, or its offsets lead astray.
        OSError: the file cannot be read.
    """
    file = Path(check_path("path", path, takes_addresses=_TAKES_ADDRESSES))
    if file.is_dir():
        remedy = (
            "ClusterIndex.load opens what ClusterIndex.save wrote, and FolderIndex searches files"
        )
        raise IndexFormatError(
            f"{path} is a folder, and not a file that ChunkIndex.save wrote; {remedy}"
        )
    if file.stat().st_size < arrayfile.PREFIX_BYTES:
        raise IndexFormatError(f"{path} is not a saved index: it is too short")
    return _read(np.memmap(path, np.uint8, "r"), path, check=check)


def from_bytes(content: bytes, name: str = "the pickled index") -> SavedIndex:
    """Return what `to_bytes` wrote; errors call it by its name.

    Raises:
        IndexFormatError: it is damaged, or of another format version.
    """
    return _read(np.frombuffer(content, np.uint8), name)


def _read(content: npt.NDArray[np.uint8], name: object, *, check: bool = True) -> SavedIndex:
    arrayfile.check(content, name, content_too=check)
    try:
        return _interpret(content)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise IndexFormatError(f"{name} is not an index that this library wrote: {error}") from None


def _interpret(content: npt.NDArray[np.uint8]) -> SavedIndex:
    header, arrays = arrayfile.read(content, layout.TYPES)
    n_positions, n_context_tokens = header["n_positions"], header["n_context_tokens"]
    if not (is_integer(n_positions) and is_integer(n_context_tokens) and n_context_tokens >= 0):
        raise TypeError("its counts are no integers")
    encoding, fingerprint, encoder = header["encoding"], header["fingerprint"], header["encoder"]
    if not _fit_together(arrays, n_positions, has_passages=encoder is not None):
        raise ValueError("its arrays do not fit together")
    if not (
        isinstance(encoding, str)
        and isinstance(fingerprint, str)
        and isinstance(encoder, str | None)
    ):
        raise TypeError("its settings are of other types")
    weighting = header["weighting"]
    if weighting not in get_args(WeightingName):
        raise ValueError(f"its weighting is {weighting!r}")
    segment = _segment(arrays, chunks_in(arrays), None if encoder is None else _passages(arrays))
    return SavedIndex(
        segment, weighting, encoding, fingerprint, encoder, n_positions, n_context_tokens
    )


def chunks_in(arrays: Mapping[str, npt.NDArray[Any]]) -> Chunks:
    """Return the chunks whose texts, metadata and titles lie in the arrays of a file; each is read when it is wanted.

    Decoding all of them would be most of opening a file.
    """
    text, metadata, titles = (
        (arrays[name], arrays[f"{ends}_end"]) for name, ends in _CONTENT.items()
    )
    return Chunks(
        _StoredTexts(*text),
        _StoredValues(_metadata_at, *metadata),
        _StoredValues(_text_at, *titles),
    )


class _StoredTexts(LazyTexts):
    """Texts that lie in an array, with another that has the end of each; pickled as these."""

    def __init__(self, content: npt.NDArray[np.uint8], end: npt.NDArray[np.int64]) -> None:
        super().__init__(end.size, partial(_text_at, *_views(content, end)))
        self._arrays = content, end

    def __reduce__(self) -> tuple[Any, ...]:
        return _StoredTexts, self._arrays


class _StoredValues(LazyValues[Any]):
    """What `read` makes of bytes that lie in an array, for the chunks that have any; pickled likewise."""

    def __init__(
        self,
        read: Callable[[memoryview, memoryview, int], Any],
        content: npt.NDArray[np.uint8],
        end: npt.NDArray[np.int64],
    ) -> None:
        super().__init__(np.diff(end, prepend=0) > 0, partial(read, *_views(content, end)))
        self._args = read, content, end

    def __reduce__(self) -> tuple[Any, ...]:
        return _StoredValues, self._args


def _views(
    content: npt.NDArray[np.uint8], end: npt.NDArray[np.int64]
) -> tuple[memoryview, memoryview]:
    return content.data, end.view(np.uint8).data.cast("q")  # it gives Python's integers, quickly


def _text_at(content: memoryview, end: memoryview, number: int) -> str:
    try:
        return str(_bytes_at(content, end, number), "utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise IndexFormatError(
            f"chunk {number} of the saved index is not UTF-8; build it again"
        ) from None


def _metadata_at(content: memoryview, end: memoryview, number: int) -> Metadata:
    try:
        metadata = json.loads(bytes(_bytes_at(content, end, number)))
    except (RecursionError, ValueError):
        metadata = None
    if not isinstance(metadata, dict):
        raise IndexFormatError(
            f"the metadata of chunk {number} of the saved index is no JSON object; build it again"
        )
    return metadata


def _bytes_at(content: memoryview, end: memoryview, number: int) -> memoryview:
    if number < 0:
        number += len(end)
    return content[end[number - 1] if number else 0 : end[number]]


def _segment(arrays: Mapping[str, Any], chunks: Chunks, passages: Passages | None) -> Segment:
    lexicon = Lexicon(**layout.attributes(arrays, "postings.lexicon"))
    postings = Postings(lexicon, **layout.attributes(arrays, "postings"))
    return Segment(
        chunks=chunks, postings=postings, passages=passages, **layout.attributes(arrays, "")
    )


def _passages(arrays: Mapping[str, Any]) -> Passages:
    passages = Passages(**layout.attributes(arrays, "passages"))
    n = passages.starts.size
    return evolve(passages, vectors=passages.vectors.reshape(n, passages.vectors.size // max(n, 1)))


def _fit_together(
    arrays: Mapping[str, npt.NDArray[Any]], n_positions: int, *, has_passages: bool
) -> bool:
    """Tell whether every offset leads to where it must, so that no search goes astray."""
    if not layout.fit(arrays, has_passages=has_passages):
        return False
    text, text_end, positions = arrays["text"], arrays["text_end"], arrays["positions"]
    spelling, spelling_first = arrays["spelling"], arrays["spelling_first"]
    tokens, first_token, n_tokens = arrays["tokens"], arrays["first_token"], arrays["n_tokens"]
    starts, ends, vectors = arrays["passage_starts"], arrays["passage_ends"], arrays["vectors"]
    return (
        bool((spelling[spelling_first[1:] - 1] == _LINE_END).all())
        and not bool((text[text_end[:-1]] & 0xC0 == 0x80).any())  # in the middle of a character
        and bool(
            ((n_tokens >= 0) & (first_token >= 0) & (first_token <= tokens.size - n_tokens)).all()
        )
        and int(n_tokens.sum()) == tokens.size
        and bool((arrays["title_sizes"] <= n_tokens).all())
        and (not positions.size or 0 <= int(positions[0]) <= int(positions[-1]) < n_positions)
        and (not has_passages or bool(((starts >= 0) & (starts < ends)).all()))
        and (
            not has_passages
            or (vectors.size % max(starts.size, 1) == 0 and bool(np.isfinite(vectors).all()))
        )
    )
