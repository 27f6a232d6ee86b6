"""Tests of the documentation: code blocks and commands run with the documented output."""

import contextlib
import doctest
import os
import re
import signal
import socket
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import relevance_gen
from relevance_gen import errors

ROOT = Path(__file__).parents[1]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
_BLOCK = re.compile(r"(?<!-->\n)^```(python|pycon)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
"""A block of Python; not one under a comment, ``<!-- not run: … -->``."""
_PRINTED = re.compile(r"^ *print\(.*\)  # (.+)$", re.MULTILINE)
"""The documented output of a Python line."""
COMMANDS = {
    "README.md": ["The ferry to the island leaves at seven", '"chunk_txt":"Apples are red."'],
    "clients.md": ['"relevance_score":', '"finish_reason":"length"'],
}
"""The documents whose commands run in an empty folder, with parts of the expected output."""
_SHELL = re.compile(r"(?<!-->\n)^```sh\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_python_blocks_print_documented_output(
    document: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All Python blocks of a document run in order in an empty folder."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    text = document.read_text(encoding="utf-8")
    for block in _BLOCK.finditer(text):
        line = text.count("\n", 0, block.start())
        if block[1] == "pycon":
            example = doctest.DocTestParser().get_doctest(
                block[2], names, document.name, str(document), line
            )
            report: list[str] = []
            doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(
                example, out=report.append, clear_globs=False
            )
            assert not report, "".join(report)
            names.update(example.globs)
        else:
            exec(compile("\n" * line + block[2], document, "exec"), names)  # noqa: S102
            printed = capsys.readouterr().out
            assert [text for text in _PRINTED.findall(block[2]) if text not in printed] == []


def free_port() -> int:
    """Return a free port below the range of ephemeral ports."""
    for port in range(20_000, 30_000):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError


@pytest.mark.parametrize("name", COMMANDS)
def test_shell_blocks_run(name: str, tmp_path: Path) -> None:
    """The commands of a document run in order in an empty folder, with a replaced port."""
    port = free_port()
    text = next(path for path in DOCUMENTS if path.name == name).read_text(encoding="utf-8")
    commands = (
        "".join(_SHELL.findall(text))
        .replace(":8000", f":{port}")
        .replace("--port 8000", f"--port {port}")
    )
    folder = Path(sys.executable).parent
    environment = {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    shell = subprocess.Popen(
        ["/usr/bin/env", "bash", "-eu", "-c", f"trap 'kill $(jobs -p); wait' EXIT\n{commands}"],
        cwd=tmp_path,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        printed, trouble = shell.communicate(timeout=60)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, trouble
    assert [wanted for wanted in COMMANDS[name] if wanted not in printed] == [], printed


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_relative_links_name_existing_files(document: Path) -> None:
    """Every relative link of a document names a file that is there."""
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text(encoding="utf-8"))
    assert [target for target in targets if not (document.parent / target).exists()] == []


def test_reference_has_public_names() -> None:
    """Each public name is on the reference page; errors are listed as a module."""
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    names = [name for name in relevance_gen.__all__ if not hasattr(errors, name)]
    assert [name for name in names if not re.search(rf"\b{name}\b", page)] == []


def test_architecture_lists_packages_and_modules() -> None:
    """The listing has each folder and each top-level module of the package."""
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    listing = page.split("```text\n")[1].split("```")[0]
    package = ROOT / "relevance_gen"
    rooms = [f"{folder.parent.name}/" for folder in package.glob("*/__init__.py")]
    modules = [path.stem for path in package.glob("[a-z]*.py")]
    assert [
        name for name in rooms + modules if not re.search(rf"(?<![\w/]){name}(?!\w)", listing)
    ] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_extras_and_groups_exist(document: Path) -> None:
    """Each extra and dependency group in an installation command exists in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    text = document.read_text(encoding="utf-8")
    extras = {
        extra
        for named in re.findall(r"pip install.*[\"' ](?:relevance_gen|\.)\[([\w,]+)\]", text)
        for extra in named.split(",")
    }
    assert extras <= set(project["project"]["optional-dependencies"])
    assert set(re.findall(r"--group (\w+)", text)) <= set(project["dependency-groups"])
