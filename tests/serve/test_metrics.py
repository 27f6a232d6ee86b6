"""Metrics: a shared table, written as Prometheus reads it."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.serve.metrics import BUCKETS_S, Layout, Metrics
from tests.serve.harness import KEYED, Server

LINE = re.compile(r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [0-9.e+-]+')


def values(text: str) -> dict[str, float]:
    """Parse an exposition, demanding its form."""
    found: dict[str, float] = {}
    for line in text.splitlines():
        if not line.startswith("# "):
            assert LINE.fullmatch(line), line
            name, number = line.rsplit(" ", 1)
            assert name not in found
            found[name] = float(number)
    return found


@given(st.lists(st.floats(0, 1000), max_size=40))
def test_histograms_are_cumulative(seconds: list[float]) -> None:
    """Each bucket counts the observations up to its bound; +Inf equals the count."""
    metrics = Metrics.for_one_process()
    for value in seconds:
        metrics.observe("search_seconds", value)
    found = values(metrics.exposition({}))
    for bound in BUCKETS_S:
        assert found[f'relevance_gen_search_seconds_bucket{{le="{bound!r}"}}'] == sum(
            s <= bound for s in seconds
        )
    assert found['relevance_gen_search_seconds_bucket{le="+Inf"}'] == len(seconds)
    assert found["relevance_gen_search_seconds_count"] == len(seconds)
    assert found["relevance_gen_search_seconds_sum"] == pytest.approx(sum(seconds))


def test_rows_add_up_and_outlive_their_process() -> None:
    """All processes' rows are summed; a process that replaces another counts on, but its gauges begin at nothing."""
    layout = Layout(("search", "other"), (200,))
    file = os.memfd_create("metrics")
    os.truncate(file, Metrics.shared_bytes(layout, 2))
    one, two = (Metrics.shared(layout, file, row) for row in range(2))
    one.add("search_chunks_total", 3)
    two.add("search_chunks_total", 4)
    one.put("requests_waiting", 2, "search")
    two.put("requests_waiting", 5, "search")
    assert values(two.exposition({}))["relevance_gen_search_chunks_total"] == 7
    assert values(two.exposition({}))['relevance_gen_requests_waiting{lane="search"}'] == 7
    again = Metrics.shared(layout, file, 0)
    again.add("search_chunks_total", 1)
    assert values(two.exposition({}))["relevance_gen_search_chunks_total"] == 8
    assert values(two.exposition({}))['relevance_gen_requests_waiting{lane="search"}'] == 5
    os.close(file)


def test_undeclared_series_raises() -> None:
    """A misspelled name or label raises a KeyError, so no undeclared series can appear."""
    with pytest.raises(KeyError):
        Metrics.for_one_process().add("no_such_total")
    with pytest.raises(KeyError):
        Metrics.for_one_process(Layout(("search",), (200,))).add(
            "http_requests_total", 1, "search", "999"
        )


def test_metrics_count_the_requests(server: Server) -> None:
    """Requests, searches and bytes are counted, and the text is what Prometheus reads."""
    before = values(server.call("GET", "/metrics").body.decode())
    server.search({"query": "x", "chunk_txts": ["x y", "z"]})
    server.call("GET", "/nowhere", headers=KEYED)
    answer = server.call("GET", "/metrics")
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    after = values(answer.body.decode())
    grown = {
        name: after[name] - before.get(name, 0)
        for name in after
        if after[name] != before.get(name, 0)
    }
    assert grown['relevance_gen_http_requests_total{endpoint="search",status="200"}'] == 1
    assert grown['relevance_gen_http_requests_total{endpoint="other",status="404"}'] == 1
    assert grown["relevance_gen_search_chunks_total"] == 2
    assert grown["relevance_gen_search_tokens_total"] == 4
    assert after["relevance_gen_runners"] == 1
