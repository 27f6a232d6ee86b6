"""Coding agents as programs against a real server: forced calls of a shell and of our MCP server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.environments import node_folder_with
from tests.serve.clients.forcing_proxy import COMMAND, SEARCH_QUESTION, ForcingProxy
from tests.serve.harness import KEY, REAL, Server, eventually

QUESTION = "When does the ferry leave? Read ferry.md."
ANSWER = "It leaves at seven."
PROGRAM = Path(sys.executable).with_name("relevance-gen")
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


def run(
    programs: Path, command: list[str], folder: Path, url: str
) -> subprocess.CompletedProcess[str]:
    """Run an agent with `folder` as its home and working folder."""
    program, *arguments = command
    environ = {
        "HOME": str(folder),
        "PATH": os.environ["PATH"],
        "RELEVANCE_GEN_KEY": KEY,
        "ANTHROPIC_BASE_URL": url,
        "ANTHROPIC_AUTH_TOKEN": KEY,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "OPENCODE_DISABLE_AUTOUPDATE": "1",
        "OPENCODE_DISABLE_MODELS_FETCH": "1",
    }
    return subprocess.run(
        [programs / program, *arguments],
        cwd=folder,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=1200,
        check=False,
    )


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
        done = run(programs, agent(tmp_path, proxy.url), tmp_path, proxy.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {exchange.status for exchange in proxy.exchanges} == {200}
    last = json.dumps(proxy.exchanges[-1].sent)
    assert COMMAND in last
    assert "The ferry leaves at seven." in last
    assert ANSWER in done.stdout


def codex_with_search(folder: Path, url: str) -> list[str]:
    command = codex(folder, url)
    server = f'[mcp_servers.folders]\ncommand = "{PROGRAM}"\nargs = ["mcp", "{folder}/docs"]\n'
    with (folder / ".codex" / "config.toml").open("a") as config:
        config.write(server)
    return command


def claude_code_with_search(folder: Path, url: str) -> list[str]:
    server = {"command": str(PROGRAM), "args": ["mcp", f"{folder}/docs"]}
    (folder / "mcp.json").write_text(json.dumps({"mcpServers": {"folders": server}}))
    *command, allowed = claude_code(folder, url)
    flags = ["--mcp-config", "mcp.json", "--strict-mcp-config"]
    return [*command, allowed, *flags, "--allowedTools", "Bash,mcp__folders__search"]


@pytest.mark.parametrize(
    ("agent", "package"),
    [
        (claude_code_with_search, "@anthropic-ai/claude-code"),
        (codex_with_search, "@openai/codex"),
    ],
    ids=["claude_code", "codex"],
)
def test_agent_searches_by_mcp_and_answers(
    server: Server, agent, package: str, tmp_path: Path
) -> None:
    """The agent calls ``search`` of our MCP server, sends the result to our model, and answers."""
    programs = node_folder_with(package) / "node_modules" / ".bin"
    (tmp_path / "docs").mkdir()
    for folder in (tmp_path, tmp_path / "docs"):
        (folder / "ferry.md").write_text("The ferry leaves at seven.\n")
    with ForcingProxy(server.port, searches=True) as proxy:
        done = run(programs, agent(tmp_path, proxy.url), tmp_path, proxy.url)
    assert done.returncode == 0, done.stdout + done.stderr
    assert {exchange.status for exchange in proxy.exchanges} == {200}
    last = json.dumps(proxy.exchanges[-1].sent)
    assert SEARCH_QUESTION in last
    assert "ferry.md:1" in last
    assert ANSWER in done.stdout
