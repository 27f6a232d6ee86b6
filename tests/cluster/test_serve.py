"""Servers run their model on a cluster, and share its runners."""

from __future__ import annotations

from typing import Any

from relevance_gen import Runner
from small_models import TINY
from tests.cluster.shared import until
from tests.serve.harness import KEYED, REAL, SMALL_MODEL, Server

BODY = {"text": "once", "max_tokens": 20, "seed": 7, "temperature": 1.0}


def test_two_servers_share_runners(cluster: Any) -> None:
    """Two servers tell of the same two runners, and both give the samples of a runner alone."""
    flags = (*SMALL_MODEL, "--cluster", cluster.address, "--cluster-runners", "2")
    quiet = {"PYTHONWARNINGS": "default"}
    with Server(*flags, program=REAL, **quiet) as one, Server(*flags, program=REAL, **quiet) as other:
        servers = one, other
        for server in servers:
            until(lambda server=server: server.call("GET", "/health").status == 200, "the model is loaded")
            until(lambda server=server: server.call("GET", "/stats").json["num_total_runners"] == 2, "both runners")
            assert server.metric("runners") == 2
        with Runner(TINY, n_ctx=256, n_slots=4, n_threads=1) as alone:
            expected = alone.generate(BODY).responses[0].text
        for server in servers:
            answer = server.call("POST", "/generate", BODY, KEYED)
            assert answer.json["responses"][0]["text"] == expected


def test_a_cluster_that_is_not_there(cluster: Any) -> None:
    """A server without its cluster serves search, and says in its log why there is no runner."""
    with Server(*SMALL_MODEL, "--cluster", "127.0.0.1:1", program=REAL, PYTHONWARNINGS="default") as server:
        until(lambda: "no cluster answers at 127.0.0.1:1" in server.log, "the log says so")
        assert server.call("GET", "/health").status == 503
        assert server.call("POST", "/search", {"query": "a", "chunk_txts": ["a"]}, KEYED).status == 200
