"""Counts and times for Prometheus, summed over all processes of the server.

Every series has a fixed place in one shared array: a row for each process, a column for each number. A process writes
only its own row, without locks; a process that replaces a dead one goes on counting in its row, so that no counter ever
falls. (The common client library keeps one file per process id instead, and counters fall when one is cleaned up.)
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from attrs import field, frozen

ENDPOINTS = ("search", "generate", "generate_stream", "health", "stats", "metrics", "openapi", "docs", "other")
STATUSES = (200, 204, 304, 400, 401, 404, 405, 408, 413, 415, 417, 429, 499, 500, 503)
"""Statuses this server gives; 499 stands for a client that left before its answer."""

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


@frozen
class Family:
    """One metric: its name without the prefix, what it tells, and the values its one label takes."""

    name: str
    help: str
    kind: str = "counter"
    labels: tuple[str, ...] = ()
    series: tuple[tuple[str, ...], ...] = ((),)
    buckets: tuple[float, ...] = ()

    @property
    def width(self) -> int:
        """Numbers a series needs: one, or for a histogram its buckets, +Inf, and the sum."""
        return len(self.buckets) + 2 if self.kind == "histogram" else 1


def _per_endpoint(name: str, help: str) -> Family:  # noqa: A002 Prometheus' own word
    return Family(name, help, "histogram", ("endpoint",), tuple((e,) for e in ENDPOINTS), _SECONDS)


FAMILIES = (
    Family(
        "http_requests_total",
        "Requests answered.",
        labels=("endpoint", "status"),
        series=tuple((endpoint, str(status)) for endpoint in ENDPOINTS for status in STATUSES),
    ),
    _per_endpoint("http_request_seconds", "From the request's head to the end of its response."),
    Family("http_request_body_bytes_total", "Bytes of request bodies received."),
    Family("search_seconds", "Computing one search, from its body to its response.", "histogram", buckets=_SECONDS),
    Family("search_chunks_total", "Chunks searched."),
    Family("search_tokens_total", "Tokens in queries and chunks."),
    Family("search_index_cache_hits_total", "Searches whose chunks were already indexed."),
    Family("search_index_cache_misses_total", "Searches whose chunks had to be indexed."),
    Family("search_index_cache_bytes", "Memory of the indexes kept.", "gauge"),
    Family("search_waiting", "Searches waiting for a thread.", "gauge"),
    Family("search_rejections_total", "Searches refused because too many waited, or too long."),
    Family("rate_limit_rejections_total", "Requests refused because their key made too many."),
    Family("rate_limit_storage_failures_total", "Times the shared count could not be reached."),
    Family("request_body_bytes_held", "Bytes of request bodies, and of what was made of them, in memory.", "gauge"),
    Family(
        "time_to_first_token_seconds", "From a generation's arrival to its first text.", "histogram", buckets=_SECONDS
    ),
    Family("generation_seconds", "From a generation's arrival to its end.", "histogram", buckets=_SECONDS),
    Family("prompt_tokens_total", "Tokens of prompts."),
    Family("generated_tokens_total", "Tokens generated; its rate is tokens per second."),
    Family("generation_cancelled_total", "Generations whose client left."),
)

PREFIX = "relevance_gen_"


def _columns() -> dict[tuple[str, tuple[str, ...]], int]:
    columns: dict[tuple[str, tuple[str, ...]], int] = {}
    width = 0
    for family in FAMILIES:
        for series in family.series:
            columns[family.name, series] = width
            width += family.width
    columns["", ()] = width
    return columns


_COLUMNS = _columns()
_WIDTH = _COLUMNS["", ()]
_BUCKETS = {family.name: np.asarray(family.buckets) for family in FAMILIES if family.buckets}


@frozen
class Metrics:
    """One process's row, and the sight of all rows."""

    table: np.ndarray[tuple[int, int], np.dtype[np.float64]] = field(repr=False)
    row: int = 0

    @classmethod
    def alone(cls) -> Metrics:
        """Make the metrics of a server that is one process."""
        return cls(np.zeros((1, _WIDTH)))

    @classmethod
    def shared(cls, file: Path, n_rows: int, row: int) -> Metrics:
        """Map `file`, which all processes share and `allocate` made, and write to `row`."""
        with file.open("r+b") as stream:
            mapped = mmap.mmap(stream.fileno(), n_rows * _WIDTH * 8)
        return cls(np.frombuffer(mapped, np.float64).reshape(n_rows, _WIDTH), row)

    @staticmethod
    def allocate(file: Path, n_rows: int) -> None:
        """Make the file behind `shared`."""
        file.write_bytes(bytes(n_rows * _WIDTH * 8))

    def __attrs_post_init__(self) -> None:
        for family in FAMILIES:
            if family.kind == "gauge":
                self.put(family.name, 0)  # what a predecessor in this row held is gone with it

    def add(self, name: str, amount: float = 1, *series: str) -> None:
        """Add to a counter, from one thread or under one lock. A series not declared is our own bug: KeyError."""
        self.table[self.row, _COLUMNS[name, series]] += amount

    def put(self, name: str, value: float) -> None:
        """Set a gauge."""
        self.table[self.row, _COLUMNS[name, ()]] = value

    def observe(self, name: str, seconds: float, *series: str) -> None:
        """Add one observation to a histogram."""
        start, bounds = _COLUMNS[name, series], _BUCKETS[name]
        self.table[self.row, start + int(bounds.searchsorted(seconds))] += 1
        self.table[self.row, start + len(bounds) + 1] += seconds

    def exposition(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Write all series in Prometheus' text format.

        Args:
            gauges: further gauges: name → help and value.
        """
        lines: list[str] = []
        totals = self.table.sum(axis=0)
        for family in FAMILIES:
            lines += [f"# HELP {PREFIX}{family.name} {family.help}", f"# TYPE {PREFIX}{family.name} {family.kind}"]
            for series in family.series:
                start = _COLUMNS[family.name, series]
                lines += _series_lines(family, series, totals[start : start + family.width].tolist())
        for name, (text, value) in gauges.items():
            lines += [f"# HELP {PREFIX}{name} {text}", f"# TYPE {PREFIX}{name} gauge", f"{PREFIX}{name} {value:g}"]
        return "\n".join(lines) + "\n"


def _series_lines(family: Family, series: tuple[str, ...], numbers: Sequence[float]) -> Iterator[str]:
    pairs = [f'{label}="{value}"' for label, value in zip(family.labels, series, strict=True)]
    if family.kind != "histogram":
        if numbers[0] or not pairs:  # of the many statuses only those that were given
            yield f"{PREFIX}{family.name}{_braced(pairs)} {numbers[0]:.17g}"
        return
    count = 0.0
    for bound, number in zip([*map(repr, family.buckets), "+Inf"], numbers, strict=False):
        count += number
        bucket = [*pairs, f'le="{bound}"']
        yield f"{PREFIX}{family.name}_bucket{_braced(bucket)} {count:.17g}"
    yield f"{PREFIX}{family.name}_sum{_braced(pairs)} {numbers[-1]:.17g}"
    yield f"{PREFIX}{family.name}_count{_braced(pairs)} {count:.17g}"


def _braced(pairs: list[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""
