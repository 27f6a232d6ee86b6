"""Say what a chunk is and check chunks, for the library, the command line and the server alike."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Final, Literal, TypeAlias, TypeVar, get_args, overload

import numpy as np
import numpy.typing as npt
from attrs import evolve, field, frozen

from relevance_gen import checks
from relevance_gen.errors import InvalidRequestError, did_you_mean, shorten, to_install
from relevance_gen.types import Chunk, Metadata

T = TypeVar("T")

Blank: TypeAlias = Literal["error", "skip"]
"""What to do with a chunk of only white space, and with None or NaN, which columns of data frames have for a missing
text: refuse it, or leave it out, so that no other's position changes."""

_MOST_KEPT: Final = 1 << 17
"""Most values that are kept once they are made, so that conditions are quick and memory is bounded."""
_MOST_LISTED: Final = 20
_ROWS: Final = 256
"""Rows of a table that are made into Python's objects together."""
_PANDAS_INDEX: Final = "__index_level_"
_PLAIN_FIELDS: Final = {"text", "metadata", "title"}


@frozen
class Chunks:
    """Chunks that were checked. Whatever takes chunks takes these without checking them again."""

    texts: Sequence[str]  # the text of each; "" for a blank one that is to be left out
    metadata: Mapping[
        int, Metadata
    ]  # the caller's metadata by position, for the chunks that came with any
    titles: Mapping[int, str] = field(
        factory=dict
    )  # by position, of the chunks that have one that is not blank

    @classmethod
    def read(
        cls,
        values: Iterable[object],
        *,
        path: str = "chunks",
        kinds: str = "a string, a mapping or a Chunk",
        blank: Blank | None = None,
        text: str | None = None,
    ) -> Chunks:
        """Check strings, mappings and `Chunk` objects, mixed; `Chunks` come back as they are.

        Strings and plain mappings, the usual case, are checked in one loop without a `Chunk` being made. Errors call
        the chunks `path`, and what is allowed `kinds`. Blank chunks are refused if `blank` is None, for callers other
        than Python's, without a hint of what to write instead. `text` is the field that has the text of a mapping, or
        the column of a table, as for `record_chunk`; None for mappings as the library documents them, and ``text``.

        Raises:
            InvalidRequestError: `values` is no list, or one of them is blank or of another kind; the error names the
                first such by its path, as in ``chunks[3].text``.
        """
        if isinstance(values, Chunks):
            return values
        if blank not in (None, *get_args(Blank)):
            raise InvalidRequestError.must_be("blank", '"error" or "skip"', blank)
        if not isinstance(text, str | None):
            raise InvalidRequestError.must_be("text", "the name of a field, or None", text)
        values = _listed(values, path, text)
        texts: list[str] = []
        metadata: dict[int, Metadata] = {}
        titles: dict[int, str] = {}
        said: Any
        data: Metadata | None
        title: Any
        for position, value in enumerate(values):
            if type(value) is str:
                said, data, title = value, None, ""
            elif (
                type(value) is dict
                and value.keys() <= _PLAIN_FIELDS
                and type(value.get("metadata", {})) is dict
            ):
                said, data, title = value.get("text"), value.get("metadata"), value.get("title", "")
            else:
                said, data, title = None, None, ""
            if type(said) is not str or not said or said.isspace() or type(title) is not str:
                said, data, title = _read_one(value, f"{path}[{position}]", kinds, blank)
            texts.append(said)
            if data:
                metadata[position] = data
            if title and said and not title.isspace():
                titles[position] = title
        return cls(texts, metadata, titles)

    def __iter__(self) -> Iterator[Chunk]:
        return (
            Chunk(text, self.metadata_of(n), title=self.title_of(n))
            for n, text in enumerate(self.texts)
        )

    @property
    def indexed_texts(self) -> Sequence[str]:
        """What each chunk says: its text, under its title where it has one."""
        return LazyTexts(len(self.texts), self._indexed_text) if self.titles else self.texts

    def _indexed_text(self, number: int) -> str:
        title, text = self.titles.get(number), self.texts[number]
        return text if title is None else f"{title}\n{text}"

    def title_of(self, number: int) -> str:
        """Return the title of a chunk, "" where it has none."""
        return self.titles.get(number, "")

    def metadata_of(self, number: int) -> Metadata:
        """Return the metadata of a chunk, ``{}`` where it came without."""
        return self.metadata.get(number, {})

    def without_blank(self) -> tuple[Chunks, npt.NDArray[np.int64]]:
        """Return the chunks that have a text, n of them, and the number that each had among all, shape (n,)."""
        if all(self.texts):
            return self, np.arange(len(self.texts))
        numbers = [number for number, text in enumerate(self.texts) if text]
        return self.take(numbers), np.array(numbers, np.int64)

    def take(self, numbers: Sequence[int]) -> Chunks:
        """Return some of the chunks, in the order of `numbers`."""
        texts = [self.texts[number] for number in numbers]
        return Chunks(texts, _taken(self.metadata, numbers), _taken(self.titles, numbers))

    def without_metadata(self) -> Chunks:
        """Return the chunks with nothing but what is searched."""
        return evolve(self, metadata={})

    @classmethod
    def concat(cls, parts: Iterable[Chunks]) -> Chunks:
        """Return the chunks of several, one behind the other."""
        texts: list[str] = []
        metadata: dict[int, Metadata] = {}
        titles: dict[int, str] = {}
        for part in parts:
            metadata |= {len(texts) + number: one for number, one in part.metadata.items()}
            titles |= {len(texts) + number: one for number, one in part.titles.items()}
            texts += part.texts
        return cls(texts, metadata, titles)


