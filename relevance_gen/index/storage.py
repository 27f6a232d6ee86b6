"""Save an index to one file and map it back; a saved index has one segment.

`relevance_gen.index.array_file` defines the file format, and `relevance_gen.index.array_layout` the
arrays.
"""

from __future__ import annotations

import errno
import io
import json
import math
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
from attrs import asdict, evolve, field, frozen
from attrs.filters import exclude
from attrs.validators import optional

from relevance_gen import checks
from relevance_gen.arrays import Bytes, Offsets
from relevance_gen.checks import check_flag, check_path
from relevance_gen.errors import IndexFormatError, InvalidRequestError, shorten
from relevance_gen.index import array_file, array_layout
from relevance_gen.index.array_file import Array
from relevance_gen.index.chunks import Chunks, LazyTexts
from relevance_gen.index.lexicon import Lexicon
from relevance_gen.index.passages import Passages
from relevance_gen.index.postings import Postings
from relevance_gen.index.segment import Segment
from relevance_gen.locks import lock, try_lock
from relevance_gen.types import Metadata, WeightingName

_LINE_END: Final = ord("\n")
_UNFINISHED_NAME: Final = re.compile(r"\.[0-9a-f]{16}\.unfinished")
_MAX_CACHED_VALUES: Final = 1 << 17
"""Maximum number of values that a mapping caches: filters stay fast and memory stays bounded."""
_TAKES_ADDRESSES: Final = "ClusterIndex, in save and load,"
_to_json: Final = json.JSONEncoder(allow_nan=False).encode
_CONTENT_ARRAYS: Final = {"text": "text_end", "metadata": "metadata_end", "titles": "title_end"}
"""The array of the bytes of all texts, of all metadata and of all titles; for each, the array of
the offsets at which the bytes of each chunk end."""


@frozen
class SavedIndex:
    """The content of a saved index.

    Attributes:
        segment: the chunks and their postings.
        weighting: name of the weighting.
        encoding: name of the encoding that counts tokens.
        fingerprint: hash of the encoding's definition.
        encoder: fingerprint of the encoder that made the segment's vectors; None if it has none.
        n_positions: number of positions assigned so far.
        n_context_tokens: number of tokens in all chunks.
    """

    segment: Segment
    weighting: WeightingName = field(validator=checks.one_of(*get_args(WeightingName)))
    encoding: str = field(validator=checks.string)
    fingerprint: str = field(validator=checks.string)
    encoder: str | None = field(validator=optional(checks.string))
    n_positions: int = field(validator=checks.integer(0))
    n_context_tokens: int = field(validator=checks.integer(0))


def check_target(
    path: str | PathLike[str],
    *,
    overwrite: bool = False,
) -> Path:
    """Check that a file may be written, and return its path.

    The file must be new, a saved index or empty; with `overwrite`, any file is allowed.

    Raises:
        InvalidRequestError: `path` is not a path, a file of another kind exists there, or
            `overwrite` is not a boolean.
        OSError: `path` is a folder, or its parent folder does not exist.
    """
    check_flag("overwrite", overwrite)
    target = Path(check_path("path", path, takes_addresses=_TAKES_ADDRESSES))
    if target.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(target))
    if not target.parent.is_dir():
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(target))
    if overwrite or not target.exists():
        return target
    if not target.is_file() or not array_file.is_index_or_empty(target):
        raise InvalidRequestError.must_be(
            "path",
            "a new file or a saved index",
            str(target),
            remedy="name another file, or pass overwrite=True",
        )
    return target


def write(
    path: str | PathLike[str],
    index: SavedIndex,
    *,
    overwrite: bool = False,
) -> None:
    """Write an index to a file atomically: after a failure, the old file is unchanged.

    A new file is written in the same folder and renamed to `path`. `overwrite` is as for
    `check_target`.

    Raises:
        InvalidRequestError: `path` is not a path or names a file of another kind, or some metadata
            is not JSON.
        OSError: the file cannot be written; the error names it.
    """
    with replacing(check_target(path, overwrite=overwrite)) as file:
        _write(file, index)


