"""What is measured, trained and shown imports what the library has, also where no test runs it."""

import ast
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted(
    path
    for room in ("bench", "examples", "tools", "training")
    for path in (ROOT / room).rglob("*.py")
)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_script_imports_what_is_there(script: Path) -> None:
    """Every name that a script imports from the library is in the module that it names."""
    for node in ast.walk(ast.parse(script.read_text(encoding="utf-8"))):
        if (
            isinstance(node, ast.ImportFrom)
            and (node.module or "").partition(".")[0] == "relevance_gen"
        ):
            module = importlib.import_module(str(node.module))
            for name in node.names:
                if not hasattr(module, name.name):
                    importlib.import_module(f"{node.module}.{name.name}")
