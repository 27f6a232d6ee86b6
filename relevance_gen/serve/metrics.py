"""Counters, gauges and histograms for Prometheus, summed over all processes of the server.

Every time series has a fixed position in one shared array: a row for each process, a column for
each number. A process writes only its own row, without locks. A process that replaces a dead one
continues to count in its row, so that counters never decrease. prometheus_client also sums over
processes, but by files in a directory that an environment variable must name before it is imported,
with files for each process id that ever ran. This implementation needs no directory and no files
with names.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from attrs import field, frozen

POOLS = tuple("search generation anonymous_generation extraction agents".split())
"""The names of the resource pools: see `http.resources.resource_pools`."""

STATES = ("loaded", "loading", "failed")
"""The states of a model that metrics report, best first; a model in no such state is unloaded."""

BUCKETS_S = tuple(
    map(float, "0.001 0.0025 0.005 0.01 0.025 0.05 0.1 0.25 0.5 1 2.5 5 10 30 60 300".split())
)
"""Upper bounds of every histogram's buckets, in seconds."""


@frozen
class Family:
    """One metric with all its time series.

    Attributes:
        name: the name without `PREFIX`.
        help: the help text.
        kind: "counter", "gauge" or "histogram".
        labels: the names of the labels.
        series: for each time series, the tuple of its label values, in the order of `labels`.
    """

    name: str
    help: str
    kind: str = "counter"
    labels: tuple[str, ...] = ()
    series: tuple[tuple[str, ...], ...] = ((),)

    @property
    def width(self) -> int:
        """The number of columns of each series.

        This is 1, or for a histogram ``len(BUCKETS_S) + 2``: a column for each bucket, one for the
        bucket +Inf, and one for the sum.
        """
        return len(BUCKETS_S) + 2 if self.kind == "histogram" else 1


_gauge = partial(Family, kind="gauge")
_histogram = partial(Family, kind="histogram")


def _by_label(label: str, values: Sequence[str]) -> dict[str, Any]:
    return {"labels": (label,), "series": tuple((value,) for value in values)}


_BY_POOL = _by_label("lane", POOLS)
_FAMILIES = (
    Family("http_request_body_bytes_total", "Bytes of request bodies received."),
    _gauge("requests_waiting", "Requests waiting for a thread.", **_BY_POOL),
    Family(
        "requests_rejected_total",
        "Requests rejected because the queue was full or the wait too long.",
        **_BY_POOL,
    ),
    _gauge(
        "request_body_bytes_held",
        "Bytes reserved by in-flight requests: bodies, derived objects, unsent responses.",
        **_BY_POOL,
    ),
    _histogram("search_seconds", "Duration of one search, from its body to its response."),
    Family("search_chunks_total", "Chunks searched."),
    Family("search_tokens_total", "Tokens in queries and chunks."),
    Family("search_index_cache_hits_total", "Searches whose chunks were already indexed."),
    Family("search_index_cache_misses_total", "Searches whose chunks had to be indexed."),
    _gauge("search_index_cache_bytes", "Memory of the cached indexes."),
    Family("rate_limit_rejections_total", "Requests rejected because their key made too many."),
    Family("rate_limit_storage_failures_total", "Failed requests to the rate limit's storage."),
    _histogram(
        "time_to_first_token_seconds", "Time from a generation's arrival to its first text."
    ),
    _histogram("generation_seconds", "Time from a generation's arrival to its end."),
    Family("prompt_tokens_total", "Tokens of prompts."),
    Family("generated_tokens_total", "Tokens generated; its rate is tokens per second."),
    Family("generation_cancelled_total", "Generations cancelled before their end."),
    Family(
        "searches_without_encoder_total",
        "Searches that fell back to lexical scoring because the encoder was unavailable.",
    ),
    _gauge("encoder_texts_waiting", "Texts that are queued for the encoder or being encoded."),
    _histogram("encoding_seconds", "Time from a request for vectors to its last vector."),
    Family("encoded_texts_total", "Texts encoded."),
    Family("encoded_tokens_total", "Tokens of texts encoded."),
    Family(
        "searches_without_reranker_total",
        "Searches without reranking because the reranker was unavailable.",
    ),
    _gauge("reranker_passages_waiting", "Passages queued for the reranker or being scored."),
    _histogram("reranking_seconds", "Time from a search's request for scores to its last score."),
    Family("reranked_texts_total", "Texts scored by the reranker."),
    Family("reranked_tokens_total", "Tokens scored by the reranker."),
)

PREFIX = "relevance_gen_"


class Layout:
    """The columns of all time series in the table of metrics, which has a row for each process.

    Args:
        endpoints: the endpoints by which requests are counted.
        statuses: the HTTP statuses by which requests are counted.
        models: a pair (purpose, name) for each model; for the purposes see `settings.ModelTask`.

    Attributes:
        families: all metrics, in the order of their columns.
        columns: maps (name of the metric, label values) to the position of the first column of that
            series.
        width: the number of columns.
    """

    def __init__(
        self,
        endpoints: Sequence[str] = (),
        statuses: Sequence[int] = (),
        models: Sequence[tuple[str, str]] = (),
    ) -> None:
        by_model: dict[str, Any] = {"labels": ("task", "model"), "series": tuple(models)}
        self.families = (
            Family(
                "http_requests_total",
                "Requests answered.",
                labels=("endpoint", "status"),
                series=tuple(
                    (endpoint, str(status)) for endpoint in endpoints for status in statuses
                ),
            ),
            _histogram(
                "http_request_seconds",
                "Time from the request's head to the end of its response.",
                **_by_label("endpoint", endpoints),
            ),
            *_FAMILIES,
            _gauge(
                "models",
                "Processes that have a model in a state.",
                labels=("task", "model", "state"),
                series=tuple((*model, state) for model in models for state in STATES),
            ),
            Family("model_requests_total", "Requests for a model.", **by_model),
            _histogram("model_load_seconds", "Time to load a model.", **by_model),
        )
        self.columns: dict[tuple[str, tuple[str, ...]], int] = {}
        self.width = 0
        for family in self.families:
            for series in family.series:
                self.columns[family.name, series] = self.width
                self.width += family.width