@contextmanager
def replacing(target: Path) -> Iterator[BinaryIO]:
    """Yield a temporary file that is renamed to `target` at the end of the context.

    After an exception the temporary file is deleted. Also removes temporary files that killed
    processes left in the folder.

    Raises:
        OSError: the file cannot be written.
    """
    with suppress(OSError):
        _remove_abandoned_files(target.parent)
    path, file = _create_unfinished(target)
    try:
        with file:
            yield file
            file.flush()
            # Without fsync, a crash of the machine could keep the new name and lose the content.
            os.fsync(file.fileno())
            path.replace(target)
    except BaseException:
        path.unlink(missing_ok=True)
        raise


def _remove_abandoned_files(folder: Path) -> None:
    for path in list(folder.iterdir()):
        if not _UNFINISHED_NAME.fullmatch(path.name) or not path.is_file():
            continue
        # A file that is being written is locked; a file of another user cannot be opened.
        with suppress(OSError), path.open("rb") as file:
            if try_lock(file.fileno()):
                path.unlink()


def _create_unfinished(target: Path) -> tuple[Path, BinaryIO]:
    """Create a file in the folder of `target`; return its path and the open file.

    The file is locked while it is open, which keeps other processes from removing it.
    """
    while True:
        # The files of `tempfile` could only be read by their owner.
        path = target.with_name(f".{secrets.token_hex(8)}.unfinished")
        file = path.open("x+b")
        with suppress(OSError):  # on a file system without locks no process removes files
            lock(file.fileno())
        if path.exists():  # another process did not remove it before it was locked
            return path, file
        file.close()


def to_bytes(index: SavedIndex) -> bytes:
    """Return the content of the file that `write` would write.

    Raises:
        InvalidRequestError: some metadata is not JSON.
    """
    file = io.BytesIO()
    _write(file, index)
    return file.getvalue()


def _write(file: BinaryIO, index: SavedIndex) -> None:
    settings = asdict(index, recurse=False, filter=exclude("segment"))
    arrays = _arrays_of(index.segment) | _content_arrays(index.segment)
    array_file.write(file, array_layout.TYPES, settings, arrays).seal()


class ContentWriter:
    """Writes texts, metadata and titles of chunks to files, chunk by chunk.

    Args:
        open_file: returns a new file, open for reading and writing; called for each array.
    """

    def __init__(self, open_file: Callable[[], BinaryIO]) -> None:
        names = (*_CONTENT_ARRAYS, *_CONTENT_ARRAYS.values())
        self._files = {name: open_file() for name in names}

    def add(
        self,
        text: str,
        metadata: Metadata,
        title: str,
    ) -> int:
        """Write a chunk, and return the number of bytes of its encoded text.

        Raises:
            InvalidRequestError: its metadata is not JSON.
        """
        encoded = (_encode(text), _encode_metadata(metadata), _encode(title))
        for (name, end_name), value in zip(_CONTENT_ARRAYS.items(), encoded, strict=True):
            content_file = self._files[name]
            content_file.write(value)
            self._files[end_name].write(content_file.tell().to_bytes(8, "little"))
        return len(encoded[0])

    def finish(self) -> dict[str, Array]:
        """Return the arrays of all chunks that were added, by their names in a saved file.

        These are the bytes of the texts, metadata and titles, and for each the offsets at which the
        values of the chunks end. They are mapped from the files.
        """
        arrays: dict[str, Array] = {}
        for name, file in self._files.items():
            arrays[name] = array_file.map_file(file).view(array_layout.TYPES[name])
        return arrays


def _content_arrays(segment: Segment) -> dict[str, Array]:
    """Return the arrays of texts, metadata and titles that `ContentWriter` would write.

    Raises:
        InvalidRequestError: the metadata of a chunk is not JSON.
    """
    chunks = segment.chunks
    chunk_ords = range(len(chunks.texts))
    encoded = (
        map(_encode, chunks.texts),
        _encode_all_metadata(segment),
        (_encode(chunks.title_of(chunk_ord)) for chunk_ord in chunk_ords),
    )
    arrays: dict[str, Array] = {}
    for (name, end_name), values in zip(_CONTENT_ARRAYS.items(), encoded, strict=True):
        content = bytearray()
        sizes = []
        for value in values:
            content += value
            sizes.append(len(value))
        arrays[name] = np.frombuffer(content, np.uint8)
        arrays[end_name] = np.cumsum(sizes, dtype="<i8")
    return arrays


