"""Which files of a folder are searched: as git sees them, and as ripgrep lets one choose."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.documents.filetypes import listing
from relevance_gen.documents.walker import Selection, Walker
from relevance_gen.errors import InvalidRequestError
from tests.profiles import costly


def walk(top: str = ".", **wanted: object) -> list[str]:
    """Return the files that a walk finds, and fail where it complains."""
    complaints: list[str] = []
    found = list(
        Walker(Selection(**wanted), lambda path, why: complaints.append(f"{path}: {why}")).files(
            top
        )
    )  # type: ignore[arg-type]
    assert complaints == []
    return found


def plant(*paths: str, **contents: str) -> None:
    for path in paths:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(path)
    for name, content in contents.items():
        Path(name).write_text(content)


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ── Ignore files ─────────────────────────────────────────────────────────────────────────────────────────────────────

_NAMES = st.sampled_from(["a", "b", "ab", "a.b", "b.a", ".a", "a b", "#a", "!b"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)
_SEGMENTS = st.sampled_from(
    ["a", "b", "ab", "*", "a*", "*.b", "?", "[ab]", "[!a]", ".a", "**", "a b", "\\#a", "\\!b"]
)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Lines of an ignore file: anchored or not, of folders only or not, with all wildcards, negated, and odd ones."""
    segments = draw(st.lists(_SEGMENTS, min_size=1, max_size=3))
    line = (
        draw(st.sampled_from(["", "", "/"]))
        + "/".join(segments)
        + draw(st.sampled_from(["", "", "/"]))
    )
    return draw(st.sampled_from(["", "", "!"])) + line + draw(st.sampled_from(["", "", " ", "\r"]))


_FILES_OF_PATTERNS = st.dictionaries(
    st.lists(_NAMES, max_size=2).map("/".join),
    st.lists(patterns(), min_size=1, max_size=4),
    max_size=3,
)


def git(folder: str, *arguments: str) -> str:
    alone = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "XDG_CONFIG_HOME": folder,
    }
    done = subprocess.run(
        ["git", *arguments],  # noqa: S607
        cwd=folder,
        env=alone,
        capture_output=True,
        check=True,
        timeout=300,
    )
    return os.fsdecode(done.stdout)


@pytest.mark.skipif(shutil.which("git") is None, reason="git is the reference")
@costly
@given(
    paths=st.sets(_PATHS, max_size=12),
    ignored=_FILES_OF_PATTERNS,
    excluded=st.lists(patterns(), max_size=2),
)
def test_a_walk_finds_what_git_lists(
    paths: set[str], ignored: dict[str, list[str]], excluded: list[str]
) -> None:
    """In any tree, with any .gitignore files in it, the files found are those that `git ls-files` lists."""
    with tempfile.TemporaryDirectory() as folder:
        for path, content in [(path, "") for path in sorted(paths)] + [
            (os.path.join(parent, ".gitignore"), "\n".join(lines))
            for parent, lines in ignored.items()
        ]:
            try:
                os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
                Path(folder, path).write_bytes(content.encode())
            except OSError:  # one of the names is a file here and a folder there
                continue
        git(folder, "init", "--quiet")
        Path(folder, ".git/info").mkdir(exist_ok=True)
        Path(folder, ".git/info/exclude").write_text("\n".join(excluded))
        listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split(
            "\0"
        )[:-1]
        found = [os.path.relpath(path, folder) for path in walk(folder, hidden=True)]
        assert sorted(found) == sorted(listed)


def test_the_ignore_files_above_count(tmp_path: Path) -> None:
    """Below a folder of a repository, the ignore files above it count up to the repository's root, and none beyond."""
    plant("repo/sub/a.txt", "repo/sub/b.txt", "repo/sub/c.txt")
    Path(".gitignore").write_text("c.txt")
    Path("repo/.gitignore").write_text("/sub/a.txt")
    assert walk("repo/sub") == ["repo/sub/a.txt", "repo/sub/b.txt", "repo/sub/c.txt"]
    Path("repo/.git").mkdir()
    assert walk("repo/sub") == ["repo/sub/b.txt", "repo/sub/c.txt"]
    os.chdir("repo/sub")
    assert walk() == ["b.txt", "c.txt"]


