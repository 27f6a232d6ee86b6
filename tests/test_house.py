"""Tests of the package: import time, public names, optional dependencies, wheel content."""

import importlib
import importlib.metadata
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

import relevance_gen
from relevance_gen.errors import to_install

ROOT = Path(__file__).parents[1]
HEAVY = {
    "aiohttp",
    "cattrs",
    "gigatoken",
    "llama_cpp",
    "numpy",
    "pypdfium2",
    "ray",
    "sklearn",
    "tiktoken",
}

SHOW_IMPORT = """
import sys, time
started = time.process_time()
import relevance_gen
print(time.process_time() - started, *sys.modules)
"""


def run(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_import_is_light() -> None:
    """Importing the package takes under 0.3 s of a processor and loads nothing heavy."""
    outputs = [run("-c", SHOW_IMPORT).split() for _ in range(3)]
    assert min(float(seconds) for seconds, *_ in outputs) < 0.3
    assert not HEAVY & set(outputs[0][1:])


def test_help_is_light() -> None:
    """Importing the command line loads no heavy module before the command is parsed."""
    assert not HEAVY & set(run("-c", "import relevance_gen.cli, sys; print(*sys.modules)").split())


def test_mcp_start_loads_no_search() -> None:
    """The modules that answer ``initialize`` over stdio load neither numpy nor a model library."""
    code = "import sys, relevance_gen.cli.mcp, relevance_gen.agents.protocol; print(*sys.modules)"
    assert not HEAVY & set(run("-c", code).split())


def test_search_loads_no_model_library() -> None:
    """A search of plain chunks loads no model, server or scikit-learn modules, and no tiktoken."""
    modules = run(
        "-c", "import sys, relevance_gen as r; r.search('a', ['a']); print(*sys.modules)"
    ).split()
    assert not {"aiohttp", "cattrs", "llama_cpp", "sklearn", "tiktoken"} & set(modules)


def without(*missing: str) -> str:
    """Python that hides packages, as if they were not installed."""
    return f"""
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def test_search_alone_needs_no_model_library() -> None:
    """Without llama.cpp and Jinja all search features work; `generate` names the extra."""
    script = (
        without("llama_cpp", "jinja2")
        + """
import relevance_gen as rg
index = rg.ChunkIndex(["Apples are red.", "Bananas are yellow."])
assert index.search("Which fruit is red?").best[0].chunk_txt == "Apples are red."
try:
    rg.generate("Once upon a time")
except rg.ModelLoadError as error:
    print(error)
"""
    )
    assert "pip install 'jinja2>=3.1.6' 'llama-cpp-python" in run("-c", script)


def test_server_without_packages_names_extra() -> None:
    """Without the server's packages the error names the extra instead of a traceback."""
    script = (
        without("aiohttp") + "from relevance_gen.serve.__main__ import main; sys.exit(main([]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "pip install 'aiohttp" in done.stderr
    assert "Traceback" not in done.stderr


PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.mark.parametrize("extra", PROJECT["optional-dependencies"])
def test_to_install_lists_packages_of_extra(extra: str) -> None:
    """The installation command has the packages of the extra with their version bounds."""
    command = to_install(extra)
    named = [{*re.split("(?=[<>=]=?)|,", one)} for one in re.findall(r"'(.*?)'", command)]
    asked = [
        {*re.split("(?=[<>=]=?)|,", dependency)}
        for dependency in PROJECT["optional-dependencies"][extra]
    ]
    assert command.startswith("pip install '")
    assert named == asked


def test_to_install_without_metadata_names_extra(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without package metadata, as in a copied folder, the command names the extra."""

    def unknown(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    assert to_install("hub") == "pip install 'relevance_gen[hub]'"


def test_version_is_consistent() -> None:
    """Package, metadata, citation file and newest changelog entry have the same version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == relevance_gen.__version__
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\nversion: {relevance_gen.__version__}\n" in citation
    assert f"## [{relevance_gen.__version__}] - " in (ROOT / "CHANGELOG.md").read_text(
        encoding="utf-8"
    )


def test_dependencies_need_no_compiler() -> None:
    """`pip install relevance_gen` installs search only; what compiles or generates is an extra."""
    extra = PROJECT["optional-dependencies"]["generate"]
    assert [re.split("[<>=]", requirement)[0] for requirement in extra] == [
        "jinja2",
        "llama-cpp-python",
    ]
    assert not set(extra) & set(PROJECT["dependencies"])


def test_public_names_are_sorted_and_available() -> None:
    """`__all__` is sorted and unique, and `dir` lists its names and the version."""
    assert relevance_gen.__all__ == sorted(set(relevance_gen.__all__))
    for name in relevance_gen.__all__:
        assert getattr(relevance_gen, name).__name__ == name
    assert set(dir(relevance_gen)) == {*relevance_gen.__all__, "__version__"}


def test_unknown_name_raises_attribute_error() -> None:
    """An unknown attribute of the package raises `AttributeError`."""
    with pytest.raises(AttributeError, match="no attribute 'searh'"):
        relevance_gen.searh  # noqa: B018


def modules() -> list[str]:
    paths = (
        path.relative_to(ROOT).with_suffix("") for path in (ROOT / "relevance_gen").rglob("*.py")
    )
    return sorted(".".join(path.parts).removesuffix(".__init__") for path in paths)


@pytest.mark.parametrize("module", modules())
def test_modules_define_their_public_names(module: str) -> None:
    """Each module can be imported separately and defines all names of its `__all__`."""
    if module.startswith("relevance_gen.cluster."):
        pytest.importorskip("ray", reason="the extra cluster is not installed")
    loaded = importlib.import_module(module)
    assert all(hasattr(loaded, name) for name in getattr(loaded, "__all__", ()))


def test_wheel_contains_package_files(tmp_path: Path) -> None:
    """The wheel contains all files of the package, including assets, and no other files."""
    run("-m", "hatchling", "build", "--target", "wheel", "--directory", str(tmp_path))
    (wheel,) = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if not name.startswith("relevance_gen-")}
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "relevance_gen").rglob("*")
        if path.is_file()
    }
    # Other processes that run tests may be writing theirs.
    assert packed == {path for path in package if "__pycache__" not in path}
    assert {"relevance_gen/py.typed", "relevance_gen/assets/embedded.tiktoken"} <= packed
