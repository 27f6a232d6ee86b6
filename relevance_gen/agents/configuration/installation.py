"""Writes, updates and removes the entry of ``relevance-gen mcp`` in the settings of agents."""

from __future__ import annotations

import difflib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from attrs import frozen

from relevance_gen.agents.configuration import json_settings, toml_settings
from relevance_gen.errors import InvalidRequestError, did_you_mean

PROGRAM: Final = "relevance-gen"
_MAX_SETTINGS_BYTES: Final = 16 << 20

Entry = dict[str, object]
"""The entry of an MCP server in the settings of an agent."""


@frozen
class CodingAgent:
    """A coding agent that starts MCP servers.

    Attributes:
        title: the name that its vendor uses.
        path: function without parameters that returns the path of the user's settings file.
        keys: path of keys in the settings to the object that has one member for each MCP server.
        entry: function from a command line, as a list of arguments, to the entry of an MCP server.
        working_folder: the argument that ``relevance-gen mcp`` gets if the user names no folder,
            for an agent that does not start servers in its working folder: a variable that the
            agent replaces with this folder. "" for an agent that starts servers in that folder.
    """

    title: str
    path: Callable[[], Path]
    keys: tuple[str, ...]
    entry: Callable[[Sequence[str]], Entry]
    working_folder: str = ""


@frozen
class SettingsChange:
    """A change of the settings file of an agent; no change if both texts are equal.

    Attributes:
        path: the file; a symbolic link is resolved.
        old_text: the text of the file; "" if it does not exist.
        new_text: the text with the change.
    """

    path: Path
    old_text: str
    new_text: str

    def diff(self) -> str:
        """Return the change as a unified diff; "" without a change."""
        old_lines = self.old_text.splitlines()
        new_lines = self.new_text.splitlines()
        path = str(self.path)
        lines = difflib.unified_diff(old_lines, new_lines, path, path, lineterm="")
        return "".join(f"{line}\n" for line in lines)

    def write(self) -> None:
        """Replace the file atomically; its permissions are kept.

        Raises:
            OSError: the file cannot be written.
        """
        if self.old_text == self.new_text:
            return
        parent = self.path.parent
        parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=f"{self.path.name}.") as folder:
            unfinished = Path(folder, self.path.name)
            unfinished.touch(0o600)
            unfinished.write_text(self.new_text, encoding="utf-8", newline="")
            if self.path.exists():
                shutil.copymode(self.path, unfinished)
            unfinished.replace(self.path)


def _command_and_args(command_line: Sequence[str]) -> Entry:
    return {"command": command_line[0], "args": list(command_line[1:])}


def _stdio(command_line: Sequence[str]) -> Entry:
    return {"type": "stdio", **_command_and_args(command_line)}


def _local(command_line: Sequence[str]) -> Entry:
    return {"type": "local", "command": list(command_line), "enabled": True}


def _with_environment(command_line: Sequence[str]) -> Entry:
    return {**_command_and_args(command_line), "env": {}}


def _in_home(*parts: str) -> Path:
    return Path.home().joinpath(*parts)


def _codex_path() -> Path:
    return Path(os.environ.get("CODEX_HOME") or _in_home(".codex")) / "config.toml"


def _claude_path() -> Path:
    folder = os.environ.get("CLAUDE_CONFIG_DIR")
    return Path(folder) / ".claude.json" if folder else _in_home(".claude.json")


def _config_path(*parts: str) -> Path:
    """Return the path `parts` in ``$XDG_CONFIG_HOME``, or in ``~/.config`` if it is not set."""
    folder = os.environ.get("XDG_CONFIG_HOME") or _in_home(".config")
    return Path(folder).joinpath(*parts)


def _vscode_path() -> Path:
    if sys.platform == "darwin":
        return _in_home("Library", "Application Support", "Code", "User", "mcp.json")
    return _application_data("Code") / "User" / "mcp.json"


def _zed_path() -> Path:
    if sys.platform == "darwin":
        return _config_path("zed", "settings.json")
    return _application_data("Zed" if os.name == "nt" else "zed") / "settings.json"


def _application_data(name: str) -> Path:
    folder = os.environ.get("APPDATA") if os.name == "nt" else None
    return Path(folder) / name if folder else _config_path(name)


def _opencode_path() -> Path:
    plain = _config_path("opencode", "opencode.json")
    with_comments = plain.with_suffix(".jsonc")
    return with_comments if with_comments.exists() else plain


AGENTS: Final = {
    "claude-code": CodingAgent("Claude Code", _claude_path, ("mcpServers",), _stdio),
    "codex": CodingAgent("Codex", _codex_path, ("mcp_servers",), _command_and_args),
    "cursor": CodingAgent(
        "Cursor",
        lambda: _in_home(".cursor", "mcp.json"),
        ("mcpServers",),
        _command_and_args,
        working_folder="${workspaceFolder}",
    ),
    "vscode": CodingAgent(
        "VS Code", _vscode_path, ("servers",), _stdio, working_folder="${workspaceFolder}"
    ),
    "gemini": CodingAgent(
        "Gemini CLI",
        lambda: _in_home(".gemini", "settings.json"),
        ("mcpServers",),
        _command_and_args,
    ),
    "opencode": CodingAgent("opencode", _opencode_path, ("mcp",), _local),
    "zed": CodingAgent("Zed", _zed_path, ("context_servers",), _with_environment),
}
"""The supported agents, by the names of the option ``--agent``."""


