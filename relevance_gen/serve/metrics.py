"""Counts and times for Prometheus, summed over all processes of the server.

Every series has a fixed place in one shared array: a row for each process, a column for each number. A process writes
only its own row, without locks; a process that replaces a dead one goes on counting in its row, so that no counter ever
falls. prometheus_client adds up processes, too, but through files in a directory that an environment variable must name
before it is imported: some for each process id that there ever was. This server needs no directory, and writes no file.
"""

from __future__ import annotations

import json
import mmap
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from attrs import field, frozen

LANES = ("search", "generation", "anonymous_generation", "extraction", "agents")
"""The classes of callers, each with threads, a queue and memory of its own: see `edge.lanes`."""

STATES = ("loaded", "loading", "failed")
"""In which a model may be, the best first; otherwise it is unloaded."""

BUCKETS_S = (
    0.001,
    0.0025,
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.25,
    0.5,
    1.0,
    2.5,
    5.0,
    10.0,
    30.0,
    60.0,
    300.0,
)
"""Upper bounds of every histogram's buckets, in seconds."""


@frozen
class Family:
    """One metric: its name without the prefix, what it tells, and the values that its labels take together."""

    name: str
    help: str
    kind: str = "counter"
    labels: tuple[str, ...] = ()
    series: tuple[tuple[str, ...], ...] = ((),)

    @property
    def width(self) -> int:
        """Numbers that a series needs: one, or for a histogram its buckets, +Inf, and the sum."""
        return len(BUCKETS_S) + 2 if self.kind == "histogram" else 1


def _of_each(label: str, values: Sequence[str]) -> dict[str, Any]:
    return {"labels": (label,), "series": tuple((value,) for value in values)}


_HELD = "Memory that requests hold: bodies, what is made of them, and unread answers."
_REJECTED = "Requests refused because too many waited, or too long."
_FAMILIES = (
    Family("http_request_body_bytes_total", "Bytes of request bodies received."),
    Family(
        "requests_waiting", "Requests waiting for a thread.", "gauge", **_of_each("lane", LANES)
    ),
    Family("requests_rejected_total", _REJECTED, **_of_each("lane", LANES)),
    Family("request_body_bytes_held", _HELD, "gauge", **_of_each("lane", LANES)),
    Family("search_seconds", "Computing one search, from its body to its response.", "histogram"),
    Family("search_chunks_total", "Chunks searched."),
    Family("search_tokens_total", "Tokens in queries and chunks."),
    Family("search_index_cache_hits_total", "Searches whose chunks were already indexed."),
    Family("search_index_cache_misses_total", "Searches whose chunks had to be indexed."),
    Family("search_index_cache_bytes", "Memory of the indexes kept.", "gauge"),
    Family("rate_limit_rejections_total", "Requests refused because their key made too many."),
    Family("rate_limit_storage_failures_total", "Times the shared count could not be reached."),
    Family(
        "time_to_first_token_seconds", "From a generation's arrival to its first text.", "histogram"
    ),
    Family("generation_seconds", "From a generation's arrival to its end.", "histogram"),
    Family("prompt_tokens_total", "Tokens of prompts."),
    Family("generated_tokens_total", "Tokens generated; its rate is tokens per second."),
    Family("generation_cancelled_total", "Generations whose client left."),
    Family(
        "searches_without_encoder_total",
        "Searches by words alone, though there is or is to be an encoder.",
    ),
    Family("encoder_texts_waiting", "Texts that wait to be encoded, or are.", "gauge"),
    Family("encoding_seconds", "From a request for vectors to all of them.", "histogram"),
    Family("encoded_texts_total", "Texts encoded."),
    Family("encoded_tokens_total", "Tokens of texts encoded."),
    Family(
        "searches_without_reranker_total", "Searches without the reranker that they were to have."
    ),
    Family(
        "reranker_passages_waiting",
        "Passages that wait to be read by the reranker, or are.",
        "gauge",
    ),
    Family(
        "reranking_seconds",
        "From a search's request to read texts to all of their scores.",
        "histogram",
    ),
    Family("reranked_texts_total", "Texts read by the reranker."),
    Family("reranked_tokens_total", "Tokens read by the reranker."),
)

PREFIX = "relevance_gen_"