_BOUNDS = np.asarray(BUCKETS_S)


@frozen
class Metrics:
    """The row of one process in the table of all processes.

    Attributes:
        layout: the columns of the table.
        table: the values of all processes, shape (n_processes, layout.width).
        row: the index of this process's row in `table`.
    """

    layout: Layout
    table: npt.NDArray[np.float64] = field(repr=False)
    row: int = 0

    @classmethod
    def for_one_process(cls, layout: Layout | None = None) -> Metrics:
        """Create the metrics of a server with one process."""
        layout = layout or Layout()
        return cls(layout, np.zeros((1, layout.width)))

    @classmethod
    def shared(cls, layout: Layout, file: int, row: int) -> Metrics:
        """Create the metrics of one of several processes, which writes to `row` of the table.

        `file` is the descriptor of a file of `shared_bytes` that all processes map into memory.
        """
        numbers = np.frombuffer(mmap.mmap(file, 0), np.float64)
        return cls(layout, numbers.reshape(-1, layout.width), row)

    @staticmethod
    def shared_bytes(layout: Layout, n_rows: int) -> int:
        """Return the size in bytes of the file for `shared`, which must contain zeros at first.

        `n_rows` is the number of processes.
        """
        return n_rows * layout.width * 8

    def __attrs_post_init__(self) -> None:
        """Set the gauges of the row to 0: they describe the process that used the row before."""
        for family in self.layout.families:
            if family.kind == "gauge":
                for series in family.series:
                    self.put(family.name, 0, *series)

    def add(self, name: str, amount: float = 1, *series: str) -> None:
        """Add `amount` to a counter in the row of this process.

        All calls for a series must be made in the same thread or under the same lock.

        Args:
            name: the name of the metric, without `PREFIX`.
            amount: the amount.
            series: the values of the metric's labels.

        Raises:
            KeyError: the series is not declared, which is a bug.
        """
        self.table[self.row, self.layout.columns[name, series]] += amount

    def put(self, name: str, value: float, *series: str) -> None:
        """Set a gauge in the row of this process to `value`; see `add`."""
        self.table[self.row, self.layout.columns[name, series]] = value

    def observe(self, name: str, seconds: float, *series: str) -> None:
        """Add one observation of a duration to a histogram; see `add`."""
        start = self.layout.columns[name, series]
        bucket = int(_BOUNDS.searchsorted(seconds))
        self.table[self.row, start + bucket] += 1
        self.table[self.row, start + len(_BOUNDS) + 1] += seconds

    def total(self, name: str, *series: str) -> float:
        """Return the sum of a counter or a gauge over all processes."""
        return float(self.table[:, self.layout.columns[name, series]].sum())

    def exposition(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Return all series, each summed over all processes, in the text format of Prometheus.

        Args:
            gauges: further gauges without labels: maps the name without `PREFIX` to the help text
                and the value.
        """
        lines: list[str] = []
        totals = self.table.sum(axis=0)
        for family in self.layout.families:
            lines += _header(family.name, family.help, family.kind)
            for series in family.series:
                start = self.layout.columns[family.name, series]
                numbers = totals[start : start + family.width].tolist()
                lines += _series_lines(family, series, numbers)
        for name, (help_text, value) in gauges.items():
            lines += _header(name, help_text, "gauge")
            lines.append(f"{PREFIX}{name} {value:g}")
        return "\n".join(lines) + "\n"


def _header(name: str, help_text: str, kind: str) -> list[str]:
    return [f"# HELP {PREFIX}{name} {help_text}", f"# TYPE {PREFIX}{name} {kind}"]


def _series_lines(
    family: Family, series: tuple[str, ...], numbers: Sequence[float]
) -> Iterator[str]:
    name = PREFIX + family.name
    labels = [
        f"{label}={json.dumps(value)}" for label, value in zip(family.labels, series, strict=True)
    ]
    if family.kind != "histogram":
        # Combinations of two labels are listed only if they occurred.
        if numbers[0] or len(labels) < 2:
            yield f"{name}{_in_braces(labels)} {numbers[0]:.17g}"
        return
    count = 0.0
    bounds = [*map(repr, BUCKETS_S), "+Inf"]
    for bound, number in zip(bounds, numbers, strict=False):
        count += number
        bucket_labels = [*labels, f'le="{bound}"']
        yield f"{name}_bucket{_in_braces(bucket_labels)} {count:.17g}"
    yield f"{name}_sum{_in_braces(labels)} {numbers[-1]:.17g}"
    yield f"{name}_count{_in_braces(labels)} {count:.17g}"


def _in_braces(labels: list[str]) -> str:
    return "{" + ",".join(labels) + "}" if labels else ""
