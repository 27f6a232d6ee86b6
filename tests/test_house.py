"""The package as a whole: light to import, complete to import from, and whole when it is built."""

import importlib
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import relevance_gen

ROOT = Path(__file__).parents[1]
HEAVY = {"aiohttp", "cattrs", "gigatoken", "llama_cpp", "numpy", "pathspec", "pypdf", "ray", "sklearn", "tiktoken"}

SHOW_IMPORT = """
import sys, time
started = time.perf_counter()
import relevance_gen
print(time.perf_counter() - started, *sys.modules)
"""


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    """Importing the package takes under 0.3 s and loads nothing heavy."""
    outputs = [run("-c", SHOW_IMPORT).split() for _ in range(3)]
    assert min(float(seconds) for seconds, *_ in outputs) < 0.3
    assert not HEAVY & set(outputs[0][1:])


def test_help_is_light() -> None:
    """The command line loads nothing heavy before it knows the command."""
    assert not HEAVY & set(run("-c", "import relevance_gen.cli, sys; print(*sys.modules)").split())


def test_search_loads_no_model_library() -> None:
    """Searching loads neither llama_cpp nor aiohttp, nor, where gigatoken counts, tiktoken."""
    modules = run("-c", "import sys, relevance_gen as r; r.search('a', ['a']); print(*sys.modules)").split()
    assert not {"aiohttp", "llama_cpp", "sklearn", "tiktoken"} & set(modules)


def test_names_are_sorted_and_there() -> None:
    """`__all__` is sorted, without doubles, and every name in it can be had and is shown by `dir`."""
    assert relevance_gen.__all__ == sorted(set(relevance_gen.__all__))
    for name in relevance_gen.__all__:
        assert getattr(relevance_gen, name).__name__ == name
        assert name in dir(relevance_gen)


def test_unknown_name_is_an_attribute_error() -> None:
    """What the package does not have is an `AttributeError`, as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'searh'"):
        relevance_gen.searh  # noqa: B018


def modules() -> list[str]:
    paths = (path.relative_to(ROOT).with_suffix("") for path in (ROOT / "relevance_gen").rglob("*.py"))
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)


@pytest.mark.parametrize("module", modules())
def test_every_public_name_is_there(module: str) -> None:
    """Every module can be imported by itself and has what its `__all__` lists."""
    if module.startswith("relevance_gen.cluster."):
        pytest.importorskip("ray", reason="the extra cluster is not installed")
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in getattr(loaded, "__all__", ()))


def test_wheel_holds_the_package(tmp_path: Path) -> None:
    """The wheel holds every file of the package, the assets among them, and nothing else."""
    run("-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.startswith("relevance_gen-")}
    package = (path for path in (ROOT / "relevance_gen").rglob("*") if path.is_file() and path.suffix != ".pyc")
    assert packed == {str(path.relative_to(ROOT)) for path in package}
    assert {"relevance_gen/py.typed", "relevance_gen/assets/embedded.tiktoken"} <= packed
