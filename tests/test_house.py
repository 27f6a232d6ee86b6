"""The package as a whole: light to import, complete to import from, and whole when it is built."""

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
    """The command line loads nothing heavy before it knows the command."""
    assert not HEAVY & set(run("-c", "import relevance_gen.cli, sys; print(*sys.modules)").split())


def test_search_loads_no_model_library() -> None:
    """Searching plain chunks loads neither llama_cpp, aiohttp nor cattrs, nor, where gigatoken counts, tiktoken."""
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
    """Without llama.cpp and templates all of search works, and generating says what to install."""
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
    assert "pip install 'llama-cpp-python>=" in run("-c", script)


def test_the_server_says_which_extra_is_missing() -> None:
    """Without the server's packages, starting it names the extra instead of showing a traceback."""
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
def test_what_an_extra_lacks_is_named_by_its_packages(extra: str) -> None:
    """Whoever lacks a package is told to install the packages of the extra, with their bounds, and nothing else."""
    command = to_install(extra)
    named = [{*re.split("(?=[<>=]=?)|,", one)} for one in re.findall(r"'(.*?)'", command)]
    asked = [{*re.split("(?=[<>=]=?)|,", one)} for one in PROJECT["optional-dependencies"][extra]]
    assert command.startswith("pip install '")
    assert named == asked


def test_an_extra_is_named_where_nothing_tells_its_packages(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A copied folder has no metadata: then the extra itself is what can be named."""

    def unknown(name: str) -> list[str]:
        raise importlib.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "requires", unknown)
    assert to_install("hub") == "pip install 'relevance_gen[hub]'"


def test_there_is_one_version() -> None:
    """The package, its metadata and the changelog's newest part name the same version."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["version"] == relevance_gen.__version__
    assert f"## [{relevance_gen.__version__}] - " in (ROOT / "CHANGELOG.md").read_text(
        encoding="utf-8"
    )


def test_search_alone_has_the_dependencies_of_the_library() -> None:
    """The group for search alone is the library's dependencies without a model's, and what counts tokens quickly."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))[
        "dependency-groups"
    ]
    for_models = ("llama-cpp-python", "jinja2")
    wanted = [d for d in PROJECT["dependencies"] if not d.startswith(for_models)]
    assert groups["search"] == sorted([*wanted, *PROJECT["optional-dependencies"]["fast"]])


def test_names_are_sorted_and_there() -> None:
    """`__all__` is sorted, without doubles, each name in it can be had, and `dir` shows these and the version."""
    assert relevance_gen.__all__ == sorted(set(relevance_gen.__all__))
    for name in relevance_gen.__all__:
        assert getattr(relevance_gen, name).__name__ == name
    assert set(dir(relevance_gen)) == {*relevance_gen.__all__, "__version__"}


def test_unknown_name_is_an_attribute_error() -> None:
    """What the package does not have is an `AttributeError`, as in any module."""
    with pytest.raises(AttributeError, match="no attribute 'searh'"):
        relevance_gen.searh  # noqa: B018


def modules() -> list[str]:
    paths = (
        path.relative_to(ROOT).with_suffix("") for path in (ROOT / "relevance_gen").rglob("*.py")
    )
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
    package = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "relevance_gen").rglob("*")
        if path.is_file()
    }
    # Other processes that run tests may be writing theirs.
    assert packed == {path for path in package if "__pycache__" not in path}
    assert {"relevance_gen/py.typed", "relevance_gen/assets/embedded.tiktoken"} <= packed
