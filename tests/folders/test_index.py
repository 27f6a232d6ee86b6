"""Tests of `FolderIndex`: after any file changes it answers like a newly built index."""

import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from relevance_gen import ChunkIndex, InvalidRequestError
from relevance_gen.folders import files as files_module
from relevance_gen.folders.folder_index import FolderIndex
from tests.cli.documents import pptx
from tests.profiles import costly

_WORDS = ["apple", "pear", "plum", "red", "green"]
_NAMES = st.sampled_from(
    ["a.txt", "b.py", "a/a.txt", "a/b.txt", "a/c/z", "b/a.md", "é.txt", ".hidden", "skip.log"]
)
_TEXTS = st.lists(st.sampled_from([*_WORDS, "\n", "\n\n", "é"]), max_size=12).map(" ".join)
_QUESTIONS = ("red apple", "green plums and pears", "é")


_FILTERS = (None, {"path": ["a.txt", "a/b.txt"]}, lambda data: data["first_line"] > 1)


def answers(index: FolderIndex, turn: int) -> list[Any]:
    """Return the complete results of all queries, with filter and `distinct` varied by turn."""
    return [
        (list(found), found.confidence, found.metadata)
        for number, question in enumerate(_QUESTIONS, turn)
        for where, distinct in [(_FILTERS[number % 3], (None, "path")[number % 2])]
        for options in [{"where": where, "distinct": distinct, "neighbors": number % 3}]
        for found in [index.search(question, 5, spans=True, **options)]
    ]


