"""The errors of the library. All of them derive from `RelevanceGenError`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Self

_MAX_SHOWN_CHARS = 80
"""Maximum length of a value or name in a message: enough to recognize it, without leaking it."""
_MIN_SIMILARITY = 0.65
"""Minimum similarity ratio of a suggested name: ``meta`` suggests ``metadata``.

A lower value would suggest ``prompt`` for ``prompt_lookup``.
"""
_FIELD_NAME = re.compile(r"(?<=combined with )\w+|\b[a-z]+=(?:\"[a-z]+\")?|[a-z]+(?:_[a-z]+)+")
"""Matches the names of other fields, and of Python arguments, in rules and remedies."""
_EXTRA_REQUIREMENT = re.compile(r"""([^;]+?) *;.*\bextra *== *["'](\w+)["']""")
"""Matches an optional requirement in a package's metadata; captures requirement and extra."""
_JSON_WORDS = {"None": "null", "True": "true", "False": "false"}
_PYTHON_WORD = re.compile(r"\b(?:None|True|False)\b")
_MAX_SHOWN_INTEGER_BITS = 256


def describe(value: object) -> str:
    """Return a short description of `value` on one line, for an error message."""
    match value:
        case None | bool() | float():
            return repr(value)
        case int():
            # repr raises for an integer beyond sys.get_int_max_str_digits().
            if value.bit_length() > _MAX_SHOWN_INTEGER_BITS:
                return f"an integer of {value.bit_length()} bits"
            return repr(value)
        case str():
            shown = ascii(value[:_MAX_SHOWN_CHARS])
            if len(value) > _MAX_SHOWN_CHARS:
                return f"{shown}… ({len(value)} characters)"
            return shown
        case dict():
            return f"an object of {pluralize(len(value), 'field')}"
        case list() | tuple():
            return f"a list of {pluralize(len(value), 'item')}"
        case _:
            return type(value).__name__


def shorten(name: object) -> str:
    """Return a name from a request, cut to `_MAX_SHOWN_CHARS` characters and "…" if it is longer.

    The result is part of the path of a field in an error message. A value that is not a string is
    replaced by its description, see `describe`.
    """
    text = name if isinstance(name, str) else describe(name)
    return text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…"


def pluralize(n: int, noun: str) -> str:
    """Return a number with its noun.

    >>> pluralize(1, "chunk"), pluralize(2000, "chunk")
    ('1 chunk', '2,000 chunks')
    """
    plural = "" if n == 1 else "s"
    return f"{n:,} {noun}{plural}"


def nearest(word: str, names: Iterable[str]) -> str | None:
    """Return the name that is most similar to `word`, or None if all of them are too different.

    >>> nearest("max_token", ["min_tokens", "max_tokens"])
    'max_tokens'
    >>> nearest("wings", ["min_tokens", "max_tokens"])
    """
    similar = difflib.get_close_matches(
        word[:_MAX_SHOWN_CHARS], list(names), n=1, cutoff=_MIN_SIMILARITY
    )
    return similar[0] if similar else None


def did_you_mean(word: str, names: Iterable[str], otherwise: str) -> str:
    """Return a remedy that suggests the name nearest to `word`, or `otherwise` if none is near.

    A remedy is a text for the `remedy` of an `InvalidRequestError`.
    """
    name = nearest(word, names)
    return otherwise if name is None else f"did you mean {name}?"


def to_install(extra: str) -> str:
    """Return the command that installs the packages of an extra, and of that extra only."""
    # Importing this module takes long, and few errors need it.
    from importlib.metadata import PackageNotFoundError, requires

    try:
        requirements = requires("relevance_gen") or ()
    except PackageNotFoundError:  # the library was copied instead of installed: no metadata
        requirements = ()
    packages = []
    for requirement in requirements:
        match = _EXTRA_REQUIREMENT.match(requirement)
        if match is not None and match[2] == extra:
            packages.append(match[1])
    packages = packages or [f"relevance_gen[{extra}]"]
    return "pip install " + " ".join(f"'{package}'" for package in packages)


class RelevanceGenError(Exception):
    """Base class of the library's errors."""


class InvalidRequestError(RelevanceGenError, ValueError):
    """An input is refused before any work is done.

    Its message is "<field> <rule>[, got <got>][; <remedy>]", as in
    "top_n must be an integer of at least 1, got 0".

    Args:
        rule: the broken rule or the defect, such as "must not be empty" or "is damaged"; a complete
            sentence if `field` is None.
        field: path of the offending field, e.g. ``"chunk_txts[3].text"``; ``None`` if the whole
            input is wrong.
        got: short description of the value; ``None`` if the message does not need it.
        remedy: advice for the caller; None for no advice.
    """

    def __init__(
        self,
        rule: str,
        field: str | None = None,
        got: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(rule, field, got, remedy)
        self.rule = rule
        self.field = field
        self.got = got
        self.remedy = remedy

    @classmethod
    def must_be(
        cls,
        field: str,
        allowed: str,
        got: object,
        *,
        remedy: str | None = None,
    ) -> Self:
        """Return the error "<field> must be <allowed>, got <got>[; <remedy>]".

        Args:
            field: path of the field.
            allowed: a phrase that describes the allowed values, such as "a string or None".
            got: the value of the field, which the message describes in short.
            remedy: advice for the caller; None for no advice.
        """
        return cls(f"must be {allowed}", field, describe(got), remedy)

    def with_field(self, field: str | None) -> Self:
        """Return the same error with another name or path of the field."""
        return type(self)(self.rule, field, self.got, self.remedy)

    def with_field_names(self, names: Mapping[str, str]) -> Self:
        """Return the same error with the caller's names of fields, also in the rule and remedy.

        Args:
            names: maps the library's name of each field to the caller's name of it.
        """

        def rename(text: str) -> str:
            return _FIELD_NAME.sub(lambda match: names.get(match[0], match[0]), text)

        name, bracket, index = (self.field or "").partition("[")
        field = names.get(name, name) + bracket + index
        remedy = None if self.remedy is None else rename(self.remedy)
        return type(self)(rename(self.rule), field or None, self.got, remedy)

    def to_json_message(self) -> str:
        """Return the message for an HTTP client, with JSON words: ``null`` for ``None``."""

        def to_json(text: str) -> str:
            return _PYTHON_WORD.sub(lambda match: _JSON_WORDS[match[0]], text)

        got = None if self.got is None else _JSON_WORDS.get(self.got, self.got)
        remedy = None if self.remedy is None else to_json(self.remedy)
        return str(type(self)(to_json(self.rule), self.field, got, remedy))

    def __str__(self) -> str:
        field = ""
        if self.field is not None:
            is_printable = self.field.isprintable()
            path = self.field if is_printable else ascii(self.field)[1:-1]
            field = f"{path} "
        got = "" if self.got is None else f", got {self.got}"
        remedy = "" if self.remedy is None else f"; {self.remedy}"
        return f"{field}{self.rule}{got}{remedy}"


class ContextLengthError(InvalidRequestError):
    """A prompt does not fit into the context of the model."""


class TooLargeError(InvalidRequestError):
    """An input exceeds a limit of the library or the server; sending it again later fails too."""


class IndexFormatError(RelevanceGenError, OSError):
    """A saved index is damaged, not an index, or of a format that this version does not read."""


class OverloadedError(RelevanceGenError):
    """A bounded queue is full; a retry in `retry_after_s` seconds, 1 or more, may succeed."""

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BusyError(OverloadedError):
    """A thread, a process, memory or an index is not available now; a retry may succeed."""


class TimedOutError(RelevanceGenError, TimeoutError):
    """Work was started and did not end in time."""

    retry_after_s = 1
    """Seconds after which a retry is sensible."""


class ShuttingDownError(RelevanceGenError, RuntimeError):
    """Work is refused or aborted because the server is shutting down."""

    retry_after_s = 1
    """Seconds after which a retry is sensible: another server or a restarted one may answer."""

    def __init__(self, message: str = "the server is shutting down") -> None:
        super().__init__(message)


class RequestCancelledError(RelevanceGenError):
    """The caller cancelled the request before it finished."""


class ModelLoadError(RelevanceGenError, OSError):
    """A model could not be loaded: missing, damaged, unsupported, or too large for memory."""


class GenerationError(RelevanceGenError, RuntimeError):
    """The model failed during generation; its worker has stopped."""


class EncoderError(RelevanceGenError, RuntimeError):
    """An encoder failed, or was closed before it had encoded a text."""


class RerankerError(RelevanceGenError, RuntimeError):
    """A reranker failed, or was closed before it had scored a text."""


class RunnerClosedError(RelevanceGenError, RuntimeError):
    """A runner was closed or has failed, and accepts no requests."""


class IndexBuildError(RelevanceGenError, RuntimeError):
    """A process that was building a part of an index has died."""


class ClusterError(RelevanceGenError, RuntimeError):
    """A cluster cannot be reached, or is in an invalid state."""


class IndexConflictError(ClusterError):
    """An index was not saved because another writer has saved since; that version is retained."""


class UnknownIndexError(ClusterError, LookupError):
    """The cluster does not have an index with the requested name.

    Attributes:
        field: the caller's name of the field with the index's name; ``None`` without such a field.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class IndexUnavailableError(RelevanceGenError, RuntimeError):
    """A named index cannot be searched at present: damaged, deleted, or still being loaded."""

    field = "index"


class ChunksMissingError(ClusterError):
    """A search would miss chunks, because files of shards cannot be read.

    Attributes:
        n_missing_chunks: number of chunks in these files.
    """

    retry_after_s = 1
    """Seconds after which a retry is sensible."""

    def __init__(self, message: str, n_missing_chunks: int = 0) -> None:
        super().__init__(message)
        self.n_missing_chunks = n_missing_chunks

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.n_missing_chunks)
