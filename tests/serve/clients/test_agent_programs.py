"""Coding agents as programs against a real server: one forced call of a shell, and its result."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments import node_folder_with
from tests.serve.clients.forcing_proxy import COMMAND, ForcingProxy
from tests.serve.harness import KEY, REAL, Server, eventually

QUESTION = "When does the ferry leave? Read ferry.md."
ANSWER = "It leaves at seven."
CODEX = """model = "any"
model_provider = "here"
[model_providers.here]
name = "relevance_gen"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "RELEVANCE_GEN_KEY"
"""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """The real server with the embedded model and a context for the prompts of agents."""
    with Server(
        "--n-ctx", "65536", "--n-slots", "1", "--rate-limit", "off", program=REAL
    ) as running:
        assert eventually(running.is_healthy), running.log
        yield running


def codex(folder: Path, url: str) -> list[str]:
    (folder / ".codex").mkdir()
    (folder / ".codex" / "config.toml").write_text(CODEX.format(url=url))
    flags = ["--skip-git-repo-check", "--dangerously-bypass-approvals-and-sandbox"]
    return ["codex", "exec", *flags, QUESTION]


def claude_code(folder: Path, url: str) -> list[str]:
    flags = ["--allowedTools", "Bash", "--system-prompt", "You are an agent.", "--tools", "Bash"]
    return ["claude", "-p", QUESTION, *flags]


def opencode(folder: Path, url: str) -> list[str]:
    options = {"baseURL": f"{url}/v1", "apiKey": KEY}
    provider = {"npm": "@ai-sdk/openai-compatible", "options": options, "models": {"any": {}}}
    settings = {"provider": {"here": provider}, "model": "here/any"}
    (folder / "opencode.json").write_text(json.dumps(settings))
    return ["opencode", "run", "-m", "here/any", QUESTION]


@pytest.mark.parametrize(
    ("agent", "package"),
    [
        (claude_code, "@anthropic-ai/claude-code"),
        (codex, "@openai/codex"),
        (opencode, "opencode-ai"),
    ],
    ids=["claude_code", "codex", "opencode"],
)
def test_agent_calls_shell_and_reads_result(
    server: Server, agent, package: str, tmp_path: Path
) -> None:
    """Every request gives 200, the call runs, its result is sent back, and the agent succeeds."""
    programs = node_folder_with(package) / "node_modules" / ".bin"
    (tmp_path / "ferry.md").write_text("The ferry leaves at seven.\n")
    with ForcingProxy(server.port) as proxy:
        program, *arguments = agent(tmp_path, proxy.url)
        environ = {
            "HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
            "RELEVANCE_GEN_KEY": KEY,
            "ANTHROPIC_BASE_URL": proxy.url,
            "ANTHROPIC_AUTH_TOKEN": KEY,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }
        done = subprocess.run(
            [programs / program, *arguments],
            cwd=tmp_path,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=1200,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    assert {exchange.status for exchange in proxy.exchanges} == {200}
    last = json.dumps(proxy.exchanges[-1].sent)
    assert COMMAND in last
    assert "The ferry leaves at seven." in last
    assert ANSWER in done.stdout
