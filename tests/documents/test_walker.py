"""Tests of the file selection: ignore files as in git, options as in ripgrep."""

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from relevance_gen.documents.walker import Selection, Walker, list_file_types
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
def _working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


# ── Ignore files ──────────────────────────────────────────────────────────────────────────────────

_NAMES = st.sampled_from(["a", "b", "ab", "a.b", "b.a", ".a", "a b", "#a", "!b"])
_PATHS = st.lists(_NAMES, min_size=1, max_size=4).map("/".join)
_SEGMENTS = st.sampled_from(
    ["a", "b", "ab", "*", "a*", "*.b", "?", "[ab]", "[!a]", ".a", "**", "a b", "\\#a", "\\!b"]
)


@st.composite
def patterns(draw: st.DrawFn) -> str:
    """Draw lines of an ignore file: anchored, folders only, wildcards, negated, invalid."""
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
def test_walk_equals_git_ls_files(
    paths: set[str], ignored: dict[str, list[str]], excluded: list[str]
) -> None:
    """In any tree with any .gitignore files, the walk finds the files of `git ls-files`."""
    with tempfile.TemporaryDirectory() as folder:
        for path, content in [(path, "") for path in sorted(paths)] + [
            (os.path.join(parent, ".gitignore"), "\n".join(lines))
            for parent, lines in ignored.items()
        ]:
            try:
                os.makedirs(os.path.dirname(os.path.join(folder, path)), exist_ok=True)
                Path(folder, path).write_bytes(content.encode())
            except OSError:  # a name is a file in one list and a folder in the other list
                continue
        git(folder, "init", "--quiet")
        Path(folder, ".git/info").mkdir(exist_ok=True)
        Path(folder, ".git/info/exclude").write_text("\n".join(excluded))
        listed = git(folder, "ls-files", "-z", "--cached", "--others", "--exclude-standard").split(
            "\0"
        )[:-1]
        found = [os.path.relpath(path, folder) for path in walk(folder, hidden=True)]
        assert sorted(found) == sorted(listed)


def test_walk_uses_ignore_files_up_to_repository_root(tmp_path: Path) -> None:
    """Ignore files of parent folders apply up to the root of the repository, not above."""
    plant("repo/sub/a.txt", "repo/sub/b.txt", "repo/sub/c.txt")
    Path(".gitignore").write_text("c.txt")
    Path("repo/.gitignore").write_text("/sub/a.txt")
    assert walk("repo/sub") == ["repo/sub/a.txt", "repo/sub/b.txt", "repo/sub/c.txt"]
    Path("repo/.git").mkdir()
    assert walk("repo/sub") == ["repo/sub/b.txt", "repo/sub/c.txt"]
    os.chdir("repo/sub")
    assert walk() == ["b.txt", "c.txt"]


def test_ignore_file_overrides_gitignore(tmp_path: Path) -> None:
    """A pattern in .ignore overrides all .gitignore files, and `--no-ignore` disables both."""
    plant("a.txt", "b.txt", "c.txt", "deep/a.txt")
    Path(".gitignore").write_text("a.txt\nb.txt\n")
    Path("deep/.gitignore").write_text("a.txt")
    Path(".ignore").write_text("!a.txt\nc.txt\n")
    assert walk() == ["a.txt", "deep/a.txt"]
    assert walk(no_ignore=True) == ["a.txt", "b.txt", "c.txt", "deep/a.txt"]


def test_question_mark_matches_one_character(tmp_path: Path) -> None:
    """A question mark matches one character (git: one byte), and invalid lines are skipped."""
    plant("ä", "b")
    Path(".gitignore").write_bytes(b"\xef\xbb\xbf?\n!b\n[\n!\n\xff\n# comment\n/\n")
    assert walk() == ["b"]


# ── Options ───────────────────────────────────────────────────────────────────────────────────────


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
def test_last_matching_glob_wins(globs: list[str], found: list[str]) -> None:
    """The last matching glob decides, with ! as negation, also for hidden and ignored files."""
    plant("a.py", "a.md", "docs/b.py", "docs/b.md", "docs/api/c.py", "ignored.log", ".hidden")
    Path(".gitignore").write_text("*.log")
    assert walk(glob=tuple(globs)) == found


def test_glob_with_slash_is_relative_to_working_folder(tmp_path: Path) -> None:
    """A glob with a slash is relative to the working folder, for any form of the folder argument."""
    plant("docs/api/a.md", "docs/b.md")
    for top in ("docs", "./docs/", "docs/../docs"):
        assert [os.path.normpath(path) for path in walk(top, glob=("docs/*.md",))] == ["docs/b.md"]
    assert walk(str(tmp_path), glob=("docs/*.md",)) == [str(tmp_path / "docs/b.md")]