class LazyTexts(Sequence[str]):
    """Texts, so many, that are made when they are asked for: `make` returns that of a number, as a list does.

    They are pickled as a list.
    """

    def __init__(self, size: int, make: Callable[[int], str]) -> None:
        self._size = size
        self._make = make

    def __len__(self) -> int:
        return self._size

    @overload
    def __getitem__(self, number: int) -> str: ...
    @overload
    def __getitem__(self, number: slice) -> list[str]: ...
    def __getitem__(self, number: int | slice) -> str | list[str]:
        if isinstance(number, slice):
            return [self._make(one) for one in range(self._size)[number]]
        return self._make(number)

    def __iter__(self) -> Iterator[str]:
        return map(self._make, range(self._size))

    def __reduce__(self) -> tuple[Any, ...]:
        return list, ([*self],)


class LazyValues(Mapping[int, T]):
    """What those chunks have that `has` names, by number: made when it is asked for, and the first ones are kept."""

    def __init__(self, has: npt.NDArray[np.bool_], make: Callable[[int], T]) -> None:
        self._has = has
        self._size = int(np.count_nonzero(has))
        self._make = make
        self._made: dict[int, T] = {}

    def __contains__(self, number: object) -> bool:
        return isinstance(number, int) and 0 <= number < self._has.size and bool(self._has[number])

    def __getitem__(self, number: int) -> T:
        if number in self._made:
            return self._made[number]
        if number not in self:
            raise KeyError(number)
        value = self._make(number)
        if len(self._made) < _MOST_KEPT:
            self._made[number] = value
        return value

    def __iter__(self) -> Iterator[int]:
        return iter(self._has.nonzero()[0].tolist())

    def __len__(self) -> int:
        return self._size


def _taken(values: Mapping[int, T], numbers: Sequence[int]) -> dict[int, T]:
    """Return what some of the chunks have, by their new numbers."""
    return {new: values[old] for new, old in enumerate(numbers) if old in values} if values else {}


def record_chunk(record: Any, text: str, place: str, *, title: str = "title") -> Any:
    """Return a record as a mapping that is a chunk: what is not in the fields of its text and title is metadata.

    Fields of what its field ``metadata`` holds are metadata, too, and None is as good as no field. What is no mapping
    comes back as it is.

    Raises:
        InvalidRequestError: it has no field for its text; the error says at which place it stands.
    """
    if not isinstance(record, Mapping):
        return record
    if text not in record:
        raise missing_field_error(record, text, "text", place)
    return {
        "text": record[text],
        "title": "" if (heading := record.get(title)) is None else heading,
        "metadata": metadata_of(record, text, title),
    }


def missing_field_error(
    record: Mapping[Any, Any], name: str, argument: str, place: str
) -> InvalidRequestError:
    """Make the error for a field that an argument names, and that a record has not."""
    fields = [str(one) for one in record]
    remedy = did_you_mean(
        name, fields, f"its fields are {', '.join(map(shorten, fields[:_MOST_LISTED]))}"
    )
    return InvalidRequestError(
        f"must have the field {name!a}, which {argument}= names", place, remedy=remedy
    )


def metadata_of(record: Mapping[Any, Any], *others: str) -> Metadata:
    """Return the metadata of a record: all its fields but `others`, and in place of ``metadata`` what that holds."""
    further = {name: one for name, one in record.items() if name not in others and one is not None}
    if isinstance(own := further.get("metadata"), Mapping):
        further = {name: one for name, one in further.items() if name != "metadata"} | dict(own)
    return further