def test_ignore_overrules_gitignore(tmp_path: Path) -> None:
    """What an .ignore file says counts more than what any .gitignore says, and --no-ignore passes over both."""
    plant("a.txt", "b.txt", "c.txt", "deep/a.txt")
    Path(".gitignore").write_text("a.txt\nb.txt\n")
    Path("deep/.gitignore").write_text("a.txt")
    Path(".ignore").write_text("!a.txt\nc.txt\n")
    assert walk() == ["a.txt", "deep/a.txt"]
    assert walk(no_ignore=True) == ["a.txt", "b.txt", "c.txt", "deep/a.txt"]


def test_a_wildcard_stands_for_a_character(tmp_path: Path) -> None:
    """A question mark is one character, where git counts bytes; a line that is no pattern is passed over."""
    plant("ä", "b")
    Path(".gitignore").write_bytes(b"\xef\xbb\xbf?\n!b\n[\n!\n\xff\n# comment\n/\n")
    assert walk() == ["b"]


# ── Options ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("globs", "found"),
    [
        (["*.py"], ["a.py", "docs/b.py", "docs/api/c.py"]),
        (["!*.py"], ["a.md", "docs/b.md"]),
        (["docs/*.py"], ["docs/b.py"]),
        (["docs/**"], ["docs/b.md", "docs/b.py", "docs/api/c.py"]),
        (["!docs"], ["a.md", "a.py"]),
        (["*.py", "!docs/**"], ["a.py"]),
        (["!docs/*.py", "*.py"], ["a.py", "docs/b.py", "docs/api/c.py"]),
        (["*.py", "!api"], ["a.py", "docs/b.py"]),
        (["*.log"], ["ignored.log"]),
        ([".hidden"], [".hidden"]),
    ],
)
def test_globs_decide(globs: list[str], found: list[str]) -> None:
    """The last glob that matches decides, with ! against, even on what is hidden or ignored."""
    plant("a.py", "a.md", "docs/b.py", "docs/b.md", "docs/api/c.py", "ignored.log", ".hidden")
    Path(".gitignore").write_text("*.log")
    assert walk(glob=tuple(globs)) == found


def test_globs_are_relative_to_the_working_folder(tmp_path: Path) -> None:
    """A glob with a slash counts from the working folder, whatever folder is searched and however it is named."""
    plant("docs/api/a.md", "docs/b.md")
    for top in ("docs", "./docs/", "docs/../docs"):
        assert [os.path.normpath(path) for path in walk(top, glob=("docs/*.md",))] == ["docs/b.md"]
    assert walk(str(tmp_path), glob=("docs/*.md",)) == [str(tmp_path / "docs/b.md")]


def test_a_glob_that_is_none_is_refused() -> None:
    """A glob without a pattern in it is an error that says so."""
    for glob in ("", "!", "/"):
        with pytest.raises(
            InvalidRequestError, match=r"^glob must be a pattern as in \.gitignore, got "
        ):
            walk(glob=(glob,))


def test_types(tmp_path: Path) -> None:
    """A type takes files by the ending of their names, in any case; several types take the files of each."""
    plant("a.py", "b.PYI", "c.md", "d.txt", "py")
    assert walk(types=("py",)) == ["a.py", "b.PYI"]
    assert walk(types=("py", "md")) == ["a.py", "b.PYI", "c.md"]
    assert walk(types=("py",), glob=("!b*",)) == ["a.py"]
    assert walk(types=("py",), glob=("*.md",)) == []
    assert "py: *.py, *.pyi\n" in listing()
    with pytest.raises(
        InvalidRequestError, match="there is no file type 'markdow'; --type-list shows them all"
    ):
        walk(types=("markdow",))
    with pytest.raises(
        InvalidRequestError, match=r"there is no file type 'jsn'; did you mean json\?"
    ):
        walk(types=("jsn",))