def test_empty_glob_raises() -> None:
    """A glob without a pattern raises an error."""
    for glob in ("", "!", "/"):
        with pytest.raises(
            InvalidRequestError, match=r"^glob must be a pattern as in \.gitignore, got "
        ):
            walk(glob=(glob,))


def test_types_select_files_by_extension(tmp_path: Path) -> None:
    """A type selects files by extension, in any case; several types select the files of each."""
    plant("a.py", "b.PYI", "c.md", "d.txt", "py")
    assert walk(types=("py",)) == ["a.py", "b.PYI"]
    assert walk(types=("py", "md")) == ["a.py", "b.PYI", "c.md"]
    assert walk(types=("py",), glob=("!b*",)) == ["a.py"]
    assert walk(types=("py",), glob=("*.md",)) == []
    assert "py: *.py, *.pyi\n" in list_file_types()
    with pytest.raises(InvalidRequestError, match=r"got 'markdow'; the types are c, config, cpp,"):
        walk(types=("markdow",))
    with pytest.raises(InvalidRequestError, match=r"got 'jsn'; did you mean json\?") as caught:
        walk(types=("jsn",))
    assert caught.value.field == "types"


def test_hidden_files(tmp_path: Path) -> None:
    """Hidden files and folders are taken on request, and the repository's own folder never without --no-ignore."""
    plant("a", ".b", ".c/d", ".git/e")
    assert walk() == ["a"]
    assert walk(hidden=True) == [".b", "a", ".c/d"]
    assert walk(no_ignore=True) == ["a"]
    assert walk(hidden=True, no_ignore=True) == [".b", "a", ".c/d", ".git/e"]


# ── Links and what else stands in folders ─────────────────────────────────────────────────────────


def test_walk_counts_or_follows_links(tmp_path: Path) -> None:
    """Links are counted or, on request, followed without cycles; a broken link is reported."""
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
    assert (list(walker.files("top")), walker.n_links, walker.has_failed) == (["top/a"], 3, False)
    assert walk("top", follow=True) == ["top/a", "top/file", "top/folder/away/b"]
    Path("link").symlink_to("top")
    assert walk("link") == ["link/a"]  # links in arguments are followed
    Path("top/broken").symlink_to("nowhere")
    Path("top/itself").symlink_to("itself")
    complaints: list[str] = []
    walker = Walker(Selection(follow=True), lambda path, why: complaints.append(f"{path}: {why}"))
    assert len(list(walker.files("top"))) == 3
    said = [
        "top/broken: the target of the symbolic link does not exist",
        "top/itself: Too many levels of symbolic links",
    ]
    assert (complaints, walker.has_failed) == (said, True)
    assert len(list(Walker(Selection(), pytest.fail).files("top"))) == 1


def test_walk_reports_unreadable_folder(tmp_path: Path) -> None:
    """An unreadable or removed folder is reported, and the walk continues."""
    plant("a/x", "b/y", "c/z")
    complaints: list[str] = []
    walker = Walker(Selection(), lambda path, why: complaints.append(f"{path}: {why}"))
    found = []
    for path in walker.files("."):
        shutil.rmtree("b", ignore_errors=True)
        found.append(path)
    assert (found, complaints, walker.has_failed) == (
        ["a/x", "c/z"],
        ["b: No such file or directory"],
        True,
    )


def test_walk_skips_pipes(tmp_path: Path) -> None:
    """A named pipe is skipped."""
    plant("a")
    os.mkfifo("pipe")
    assert walk() == ["a"]


def test_walk_of_deep_tree(tmp_path: Path) -> None:
    """A tree as deep as the path limit allows is walked."""
    deep = "/".join(["d"] * 1_500)
    folders = [deep[:end] for end in range(1, len(deep) + 1, 2)]
    for folder in folders:
        os.mkdir(folder)
    Path(f"{deep}/a").write_text("")
    found = walk()
    os.remove(f"{deep}/a")
    for folder in reversed(folders):  # pytest cannot remove a tree of this depth after the test
        os.rmdir(folder)
    assert found == [f"{deep}/a"]


def test_walker_drops_removed_ignore_files() -> None:
    """A repeated walk keeps only the patterns of ignore files that still exist."""
    plant("a/one.txt", "b/two.txt", **{"a/.gitignore": "*.log", "b/.gitignore": "*.tmp"})
    walker = Walker(Selection(), lambda *_: None)
    assert list(walker.files(".")) == ["a/one.txt", "b/two.txt"]
    shutil.rmtree("a")
    for _ in range(2):
        assert list(walker.files(".")) == ["b/two.txt"]
    cached_files = [*walker._patterns, *walker._previous_patterns]
    names = [Path(path).parts[-2:] for path, _content in cached_files]
    assert names == [("b", ".gitignore")] * 2