class Changes(RuleBasedStateMachine):
    """Files are added, changed, removed, renamed and turned binary between searches; processes come and go."""

    @initialize()
    def begin(self) -> None:
        """Create an empty folder that ignores log files."""
        self.top = tempfile.TemporaryDirectory()
        self.root, self.cache = Path(self.top.name, "root"), Path(self.top.name, "cache")
        self.root.mkdir()
        (self.root / ".gitignore").write_text("*.log\n")
        self.index = FolderIndex(self.root, max_chars=12, cache=self.cache)
        self.turn = 0

    def teardown(self) -> None:
        """Remove the folder."""
        self.top.cleanup()

    def at(self, name: str) -> Path:
        """Return a path in folders that are there."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    @rule(name=_NAMES, text=_TEXTS)
    def write(self, name: str, text: str) -> None:
        """Write a file."""
        self.at(name).write_text(text)

    @rule(name=_NAMES, text=_TEXTS)
    def append(self, name: str, text: str) -> None:
        """Let a file grow."""
        with self.at(name).open("a") as file:
            file.write(text)

    @rule(name=_NAMES)
    def turn_binary(self, name: str) -> None:
        """Make a file binary."""
        self.at(name).write_bytes(b"\0apple")

    @rule(name=_NAMES)
    def remove(self, name: str) -> None:
        """Remove a file."""
        self.at(name).unlink(missing_ok=True)

    @rule(old=_NAMES, new=_NAMES)
    def rename(self, old: str, new: str) -> None:
        """Rename a file."""
        if self.at(old).exists():
            self.at(old).replace(self.at(new))

    @rule(old=st.sampled_from("ab"), new=st.sampled_from("bc"))
    def rename_folder(self, old: str, new: str) -> None:
        """Rename a folder with all its files."""
        if (self.root / old).is_dir() and not (self.root / new).exists():
            (self.root / old).rename(self.root / new)

    @rule(name=_NAMES, words=st.permutations(["apple", "plumb", "green"]))
    def write_with_the_same_size_and_time(self, name: str, words: list[str]) -> None:
        """Change a file so that its size and the time of its content stay."""
        path = self.at(name)
        before = path.stat() if path.exists() else None
        path.write_text(" ".join(words))
        if before is not None:
            os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    @rule(patterns=st.sampled_from(["*.log\n", "*.txt\n", "a/\n", ""]))
    def ignore(self, patterns: str) -> None:
        """Change the ignore patterns."""
        (self.root / ".gitignore").write_text(patterns)

    @rule()
    def start_a_process(self) -> None:
        """Open a new index that loads the cache."""
        self.index = FolderIndex(self.root, max_chars=12, cache=self.cache)

    @invariant()
    def answers_equal_new_index(self) -> None:
        """Compare all answers with a newly built index without a cache."""
        fresh = FolderIndex(self.root, max_chars=12, cache=False)
        self.turn += 1
        assert answers(self.index, self.turn) == answers(fresh, self.turn)
        assert (len(self.index), self.index.files(), self.index.skipped) == (
            len(fresh),
            fresh.files(),
            fresh.skipped,
        )
        for position in range(self.turn % 4, len(fresh), 4):
            assert self.index.explain("red apples", position) == fresh.explain(
                "red apples", position
            )


TestChanges = Changes.TestCase
TestChanges.settings = settings(costly, stateful_step_count=20)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    root = tmp_path / "root"
    (root / "src").mkdir(parents=True)
    (root / "src" / "fruit.py").write_text(
        "def apple():\n    return 'red'\n\n\ndef pear():\n    return 'green'\n"
    )
    (root / "notes.txt").write_text("Apples are red.\n\nPears are green.\n")
    (root / ".env").write_text("secret apple")
    return root


def test_results_have_file_locations(root: Path) -> None:
    """Path, lines and character offsets of a result identify its text in the file."""
    index = FolderIndex(root, max_chars=30)
    assert {result.metadata["path"] for result in index.search("apples")} == {
        "notes.txt",
        "src/fruit.py",
    }
    for result in index.search("green pears"):
        place = result.metadata
        text = (root / place["path"]).read_text()
        assert text[place["start"] : place["end"]] == result.chunk_txt
        lines = index.read(place["path"], place["first_line"], place["last_line"]).text
        assert result.chunk_txt.strip() in lines


def test_folder_index_scores_equal_chunk_index(root: Path) -> None:
    """Scores and positions equal a `ChunkIndex` of the same texts with file names as titles."""
    response = FolderIndex(root, by_file=False).search("green pears", true_order=False)
    names = ("notes.txt", "src/fruit.py")
    chunks = [{"text": (root / name).read_text().rstrip("\n"), "title": name} for name in names]
    plain = ChunkIndex(chunks).search("green pears", true_order=False)
    assert [evolve(one, metadata={}) for one in response] == list(plain)


def test_neighbors_end_at_the_end_of_a_file(tmp_path: Path) -> None:
    """A chunk lends score to the next chunk of its file, and not to the next file."""
    (tmp_path / "a.txt").write_text(f"The whale sang. {'Nothing else. ' * 60}\n\nIt was dark.")
    (tmp_path / "b.txt").write_text("Dinner was late.")
    index = FolderIndex(tmp_path, cache=False, by_file=False, max_chars=500)
    found = index.search("whale", neighbors=2, true_order=False)
    assert len(found) > 1
    assert {result.metadata["path"] for result in found} == {"a.txt"}


def test_distinct_path_returns_one_result_per_file(root: Path) -> None:
    """`distinct` returns the best result of each file with the number of collapsed results."""
    index = FolderIndex(root, max_chars=20, by_file=False)
    every = index.search("apple pear", true_order=False)
    response = index.search("apple pear", true_order=False, distinct="path")
    assert [result.metadata["path"] for result in response] == list(
        dict.fromkeys(one.metadata["path"] for one in every)
    )
    assert sum(1 + result.num_collapsed for result in response) == len(every) > len(response) == 2
    for option in ({"distinct": "pth"}, {"where": {"pth": "notes.txt"}}):
        with pytest.raises(
            InvalidRequestError,
            match="must name keys that chunks have, got 'pth'; did you mean path",
        ):
            index.search("apple", **option)


@pytest.mark.parametrize(
    "where",
    [
        {"path": ["notes.txt", "talk.pptx"]},
        {"slide": 2},
        {"slide": [1, 2], "path": "talk.pptx", "start": 0},
        {"first_line": [1, 3]},
        {"path": "src/fruit.py", "first_line": 1, "start": 0},
        {"slide": 1, "first_line": 1},
    ],
)
def test_metadata_filter_equals_per_chunk_check(root: Path, where: dict[str, Any]) -> None:
    """A filter selects exactly the chunks whose metadata match, although chunks share metadata."""
    said = [
        " ".join(f"Apple number {number * place} is red." for place in range(9))
        for number in (1, 2)
    ]
    (root / "talk.pptx").write_bytes(pptx(*said))
    (root / "empty.txt").touch()
    index = FolderIndex(root, max_chars=30, by_file=False)
    lists = {key: value if isinstance(value, list) else [value] for key, value in where.items()}

    def has_all(data: dict[str, Any]) -> bool:
        return all(data.get(key) in values for key, values in lists.items())

    response = index.search("red apples and pears", 50, where=where)
    assert list(response) == list(index.search("red apples and pears", 50, where=has_all))
    assert bool(response) == (where != {"slide": 1, "first_line": 1})


def test_unknown_path_suggests_similar_path(root: Path) -> None:
    """The error suggests a path in the same folder or with the same file name."""
    index = FolderIndex(root)
    for path, meant in (
        ("src/friut.py", "src/fruit.py"),
        ("lib/fruit.py", "src/fruit.py"),
        ("note.txt", "notes.txt"),
    ):
        with pytest.raises(InvalidRequestError, match=rf"did you mean {meant}\?"):
            index.read(path)
    with pytest.raises(InvalidRequestError, match=r"files\(\) lists them"):
        index.read("elsewhere/other.rs")


def test_read_rejects_paths_outside_index(root: Path, tmp_path: Path) -> None:
    """Paths outside the folder and hidden or ignored files cannot be read."""
    (tmp_path / "outside.txt").write_text("secret")
    (root / "link.txt").symlink_to(tmp_path / "outside.txt")
    (root / "up").symlink_to(tmp_path)
    index = FolderIndex(root)
    outside = [
        "../outside.txt",
        "src/../../outside.txt",
        str(tmp_path / "outside.txt"),
        "link.txt",
        "up/outside.txt",
    ]
    for path in [*outside, ".env", "src", ".", "", "\0", 3, None, ["notes.txt"]]:
        with pytest.raises(
            InvalidRequestError, match="must be the path of a file that is searched"
        ):
            index.read(path)
    assert index.read("./src/../notes.txt", 3).text == "Pears are green."
    assert index.files() == ["notes.txt", "src/fruit.py"]
    assert index.skipped.n_links == 2


def test_read_returns_current_lines(root: Path) -> None:
    """`read` returns lines of the current file; a range is cut at the last line, and must start in it."""
    index = FolderIndex(root)
    assert index.read("src/fruit.py", 2, 5).text == "    return 'red'\n\n\ndef pear():"
    lines = index.read("src/fruit.py", 5, 100)
    assert (lines.first_line, lines.last_line, lines.n_lines) == (5, 6, 6)
    for first, last in ((7, None), (0, 1), (3, 2), ("1", None)):
        with pytest.raises(InvalidRequestError, match="_line must be an integer"):
            index.read("src/fruit.py", first, last)
    (root / "src" / "fruit.py").write_text("")
    assert index.read("src/fruit.py").text == ""


def test_csv_rows_have_lines_of_file(root: Path) -> None:
    """A chunk of a CSV file has its rows with column names, and the lines that `read` returns."""
    rows = "".join(f'{number},"Name\n{number}"\n' for number in range(100))
    (root / "people.csv").write_text("id,name\n" + rows)
    index = FolderIndex(root, max_chars=100)
    best = index.search("What is the name of id 57?").best[0]
    assert "| id: 57 | name: Name 57 |" in best.chunk_txt
    lines = index.read("people.csv", best.metadata["first_line"], best.metadata["last_line"])
    assert '57,"Name\n57"' in lines.text + '\n57"'


def test_globs_choose_files(root: Path) -> None:
    """A glob chooses among the files as it does in a walk."""
    for glob in ("*.py", "!*.txt", ["*.py", "*.txt", "!notes.*"], "src/*", "src/**"):
        assert (
            FolderIndex(root).files(glob)
            == FolderIndex(root, glob=glob).files()
            == ["src/fruit.py"]
        )
    assert FolderIndex(root, types="py").files() == ["src/fruit.py"]
    assert FolderIndex(root, hidden=True).files() == [".env", "notes.txt", "src/fruit.py"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"root": "gone"}, "root must be an existing folder"),
        (
            {"root": "root/notes.txt"},
            "root must be an existing folder.*; pass the folder that contains the file",
        ),
        ({"root": 3}, "root must be the path of a folder, got 3"),
        ({"root": ""}, "root must be the path of a folder"),
        ({"root": "a\0b"}, "root cannot be a path: it has a null byte"),
        ({"root": "\ud800"}, "root cannot be a path: it has a lone surrogate"),
        ({"cache": "\ud800"}, "cache cannot be a path: it has a lone surrogate"),
        ({"shown_as": 3}, "shown_as must be a string, got 3"),
        ({"max_chars": 0}, "max_chars must be an integer of at least 1, got 0"),
        ({"glob": "/"}, "glob must be a pattern"),
        ({"glob": 3}, "glob must be a string or a list of strings, got 3"),
        ({"glob": [3]}, r"glob\[0\] must be a string, got 3"),
        ({"types": "pyy"}, "types must be names of file types, got 'pyy'; did you mean py"),
        ({"cache": 3}, "cache must be a folder"),
        ({"weighting": "x"}, "weighting must be"),
        ({"hidden": 1}, "hidden must be True or False"),
    ],
)
def test_wrong_arguments(
    options: dict[str, Any], message: str, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wrong argument is refused before anything is read, and named."""
    monkeypatch.chdir(root.parent)
    with pytest.raises(InvalidRequestError, match=message):
        FolderIndex(**{"root": "root"} | options)


