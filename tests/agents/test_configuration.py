"""Entries in the settings of coding agents: written, updated, removed, and everything else kept."""

from __future__ import annotations

import json
import os
import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.agents.configuration.installation import AGENTS
from relevance_gen.agents.configuration.json_settings import (
    read_member,
    remove_member,
    set_member,
)
from relevance_gen.agents.configuration.toml_settings import remove_table, set_table
from relevance_gen.cli import main
from relevance_gen.errors import InvalidRequestError

PATH = ("mcpServers", "search")
ENTRY: dict[str, object] = {"command": "relevance-gen", "args": ["mcp"]}
COMMENTED = """\
// My settings.
{
    "theme": "dark", /* not "light" */
    "mcpServers": {
        // Issues.
        "issues": {"command": "npx", "args": ["-y", "issues"],},
    },
    "last": [1, 2,],  // the end
}
"""

keys = st.text('ab{}[],:/*"\\ é', max_size=4)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | keys,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder with the program on the path."""
    program = tmp_path / "bin" / "relevance-gen"
    program.parent.mkdir()
    program.touch(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("XDG_CONFIG_HOME", "CODEX_HOME", "CLAUDE_CONFIG_DIR", "APPDATA"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def without_comments(text: str) -> Any:
    """Parse JSON with comments by removing comments and trailing commas; no strings contain them."""
    plain = re.sub(r"//[^\n]*|/\*.*?\*/", "", text, flags=re.DOTALL)
    return json.loads(re.sub(r",(\s*[}\]])", r"\1", plain))


def test_set_member_keeps_comments_and_other_members() -> None:
    """All lines of the file remain in their order, and the new member is found."""
    changed = set_member(COMMENTED, PATH, ENTRY)
    assert without_comments(changed)["mcpServers"]["search"] == ENTRY
    lines = iter(changed.splitlines())
    assert all(line in lines for line in COMMENTED.splitlines())


def test_remove_only_member_keeps_comments() -> None:
    """Comments around the only member stay, and the rest is still JSON with comments."""
    text = '{ // one\n  "a": {"b": 1}, // two\n}'
    removed = remove_member(text, ("a", "b"))
    assert without_comments(removed) == {}
    assert "// one" in removed
    assert "// two" in removed


def test_remove_member_restores_the_file() -> None:
    """Removing an added member returns the text as it was, without a trailing comma before it."""
    restored = remove_member(set_member(COMMENTED, PATH, ENTRY), PATH)
    assert without_comments(restored) == without_comments(COMMENTED)
    assert "// Issues." in restored
    assert remove_member(COMMENTED, PATH) == COMMENTED


@given(st.dictionaries(keys, values, max_size=4), st.lists(keys, min_size=1, max_size=3), values)
@pytest.mark.parametrize("indent", [None, 2, "\t"])
def test_members_equal_changes_of_a_dict(
    indent: int | str | None, settings: dict[str, Any], path: list[str], value: Any
) -> None:
    """Setting and removing a member of any JSON text equals the same change of the parsed value."""
    text = json.dumps(settings, indent=indent, ensure_ascii=False)
    expected = json.loads(text)
    parent = expected
    for key in path[:-1]:
        parent = parent.setdefault(key, {})
        if not isinstance(parent, dict):
            with pytest.raises(InvalidRequestError, match="must be an object"):
                set_member(text, path, value)
            return
    parent[path[-1]] = value
    changed = set_member(text, path, value)
    assert json.loads(changed) == expected
    assert read_member(changed, path) == value
    assert read_member(remove_member(changed, path), path) is None


@pytest.mark.parametrize(
    "text", ["[]", "{", '{"a" 1}', '{"a": 1 "b": 2}', "{,}", '{"a": x}', "{} {}", '{"a": /* }', "1"]
)
def test_invalid_json_is_refused(text: str) -> None:
    """A file that is not a JSON object with comments raises an error with the line."""
    with pytest.raises(InvalidRequestError, match="line 1 is not valid JSON with comments"):
        set_member(text, PATH, ENTRY)


def test_deeply_nested_json_is_refused() -> None:
    """Nesting of more than 100 levels raises an error instead of exhausting the stack."""
    with pytest.raises(InvalidRequestError, match="is not valid JSON"):
        set_member('{"a":' + "[" * 100_000, PATH, ENTRY)


def test_set_table_keeps_comments_and_other_tables() -> None:
    """A TOML table is added, updated and removed; comments, order and other tables stay."""
    text = '# Mine.\nmodel = "m"  # small\n\n[mcp_servers.other]\ncommand = "x"\n\n[z]\na = 1\n'
    added = set_table(text, ("mcp_servers", "search"), ENTRY)
    assert tomllib.loads(added)["mcp_servers"]["search"] == ENTRY
    assert "# Mine." in added
    assert "# small" in added
    updated = set_table(added, ("mcp_servers", "search"), {"command": "y"})
    assert tomllib.loads(updated)["mcp_servers"] == {
        "other": {"command": "x"},
        "search": {"command": "y"},
    }
    removed = remove_table(updated, ("mcp_servers", "search"))
    assert tomllib.loads(removed) == tomllib.loads(text)
    assert remove_table(text, ("mcp_servers", "search")) == text


def test_set_table_replaces_a_table_whose_parts_are_apart() -> None:
    """A table that follows its own sub-table is replaced, and other tables stay."""
    text = "[mcp_servers.search.env]\nA = 1\n\n[z]\na = 1\n\n[mcp_servers.search]\ncommand = 'x'\n"
    changed = set_table(text, ("mcp_servers", "search"), ENTRY)
    assert tomllib.loads(changed) == {"mcp_servers": {"search": ENTRY}, "z": {"a": 1}}


@pytest.mark.parametrize("name", AGENTS)
def test_install_and_uninstall_of_each_agent(
    name: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The entry starts the program for the agent, a second install changes nothing, uninstall removes it."""
    (home / "notes").mkdir()
    agent = AGENTS[name]
    assert main(["agents", "install", "--agent", name, "--dry-run"]) == 0
    assert "+" in capsys.readouterr().out
    assert not agent.path().exists()
    assert main(["agents", "install", "--agent", name, str(home / "notes")]) == 0
    written = agent.path().read_text()
    assert "relevance-gen" in written
    assert str(home / "notes") in written
    assert main(["agents", "install", "--agent", name, str(home / "notes")]) == 0
    assert agent.path().read_text() == written
    assert "needs no change" in capsys.readouterr().out
    assert main(["agents", "uninstall", "--agent", name]) == 0
    assert "relevance-gen" not in agent.path().read_text()


