"""Requests as coding agents sent them, over HTTP, and the prefix cache of Claude Code.

The files ``adapters/requests/recorded_*.json`` are the last request of a session each, recorded by
`tests.serve.clients.forcing_proxy`: codex-cli 0.171.0, Claude Code 2.1.197 with ``--tools Bash
--system-prompt``, and opencode 1.18.33 in the sessions of ``clients/test_agent_programs.py``; Cline
3.0.65 with a forced call of ``run_commands``, and aider 0.86.2, which sends no tools, by hand.
Strings of more than 100 characters are cut; identifiers and paths are replaced.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.harness import KEY, REAL, Server, eventually

REQUESTS = Path(__file__).parent / "adapters" / "requests"
LIMITS = {"/v1/responses": "max_output_tokens"}
"""The field for the maximum tokens by path, if it is not ``max_tokens``."""
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The real server with the embedded model."""
    flags = ("--n-ctx", "16384", "--n-slots", "1", "--n-threads", "1", "--rate-limit", "off")
    with Server(*flags, program=REAL) as running:
        assert eventually(running.is_healthy), running.log
        yield running


@pytest.mark.parametrize("agent", ["aider", "claude_code", "cline", "codex", "opencode"])
def test_recorded_request_is_answered(server: Server, agent: str) -> None:
    """The request, with the calls and results in it, gives a complete stream; only its length is limited."""
    recorded = json.loads((REQUESTS / f"recorded_{agent}.json").read_text(encoding="utf-8"))
    path = recorded["path"]
    body = {**recorded["body"], LIMITS.get(path, "max_tokens"): 4}
    answer = server.call("POST", path, body, HEADERS, timeout_s=600)
    assert answer.status == 200, answer.body
    assert b'"error":{' not in answer.body
    ends = (b"message_stop", b"response.incomplete", b"response.completed", b"data: [DONE]")
    assert any(end in answer.body for end in ends)


def test_billing_line_keeps_the_prefix_cache(server: Server) -> None:
    """Requests with different billing lines share at least 90 % of a long prompt."""
    instructions = " ".join(
        f"Rule {number}: read the file before the edit." for number in range(80)
    )

    def usage_of(billing: str) -> dict[str, Any]:
        line = f"x-anthropic-billing-header: cc_version=2.1; cc_entrypoint=cli; cch={billing};"
        body = {
            "model": "any",
            "max_tokens": 2,
            "system": [{"type": "text", "text": line}, {"type": "text", "text": instructions}],
            "messages": [{"role": "user", "content": "When does the ferry leave?"}],
        }
        answer = server.call("POST", "/v1/messages", body, HEADERS, timeout_s=600)
        assert answer.status == 200, answer.body
        usage: dict[str, Any] = answer.json["usage"]
        return usage

    usage_of("00a1f")
    usage = usage_of("f3a91")
    n_cached = usage["cache_read_input_tokens"]
    assert n_cached > 500
    assert n_cached >= 0.9 * (usage["input_tokens"] + n_cached)