def select_agents(names: Sequence[str]) -> list[CodingAgent]:
    """Return the named agents; without names, the installed agents.

    An agent is installed if the folder of its settings file exists. If this folder is the home
    folder, the settings file itself must exist.

    Raises:
        InvalidRequestError: a name is unknown, or no name is given and no agent is installed.
    """
    for name in names:
        if name not in AGENTS:
            hint = did_you_mean(name, AGENTS, f"agents are {', '.join(AGENTS)}")
            raise InvalidRequestError(
                f"must be the name of an agent, got {name!a}; {hint}", "agent"
            )
    if names:
        return [AGENTS[name] for name in names]
    installed = [agent for agent in AGENTS.values() if _is_installed(agent)]
    if not installed:
        remedy = f"choose one of {', '.join(AGENTS)} with --agent"
        raise InvalidRequestError("no agent is installed here", remedy=remedy)
    return installed


def _is_installed(agent: CodingAgent) -> bool:
    path = agent.path()
    if path.parent == Path.home():  # this folder exists without the agent
        return path.exists()
    return path.parent.is_dir()


def plan_install(agent: CodingAgent, name: str, folders: Sequence[str]) -> SettingsChange:
    """Return the change that writes or updates an entry for ``relevance-gen mcp``.

    Args:
        agent: the agent.
        name: the name of the entry.
        folders: the folders to search; without folders, the folder in which the agent works.

    Raises:
        InvalidRequestError: a folder does not exist, the settings cannot be read, or the entry
            belongs to another program.
    """
    for folder in folders:
        if not Path(folder).is_dir():
            raise InvalidRequestError(f"must be a folder, got {folder!a}", "FOLDER")
    arguments = [str(Path(folder).resolve()) for folder in folders]
    if not arguments and agent.working_folder:
        arguments = [agent.working_folder]
    entry = agent.entry([_program(), "mcp", *arguments])
    return _plan(agent, name, entry)


def plan_uninstall(agent: CodingAgent, name: str) -> SettingsChange:
    """Return the change that removes an entry for ``relevance-gen mcp``.

    Raises:
        InvalidRequestError: the settings cannot be read, or the entry belongs to another program.
    """
    return _plan(agent, name, None)


def _program() -> str:
    """Return the command that starts this program.

    This is the name of the program if the executable is found in PATH; otherwise the path of the
    executable in the folder of the Python interpreter.
    """
    if shutil.which(PROGRAM):
        return PROGRAM
    return str(Path(sys.executable).with_name(PROGRAM))


def _plan(agent: CodingAgent, name: str, entry: Entry | None) -> SettingsChange:
    path = Path(os.path.realpath(agent.path()))
    old_text = _read(path)
    keys = (*agent.keys, name)
    try:
        new_text = _edit(agent, old_text, keys, entry)
    except InvalidRequestError as error:
        raise InvalidRequestError(f"{path}: {error}") from None
    return SettingsChange(path, old_text, new_text)


def _edit(
    agent: CodingAgent,
    text: str,
    keys: Sequence[str],
    entry: Entry | None,
) -> str:
    """Return the text of a settings file after an entry is written or removed.

    Args:
        agent: the agent that reads the settings. The format is TOML if the suffix of its file is
            ``.toml``; otherwise it is JSON with comments.
        text: the text of the settings file before the change.
        keys: the path of keys in the settings to the entry.
        entry: the new entry; None to remove the existing entry.

    Raises:
        InvalidRequestError: `text` cannot be parsed, or the existing entry starts another program.
    """
    if agent.path().suffix == ".toml":
        _check_owner(toml_settings.read_table(text, keys), keys)
        if entry is None:
            return toml_settings.remove_table(text, keys)
        return toml_settings.set_table(text, keys, entry)
    _check_owner(json_settings.read_member(text, keys), keys)
    if entry is None:
        return json_settings.remove_member(text, keys)
    return json_settings.set_member(text, keys, entry)


def _check_owner(existing: Any, keys: Sequence[str]) -> None:
    """Raise an `InvalidRequestError` if an entry exists and does not start this program.

    Args:
        existing: the entry that the settings contain; None if there is none.
        keys: the path of keys in the settings to the entry, for the error message.
    """
    if existing is None:
        return
    command = existing.get("command") if isinstance(existing, dict) else None
    program = command[0] if isinstance(command, list) and command else command
    if not isinstance(program, str) or Path(program).stem != PROGRAM:
        rule = f"{'.'.join(keys)} starts another program"
        raise InvalidRequestError(rule, remedy="choose another name for the entry with --name")


def _read(path: Path) -> str:
    """Return the text of a settings file; "" if it does not exist.

    Raises:
        InvalidRequestError: the file is too large, not UTF-8, or cannot be read.
    """
    try:
        if path.stat().st_size > _MAX_SETTINGS_BYTES:
            raise InvalidRequestError(f"{path} must have at most {_MAX_SETTINGS_BYTES:,} bytes")
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        return ""
    except UnicodeDecodeError:
        raise InvalidRequestError(f"{path} must be UTF-8") from None
    except OSError as error:
        raise InvalidRequestError(f"{path} cannot be read: {error.strerror or error}") from None