def test_install_without_names_selects_installed_agents(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only agents whose settings exist are changed; without any, the error lists the agents."""
    assert main(["agents", "install"]) == 2
    assert "no agent is installed here; choose one of claude-code" in capsys.readouterr().err
    (home / ".cursor").mkdir()
    (home / ".claude.json").write_text("{}")
    assert main(["agents", "install"]) == 0
    assert capsys.readouterr().out.count("wrote") == 2
    cursor = json.loads((home / ".cursor" / "mcp.json").read_text())
    assert cursor["mcpServers"]["search"]["args"] == ["mcp", "${workspaceFolder}"]


def test_entry_of_another_program_is_kept(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An entry with the same name that starts another program is an error with a remedy."""
    path = home / ".gemini" / "settings.json"
    path.parent.mkdir()
    path.write_text('{"mcpServers": {"search": {"command": "other"}}}')
    for action in ("install", "uninstall"):
        assert main(["agents", action, "--agent", "gemini"]) == 2
        error = capsys.readouterr().err
        assert "mcpServers.search starts another program; choose another name" in error
    assert main(["agents", "install", "--agent", "gemini", "--name", "docs"]) == 0
    assert set(json.loads(path.read_text())["mcpServers"]) == {"search", "docs"}


def test_symbolic_link_and_permissions_are_kept(home: Path) -> None:
    """A linked settings file is changed at its target, and stays private."""
    target = home / "dotfiles.json"
    target.write_text("{}")
    target.chmod(0o600)
    (home / ".claude.json").symlink_to(target)
    assert main(["agents", "install", "--agent", "claude-code"]) == 0
    assert (home / ".claude.json").is_symlink()
    assert "relevance-gen" in target.read_text()
    assert stat.S_IMODE(target.stat().st_mode) == 0o600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["install", "--agent", "cursr"], "did you mean cursor"),
        (["install", "--agent", "codex", "absent"], "FOLDER must be a folder, got 'absent'"),
        (["uninstall", "docs"], "uninstall takes no folders"),
    ],
)
def test_invalid_arguments_of_agents_are_reported(
    arguments: list[str], message: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error names the argument and the remedy."""
    assert main(["agents", *arguments]) == 2
    assert message in capsys.readouterr().err