def _arrays_of(segment: Segment) -> dict[str, Array]:
    """Return an array for each name in a file; those of texts, metadata and titles are empty.

    Arrays that the segment lacks are empty, too.
    """
    empty = dict.fromkeys(array_layout.TYPES, np.zeros(0, np.uint8))
    return empty | dict(array_layout.arrays_of(segment))


def write_arrays(file: BinaryIO, segment: Segment) -> array_file.Writer:
    """Write the arrays of a segment without its chunks, and return the `Writer`, not yet sealed."""
    return array_file.write(file, array_layout.TYPES, {}, _arrays_of(segment))


def read_arrays(content: Bytes, chunks: Chunks) -> Segment:
    """Return the segment that `write_arrays` wrote, without passages.

    The arrays of the segment are views of `content`.

    Args:
        content: the content of the file.
        chunks: the chunks of the segment, which the file lacks.
    """
    return _segment(array_file.read(content, array_layout.TYPES).arrays, chunks, None)


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _encode_all_metadata(segment: Segment) -> Iterator[bytes]:
    """Yield the metadata of each chunk of a segment as JSON.

    Raises:
        InvalidRequestError: it is not JSON; the error names the position of the chunk.
    """
    for chunk_ord, position in enumerate(segment.positions.tolist()):
        try:
            encoded = _encode_metadata(segment.chunks.metadata_of(chunk_ord))
        except InvalidRequestError as error:
            raise error.with_field(f"chunks[{position}].{error.field}") from None
        yield encoded


def _encode_metadata(metadata: Metadata) -> bytes:
    """Return metadata as JSON, b"" for none.

    Raises:
        InvalidRequestError: it is not JSON; the error names the path of the first value that is
            not.
    """
    if not metadata:
        return b""
    try:
        encoded = _to_json(metadata)
        if json.loads(encoded) == metadata:
            return encoded.encode("ascii")
        reason = "it would be changed by saving and loading"
    except (RecursionError, TypeError, ValueError) as error:
        reason = str(error)
    with suppress(RecursionError):
        _check_json(metadata, "metadata")
    raise InvalidRequestError(f"must be JSON to be saved: {reason}", "metadata")


def _check_json(value: object, path: str) -> None:
    """Check that a value is the same after it was written as JSON and read.

    Tuples, and dicts with keys that are not strings, would be changed.

    Args:
        value: the value.
        path: the path of the value, for the error.

    Raises:
        InvalidRequestError: the value, or one in it, is not JSON; the error has its path.
    """
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise InvalidRequestError(
                    "must have strings as keys to be saved", path, type(key).__name__
                )
            _check_json(item, f"{path}.{shorten(key)}")
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_json(item, f"{path}[{index}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequestError(
            "must be JSON to be saved", path, repr(value), remedy="store None or a finite number"
        )
    elif not isinstance(value, str | int | float | None):
        remedy = "store it as a string, a number, a list or a dict"
        raise InvalidRequestError("must be JSON to be saved", path, type(value).__name__, remedy)


def read(
    path: str | PathLike[str],
    *,
    check: bool = True,
) -> SavedIndex:
    """Return the index in a file that `write` wrote; its arrays are memory-mapped.

    Args:
        path: the file.
        check: whether to read the complete file and compare its checksum.

    Raises:
        InvalidRequestError: `path` is not a path, or `check` is not a boolean.
        IndexFormatError: the file is damaged, of another kind or format version, or its offsets are
            invalid.
        OSError: the file cannot be read.
    """
    check_flag("check", check)
    file = Path(check_path("path", path, takes_addresses=_TAKES_ADDRESSES))
    if file.is_dir():
        raise IndexFormatError(
            f"{path} is a folder, but ChunkIndex.save writes a file; ClusterIndex.load opens what ClusterIndex.save "
            "wrote, and FolderIndex searches files"
        )
    with file.open("rb") as opened:
        content = array_file.map_file(opened)
    return from_content(content, path, check=check)


