"""One tree of errors. Everything this library raises on purpose descends from `RelevanceGenError`."""

from __future__ import annotations

from typing import Self

_SHOWN_CHARS = 80
"""How much of an offending value an error message repeats: enough to recognise it, too little to leak or flood."""


def shown(value: object) -> str:
    """Return a short, single-line, bounded description of `value` for an error message."""
    match value:
        case None | bool() | float():
            return repr(value)
        case int():
            # repr of an int beyond sys.get_int_max_str_digits() raises; its size says enough.
            return repr(value) if value.bit_length() <= 256 else f"an integer of {value.bit_length()} bits"
        case str():
            kept = ascii(value[:_SHOWN_CHARS])
            return kept if len(value) <= _SHOWN_CHARS else f"{kept}… ({len(value)} characters)"
        case dict():
            return f"an object of {_counted(len(value), 'field')}"
        case list() | tuple():
            return f"a list of {_counted(len(value), 'item')}"
        case _:
            return type(value).__name__


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


class RelevanceGenError(Exception):
    """Base of every error this library raises on purpose."""


class InvalidRequestError(RelevanceGenError, ValueError):
    """Refuse an input before any work is done.

    The message reads "<field> must be <allowed>, got <value>[; <remedy>]".

    Attributes:
        field: path of the offending field, e.g. ``"chunk_txts[3].text"``; ``None`` if the input as a whole is wrong.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_invalid_request, (type(self), str(self), self.field)

    @classmethod
    def must_be(cls, field: str, allowed: str, got: object, *, remedy: str | None = None) -> Self:
        """Build the error for a field whose value is not `allowed`."""
        message = f"{field} must be {allowed}, got {shown(got)}"
        return cls(message if remedy is None else f"{message}; {remedy}", field=field)


def _rebuild_invalid_request(kind: type[InvalidRequestError], message: str, field: str | None) -> InvalidRequestError:
    return kind(message, field=field)


class TooLargeError(InvalidRequestError):
    """Refuse an input that is larger than the operator allows; sending it again later does not help."""


class IndexFormatError(RelevanceGenError, OSError):
    """Refuse a saved index that is damaged, foreign, or of a format this version does not read."""


class OverloadedError(RelevanceGenError):
    """Refuse work because a bounded queue is full; trying again later may succeed.

    Attributes:
        retry_after_s: seconds after which a retry is sensible, at least 1.
    """

    def __init__(self, message: str, *, retry_after_s: int = 1) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class BusyError(OverloadedError):
    """Refuse work for which no thread became free in time, or for which there is no memory now."""


class TimedOutError(RelevanceGenError, TimeoutError):
    """Report that work was begun and did not end within its time.

    Attributes:
        retry_after_s: seconds after which a retry is sensible.
    """

    retry_after_s = 1


class ShuttingDownError(RelevanceGenError, RuntimeError):
    """Refuse or cut work because the server is shutting down.

    Attributes:
        retry_after_s: seconds after which a retry is sensible: another server, or the next, may answer then.
    """

    retry_after_s = 1

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


class RunnerClosedError(RelevanceGenError, RuntimeError):
    """Report that a runner was closed, or has died, and takes no more requests."""


class IndexBuildError(RelevanceGenError, RuntimeError):
    """Report that a process died that was building a part of an index."""


class ClusterError(RelevanceGenError, RuntimeError):
    """Report that a cluster cannot be reached, or that something in it is not as it must be."""


class UnknownIndexError(ClusterError, LookupError):
    """Report that no index of the cluster has a name.

    Attributes:
        field: what the caller calls the name; ``None`` if that is plain.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class ChunksMissingError(ClusterError):
    """Refuse to answer from a part of the chunks only, while machines that held the others are gone.

    Attributes:
        n_missing_chunks: number of chunks that cannot be searched now.
        retry_after_s: seconds after which a retry is sensible: what is lost is being restored.
    """

    retry_after_s = 1

    def __init__(self, message: str, n_missing_chunks: int = 0) -> None:
        super().__init__(message)
        self.n_missing_chunks = n_missing_chunks

    def __reduce__(self) -> tuple[object, ...]:
        return type(self), (str(self), self.n_missing_chunks)