class Layout:
    """Where each series stands in a row of `width` columns: all families, one after the other.

    Requests are counted by endpoint and status; models are known by what they are for, and their names.
    """

    def __init__(
        self,
        endpoints: Sequence[str] = (),
        statuses: Sequence[int] = (),
        models: Sequence[tuple[str, str]] = (),
    ) -> None:
        answers = tuple((endpoint, str(status)) for endpoint in endpoints for status in statuses)
        of, states = (
            ("task", "model"),
            tuple((*model, state) for model in models for state in STATES),
        )
        seconds = "From the request's head to the end of its response."
        self.families = (
            Family(
                "http_requests_total",
                "Requests answered.",
                labels=("endpoint", "status"),
                series=answers,
            ),
            Family("http_request_seconds", seconds, "histogram", **_of_each("endpoint", endpoints)),
            *_FAMILIES,
            Family(
                "models", "Processes that have a model in a state.", "gauge", (*of, "state"), states
            ),
            Family(
                "model_requests_total",
                "Requests that asked for a model.",
                "counter",
                of,
                tuple(models),
            ),
            Family("model_load_seconds", "Loading a model.", "histogram", of, tuple(models)),
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
    """The row that one process writes to, in the table that it reads of all processes."""

    layout: Layout
    table: np.ndarray[tuple[int, int], np.dtype[np.float64]] = field(repr=False)
    row: int = 0

    @classmethod
    def alone(cls, layout: Layout | None = None) -> Metrics:
        """Make the metrics of a server that is one process."""
        layout = layout or Layout()
        return cls(layout, np.zeros((1, layout.width)))

    @classmethod
    def shared(cls, layout: Layout, file: int, row: int) -> Metrics:
        """Map the open `file` of `shared_bytes` that all processes share, and write to `row`."""
        return cls(
            layout, np.frombuffer(mmap.mmap(file, 0), np.float64).reshape(-1, layout.width), row
        )

    @staticmethod
    def shared_bytes(layout: Layout, n_rows: int) -> int:
        """Return the size of the file behind `shared`, zeros at first."""
        return n_rows * layout.width * 8

    def __attrs_post_init__(self) -> None:
        for family in self.layout.families:
            if family.kind == "gauge":
                for series in family.series:
                    self.put(
                        family.name, 0, *series
                    )  # what the row's last process held is gone with it

    def add(self, name: str, amount: float = 1, *series: str) -> None:
        """Add to a counter, from one thread or under one lock. A series not declared is our own bug: KeyError."""
        self.table[self.row, self.layout.columns[name, series]] += amount

    def put(self, name: str, value: float, *series: str) -> None:
        """Set a gauge."""
        self.table[self.row, self.layout.columns[name, series]] = value

    def observe(self, name: str, seconds: float, *series: str) -> None:
        """Add one observation to a histogram."""
        start = self.layout.columns[name, series]
        self.table[self.row, start + int(_BOUNDS.searchsorted(seconds))] += 1
        self.table[self.row, start + len(_BOUNDS) + 1] += seconds

    def total(self, name: str, *series: str) -> float:
        """Return a counter or a gauge of all processes together."""
        return float(self.table[:, self.layout.columns[name, series]].sum())

    def exposition(self, gauges: dict[str, tuple[str, float]]) -> str:
        """Write all series in Prometheus' text format, and further gauges: name → help and value."""
        lines: list[str] = []
        totals = self.table.sum(axis=0)
        for family in self.layout.families:
            lines += [
                f"# HELP {PREFIX}{family.name} {family.help}",
                f"# TYPE {PREFIX}{family.name} {family.kind}",
            ]
            for series in family.series:
                start = self.layout.columns[family.name, series]
                lines += _series_lines(
                    family, series, totals[start : start + family.width].tolist()
                )
        for name, (text, value) in gauges.items():
            lines += [
                f"# HELP {PREFIX}{name} {text}",
                f"# TYPE {PREFIX}{name} gauge",
                f"{PREFIX}{name} {value:g}",
            ]
        return "\n".join(lines) + "\n"


def _series_lines(
    family: Family, series: tuple[str, ...], numbers: Sequence[float]
) -> Iterator[str]:
    pairs = [
        f"{label}={json.dumps(value)}" for label, value in zip(family.labels, series, strict=True)
    ]
    if family.kind != "histogram":
        if numbers[0] or len(pairs) < 2:  # of the many statuses only those that were given
            yield f"{PREFIX}{family.name}{_braced(pairs)} {numbers[0]:.17g}"
        return
    count = 0.0
    for bound, number in zip([*map(repr, BUCKETS_S), "+Inf"], numbers, strict=False):
        count += number
        bucket = [*pairs, f'le="{bound}"']
        yield f"{PREFIX}{family.name}_bucket{_braced(bucket)} {count:.17g}"
    yield f"{PREFIX}{family.name}_sum{_braced(pairs)} {numbers[-1]:.17g}"
    yield f"{PREFIX}{family.name}_count{_braced(pairs)} {count:.17g}"


def _braced(pairs: list[str]) -> str:
    return "{" + ",".join(pairs) + "}" if pairs else ""