def from_content(
    content: Bytes,
    name: object,
    *,
    check: bool,
) -> SavedIndex:
    """Return the index whose file has this content; its arrays are views of `content`.

    Args:
        content: the content of the file.
        name: name of the file for errors.
        check: whether to read the whole content and compare its checksum.

    Raises:
        IndexFormatError: it is damaged, or of another kind or format version.
    """
    array_file.check(content, name, verify_checksum=check)
    try:
        return _parse(content)
    except (
        ArithmeticError,
        AttributeError,
        LookupError,
        RecursionError,
        TypeError,
        ValueError,
    ) as error:
        raise IndexFormatError(f"{name} is not an index that this library wrote: {error}") from None


def _parse(content: Bytes) -> SavedIndex:
    stored = array_file.read(content, array_layout.TYPES)
    has_passages = stored.settings["encoder"] is not None
    n_positions = stored.settings["n_positions"]
    if not _fit_together(stored.arrays, n_positions, has_passages=has_passages):
        raise ValueError("its arrays do not fit together")
    passages = _passages(stored.arrays) if has_passages else None
    segment = _segment(stored.arrays, chunks_in(stored.arrays), passages)
    return SavedIndex(segment, **stored.settings)


def chunks_in(arrays: Mapping[str, Array]) -> Chunks:
    """Return the chunks whose texts, metadata and titles are in arrays of a file.

    Each value is decoded when it is read: decoding all values would take most of the time of
    opening a file.
    """
    return Chunks(
        _StoredTexts(arrays["text"], arrays["text_end"]),
        _StoredValues(_metadata_at, arrays["metadata"], arrays["metadata_end"]),
        _StoredValues(_text_at, arrays["titles"], arrays["title_end"]),
    )


class _StoredTexts(LazyTexts):
    """Texts in an array of bytes, with an array of the offset where each ends.

    Pickling stores these two arrays instead of the texts.
    """

    def __init__(self, content: Bytes, end: Offsets) -> None:
        super().__init__(end.size, partial(_text_at, content.data, _integers(end)))
        self._arrays = content, end

    def __reduce__(self) -> tuple[Any, ...]:
        return _StoredTexts, self._arrays


class _StoredValues(Mapping[int, Any]):
    """Values of chunks by ordinal, which `decode` reads from an array of bytes when they are read.

    A chunk has a value if it has any bytes in the array. The first `_MAX_CACHED_VALUES` values that
    are read are cached. Pickling stores the arrays instead of the values.

    Args:
        decode: returns a value; its arguments are the bytes, the ends, and the chunk's ordinal.
        content: the bytes of the values of all chunks.
        end: offset in `content` at which the bytes of each chunk end.
    """

    def __init__(
        self,
        decode: Callable[[memoryview, memoryview, int], Any],
        content: Bytes,
        end: Offsets,
    ) -> None:
        self._args = decode, content, end
        self._decode = partial(decode, content.data, _integers(end))
        self._has_bytes = np.diff(end, prepend=0) > 0
        self._size = int(np.count_nonzero(self._has_bytes))
        self._cache: dict[int, Any] = {}

    def __contains__(self, chunk_ord: object) -> bool:
        if not isinstance(chunk_ord, int) or not 0 <= chunk_ord < self._has_bytes.size:
            return False
        return bool(self._has_bytes[chunk_ord])

    def __getitem__(self, chunk_ord: int) -> Any:
        if chunk_ord in self._cache:
            return self._cache[chunk_ord]
        if chunk_ord not in self:
            raise KeyError(chunk_ord)
        value = self._decode(chunk_ord)
        if len(self._cache) < _MAX_CACHED_VALUES:
            self._cache[chunk_ord] = value
        return value

    def __iter__(self) -> Iterator[int]:
        return iter(self._has_bytes.nonzero()[0].tolist())

    def __len__(self) -> int:
        return self._size

    def __reduce__(self) -> tuple[Any, ...]:
        return _StoredValues, self._args


def _integers(array: Offsets) -> memoryview:
    """Return a view of an int64 array whose elements are read as Python integers.

    Single elements of it are faster to read than those of a numpy array.
    """
    return array.view(np.uint8).data.cast("q")