def test_hidden_files(tmp_path: Path) -> None:
    """Hidden files and folders are taken on request, and the repository's own folder never without --no-ignore."""
    plant("a", ".b", ".c/d", ".git/e")
    assert walk() == ["a"]
    assert walk(hidden=True) == [".b", "a", ".c/d"]
    assert walk(no_ignore=True) == ["a"]
    assert walk(hidden=True, no_ignore=True) == [".b", "a", ".c/d", ".git/e"]


# ── Links and what else stands in folders ────────────────────────────────────────────────────────────────────────────


def test_links_are_counted_or_followed(tmp_path: Path) -> None:
    """Links met on the way are counted; on request they are followed, but in no circle, and a broken one is named."""
    plant("far/away/b", "top/a", "top/ignored/c")
    Path("top/.ignore").write_text("ignored")
    for name, target in {
        "file": "../far/away/b",
        "folder": "../far",
        "circle": ".",
        "ignored/link": "c",
    }.items():
        Path("top", name).symlink_to(target)
    walker = Walker(Selection(), pytest.fail)
    assert (list(walker.files("top")), walker.n_links, walker.failed) == (["top/a"], 3, False)
    assert walk("top", follow=True) == ["top/a", "top/file", "top/folder/away/b"]
    Path("link").symlink_to("top")
    assert walk("link") == ["link/a"]  # what is named is followed
    Path("top/broken").symlink_to("nowhere")
    Path("top/itself").symlink_to("itself")
    complaints: list[str] = []
    walker = Walker(Selection(follow=True), lambda path, why: complaints.append(f"{path}: {why}"))
    assert len(list(walker.files("top"))) == 3
    said = ["top/broken: the link leads nowhere", "top/itself: Too many levels of symbolic links"]
    assert (complaints, walker.failed) == (said, True)
    assert len(list(Walker(Selection(), pytest.fail).files("top"))) == 1


def test_a_folder_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A folder that cannot be read, or has gone meanwhile, is said, and the walk goes on."""
    plant("a/x", "b/y", "c/z")
    complaints: list[str] = []
    walker = Walker(Selection(), lambda path, why: complaints.append(f"{path}: {why}"))
    found = []
    for path in walker.files("."):
        shutil.rmtree("b", ignore_errors=True)
        found.append(path)
    assert (found, complaints, walker.failed) == (
        ["a/x", "c/z"],
        ["b: No such file or directory"],
        True,
    )


def test_only_files_are_found(tmp_path: Path) -> None:
    """A pipe in a folder is no file to wait for."""
    plant("a")
    os.mkfifo("pipe")
    assert walk() == ["a"]


def test_a_deep_tree(tmp_path: Path) -> None:
    """A tree as deep as paths can be long is walked."""
    deep = "/".join(["d"] * 1_500)
    folders = [deep[:end] for end in range(1, len(deep) + 1, 2)]
    for folder in folders:
        os.mkdir(folder)
    Path(f"{deep}/a").write_text("")
    found = walk()
    os.remove(f"{deep}/a")
    for folder in reversed(
        folders
    ):  # pytest removes what is left of a test, and cannot do it of this
        os.rmdir(folder)
    assert found == [f"{deep}/a"]


def test_ignore_files_that_are_gone_are_forgotten() -> None:
    """A walker that walks again remembers the ignore files that are there, and no others."""
    plant("a/one.txt", "b/two.txt", **{"a/.gitignore": "*.log", "b/.gitignore": "*.tmp"})
    walker = Walker(Selection(), lambda *_: None)
    assert list(walker.files(".")) == ["a/one.txt", "b/two.txt"]
    shutil.rmtree("a")
    for _ in range(2):
        assert list(walker.files(".")) == ["b/two.txt"]
    assert [
        Path(path).parts[-2:] for path in (*walker._ignore_files, *walker._previous_ignore_files)
    ] == [("b", ".gitignore")] * 2
