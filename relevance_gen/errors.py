"""One tree of errors. Everything this library raises on purpose descends from `RelevanceGenError`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Self

_SHOWN_CHARS = 80
"""How much of an offending value or name an error repeats: enough to recognise it, too little to leak or flood."""
_LIKENESS = 0.65
"""How like a name must be to be suggested: ``meta`` for ``metadata``."""
_FURTHER_FIELD = re.compile(r"(?<=beside )\w+|\b[a-z]+=(?:\"[a-z]+\")?|[a-z]+(?:_[a-z]+)+")
"""How rules and remedies name further fields, and those that are Python's arguments."""
_OF_EXTRA = re.compile(r"""([^;]+?) *;.*\bextra *== *["'](\w+)["']""")
"""A requirement in a package's metadata, and the extra that has it."""
_IN_JSON = {"None": "null", "True": "true", "False": "false"}


def describe(value: object) -> str:
    """Return a short, single-line, bounded description of `value` for an error message."""
    match value:
        case None | bool() | float():
            return repr(value)
        case int():
            # repr of an int beyond sys.get_int_max_str_digits() raises; its size says enough.
            return (
                repr(value)
                if value.bit_length() <= 256
                else f"an integer of {value.bit_length()} bits"
            )
        case str():
            kept = ascii(value[:_SHOWN_CHARS])
            return kept if len(value) <= _SHOWN_CHARS else f"{kept}… ({len(value)} characters)"
        case dict():
            return f"an object of {pluralize(len(value), 'field')}"
        case list() | tuple():
            return f"a list of {pluralize(len(value), 'item')}"
        case _:
            return type(value).__name__


def shorten(name: object) -> str:
    """Return a name that a caller made up, as part of the path of a field: bounded, as values are."""
    text = name if isinstance(name, str) else describe(name)
    return text if len(text) <= _SHOWN_CHARS else text[:_SHOWN_CHARS] + "…"


def pluralize(number: int, noun: str) -> str:
    """Return a number of things in words.

    >>> pluralize(1, "chunk"), pluralize(2000, "chunk")
    ('1 chunk', '2,000 chunks')
    """
    return f"{number:,} {noun}{'s' * (number != 1)}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the one of some known names that `word` was most likely meant to be; None if all are too different.

    >>> nearest("max_token", ["min_tokens", "max_tokens"]), nearest("wings", ["min_tokens", "max_tokens"])
    ('max_tokens', None)
    """
    return next(
        iter(difflib.get_close_matches(word[:_SHOWN_CHARS], list(known), n=1, cutoff=_LIKENESS)),
        None,
    )


def did_you_mean(word: str, known: Iterable[str], otherwise: str) -> str:
    """Return a remedy that suggests the nearest of some known names, or `otherwise` if none is near."""
    name = nearest(word, known)
    return otherwise if name is None else f"did you mean {name}?"


def to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra, and nothing that is compiled for another."""
    from importlib.metadata import (
        PackageNotFoundError,
        requires,
    )  # takes long to import, for few errors

    try:
        named = [
            found.groups()
            for found in map(_OF_EXTRA.match, requires("relevance_gen") or ())
            if found
        ]
    except PackageNotFoundError:  # the folder was copied, and nothing says what it needs
        named = []
    packages = [package for package, of in named if of == extra] or [f"relevance_gen[{extra}]"]
    return "pip install " + " ".join(f"'{package}'" for package in packages)


class RelevanceGenError(Exception):
    """Base of every error this library raises on purpose."""