def read_records(records: Sequence[tuple[str, Any]], text: str, title: str, blank: Blank) -> Chunks:
    """Check records, each of which comes with the words for where it stands, as `record_chunk` makes chunks of them.

    Raises:
        InvalidRequestError: one is no chunk; the error says where it stands, and calls its fields as the records do.
    """
    values = [record_chunk(record, text, place, title=title) for place, record in records]
    try:
        return Chunks.read(values, blank=blank)
    except InvalidRequestError as error:
        number, _, name = str(error.field).removeprefix("chunks[").partition("]")
        place, name = records[int(number)][0], name.removeprefix(".")
        raise error.at(
            f"{place}: { {'text': text, 'title': title}.get(name, name) }" if name else place
        ) from None


def is_table(values: Any) -> bool:
    """Tell whether something is a table in Arrow's sense, as data frames are, and not one of its columns."""
    return hasattr(values, "__arrow_c_stream__") and (
        hasattr(values, "columns") or hasattr(values, "schema")
    )


def rows_of(table: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table.

    Raises:
        InvalidRequestError: pyarrow is not installed, or a row has what Python cannot hold.
    """
    try:
        import pyarrow
    except ImportError:
        raise InvalidRequestError(f"tables need pyarrow: {to_install('data')}") from None
    number = 0
    try:
        for batch in pyarrow.RecordBatchReader.from_stream(table):
            for start in range(0, batch.num_rows, _ROWS):
                for row in batch.slice(start, _ROWS).to_pylist():
                    yield {
                        name: one for name, one in row.items() if not name.startswith(_PANDAS_INDEX)
                    }
                    number += 1
    except (pyarrow.ArrowException, OverflowError, ValueError) as error:
        rule = f"a table must be readable, and row {number} or one soon after is not: {error}"
        raise InvalidRequestError(rule) from None


def _listed(values: Any, path: str, text: str | None) -> Iterable[Any]:
    """Return chunks as something to iterate over, or raise the error that says what to pass instead."""
    if is_table(values):
        values, text = rows_of(values), text or "text"
    values = checks.as_list(values)
    remedy = None
    if isinstance(values, str | bytes | Mapping):
        remedy = "put a single text in a list"
    elif isinstance(values, PathLike):
        remedy = "read the file, and cut its text with split()"
    elif isinstance(values, Iterable):
        return (
            values
            if text is None
            else (record_chunk(one, text, f"{path}[{n}]") for n, one in enumerate(values))
        )
    raise InvalidRequestError.must_be(
        path, "a list of strings, mappings or Chunk objects", values, remedy=remedy
    )


def _is_missing(value: Any) -> bool:
    """Tell whether a value stands for a missing text: None, NaN, or pandas' NA and NaT."""
    is_nan = isinstance(value, float) and math.isnan(value)
    return value is None or is_nan or type(value).__name__ in {"NAType", "NaTType"}


def _read_one(value: Any, path: str, kinds: str, blank: Blank | None) -> tuple[str, Metadata, str]:
    """Return text, metadata and title of a chunk that is not plain, or raise the error that says what is wrong."""
    if isinstance(value, Chunk):
        return value.text, value.metadata, value.title
    from relevance_gen import wire  # imports cattrs, which takes 15 ms and is needed for few chunks

    if not isinstance(value, str | Mapping):
        is_missing = _is_missing(value)
        if is_missing and blank == "skip":
            return "", {}, ""
        remedy = (
            'leave it out, or pass blank="skip"'
            if is_missing
            else "decode it, as in value.decode()"
        )
        told = blank and (is_missing or isinstance(value, bytes))
        raise InvalidRequestError.must_be(path, kinds, value, remedy=remedy if told else None)
    fields = {"text": value} if isinstance(value, str) else dict(value)
    if blank == "skip" and "text" in fields and _is_missing(fields["text"]):
        fields["text"] = ""
    if blank and isinstance(fields.get("text"), str) and checks.is_blank(fields["text"]):
        if blank == "error":
            remedy = 'leave it out, or pass blank="skip"'
            allowed = "a string that is not blank"
            raise InvalidRequestError.must_be(
                f"{path}.text", allowed, fields["text"], remedy=remedy
            )
        wire.structure(
            Chunk, {**fields, "text": "-"}, path=path
        )  # raises if anything else is wrong
        return "", {}, ""
    chunk = wire.structure(Chunk, fields, path=path)
    return chunk.text, chunk.metadata, chunk.title