def _text_at(
    content: memoryview,
    end: memoryview,
    chunk_ord: int,
) -> str:
    try:
        return str(_bytes_at(content, end, chunk_ord), "utf-8", "surrogatepass")
    except UnicodeDecodeError:
        raise IndexFormatError(
            f"chunk {chunk_ord} of the saved index is not UTF-8; build it again"
        ) from None


def _metadata_at(
    content: memoryview,
    end: memoryview,
    chunk_ord: int,
) -> Metadata:
    try:
        metadata = json.loads(bytes(_bytes_at(content, end, chunk_ord)))
    except (RecursionError, ValueError):
        metadata = None
    if not isinstance(metadata, dict):
        raise IndexFormatError(
            f"the metadata of chunk {chunk_ord} of the saved index is not a JSON object; build it again"
        )
    return metadata


def _bytes_at(
    content: memoryview,
    end: memoryview,
    chunk_ord: int,
) -> memoryview:
    start = end[chunk_ord - 1] if chunk_ord else 0
    return content[start : end[chunk_ord]]


def _segment(
    arrays: Mapping[str, Array],
    chunks: Chunks,
    passages: Passages | None,
) -> Segment:
    lexicon = Lexicon(**array_layout.attributes(arrays, "postings.lexicon"))
    postings = Postings(lexicon, **array_layout.attributes(arrays, "postings"))
    attributes = array_layout.attributes(arrays, "")
    return Segment(chunks=chunks, postings=postings, passages=passages, **attributes)


def _passages(arrays: Mapping[str, Array]) -> Passages:
    passages = Passages(**array_layout.attributes(arrays, "passages"))
    n_passages = passages.starts.size
    n_components = passages.vectors.size // max(n_passages, 1)
    return evolve(passages, vectors=passages.vectors.reshape(n_passages, n_components))


def _fit_together(
    arrays: Mapping[str, Array],
    n_positions: int,
    *,
    has_passages: bool,
) -> bool:
    """Return whether the arrays of a file are consistent with each other, as search assumes.

    Every offset and ordinal must refer to an existing element.

    Args:
        arrays: all arrays of the file, by name.
        n_positions: number of positions assigned so far; all positions must be lower.
        has_passages: whether to check the arrays of passages, too.
    """
    if not array_layout.are_valid(arrays, has_passages=has_passages):
        return False
    positions = arrays["positions"]
    if positions.size and not 0 <= positions[0] <= positions[-1] < n_positions:
        return False
    if has_passages and not _are_valid_passages(arrays):
        return False
    return _are_valid_spellings(arrays) and _are_valid_occurrences(arrays)


def _are_valid_spellings(arrays: Mapping[str, Array]) -> bool:
    """Return whether the spellings of terms and the texts of chunks are divided at valid bytes.

    The last byte of each spelling must be a line end, and the first byte of each chunk's text must
    not continue a character.
    """
    last_bytes = arrays["spelling"][arrays["spelling_first"][1:] - 1]
    first_bytes = arrays["text"][arrays["text_end"][:-1]]
    starts_within_character = first_bytes & 0xC0 == 0x80
    return bool((last_bytes == _LINE_END).all()) and not bool(starts_within_character.any())


def _are_valid_occurrences(arrays: Mapping[str, Array]) -> bool:
    n_occurrences = arrays["tokens"].size
    first = arrays["first_token"]
    counts = arrays["n_tokens"]
    is_inside = (counts >= 0) & (first >= 0) & (first <= n_occurrences - counts)
    has_title = arrays["title_sizes"] <= counts
    return bool(is_inside.all() and counts.sum() == n_occurrences and has_title.all())


def _are_valid_passages(arrays: Mapping[str, Array]) -> bool:
    starts = arrays["passage_starts"]
    vectors = arrays["vectors"]
    is_ordered = (starts >= 0) & (starts < arrays["passage_ends"])
    has_equal_sizes = vectors.size % max(starts.size, 1) == 0
    return bool(is_ordered.all() and has_equal_sizes and np.isfinite(vectors).all())