class InvalidRequestError(RelevanceGenError, ValueError):
    """Refuse an input before any work is done.

    Its sentence is "<field> <rule>[, got <got>][; <remedy>]", as in "top_n must be an integer of at least 1, got 0".

    Args:
        rule: what the field must be, or what is wrong with it; a sentence of its own where there is no field.
        field: path of the offending field, e.g. ``"chunk_txts[3].text"``; ``None`` if the input as a whole is wrong.
        got: what came, in few words; ``None`` where that is not worth saying.
        remedy: what to do about it.
    """

    def __init__(
        self, rule: str, field: str | None = None, got: str | None = None, remedy: str | None = None
    ) -> None:
        super().__init__(rule, field, got, remedy)
        self.rule, self.field, self.got, self.remedy = rule, field, got, remedy

    @classmethod
    def must_be(cls, field: str, allowed: str, got: object, *, remedy: str | None = None) -> Self:
        """Make the error for a field whose value, `got`, is not `allowed`."""
        return cls(f"must be {allowed}", field, describe(got), remedy)

    def at(self, field: str | None) -> Self:
        """Return the same error of a field that its caller knows by another name or path."""
        return type(self)(self.rule, field, self.got, self.remedy)

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return the same error for a caller who knows fields by other `names`, also those it is compared with."""

        def spoken(text: str) -> str:
            return _FURTHER_FIELD.sub(lambda found: names.get(found[0], found[0]), text)

        name, bracket, place = (self.field or "").partition("[")
        field = names.get(name, name) + bracket + place
        return type(self)(
            spoken(self.rule), field or None, self.got, self.remedy and spoken(self.remedy)
        )

    def in_json(self) -> str:
        """Return the sentence for a client, who sent null where Python has None."""
        got = self.got and _IN_JSON.get(self.got, self.got)
        return str(type(self)(self.rule, self.field, got, self.remedy))

    def __str__(self) -> str:
        path = (
            self.field
            if self.field is None or self.field.isprintable()
            else ascii(self.field)[1:-1]
        )
        field = "" if path is None else f"{path} "
        got = "" if self.got is None else f", got {self.got}"
        remedy = "" if self.remedy is None else f"; {self.remedy}"
        return f"{field}{self.rule}{got}{remedy}"


class TooLargeError(InvalidRequestError):
    """Refuse an input that is larger than the operator allows; sending it again later does not help."""


class IndexFormatError(RelevanceGenError, OSError):
    """Refuse a saved index that is damaged, foreign, or of a format this version does not read."""


class OverloadedError(RelevanceGenError):
    """Refuse work because a bounded queue is full; trying again in `retry_after_s` seconds, 1 or more, may succeed."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BusyError(OverloadedError):
    """Refuse work for which no thread became free in time, or for which there is no memory now."""


class TimedOutError(RelevanceGenError, TimeoutError):
    """Report that work was begun and did not end within its time."""

    retry_after_s = 1
    """Seconds after which a retry is sensible."""


class ShuttingDownError(RelevanceGenError, RuntimeError):
    """Refuse or cut work because the server is shutting down."""

    retry_after_s = 1
    """Seconds after which a retry is sensible: another server, or the next, may answer then."""

    def __init__(self, message: str = "the server is shutting down") -> None:
        super().__init__(message)


class RequestCancelledError(RelevanceGenError):
    """Report that the caller cancelled this request before it finished."""


class ModelLoadError(RelevanceGenError, OSError):
    """Report that a model could not be loaded: missing, damaged, unsupported, or too large for memory."""


class GenerationError(RelevanceGenError, RuntimeError):
    """Report that the model failed while it was generating; the worker that held it is dead."""


class EncoderError(RelevanceGenError, RuntimeError):
    """Report that an encoder failed, or was closed before it had encoded a text."""


class RerankerError(RelevanceGenError, RuntimeError):
    """Report that a reranker failed, or was closed before it had read a text."""


class RunnerClosedError(RelevanceGenError, RuntimeError):
    """Report that a runner was closed, or has died, and takes no more requests."""


class IndexBuildError(RelevanceGenError, RuntimeError):
    """Report that a process died that was building a part of an index."""


class ClusterError(RelevanceGenError, RuntimeError):
    """Report that a cluster cannot be reached, or that something in it is not as it must be."""


class IndexConflictError(ClusterError):
    """Refuse to save an index where another writer has saved since; what that one saved stays."""


class UnknownIndexError(ClusterError, LookupError):
    """Report that no index of the cluster has a name, which the caller calls `field`; ``None`` if that is plain."""

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class IndexUnavailableError(RelevanceGenError, RuntimeError):
    """Report that an index that is offered by name cannot be searched now: it is damaged, gone, or still being read."""

    field = "index"


class ChunksMissingError(ClusterError):
    """Refuse to answer from a part of the chunks only, while machines are gone that held `n_missing_chunks` others."""

    retry_after_s = 1
    """Seconds after which a retry is sensible: what is lost is being restored."""

    def __init__(self, message: str, n_missing_chunks: int = 0) -> None:
        super().__init__(message)
        self.n_missing_chunks = n_missing_chunks

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.n_missing_chunks)