def test_missing_folder_raises_until_restored(root: Path) -> None:
    """A search of a removed folder raises; after the folder returns, it is searched again."""
    index = FolderIndex(root)
    assert index.search("apples")
    root.rename(root.parent / "elsewhere")
    with pytest.raises(InvalidRequestError, match="root must be an existing folder"):
        index.search("apples")
    (root.parent / "elsewhere").rename(root)
    assert index.search("apples")


def test_folder_above_max_files_raises(root: Path) -> None:
    """A folder with too many files raises an error with the limit before a file is read."""
    with pytest.raises(
        InvalidRequestError, match="root holds more than 1 file; choose with glob or types"
    ):
        FolderIndex(root, max_files=1).search("apples")
    assert len(FolderIndex(root, max_files=2)) == 2


def test_unreadable_file_is_reported_and_retried(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other files are searched meanwhile; once the file is readable, it is searched too."""
    real, locked = os.open, True

    def open_but_one(path: Any, *rest: Any, **options: Any) -> int:
        if locked and str(path).endswith("notes.txt"):
            raise PermissionError(13, "Permission denied")
        return real(path, *rest, **options)

    monkeypatch.setattr("os.open", open_but_one)
    index = FolderIndex(root)
    assert [result.metadata["path"] for result in index.search("apples")] == ["src/fruit.py"]
    assert index.skipped.failures == {"notes.txt": "Permission denied"}
    locked = False
    assert [result.metadata["path"] for result in index.search("apples")] == [
        "notes.txt",
        "src/fruit.py",
    ]
    assert index.skipped.failures == {}


def test_link_cycle_ends(root: Path) -> None:
    """Links are counted, or followed without cycles; a file name with invalid UTF-8 is searched."""
    (root / "src" / "round").symlink_to(root)
    (root / "gone").symlink_to("nowhere")
    name = os.fsdecode(b"caf\xe9.txt")
    (root / name).write_text("apple")
    assert FolderIndex(root).skipped.n_links == 2
    index = FolderIndex(root, follow=True)
    assert {result.metadata["path"] for result in index.search("apple")} == {
        name,
        "notes.txt",
        "src/fruit.py",
    }
    assert index.skipped.failures == {"gone": "the target of the symbolic link does not exist"}


def test_recently_changed_file_is_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file is read each time until its timestamp is too old for an undetected later change."""
    read: list[str] = []
    real = files_module.read_file
    monkeypatch.setattr(
        files_module, "read_file", lambda path, **how: (read.append(path), real(path, **how))[1]
    )
    changed = (root / "notes.txt").stat().st_ctime_ns
    monkeypatch.setattr(time, "time_ns", lambda: changed + 1_000_000)
    index = FolderIndex(root, glob="*.txt", cache=False)
    for _ in range(3):
        index.search("apples")
    assert len(read) == 3
    monkeypatch.setattr(time, "time_ns", lambda: changed + 3_000_000_000)
    for _ in range(3):
        index.search("apples")
    assert len(read) == 4


def test_change_reads_only_changed_file(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only changed files are read again, in the same process and in a new process."""
    index = FolderIndex(root)
    monkeypatch.setattr(
        time, "time_ns", lambda: (root / "notes.txt").stat().st_ctime_ns + 3_000_000_000
    )
    index.search("apples")
    read: list[str] = []
    real = files_module.read_file
    monkeypatch.setattr(
        files_module, "read_file", lambda path, **how: (read.append(path), real(path, **how))[1]
    )
    (root / "notes.txt").write_text("Plums are blue.")
    for another in (index, FolderIndex(root)):
        read.clear()
        assert another.search("plums")
        assert read == [str(root / "notes.txt")]


def test_concurrent_searches_see_consistent_snapshots(root: Path) -> None:
    """While files change, the text of each result equals the text at its location."""
    index, failures = FolderIndex(root, max_chars=40), []
    done = threading.Event()

    def ask() -> None:
        while not done.is_set():
            for result in index.search("apples"):
                number = result.chunk_txt.split()[-1]
                if (
                    result.metadata["path"].startswith("n")
                    and result.metadata["path"] != f"n{number}.txt"
                ):
                    failures.append(result)

    (root / "notes.txt").unlink()
    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for number in range(30):
        (root / f"n{number}.txt").write_text(f"apple {number}")
        if number > 3:
            (root / f"n{number - 3}.txt").unlink()
    done.set()
    for thread in threads:
        thread.join()
    assert failures == []
